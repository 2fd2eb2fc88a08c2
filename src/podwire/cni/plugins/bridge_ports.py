"""The bridge of the host and the pair of devices that joins a container to it: made, found, addressed, waited for."""

from __future__ import annotations

import os
import time

from podwire.addresses import Prefix
from podwire.cni.plugins import iface
from podwire.cni.spec.text import quoted
from podwire.errors import AlreadyExists, KernelError, NotFound
from podwire.kernel import owner, sysctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.cni.plugins.bridge_conf import Conf
    from podwire.cni.skel import Request
    from podwire.kernel.links import Link
    from podwire.kernel.rtnl import Rtnl

_NAME_TRIES = 10
_PORT_SECONDS = 2.55  # as long as the reference plugin waits in all


def setting(name: str, value: object) -> None:
    """Write a sysctl that a kernel may lack."""
    try:
        sysctl.write(name, value)
    except KernelError:
        return


def ensure_bridge(host: Rtnl, conf: Conf) -> Link:
    """The bridge, made if there is none, and up."""
    try:
        found = host.find_link(conf.bridge)
        made = found is None and _make_bridge(host, conf)
        bridge = bridge_by_name(host, conf.bridge) if found is None else _checked(found)
        if made:
            # Setting its MAC, even to what it is, pins it: else it follows the lowest of the ports, which come and go, and the
            # containers' ARP entries of their gateway go stale. (A bridge that is born with a MAC has no carrier until its
            # first port has one, and with it no link-local address.)
            host.set_link(bridge.index, mac=bridge.mac)
        if conf.promisc and not bridge.promisc:
            host.set_link(bridge.index, promisc=True)
        setting(f"net/ipv6/conf/{conf.bridge}/accept_ra", 0)
        if not bridge.up:
            host.set_link(bridge.index, up=True)
    except ValueError as error:
        raise ValueError(f"failed to create bridge {quoted(conf.bridge)}: {error}") from error
    return bridge


def _make_bridge(host: Rtnl, conf: Conf) -> bool:
    """Whether it was not there before."""
    try:
        host.create_bridge(conf.bridge, mtu=conf.mtu, vlan_filtering=bool(conf.vlan or conf.vlan_trunk), up=True)
    except AlreadyExists:
        return False
    except KernelError as error:
        raise ValueError(f"could not add {quoted(conf.bridge)}: {iface.said(error)}") from error
    return True


def bridge_by_name(host: Rtnl, name: str) -> Link:
    """A device that must be a bridge. Raises ValueError."""
    try:
        bridge = host.link(name)
    except NotFound:
        raise ValueError(f"could not lookup {quoted(name)}: Link not found") from None
    return _checked(bridge)


def _checked(link: Link) -> Link:
    if link.kind != "bridge":
        raise ValueError(f"{quoted(link.name)} already exists but is not a bridge")
    return link


def create_veth(request: Request, conf: Conf, host: Rtnl, bridge: Link, sandbox: int) -> Link:
    """The pair: the container's end is born in the container under its final name, so that DEL finds it from then on."""
    mark = owner.alias("cni", conf.name, request.container_id, request.ifname)
    name = next((name for name in _new_names() if host.find_link(name) is None), None)
    if name is None:
        raise ValueError("failed to find a unique veth name")
    try:
        host.create_port(
            name, request.ifname, sandbox, master=bridge.index, alias=mark, mtu=conf.mtu, peer_mac=conf.mac,
            hairpin=conf.hairpin, isolated=conf.port_isolation,
        )  # fmt: skip
    except AlreadyExists:
        raise ValueError(
            f"container veth name ({quoted(request.ifname)}) peer provided ({quoted(name)}) already exists"
        ) from None
    except KernelError as error:
        raise ValueError(f"failed to make veth pair: {iface.said(error)}") from error
    except ValueError as error:
        raise ValueError(f"failed to make veth pair: {error}") from None
    setting(f"net/ipv6/conf/{name}/accept_ra", 0)
    return host.link(name)


def _new_names() -> Iterator[str]:
    for _ in range(_NAME_TRIES):
        yield f"veth{os.urandom(4).hex()}"


def ensure_address(host: Rtnl, bridge: Link, prefix: Prefix, *, force: bool) -> None:
    """One gateway address on the bridge, unless it is there; another one in its place is an error, or makes way if `force`."""
    for address in host.addresses(bridge.index, prefix.family):
        if address.cidr == str(prefix):
            return
        other = Prefix.parse(address.cidr)
        if prefix.ip.bits == 32 or other.contains(prefix.ip) or prefix.contains(other.ip):
            if not force:
                raise ValueError(f"{quoted(bridge.name)} already has an IP address different from {prefix}")
            host.delete_address(bridge.index, address.cidr)
    try:
        host.add_address(bridge.index, str(prefix))
    except AlreadyExists:
        pass  # another ADD was quicker
    except KernelError as error:
        raise ValueError(f"could not add IP address {prefix} to {quoted(bridge.name)}: {iface.said(error)}") from error
    # Needed for a bridge that somebody else made: setting its MAC, even to what it is, pins it. (One without ports had none.)
    host.set_link(bridge.index, mac=bridge.mac if bridge.mac.strip("0:") else host.link(index=bridge.index).mac)


def enable_forwarding(bits: int) -> None:
    """Let the host forward packets of a family."""
    name = "net/ipv4/ip_forward" if bits == 32 else "net/ipv6/conf/all/forwarding"
    try:
        sysctl.ensure(name, 1)
    except KernelError as error:
        raise ValueError(f"failed to enable forwarding: open /proc/sys/{name}: {iface.said(error)}") from error


def wait_for_port(host: Rtnl, port: Link) -> Link:
    """Return when the host's end is operational: from then on the bridge forwards to it."""
    deadline = time.monotonic() + _PORT_SECONDS
    pause = 0.0005
    while True:
        found = host.find_link(port.name)
        if found is None:
            raise ValueError("Link not found")
        if found.operstate == "up":
            return found
        if time.monotonic() > deadline:
            raise ValueError(f"bridge port in error state: {found.operstate}")
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
