"""What DNAT, SNAT, REDIRECT and MASQUERADE make of a packet (nf_nat_core.c): the first mapping of a flow is its last.

A target that names several addresses splits the way, each with an equal part (the kernel chooses by a hash of the source, so one
client keeps its address); a port range leaves the port open. A target that cannot be read makes the address unknown,
never a guess.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.addresses import Ip

if TYPE_CHECKING:
    from podwire.explain.facts import Facts
    from podwire.explain.packet import Packet, Way

_TARGET = re.compile(r"^(?:\[([^\]]+)\]|([^:\[\]]*(?:\.[^:\[\]]*)*|[0-9a-fA-F:]*))?(?::(\d+)(?:-(\d+))?(?:/\d+)?)?$")
_MOST_ADDRESSES = 256


class Target:
    """`addresses` may be empty (only the port changes); `port` None with `ports` "" keeps the port."""

    __slots__ = ("addresses", "port", "ports")

    def __init__(self, addresses: tuple[Ip, ...], port: int | None, ports: str) -> None:
        self.addresses = addresses
        self.port = port
        self.ports = ports


def parse_target(text: str) -> Target | None:
    """`10.0.0.1`, `10.0.0.1:80`, `:80-90`, `10.0.0.1-10.0.0.4`, `[fd00::1]:80`; None when it is none of these."""
    found = _TARGET.match(text)
    if found is None:
        return None
    addresses = found[1] or found[2] or ""
    first, dash, last = addresses.partition("-")
    try:
        low = Ip.parse(first) if first else None
        high = Ip.parse(last) if dash else low
    except ValueError:
        return None
    if (
        low is not None
        and high is not None
        and (low.bits != high.bits or not 0 <= high.value - low.value < _MOST_ADDRESSES)
    ):
        return None
    several = () if low is None or high is None else tuple([low + at for at in range(high.value - low.value + 1)])
    port = int(found[3]) if found[3] else None
    ports = f"{found[3]}-{found[4]}" if found[4] and found[4] != found[3] else ""
    if port is not None and port > 65535:
        return None
    return Target(several, port, ports)


def _remembered(packet: Packet) -> Packet:
    if packet.first_dst is not None:
        return packet
    return packet._replace(
        first_src=packet.src, first_dst=packet.dst, first_sport=packet.sport, first_dport=packet.dport
    )


def _port(port: int | None, target: Target) -> int | None:
    if target.ports:
        low, high = target.ports.split("-")
        return port if port is not None and int(low) <= port <= int(high) else None
    return target.port if target.port is not None else port


def dnat(way: Way, target: Target) -> list[Way]:
    """The ways with the new destination."""
    packet = _remembered(way.packet)
    addresses = target.addresses or (packet.dst,)
    made = []
    for address in addresses:
        port = _port(packet.dport, target)
        changed = (address, port) != (packet.dst, packet.dport)
        new = packet._replace(
            dst=address,
            dport=port,
            dnat=packet.dnat or changed,
            dst_settled=True,
            dst_known=packet.dst_known or bool(target.addresses),
        )
        part = way.with_packet(new).times(1 / len(addresses))
        if part is not None:
            made.append(part)
    return made


def snat(way: Way, target: Target) -> list[Way]:
    """The ways with the new source."""
    packet = _remembered(way.packet)
    addresses = target.addresses or (packet.src,)
    made = []
    for address in addresses:
        new = packet._replace(
            src=address, sport=_port(packet.sport, target), snat=True, src_settled=True, src_known=True
        )
        part = way.with_packet(new).times(1 / len(addresses))
        if part is not None:
            made.append(part)
    return made


def unreadable(way: Way, *, source: bool) -> Way:
    """The mapping is made, to an address the input does not tell."""
    packet = _remembered(way.packet)
    if source:
        return way.with_packet(packet._replace(snat=True, src_settled=True, src_known=False))
    return way.with_packet(packet._replace(dnat=True, dst_settled=True, dst_known=False))


def masquerade(way: Way, facts: Facts, next_hop: str, target: Target | None) -> list[Way]:
    """The source becomes the outgoing device's address; None known: `src_known` is False. An empty list: the kernel drops."""
    packet = way.packet
    towards = packet.dst
    if next_hop:
        try:
            towards = Ip.parse(next_hop)
        except ValueError:
            towards = packet.dst
    address = facts.first_address(packet.oif, packet.family, towards)
    if address is None:
        return [unreadable(way, source=True)]
    return snat(
        way, Target((address,), None if target is None else target.port, "" if target is None else target.ports)
    )


def redirect(way: Way, facts: Facts, target: Target) -> list[Way]:
    """The destination becomes this node: 127.0.0.1 for its own packets, else the incoming device's first address."""
    packet = way.packet
    if packet.own:
        address: Ip | None = Ip.parse("127.0.0.1" if packet.family == 4 else "::1")
    else:
        address = facts.first_address(packet.iif, packet.family) or facts.only_address(packet.family)
    if address is None:
        made = dnat(way, Target((), target.port, target.ports))
        return [one.with_packet(one.packet._replace(dnat=True, dst_known=False, to_self=True)) for one in made]
    return dnat(way, Target((address,), target.port, target.ports))
