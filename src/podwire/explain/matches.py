"""Does a match hold for a packet? Yes, no, with a probability, or it cannot be told: a function for each kind of match.

`test_of(match, place)` builds the function once a rule; `place` names the rule, for matches whose answer is that rule's own
(a limit). Meanings are those of the kernel's xt_*.c; where that says something one would not expect it is quoted. A match that
is not in the table, or has a value that cannot be read, is Unknown, never "no".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.addresses import Ip, Prefix
from podwire.explain.options import test_of_options
from podwire.explain.packet import UNKNOWN, Answer, Packet, Unknown
from podwire.rules import vocabulary as v
from podwire.rules.iptables.spell import spell_match

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from podwire.explain.facts import Facts

    Test = Callable[[Packet, Facts], Answer]

_PROTOCOL_NAMES = {
    "1": "icmp", "6": "tcp", "17": "udp", "132": "sctp", "58": "ipv6-icmp", "icmpv6": "ipv6-icmp", "33": "dccp",
    "136": "udplite", "2": "igmp", "50": "esp", "51": "ah", "47": "gre", "4": "ipencap", "ipip": "ipencap", "0": "all",
}  # fmt: skip
FLAG_BITS = ("FIN", "SYN", "RST", "PSH", "ACK", "URG")


def protocol_name(text: str) -> str:
    """One name for a protocol that may be a name or a number."""
    text = text.lower()
    return _PROTOCOL_NAMES.get(text, text)


def _invert(answer: Answer, inverted: bool) -> Answer:
    if not inverted:
        return answer
    if isinstance(answer, Unknown):
        return answer._replace(inverted=not answer.inverted)
    return not answer if isinstance(answer, bool) else 1.0 - answer


def _mask_of(text: str) -> tuple[int, int, int]:
    """Value, mask and width of `10.0.0.0/8` or `10.0.0.0/255.0.255.0`. Raises ValueError."""
    address, _, mask = text.partition("/")
    ip = Ip.parse(address)
    if "." in mask or ":" in mask:
        bits = Ip.parse(mask)
        if bits.bits != ip.bits:
            raise ValueError(text)
        return ip.value & bits.value, bits.value, ip.bits
    prefix = Prefix.parse(text if mask else f"{text}/{ip.bits}")
    full = (1 << ip.bits) - 1
    return prefix.network.value, full & ~prefix.host_mask, ip.bits


def _address(match: Any, *, source: bool) -> Test:
    try:
        value, mask, bits = _mask_of(match.value)
    except ValueError:
        return _unknown(match)
    inverted = match.inverted

    def test(packet: Packet, _: Facts) -> Answer:
        ip = packet.src if source else packet.dst
        if not (packet.src_known if source else packet.dst_known) and mask:
            return Unknown(
                f"{'source' if source else 'destination'} in {match.value}",
                f"the rewritten address is in {match.value}",
            )
        if ip.bits != bits:
            return False
        return ((ip.value & mask) == value) is not inverted

    return test


def name_fits(pattern: str, name: str) -> bool:
    """Whether an interface's name is what `-i PATTERN` asks for."""
    return name.startswith(pattern[:-1]) if pattern.endswith("+") else name == pattern


def _interface(match: Any, *, incoming: bool) -> Test:
    pattern, inverted = match.value, match.inverted

    def test(packet: Packet, _: Facts) -> Answer:
        name = packet.iif if incoming else packet.oif
        if name == UNKNOWN:
            if pattern == "+":
                return not inverted
            way = "comes in" if incoming else "leaves"
            return _invert(
                Unknown(f"{'iif' if incoming else 'oif'} {pattern}", f"the packet {way} by {pattern}"), inverted
            )
        return name_fits(pattern, name or "") is not inverted

    return test


def _protocol(match: v.Protocol) -> Test:
    name = protocol_name(match.value)
    if name == "all":
        return lambda _p, _f: not match.inverted
    return lambda packet, _: (packet.protocol == name) is not match.inverted


def _port(value: int | None, ranges: v.PortRange | None, side: str) -> Answer:
    if ranges is None or (ranges.first == 0 and ranges.last >= 65535 and not ranges.inverted):
        return True
    if value is None:
        text = str(ranges.first) if ranges.first == ranges.last else f"{ranges.first}-{ranges.last}"
        return _invert(Unknown(f"{side} {text}", f"the {side} port is {text}"), ranges.inverted)
    return (ranges.first <= value <= ranges.last) is not ranges.inverted


def _flags(packet: Packet, flags: v.TcpFlags) -> bool:
    def names(text: str) -> frozenset[str]:
        return frozenset() if text == "NONE" else frozenset(FLAG_BITS if text == "ALL" else text.split(","))

    return (packet.flags & names(flags.mask) == names(flags.comp)) is not flags.inverted


def _both(*answers: Answer) -> Answer:
    """All of them: no beats cannot tell."""
    if any(answer is False for answer in answers):
        return False
    unknown = [answer for answer in answers if isinstance(answer, Unknown)]
    if len(unknown) == 1:
        return unknown[0]
    if unknown:
        return Unknown(" and ".join([one.key for one in unknown]), " and ".join([one.text for one in unknown]))
    return True


def _ports(match: v.Ports) -> Test:
    def test(packet: Packet, _: Facts) -> Answer:
        if packet.protocol != match.protocol:
            return False
        if match.flags is not None and not _flags(packet, match.flags):
            return False
        return _both(_port(packet.sport, match.source, "source"), _port(packet.dport, match.destination, "destination"))

    return test


def _multiport(match: v.Multiport) -> Test:
    def test(packet: Packet, _: Facts) -> Answer:
        if packet.protocol not in ("tcp", "udp", "sctp", "dccp", "udplite"):
            return False
        values = {"sports": (packet.sport,), "dports": (packet.dport,)}.get(match.side, (packet.sport, packet.dport))
        if any(value is not None and low <= value <= high for value in values for low, high in match.ranges):
            return not match.inverted
        if None in values:
            text = ",".join([f"{low}-{high}" if low != high else str(low) for low, high in match.ranges])
            return _invert(Unknown(f"{match.side} {text}", f"a port ({match.side}) is in {text}"), match.inverted)
        return match.inverted

    return test


def _addrtype(match: v.AddrType) -> Test:
    def kind(packet: Packet, facts: Facts, source: bool, dev: str | None) -> str | None:
        if not (packet.src_known if source else packet.dst_known):
            return None
        return facts.address_type(packet.src if source else packet.dst, dev)

    def one(found: str | None, ip: Ip, wanted: tuple[str, ...], inverted: bool) -> Answer:
        if found is None:
            answer: Answer = Unknown(
                f"type of {ip} {','.join(wanted)}", f"{ip} is an address of type {','.join(wanted)} here"
            )
            if wanted == ("LOCAL",):
                answer = Unknown(f"local {ip}", f"{ip} is an address of this node")
            return _invert(answer, inverted)
        return (found in wanted) is not inverted

    def test(packet: Packet, facts: Facts) -> Answer:
        dev = {"in": packet.iif, "out": packet.oif}.get(match.limit)
        if dev == UNKNOWN:
            return Unknown(spell_match(match), f"{spell_match(match)} (the interface is not known)")
        answers: list[Answer] = []
        if match.source:
            answers.append(one(kind(packet, facts, True, dev), packet.src, match.source, match.source_inverted))
        if match.destination:
            answers.append(
                one(kind(packet, facts, False, dev), packet.dst, match.destination, match.destination_inverted)
            )
        return _both(*answers)

    return test


def _connstate(match: v.ConnState) -> Test:
    states = frozenset([state.upper() for state in match.states])

    def test(packet: Packet, _: Facts) -> Answer:
        held = packet.state in states or (packet.dnat and "DNAT" in states) or (packet.snat and "SNAT" in states)
        return held is not match.inverted

    return test


def _recent(match: v.Recent) -> Test:
    """xt_recent: `--set` holds always; the others where the list has the address, with its times."""

    def test(packet: Packet, facts: Facts) -> Answer:
        ip = packet.src if match.side == "rsource" else packet.dst
        if match.action == "set":
            return not match.inverted
        found: bool | None = True if (f"recent {match.name}", str(ip)) in packet.added else None
        if found is None or match.hitcount > 1:
            found = facts.recently(match.name, ip, match.seconds, match.hitcount)
        if found is None:
            within = f" (seen in the last {match.seconds} s)" if match.seconds else ""
            key = f"recent {match.name} {match.seconds} {match.hitcount} {ip}"
            return _invert(Unknown(key, f"{ip} is in the list {match.name}{within}"), match.inverted)
        return found is not match.inverted

    return test


def _set(match: v.SetMatch) -> Test:
    def test(packet: Packet, facts: Facts) -> Answer:
        found = facts.in_ipset(match.name, match.sides, packet)
        if found is None:
            key = f"ipset {match.name} {','.join(match.sides)} {packet.src} {packet.dst} {packet.sport} {packet.dport}"
            return _invert(
                Unknown(key, f"the packet's {','.join(match.sides)} is in the ipset {match.name}"), match.inverted
            )
        return found is not match.inverted

    return test


def _masked(match: Any, field: str) -> Test:
    def test(packet: Packet, _: Facts) -> Answer:
        mark = packet.mark if field == "mark" else packet.connmark
        return ((mark & match.mask) == match.value) is not match.inverted

    return test


def _chance(match: v.Random) -> Test:
    """xt_statistic: (get_random_u32() & 0x7FFFFFFF) < probability."""
    answer: Answer = (
        True if match.chance >= v.CHANCE_UNIT else False if match.chance <= 0 else match.chance / v.CHANCE_UNIT
    )
    answer = _invert(answer, match.inverted)
    return lambda _p, _f: answer


def _nth(match: v.Nth) -> Test:
    answer: Answer = True if match.every <= 1 else 1.0 / match.every
    answer = _invert(answer, match.inverted)
    return lambda _p, _f: answer


def _unknown(match: v.Match, place: str = "") -> Test:
    text = spell_match(match)
    return lambda _p, _f: Unknown(place + text, text)


def test_of(match: v.Match, place: str) -> Test:
    """The function for a match of the rule at `place`."""
    if isinstance(match, v.Opaque):
        return test_of_options(match.text, place) or _unknown(match, place + " ")
    build = _BUILDERS.get(type(match))
    return _unknown(match, place + " ") if build is None else build(match)


_BUILDERS: dict[type[v.Match], Callable[[Any], Test]] = {
    v.Source: lambda match: _address(match, source=True),
    v.Destination: lambda match: _address(match, source=False),
    v.InInterface: lambda match: _interface(match, incoming=True),
    v.OutInterface: lambda match: _interface(match, incoming=False),
    v.Protocol: _protocol,
    v.Ports: _ports,
    v.Multiport: _multiport,
    v.Mark: lambda match: _masked(match, "mark"),
    v.ConnMark: lambda match: _masked(match, "connmark"),
    v.AddrType: _addrtype,
    v.ConnState: _connstate,
    v.Random: _chance,
    v.Nth: _nth,
    v.Recent: _recent,
    v.SetMatch: _set,
    v.Comment: lambda _: lambda _p, _f: True,
    v.Accounting: lambda _: lambda _p, _f: True,
}
