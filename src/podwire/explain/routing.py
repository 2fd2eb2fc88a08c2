"""Which way the kernel routes a packet: `ip rule`, the tables, and the checks of a source address, as fib_rules and fib_frontend do.

Rules are walked in order of priority, each with the packet's source, mark and interface; a table that has no route for the
destination sends the search on to the next rule. A table is searched for the longest prefix, then the smallest metric.
What the input does not hold is not invented: `Found.kind` is "unknown" when routes were not read and no address tells more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from podwire.addresses import Ip, Prefix
from podwire.explain.packet import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from podwire.explain.snapshot import Address, PolicyRule, Route


class Found(NamedTuple):
    """The route a packet takes. `kind`: local, unicast, broadcast, multicast, blackhole, unreachable, prohibit, none, unknown."""

    kind: str
    dev: str = UNKNOWN
    via: str = ""
    src: str = ""
    table: str = ""
    text: str = ""
    spread: int = 1  # next hops the kernel spreads flows over


class _Entry(NamedTuple):
    prefix: Prefix
    route: Route


_REFUSALS = {"unreachable": "unreachable", "blackhole": "blackhole", "prohibit": "prohibit"}


class Routing:
    """The routing tables of a node."""

    def __init__(
        self, addresses: Sequence[Address] | None, routes: Sequence[Route] | None, rules: Sequence[PolicyRule] | None
    ) -> None:
        self.known = routes is not None
        self.addresses_known = bool(addresses)
        self._tables: dict[str, dict[int, dict[int, list[Route]]]] = {}
        self._own: dict[Ip, str] = {}
        self.subnets: list[tuple[Prefix, str]] = []
        for route in routes or ():
            self._add(route)
        for address in addresses or ():
            self._own_address(address)
        rules = list(rules or ())
        self._custom = any(rule.priority not in (0, 32766, 32767) for rule in rules)
        self._rules = {
            family: sorted((rule for rule in rules if rule.family == family), key=lambda rule: rule.priority)
            for family in (4, 6)
        }

    def _add(self, route: Route) -> None:
        try:
            prefix = Prefix.parse(route.dst)
        except ValueError:
            return
        table = self._tables.setdefault(f"{route.table or 'main'} {prefix.ip.bits}", {})
        table.setdefault(prefix.length, {}).setdefault(prefix.network.value, []).append(route)
        if route.kind == "local" and prefix.length == prefix.ip.bits:
            self._own.setdefault(prefix.ip, route.dev)

    def _own_address(self, address: Address) -> None:
        try:
            prefix = Prefix.parse(f"{address.ip}/{address.length}")
        except ValueError:
            return
        self._own.setdefault(prefix.ip, address.dev)
        self.subnets.append((prefix, address.dev))

    # -- questions ---------------------------------------------------------------------------------------------------

    def owner(self, ip: Ip) -> str | None:
        """The device that has this address; None where it is not the node's own, or not known to be."""
        return self._own.get(ip)

    def address_type(self, ip: Ip, dev: str | None = None) -> str | None:
        """LOCAL, BROADCAST, MULTICAST or UNICAST (inet_dev_addr_type); None when the node's addresses are not known."""
        if ip.bits == 32 and (ip.value >> 24 == 0 or ip.value == 0xFFFFFFFF):
            return "BROADCAST"
        if (ip.bits == 32 and ip.value >> 28 == 0xE) or (ip.bits == 128 and ip.value >> 120 == 0xFF):
            return "MULTICAST"
        loopback = ip.value >> 24 == 127 if ip.bits == 32 else ip.value == 1
        owner = self._own.get(ip) or ("lo" if loopback else None)
        if owner is not None:
            return "LOCAL" if dev in (None, owner) or (dev == "" and not owner) else "UNICAST"
        found = self._longest("local", ip)
        if found is not None:
            return found.kind.upper() if dev in (None, found.dev) else "UNICAST"
        if self._tables.get(f"local {ip.bits}") or (self.addresses_known and self.known):
            return "BROADCAST" if self._broadcast(ip) else "UNICAST"
        if not self.addresses_known:
            return None
        return "BROADCAST" if self._broadcast(ip) else "UNICAST"

    def _broadcast(self, ip: Ip) -> bool:
        return any(
            prefix.broadcast and ip == prefix.last for prefix, _ in self.subnets if prefix.ip.bits == ip.bits == 32
        )

    def lookup(self, dst: Ip, src: Ip | None = None, iif: str | None = None, mark: int = 0, oif: str = "") -> Found:
        """The route for a packet. `iif` None is the node's own packet (the kernel then looks with lo)."""
        kind = self.address_type(dst)
        if not self._custom or kind == "LOCAL":  # without rules of its own a node looks at its local table first
            found = self._first(dst, kind, oif)
            if found is not None:
                return found
        if not self.known:
            return self._by_subnet(dst, kind)
        for name, action, unknown in self._tables_for(dst, src, iif, mark, oif):
            if unknown:
                return Found("unknown", table=name)
            if action in _REFUSALS:
                return Found(_REFUSALS[action], dev="", text=f"ip rule: {action}")
            if name not in ("local", "main", "default") and f"{name} {dst.bits}" not in self._tables:
                return Found("unknown", table=name, text=f"table {name} is not in this input")
            route = self._longest(name, dst, oif)
            if route is not None and route.kind != "throw":
                return self._found(route)
        return Found("none", dev="")

    def _first(self, dst: Ip, kind: str | None, oif: str) -> Found | None:
        """What the local table says, as far as addresses tell it."""
        if kind == "LOCAL":
            return Found("local", dev=self._own.get(dst, "lo"), src=str(dst), table="local", text=f"local {dst}")
        if kind == "BROADCAST" and dst.value != 0xFFFFFFFF and not oif:
            return Found("broadcast", dev=UNKNOWN, table="local", text=f"broadcast {dst}")
        if kind == "MULTICAST":
            return Found("multicast")
        return None

    def _by_subnet(self, dst: Ip, kind: str | None) -> Found:
        """Without routes: a network that one of the node's addresses is in."""
        within = [
            (prefix.length, dev)
            for prefix, dev in self.subnets
            if prefix.length < prefix.ip.bits and prefix.contains(dst)
        ]
        if within:
            _, dev = max(within)
            return Found("unicast", dev=dev, text=f"{dst} is in the network of {dev}")
        return Found("unknown" if kind is None else "unicast")

    def _found(self, route: Route) -> Found:
        spread = max(1, len(route.hops))
        dev = route.dev or UNKNOWN
        if spread > 1 and len({hop[1] for hop in route.hops}) > 1:
            dev = UNKNOWN
        kind = route.kind if route.kind != "anycast" else "local"
        return Found(kind, dev, "" if spread > 1 else route.via, route.src, route.table, route.text, spread)

    def _tables_for(
        self, dst: Ip, src: Ip | None, iif: str | None, mark: int, oif: str
    ) -> Iterable[tuple[str, str, bool]]:
        rules = self._rules[4 if dst.bits == 32 else 6]
        if not rules:
            yield from (("local", "", False), ("main", "", False), ("default", "", False))
            return
        for rule in rules:
            fits = _fits(rule, dst, src, iif, mark, oif)
            if fits is None:
                yield rule.table, rule.action, True
            elif fits and rule.action != "nop":
                yield rule.table, rule.action, rule.action == "goto"

    def _longest(self, table: str, dst: Ip, oif: str = "") -> Route | None:
        lengths = self._tables.get(f"{table} {dst.bits}")
        if not lengths:
            return None
        for length in sorted(lengths, reverse=True):
            network = dst.value >> (dst.bits - length) << (dst.bits - length)
            routes = lengths[length].get(network)
            if routes and oif:
                routes = [route for route in routes if not route.dev or route.dev == oif]
            if routes:
                return min(routes, key=lambda route: route.metric)
        return None


def _fits(rule: PolicyRule, dst: Ip, src: Ip | None, iif: str | None, mark: int, oif: str) -> bool | None:
    """Whether a line of `ip rule` is for this packet; None when that cannot be told."""
    if rule.rest:
        return None
    answers = [_in(rule.src, src), _in(rule.dst, dst)]
    if rule.iif:
        answers.append(None if iif == UNKNOWN else (iif or "lo") == rule.iif)
    if rule.oif:
        answers.append(oif == rule.oif)
    if rule.mark is not None:
        answers.append(mark & rule.mask == rule.mark)
    if False in answers:
        return rule.inverted
    return None if None in answers else not rule.inverted


def _in(prefix: str, ip: Ip | None) -> bool | None:
    if not prefix or prefix in ("all", "default"):
        return True
    if ip is None:  # an address that is not chosen yet is 0.0.0.0
        return False
    try:
        network = Prefix.parse(prefix if "/" in prefix else f"{prefix}/{ip.bits}")
    except ValueError:
        return None
    return network.contains(ip)
