"""The connection tracking table over ctnetlink: list flows, delete one.

A UDP flow whose translation points to a pod that is gone keeps going there for as long as the client sends, because only the
first packet of a flow meets the nat rules. So whoever takes a backend away deletes its flows.

A flow is deleted by the very bytes of its original tuple, zone and ID that the kernel gave. The ID is a hash over the kernel's
memory address and the tuple, so it tells most newer flows of the same tuple apart, not all. Sources: linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import _socket
import errno

from podwire.errors import KernelError, NotFound
from podwire.kernel import wire
from podwire.kernel.channel import NETLINK_NETFILTER, Channel
from podwire.kernel.netfilter import NFPROTO, nfgenmsg

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

NFNL_SUBSYS_CTNETLINK = 1
IPCTNL_MSG_CT_GET = 1
IPCTNL_MSG_CT_DELETE = 2

CTA_TUPLE_ORIG = 1
CTA_TUPLE_REPLY = 2
CTA_ID = 12
CTA_ZONE = 18
CTA_FILTER = 25
CTA_TUPLE_IP = 1
CTA_TUPLE_PROTO = 2
CTA_IP_SRC = {4: 1, 6: 3}
CTA_IP_DST = {4: 2, 6: 4}
CTA_PROTO_NUM = 1
CTA_PROTO_SRC_PORT = 2
CTA_PROTO_DST_PORT = 3
CTA_FILTER_ORIG_FLAGS = 1
CTA_FILTER_REPLY_FLAGS = 2
_FILTER_PROTO_NUM = 1 << 3  # net/netfilter/nf_conntrack_netlink.c: CTA_FILTER_F_CTA_PROTO_NUM

UDP = _socket.IPPROTO_UDP

_HEADER = 4  # nfgenmsg


class Tuple:
    """One direction of a flow. Ports are 0 for protocols that have none."""

    __slots__ = ("destination", "destination_port", "source", "source_port")

    def __init__(self, source: str, source_port: int, destination: str, destination_port: int) -> None:
        self.source = source
        self.source_port = source_port
        self.destination = destination
        self.destination_port = destination_port

    def __repr__(self) -> str:
        return f"{self.source}:{self.source_port}->{self.destination}:{self.destination_port}"


class Flow:
    """A tracked flow: `original` as the client sent it, `reply` as answers come (its source is the real backend)."""

    __slots__ = ("_identity", "original", "protocol", "reply", "version")

    def __init__(self, version: int, protocol: int, original: Tuple, reply: Tuple, identity: bytes) -> None:
        self.version = version
        self.protocol = protocol
        self.original = original
        self.reply = reply
        self._identity = identity

    def __repr__(self) -> str:
        return f"Flow({self.protocol}, {self.original!r}, reply {self.reply!r})"

    @property
    def identity(self) -> bytes:
        """The attributes that name this flow."""
        return self._identity


class Conntrack:
    """The table of one network namespace."""

    __slots__ = ("_channel",)

    def __init__(self, netns_fd: int | None = None) -> None:
        self._channel = Channel(NETLINK_NETFILTER, netns_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def flows(self, version: int, protocol: int) -> list[Flow]:
        """The flows of an IP version and a layer 4 protocol. Raises KernelError."""
        kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET
        header = nfgenmsg(NFPROTO[version])
        doing = "listing the connection tracking table"
        try:
            bodies = self._channel.dump(kind, header + _only(protocol), doing=doing)
        except KernelError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            bodies = self._channel.dump(kind, header, doing=doing)  # before Linux 5.8: no filter, all of it comes
        found = [_flow(version, body) for body in bodies]
        return [flow for flow in found if flow is not None and flow.protocol == protocol]

    def delete(self, flow: Flow) -> bool:
        """Delete the flow; False if it was gone. Raises KernelError."""
        kind = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE
        body = nfgenmsg(NFPROTO[flow.version]) + flow.identity
        try:
            self._channel.request(kind, body, doing="deleting the tracked flow", target=repr(flow.original))
        except NotFound:
            return False
        return True


def _only(protocol: int) -> bytes:
    """Attributes that make the kernel send only flows of this protocol."""
    number = wire.u8(CTA_PROTO_NUM, protocol)
    flags = wire.u32(CTA_FILTER_ORIG_FLAGS, _FILTER_PROTO_NUM) + wire.u32(CTA_FILTER_REPLY_FLAGS, 0)
    return wire.nested(CTA_FILTER, flags) + wire.nested(CTA_TUPLE_ORIG, wire.nested(CTA_TUPLE_PROTO, number))


def _flow(version: int, body: bytes) -> Flow | None:
    found = wire.attributes(body, _HEADER)
    original, reply = found.get(CTA_TUPLE_ORIG), found.get(CTA_TUPLE_REPLY)
    if original is None or reply is None:
        return None
    protocol, forward = _tuple(version, original)
    _, backward = _tuple(version, reply)
    identity = wire.nested(CTA_TUPLE_ORIG, original)
    for kind in (CTA_ZONE, CTA_ID):
        if kind in found:
            identity += wire.attribute(kind, found[kind])
    return Flow(version, protocol, forward, backward, identity)


def _tuple(version: int, data: bytes) -> tuple[int, Tuple]:
    parts = wire.attributes(data)
    ip = wire.attributes(parts.get(CTA_TUPLE_IP, b""))
    proto = wire.attributes(parts.get(CTA_TUPLE_PROTO, b""))
    source, destination = (_address(ip.get(kinds[version], b"")) for kinds in (CTA_IP_SRC, CTA_IP_DST))
    ports = (wire.get_be16(proto, kind) for kind in (CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT))
    source_port, destination_port = ports
    number = proto.get(CTA_PROTO_NUM, b"\0")[0]
    return number, Tuple(source, source_port, destination, destination_port)


def _address(raw: bytes) -> str:
    if len(raw) == 4:
        return _socket.inet_ntop(_socket.AF_INET, raw)
    return _socket.inet_ntop(_socket.AF_INET6, raw) if len(raw) == 16 else ""
