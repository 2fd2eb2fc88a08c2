"""A snapshot as the walk needs it: rules parsed, addresses and routes searchable, and what the user said of a bare dump.

What iptables-nft keeps in nf_tables shows in `nft list ruleset` too; where its own dump is there, that is used and nft's
copy of the same table left out. Two dumps of the same rules (iptables-save and iptables-nft-save on one node) count once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from podwire.addresses import Ip, Prefix
from podwire.errors import UsageError
from podwire.explain.facts import Facts, Recent
from podwire.explain.hooks import Ruleset
from podwire.explain.ipsets import read_ipsets
from podwire.explain.nft import MANY
from podwire.explain.packet import UNKNOWN
from podwire.explain.read_iptables import read_texts
from podwire.explain.read_listing import read_listing
from podwire.explain.read_nft import read_nft
from podwire.explain.read_nft_json import read_nft_json
from podwire.explain.routing import Routing
from podwire.explain.snapshot import Address, Route, node_addresses
from podwire.explain.snapshot_routes import routes_text
from podwire.explain.tables import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.nft import NftTable
    from podwire.explain.snapshot import RuleText, Snapshot
    from podwire.explain.tables import IptablesRules

#: The bridge that --local-cidr's pods are taken to be behind where nothing tells its name.
_MANAGED = frozenset(BUILT_IN)


@dataclass(slots=True)
class Given:
    """What the user supplies: `addresses` as ADDRESS[/LENGTH][@DEV], `routes` as `ip route` prints them, `local_cidrs` pods here."""

    addresses: list[str] = field(default_factory=list)
    local_cidrs: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    recent: dict[str, set[str]] = field(default_factory=dict)
    table: str = ""


@dataclass(slots=True)
class Picture:
    """A node ready to be walked. `assumed` and `warnings` go into every answer."""

    snapshot: Snapshot
    ruleset: Ruleset
    facts: Facts
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    local_cidrs: list[Prefix] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)


def picture(snapshot: Snapshot, given: Given | None = None) -> Picture:
    """Put it together. Raises UsageError for what the user supplied and is wrong."""
    given = given or Given()
    assumed: list[str] = []
    addresses = _addresses(snapshot, given, assumed)
    routes = _routes(snapshot, given, addresses, assumed)
    warnings: list[str] = []
    ruleset = _ruleset(snapshot, given.table, warnings)
    facts = Facts(
        routing=Routing(addresses, routes, snapshot.policy_rules),
        snapshot=snapshot,
        settings={one.name: one.value for one in snapshot.sysctls},
        ipsets=next((read_ipsets(one.text) for one in snapshot.output("ipset")), None),
        recent=_recent(given),
        addresses=addresses,
    )
    made = Picture(snapshot, ruleset, facts, assumed, warnings + snapshot.warnings)
    made.local_cidrs = [_prefix(text, "--local-cidr") for text in given.local_cidrs]
    made.inputs = list(
        dict.fromkeys(
            [rules.where for rules in snapshot.rules] + [one.where for one in snapshot.routes or () if one.where]
        )
    )
    for rules in ruleset.iptables:
        _about(rules, made)
    return made


def _about(rules: IptablesRules, made: Picture) -> None:
    """What has to be said of an iptables input in every answer."""
    made.warnings += [f"{rules.where or rules.source}: {note}" for note in rules.notes]
    legacy = any(one.source == "iptables-legacy" and one.family == rules.family for one in made.ruleset.iptables)
    if rules.other_variant and not legacy:
        made.warnings.append(
            f"{rules.where or 'the input'} says that iptables-legacy has tables too, which are not in this input: "
            "half of the evidence is missing (iptables-legacy-save)"
        )
        made.doubts.append("the rules of iptables-legacy, which are live but not in this input")
    if not rules.interfaces_shown:
        made.doubts.append(
            "interfaces: the listing was made without -v and hides -i and -o, a rule may be bound to an interface"
        )
        made.warnings.append(f"{rules.where or 'the listing'} was made without -v: interfaces of rules are not known")


# -- addresses and routes --------------------------------------------------------------------------------------------


def _prefix(text: str, option: str) -> Prefix:
    try:
        return Prefix.parse(text if "/" in text else f"{text}/{128 if ':' in text else 32}")
    except ValueError:
        raise UsageError(option, text, "this is no address or network") from None


def _addresses(snapshot: Snapshot, given: Given, assumed: list[str]) -> list[Address] | None:
    addresses = list(snapshot.addresses) if snapshot.addresses is not None else None
    if addresses is None and snapshot.routes is not None:
        addresses = _of_routes(snapshot.routes)
    if addresses is None and not given.addresses:
        addresses = _of_node(snapshot, assumed)
    for text in given.addresses:
        value, _, dev = text.replace("=", "@").partition("@")
        if dev and not _looks_like_ip(value):
            value, dev = dev, value  # eth0=192.0.2.11/24
        prefix = _prefix(value.split()[0] if value.split() else value, "--node-address")
        addresses = addresses or []
        addresses.append(Address(dev or UNKNOWN, str(prefix.ip), prefix.length, "global", "--node-address"))
        assumed.append(f"{prefix.ip} is an address of this node (--node-address)")
    return addresses


def _of_routes(routes: Sequence[Route]) -> list[Address] | None:
    """The node's addresses as its routes tell them: a route's source is always one, and the kernel's own routes name its network."""
    found: dict[tuple[str, str], Address] = {}
    for route in routes:
        if not route.src or not _looks_like_ip(route.src):
            continue
        bits = 128 if ":" in route.src else 32
        length = (
            int(route.dst.partition("/")[2] or bits) if route.protocol == "kernel" and route.scope == "link" else bits
        )
        known = found.get((route.dev, route.src))
        if known is None or known.length == bits:
            found[route.dev, route.src] = Address(route.dev, route.src, length, "global", route.where)
    return list(found.values()) or None


def _of_node(snapshot: Snapshot, assumed: list[str]) -> list[Address] | None:
    """The addresses of this node's Node object, where nothing else tells any."""
    node = snapshot.node
    found = []
    for text in node_addresses(node) if node is not None else ():
        if _looks_like_ip(text):
            found.append(Address(UNKNOWN, text, 128 if ":" in text else 32, "global", "Node"))
            assumed.append(f"{text} is an address of this node (its Node object)")
    return found or None


def _looks_like_ip(text: str) -> bool:
    try:
        Prefix.parse(text if "/" in text else f"{text}/32" if ":" not in text else f"{text}/128")
    except ValueError:
        return False
    return True


def _routes(
    snapshot: Snapshot, given: Given, addresses: list[Address] | None, assumed: list[str]
) -> list[Route] | None:
    routes = list(snapshot.routes) if snapshot.routes is not None else None
    for text in given.routes:
        made = routes_text(_as_ip_prints(text), "--route")
        if not made:
            raise UsageError(
                "--route", text, "this is no route", "as ip route prints it: 10.244.2.0/24 via 10.0.0.2 dev eth0"
            )
        routes = (routes or []) + made
        assumed.append(f"route {text} (--route)")
    for cidr in given.local_cidrs:
        prefix = _prefix(cidr, "--local-cidr")
        assumed.append(f"pods of this node are in {prefix} (--local-cidr)")
        bridge = next((one.dev for one in addresses or () if _inside(one, prefix)), "")
        if routes is not None and not any(route.dst == str(prefix.canonical) for route in routes):
            routes.append(Route(str(prefix.canonical), dev=bridge or UNKNOWN, where="--local-cidr"))
    if routes is not None and given.routes and snapshot.routes is None:
        for address in addresses or ():  # networks of the addresses are routes that nobody types
            prefix = Prefix.parse(address.text)
            if prefix.length < prefix.ip.bits and not any(route.dst == str(prefix.canonical) for route in routes):
                routes.append(Route(str(prefix.canonical), dev=address.dev, src=address.ip, where=address.where))
    return routes


def _inside(address: Address, prefix: Prefix) -> bool:
    try:
        return prefix.contains(Ip.parse(address.ip))
    except ValueError:
        return False


def _as_ip_prints(text: str) -> str:
    """`10.0.0.0/8=eth0` and `10.0.0.0/8 eth0` are understood too."""
    words = text.replace("=", " dev ", 1).split() if "=" in text else text.split()
    if len(words) == 2 and not _looks_like_ip(words[1]):
        return f"{words[0]} dev {words[1]}"
    return " ".join(words)


def _recent(given: Given) -> Recent | None:
    if not given.recent:
        return None
    return {name: dict.fromkeys(addresses, (0.0,)) for name, addresses in given.recent.items()}


# -- rules -----------------------------------------------------------------------------------------------------------


def _ruleset(snapshot: Snapshot, table: str, warnings: list[str]) -> Ruleset:
    iptables: list[IptablesRules] = []
    nft: list[NftTable] = []
    for text in snapshot.rules:
        if text.iptables:
            iptables += _iptables(text, table)
        else:
            nft += _nft(text, nft, warnings)
    iptables = _once(iptables)
    managed = {
        ("ip" if rules.family == 4 else "ip6", name)
        for rules in iptables
        if rules.source != "iptables-legacy"
        for name in rules.tables
    }
    for order, one in enumerate(nft, 1):
        one.order = order
        for rules in iptables:
            version = "ip" if rules.family == 4 else "ip6"
            if rules.source != "iptables-legacy" and one.family == version and one.name in rules.tables:
                rules.registered[one.name] = order
    kept = [
        one for one in nft if not (one.name in _MANAGED and (one.family, one.name) in managed and _of_iptables(one))
    ]
    _prepare(iptables, kept)
    return Ruleset(tuple(iptables), tuple(kept))


def _prepare(iptables: list[IptablesRules], nft: list[NftTable]) -> None:
    """Look through long chains and sets once, so that the first packet does not wait for it."""
    for rules in iptables:
        for table in rules.tables.values():
            for chain in table.chains.values():
                if len(chain.lines) > MANY:
                    chain.prepare()
    for one in nft:
        for found in one.sets.values():
            found.prepare()


def _iptables(text: RuleText, table: str) -> list[IptablesRules]:
    family = text.family or 4
    if text.form == "L":
        return [read_listing(text.text, family, text.source, text.where, table)]
    return read_texts(text.text, family, text.source, text.where, table)


def _nft(text: RuleText, known: list[NftTable], warnings: list[str]) -> list[NftTable]:
    if text.form == "json":
        try:
            value = json.loads(text.text[text.text.index("{") :])
        except (ValueError, RecursionError) as error:
            warnings.append(f"{text.where}: not readable as JSON: {error}")
            return []
        tables = read_nft_json(value, text.where)
    else:
        tables = read_nft(text.text, text.where)
    there = {(one.family, one.name) for one in known}
    return [one for one in tables if (one.family, one.name) not in there]


def _of_iptables(table: NftTable) -> bool:
    return all(chain.name.isupper() for chain in table.chains.values() if chain.hook)


def _once(found: list[IptablesRules]) -> list[IptablesRules]:
    """Without dumps that say the same as another one of the same variant or of a variant not told."""
    kept: list[IptablesRules] = []
    for rules in sorted(found, key=lambda one: one.source == "iptables"):
        twin = next((one for one in kept if one.family == rules.family and _alike(one, rules)), None)
        if twin is None:
            same = next((one for one in kept if (one.family, one.source) == (rules.family, rules.source)), None)
            if same is not None and not set(same.tables) & set(rules.tables):
                same.tables.update(rules.tables)  # iptables-save -t nat and -t filter in two files
                same.notes += rules.notes
                continue
            kept.append(rules)
    return kept


def _alike(one: IptablesRules, two: IptablesRules) -> bool:
    if "iptables" not in (one.source, two.source) and one.source != two.source:
        return False
    return bool(two.tables) and all(
        name in one.tables
        and {chain.name: len(chain.lines) for chain in table.chains.values()}
        == {chain.name: len(chain.lines) for chain in one.tables[name].chains.values()}
        for name, table in two.tables.items()
    )
