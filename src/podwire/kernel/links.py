"""Network devices on the wire (rtnetlink(7), RTM_NEWLINK and friends; linux/if_link.h): values ⇄ message bodies.

A `Link` is what the kernel answers; the functions that return bytes are the bodies of requests. The device kinds are
those podwire makes: veth, bridge, vxlan, dummy. Of a vxlan device everything is kept that decides whether an existing one is
the one we want (flannel deletes and makes it again when it is not): VNI, local address, underlying device, port, learning, GBP.
What belongs to bridges and their ports is in bridges.py.
"""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from podwire.kernel.wire import (
    attribute,
    attributes,
    be16,
    get_be16,
    get_i32,
    get_string,
    get_u32,
    i32,
    nested,
    string,
    u8,
    u32,
    unpack,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podwire.kernel.bridges import Port

RTM_NEWLINK = 16
RTM_DELLINK = 17
RTM_GETLINK = 18
RTM_SETLINK = 19

AF_BRIDGE = 7

# linux/if.h
IFF_UP = 0x1
IFF_BROADCAST = 0x2
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40
IFF_PROMISC = 0x100
IFF_ALLMULTI = 0x200

# linux/if_link.h, enum IFLA_*
IFLA_ADDRESS = 1
IFLA_IFNAME = 3
IFLA_MTU = 4
IFLA_LINK = 5
IFLA_MASTER = 10
IFLA_PROTINFO = 12
IFLA_TXQLEN = 13
IFLA_OPERSTATE = 16
IFLA_LINKINFO = 18
IFLA_IFALIAS = 20
IFLA_AF_SPEC = 26
IFLA_GROUP = 27
IFLA_NET_NS_FD = 28
IFLA_EXT_MASK = 29
IFLA_PROMISCUITY = 30
IFLA_LINK_NETNSID = 37
RTEXT_FILTER_SKIP_STATS = 8  # counters are half of a link message and nobody here reads them

IFLA_INFO_KIND = 1
IFLA_INFO_DATA = 2
IFLA_INFO_SLAVE_KIND = 4
IFLA_INFO_SLAVE_DATA = 5

IFLA_INET6_ADDR_GEN_MODE = 8  # inside IFLA_AF_SPEC / AF_INET6
ADDR_GEN_MODE_EUI64 = 0
ADDR_GEN_MODE_NONE = 1

VETH_INFO_PEER = 1

IFLA_VXLAN_ID = 1
IFLA_VXLAN_GROUP = 2
IFLA_VXLAN_LINK = 3
IFLA_VXLAN_LOCAL = 4
IFLA_VXLAN_TTL = 5
IFLA_VXLAN_LEARNING = 7
IFLA_VXLAN_PORT = 15
IFLA_VXLAN_GROUP6 = 16
IFLA_VXLAN_LOCAL6 = 17
IFLA_VXLAN_GBP = 23

OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")

IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change


class Vxlan:
    """The settings of a vxlan device; `link` is the underlying device's index (0: none), ttl 0 is automatic."""

    __slots__ = ("gbp", "group", "learning", "link", "local", "port", "ttl", "vni")

    def __init__(
        self,
        vni: int,
        local: str = "",
        link: int = 0,
        port: int = 8472,
        learning: bool = False,
        ttl: int = 0,
        gbp: bool = False,
        group: str = "",
    ) -> None:
        self.vni = vni
        self.local = local
        self.link = link
        self.port = port
        self.learning = learning
        self.ttl = ttl
        self.gbp = gbp
        self.group = group

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vxlan) and all(getattr(self, f) == getattr(other, f) for f in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # equal by value and mutable

    def __repr__(self) -> str:
        return f"Vxlan({', '.join(f'{f}={getattr(self, f)!r}' for f in self.__slots__)})"


class Link:
    """A network device. `kind` is '' for physical devices and loopback; `link` the index of the device below or the peer."""

    __slots__ = (
        "_data",
        "_port",
        "alias",
        "flags",
        "group",
        "index",
        "kind",
        "link",
        "link_netnsid",
        "mac",
        "master",
        "mtu",
        "name",
        "operstate",
        "promiscuity",
        "txqlen",
        "vxlan",
    )

    def __init__(self, index: int, flags: int, found: dict[int, bytes]) -> None:
        info = attributes(found.get(IFLA_LINKINFO, b""))
        data = attributes(info[IFLA_INFO_DATA]) if IFLA_INFO_DATA in info else {}
        self.index = index
        self.flags = flags
        self.name = get_string(found, IFLA_IFNAME)
        self.kind = get_string(info, IFLA_INFO_KIND)
        self.mac = mac_text(found.get(IFLA_ADDRESS, b""))
        self.mtu = get_u32(found, IFLA_MTU)
        self.master = get_u32(found, IFLA_MASTER)
        self.link = get_u32(found, IFLA_LINK)
        self.link_netnsid = get_i32(found, IFLA_LINK_NETNSID, -1)
        self.alias = get_string(found, IFLA_IFALIAS)
        self.group = get_u32(found, IFLA_GROUP)
        self.txqlen = get_u32(found, IFLA_TXQLEN)
        self.promiscuity = get_u32(found, IFLA_PROMISCUITY)
        state = get_u32(found, IFLA_OPERSTATE)
        self.operstate = OPERSTATES[state] if state < len(OPERSTATES) else str(state)
        self.vxlan = _vxlan(data) if self.kind == "vxlan" else None
        self._data = data
        is_port = get_string(info, IFLA_INFO_SLAVE_KIND) == "bridge"
        self._port = info.get(IFLA_INFO_SLAVE_DATA, b"") if is_port else None

    @property
    def up(self) -> bool:
        """Administratively up (IFF_UP); `operstate` tells whether packets can pass."""
        return bool(self.flags & IFF_UP)

    @property
    def loopback(self) -> bool:
        """Whether it is a loopback device."""
        return bool(self.flags & IFF_LOOPBACK)

    @property
    def port(self) -> Port | None:
        """How it behaves as a port of a bridge; None for what is none."""
        from podwire.kernel import bridges

        return None if self._port is None else bridges.decode_port(self._port)

    @property
    def vlan_filtering(self) -> bool:
        """Whether it is a bridge that keeps VLANs apart."""
        from podwire.kernel import bridges

        return self.kind == "bridge" and bridges.filters_vlans(self._data)

    @property
    def promisc(self) -> bool:
        """Whether somebody asked for promiscuous mode by flag."""
        return bool(self.flags & IFF_PROMISC)

    @property
    def allmulti(self) -> bool:
        """Whether it takes in every multicast packet."""
        return bool(self.flags & IFF_ALLMULTI)

    def __repr__(self) -> str:
        return f"Link({self.index}: {self.name} {self.kind or '-'} {'up' if self.up else 'down'} mtu {self.mtu} {self.mac})"


def mac_text(raw: bytes) -> str:
    """aa:bb:cc:dd:ee:ff, or '' for devices without one."""
    return raw.hex(":") if raw else ""


def mac_bytes(text: str) -> bytes:
    """The bytes of aa:bb:cc:dd:ee:ff (also with dashes); ValueError for anything else."""
    parts = text.replace("-", ":").split(":")
    if len(parts) != 6 or any(len(part) != 2 for part in parts):
        raise ValueError(f"address {text}: invalid MAC address")
    return bytes.fromhex("".join(parts))


def decode(body: bytes) -> Link:
    """The link of an RTM_NEWLINK message."""
    _, _, index, flags, _ = unpack(IFINFO, body)
    return Link(index, flags, attributes(body, IFINFO.size))


def index_of(body: bytes) -> int:
    """Which device a message is about."""
    return unpack(IFINFO, body)[2]


def _vxlan(data: dict[int, bytes]) -> Vxlan:
    def ip(v4: int, v6: int) -> str:
        if v4 in data:
            return inet_ntop(AF_INET, data[v4])
        return inet_ntop(AF_INET6, data[v6]) if v6 in data else ""

    return Vxlan(
        vni=get_u32(data, IFLA_VXLAN_ID),
        local=ip(IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6),
        link=get_u32(data, IFLA_VXLAN_LINK),
        port=get_be16(data, IFLA_VXLAN_PORT),
        learning=get_u32(data, IFLA_VXLAN_LEARNING) != 0,
        ttl=get_u32(data, IFLA_VXLAN_TTL),
        gbp=IFLA_VXLAN_GBP in data,  # a flag: there or not
        group=ip(IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6),
    )


# Bodies of requests.


def query(*, index: int = 0, name: str = "") -> bytes:
    """RTM_GETLINK for one device, by index or by name."""
    mask = u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
    return IFINFO.pack(0, 0, index, 0, 0) + mask + (string(IFLA_IFNAME, name) if name else b"")


def dump(*, master: int = 0, kind: str = "") -> bytes:
    """RTM_GETLINK for all devices, or (the kernel filters) those of a bridge or of a kind."""
    body = IFINFO.pack(0, 0, 0, 0, 0) + u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
    if master:
        body += u32(IFLA_MASTER, master)
    if kind:
        body += nested(IFLA_LINKINFO, string(IFLA_INFO_KIND, kind))
    return body


def delete(index: int) -> bytes:
    """RTM_DELLINK."""
    return IFINFO.pack(0, 0, index, 0, 0)


def create(name: str, kind: str, data: bytes = b"", *, settings: bytes = b"", up: bool = False) -> bytes:
    """RTM_NEWLINK for a new device; `data` are the attributes of IFLA_INFO_DATA, `settings` those of `settings()`."""
    info = string(IFLA_INFO_KIND, kind)
    if data:
        info += nested(IFLA_INFO_DATA, data)
    flags = IFF_UP if up else 0
    return IFINFO.pack(0, 0, 0, flags, flags) + string(IFLA_IFNAME, name) + settings + nested(IFLA_LINKINFO, info)


def change(
    index: int,
    *,
    settings: bytes = b"",
    up: bool | None = None,
    promisc: bool | None = None,
    allmulti: bool | None = None,
) -> bytes:
    """RTM_NEWLINK (without NLM_F_CREATE) for a device that exists: what is None or absent stays as it is."""
    flags = mask = 0
    for wanted, bit in ((up, IFF_UP), (promisc, IFF_PROMISC), (allmulti, IFF_ALLMULTI)):
        if wanted is not None:
            mask |= bit
            flags |= bit if wanted else 0
    return IFINFO.pack(0, 0, index, flags, mask) + settings


def settings(
    *,
    name: str | None = None,
    mtu: int | None = None,
    mac: str | None = None,
    master: int | None = None,
    alias: str | None = None,
    group: int | None = None,
    txqlen: int | None = None,
    netns_fd: int | None = None,
    addrgenmode: int | None = None,
) -> bytes:
    """Attributes that any device may have; mtu 0 and an empty mac mean the kernel's choice, master 0 takes it out."""
    parts = []
    if name is not None:
        parts.append(string(IFLA_IFNAME, name))
    if mtu:
        parts.append(u32(IFLA_MTU, mtu))
    if mac:
        parts.append(attribute(IFLA_ADDRESS, mac_bytes(mac)))
    if master is not None:
        parts.append(u32(IFLA_MASTER, master))
    if alias is not None:
        parts.append(attribute(IFLA_IFALIAS, alias.encode()[:255]))
    if group is not None:
        parts.append(u32(IFLA_GROUP, group))
    if txqlen is not None:
        parts.append(u32(IFLA_TXQLEN, txqlen))
    if netns_fd is not None:
        parts.append(i32(IFLA_NET_NS_FD, netns_fd))
    if addrgenmode is not None:
        parts.append(nested(IFLA_AF_SPEC, nested(AF_INET6, u8(IFLA_INET6_ADDR_GEN_MODE, addrgenmode))))
    return b"".join(parts)


def veth_peer(name: str, peer_settings: bytes, *, up: bool = False) -> bytes:
    """IFLA_INFO_DATA of a veth: the other end, which may be born in another namespace (netns_fd in its settings)."""
    flags = IFF_UP if up else 0
    body = IFINFO.pack(0, 0, 0, flags, flags) + string(IFLA_IFNAME, name) + peer_settings
    return nested(VETH_INFO_PEER, body)


def vxlan_data(wanted: Vxlan) -> bytes:
    """IFLA_INFO_DATA of a vxlan."""
    parts = [u32(IFLA_VXLAN_ID, wanted.vni), be16(IFLA_VXLAN_PORT, wanted.port)]
    parts.append(u8(IFLA_VXLAN_LEARNING, int(wanted.learning)))
    for text, v4, v6 in (
        (wanted.local, IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6),
        (wanted.group, IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6),
    ):
        if text:
            is6 = ":" in text
            parts.append(attribute(v6 if is6 else v4, inet_pton(AF_INET6 if is6 else AF_INET, text)))
    if wanted.link:
        parts.append(u32(IFLA_VXLAN_LINK, wanted.link))
    if wanted.ttl:
        parts.append(u8(IFLA_VXLAN_TTL, wanted.ttl))
    if wanted.gbp:
        parts.append(attribute(IFLA_VXLAN_GBP, b""))
    return b"".join(parts)
