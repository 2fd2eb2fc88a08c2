"""The plugin portmap: ports of the host that lead to a container (hostPort), as a chained plugin.

    "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"}]}

It makes no device: it takes the container's addresses, the first of each family, from the previous result, and passes that result
on. The rules are the reference plugin's to the letter (portmap_iptables, portmap_nft), so either can undo what the other did.
No port is reserved: with two containers on one host port, the rules that were written first win.

After the rules are written, UDP flows to the host ports that are still tracked are deleted: only a flow's first packet meets the
nat rules, so a client that keeps sending would never reach the container.
"""

from __future__ import annotations

from podwire.cni.plugins import portmap_iptables, portmap_nft
from podwire.cni.plugins.portmap_conf import Conf
from podwire.cni.skel import Plugin, Request, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec.attachments import valid_attachments
from podwire.cni.spec.versions import PLUGIN_NOT_AVAILABLE
from podwire.errors import CniError, KernelError, PodwireError
from podwire.kernel import spawn, sysctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from podwire.addresses import Ip


def add(request: Request) -> str:
    """Write the rules for the container's addresses."""
    conf = _conf(request)
    if conf.previous is None:
        raise ValueError("must be called as chained plugin")
    if not conf.mappings:
        return show(conf.previous, request.version)
    conf.check_add()
    try:
        for net in conf.nets:
            _backend(conf).forward(conf, net)
            _forget_flows(request, conf, net.ip)
            if conf.snat and net.ip.bits == 32:
                _route_localnet(net.ip)
    except BaseException:
        _take_back(request, conf)
        raise
    return show(conf.previous, request.version)


def _conf(request: Request) -> Conf:
    try:
        return Conf(request)
    except ValueError as error:
        raise ValueError(f"failed to parse config: {error}") from None


def _backend(conf: Conf) -> portmap_iptables.Backend | portmap_nft.Backend:
    return portmap_nft.Backend() if conf.backend == "nftables" else portmap_iptables.Backend()


def _take_back(request: Request, conf: Conf) -> None:
    try:
        _backend(conf).unforward(conf)
    except (PodwireError, ValueError) as error:
        request.note(f"portmap: taking back a failed ADD: {error}\n")


def _forget_flows(request: Request, conf: Conf, ip: Ip) -> None:
    """Delete tracked UDP flows to the host ports; what fails is told only, the rules stand."""
    ports = {mapping.host_port for mapping in conf.mappings if mapping.protocol.lower() == "udp"}
    if not ports:
        return
    from podwire.kernel.conntrack import UDP, Conntrack

    try:
        with Conntrack() as table:
            for flow in table.flows(4 if ip.bits == 32 else 6, UDP):
                if flow.original.destination_port in ports:
                    table.delete(flow)
    except KernelError as error:
        request.note(f"failed to delete stale UDP conntrack entries for {ip}: {error}\n")


def _route_localnet(ip: Ip) -> None:
    """Let connections from 127.0.0.0/8 leave by the interface that leads to the container."""
    from podwire.kernel.rtnl import Rtnl

    with Rtnl() as host:
        try:
            name = host.link(index=host.route_to(str(ip)).oif).name
        except KernelError:
            return  # no way there: nothing to permit
    try:
        sysctl.write(f"net/ipv4/conf/{name}/route_localnet", 1)
    except KernelError as error:
        raise ValueError(f"unable to enable route_localnet: {error}") from error


def delete(request: Request) -> None:
    """Remove the rules; no previous result is needed, and what is gone already is no error."""
    conf = _conf(request)
    if conf.mappings:
        _backend(conf).unforward(conf)


def check(request: Request) -> None:
    """Whether the rules are there."""
    conf = Conf(request)
    if conf.previous is None:
        raise ValueError("Required prevResult missing")
    for net in conf.nets if conf.mappings else ():
        _backend(conf).check(conf, net)


def gc(request: Request) -> None:
    """Remove the rules of every attachment of the network that is not valid, whichever backend wrote them."""
    conf = Conf(request)
    valid = {container_id for container_id, _ in valid_attachments(request.conf)}
    portmap_iptables.collect(conf.name, valid)
    portmap_nft.collect(conf.name, valid)


def status(request: Request) -> None:
    """Whether there is a program to write the rules with."""
    program = "nft" if Conf(request).backend == "nftables" else "iptables"
    if spawn.find(program) is None:
        raise CniError(PLUGIN_NOT_AVAILABLE, f"portmap cannot forward ports: there is no {program} on this machine")


PLUGIN = Plugin("portmap", add, delete, check, gc, status)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
