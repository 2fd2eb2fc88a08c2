"""Which interface reaches the other nodes, and under which address they reach this one.

flannel's order: each `--iface` (a name or one of its addresses), each `--iface-regex` (its addresses first, then its
name), `--iface-can-reach`, and only if none of these is given the interface with the default route. If something was
asked for and nothing fits, that is an error: another interface than the administrator's would look fine and not work.

The address is the interface's first of each family, in the order of usefulness: global before link-local, permanent before
generated, no deprecated one. `--public-ip` (or the Node's own annotation) is what is published. If the interface has that
address itself, tunnels use it too; if it has not, there is NAT in between and the outer source address is the interface's.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.errors import KernelError, UsageError
from podwire.flanneld.plan import Underlay
from podwire.kernel import ifaddrs, routes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from podwire.flanneld.flags import Options
    from podwire.flanneld.lease import IPAddress
    from podwire.kernel.rtnl import Rtnl

_IFA_F_TEMPORARY = 0x01  # linux/if_addr.h: for IPv6, a privacy address
_IFA_F_DEPRECATED = 0x20


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface with its usable addresses, the most useful first."""

    name: str
    mtu: int
    addresses: tuple[IPAddress, ...]

    def first(self, version: int) -> IPAddress | None:
        """Its best address of one family."""
        return next((address for address in self.addresses if address.version == version), None)


@dataclass(frozen=True, slots=True)
class View:
    """What the choice depends on. `default`: family → the default route's interface; `reach`: that of --iface-can-reach."""

    interfaces: tuple[Interface, ...]
    default: Mapping[int, str]
    reach: str = ""

    def named(self, name: str) -> Interface | None:
        """The interface of a name."""
        return next((interface for interface in self.interfaces if interface.name == name), None)


def look(rtnl: Rtnl, can_reach: str) -> View:
    """Read the view from the kernel."""
    links = rtnl.links()
    names = {link.index: link.name for link in links}
    by_index: dict[int, list[ifaddrs.Address]] = {}
    for address in rtnl.addresses():
        by_index.setdefault(address.index, []).append(address)
    interfaces = tuple(Interface(link.name, link.mtu, _usable(by_index.get(link.index, ()))) for link in links)
    default: dict[int, str] = {}
    for route in rtnl.routes(table=routes.RT_TABLE_MAIN):
        if route.default and route.oif:
            default.setdefault(6 if ":" in route.dst else 4, names.get(route.oif, ""))
    reach = ""
    if can_reach:
        try:
            reach = names.get(rtnl.route_to(str(ipaddress.ip_address(can_reach))).oif, "")
        except ValueError as error:
            raise UsageError("flag", "--iface-can-reach", str(error)) from error
        except KernelError:
            pass  # no way there: no interface fits, which `choose` says
    return View(interfaces, default, reach)


def _usable(found: Iterable[ifaddrs.Address]) -> tuple[IPAddress, ...]:
    usable = []
    for address in found:
        ip = ipaddress.ip_address(address.ip)
        if ip.is_loopback or ip.is_multicast or ip.is_unspecified or address.flags & _IFA_F_DEPRECATED:
            continue
        permanent = bool(address.flags & ifaddrs.IFA_F_PERMANENT)
        usable.append((ip.is_link_local, not permanent, bool(address.flags & _IFA_F_TEMPORARY), ip))
    return tuple(ip for *_, ip in sorted(usable, key=lambda entry: entry[:3]))


def choose(view: View, options: Options, families: Sequence[int], public: Mapping[int, IPAddress | None]) -> Underlay:
    """The underlay for these families. `public`: what the Node's annotations say in place of the flags."""
    interface = _interface(view, options, families)
    local, shown = [], []
    for version in families:
        found = interface.first(version)
        if found is None:
            raise UsageError("using the interface", interface.name, f"it has no IPv{version} address")
        asked = public.get(version) or _flag(options, version)
        local.append(asked if asked in interface.addresses else found)
        shown.append(asked or found)
    return Underlay(interface.name, interface.mtu, tuple(local), tuple(shown))


def _flag(options: Options, version: int) -> IPAddress | None:
    name, text = ("--public-ip", options.public_ip) if version == 4 else ("--public-ipv6", options.public_ipv6)
    if not text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise UsageError("flag", name, str(error)) from error
    if address.version != version:
        raise UsageError("flag", name, f"{text} is no IPv{version} address")
    return address


def _interface(view: View, options: Options, families: Sequence[int]) -> Interface:
    for wanted in options.iface:
        found = view.named(wanted) or _with_address(view, wanted)
        if found:
            return found
    for pattern in options.iface_regex:
        found = _matching(view, pattern, families)
        if found:
            return found
    if options.iface_can_reach:
        found = view.named(view.reach)
        if found:
            return found
    if options.iface or options.iface_regex or options.iface_can_reach:
        there = ", ".join(f"{one.name} ({' '.join(map(str, one.addresses))})" for one in view.interfaces)
        raise UsageError(
            "finding the interface",
            " ".join((*options.iface, *options.iface_regex, options.iface_can_reach)).strip(),
            "none fits",
            f"there are: {there}",
        )
    names = {view.default.get(version, "") for version in families}
    found = view.named(names.pop()) if len(names) == 1 else None
    if found is None:
        raise UsageError(
            "finding the interface", "", "there is no one interface that has the default route", "name it with --iface"
        )
    return found


def _with_address(view: View, text: str) -> Interface | None:
    try:
        wanted = ipaddress.ip_address(text)
    except ValueError:
        return None
    return next((one for one in view.interfaces if wanted in one.addresses), None)


def _matching(view: View, pattern: str, families: Sequence[int]) -> Interface | None:
    """The first interface one of whose addresses (in dual stack: one of each family) matches, else one whose name does."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise UsageError("flag", "--iface-regex", f"{pattern!r}: {error}") from error
    for one in view.interfaces:
        matched = {address.version for address in one.addresses if regex.search(str(address))}
        if matched.issuperset(families):
            return one
    return next((one for one in view.interfaces if regex.search(one.name)), None)
