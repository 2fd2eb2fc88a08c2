"""CHECK and GC of the plugin bridge.

CHECK compares what ADD told of with the kernel, in the reference plugin's order and words: IPAM, previous result, bridge,
sandbox, container's interface, the port that is its peer, addresses, routes. GC goes by marks only.
"""

from __future__ import annotations

import os

from podwire.cni.delegate import Delegate
from podwire.cni.plugins import iface
from podwire.cni.plugins.sandbox import open_sandbox
from podwire.cni.spec import result as results
from podwire.cni.spec.attachments import valid_attachments
from podwire.cni.spec.result import Interface, Result
from podwire.cni.spec.text import Fields, TextError, quoted
from podwire.errors import CniError, KernelError, NotFound
from podwire.kernel import owner
from podwire.kernel.rtnl import Rtnl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podwire.cni.plugins.bridge_conf import Conf
    from podwire.cni.skel import Request
    from podwire.kernel.links import Link


def previous_result(request: Request) -> Result:
    """The result of the ADD, given back in the configuration. Raises ValueError."""
    raw = Fields(request.conf, "NetConf").mapping("prevResult")
    if raw is None:
        raise ValueError("Required prevResult missing")
    try:
        return results.parse(raw, request.version)
    except TextError as error:
        raise ValueError(f"could not parse prevResult: {error}") from None


def check(request: Request, conf: Conf) -> None:
    """Whether everything that ADD told of is there. Raises ValueError, which names the first thing that is not."""
    try:
        sandbox = open_sandbox(request.netns)
    except CniError as error:
        raise CniError(error.code, f"failed to open netns {quoted(request.netns)}: {error.msg}") from None
    try:
        Delegate(conf.ipam_type, request).check(request.stdin)
        previous = previous_result(request)
        bridge_said, inside_said = _told(request, conf, previous)
        with Rtnl() as host, Rtnl(sandbox) as container:
            bridge = _check_bridge(host, bridge_said, conf)
            if request.netns != inside_said.sandbox:
                raise ValueError(
                    f"Sandbox in prevResult {inside_said.sandbox} doesn't match configured netns: {request.netns}"
                )
            inside = _check_inside(container, inside_said)
            others = [i for i in previous.interfaces if i.name not in (bridge_said.name, inside_said.name)]
            if not any(_check_port(host, said, bridge, inside) for said in others):
                raise ValueError(f"CNI veth created for bridge {conf.bridge} was not found")
            iface.check_ips(container, request.ifname, previous.ips)
            iface.check_routes(container, previous.routes)
    finally:
        os.close(sandbox)


def _told(request: Request, conf: Conf, previous: Result) -> tuple[Interface, Interface]:
    """What the previous result says of the bridge and of the container's interface; nameless where it says nothing."""
    bridge, inside = Interface(""), Interface("")
    for said in previous.interfaces:
        if said.name == conf.bridge:
            bridge = said
        elif said.name == request.ifname and said.sandbox == request.netns:
            inside = said
    return bridge, inside


def _find(rtnl: Rtnl, said: Interface, *, in_sandbox: bool) -> Link:
    if not said.name:
        raise ValueError("Interface name missing ")
    link = rtnl.find_link(said.name)
    if link is None:
        raise ValueError(f"Interface name {said.name} not found")
    if in_sandbox and not said.sandbox:
        raise ValueError(f"Interface {said.name} is expected to be in a sandbox")
    if not in_sandbox and said.sandbox:
        raise ValueError(f"Interface {said.name} should not be in sandbox")
    return link


def _check_bridge(host: Rtnl, said: Interface, conf: Conf) -> Link:
    link = _find(host, said, in_sandbox=False)
    if link.kind != "bridge":
        raise ValueError(f"Interface {said.name} does not have link type of bridge")
    if said.mac and said.mac.lower() != link.mac:
        raise ValueError(f"Bridge interface {said.name} Mac doesn't match: {said.mac}")
    promisc = link.promiscuity != 0
    if promisc != conf.promisc:
        raise ValueError(
            f"Bridge interface {said.name} configured Promisc Mode {_go(conf.promisc)} "
            f"doesn't match current state: {_go(promisc)} "
        )
    return link


def _go(flag: bool) -> str:
    return "true" if flag else "false"


def _check_inside(container: Rtnl, said: Interface) -> Link:
    link = _find(container, said, in_sandbox=True)
    if link.kind != "veth":
        raise ValueError(f"Error: Container interface {link.name} not of type veth")
    if not link.link:
        raise ValueError(f"Unable to obtain veth peer index for veth {link.name}")
    if said.mac and said.mac.lower() != link.mac:
        raise ValueError(f"Interface {said.name} Mac {said.mac} doesn't match container Mac: {link.mac}")
    return link


def _check_port(host: Rtnl, said: Interface, bridge: Link, inside: Link) -> bool:
    """Whether this is the host's end of the pair and a port of the bridge; somebody else's interface is not ours to judge."""
    link = _find(host, said, in_sandbox=False)
    if link.kind != "veth" or (link.index, link.link, link.master) != (inside.link, inside.index, bridge.index):
        return False
    if said.mac and said.mac.lower() != link.mac:
        raise ValueError(f"Interface {said.name} Mac doesn't match: {said.mac} not found")
    return True


def collect(request: Request, conf: Conf) -> None:
    """Delete what is left of attachments that are no longer valid; what lacks the mark is told, not touched."""
    valid = valid_attachments(request.conf)
    failed = []
    with Rtnl() as host:
        bridge = host.find_link(conf.bridge)
        for link in host.links(master=bridge.index, kind="veth") if bridge else []:
            parts = owner.alias_parts(link.alias)
            if parts is None or parts[0] != "cni":
                request.note(f"bridge: {link.name} on {conf.bridge} has no mark of podwire and is left alone\n")
            elif len(parts) == 4 and parts[1] == conf.name and (parts[2], parts[3]) not in valid:
                try:
                    host.delete_link(link.index)
                except NotFound:
                    continue
                except KernelError as error:
                    failed.append(str(error))
    if conf.ipam_type:
        try:
            Delegate(conf.ipam_type, request).gc(request.stdin)
        except CniError as error:
            failed.append(f"{conf.ipam_type}: {error.msg}")
    if conf.ipam_type and conf.ip_masq:
        from podwire.cni.plugins.masquerade import collect as collect_masquerade

        collect_masquerade(conf.name, valid)
    if failed:
        raise ValueError("; ".join(failed))
