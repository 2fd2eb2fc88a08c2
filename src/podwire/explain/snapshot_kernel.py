"""The kernel's own answers, for nodes without iproute2 and conntrack-tools, in the form in which those programs print them.

So there is one reader for both, and a bundle looks the same wherever it was made.
"""

from __future__ import annotations

import glob
import json
import os
import struct
from _socket import AF_INET, AF_INET6, inet_ntop
from typing import Any

from podwire.errors import KernelError
from podwire.kernel import wire
from podwire.kernel.channel import NETLINK_ROUTE, Channel
from podwire.kernel.conntrack import Conntrack
from podwire.kernel.neighbours import NUD_FAILED, NUD_NOARP, NUD_PERMANENT, NUD_REACHABLE, NUD_STALE
from podwire.kernel.routes import TYPES
from podwire.kernel.rtnl import Rtnl

_SCOPES = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_PROTOCOLS = {1: "redirect", 2: "kernel", 3: "boot", 4: "static", 9: "ra", 16: "dhcp", 186: "bgp", 188: "ospf"}
_TABLES = {253: "default", 254: "main", 255: "local"}
_FLAGS = (
    (0x1, "UP"),
    (0x2, "BROADCAST"),
    (0x8, "LOOPBACK"),
    (0x40, "RUNNING"),
    (0x100, "PROMISC"),
    (0x10000, "LOWER_UP"),
)
_STATES = (
    (NUD_PERMANENT, "PERMANENT"),
    (NUD_NOARP, "NOARP"),
    (NUD_REACHABLE, "REACHABLE"),
    (NUD_STALE, "STALE"),
    (NUD_FAILED, "FAILED"),
)
_FAMILIES = {4: AF_INET, 6: AF_INET6}

RTM_GETRULE = 34
# linux/fib_rules.h
_FRA_DST, _FRA_SRC, _FRA_IIFNAME, _FRA_PRIORITY, _FRA_FWMARK = 1, 2, 3, 6, 10
_FRA_TABLE, _FRA_FWMASK, _FRA_OIFNAME = 15, 16, 17
_FR_ACT_TO_TBL = 1
_ACTIONS = {2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
_FIB_RULE_INVERT = 2
_RULE = struct.Struct(
    "=BBBBBBBBI"
)  # struct fib_rule_hdr: family, dst_len, src_len, tos, table, res1, res2, action, flags


def links() -> str:
    """As `ip -d -j link show`."""
    with Rtnl() as rtnl:
        found = rtnl.links()
    names = {link.index: link.name for link in found}
    shown: list[dict[str, Any]] = []
    for link in found:
        info: dict[str, Any] = {"info_kind": link.kind} if link.kind else {}
        if link.vxlan is not None:
            info["info_data"] = {
                "id": link.vxlan.vni,
                "local": link.vxlan.local,
                "port": link.vxlan.port,
                "link": names.get(link.vxlan.link, ""),
                "learning": link.vxlan.learning,
            }
        if link.port is not None:
            info["info_slave_kind"] = "bridge"
            info["info_slave_data"] = {"hairpin": link.port.hairpin, "learning": link.port.learning}
        row: dict[str, Any] = {
            "ifindex": link.index,
            "ifname": link.name,
            "flags": [name for bit, name in _FLAGS if link.flags & bit],
            "mtu": link.mtu,
            "operstate": link.operstate.upper(),
            "address": link.mac,
            "linkinfo": info,
        }
        row |= {"master": names.get(link.master, "")} if link.master else {}
        row |= {"link_index": link.link} if link.link else {}
        row |= {"ifalias": link.alias} if link.alias else {}
        shown.append(row)
    return json.dumps(shown)


def addresses() -> str:
    """As `ip -j addr show`."""
    with Rtnl() as rtnl:
        found, devices = rtnl.addresses(), rtnl.links()
    shown = []
    for link in devices:
        listed = [
            {
                "family": "inet" if one.family == AF_INET else "inet6",
                "local": one.ip,
                "prefixlen": one.length,
                "scope": _SCOPES.get(one.scope, str(one.scope)),
            }
            for one in found
            if one.index == link.index
        ]
        shown.append({"ifindex": link.index, "ifname": link.name, "mtu": link.mtu, "addr_info": listed})
    return json.dumps(shown)


def routes(version: int) -> str:
    """As `ip -j route show table all`."""
    with Rtnl() as rtnl:
        found = rtnl.routes(family=_FAMILIES[version])
        names = {link.index: link.name for link in rtnl.links()}
    shown = []
    for route in found:
        row: dict[str, Any] = {
            "dst": "default" if route.default else route.dst,
            "gateway": route.via,
            "dev": names.get(route.oif, ""),
            "prefsrc": route.src,
            "protocol": _PROTOCOLS.get(route.protocol, str(route.protocol)),
            "flags": ["onlink"] if route.onlink else [],
            "metric": route.metric,
        }
        if route.kind != 1:
            row["type"] = TYPES[route.kind] if route.kind < len(TYPES) else str(route.kind)
        if route.table != 254:
            row["table"] = _TABLES.get(route.table, str(route.table))
        if route.scope:
            row["scope"] = _SCOPES.get(route.scope, str(route.scope))
        if route.hops:
            row["nexthops"] = [{"gateway": via, "dev": names.get(oif, "")} for via, oif in route.hops]
        shown.append(row)
    return json.dumps(shown)


def policy_rules(version: int) -> str:
    """As `ip -j rule show`."""
    family = _FAMILIES[version]
    with Channel(NETLINK_ROUTE) as channel:
        bodies = channel.dump(
            RTM_GETRULE, _RULE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0), doing="listing the routing rules"
        )
    shown = []
    for body in bodies:
        heard, dst_len, src_len, _, table, _, _, action, flags = wire.unpack(_RULE, body)
        if heard != family:
            continue
        found = wire.attributes(body, _RULE.size)
        number = wire.get_u32(found, _FRA_TABLE) or table
        row: dict[str, Any] = {"priority": wire.get_u32(found, _FRA_PRIORITY), "src": "all"}
        if _FRA_SRC in found:
            row |= {"src": inet_ntop(family, found[_FRA_SRC]), "srclen": src_len}
        if _FRA_DST in found:
            row |= {"dst": inet_ntop(family, found[_FRA_DST]), "dstlen": dst_len}
        if _FRA_FWMARK in found:
            row |= {"fwmark": hex(wire.get_u32(found, _FRA_FWMARK)), "fwmask": hex(wire.get_u32(found, _FRA_FWMASK))}
        for kind, name in ((_FRA_IIFNAME, "iif"), (_FRA_OIFNAME, "oif")):
            if kind in found:
                row[name] = wire.get_string(found, kind)
        if flags & _FIB_RULE_INVERT:
            row["not"] = None
        if action == _FR_ACT_TO_TBL:
            row["table"] = _TABLES.get(number, str(number))
        else:
            row["action"] = _ACTIONS.get(action, str(action))
        shown.append(row)
    return json.dumps(shown)


def neighbours() -> str:
    """As `ip -j neigh show`."""
    with Rtnl() as rtnl:
        names = {link.index: link.name for link in rtnl.links()}
        found = [entry for version in _FAMILIES.values() for entry in rtnl.neighbours(family=version)]
    return json.dumps(
        [
            {
                "dst": entry.ip,
                "dev": names.get(entry.index, ""),
                "lladdr": entry.mac,
                "state": [name for bit, name in _STATES if entry.state & bit],
            }
            for entry in found
            if entry.ip and not entry.state & NUD_NOARP  # as `ip neigh`: multicast's entries are nobody's
        ]
    )


def fdb() -> str:
    """As `bridge -j fdb show`."""
    with Rtnl() as rtnl:
        names = {link.index: link.name for link in rtnl.links()}
        found = rtnl.fdb()
    return json.dumps(
        [
            {
                "mac": entry.mac,
                "ifname": names.get(entry.index, ""),
                "dst": entry.ip,
                "state": "permanent" if entry.permanent else "",
                "master": names.get(entry.master, ""),
            }
            for entry in found
        ]
    )


def flows(version: int) -> str:
    """As `conntrack -L`, TCP and UDP; the state of a TCP flow and the timers are not in it."""
    lines = []
    with Conntrack() as table:
        for name, number in (("tcp", 6), ("udp", 17)):
            for flow in table.flows(version, number):
                sides = [
                    f"src={side.source} dst={side.destination} sport={side.source_port} dport={side.destination_port}"
                    for side in (flow.original, flow.reply)
                ]
                lines.append(f"{name}      {number} 0 {' '.join(sides)}")
    return "\n".join(lines) + ("\n" if lines else "")


_MOST_NAMESPACES = 1000


def namespaces() -> str:
    """The devices and addresses in every other network namespace that a process of ours lives in: those of the pods."""
    own = os.stat("/proc/self/ns/net").st_ino
    shown = []
    seen = {own}
    for path in sorted(glob.glob("/proc/[0-9]*/ns/net"), key=lambda path: int(path.split("/")[2])):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue  # it has ended
        try:
            inode = os.fstat(fd).st_ino
            if inode in seen or len(seen) > _MOST_NAMESPACES:
                continue
            seen.add(inode)
            shown.append({"netns": str(inode), "process": _comm(path.split("/")[2]), "links": _inner_links(fd)})
        except KernelError:
            continue  # a namespace that we may not enter tells nothing
        finally:
            os.close(fd)
    return json.dumps(shown)


def _inner_links(fd: int) -> list[dict[str, Any]]:
    with Rtnl(fd) as rtnl:
        found, devices = rtnl.addresses(), rtnl.links()
    return [
        {
            "ifname": link.name,
            "ifindex": link.index,
            "link_index": link.link,
            "mtu": link.mtu,
            "address": link.mac,
            "addresses": [one.ip for one in found if one.index == link.index],
        }
        for link in devices
    ]


def _comm(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""
