"""Neighbour and forwarding entries on the wire (rtnetlink(7), RTM_NEWNEIGH; linux/neighbour.h): values ⇄ message bodies.

One message, two tables. Family AF_INET/AF_INET6: which MAC has this IP on this link (ARP, ND). Family AF_BRIDGE: behind
which port, or for a vxlan device with NTF_SELF behind which remote VTEP (`dst`), a MAC is found. flannel writes one of each for
every other node.
"""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from podwire.kernel.links import AF_BRIDGE, mac_bytes, mac_text
from podwire.kernel.wire import attribute, attributes, be16, get_be16, get_u32, u8, u32, unpack

RTM_NEWNEIGH = 28
RTM_DELNEIGH = 29
RTM_GETNEIGH = 30

NDA_DST = 1
NDA_LLADDR = 2
NDA_VLAN = 5
NDA_PORT = 6
NDA_VNI = 7
NDA_IFINDEX = 8
NDA_MASTER = 9
NDA_PROTOCOL = 12

NTF_SELF = 0x02
NTF_MASTER = 0x04
NTF_EXT_LEARNED = 0x10

NUD_REACHABLE = 0x02
NUD_STALE = 0x04
NUD_FAILED = 0x20
NUD_NOARP = 0x40
NUD_PERMANENT = 0x80

_NDMSG = struct.Struct("=BxxxiHBB")  # struct ndmsg: family, ifindex, state, flags, type


class Neighbour:
    """An ARP, ND or forwarding entry of device `index`; for forwarding entries `ip` is the remote VTEP ('' on bridges)."""

    __slots__ = (
        "family",
        "flags",
        "index",
        "ip",
        "mac",
        "master",
        "port",
        "protocol",
        "state",
        "via_index",
        "vlan",
        "vni",
    )

    def __init__(
        self,
        index: int,
        ip: str,
        mac: str,
        *,
        family: int = 0,
        state: int = NUD_PERMANENT,
        flags: int = 0,
        port: int = 0,
        vni: int = 0,
        via_index: int = 0,
        master: int = 0,
        vlan: int = 0,
        protocol: int = 0,
    ) -> None:
        self.index = index
        self.ip = ip
        self.mac = mac
        self.family = family or (AF_INET6 if ":" in ip else AF_INET)
        self.state = state
        self.flags = flags
        self.port = port  # UDP port of the VTEP, 0: the device's
        self.vni = vni  # 0: the device's
        self.via_index = via_index  # device to reach the VTEP by, 0: routing decides
        self.master = master  # the bridge whose table it stands in
        self.vlan = vlan
        self.protocol = protocol  # who wrote it, as rtm_protocol; IP neighbours only

    @property
    def permanent(self) -> bool:
        """Written by somebody, not learned."""
        return bool(self.state & (NUD_PERMANENT | NUD_NOARP))

    def __repr__(self) -> str:
        return f"Neighbour(dev {self.index} {self.mac} {self.ip} state {self.state:#x} flags {self.flags:#x})"


def decode(body: bytes) -> Neighbour:
    """The entry of an RTM_NEWNEIGH message."""
    family, index, state, flags, _ = unpack(_NDMSG, body)
    found = attributes(body, _NDMSG.size)
    raw = found.get(NDA_DST, b"")
    ip = inet_ntop(AF_INET6 if len(raw) == 16 else AF_INET, raw) if len(raw) in (4, 16) else ""
    return Neighbour(
        index,
        ip,
        mac_text(found.get(NDA_LLADDR, b"")),
        family=family,
        state=state,
        flags=flags,
        port=get_be16(found, NDA_PORT),
        vni=get_u32(found, NDA_VNI),
        via_index=get_u32(found, NDA_IFINDEX),
        master=get_u32(found, NDA_MASTER),
        vlan=get_u32(found, NDA_VLAN),
        protocol=get_u32(found, NDA_PROTOCOL),
    )


def encode(entry: Neighbour) -> bytes:
    """Body of RTM_NEWNEIGH and RTM_DELNEIGH."""
    parts = [_NDMSG.pack(entry.family, entry.index, entry.state, entry.flags, 0)]
    if entry.ip:
        parts.append(attribute(NDA_DST, inet_pton(AF_INET6 if ":" in entry.ip else AF_INET, entry.ip)))
    if entry.mac:
        parts.append(attribute(NDA_LLADDR, mac_bytes(entry.mac)))
    if entry.port:
        parts.append(be16(NDA_PORT, entry.port))
    if entry.vni:
        parts.append(u32(NDA_VNI, entry.vni))
    if entry.via_index:
        parts.append(u32(NDA_IFINDEX, entry.via_index))
    if entry.protocol and entry.family != AF_BRIDGE:
        parts.append(u8(NDA_PROTOCOL, entry.protocol))
    return b"".join(parts)


def dump(family: int, index: int = 0) -> bytes:
    """RTM_GETNEIGH of a family, of one device (0: all); strict kernels want the device in different places."""
    if family == AF_BRIDGE:
        return _NDMSG.pack(family, index, 0, 0, 0)
    return _NDMSG.pack(family, 0, 0, 0, 0) + (u32(NDA_IFINDEX, index) if index else b"")
