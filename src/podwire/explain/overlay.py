"""Through a VXLAN device into the peer: the outer packet, the FDB entry, and the walk on the node that it comes to.

The next hop's MAC is in the neighbour table, the MAC's outer address in the device's FDB. Where the peer's snapshot is
there, the outer packet (UDP to the device's port) walks in to the peer's INPUT, and the inner one then comes out of its VXLAN device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from podwire.addresses import Ip
from podwire.explain.answer import outcomes_of
from podwire.explain.packet import Packet, Step
from podwire.explain.walk import Journey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.answer import Outcome
    from podwire.explain.picture import Picture
    from podwire.explain.snapshot import Link


def through_overlay(
    outcomes: list[Outcome], picture: Picture, peers: Sequence[Picture], warnings: list[str]
) -> list[Outcome]:
    """The outcomes, those that leave by a VXLAN device followed as far as the input goes."""
    found: list[Outcome] = []
    for outcome in outcomes:
        link = picture.facts.link(outcome.out_interface)
        if outcome.verdict not in ("dnat", "accept") or outcome.delivered or link is None or link.vxlan is None:
            found.append(outcome)
            continue
        outer = _outer(outcome, link, picture)
        outcome.overlay = outer
        outcome.path.append(Step("routing", "", "", link.name, 0, _text(outer), "encapsulates"))
        if not outer["peer"]:
            warnings.append(f"{link.name} has no FDB entry for {outer['next_hop']}: the packet is lost there")
        peer = _peer(outer["peer"], peers, picture)
        found += [outcome] if peer is None else _at_peer(outcome, outer, peer)
    return found


def _outer(outcome: Outcome, link: Link, picture: Picture) -> dict[str, Any]:
    snapshot = picture.snapshot
    assert link.vxlan is not None  # the caller looked
    next_hop = outcome.via or (str(outcome.packet.dst) if outcome.packet is not None else "")
    mac = next((one.mac for one in snapshot.neighbours or () if one.ip == next_hop and one.dev in (link.name, "")), "")
    entry = next(
        (
            one
            for one in snapshot.fdb or ()
            if mac and one.mac.lower() == mac.lower() and one.dev == link.name and one.dst
        ),
        None,
    )
    return {
        "device": link.name,
        "vni": link.vxlan.vni,
        "port": link.vxlan.port or 8472,
        "next_hop": next_hop,
        "mac": mac,
        "fdb": f"{entry.mac} dev {entry.dev} dst {entry.dst}" if entry is not None else "",
        "local": link.vxlan.local,
        "peer": entry.dst if entry is not None else "",
    }


def _text(outer: dict[str, Any]) -> str:
    peer = outer["peer"] or "no FDB entry"
    return (
        f"{outer['device']}: VNI {outer['vni']}, next hop {outer['next_hop']} is {outer['mac'] or 'not in the neighbour table'}, "
        f"outer {outer['local'] or '?'} to {peer} udp port {outer['port']}"
    )


def _peer(address: str, peers: Sequence[Picture], here: Picture) -> Picture | None:
    if not address:
        return None
    ip = Ip.parse(address)
    return next((one for one in peers if one is not here and one.facts.routing.owner(ip) is not None), None)


def _at_peer(outcome: Outcome, outer: dict[str, Any], peer: Picture) -> list[Outcome]:
    """What becomes of it on the peer: the outer packet first, then the inner one."""
    packet = outcome.packet
    device = next(
        (link for link in peer.snapshot.links or () if link.vxlan is not None and link.vxlan.vni == outer["vni"]), None
    )
    if packet is None or device is None or not outer["local"]:
        return [outcome]
    wrapped = Packet("udp", Ip.parse(outer["local"]), Ip.parse(outer["peer"]), None, int(outer["port"]))
    wrapped = wrapped._replace(iif=peer.facts.routing.lookup(wrapped.src, wrapped.dst).dev)
    arrived = Journey(peer.ruleset, peer.facts, wrapped.family).run(wrapped)
    lost = [end for end in arrived if end.verdict in ("drop", "reject")]
    made = [_after(outcome, one, peer) for one in outcomes_of(lost, peer.snapshot.title)]
    if len(lost) == len(arrived):
        for one in made:
            one.detail = one.detail or f"the outer packet does not get in at {peer.snapshot.title}"
        return made
    inner = Packet(
        packet.protocol,
        packet.src,
        packet.dst,
        packet.sport,
        packet.dport,
        iif=device.name,
        state="NEW",
        flags=packet.flags,
        icmp=packet.icmp,
    )
    inner = inner._replace(src_known=packet.src_known)
    ends = Journey(peer.ruleset, peer.facts, inner.family).run(inner)
    return made + [_after(outcome, one, peer) for one in outcomes_of(ends, peer.snapshot.title)]


def _after(outcome: Outcome, there: Outcome, peer: Picture) -> Outcome:
    """An outcome on the peer as one of the whole way."""
    verdict = "dnat" if outcome.verdict == "dnat" and there.verdict in ("accept", "local", "dnat") else there.verdict
    return replace(
        there,
        probability=outcome.probability * there.probability,
        verdict=verdict,
        masquerade=outcome.masquerade or there.masquerade,
        path=[
            *outcome.path,
            Step("routing", "", "", "", 0, f"arrives at {peer.snapshot.title}", "decapsulated"),
            *there.path,
        ],
        depends_on=[*outcome.depends_on, *[f"on {peer.snapshot.title}: {text}" for text in there.depends_on]],
        overlay=outcome.overlay,
        node=peer.snapshot.title,
    )
