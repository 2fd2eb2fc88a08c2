"""Frames that stay on one bridge: switched instead of routed, and sent back out of the port they came in by.

A pod's packet for another pod of the same bridge is switched. With br_netfilter (bridge-nf-call-iptables = 1) it meets the IP
hooks all the same; without it no rule sees it. A packet that DNAT sends back to where it came from must leave by
the port it came in by, which a bridge only does on a port in hairpin mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.explain.packet import UNKNOWN, Step, Unknown

if TYPE_CHECKING:
    from podwire.addresses import Ip
    from podwire.explain.facts import Facts
    from podwire.explain.packet import Packet, Way

_NAMES = ("cni", "cbr", "docker", "br-", "virbr", "podman", "kube-bridge")


def is_bridge(name: str | None, facts: Facts) -> bool:
    """Whether a device is a bridge, by kind, or by name where the kind is not known."""
    link = facts.link(name)
    if link is not None and link.kind:
        return link.kind == "bridge"
    return bool(name) and str(name).startswith(_NAMES)


def switched(ways: list[Way], facts: Facts) -> tuple[list[tuple[Way, bool]], list[Way]]:
    """The ways of frames between ports of one bridge, with whether they meet the hooks; and the others."""
    frames: list[tuple[Way, bool]] = []
    others: list[Way] = []
    for way in ways:
        packet = way.packet
        bridge = packet.iif
        if not is_bridge(bridge, facts) or facts.address_type(packet.dst) != "UNICAST":
            others.append(_with_port(way, facts))
            continue
        found = facts.routing.lookup(packet.dst, packet.src, bridge, packet.mark)
        if found.dev != bridge or found.via:
            others.append(_with_port(way, facts))
            continue
        filtered = facts.bridge_netfilter(packet.family)
        answer = (
            filtered
            if filtered is not None
            else Unknown("br_netfilter", "br_netfilter is on (bridge-nf-call-iptables = 1)")
        )
        yes, no = way.split(answer)
        step = Step("bridge", "", "", bridge or "", 0, f"{packet.dst} is on the same bridge {bridge}", "switched")
        if yes is not None:
            frames.append((_with_port(yes, facts).met(step), True))
        if no is not None:
            frames.append((no.met(step._replace(effect="switched; no rule sees it")), False))
    return frames, others


def port_name(ip: Ip, packet: Packet, facts: Facts) -> str:
    """The bridge port towards an address; UNKNOWN where that cannot be told."""
    port = facts.port_of(ip, packet.iif or "")
    return port.name if port is not None else UNKNOWN


def _with_port(way: Way, facts: Facts) -> Way:
    packet = way.packet
    if packet.physin or not is_bridge(packet.iif, facts) or facts.bridge_netfilter(packet.family) is False:
        return way
    return way.with_packet(packet._replace(physin=port_name(packet.src, packet, facts)))


def hairpin_off(packet: Packet, facts: Facts) -> str:
    """Why a bridge drops a packet that goes back to where it came from; '' when it does not, or when that is not known."""
    if packet.iif != packet.oif or packet.dst != packet.src or not is_bridge(packet.oif, facts):
        return ""
    port = facts.port_of(packet.dst, packet.oif or "")
    bridge = facts.link(packet.oif)
    if facts.hairpin(packet.dst, packet.oif or "") is not False or facts.bridge_netfilter(packet.family) is False:
        return ""
    if bridge is not None and "PROMISC" in bridge.flags:
        return ""
    filtered = (
        ""
        if facts.bridge_netfilter(packet.family)
        else " (as long as br_netfilter is on, which this input does not tell)"
    )
    name = f", {port.name}" if port is not None else ""
    return f"the packet goes back to the port it came from{name}, whose hairpin mode is off: the bridge {packet.oif} drops it{filtered}"
