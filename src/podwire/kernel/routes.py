"""Routes on the wire (rtnetlink(7), RTM_NEWROUTE; linux/rtnetlink.h): values ⇄ message bodies.

A route is known by destination, metric, table (and for IPv4 tos); `replace` changes the one that agrees in these.
A route without a gateway is by default of scope link, as ip(8) does it; IPv6 has no scopes. A gateway of another family than the
destination travels as RTA_VIA. Multipath routes are read (first hop in `via`/`oif`, all in `hops`) but not written.
"""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from podwire.kernel.wire import attribute, attributes, get_u32, nested, u32, unpack

RTM_NEWROUTE = 24
RTM_DELROUTE = 25
RTM_GETROUTE = 26

RTA_DST = 1
RTA_OIF = 4
RTA_GATEWAY = 5
RTA_PRIORITY = 6
RTA_PREFSRC = 7
RTA_METRICS = 8
RTA_MULTIPATH = 9
RTA_TABLE = 15
RTA_VIA = 18

RTAX_MTU = 2
RTAX_ADVMSS = 8

RTNH_F_ONLINK = 4
RTM_F_CLONED = 0x200

RT_TABLE_MAIN = 254
RT_TABLE_LOCAL = 255
RTPROT_KERNEL = 2
RTPROT_BOOT = 3
RTPROT_STATIC = 4
RTN_UNICAST = 1
RTN_LOCAL = 2
RTN_BROADCAST = 3
RTN_BLACKHOLE = 6
RTN_UNREACHABLE = 7

SCOPE_UNIVERSE = 0
SCOPE_LINK = 253
SCOPE_HOST = 254
SCOPE_NOWHERE = 255

TYPES = ("unspec", "unicast", "local", "broadcast", "anycast", "multicast", "blackhole", "unreachable", "prohibit")

_RTMSG = struct.Struct("=BBBBBBBBI")  # family, dst_len, src_len, tos, table, protocol, scope, type, flags
_NEXTHOP = struct.Struct("=HBBi")  # struct rtnexthop: len, flags, hops, ifindex


class Route:
    """A route. `dst` is a prefix as text ("0.0.0.0/0" and "::/0" are the defaults), `via` and `src` are '' where absent."""

    __slots__ = (
        "advmss",
        "dst",
        "family",
        "flags",
        "hops",
        "kind",
        "metric",
        "mtu",
        "oif",
        "onlink",
        "protocol",
        "scope",
        "src",
        "table",
        "via",
    )

    def __init__(
        self,
        dst: str,
        *,
        via: str = "",
        oif: int = 0,
        onlink: bool = False,
        src: str = "",
        table: int = RT_TABLE_MAIN,
        protocol: int = RTPROT_BOOT,
        scope: int | None = None,
        metric: int = 0,
        mtu: int = 0,
        advmss: int = 0,
        kind: int = RTN_UNICAST,
        flags: int = 0,
        hops: tuple[tuple[str, int], ...] = (),
    ) -> None:
        self.family = AF_INET6 if ":" in dst else AF_INET
        self.dst = dst if "/" in dst else f"{dst}/{128 if self.family == AF_INET6 else 32}"
        self.via = via
        self.oif = oif
        self.onlink = onlink
        self.src = src
        self.table = table
        self.protocol = protocol
        if scope is None:
            linked = self.family == AF_INET and not via and kind == RTN_UNICAST
            scope = SCOPE_LINK if linked else SCOPE_UNIVERSE
        self.scope = scope
        self.metric = metric
        self.mtu = mtu
        self.advmss = advmss
        self.kind = kind
        self.flags = flags
        self.hops = hops

    @property
    def default(self) -> bool:
        """Whether it matches every destination."""
        return self.dst in ("0.0.0.0/0", "::/0")

    def __repr__(self) -> str:
        words = [f"{TYPES[self.kind]} " if self.kind != RTN_UNICAST and self.kind < len(TYPES) else "", self.dst]
        words += [f" via {self.via}" if self.via else "", f" oif {self.oif}" if self.oif else ""]
        words += [" onlink" if self.onlink else "", f" src {self.src}" if self.src else ""]
        words += [f" metric {self.metric}" if self.metric else "", f" table {self.table} proto {self.protocol}"]
        return f"Route({''.join(words)} scope {self.scope})"


def decode(body: bytes) -> Route:
    """The route of an RTM_NEWROUTE message."""
    family, dst_len, _, _, table, protocol, scope, kind, flags = unpack(_RTMSG, body)
    found = attributes(body, _RTMSG.size)
    anywhere = bytes(16 if family == AF_INET6 else 4)
    via, oif = _gateway(family, found), get_u32(found, RTA_OIF)
    hops = _multipath(family, found.get(RTA_MULTIPATH, b""))
    if hops and not oif:
        via, oif = hops[0]
    metrics = attributes(found.get(RTA_METRICS, b""))
    return Route(
        f"{inet_ntop(family, found.get(RTA_DST, anywhere))}/{dst_len}",
        via=via,
        oif=oif,
        onlink=bool(flags & RTNH_F_ONLINK),
        src=inet_ntop(family, found[RTA_PREFSRC]) if RTA_PREFSRC in found else "",
        table=get_u32(found, RTA_TABLE, table),
        protocol=protocol,
        scope=scope,
        metric=get_u32(found, RTA_PRIORITY),
        mtu=get_u32(metrics, RTAX_MTU),
        advmss=get_u32(metrics, RTAX_ADVMSS),
        kind=kind,
        flags=flags,
        hops=hops,
    )


def _gateway(family: int, found: dict[int, bytes]) -> str:
    if RTA_GATEWAY in found:
        return inet_ntop(family, found[RTA_GATEWAY])
    if RTA_VIA in found:
        other = int.from_bytes(found[RTA_VIA][:2], "little") or int.from_bytes(found[RTA_VIA][:2], "big")
        return inet_ntop(other if other in (AF_INET, AF_INET6) else family, found[RTA_VIA][2:])
    return ""


def _multipath(family: int, data: bytes) -> tuple[tuple[str, int], ...]:
    hops = []
    offset = 0
    while offset + _NEXTHOP.size <= len(data):
        length, _, _, oif = _NEXTHOP.unpack_from(data, offset)
        found = attributes(data[offset + _NEXTHOP.size : offset + length])
        hops.append((_gateway(family, found), oif))
        offset += max((length + 3) & ~3, _NEXTHOP.size)
    return tuple(hops)


def encode(route: Route) -> bytes:
    """Body of RTM_NEWROUTE and RTM_DELROUTE."""
    network, _, length = route.dst.partition("/")
    small_table = route.table if route.table < 256 else 0
    flags = RTNH_F_ONLINK if route.onlink else 0
    head = _RTMSG.pack(route.family, int(length), 0, 0, small_table, route.protocol, route.scope, route.kind, flags)
    parts = [head]
    if length != "0":
        parts.append(attribute(RTA_DST, inet_pton(route.family, network)))
    if route.via:
        family = AF_INET6 if ":" in route.via else AF_INET
        raw = inet_pton(family, route.via)
        if family == route.family:
            parts.append(attribute(RTA_GATEWAY, raw))
        else:
            parts.append(attribute(RTA_VIA, struct.pack("=H", family) + raw))
    if route.oif:
        parts.append(u32(RTA_OIF, route.oif))
    if route.src:
        parts.append(attribute(RTA_PREFSRC, inet_pton(route.family, route.src)))
    if route.metric:
        parts.append(u32(RTA_PRIORITY, route.metric))
    if not small_table:
        parts.append(u32(RTA_TABLE, route.table))
    metrics = [u32(kind, value) for kind, value in ((RTAX_MTU, route.mtu), (RTAX_ADVMSS, route.advmss)) if value]
    if metrics:
        parts.append(nested(RTA_METRICS, *metrics))
    return b"".join(parts)


def dump(*, family: int = 0, table: int = 0, protocol: int = 0, oif: int = 0) -> bytes:
    """RTM_GETROUTE of all routes that agree (0: any); the kernel filters on sockets with strict checking."""
    body = _RTMSG.pack(family, 0, 0, 0, table if table < 256 else 0, protocol, 0, 0, 0)
    if table > 255:
        body += u32(RTA_TABLE, table)
    if oif:
        body += u32(RTA_OIF, oif)
    return body


def lookup(destination: str) -> bytes:
    """RTM_GETROUTE: which way a packet to this address would go (ip route get)."""
    family = AF_INET6 if ":" in destination else AF_INET
    length = 128 if family == AF_INET6 else 32
    return _RTMSG.pack(family, length, 0, 0, 0, 0, 0, 0, 0) + attribute(RTA_DST, inet_pton(family, destination))
