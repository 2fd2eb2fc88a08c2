"""Checks of hostPorts: leaked portmap chains, rules that catch what is not for this node, and listeners that never hear anything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from podwire.doctor.finding import Check, Evidence, Said
from podwire.explain.snapshot import name_of, namespace_of
from podwire.explain.snapshot_words import inner, rows
from podwire.naming import cni_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from podwire.doctor.nft import NftChain, NftTables
    from podwire.doctor.view import Node
    from podwire.explain.tables import IptablesRules, RuleTable

_PORTMAP = re.compile(r'name: \\?"([^"\\]+)\\?"\s+id: \\?"([^"\\]+)\\?"')
_PORTS = re.compile(r"--dports? (\S+)")
#: Who may well listen on a hostPort: those that hold it for somebody.
_HOLDERS = frozenset(
    ("kubelet", "crio", "conmon", "containerd", "containerd-shim", "docker-proxy", "dockerd", "portmap")
)


class _Jump(NamedTuple):
    """A rule of CNI-HOSTPORT-DNAT."""

    position: int
    network: str
    container: str
    ports: str
    target: str


def _jumps(lines: Iterable[str]) -> Iterator[_Jump]:
    for position, line in enumerate(lines, 1):
        owner, ports, target = _PORTMAP.search(line), _PORTS.search(line), re.search(r"-j (CNI-DN-\w+)", line)
        protocol = re.search(r"-p (\w+)", line)
        if owner and ports and target:
            shown = f"{ports.group(1)}/{protocol.group(1) if protocol else 'tcp'}"
            yield _Jump(position, owner.group(1), owner.group(2), shown, target.group(1))


def look_stale(node: Node) -> Iterator[Said]:
    """Jumps of portmap for sandboxes that the runtime does not know, and two for the same port."""
    if node.snapshot.sandboxes is None:
        return
    known = [one.id for one in node.snapshot.sandboxes]
    source = node.snapshot.sandboxes[0].where if node.snapshot.sandboxes else "crictl pods"
    for chain, rules in [*node.chains("nat", "CNI-HOSTPORT-DNAT"), *node.chains("nat", "CNI-HOSTPORT-DNAT", 6)]:
        jumps = list(_jumps(chain.lines))
        for jump in jumps:
            if not _known(jump.container, known):
                yield _stale(jump, jumps, known, rules, source)


def _stale(jump: _Jump, jumps: list[_Jump], known: list[str], rules: IptablesRules, source: str) -> Said:
    same = [one for one in jumps if one.ports == jump.ports]
    where = f"{rules.where}, nat CNI-HOSTPORT-DNAT, rule {jump.position}"
    said = f"host port {jump.ports}: {len(same)} rule{'s' if same[1:] else ''}; rule {jump.position} belongs to the unknown sandbox"
    evidence = [
        Evidence(f"{said} {jump.container[:12]} → {jump.target}{_dnat(rules, jump.target)}", where),
        _proof(jump, rules),
        Evidence(f"the runtime knows {len(known)} sandboxes, this one is not among them", source),
    ]
    live = [one for one in same if one.position > jump.position and _known(one.container, known)]
    for one in live[:1]:
        text = f"rule {one.position}, of the living sandbox {one.container[:12]}{_dnat(rules, one.target)}, is never reached"
        evidence.append(Evidence(text, rules.where))
    program = "ip6tables" if rules.family == 6 else "iptables"
    nat = f"{program} -t nat"
    return Said(
        evidence,
        [f"{nat} -D CNI-HOSTPORT-DNAT {jump.position} && {nat} -F {jump.target} && {nat} -X {jump.target}"],
        title=f"host port {jump.ports}: a leaked portmap rule {'wins over the living one' if live else 'is left over'}",
        level="error" if live else "warning",
    )


def _known(container: str, known: list[str]) -> bool:
    return any(one.startswith(container) or container.startswith(one) for one in known if one)


def _dnat(rules: IptablesRules, target: str) -> str:
    chain = rules.tables["nat"].chains.get(target)
    found = [
        match.group(1)
        for line in (chain.lines if chain else [])
        if (match := re.search(r"--to-destination (\S+)", line))
    ]
    return f", which sends to {found[0]}" if found else ""


def _proof(jump: _Jump, rules: IptablesRules) -> Evidence:
    if cni_chain(jump.network, jump.container, "DN-") == jump.target:
        said = f'{jump.target} is the hash of network "{jump.network}" and this sandbox: nobody else\'s'
    else:
        said = f'{jump.target} is not the hash of network "{jump.network}" and this sandbox: the network was renamed, and DEL looks for another chain'
    return Evidence(said, rules.where)


def look_catch_all(node: Node) -> Iterator[Said]:
    """A DNAT in prerouting for a port of whatever destination."""
    for rules in node.iptables:
        nat = rules.tables.get("nat")
        if nat is None or "PREROUTING" not in nat.chains or not rules.interfaces_shown:
            continue
        found = [
            Evidence(f"-A {chain} {line}", f"{rules.where}, nat {chain}, rule {position}")
            for chain, position, line in _unguarded(nat, "PREROUTING", set())
        ]
        if found:
            yield _caught(found, "iptables: -m addrtype --dst-type LOCAL")
    for tables, where in node.nft:
        for base in tables.chains.values():
            if base.hook == "prerouting" and base.kind == "nat":
                found = [
                    Evidence(
                        text,
                        f"{where}, table {' '.join(base.table)}, {base.name}"
                        + (f" → {chain}" if chain != base.name else ""),
                    )
                    for chain, text in _unguarded_nft(tables, base, set())
                ]
                if found:
                    yield _caught(found, "nft: fib daddr type local, or ip daddr")


def _caught(found: list[Evidence], missing: str) -> Said:
    return Said(
        [*found[:10], Evidence(f"no rule on the way asks whether the destination is this node ({missing})", found[0].where)],
        ["a newer portmap plugin (containernetworking/plugins >= 1.7.1 for the nftables back end), then recreate the pod with the hostPort",
         "at once: put the test in front of the jump, as it is in the output chain"],
    )  # fmt: skip


def _unguarded(nat: RuleTable, name: str, seen: set[str]) -> Iterator[tuple[str, int, str]]:
    """DNAT rules that are reached without a test of the destination."""
    chain = nat.chains.get(name)
    if chain is None or name in seen or len(seen) > 200:
        return
    seen.add(name)
    for position, line in enumerate(chain.lines, 1):
        if re.search(
            r"(?:^|\s)-d \S|--dst-type (?:LOCAL|BROADCAST)|--match-set \S+ \S*dst|-i (?:lo|docker0)\b", line
        ) and not re.search(r"! -d \S", line):
            continue
        target = re.search(r"-[jg] ([\w.:-]+)", line)
        if not target:
            continue
        if target.group(1) == "DNAT" and re.search(r"--dports? ", line):
            yield name, position, line
        elif target.group(1) in nat.chains:
            yield from _unguarded(nat, target.group(1), seen)


def _unguarded_nft(tables: NftTables, chain: NftChain, seen: set[str]) -> Iterator[tuple[str, str]]:
    if chain.name in seen:
        return
    seen.add(chain.name)
    for rule in chain.rules:
        if rule.asks_local or rule.asks_daddr:
            continue
        if rule.dnat and rule.ports:
            yield chain.name, rule.text
        for name in rule.jumps:
            inner = tables.chains.get((chain.table, name))
            if inner is not None:
                yield from _unguarded_nft(tables, inner, seen)


def look_shadowed(node: Node) -> Iterator[Said]:
    """A process of the host that listens on a port which a hostPort rule takes."""
    ports: dict[tuple[str, int], tuple[str, str]] = {}
    for chain, rules in [*node.chains("nat", "CNI-HOSTPORT-DNAT"), *node.chains("nat", "KUBE-HOSTPORTS")]:
        for position, line in enumerate(chain.lines, 1):
            found, protocol = _PORTS.search(line), re.search(r"-p (\w+)", line)
            for port in found.group(1).split(",") if found and protocol else ():
                assert protocol is not None
                if port.isdigit():
                    ports.setdefault(
                        (protocol.group(1), int(port)),
                        (f"-A {chain.name} {line}", f"{rules.where}, nat {chain.name}, rule {position}"),
                    )
    for socket in node.snapshot.sockets or ():
        taken = ports.get((socket.protocol, socket.port))
        if (
            socket.listening
            and taken
            and socket.process
            and socket.process not in _HOLDERS
            and not socket.ip.startswith("127.")
        ):
            yield Said(
                [Evidence(f"{socket.owner} listens on {socket.ip}:{socket.port}/{socket.protocol}", socket.where), Evidence(*taken)],
                [f"move the pod's hostPort or {socket.process} to another port"],
                title=f"{socket.process} on port {socket.port} is shadowed by a hostPort",
                level="warning",
            )  # fmt: skip


def look_no_rule(node: Node) -> Iterator[Said]:
    """Running pods with a hostPort that no rule implements."""
    chains = list(node.chains("nat", "PREROUTING"))
    if not chains or node.nft or node.snapshot.pods is None:
        return
    text = "\n".join(
        line for chain, rules in chains for lines in rules.tables["nat"].chains.values() for line in lines.lines
    )
    for item in node.pods_of():
        spec, status = inner(item, "spec"), inner(item, "status")
        if spec.get("hostNetwork") or status.get("phase") != "Running":
            continue
        wanted = [
            (int(port["hostPort"]), str(port.get("protocol") or "TCP").lower())
            for container in rows(spec.get("containers"))
            if isinstance(container, dict)
            for port in rows(container.get("ports"))
            if isinstance(port, dict) and isinstance(port.get("hostPort"), int) and port["hostPort"]
        ]
        lost = [
            f"{port}/{protocol}"
            for port, protocol in wanted
            if not re.search(rf"-p {protocol}\b.*--dports? (?:\S*,)?{port}(?:,|\s|$)", text, re.MULTILINE)
        ]
        if lost:
            name = f"{namespace_of(item)}/{name_of(item)}"
            yield Said(
                [Evidence(f"{name} has hostPort {', '.join(lost)}", node.snapshot.where.get("pods", "")), Evidence("no rule in nat has that port", chains[0][1].where)],
                [f"kubectl -n {namespace_of(item)} delete pod {name_of(item)}   # its rules are written when it is made anew"],
                title=f"hostPort {', '.join(lost)} of {name} has no rule",
            )  # fmt: skip


def look_order(node: Node) -> Iterator[Said]:
    """A hostPort and a NodePort of the same number: the jump that comes first takes it."""
    for chain, rules in node.chains("nat", "PREROUTING"):
        first = next(
            (
                number
                for number, line in enumerate(chain.lines)
                if line.endswith(("-j CNI-HOSTPORT-DNAT", "-j KUBE-HOSTPORTS"))
            ),
            None,
        )
        services = next((number for number, line in enumerate(chain.lines) if line.endswith("-j KUBE-SERVICES")), None)
        if first is None or services is None:
            continue
        nat = rules.tables["nat"].chains
        ports = _numbers(
            [
                *(nat["CNI-HOSTPORT-DNAT"].lines if "CNI-HOSTPORT-DNAT" in nat else ()),
                *(nat["KUBE-HOSTPORTS"].lines if "KUBE-HOSTPORTS" in nat else ()),
            ]
        )
        own = {address.ip for address in node.snapshot.addresses or ()}
        clash = ports & _numbers(nat["KUBE-NODEPORTS"].lines if "KUBE-NODEPORTS" in nat else ())
        if first < services and "KUBE-SERVICES" in nat:
            # An external or load balancer address that is one of the node's own counts as local too.
            local = [
                line
                for line in nat["KUBE-SERVICES"].lines
                if (found := re.search(r"-d ([\d.]+)/32", line)) and found.group(1) in own
            ]
            clash |= ports & _numbers(local)
        for protocol, port in sorted(clash):
            taker = "the hostPort" if first < services else "the Service"
            yield Said(
                [Evidence(f"rule {first + 1}: -A PREROUTING {chain.lines[first]}", f"{rules.where}, nat"), Evidence(f"rule {services + 1}: -A PREROUTING {chain.lines[services]}", f"{rules.where}, nat")],
                ["give the pod another hostPort, or the Service another port"],
                title=f"Port {port}/{protocol} is a hostPort and a Service's: {taker} takes it",
            )  # fmt: skip


def _numbers(lines: Iterable[str]) -> set[tuple[str, int]]:
    found = set()
    for line in lines:
        ports, protocol = _PORTS.search(line), re.search(r"-p (\w+)", line)
        for port in ports.group(1).split(",") if ports and protocol else ():
            if port.isdigit() and protocol:
                found.add((protocol.group(1), int(port)))
    return found


CHECKS = (
    Check(
        "hostport-stale",
        "A leaked portmap rule",
        "A hostPort answers nobody, or only after the pod was moved to another node.",
        "portmap's DEL did not run or looked for another chain, so the rule of a pod that is gone stayed. Rules are tried in order: the first"
        " jump for the port takes every packet, and the address behind it belongs to nobody, or by now to another pod.",
        look_stale,
    ),
    Check(
        "hostport-catches-all",
        "A hostPort rule takes packets that are not for this node",
        "Pods cannot reach some port anywhere: a pod with hostPort 53 or 443 gets everybody's packets for that port.",
        "The prerouting hook sees forwarded packets too. Without a test that the destination is an address of this node, the DNAT applies to"
        " every packet that passes with that port.",
        look_catch_all,
    ),
    Check(
        "hostport-no-rule",
        "A hostPort without a rule",
        "A hostPort stopped answering after a reload of the firewall.",
        "portmap writes its rules once, when the pod is made. Nobody puts them back after a flush.",
        look_no_rule,
    ),
    Check(
        "hostport-order",
        "A hostPort and a Service want the same port",
        "Clients of the one reach the other.",
        "Both are rules in PREROUTING; the jump that comes first decides.",
        look_order,
    ),
    Check(
        "hostport-shadows-listener",
        "A hostPort shadows a process of the host",
        "A server on the node works from the node itself on localhost, and from outside somebody else answers.",
        "DNAT happens in prerouting, before the kernel looks for a listener. The process keeps its port and gets nothing.",
        look_shadowed,
    ),
)
