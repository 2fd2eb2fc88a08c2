"""VLANs on the plugin bridge's ports, where the kernel's bridges can filter them (CONFIG_BRIDGE_VLAN_FILTERING).

`vlan` is the port's own: untagged frames are its, both ways. `vlanTrunk` are carried tagged beside it. The VLAN that the
kernel gives every port (1) is taken away unless `preserveDefaultVlan`. A gateway in a VLAN has its address on a device of
its own, `BRIDGE.VLAN`: the far end of a pair whose near end is a port in that VLAN.

A kernel without VLAN filtering refuses to make such a bridge, and ADD says so; nothing here is reached.
"""

from __future__ import annotations

import os

from podwire.cni.plugins import iface
from podwire.cni.spec.text import quoted
from podwire.errors import AlreadyExists, KernelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podwire.cni.plugins.bridge_conf import Conf
    from podwire.kernel.links import Link
    from podwire.kernel.rtnl import Rtnl

_DEFAULT = 1


def set_vlans(host: Rtnl, port: Link, vlan: int, trunk: list[int], *, preserve: bool) -> None:
    """Put a port into its VLANs. Raises ValueError."""
    if not preserve:
        try:
            for vid in host.vlans(port.index):
                host.delete_vlan(port.index, vid)
        except KernelError as error:
            said = iface.said(error)
            raise ValueError(f"failed to remove default vlan on interface {quoted(port.name)}: {said}") from error
    try:
        if vlan:
            host.add_vlan(port.index, vlan, pvid=True, untagged=True)
        for vid in trunk:
            host.add_vlan(port.index, vid)
        if not vlan:  # a trunk alone has a native VLAN, as before there was `vlan`
            host.add_vlan(port.index, _DEFAULT, pvid=True, untagged=True)
    except KernelError as error:
        raise ValueError(f"failed to setup vlan tag on interface {quoted(port.name)}: {iface.said(error)}") from error


def ensure_interface(host: Rtnl, bridge: Link, conf: Conf) -> Link:
    """The device `BRIDGE.VLAN`, made if there is none, and up. Raises ValueError."""
    name = f"{bridge.name}.{conf.vlan}"
    found = host.find_link(name)
    if found is None:
        near = f"veth{os.urandom(4).hex()}"
        try:
            host.create_veth(name, near, mtu=bridge.mtu)
        except AlreadyExists:
            pass  # another ADD was quicker
        except KernelError as error:
            raise ValueError(f"faild to create vlan gateway {quoted(name)}: {iface.said(error)}") from error
        else:
            port = host.link(near)
            host.set_link(port.index, master=bridge.index, up=True)
            set_vlans(host, port, conf.vlan, [], preserve=conf.preserve_default_vlan)
        found = host.link(name)
    host.set_link(found.index, up=True)
    return found
