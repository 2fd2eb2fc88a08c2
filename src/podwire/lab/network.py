"""The lab's wires: one bridge in a namespace of its own, a veth pair to every machine, and one to the host.

    host namespace        underlay namespace                    machine namespaces
    pw-NAME ───────────── host ┐
                               ├─ underlay (bridge, gateway) ─┬─ node-1 ───── eth0
                                                              └─ node-2 ───── eth0

Only pw-NAME is in the host's namespace; it carries the lab's mark as its alias and no route but its own prefix. The
bridge is nobody's FORWARD chain's business there: Docker's DROP policy on the host cannot matter. The machines' default
route leads to the bridge, whose namespace answers "host unreachable" for everything that is not on the underlay.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from podwire.errors import NotFound
from podwire.kernel import namespaces, owner, routes, sysctl
from podwire.kernel.rtnl import Rtnl
from podwire.lab.topology import UNDERLAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.lab.state import Process
    from podwire.lab.topology import Machine, Topology


@contextmanager
def netns_of(holder: Process) -> Iterator[int]:
    """A descriptor of a machine's network namespace."""
    fd = namespaces.open_netns(f"/proc/{holder.pid}/ns/net")
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _own_netns() -> Iterator[int]:
    fd = namespaces.open_netns()
    try:
        yield fd
    finally:
        os.close(fd)


def build_underlay(topology: Topology, underlay: Process) -> None:
    """The bridge, its address, the "nothing outside" route, and the link to the host."""
    with netns_of(underlay) as fd, _own_netns() as own_fd, Rtnl(fd) as inner, Rtnl() as host:
        bridge_alias = owner.alias("lab", topology.name, "underlay")
        inner.create_bridge(UNDERLAY)
        bridge = inner.link(UNDERLAY).index
        inner.set_link(bridge, alias=bridge_alias, up=True)
        inner.set_link(inner.link("lo").index, up=True)
        inner.add_address(bridge, f"{topology.gateway}/{topology.underlay.prefixlen}")
        inner.add_route("0.0.0.0/0", kind=routes.RTN_UNREACHABLE, protocol=owner.ROUTE_PROTOCOL)
        inner.create_veth(
            "host",
            topology.host_link,
            peer_ns_fd=own_fd,
            master=bridge,
        )
        # The kernel takes an alias only from a device that exists; until it is written, and should we be killed just
        # then, the pair ends with the underlay's holder, which is marked.
        link = host.link(topology.host_link)
        host.set_link(link.index, alias=owner.alias("lab", topology.name, "host"))
        _mark_port(inner, topology, "host")
        # The host takes part in IPv4 only: without this it would announce itself to the lab by ND and MLD.
        _quiet_ipv6(topology.host_link)
        host.add_address(link.index, f"{topology.host_address}/{topology.underlay.prefixlen}")
        host.set_link(link.index, up=True)


def _mark_port(underlay: Rtnl, topology: Topology, name: str) -> None:
    port = underlay.link(name).index
    underlay.set_link(port, alias=owner.alias("lab", topology.name, "port", name), up=True)


def _quiet_ipv6(link: str) -> None:
    try:
        sysctl.write(f"net/ipv6/conf/{link}/disable_ipv6", 1)
    except NotFound:
        return


def attach(topology: Topology, machine: Machine, holder: Process, underlay: Process) -> None:
    """eth0 of a machine, with its address and the default route."""
    with netns_of(underlay) as outer_fd, netns_of(holder) as fd, Rtnl(outer_fd) as outer, Rtnl(fd) as inner:
        outer.create_veth(
            machine.name,
            "eth0",
            peer_ns_fd=fd,
            master=outer.link(UNDERLAY).index,
        )
        _mark_port(outer, topology, machine.name)
        inner.set_link(inner.link("lo").index, up=True)
        eth0 = inner.link("eth0").index
        inner.set_link(eth0, alias=owner.alias("lab", topology.name, "eth0"), up=True)
        inner.add_address(eth0, f"{machine.address}/{topology.underlay.prefixlen}")
        inner.add_route("0.0.0.0/0", via=str(topology.gateway), oif=eth0, protocol=owner.ROUTE_PROTOCOL)


def remove_host_links(lab: str) -> list[str]:
    """Delete the host's interfaces that carry this lab's mark; their names."""
    removed = []
    with Rtnl() as host:
        for link in host.links():
            parts = owner.alias_parts(link.alias)
            if parts is not None and parts[:2] == ["lab", lab]:
                try:
                    host.delete_link(link.index)
                except NotFound:
                    continue
                removed.append(link.name)
    return removed
