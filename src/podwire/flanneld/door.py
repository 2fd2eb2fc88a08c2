"""The kernel door of flanneld: reads a State out of rtnetlink, and performs one Step.

Names become indices here, at the moment they are needed: a device that was deleted and made again in between has another
index. What the kernel itself puts on a device is left out of the State: link-local addresses, its own routes, neighbours and
forwarding entries that it learned.
"""

from __future__ import annotations

import contextlib
import ipaddress
from _socket import AF_INET, AF_INET6
from typing import TYPE_CHECKING

from podwire.errors import NotFound
from podwire.flanneld.plan import Address, Fdb, Neighbour, Route, Vxlan
from podwire.flanneld.reconcile import Device, FoundRoute, Scope, State, Step, Verb
from podwire.kernel import neighbours, owner, routes, sysctl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.flanneld.lease import IPAddress
    from podwire.kernel.links import Link
    from podwire.kernel.rtnl import Rtnl

ALIAS = owner.alias("flanneld")

# linux/rtnetlink.h: ICMP redirects, the kernel's own, router advertisements. Everything else is written by somebody.
_KERNEL_PROTOCOLS = frozenset({1, routes.RTPROT_KERNEL, 9})


class KernelDoor:
    """Works in the network namespace of `rtnl`, which must be that of the calling thread (for the one sysctl)."""

    def __init__(self, rtnl: Rtnl) -> None:
        self._rtnl = rtnl
        self.indices: frozenset[int] = frozenset()
        """Those of our devices when they were last looked at."""

    def observe(self, scope: Scope) -> State:
        """What is there of the scope's devices, of marked devices, and of routes into the pod networks."""
        links = self._rtnl.links()
        names = {link.index: link.name for link in links}
        ours = [link for link in links if link.name in scope.devices or link.alias == ALIAS]
        indices = self.indices = frozenset(link.index for link in ours)
        found, foreign = self._routes(scope, names, indices)
        return State(
            devices=frozenset(_device(link, names) for link in ours),
            addresses=frozenset(self._addresses(names, indices)),
            neighbours=frozenset(self._neighbours(ours)),
            fdb=frozenset(self._fdb(ours)),
            routes=frozenset(found),
            foreign=frozenset(foreign),
        )

    def _addresses(self, names: dict[int, str], indices: frozenset[int]) -> Iterable[Address]:
        if not indices:
            return
        for found in self._rtnl.addresses():
            if found.index in indices and not found.link_local:
                yield Address(names[found.index], ipaddress.ip_interface(found.cidr))

    def _neighbours(self, ours: Iterable[Link]) -> Iterable[Neighbour]:
        for link in ours:
            for family in (AF_INET, AF_INET6):
                for found in self._rtnl.neighbours(link.index, family):
                    if found.state == neighbours.NUD_PERMANENT:
                        yield Neighbour(link.name, ipaddress.ip_address(found.ip), found.mac)

    def _fdb(self, ours: Iterable[Link]) -> Iterable[Fdb]:
        for link in ours:
            if link.vxlan is None:
                continue
            for found in self._rtnl.fdb(link.index):
                if found.permanent and found.ip:
                    yield Fdb(link.name, found.mac, ipaddress.ip_address(found.ip))

    def _routes(
        self, scope: Scope, names: dict[int, str], indices: frozenset[int]
    ) -> tuple[list[FoundRoute], list[FoundRoute]]:
        ours: list[FoundRoute] = []
        foreign: list[FoundRoute] = []
        for found in self._rtnl.routes(table=routes.RT_TABLE_MAIN):
            if found.kind != routes.RTN_UNICAST or found.protocol in _KERNEL_PROTOCOLS:
                continue
            dst = ipaddress.ip_network(found.dst)
            via = ipaddress.ip_address(found.via) if found.via else None
            device = names.get(found.oif, f"index {found.oif}")
            route = FoundRoute(Route(dst, via, device, found.onlink), found.protocol, found.metric, found.scope)
            within = any(dst.version == net.version and dst.subnet_of(net) for net in scope.networks)  # type: ignore[arg-type]  # the versions are equal
            if found.oif in indices or (within and found.protocol == owner.ROUTE_PROTOCOL):
                ours.append(route)
            elif within:
                foreign.append(route)
        return ours, foreign

    def mac(self, name: str) -> str:
        """The MAC of a vxlan device of that name; "" if there is none."""
        link = self._rtnl.find_link(name)
        return link.mac if link is not None and link.vxlan is not None else ""

    def on_link(self, addresses: Iterable[IPAddress]) -> frozenset[IPAddress]:
        """Those that the kernel reaches without a gateway."""
        found = set()
        for address in addresses:
            try:
                way = self._rtnl.route_to(str(address))
            except NotFound:
                continue
            if not way.via and way.kind == routes.RTN_UNICAST:
                found.add(address)
        return frozenset(found)

    def perform(self, step: Step) -> None:
        """Do one step. Raises KernelError."""
        item = step.item
        if step.verb is Verb.REMOVE:
            try:
                self._remove(item)
            except NotFound:
                return
        elif isinstance(item, Vxlan):
            self._device(step.verb, item)
        else:
            self._set(item)

    def _device(self, verb: Verb, wanted: Vxlan) -> None:
        if verb is Verb.REMAKE:
            self._rtnl.delete_link(self._rtnl.link(wanted.name).index)
        if verb in (Verb.CREATE, Verb.REMAKE):
            self._rtnl.create_vxlan(
                wanted.name,
                wanted.vni,
                local=str(wanted.local),
                port=wanted.port,
                dev_index=self._rtnl.link(wanted.device).index,
                learning=wanted.learning,
                gbp=wanted.gbp,
                mtu=wanted.mtu,
                mac=wanted.mac,
                alias=ALIAS,
            )
        link = self._rtnl.link(wanted.name)
        with contextlib.suppress(NotFound):  # IPv6 is off
            # A tunnel end must not take routes from router advertisements that come through the tunnel.
            sysctl.ensure(f"net/ipv6/conf/{wanted.name}/accept_ra", 0)
        self._rtnl.set_link(
            link.index,
            mtu=wanted.mtu,
            # Setting a MAC, even the same one, empties the device's neighbour table.
            mac=wanted.mac if link.mac != wanted.mac else None,
            alias=ALIAS,
            txqlen=0,
            up=True,
        )

    def _set(self, item: object) -> None:
        match item:
            case Address():
                self._rtnl.add_address(self._rtnl.link(item.device).index, str(item.address), replace=True)
            case Neighbour():
                self._rtnl.add_neighbour(
                    self._rtnl.link(item.device).index,
                    str(item.ip),
                    item.mac,
                    replace=True,
                    protocol=owner.ROUTE_PROTOCOL,
                )
            case Fdb():
                self._rtnl.add_fdb(self._rtnl.link(item.device).index, item.mac, str(item.dst), replace=True)
            case Route():
                self._rtnl.add_route(
                    str(item.dst),
                    via=str(item.via or ""),
                    oif=self._rtnl.link(item.device).index,
                    onlink=item.onlink,
                    protocol=owner.ROUTE_PROTOCOL,
                    replace=True,
                )
            case _:
                raise TypeError(f"cannot set {item!r}")

    def _remove(self, item: object) -> None:
        match item:
            case Device():
                self._rtnl.delete_link(self._rtnl.link(item.name).index)
            case Address():
                self._rtnl.delete_address(self._rtnl.link(item.device).index, str(item.address))
            case Neighbour():
                self._remove_neighbour(item)
            case Fdb():
                self._rtnl.delete_fdb(self._rtnl.link(item.device).index, item.mac, str(item.dst))
            case FoundRoute():
                route = item.route
                self._rtnl.delete_route(
                    routes.Route(
                        str(route.dst),
                        via=str(route.via or ""),
                        oif=self._rtnl.link(route.device).index,
                        onlink=route.onlink,
                        protocol=item.protocol,
                        metric=item.metric,
                        scope=item.scope,
                    )
                )
            case _:
                raise TypeError(f"cannot remove {item!r}")

    def _remove_neighbour(self, item: Neighbour) -> None:
        index = self._rtnl.link(item.device).index
        self._rtnl.delete_neighbour(neighbours.Neighbour(index, str(item.ip), item.mac))


def _device(link: Link, names: dict[int, str]) -> Device:
    vxlan = None
    if link.vxlan is not None:
        found = link.vxlan
        vxlan = Vxlan(
            name=link.name,
            vni=found.vni,
            # A device without a local address was made by somebody else; the unspecified one differs from any wanted.
            local=ipaddress.ip_address(found.local or "0.0.0.0"),
            device=names.get(found.link, ""),
            port=found.port,
            mtu=link.mtu,
            mac=link.mac,
            learning=found.learning,
            gbp=found.gbp,
        )
    return Device(link.name, link.kind, vxlan, link.up, link.txqlen, link.alias == ALIAS)
