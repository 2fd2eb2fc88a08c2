"""The interface inside a container: what an ADD's result says of it, put into the kernel, and compared with it.

`configure` and `check_…` run with the thread inside the container's namespace, because the IPv6 settings below /proc/sys/net are
those of the namespace the thread is in.
"""

from __future__ import annotations

import time

from podwire.errors import KernelError
from podwire.kernel import routes, sysctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podwire.addresses import Ip, Prefix
    from podwire.cni.spec.result import Address, Result, Route
    from podwire.kernel.links import Link
    from podwire.kernel.rtnl import Rtnl

_DAD_SECONDS = 5.0
_DAD_PAUSE = 0.02


def said(error: KernelError) -> str:
    """What the kernel said, in Go's words (`file exists`)."""
    import os

    text = os.strerror(error.errno)
    return text[:1].lower() + text[1:]


def configure(rtnl: Rtnl, link: Link, result: Result) -> None:
    """Addresses, up, routes; returns when no IPv6 address is tentative. Raises ValueError or KernelError."""
    ifname = link.name
    gateways: dict[int, Ip] = {}
    ipv6 = False
    for ip in result.ips:
        if ip.interface is None:
            continue
        if not 0 <= ip.interface < len(result.interfaces) or result.interfaces[ip.interface].name != ifname:
            raise ValueError(f'failed to add IP addr {ip} to "{ifname}": invalid interface index')
        if ip.address.ip.bits == 128 and not ipv6:
            _enable_ipv6(ifname)
            ipv6 = True
        try:
            rtnl.add_address(link.index, str(ip.address))
        except KernelError as error:
            raise ValueError(f'failed to add IP addr {ip} to "{ifname}": {said(error)}') from error
        if ip.gateway is not None:
            gateways.setdefault(ip.gateway.bits, ip.gateway)
    try:
        rtnl.set_link(link.index, up=True)
    except KernelError as error:
        raise ValueError(f'failed to set "{ifname}" UP: {said(error)}') from error
    if 128 in gateways:
        try:
            settle(rtnl, link)
        except ValueError as error:
            raise ValueError(f'failed to settle addresses for "{ifname}": {error}') from None
    for route in result.routes:
        _add_route(rtnl, link, ifname, route, route.gw or gateways.get(route.dst.ip.bits))


def _enable_ipv6(ifname: str) -> None:
    """Switch IPv6 on for loopback and the interface, and keep its addresses when it goes down."""
    for name in ("lo", ifname):
        setting = f"net/ipv6/conf/{name}/disable_ipv6"
        try:
            value = sysctl.read(setting)
        except KernelError:  # a kernel without IPv6: adding the address will say so
            continue
        if value != "0":
            try:
                sysctl.write(setting, 0)
            except KernelError as error:
                raise ValueError(
                    f'failed to enable IPv6 for interface "{name}" ({setting}={value}): {said(error)}'
                ) from error
    try:
        sysctl.write(f"net/ipv6/conf/{ifname}/keep_addr_on_down", 1)
    except KernelError as error:
        raise ValueError(f'failed to enable keep_addr_on_down for interface "{ifname}": {said(error)}') from error


def settle(rtnl: Rtnl, link: Link) -> None:
    """Wait until duplicate address detection has ended. Raises ValueError where it failed or does not end."""
    import _socket

    deadline = time.monotonic() + _DAD_SECONDS
    while True:
        addresses = rtnl.addresses(link.index, _socket.AF_INET6)
        failed = next((a for a in addresses if a.dad_failed), None)
        if failed is not None:
            raise ValueError(f"link {link.name} has address {failed.ip} in DADFAILED state")
        if not any(a.tentative for a in addresses):
            return
        if time.monotonic() > deadline:
            if rtnl.link(index=link.index).operstate == "up":
                raise ValueError(f"link {link.name} still has tentative addresses after {_DAD_SECONDS:.0f} seconds")
            return  # detection cannot run while the other end is down
        time.sleep(_DAD_PAUSE)


def _add_route(rtnl: Rtnl, link: Link, ifname: str, route: Route, via: Ip | None) -> None:
    try:
        rtnl.add_route(
            str(route.dst.canonical),
            via="" if via is None else str(via),
            oif=link.index,
            scope=route.scope or routes.SCOPE_UNIVERSE,
            table=route.table or routes.RT_TABLE_MAIN,
            metric=route.priority,
            mtu=route.mtu,
            advmss=route.advmss,
            beside=True,
        )
    except KernelError as error:
        scope = {0: "universe", 253: "link", 254: "host"}.get(route.scope or 0, str(route.scope))
        raise ValueError(
            f"failed to add route '{route.dst} via {via or '<nil>'} dev {ifname} metric {route.priority} "
            f"(Scope: {scope}, Table: {route.table or 0})': {said(error)}"
        ) from error


def check_ips(rtnl: Rtnl, ifname: str, ips: list[Address]) -> None:
    """Whether the interface has these addresses, and their networks are routed. Raises ValueError."""
    for ip in ips:
        link = rtnl.find_link(ifname)
        if link is None:
            raise ValueError(f"Cannot find container link {ifname}")
        if not any(a.cidr == str(ip.address) for a in rtnl.addresses(link.index)):
            raise ValueError(f"Failed to match addr {ip.address} on interface {ifname}")
        if not _find_routes(rtnl, ip.address.canonical, None):
            raise ValueError(f"Failed to find Gateway {ip.gateway or '<nil>'} for interface {ifname}")


def check_routes(rtnl: Rtnl, expected: list[Route]) -> None:
    """Whether these routes are in the main table. Raises ValueError."""
    for route in expected:
        # For a default route the reference plugin compares no gateway, and so must a drop-in replacement.
        gw = None if route.dst.length == 0 else route.gw
        if not _find_routes(rtnl, route.dst.canonical, gw):
            raise ValueError(f"Expected Route {_go_route(route)} not found in routing table")


def _find_routes(rtnl: Rtnl, dst: Prefix, gw: Ip | None) -> bool:
    found = rtnl.routes(table=routes.RT_TABLE_MAIN, family=dst.family)
    return any(r.dst == str(dst) and (gw is None or r.via == str(gw)) for r in found)


def _go_route(route: Route) -> str:
    mask = ((1 << route.dst.ip.bits) - 1) ^ route.dst.host_mask
    dst = f"{{IP:{route.dst.ip} Mask:{mask:0{route.dst.ip.bits // 4}x}}}"
    table = "<nil>" if route.table is None else route.table
    scope = "<nil>" if route.scope is None else route.scope
    return (
        f"{{Dst:{dst} GW:{route.gw or '<nil>'} MTU:{route.mtu} AdvMSS:{route.advmss} "
        f"Priority:{route.priority} Table:{table} Scope:{scope}}}"
    )
