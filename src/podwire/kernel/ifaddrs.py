"""Addresses of devices on the wire (rtnetlink(7), RTM_NEWADDR; linux/if_addr.h): values ⇄ message bodies.

For IPv4 IFA_LOCAL is the address itself and IFA_ADDRESS that of the other end (the same except on point-to-point links);
for IPv6 only IFA_ADDRESS is sent. IFA_FLAGS (32 bits) replaces the header's 8 bits.
"""

from __future__ import annotations

import struct
from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from podwire.kernel.wire import attribute, attributes, get_string, get_u32, u32, unpack

RTM_NEWADDR = 20
RTM_DELADDR = 21
RTM_GETADDR = 22

IFA_ADDRESS = 1
IFA_LOCAL = 2
IFA_LABEL = 3
IFA_BROADCAST = 4
IFA_FLAGS = 8

IFA_F_NODAD = 0x02
IFA_F_DADFAILED = 0x08
IFA_F_TENTATIVE = 0x40
IFA_F_PERMANENT = 0x80
IFA_F_NOPREFIXROUTE = 0x200

RT_SCOPE_UNIVERSE = 0
RT_SCOPE_LINK = 253
RT_SCOPE_HOST = 254

_IFADDR = struct.Struct("=BBBBI")  # struct ifaddrmsg: family, prefixlen, flags, scope, index


class Address:
    """An address of a device: `ip` as text, prefix `length`, `scope` and IFA_F_* `flags`."""

    __slots__ = ("broadcast", "family", "flags", "index", "ip", "label", "length", "scope")

    def __init__(
        self, index: int, ip: str, length: int, *, scope: int = 0, flags: int = 0, broadcast: str = "", label: str = ""
    ) -> None:
        self.index = index
        self.ip = ip
        self.length = length
        self.family = AF_INET6 if ":" in ip else AF_INET
        self.scope = scope
        self.flags = flags
        self.broadcast = broadcast
        self.label = label

    @property
    def cidr(self) -> str:
        """As ip(8) shows it: 10.244.1.1/24."""
        return f"{self.ip}/{self.length}"

    @property
    def tentative(self) -> bool:
        """Duplicate address detection has not ended: nothing may be sent from it yet."""
        return bool(self.flags & IFA_F_TENTATIVE)

    @property
    def dad_failed(self) -> bool:
        """Somebody else on the link has it."""
        return bool(self.flags & IFA_F_DADFAILED)

    @property
    def link_local(self) -> bool:
        """An address that the kernel may have given itself (fe80::/10)."""
        return self.scope == RT_SCOPE_LINK

    def __repr__(self) -> str:
        return f"Address({self.cidr} dev {self.index} flags {self.flags:#x})"


def decode(body: bytes) -> Address:
    """The address of an RTM_NEWADDR message."""
    family, length, flags, scope, index = unpack(_IFADDR, body)
    found = attributes(body, _IFADDR.size)
    raw = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS, b"")
    return Address(
        index,
        inet_ntop(family, raw),
        length,
        scope=scope,
        flags=get_u32(found, IFA_FLAGS, flags),
        broadcast=inet_ntop(AF_INET, found[IFA_BROADCAST]) if IFA_BROADCAST in found else "",
        label=get_string(found, IFA_LABEL),
    )


def encode(address: Address) -> bytes:
    """Body of RTM_NEWADDR and RTM_DELADDR."""
    raw = inet_pton(address.family, address.ip)
    body = _IFADDR.pack(address.family, address.length, address.flags & 0xFF, address.scope, address.index)
    if address.family == AF_INET:
        body += attribute(IFA_LOCAL, raw)
    body += attribute(IFA_ADDRESS, raw)
    if address.broadcast:
        body += attribute(IFA_BROADCAST, inet_pton(AF_INET, address.broadcast))
    if address.flags:
        body += u32(IFA_FLAGS, address.flags)
    return body


def dump(family: int = 0, index: int = 0) -> bytes:
    """RTM_GETADDR of a family and a device (0: all)."""
    return _IFADDR.pack(family, 0, 0, 0, index)
