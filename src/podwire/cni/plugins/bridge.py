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
import time

from podwire.addresses import Ip, Prefix
from podwire.cni.delegate import Delegate
from podwire.cni.plugins import iface
from podwire.cni.plugins.bridge_conf import Conf
from podwire.cni.plugins.sandbox import Vanished, open_sandbox
from podwire.cni.skel import Plugin, Request, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec.result import Address, Interface, Result, Route
from podwire.cni.spec.text import quoted
from podwire.cni.spec.versions import INTERNAL
from podwire.errors import AlreadyExists, CniError, KernelError, NotFound
from podwire.kernel import owner, sysctl
from podwire.kernel.namespaces import entered
from podwire.kernel.rtnl import Rtnl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from podwire.kernel.links import Link

_NAME_TRIES = 10
_PORT_SECONDS = 2.55  # as long as the reference plugin waits in all
_CONTAINER = 2  # index of the container's interface in the result


def _setting(name: str, value: object) -> None:
    """Write a sysctl that a kernel may lack."""
    try:
        sysctl.write(name, value)
    except KernelError:
        return


class _Undo:
    """What a failed ADD takes back, newest first. A step that fails itself is told and does not stop the others."""

    __slots__ = ("_note", "_steps")

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        self._steps.append(step)

    def run(self) -> None:
        for step in reversed(self._steps):
            try:
                step()
            except (KernelError, CniError, ValueError) as error:
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
    bridge = _ensure_bridge(host, conf)
    try:
        sandbox = open_sandbox(request.netns)
    except CniError as error:
        raise CniError(error.code, f"failed to open netns {quoted(request.netns)}: {error.msg}") from None
    try:
        result = Result()
        port = _create_veth(request, conf, host, bridge, sandbox, undo)
        with entered(sandbox):
            container = Rtnl()
        with container:
            inside = container.link(request.ifname)
            result.interfaces = [
                Interface(bridge.name, bridge.mac),
                Interface(port.name, port.mac),
                Interface(request.ifname, inside.mac, request.netns),
            ]
            if conf.ipam_type:
                _configure(request, conf, host, bridge, container, sandbox, result, undo)
            elif not conf.disable_container_interface:
                container.set_link(inside.index, up=True)
        if not conf.disable_container_interface:
            port = _wait_for_port(host, port)
        result.interfaces[1].mac = port.mac
        result.interfaces[0].mac = _bridge_by_name(host, conf.bridge).mac
        return result
    finally:
        os.close(sandbox)


def _configure(
    request: Request,
    conf: Conf,
    host: Rtnl,
    bridge: Link,
    container: Rtnl,
    sandbox: int,
    result: Result,
    undo: _Undo,
) -> None:
    """Layer 3: addresses from IPAM, in the container and on the bridge."""
    ipam = Delegate(conf.ipam_type, request)
    given = ipam.add(request.stdin)
    undo.push(lambda: ipam.delete(request.stdin))
    result.ips, result.routes, result.dns = given.ips, given.routes, given.dns
    if not result.ips:
        raise ValueError("IPAM plugin returned missing IP config")
    gateways = plan_gateways(conf, result)
    with entered(sandbox):
        if conf.enable_dad:
            _setting(f"net/ipv6/conf/{request.ifname}/enhanced_dad", 1)
        _setting(f"net/ipv6/conf/{request.ifname}/accept_dad", int(conf.enable_dad))
        _setting(f"net/ipv4/conf/{request.ifname}/arp_notify", 1)
        iface.configure(container, request.ifname, result)
    for gateway in gateways:
        try:
            _ensure_address(host, bridge, gateway, force=conf.force_address)
        except ValueError as error:
            raise ValueError(f"failed to set bridge addr: {error}") from error
    for bits in {gateway.address.ip.bits for gateway in gateways}:
        _enable_forwarding(bits)
    if conf.ip_masq:
        from podwire.cni.plugins import masquerade

        owned = masquerade.Attachment(conf.name, request.container_id, request.ifname)
        held = [ip.address for ip in result.ips]
        undo.push(lambda: masquerade.teardown(owned, held))
        masquerade.setup(owned, held, conf.ip_masq_backend)


def plan_gateways(conf: Conf, result: Result) -> list[Address]:
    """Fill in gateways, interfaces and default routes of a result; returns the addresses that the bridge must have."""
    wanted = []
    for ip in result.ips:
        ip.interface = _CONTAINER
        if ip.gateway is None and conf.is_gateway:
            ip.gateway = ip.address.network + 1
        if conf.is_default_gateway and not _has_default(result.routes, ip.address.ip.bits):
            result.routes.append(Route(_everything(ip.address.ip), ip.gateway))
        if conf.is_gateway and ip.gateway is not None:
            wanted.append(Address(Prefix(ip.gateway, ip.address.length)))
    return sorted(wanted, key=lambda one: one.address.ip.bits)  # IPv4 first, else in IPAM's order


def _everything(ip: Ip) -> Prefix:
    return Prefix(Ip(0, ip.bits), 0)


def _has_default(found: list[Route], bits: int) -> bool:
    return any(r.gw is not None and r.dst.length == 0 and r.dst.ip.bits == bits and not r.dst.ip.value for r in found)


def _ensure_bridge(host: Rtnl, conf: Conf) -> Link:
    """The bridge, made if there is none, and up."""
    try:
        try:
            host.create_bridge(conf.bridge, mtu=conf.mtu, mac=_new_mac(), up=True)
        except AlreadyExists:
            pass
        except KernelError as error:
            raise ValueError(f"could not add {quoted(conf.bridge)}: {iface.said(error)}") from error
        bridge = _bridge_by_name(host, conf.bridge)
        if conf.promisc and not bridge.promisc:
            host.set_link(bridge.index, promisc=True)
        _setting(f"net/ipv6/conf/{conf.bridge}/accept_ra", 0)
        if not bridge.up:
            host.set_link(bridge.index, up=True)
    except ValueError as error:
        raise ValueError(f"failed to create bridge {quoted(conf.bridge)}: {error}") from error
    return bridge


def _new_mac() -> str:
    """A MAC of our own for a bridge: one that is set at birth stays.

    Else it follows the lowest of the ports, which come and go, and the containers' ARP entries of their gateway go stale.
    """
    raw = bytearray(os.urandom(6))
    raw[0] = raw[0] & 0xFC | 0x02  # locally administered, not multicast
    return raw.hex(":")


def _bridge_by_name(host: Rtnl, name: str) -> Link:
    try:
        bridge = host.link(name)
    except NotFound:
        raise ValueError(f"could not lookup {quoted(name)}: Link not found") from None
    if bridge.kind != "bridge":
        raise ValueError(f"{quoted(name)} already exists but is not a bridge")
    return bridge


def _create_veth(request: Request, conf: Conf, host: Rtnl, bridge: Link, sandbox: int, undo: _Undo) -> Link:
    """The pair: the container's end is born in the container under its final name, so that DEL finds it from then on."""
    mark = owner.alias("cni", conf.name, request.container_id, request.ifname)
    for _ in range(_NAME_TRIES):
        name = f"veth{os.urandom(4).hex()}"
        try:
            host.create_veth(
                name, request.ifname, sandbox, mtu=conf.mtu, peer_mac=conf.mac, master=bridge.index, alias=mark, up=True
            )
            break
        except AlreadyExists:
            if host.find_link(name) is None:
                raise ValueError(
                    f"container veth name ({quoted(request.ifname)}) peer provided ({quoted(name)}) already exists"
                ) from None
        except KernelError as error:
            raise ValueError(f"failed to make veth pair: {iface.said(error)}") from error
        except ValueError as error:
            raise ValueError(f"failed to make veth pair: {error}") from None
    else:
        raise ValueError("failed to find a unique veth name")
    port = host.link(name)
    undo.push(lambda: host.delete_link(port.index))
    _setting(f"net/ipv6/conf/{name}/accept_ra", 0)
    host.set_port(port.index, hairpin=conf.hairpin, isolated=conf.port_isolation)
    return port


def _ensure_address(host: Rtnl, bridge: Link, wanted: Address, *, force: bool) -> None:
    """One gateway address on the bridge, unless it is there; another one in its place is an error, or makes way if `force`."""
    prefix = wanted.address
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


def _enable_forwarding(bits: int) -> None:
    name = "net/ipv4/ip_forward" if bits == 32 else "net/ipv6/conf/all/forwarding"
    try:
        sysctl.ensure(name, 1)
    except KernelError as error:
        raise ValueError(f"failed to enable forwarding: open /proc/sys/{name}: {iface.said(error)}") from error


def _wait_for_port(host: Rtnl, port: Link) -> Link:
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


def delete(request: Request) -> None:
    """Detach the container; what is gone already is no error."""
    conf = Conf(request.conf, request.args)
    held = _delete_link(request) if request.netns else []
    if conf.ipam_type:
        Delegate(conf.ipam_type, request).delete(request.stdin)
    if conf.ipam_type and conf.ip_masq:
        from podwire.cni.plugins import masquerade

        masquerade.teardown(masquerade.Attachment(conf.name, request.container_id, request.ifname), held)


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
    from podwire.cni.plugins import bridge_check

    bridge_check.check(request, Conf(request.conf, request.args))


def gc(request: Request) -> None:
    """Delete what attachments left that are no longer valid: host ends marked for this network, addresses, masquerade."""
    from podwire.cni.plugins import bridge_check

    bridge_check.collect(request, Conf(request.conf, request.args))


def status(request: Request) -> None:
    """Whether IPAM can serve."""
    conf = Conf(request.conf, request.args)
    if conf.ipam_type:
        Delegate(conf.ipam_type, request).status(request.stdin)


PLUGIN = Plugin("bridge", add, delete, check, gc, status)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
