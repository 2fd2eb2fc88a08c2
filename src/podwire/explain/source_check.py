"""Why routing refuses an address: martians, the reverse path filter and 127.0.0.0/8 outside of lo.

fib_frontend.c (fib_validate_source) and route.c (ip_route_input_slow, __mkroute_output). An answer is a sentence (refused), None
(let through), or Unknown (the settings are not in the input; the sentence says when it is refused).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.explain.packet import UNKNOWN, Unknown

if TYPE_CHECKING:
    from podwire.addresses import Ip
    from podwire.explain.facts import Facts
    from podwire.explain.packet import Packet

Refusal = str | Unknown | None


def _loopback(ip: Ip) -> bool:
    return ip.bits == 32 and ip.value >> 24 == 127


def refused_input(packet: Packet, kind: str, facts: Facts) -> Refusal:
    """For a packet that came in, after PREROUTING: `packet.dst` is the translated destination."""
    if packet.family != 4 or packet.iif in (None, "lo"):
        return None
    if packet.src.value >> 28 == 0xE or packet.src.value in (0, 0xFFFFFFFF):
        return f"martian source {packet.src}"
    for ip in (packet.dst, packet.src):
        if _loopback(ip):
            return _localnet(ip, packet.iif or UNKNOWN, facts, "comes in")
    owner = facts.routing.owner(packet.src)
    if owner is not None and packet.src_known and facts.largest("accept_local", packet.iif) != 1:
        return f"martian: the source {packet.src} is an address of this node ({owner or 'its own'}), but the packet came in by {packet.iif}"
    return _reverse_path(packet, facts) if kind != "MULTICAST" else None


def refused_output(packet: Packet, dev: str, facts: Facts) -> Refusal:
    """For a packet of the node's own that is to leave by `dev`."""
    if packet.family == 4 and dev != "lo" and _loopback(packet.src) and packet.src_known:
        return _localnet(packet.src, dev, facts, "leaves")
    return None


def _localnet(ip: Ip, dev: str, facts: Facts, moves: str) -> Refusal:
    values = [facts.setting(f"net/ipv4/conf/{where}/route_localnet") for where in ("all", dev)]
    if any(value not in (None, "0") for value in values):
        return None
    name = "the output device" if dev == UNKNOWN else dev
    text = f"route_localnet is 0 on {name}: the kernel refuses a packet with {ip} that {moves} by it"
    if values[0] is None:
        return Unknown(f"route_localnet {dev}", text)
    return (
        text
        if values[1] is not None
        else f"{text} (only conf.all is in this input; {name} has none of its own, it is taken)"
    )


def _reverse_path(packet: Packet, facts: Facts) -> Refusal:
    """Strict (effective value 1): the route back to the source must leave by the device it came in by."""
    dev = packet.iif or UNKNOWN
    value = facts.largest("rp_filter", dev)
    if value in (None, 0) or dev == UNKNOWN or not facts.routing.known or not packet.src_known:
        return None
    mark = packet.mark if facts.largest("src_valid_mark", dev) else 0
    back = facts.routing.lookup(packet.src, packet.dst, None, mark)
    if back.kind == "unknown" and value == 1:
        text = f"rp_filter on {dev} is strict and the route back to {packet.src} leaves by another device ({back.text})"
        return Unknown(f"rp_filter {dev} {packet.src}", text)
    if back.kind == "unknown" or back.dev == UNKNOWN:
        return None
    if back.kind != "unicast":
        return f"rp_filter on {dev} is {value} and there is no route back to {packet.src}: dropped after PREROUTING"
    if value == 1 and back.dev != dev:
        return (
            f"rp_filter on {dev} is strict and the route to {packet.src} leaves by {back.dev}: "
            "the kernel drops the packet after PREROUTING"
        )
    return None
