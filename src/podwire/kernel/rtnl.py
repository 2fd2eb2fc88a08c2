"""The rtnetlink door: what podwire asks the kernel about links, addresses, routes and neighbours.

    with Rtnl() as host, Rtnl(container_fd) as container:
        bridge = host.link("cni0")
        host.create_veth("veth1234", "eth0", container_fd, mtu=1450, master=bridge.index, up=True)
        eth0 = container.link("eth0")
        container.add_address(eth0.index, "10.244.1.5/24")
        container.add_route("0.0.0.0/0", via="10.244.1.1", oif=eth0.index)

What is read are values (links.Link, ifaddrs.Address, routes.Route, neighbours.Neighbour); what is written is given in
keywords. The nouns' own modules know the bytes, channel.py knows the socket. Every kernel filter of a dump is applied again here
(old kernels ignore it). The module for neighbours is imported when first used: no plugin needs it. The file is long because it is
flat: one short method a question, grouped by noun.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6

from podwire.addresses import Prefix
from podwire.errors import KernelError, NotFound
from podwire.kernel import bridges, ifaddrs, links, routes
from podwire.kernel.channel import NETLINK_ROUTE, Channel
from podwire.kernel.routes import RT_TABLE_MAIN, RTN_UNICAST, RTPROT_BOOT
from podwire.kernel.wire import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podwire.kernel.ifaddrs import Address
    from podwire.kernel.links import Link
    from podwire.kernel.neighbours import Neighbour
    from podwire.kernel.routes import Route

_NEW = NLM_F_CREATE | NLM_F_EXCL


class Rtnl(Channel):
    """A door to the links, addresses, routes and neighbours of one network namespace. Not for several threads at once."""

    __slots__ = ()

    def __init__(self, netns_fd: int | None = None) -> None:
        super().__init__(NETLINK_ROUTE, netns_fd)

    # Links.

    def links(self, *, master: int = 0, kind: str = "") -> list[Link]:
        """All devices, or those of a bridge or of a kind."""
        bodies = self.dump(links.RTM_GETLINK, links.dump(master=master, kind=kind), doing="listing links")
        found = [links.decode(body) for body in bodies]
        return [link for link in found if (not master or link.master == master) and (not kind or link.kind == kind)]

    def link(self, name: str = "", *, index: int = 0) -> Link:
        """One device by name or index. Raises NotFound."""
        target = name or f"index {index}"
        if len(name.encode()) > 15:
            raise NotFound("looking up the link", target, "an interface name has at most 15 bytes", number=19)
        replies = self.request(
            links.RTM_GETLINK, links.query(index=index, name=name), doing="looking up the link", target=target
        )
        return links.decode(replies[0].body)

    def find_link(self, name: str = "", *, index: int = 0) -> Link | None:
        """One device, or None where there is none."""
        try:
            return self.link(name, index=index)
        except NotFound:
            return None

    def _create(self, name: str, kind: str, data: bytes, settings: bytes, up: bool, alias: str | None) -> None:
        body = links.create(name, kind, data, settings=settings, up=up)
        self.request(links.RTM_NEWLINK, body, _NEW, doing=f"creating the {kind}", target=name)
        if alias is not None:  # the kernel ignores IFLA_IFALIAS in the request that creates
            body = links.change(0, settings=links.settings(name=name, alias=alias))
            self.request(links.RTM_NEWLINK, body, doing="setting the alias of", target=name)

    def create_veth(
        self,
        name: str,
        peer: str,
        peer_ns_fd: int | None = None,
        *,
        mtu: int = 0,
        mac: str = "",
        peer_mac: str = "",
        master: int | None = None,
        alias: str | None = None,
        up: bool = False,
        peer_up: bool = False,
    ) -> None:
        """A veth pair in one step: `peer` is born in the namespace `peer_ns_fd` and never seen in this one."""
        peer_settings = links.settings(mtu=mtu, mac=peer_mac, netns_fd=peer_ns_fd)
        self._create(
            name,
            "veth",
            links.veth_peer(peer, peer_settings, up=peer_up),
            links.settings(mtu=mtu, mac=mac, master=master),
            up,
            alias,
        )

    def create_port(
        self,
        name: str,
        peer: str,
        peer_ns_fd: int,
        *,
        master: int,
        alias: str,
        mtu: int = 0,
        peer_mac: str = "",
        hairpin: bool = False,
        isolated: bool = False,
    ) -> None:
        """A veth pair as create_veth makes it, whose near end is a port of a bridge, up and marked: all of it, or nothing.

        The name must be free: of a device that has it already, alias and port settings would be changed.
        """
        peer_settings = links.settings(mtu=mtu, mac=peer_mac, netns_fd=peer_ns_fd)
        data = links.veth_peer(peer, peer_settings)
        made = links.create(name, "veth", data, settings=links.settings(mtu=mtu, master=master), up=True)
        # The kernel ignores an alias in the request that creates, and one killed between two would leave a port of nobody.
        settings = links.settings(name=name, alias=alias) + bridges.port_settings(hairpin=hairpin, isolated=isolated)
        change = links.change(0, settings=settings)
        acks = self.request_together([(links.RTM_NEWLINK, made, _NEW), (links.RTM_NEWLINK, change, 0)])
        for ack, doing in zip(acks, ("creating the veth", "changing the bridge port"), strict=True):
            if ack.number:
                if ack is acks[1]:
                    self.delete_link(self.link(name).index)
                raise KernelError.of(ack.number, doing, name, answer=ack.text)

    def create_bridge(
        self,
        name: str,
        *,
        mtu: int = 0,
        mac: str = "",
        alias: str | None = None,
        txqlen: int | None = None,
        vlan_filtering: bool = False,
        up: bool = False,
    ) -> None:
        """A bridge; without a MAC the kernel makes one up and follows its lowest port until one is set."""
        data = bridges.bridge_data(vlan_filtering=True) if vlan_filtering else b""
        self._create(name, "bridge", data, links.settings(mtu=mtu, mac=mac, txqlen=txqlen), up, alias)

    def create_dummy(
        self, name: str, *, mtu: int = 0, mac: str = "", alias: str | None = None, up: bool = False
    ) -> None:
        """A device that swallows everything."""
        self._create(name, "dummy", b"", links.settings(mtu=mtu, mac=mac), up, alias)

    def create_vxlan(
        self,
        name: str,
        vni: int,
        *,
        local: str = "",
        port: int = 8472,
        dev_index: int = 0,
        learning: bool = False,
        ttl: int = 0,
        gbp: bool = False,
        mtu: int = 0,
        mac: str = "",
        alias: str | None = None,
        up: bool = False,
    ) -> None:
        """A vxlan device; `link(name).vxlan` compares equal to links.Vxlan of the same settings.

        (The kernel takes `addrgenmode` only from set_link: it belongs to the IPv6 half of a device that exists.)
        """
        wanted = links.Vxlan(vni, local, dev_index, port, learning, ttl, gbp)
        settings = links.settings(mtu=mtu, mac=mac)
        self._create(name, "vxlan", links.vxlan_data(wanted), settings, up, alias)

    def set_link(
        self,
        index: int,
        *,
        up: bool | None = None,
        promisc: bool | None = None,
        allmulti: bool | None = None,
        mtu: int | None = None,
        master: int | None = None,
        name: str | None = None,
        mac: str | None = None,
        alias: str | None = None,
        group: int | None = None,
        txqlen: int | None = None,
        netns_fd: int | None = None,
        addrgenmode: int | None = None,
    ) -> None:
        """Change what is given. `master` 0 takes the device out of its bridge; `addrgenmode` see links.ADDR_GEN_MODE_*."""
        settings = links.settings(
            name=name,
            mtu=mtu,
            mac=mac,
            master=master,
            alias=alias,
            group=group,
            txqlen=txqlen,
            netns_fd=netns_fd,
            addrgenmode=addrgenmode,
        )
        body = links.change(index, settings=settings, up=up, promisc=promisc, allmulti=allmulti)
        self.request(links.RTM_NEWLINK, body, doing="changing the link", target=f"index {index}")

    def set_bridge(self, index: int, *, vlan_filtering: bool) -> None:
        """Switch a bridge's VLAN filtering. Raises KernelError (EOPNOTSUPP) where the kernel is built without it."""
        body = bridges.bridge_change(index, vlan_filtering=vlan_filtering)
        self.request(links.RTM_NEWLINK, body, doing="changing the bridge", target=f"index {index}")

    def set_port(
        self,
        index: int,
        *,
        hairpin: bool | None = None,
        learning: bool | None = None,
        isolated: bool | None = None,
        flood: bool | None = None,
    ) -> None:
        """Change how a device behaves as a port of its bridge."""
        body = bridges.port_change(index, hairpin=hairpin, learning=learning, isolated=isolated, flood=flood)
        self.request(links.RTM_SETLINK, body, doing="changing the bridge port", target=f"index {index}")

    def vlans(self, index: int) -> list[int]:
        """The VLAN IDs of a bridge port."""
        bodies = self.dump(links.RTM_GETLINK, bridges.vlan_dump(), doing="listing VLANs")
        return [vid for port, vids in map(bridges.decode_vlans, bodies) if port == index for vid in vids]

    def add_vlan(self, index: int, vid: int, *, pvid: bool = False, untagged: bool = False) -> None:
        """Let a bridge port carry a VLAN; `pvid`: untagged frames that come in are its, `untagged`: it goes out without tag."""
        body = bridges.vlan_change(index, vid, pvid=pvid, untagged=untagged)
        self.request(links.RTM_SETLINK, body, doing="adding the VLAN", target=f"{vid} to index {index}")

    def delete_vlan(self, index: int, vid: int) -> None:
        """Take a VLAN from a bridge port."""
        body = bridges.vlan_change(index, vid)
        self.request(links.RTM_DELLINK, body, doing="deleting the VLAN", target=f"{vid} of index {index}")

    def delete_link(self, index: int) -> None:
        """Delete a device (a veth takes its peer along). Raises NotFound."""
        self.request(links.RTM_DELLINK, links.delete(index), doing="deleting the link", target=f"index {index}")

    def delete_link_ahead(self, index: int) -> None:
        """Delete a device; returns when it is down, gone for everybody and told to be, before the kernel has freed it.

        The rest (rcu_barrier(9): 10 to 20 ms) is waited for by a thread. This door is of no use afterwards. Raises NotFound.
        """
        self.request_ahead(
            links.RTM_DELLINK,
            links.delete(index),
            lambda reply: reply.kind == links.RTM_DELLINK and links.index_of(reply.body) == index,
            doing="deleting the link",
            target=f"index {index}",
        )

    # Addresses.

    def addresses(self, index: int = 0, family: int = 0) -> list[Address]:
        """Addresses of a device and family (0: all)."""
        bodies = self.dump(ifaddrs.RTM_GETADDR, ifaddrs.dump(family, index), doing="listing addresses")
        found = [ifaddrs.decode(body) for body in bodies if body[0] in (AF_INET, AF_INET6)]
        return [a for a in found if (not index or a.index == index) and (not family or a.family == family)]

    def add_address(
        self, index: int, cidr: str, *, flags: int = 0, scope: int = 0, broadcast: bool = True, replace: bool = False
    ) -> None:
        """Give a device an address. Raises AlreadyExists unless `replace`. `flags` are ifaddrs.IFA_F_*."""
        prefix = Prefix.parse(cidr)
        wide = prefix.broadcast if broadcast else ""
        address = ifaddrs.Address(index, str(prefix.ip), prefix.length, scope=scope, flags=flags, broadcast=wide)
        how = NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
        self.request(
            ifaddrs.RTM_NEWADDR,
            ifaddrs.encode(address),
            how,
            doing="adding the address",
            target=f"{cidr} to index {index}",
        )

    def delete_address(self, index: int, cidr: str) -> None:
        """Take an address away. Raises NotFound."""
        prefix = Prefix.parse(cidr)
        body = ifaddrs.encode(ifaddrs.Address(index, str(prefix.ip), prefix.length))
        self.request(ifaddrs.RTM_DELADDR, body, doing="deleting the address", target=f"{cidr} of index {index}")

    # Routes.

    def routes(self, *, table: int = 0, protocol: int = 0, oif: int = 0, family: int = 0) -> list[Route]:
        """Routes that agree in everything given; without `table` those of all tables (the local one too)."""
        body = routes.dump(family=family, table=table, protocol=protocol, oif=oif)
        try:
            bodies = self.dump(routes.RTM_GETROUTE, body, doing="listing routes")
        except NotFound:  # "FIB table does not exist": nobody ever put a route in it
            return []
        found = [routes.decode(body) for body in bodies if body[0] in (AF_INET, AF_INET6)]
        return [
            route
            for route in found
            if (not table or route.table == table)
            and (not protocol or route.protocol == protocol)
            and (not oif or route.oif == oif or any(hop[1] == oif for hop in route.hops))
            and (not family or route.family == family)
            and not route.flags & routes.RTM_F_CLONED
        ]

    def add_route(
        self,
        dst: str,
        *,
        via: str = "",
        oif: int = 0,
        onlink: bool = False,
        src: str = "",
        table: int = RT_TABLE_MAIN,
        protocol: int = RTPROT_BOOT,
        scope: int | None = None,
        metric: int = 0,
        mtu: int = 0,
        advmss: int = 0,
        kind: int = RTN_UNICAST,
        replace: bool = False,
        beside: bool = False,
    ) -> None:
        """Add a route; raises AlreadyExists where there is one of the same destination, metric and table.

        With `replace` that one is changed; with `beside` only an equal one is in the way (IPv6: a further hop is added).
        """
        route = routes.Route(
            dst,
            via=via,
            oif=oif,
            onlink=onlink,
            src=src,
            table=table,
            protocol=protocol,
            scope=scope,
            metric=metric,
            mtu=mtu,
            advmss=advmss,
            kind=kind,
        )
        how = NLM_F_CREATE | (NLM_F_REPLACE if replace else 0 if beside else NLM_F_EXCL)
        self.request(
            routes.RTM_NEWROUTE, routes.encode(route), how, doing="adding the route", target=_route_text(route)
        )

    def delete_route(self, route: Route) -> None:
        """Delete a route that was listed, or routes.Route(dst, …) with what must agree. Raises NotFound."""
        self.request(routes.RTM_DELROUTE, routes.encode(route), doing="deleting the route", target=_route_text(route))

    def route_to(self, destination: str) -> Route:
        """Which way a packet to this address would go. Raises KernelError (ENETUNREACH) where there is no way."""
        replies = self.request(
            routes.RTM_GETROUTE, routes.lookup(destination), doing="looking up the route", target=f"to {destination}"
        )
        return routes.decode(replies[0].body)

    # Neighbours and forwarding entries.

    def neighbours(self, index: int = 0, family: int = AF_INET) -> list[Neighbour]:
        """ARP (AF_INET), ND (AF_INET6) or forwarding (links.AF_BRIDGE) entries of a device (0: all devices)."""
        from podwire.kernel import neighbours

        bodies = self.dump(neighbours.RTM_GETNEIGH, neighbours.dump(family, index), doing="listing neighbours")
        found = [neighbours.decode(body) for body in bodies]
        return [entry for entry in found if entry.family == family and (not index or entry.index == index)]

    def fdb(self, index: int = 0) -> list[Neighbour]:
        """Forwarding entries of a device; of a vxlan device `ip` is the remote VTEP."""
        return self.neighbours(index, links.AF_BRIDGE)

    def add_neighbour(self, index: int, ip: str, mac: str, *, replace: bool = False, protocol: int = 0) -> None:
        """Write a permanent ARP or ND entry. Raises AlreadyExists unless `replace`."""
        from podwire.kernel.neighbours import Neighbour

        self._put_neighbour(Neighbour(index, ip, mac, protocol=protocol), replace=replace)

    def add_fdb(self, index: int, mac: str, dst_ip: str, *, port: int = 0, vni: int = 0, replace: bool = False) -> None:
        """Write a permanent forwarding entry of a vxlan device: `mac` is behind the VTEP `dst_ip`."""
        from podwire.kernel.neighbours import NTF_SELF, Neighbour

        entry = Neighbour(index, dst_ip, mac, family=links.AF_BRIDGE, flags=NTF_SELF, port=port, vni=vni)
        self._put_neighbour(entry, replace=replace)

    def _put_neighbour(self, entry: Neighbour, *, replace: bool) -> None:
        from podwire.kernel import neighbours

        how = NLM_F_CREATE | (NLM_F_REPLACE if replace else NLM_F_EXCL)
        target = f"{entry.mac} {entry.ip} on index {entry.index}"
        self.request(
            neighbours.RTM_NEWNEIGH, neighbours.encode(entry), how, doing="adding the neighbour", target=target
        )

    def delete_neighbour(self, entry: Neighbour) -> None:
        """Delete an entry that was listed. Raises NotFound."""
        from podwire.kernel import neighbours

        target = f"{entry.mac} {entry.ip} on index {entry.index}"
        self.request(neighbours.RTM_DELNEIGH, neighbours.encode(entry), doing="deleting the neighbour", target=target)

    def delete_fdb(self, index: int, mac: str, dst_ip: str = "") -> None:
        """Delete a vxlan device's forwarding entry. Raises NotFound."""
        from podwire.kernel.neighbours import NTF_SELF, Neighbour

        self.delete_neighbour(Neighbour(index, dst_ip, mac, family=links.AF_BRIDGE, flags=NTF_SELF))


def _route_text(route: Route) -> str:
    via = f" via {route.via}" if route.via else ""
    return f"{route.dst}{via} dev index {route.oif}"
