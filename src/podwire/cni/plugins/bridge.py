"""The plugin bridge: a veth pair between the container and a bridge of the host.

    ADD   bridge up ─ veth pair, its far end born in the container ─ IPAM ─ addresses and routes in the container
          ─ gateway addresses on the bridge ─ forwarding ─ masquerade ─ port forwarding
    DEL   veth pair ─ IPAM ─ masquerade         (each succeeds when there is nothing left; IPAM only after the link is gone,
                                                 so that the address is not given out while it is still in use)

The configuration is read once into a `Conf`, the same for all commands, so that DEL and CHECK can't drift from ADD. The host end
is a port with the mark `podwire:cni:NETWORK:CONTAINER:IFNAME` as its alias, by which GC finds leaked ones. An ADD that fails
takes back what it did itself, in the opposite order; the bridge stays, others may be on it.
"""

from __future__ import annotations

import os

from podwire.addresses import Ip, Prefix
from podwire.cni.delegate import Delegate
from podwire.cni.plugins import bridge_ports as ports
from podwire.cni.plugins import iface
from podwire.cni.plugins.bridge_conf import Conf
from podwire.cni.plugins.sandbox import Vanished, open_sandbox
from podwire.cni.skel import Plugin, Request, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec.result import Interface, Result, Route
from podwire.cni.spec.text import quoted
from podwire.cni.spec.versions import INTERNAL
from podwire.errors import CniError, KernelError, NotFound, PodwireError
from podwire.kernel.namespaces import entered
from podwire.kernel.rtnl import Rtnl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from podwire.kernel.links import Link

_CONTAINER = 2  # index of the container's interface in the result


class _Undo:
    """What a failed ADD takes back, newest first. A step that fails itself is told and does not stop the others.

    `push_last` is for the address: it may be given out again only when the link that has it is gone.
    """

    __slots__ = ("_note", "_steps")

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def push_last(self, step: Callable[[], None]) -> None:
        self._steps.insert(0, step)

    def run(self) -> None:
        for step in reversed(self._steps):
            try:
                step()
            except (PodwireError, ValueError, OSError) as error:
                self._note(f"bridge: taking back a failed ADD: {error}\n")


def add(request: Request) -> str:
    """Attach the container."""
    conf = Conf(request.conf, request.args)
    conf.check_add()
    undo = _Undo(request.note)
    with Rtnl() as host:
        try:
            result = _attach(request, conf, host, undo)
        except BaseException as error:
            undo.run()
            if isinstance(error, KernelError):
                raise CniError(INTERNAL, iface.said(error), str(error)) from error
            raise
    if conf.dns:
        result.dns = conf.dns
    # A result that the version cannot say is an error of the telling only: as with the reference plugin the attachment stays
    # until its DEL, with which every failed ADD is followed.
    return show(result, request.version)


def _attach(request: Request, conf: Conf, host: Rtnl, undo: _Undo) -> Result:
    bridge = ports.ensure_bridge(host, conf)
    sandbox = _open(request)
    try:
        port = ports.create_veth(request, conf, host, bridge, sandbox)
        undo.push(lambda: host.delete_link(port.index))
        if conf.vlan or conf.vlan_trunk:
            from podwire.cni.plugins.bridge_vlan import set_vlans

            set_vlans(host, port, conf.vlan, conf.vlan_trunk, preserve=conf.preserve_default_vlan)
        with Rtnl(sandbox) as container:
            inside = container.link(request.ifname)
            result = Result()
            result.interfaces = [
                Interface(bridge.name, bridge.mac),
                Interface(port.name, port.mac),
                Interface(request.ifname, inside.mac, request.netns),
            ]
            if conf.mac_spoof_check:
                _check_spoofing(request, port.name, inside.mac, undo)
            if conf.ipam_type:
                _configure(request, conf, host, bridge, container, inside, sandbox, result, undo)
            elif not conf.disable_container_interface:
                container.set_link(inside.index, up=True)
        if not conf.disable_container_interface:
            port = ports.wait_for_port(host, port)
        result.interfaces[1].mac = port.mac
        result.interfaces[0].mac = ports.bridge_by_name(host, conf.bridge).mac
        return result
    finally:
        os.close(sandbox)


def _open(request: Request) -> int:
    try:
        return open_sandbox(request.netns)
    except CniError as error:
        raise CniError(error.code, f"failed to open netns {quoted(request.netns)}: {error.msg}") from None


def _check_spoofing(request: Request, port: str, mac: str, undo: _Undo) -> None:
    from podwire.cni.plugins.spoofcheck import Rules

    rules = Rules(request.container_id, request.ifname)
    undo.push(rules.remove)
    rules.install(port, mac)


def _configure(
    request: Request,
    conf: Conf,
    host: Rtnl,
    bridge: Link,
    container: Rtnl,
    inside: Link,
    sandbox: int,
    result: Result,
    undo: _Undo,
) -> None:
    """Layer 3: addresses from IPAM, in the container and on the bridge."""
    ipam = Delegate(conf.ipam_type, request)
    given = ipam.add(request.stdin)
    undo.push_last(lambda: ipam.delete(request.stdin))
    result.ips, result.routes, result.dns = given.ips, given.routes, given.dns
    if not result.ips:
        raise ValueError("IPAM plugin returned missing IP config")
    gateways = plan_gateways(conf, result)
    with entered(sandbox):
        if conf.enable_dad:
            ports.setting(f"net/ipv6/conf/{request.ifname}/enhanced_dad", 1)
        ports.setting(f"net/ipv6/conf/{request.ifname}/accept_dad", int(conf.enable_dad))
        ports.setting(f"net/ipv4/conf/{request.ifname}/arp_notify", 1)
        iface.configure(container, inside, result)
    _serve_gateways(conf, host, bridge, result, gateways)
    if conf.ip_masq:
        from podwire.cni.plugins.masquerade import Attachment, setup, teardown

        owned = Attachment(conf.name, request.container_id, request.ifname)
        held = [ip.address for ip in result.ips]
        undo.push(lambda: teardown(owned, held))
        setup(owned, held, conf.ip_masq_backend)


def _serve_gateways(conf: Conf, host: Rtnl, bridge: Link, result: Result, gateways: list[Prefix]) -> None:
    """The gateways' addresses on the bridge, or on the bridge's interface in the VLAN; and forwarding."""
    device, name = bridge, "bridge"
    if conf.vlan and gateways:
        from podwire.cni.plugins.bridge_vlan import ensure_interface

        try:
            device, name = ensure_interface(host, bridge, conf), "vlan interface for bridge with"
        except ValueError as error:
            raise ValueError(f"failed to create vlan interface: {error}") from error
        result.interfaces.append(Interface(device.name, device.mac))
    for gateway in gateways:
        try:
            ports.ensure_address(host, device, gateway, force=conf.force_address)
        except ValueError as error:
            raise ValueError(f"failed to set {name} addr: {error}") from error
    for bits in {gateway.ip.bits for gateway in gateways}:
        ports.enable_forwarding(bits)


def plan_gateways(conf: Conf, result: Result) -> list[Prefix]:
    """Fill in gateways, interfaces and default routes of a result; returns the addresses that the bridge must have."""
    wanted = []
    for ip in result.ips:
        ip.interface = _CONTAINER
        if ip.gateway is None and conf.is_gateway:
            ip.gateway = ip.address.network + 1
        if conf.is_default_gateway and not _has_default(result.routes, ip.address.ip.bits):
            result.routes.append(Route(_everything(ip.address.ip), ip.gateway))
        if conf.is_gateway and ip.gateway is not None:
            wanted.append(Prefix(ip.gateway, ip.address.length))
    return sorted(wanted, key=lambda one: one.ip.bits)  # IPv4 first, else in IPAM's order


def _everything(ip: Ip) -> Prefix:
    return Prefix(Ip(0, ip.bits), 0)


def _has_default(found: list[Route], bits: int) -> bool:
    return any(r.gw is not None and r.dst.length == 0 and r.dst.ip.bits == bits and not r.dst.ip.value for r in found)


def delete(request: Request) -> None:
    """Detach the container; what is gone already is no error."""
    conf = Conf(request.conf, request.args)
    held = _delete_link(request) if request.netns else []
    if conf.ipam_type:
        Delegate(conf.ipam_type, request).delete(request.stdin)
    if conf.mac_spoof_check:
        from podwire.cni.plugins.spoofcheck import Rules

        try:
            Rules(request.container_id, request.ifname).remove()
        except PodwireError as error:  # told only, as by the reference plugin: the container must go
            request.note(f"bridge: {error}\n")
    if conf.ipam_type and conf.ip_masq:
        from podwire.cni.plugins.masquerade import Attachment, teardown

        teardown(Attachment(conf.name, request.container_id, request.ifname), held)


def _delete_link(request: Request) -> list[Prefix]:
    """Delete the container's interface, and the host's end with it; returns the addresses it had."""
    try:
        sandbox = open_sandbox(request.netns)
    except Vanished:
        return []
    try:
        with Rtnl(sandbox) as container:
            link = container.find_link(request.ifname)
            if link is None:
                return []
            held = [Prefix.parse(a.cidr) for a in container.addresses(link.index) if not a.link_local]
            try:
                if request.lasting:
                    container.delete_link_ahead(link.index)
                else:
                    container.delete_link(link.index)
            except NotFound:
                return held
            except KernelError as error:
                raise ValueError(f"failed to delete {quoted(request.ifname)}: {iface.said(error)}") from error
            return held
    finally:
        os.close(sandbox)


def check(request: Request) -> None:
    """Whether everything that ADD told of is there."""
    from podwire.cni.plugins.bridge_check import check as verify

    verify(request, Conf(request.conf, request.args))


def gc(request: Request) -> None:
    """Delete what attachments left that are no longer valid: host ends marked for this network, addresses, masquerade."""
    from podwire.cni.plugins.bridge_check import collect

    collect(request, Conf(request.conf, request.args))


def status(request: Request) -> None:
    """Whether IPAM can serve."""
    conf = Conf(request.conf, request.args)
    if conf.ipam_type:
        Delegate(conf.ipam_type, request).status(request.stdin)


PLUGIN = Plugin("bridge", add, delete, check, gc, status)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
