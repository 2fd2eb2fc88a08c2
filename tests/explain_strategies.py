"""Rulesets for the kernel and for the walk, as hypothesis makes them: valid everywhere, and dense around the packets that are sent.

iptables rules are values of the vocabulary; nft rules are text. Chains only call chains later in their list, so nothing loops. In nat
a chain is either for destinations or for sources, as the kernel asks of targets.
"""

from __future__ import annotations

from hypothesis import strategies as st

from podwire.rules import vocabulary as v
from podwire.rules.iptables.spell import spell

CLIENT, REMOTE, POD, POD2, NODE, BRIDGE, VIP = (
    "203.0.113.50", "198.51.100.9", "10.244.1.200", "10.244.1.77", "10.20.0.1", "10.244.1.1", "10.96.0.10",
)  # fmt: skip
ADDRESSES = [CLIENT, REMOTE, POD, POD2, NODE, BRIDGE, VIP]
PORTS = [80, 8080, 30080]
PREFIXES = st.sampled_from(
    [f"{one}/32" for one in ADDRESSES] + ["10.244.0.0/16", "10.0.0.0/8", "203.0.113.0/24", "198.51.100.0/28"]
)
PACKETS = st.builds(
    lambda way, dst, port, protocol: {"via": way[0], "src": way[1], "dst": dst, "port": port, "protocol": protocol},
    st.sampled_from([("eth0", CLIENT), ("eth0", REMOTE), ("cni0", POD), ("cni0", POD2), ("local", NODE)]),
    st.sampled_from([NODE, VIP, POD2, REMOTE, BRIDGE]),
    st.sampled_from(PORTS),
    st.sampled_from(["tcp", "tcp", "udp"]),
).filter(lambda packet: packet["src"] != packet["dst"])

HOOKS = {
    "raw": ["PREROUTING", "OUTPUT"],
    "mangle": ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
    "nat": ["PREROUTING", "OUTPUT", "INPUT", "POSTROUTING"],
    "filter": ["INPUT", "FORWARD", "OUTPUT"],
}
INCOMING = frozenset({"PREROUTING", "INPUT", "FORWARD"})
OUTGOING = frozenset({"FORWARD", "OUTPUT", "POSTROUTING"})
_MARKS = st.sampled_from([0, 1, 2, 3, 0x4000, 0x8000])
_FLAG = st.booleans()
_RARELY = st.sampled_from([False, False, False, True])


def _range(draw):
    first = draw(st.sampled_from(PORTS))
    return v.PortRange(first, draw(st.sampled_from([first, first, 32767])) if first < 32767 else None, draw(_RARELY))


@st.composite
def _others(draw, hook, tracked):
    kinds = ["mark", "random", "nth", "addrtype", "recent", "set", "comment", "none", "none"] + (
        ["state", "state"] if tracked else []
    )
    kind = draw(st.sampled_from(kinds))
    if kind == "mark":
        return v.Mark(draw(_MARKS), draw(st.sampled_from([v.FULL_MASK, 3, 0x4000])), draw(_RARELY))
    if kind == "random":
        return v.Random(draw(st.sampled_from([0, v.CHANCE_UNIT])), draw(_RARELY))
    if kind == "nth":
        return v.Nth(1, 0, draw(_RARELY))
    if kind == "addrtype":
        side = draw(_FLAG)
        kinds = (draw(st.sampled_from(["LOCAL", "UNICAST", "BROADCAST"])),)
        inverted = draw(_RARELY)
        return v.AddrType(kinds if side else (), () if side else kinds, inverted and side, inverted and not side)
    if kind == "recent":
        name = draw(st.sampled_from(["A", "B"]))
        action = draw(st.sampled_from(["set", "rcheck"]))
        side = draw(st.sampled_from(["rsource", "rdest"]))
        # The lists live longer than a packet, so a run names its own: the test puts its number in.
        return v.Recent(
            action,
            f"RUN-{name}-{side}",
            mask="255.255.255.255",
            side=side,
            inverted=action == "rcheck" and draw(_RARELY),
        )
    if kind == "set":
        name, sides = draw(
            st.sampled_from([("net", ("src",)), ("net", ("dst",)), ("pair", ("dst", "dst")), ("pair", ("src", "dst"))])
        )
        return v.SetMatch(name, sides, draw(_RARELY))
    if kind == "state":
        states = draw(
            st.sampled_from([("NEW",), ("RELATED", "ESTABLISHED"), ("INVALID",), ("DNAT",), ("SNAT",), ("UNTRACKED",)])
        )
        return v.ConnState(states, draw(_RARELY))
    return v.Comment("a rule") if kind == "comment" else None


@st.composite
def _matches(draw, hooks, table):
    found = []
    if draw(_FLAG):
        found.append(v.Source(draw(PREFIXES), draw(_RARELY)))
    if draw(_RARELY):
        found.append(v.Destination(draw(PREFIXES), draw(_RARELY)))
    if set(hooks) <= INCOMING and draw(_RARELY):
        found.append(v.InInterface(draw(st.sampled_from(["eth0", "cni0", "eth+", "lo"])), draw(_RARELY)))
    if set(hooks) <= OUTGOING and draw(_RARELY):
        found.append(v.OutInterface(draw(st.sampled_from(["eth0", "cni0", "cni+", "lo"])), draw(_RARELY)))
    if draw(_RARELY):
        protocol = draw(st.sampled_from(["tcp", "udp"]))
        found.append(v.Protocol(protocol))
        if draw(_FLAG):
            found.append(v.Ports(protocol, None, _range(draw)))
        elif draw(_FLAG):
            ranges = tuple(
                draw(
                    st.lists(
                        st.sampled_from([(80, 80), (8080, 9000), (30000, 32767)]), min_size=1, max_size=3, unique=True
                    )
                )
            )
            found.append(v.Multiport(draw(st.sampled_from(["dports", "ports"])), ranges, draw(_RARELY)))
    other = draw(_others(hooks[0], table != "raw"))
    return (*found, *([other] if other is not None else []))


def _targets(table, hooks, later):
    """What a rule of a chain reached from these hooks may do; `later` are chains that it may call."""
    found = [v.Return(), None, v.Accept()]
    found += [v.SetMark(1, 1), v.SetMark(0x4000, 0), v.SetMark(0x4000, 0x4000), v.SetMark(0, 3)] * (
        table in ("mangle", "nat", "filter")
    )
    for chain in later:
        found += [v.Jump(chain), v.Jump(chain), v.Goto(chain)]
    if table == "filter":
        found += [v.Drop(), v.Reject("icmp-port-unreachable")]
    elif table != "nat":
        found.append(v.Drop())
    if table == "raw":
        found.append(v.OpaqueTarget("-j CT --notrack"))
    if table == "nat" and set(hooks) <= {"PREROUTING", "OUTPUT"}:
        found += [
            v.Dnat(f"{POD2}:8080"),
            v.Dnat(REMOTE),
            v.Dnat(f"{NODE}:8080"),
            v.Redirect("8080"),
            v.Dnat(f"{POD}:80"),
        ] * 2
    if table == "nat" and set(hooks) <= {"POSTROUTING"}:
        found += [
            v.Masquerade(),
            v.Masquerade("", ("random-fully",)),
            v.Snat("10.20.0.9"),
            v.Snat("10.20.0.8-10.20.0.8"),
        ]
    return found


def _with_protocol(matches, target):
    """A target with a port needs a protocol that has ports."""
    if not isinstance(target, v.Redirect | v.Dnat) or (isinstance(target, v.Dnat) and ":" not in target.to):
        return matches
    if any(isinstance(match, v.Protocol) for match in matches):
        return matches
    headers = [
        match for match in matches if isinstance(match, v.Source | v.Destination | v.InInterface | v.OutInterface)
    ]
    return (*headers, v.Protocol("tcp"), *[match for match in matches if match not in headers])


@st.composite
def iptables_tables(draw):
    """{table: {chain: (policy or None, [rules as text])}}."""
    tables = {}
    for table in draw(st.lists(st.sampled_from(list(HOOKS)), min_size=2, max_size=4, unique=True)):
        sides = (
            [("", HOOKS[table])]
            if table != "nat"
            else [("D", ["PREROUTING", "OUTPUT"]), ("S", ["POSTROUTING"]), ("I", ["INPUT"])]
        )
        chains = {hook: ("ACCEPT", []) for hook in HOOKS[table]}
        for side, hooks in sides:
            names = [f"{side}{number}-{table}" for number in range(draw(st.integers(0, 3)))]
            for at, (name, reached) in enumerate(
                [(hook, [hook]) for hook in hooks] + [(name, hooks) for name in names]
            ):
                later = names[max(0, at - len(hooks) + 1) :]
                body = []
                for _ in range(draw(st.integers(0, 4))):
                    matches = draw(_matches(reached, table))
                    target = draw(st.sampled_from(_targets(table, reached, later)))
                    body.append(spell(v.Rule(_with_protocol(matches, target), target)))
                policy = (
                    draw(st.sampled_from(["ACCEPT", "ACCEPT", "ACCEPT", "DROP"]))
                    if table == "filter" and name in HOOKS[table]
                    else None
                )
                chains[name] = (policy or ("ACCEPT" if name in HOOKS[table] else None), body)
        tables[table] = chains
    return tables


def restore_text(tables):
    """For iptables-restore."""
    lines = []
    for table, chains in tables.items():
        lines.append(f"*{table}")
        lines += [f":{name} {policy or '-'}" for name, (policy, _) in chains.items()]
        lines += [f"-A {name} {rule}".rstrip() for name, (_, body) in chains.items() for rule in body]
        lines.append("COMMIT")
    return "\n".join(lines) + "\n"


# -- nft ---------------------------------------------------------------------------------------------------------------

_NFT_MATCHES = [
    "ip saddr {a}", "ip saddr != {a}", "ip daddr {a}", "ip daddr != {a}", "ip saddr {{ {a}, {b} }}", "ip daddr @hosts",
    "ip daddr != @hosts", "ip saddr @nets", "ip daddr . meta l4proto . th dport @triples", "tcp dport {p}", "udp dport {p}",
    "tcp dport {{ 80, 8000-9000 }}", "th dport != {p}", "meta l4proto tcp", "meta l4proto {{ tcp, udp }}", "meta mark {m}",
    "meta mark & 0x00004000 != 0x00000000", "meta mark != {m}", "ct state new", "ct state established,related",
    "ct state != new", "ct status dnat", "fib daddr type local", "fib saddr type local", "fib daddr type != local",
    "tcp flags syn / fin,syn,rst,ack", "ip protocol udp", "ip daddr 10.0.0.0-10.255.255.255", "numgen random mod 1 0",
    "ct original ip daddr {a}",
]  # fmt: skip
_NFT_HOOKS = [
    ("filter", "prerouting", -150), ("filter", "prerouting", -50), ("filter", "input", 0), ("filter", "forward", 0),
    ("filter", "forward", 10), ("filter", "output", 0), ("filter", "postrouting", 50), ("route", "output", -150),
    ("nat", "prerouting", -100), ("nat", "output", -100), ("nat", "postrouting", 100), ("filter", "input", -10),
    ("nat", "prerouting", -110), ("filter", "prerouting", -310),
]  # fmt: skip


@st.composite
def _nft_rule(draw, kind, hook, later):
    def fill(text):
        return text.format(
            a=draw(st.sampled_from(ADDRESSES)), b=draw(st.sampled_from(ADDRESSES)), p=draw(st.sampled_from(PORTS)),
            m=draw(st.sampled_from(["0x1", "0x4000", "0x0"])),
        )  # fmt: skip

    matches = [fill(text) for text in draw(st.lists(st.sampled_from(_NFT_MATCHES), max_size=2))]
    verdicts = [
        "accept",
        "return",
        "meta mark set meta mark | 0x4000",
        "meta mark set meta mark ^ 0x4000",
        "meta mark set 0x1",
        "continue",
        "counter",
    ]
    verdicts += [f"{word} {chain}" for chain in later for word in ("jump", "jump", "goto")]
    if later:
        verdicts += [f"meta l4proto vmap {{ tcp : jump {later[0]}, udp : drop }}", "ip daddr vmap @routes"] * (
            kind == "filter"
        )
        verdicts.append(f"numgen random mod 1 vmap {{ 0 : goto {later[-1]} }}")
    if kind == "filter":
        verdicts += ["drop"] + ["reject"] * (hook in ("input", "forward", "output"))
    elif kind == "nat" and hook != "postrouting":
        verdicts += [
            f"meta l4proto tcp dnat ip to {POD2}:8080", f"dnat ip to {REMOTE}", "meta l4proto { tcp, udp } redirect to :8080",
            f"meta l4proto tcp dnat ip to numgen random mod 1 map {{ 0 : {POD} . 80 }}", "dnat ip to ip daddr map @targets",
        ] * 2  # fmt: skip
    elif kind == "nat":
        verdicts += ["masquerade", "masquerade fully-random", "snat ip to 10.20.0.9"]
    return " ".join([*matches, draw(st.sampled_from(verdicts))])


@st.composite
def nft_rulesets(draw):
    """The text of two tables for `nft -f`."""
    tables = []
    for number in range(draw(st.integers(1, 2))):
        bases = draw(st.lists(st.sampled_from(_NFT_HOOKS), min_size=2, max_size=6, unique=True))
        lines = [f"table {draw(st.sampled_from(['ip', 'inet'])) if number else 'ip'} t{number} {{", *_nft_sets()]
        bodies = []
        for kind, hook, priority in bases:
            group = f"{kind}_{hook}_{priority}".replace("-", "m")
            users = [f"{group}_u{at}" for at in range(draw(st.integers(0, 2)))]
            for at, name in enumerate(users):  # made first: a rule may only name what is there
                bodies.append(
                    (name, [], [draw(_nft_rule(kind, hook, users[at + 1 :])) for _ in range(draw(st.integers(0, 3)))])
                )
            head = [
                f"type {kind} hook {hook} priority {priority}; policy {draw(st.sampled_from(['accept', 'accept', 'drop'])) if kind == 'filter' else 'accept'};"
            ]
            bodies.append(
                (f"{group}_base", head, [draw(_nft_rule(kind, hook, users)) for _ in range(draw(st.integers(1, 4)))])
            )
        lines += [f"chain {name} {{\n{chr(10).join(head)}\n}}" for name, head, _ in bodies]
        lines.append(
            f"map routes {{ type ipv4_addr : verdict; elements = {{ {POD2} : accept, {VIP} : drop, {REMOTE} : return }} }}"
        )
        lines += [f"chain {name} {{\n{chr(10).join(rules)}\n}}" for name, _, rules in bodies if rules]
        tables.append("\n".join(lines) + "\n}\n")
    return "".join(tables)


def _nft_sets():
    return [
        f"set hosts {{ type ipv4_addr; elements = {{ {VIP}, {POD2} }} }}",
        "set nets { type ipv4_addr; flags interval; elements = { 10.244.0.0/16, 203.0.113.0/25 } }",
        f"set triples {{ type ipv4_addr . inet_proto . inet_service; elements = {{ {VIP} . tcp . 80, {NODE} . udp . 8080 }} }}",
        f"map targets {{ type ipv4_addr : ipv4_addr; elements = {{ {VIP} : {POD2}, {NODE} : {REMOTE} }} }}",
    ]
