"""What becomes of one kind of packet in a filter chain, where the rules alone can tell; "unknown" everywhere else.

This is no walk (explain has that): it answers one question, whether a rule or a policy throws away what a cluster cannot do without, and
says so only when it is certain. A match that depends on anything that is not known about the packet makes the rest of the answer unknown,
unless both ways come to the same end.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from podwire.explain.tables import RuleRow, RuleTable

_DEPTH = 24
_MAX_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Probe:
    """A packet that begins a flow. '' and None mean "not known": a match on it is undecided."""

    src: str = ""
    dst: str = ""
    iif: str = ""
    oif: str = ""
    protocol: str = "tcp"
    dport: int | None = None
    mark: int = 0
    to_node: bool = False
    from_node: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """What became of it: accept, drop, reject, masquerade, return, or unknown; by which rule ('' for the policy)."""

    verdict: str
    chain: str
    position: int = 0
    text: str = ""


class _TooLong(Exception):
    pass


def judge(table: RuleTable, chain: str, probe: Probe) -> End:
    """The packet's end in a built-in chain of a table."""
    try:
        end = _through(table, chain, probe, _DEPTH, [0])
    except _TooLong:
        return End("unknown", chain)
    if end.verdict != "return":
        return end
    policy = table.chains[chain].policy if chain in table.chains else None
    return End({"ACCEPT": "accept", "DROP": "drop"}.get(policy or "", "unknown"), chain)


def _through(table: RuleTable, chain: str, probe: Probe, depth: int, seen: list[int]) -> End:
    found = table.chains.get(chain)
    if found is None or depth == 0:
        return End("unknown", chain)
    doubt: End | None = None
    for row in found.rows():
        seen[0] += 1
        if seen[0] > _MAX_ROWS:
            raise _TooLong
        holds = _holds(row, probe)
        if holds is False:
            continue
        end = _verdict(table, chain, row, probe, depth, seen)
        if end is None:
            continue
        if holds is None:
            # Both ways go on; they must come to the same verdict to be an answer.
            if end.verdict != "return":
                doubt = doubt or end
                if doubt.verdict != end.verdict:
                    return End("unknown", chain)
            elif doubt is None:
                doubt = End("unknown", chain)
            continue
        if doubt is not None and doubt.verdict != end.verdict:
            return End("unknown", chain)
        return end
    if doubt is not None:
        return End("unknown", chain)
    return End("return", chain)


def _verdict(table: RuleTable, chain: str, row: RuleRow, probe: Probe, depth: int, seen: list[int]) -> End | None:
    """What the rule does to a packet that matches: None when the packet goes on to the next rule."""
    verdict = row.verdict
    if isinstance(verdict, v.Jump):
        end = _through(table, verdict.chain, probe, depth - 1, seen)
        return None if end.verdict == "return" else end
    if isinstance(verdict, v.Goto):
        return _through(table, verdict.chain, probe, depth - 1, seen)
    names = {
        v.Accept: "accept",
        v.Drop: "drop",
        v.Return: "return",
        v.Reject: "reject",
        v.Masquerade: "masquerade",
        v.Snat: "snat",
    }
    for kind, name in names.items():
        if isinstance(verdict, kind):
            return End(name, chain, row.position, row.text)
    if verdict is None or (
        isinstance(verdict, v.OpaqueTarget) and verdict.text.split(" ")[0] in ("LOG", "NFLOG", "CONNMARK", "TRACE")
    ):
        return None
    if isinstance(verdict, v.SetMark):
        # A mark that a rule changes is not followed; rules that ask for it later are undecided only in nat, where nobody asks.
        return None
    return End("unknown", chain, row.position, row.text)


def _holds(row: RuleRow, probe: Probe) -> bool | None:
    answer: bool | None = True
    for match in row.matches:
        one = _match(match, probe)
        if one is False:
            return False
        if one is None:
            answer = None
    return answer


def _match(match: v.Match, probe: Probe) -> bool | None:
    if isinstance(match, (v.Comment, v.Accounting)):
        return True
    if isinstance(match, v.Source):
        return _address(match, probe.src)
    if isinstance(match, v.Destination):
        return _address(match, probe.dst)
    if isinstance(match, v.InInterface):
        return _interface(match, probe.iif, probe.from_node)
    if isinstance(match, v.OutInterface):
        return _interface(match, probe.oif, probe.to_node)
    if isinstance(match, v.Protocol):
        return _flip(match.value.lower() in (probe.protocol, "all"), match.inverted)
    if isinstance(match, v.Ports):
        return _ports(match, probe)
    if isinstance(match, v.Multiport):
        if match.side != "dports" or probe.dport is None:
            return None
        return _flip(any(first <= probe.dport <= last for first, last in match.ranges), match.inverted)
    if isinstance(match, v.Mark):
        return _flip(probe.mark & match.mask == match.value, match.inverted)
    if isinstance(match, v.ConnState):
        return _flip("NEW" in match.states, match.inverted)
    if isinstance(match, v.AddrType):
        return _address_type(match, probe)
    return None


def _flip(answer: bool, inverted: bool) -> bool:
    return answer is not inverted


def _address(match: v.Source | v.Destination, shown: str) -> bool | None:
    try:
        network = ip_network(match.value, strict=False)
        # Whatever the address is: what came in by a device has no loopback address (the kernel drops it before).
        if not shown:
            return _flip(False, match.inverted) if network.is_loopback else None
        address = ip_address(shown)
    except ValueError:
        return None
    return _flip(address.version == network.version and address in network, match.inverted)


def _interface(match: v.InInterface | v.OutInterface, name: str, none: bool) -> bool | None:
    if none:
        return _flip(False, match.inverted)
    pattern = match.value
    if not name:
        return _flip(False, match.inverted) if pattern == "lo" else None
    found = name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern
    return _flip(found, match.inverted)


def _ports(match: v.Ports, probe: Probe) -> bool | None:
    if match.protocol != probe.protocol:
        return False
    if match.flags is not None or match.source is not None:
        return None
    wanted = match.destination
    if wanted is None:
        return True
    if probe.dport is None:
        return None
    return _flip(wanted.first <= probe.dport <= wanted.last, wanted.inverted)


def _address_type(match: v.AddrType, probe: Probe) -> bool | None:
    if match.source or match.limit or match.destination not in (("LOCAL",), ("UNICAST",)):
        return None
    local = match.destination == ("LOCAL",)
    return _flip(local is probe.to_node, match.destination_inverted)
