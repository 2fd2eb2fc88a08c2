"""Netlink framing (netlink(7)): bytes ⇄ messages and attributes, without a socket.

A netlink datagram is a row of messages, each a 16-byte header and a body padded to 4 bytes. The body is a fixed
struct that belongs to the message type, followed by attributes: a 4-byte header (length, type) and a payload padded to 4
bytes; a payload may again be attributes. What the types and attributes mean is written in links, addresses, routes
and neighbours; here is only their shape.

    ┌ nlmsghdr ─────────────────────┬ body ───────────────────────────┐
    │ len u32 │type u16│flags u16│seq│ struct │ rtattr │ rtattr │ …     │      host byte order, except where the
    │         │        │         │pid│        │ len type payload pad    │      payload says network order (`be16`)
    └───────────────────────────────┴─────────────────────────────────┘

An answer of type NLMSG_ERROR carries a negative errno (0: done as asked) and, when the socket asked for it
(NETLINK_EXT_ACK), attributes with the kernel's own sentence: the *extended ack*. The same attributes may follow the status in
NLMSG_DONE. `ack_of` reads both.

The decoder trusts no length: a message or attribute that reaches beyond its container is a ProtocolError, so that a bug
shows here and not as a wrong route.
"""

from __future__ import annotations

import struct

from podwire.errors import PodwireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

# linux/netlink.h: message types below NLMSG_MIN_TYPE
NLMSG_NOOP = 1
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLMSG_OVERRUN = 4

# linux/netlink.h: flags of nlmsghdr
NLM_F_REQUEST = 0x001
NLM_F_MULTI = 0x002
NLM_F_ACK = 0x004
NLM_F_ECHO = 0x008
NLM_F_DUMP_INTR = 0x010  # the table changed while it was dumped: what was read is no state that ever was
NLM_F_DUMP = 0x300  # ROOT | MATCH
NLM_F_REPLACE = 0x100
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800
NLM_F_CAPPED = 0x100  # in an ack: the request is not repeated behind the error number
NLM_F_ACK_TLVS = 0x200  # in an ack: attributes follow

# linux/netlink.h: struct nlattr.nla_type
NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF

# linux/netlink.h: enum nlmsgerr_attrs
NLMSGERR_ATTR_MSG = 1
NLMSGERR_ATTR_OFFS = 2
NLMSGERR_ATTR_MISS_TYPE = 5

HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
_I32 = struct.Struct("=i")
_U32 = struct.Struct("=I")
_NATIVE: Literal["little", "big"] = "little" if _U32.pack(1)[0] else "big"


class ProtocolError(PodwireError):
    """Bytes that are not netlink: a length that lies, or a body shorter than its struct."""


class Message:
    """One netlink message: `kind` is nlmsg_type, `body` what follows the header, without padding."""

    __slots__ = ("body", "flags", "kind", "pid", "seq")

    def __init__(self, kind: int, flags: int, seq: int, pid: int, body: bytes) -> None:
        self.kind = kind
        self.flags = flags
        self.seq = seq
        self.pid = pid
        self.body = body

    def __repr__(self) -> str:
        return (
            f"Message(kind={self.kind}, flags={self.flags:#x}, seq={self.seq}, pid={self.pid}, {len(self.body)} bytes)"
        )


class Ack:
    """The kernel's verdict on a request: `number` is the positive errno (0: done), `text` its own sentence or ''."""

    __slots__ = ("missing", "number", "offset", "text")

    def __init__(self, number: int, text: str = "", offset: int | None = None, missing: int | None = None) -> None:
        self.number = number
        self.text = text
        self.offset = offset  # where in the request the attribute stands that the kernel objects to
        self.missing = missing  # type of the attribute that the request lacks

    def __repr__(self) -> str:
        return f"Ack({self.number}, {self.text!r}, offset={self.offset}, missing={self.missing})"


def message(kind: int, flags: int, seq: int, body: bytes, pid: int = 0) -> bytes:
    """One message, padded so that another may follow it."""
    length = HEADER.size + len(body)
    return HEADER.pack(length, kind, flags, seq, pid) + body + bytes(-length % 4)


def messages(data: bytes) -> Iterator[Message]:
    """The messages of a datagram."""
    offset, end = 0, len(data)
    while offset < end:
        if end - offset < HEADER.size:
            raise ProtocolError("decoding netlink", answer=f"{end - offset} bytes left, a header has {HEADER.size}")
        length, kind, flags, seq, pid = HEADER.unpack_from(data, offset)
        if length < HEADER.size or offset + length > end:
            raise ProtocolError("decoding netlink", answer=f"message length {length} with {end - offset} bytes left")
        yield Message(kind, flags, seq, pid, data[offset + HEADER.size : offset + length])
        offset += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute with its padding."""
    length = ATTRIBUTE.size + len(payload)
    if length > 0xFFFF:
        raise ProtocolError("encoding netlink", f"attribute {kind}", f"{len(payload)} bytes do not fit")
    return ATTRIBUTE.pack(length, kind) + payload + bytes(-length % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    """An attribute whose payload is attributes (strict kernels want NLA_F_NESTED set)."""
    return attribute(kind | NLA_F_NESTED, b"".join(inner))


def u8(kind: int, value: int) -> bytes:
    """An attribute of one byte."""
    return attribute(kind, bytes((value,)))


def u16(kind: int, value: int) -> bytes:
    """An attribute of two bytes in host order."""
    return attribute(kind, struct.pack("=H", value))


def be16(kind: int, value: int) -> bytes:
    """An attribute of two bytes in network order (ports)."""
    return attribute(kind, struct.pack("!H", value))


def u32(kind: int, value: int) -> bytes:
    """An attribute of four bytes in host order."""
    return attribute(kind, _U32.pack(value))


def i32(kind: int, value: int) -> bytes:
    """An attribute of four bytes in host order, signed (file descriptors)."""
    return attribute(kind, _I32.pack(value))


def string(kind: int, value: str) -> bytes:
    """An attribute of text with its NUL (NLA_NUL_STRING)."""
    return attribute(kind, value.encode() + b"\0")


def attribute_list(data: bytes, offset: int = 0) -> list[tuple[int, bytes]]:
    """Attributes in order, with the flag bits taken off their types."""
    found = []
    end = len(data)
    header = (
        ATTRIBUTE.unpack_from
    )  # a link has sixty attributes: this loop is a tenth of what podwire computes for a pod
    while offset < end:
        if end - offset < 4:
            raise ProtocolError("decoding netlink", answer=f"{end - offset} bytes left, an attribute header has 4")
        length, kind = header(data, offset)
        if length < 4 or offset + length > end:
            raise ProtocolError("decoding netlink", f"attribute {kind}", f"length {length}, {end - offset} bytes left")
        found.append((kind & 0x3FFF, data[offset + 4 : offset + length]))  # NLA_TYPE_MASK
        offset += (length + 3) & ~3
    return found


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Attributes by type; of several of one type the last counts, as in the kernel's nla_parse."""
    return dict(attribute_list(data, offset))


def get_u32(found: dict[int, bytes], kind: int, default: int = 0) -> int:
    """Read a number of 1, 2, 4 or 8 bytes in host order."""
    payload = found.get(kind)
    return default if payload is None else int.from_bytes(payload, _NATIVE)


def get_i32(found: dict[int, bytes], kind: int, default: int = 0) -> int:
    """Read a signed number (namespace ids: -1 is none)."""
    payload = found.get(kind)
    return default if payload is None else int.from_bytes(payload, _NATIVE, signed=True)


def get_be16(found: dict[int, bytes], kind: int, default: int = 0) -> int:
    """Read a number in network order."""
    payload = found.get(kind)
    return default if payload is None else int.from_bytes(payload, "big")


def get_string(found: dict[int, bytes], kind: int, default: str = "") -> str:
    """Read text up to its NUL."""
    payload = found.get(kind)
    return default if payload is None else payload.partition(b"\0")[0].decode(errors="replace")


def unpack(layout: struct.Struct, body: bytes) -> tuple[int, ...]:
    """Read the fixed struct at the start of a body."""
    if len(body) < layout.size:
        raise ProtocolError("decoding netlink", answer=f"a body of {len(body)} bytes, its struct has {layout.size}")
    return layout.unpack_from(body)


def ack_of(reply: Message) -> Ack:
    """The verdict in an NLMSG_ERROR or NLMSG_DONE message."""
    (status,) = unpack(_I32, reply.body) if len(reply.body) >= 4 else (0,)
    offset = 4
    if reply.kind == NLMSG_ERROR:
        # struct nlmsgerr: the error, then the request's header, then (unless capped, and only for errors) its body
        if len(reply.body) < 4 + HEADER.size:
            raise ProtocolError("decoding netlink", "an error message", f"{len(reply.body)} bytes")
        (length,) = _U32.unpack_from(reply.body, 4)
        offset += HEADER.size
        if not reply.flags & NLM_F_CAPPED and status:
            offset = 4 + ((length + 3) & ~3)
    if not reply.flags & NLM_F_ACK_TLVS or offset >= len(reply.body):
        return Ack(-status)
    found = attributes(reply.body, offset)
    return Ack(
        -status,
        get_string(found, NLMSGERR_ATTR_MSG).strip(),
        get_u32(found, NLMSGERR_ATTR_OFFS) if NLMSGERR_ATTR_OFFS in found else None,
        get_u32(found, NLMSGERR_ATTR_MISS_TYPE) if NLMSGERR_ATTR_MISS_TYPE in found else None,
    )
