"""A netlink socket: send a request, read its answer to the end, and say clearly what the kernel refused.

A netlink socket belongs for life to the network namespace it was opened in, whichever namespace the thread is in later:
`Channel(protocol, netns_fd)` enters, opens and comes back, so that one thread can hold a channel to each of several
namespaces.

Rules that hold here:

* One request at a time and its answer is read to the end, so nothing of one request can be taken for another's answer.
* What the kernel refuses is a KernelError of the right class, with the kernel's own sentence (extended ack) in it.
* Strict checking is asked for, so that the kernel filters dumps and refuses what it does not understand. Kernels before
  4.20 ignore the filters; therefore whoever dumps applies every filter again.
* A dump that the kernel marks as interrupted is a mix of two states: it is thrown away and asked for again.
* EINTR never shows: Python's socket calls restart (PEP 475).

`_socket` is the C half of `socket`, which spends 3 to 10 ms at import for enum classes: too much for a plugin.
"""

from __future__ import annotations

import _socket
import errno
import struct

from podwire.errors import Busy, KernelError
from podwire.kernel import wire
from podwire.kernel.wire import NLM_F_ACK, NLM_F_DUMP, NLM_F_ECHO, NLM_F_REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

SOL_NETLINK = 270
NETLINK_CAP_ACK = 10
NETLINK_EXT_ACK = 11
NETLINK_GET_STRICT_CHK = 12

_DUMP_TRIES = 32
_SECOND = struct.pack("@ll", 1, 0)  # struct timeval


class Channel:
    """A netlink socket of one protocol and one network namespace. Not for several threads at once."""

    __slots__ = ("_seq", "_sock", "strict")

    def __init__(self, protocol: int, netns_fd: int | None = None) -> None:
        if netns_fd is None:
            self._sock = _open(protocol)
        else:
            from podwire.kernel.namespaces import entered

            with entered(netns_fd):
                self._sock = _open(protocol)
        self._seq = 0
        self.strict = True
        for option in (NETLINK_EXT_ACK, NETLINK_CAP_ACK, NETLINK_GET_STRICT_CHK):
            try:
                self._sock.setsockopt(SOL_NETLINK, option, 1)
            except OSError:  # ENOPROTOOPT: a kernel that has not got it; answers are then only less telling
                self.strict = self.strict and option != NETLINK_GET_STRICT_CHK

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def request(self, kind: int, body: bytes, flags: int = 0, *, doing: str, target: str = "") -> list[wire.Message]:
        """Send one request and return what the kernel sent before its acknowledgement. Raises KernelError."""
        self._seq += 1
        self._send(wire.message(kind, flags | NLM_F_REQUEST | NLM_F_ACK, self._seq, body), doing, target)
        replies: list[wire.Message] = []
        while True:
            for reply in wire.messages(self._receive(doing, target)):
                if reply.seq != self._seq:
                    continue
                if reply.kind == wire.NLMSG_ERROR:
                    ack = wire.ack_of(reply)
                    if ack.number:
                        raise KernelError.of(ack.number, doing, target, answer=ack.text)
                    return replies
                replies.append(reply)

    def request_together(self, parts: list[tuple[int, bytes, int]]) -> list[wire.Ack]:
        """Send several requests (kind, body, flags) in one system call; how each ended, in their order.

        The kernel carries all of them out, one after the other, before a signal is looked at: whoever is killed has done all
        of it or nothing. It does not stop at one that fails.
        """
        first = self._seq + 1
        self._seq += len(parts)
        data = b"".join(
            wire.message(kind, flags | NLM_F_REQUEST | NLM_F_ACK, first + at, body)
            for at, (kind, body, flags) in enumerate(parts)
        )
        self._send(data, "sending requests", "")
        ended: dict[int, wire.Ack] = {}
        while len(ended) < len(parts):
            for reply in wire.messages(self._receive("reading answers", "")):
                if reply.kind == wire.NLMSG_ERROR and first <= reply.seq <= self._seq:
                    ended[reply.seq] = wire.ack_of(reply)
        return [ended[seq] for seq in sorted(ended)]

    def request_ahead(
        self, kind: int, body: bytes, told: Callable[[wire.Message], bool], *, doing: str, target: str = ""
    ) -> None:
        """Send a request from a thread; returns at the echo of a change for which `told` is true. Raises KernelError.

        For requests in which the kernel makes a change, tells everybody (and, by NLM_F_ECHO, whoever asked), and only then
        waits for long before it acknowledges. A kernel that does not echo is waited for. The channel is of no use afterwards, but to
        be closed: the acknowledgement is still to come.
        """
        import _thread
        import os

        # Echoes of changes in another namespace reach the socket of the same port there: it must not take them for an answer.
        seq = 1 << 31 | int.from_bytes(os.urandom(3), "big")
        data = wire.message(kind, NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO, seq, body)
        self._sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVTIMEO, _SECOND)
        failed: list[int] = []
        # A descriptor of the thread's own: this one may be closed, and its number be another file's, while the thread still sends.
        _thread.start_new_thread(_write, (os.dup(self._sock.fileno()), data, failed))
        while True:
            try:
                found = self._receive(doing, target)
            except KernelError as error:
                if error.errno != errno.EAGAIN:
                    raise
                if failed:
                    raise KernelError.of(failed[0], doing, target) from None
                continue
            for reply in wire.messages(found):
                if reply.seq != seq:
                    continue
                if reply.kind == wire.NLMSG_ERROR:
                    ack = wire.ack_of(reply)
                    if ack.number:
                        raise KernelError.of(ack.number, doing, target, answer=ack.text)
                    return
                if told(reply):
                    return

    def dump(self, kind: int, body: bytes, *, doing: str) -> list[bytes]:
        """The bodies of all messages of a dump, read again as often as it was interrupted by a change."""
        for _ in range(_DUMP_TRIES):
            bodies, whole = self._dump_once(kind, body, doing)
            if whole:
                return bodies
        raise Busy(doing, answer=f"the table changed during each of {_DUMP_TRIES} dumps", number=4)

    def _dump_once(self, kind: int, body: bytes, doing: str) -> tuple[list[bytes], bool]:
        self._seq += 1
        self._send(wire.message(kind, NLM_F_REQUEST | NLM_F_DUMP, self._seq, body), doing, "")
        bodies: list[bytes] = []
        whole = True
        while True:
            for reply in wire.messages(self._receive(doing, "")):
                if reply.seq != self._seq:
                    continue
                whole = whole and not reply.flags & wire.NLM_F_DUMP_INTR
                if reply.kind in (wire.NLMSG_DONE, wire.NLMSG_ERROR):
                    ack = wire.ack_of(reply)
                    if ack.number:
                        raise KernelError.of(ack.number, doing, answer=ack.text)
                    return bodies, whole
                bodies.append(reply.body)

    def _send(self, data: bytes, doing: str, target: str) -> None:
        try:
            self._sock.send(data)
        except OSError as error:
            raise KernelError.of(error.errno or 0, doing, target) from error

    def _receive(self, doing: str, target: str) -> bytes:
        try:
            # 64 KiB: the kernel builds dump datagrams of at most 32 KiB, and single messages stay far below that.
            data, _, flags, _ = self._sock.recvmsg(1 << 16)
        except OSError as error:
            raise KernelError.of(error.errno or 0, doing, target) from error
        if flags & _socket.MSG_TRUNC:
            raise wire.ProtocolError(doing, target, "the answer is longer than 64 KiB")
        return data


def _write(fd: int, data: bytes, failed: list[int]) -> None:
    """The thread of `request_ahead`."""
    import os

    try:
        os.write(fd, data)
    except OSError as error:
        failed.append(error.errno or 0)
    finally:
        os.close(fd)


def _open(protocol: int) -> _socket.socket:
    try:
        sock = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, protocol)
        sock.bind((0, 0))
    except OSError as error:
        raise KernelError.of(error.errno or 0, "opening a netlink socket") from error
    return sock
