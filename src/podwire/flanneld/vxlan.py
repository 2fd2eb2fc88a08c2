"""The vxlan backend: every node a VTEP, every frame in a UDP packet to the node that owns the destination's prefix.

For a peer that owns 10.244.1.0/24 and published VTEP MAC d6:c4:31:12:7e:e9 and public IP 192.168.50.12:

    route 10.244.1.0/24 via 10.244.1.0 dev flannel.1 onlink         the peer's base address stands for the peer
    neigh 10.244.1.0 lladdr d6:c4:31:12:7e:e9 dev flannel.1         so nobody has to ask for it by ARP
    fdb   d6:c4:31:12:7e:e9 dev flannel.1 dst 192.168.50.12         and that MAC lives on that host

Three permanent entries for a peer, no learning, no multicast, nothing to ask a daemon for: traffic goes on while flanneld
is down. The device has its prefix's base address as /32 (/128), so that no broadcast route comes with it; it is the
source of what the node itself sends to pods elsewhere. The order of making is neighbour, FDB, route: a route first would
let the kernel start resolving the gateway by itself.

With DirectRouting a peer on the same link needs no tunnel: a plain route via its public IP, and neither entry.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from podwire.flanneld.plan import Address, Fdb, Neighbour, Plan, Route, Underlay, Vxlan, direct_route

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from podwire.flanneld.lease import IPAddress, Lease
    from podwire.flanneld.netconf import VxlanOptions

# Outer Ethernet 14 + IP 20 (40) + UDP 8 + VXLAN 8 + inner Ethernet: RFC 7348, linux/vxlan.h VXLAN_HEADROOM (VXLAN6_HEADROOM).
OVERHEAD = {4: 50, 6: 70}


def device_name(vni: int, version: int) -> str:
    """flannel.VNI, for IPv6 flannel-v6.VNI."""
    return f"flannel.{vni}" if version == 4 else f"flannel-v6.{vni}"


def device(options: VxlanOptions, underlay: Underlay, own: Lease) -> Vxlan:
    """The device of one family.

    flannel asks for 50 bytes less than the underlay in both families and leaves it to the kernel to cut the IPv6 device
    to what fits; here the result is computed, or a repair would fight with the kernel.
    """
    wanted = (options.mtu or underlay.mtu) - OVERHEAD[4]
    return Vxlan(
        name=device_name(options.vni, own.version),
        vni=options.vni,
        local=underlay.local_address(own.version),
        device=underlay.device,
        port=options.port,
        mtu=min(wanted, underlay.mtu - OVERHEAD[own.version]),
        mac=own.mac,
        learning=options.learning,
        gbp=options.gbp,
    )


def plan(
    options: VxlanOptions, underlay: Underlay, own: Lease, peers: Iterable[Lease], on_link: Collection[IPAddress] = ()
) -> Plan:
    """The plan for one family. `on_link`: the public IPs that the kernel reaches without a gateway (for DirectRouting)."""
    link = device(options, underlay, own)
    neighbours, fdb, routes = [], [], []
    for peer in peers:
        if options.direct_routing and peer.public_ip in on_link:
            routes.append(direct_route(peer, underlay))
            continue
        base = peer.subnet.network_address
        neighbours.append(Neighbour(link.name, base, peer.mac))
        fdb.append(Fdb(link.name, peer.mac, peer.public_ip))
        routes.append(Route(peer.subnet, base, link.name, onlink=True))
    base = own.subnet.network_address
    return Plan(
        devices=(link,),
        addresses=(Address(link.name, ipaddress.ip_interface((base, base.max_prefixlen))),),
        neighbours=tuple(neighbours),
        fdb=tuple(fdb),
        routes=tuple(routes),
        mtu=(options.mtu or underlay.mtu) - OVERHEAD[4],
    )
