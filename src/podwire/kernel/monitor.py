"""Hear of changes: the multicast groups of NETLINK_ROUTE (rtnetlink(7)).

    monitor = Monitor(LINK | NEIGHBOUR | ADDRESS | ROUTE)
    for change in monitor.wait(): …

A message here is a hint, not a truth: whoever acts on one looks at the kernel itself. So only what tells the messages
apart is read: the kind, the device's index, for links the name, for routes the table. When the kernel had to drop
messages, because they came faster than they were read (ENOBUFS), that is a change of kind 0: anything may have changed.
"""

from __future__ import annotations

import errno
import select
import struct
from _socket import AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, socket

from podwire.errors import KernelError
from podwire.kernel import links, neighbours, routes, wire
from podwire.kernel.ifaddrs import RTM_DELADDR, RTM_NEWADDR

# Bits of the old 32-bit group mask (RTMGRP_*, linux/rtnetlink.h), both families together.
LINK = 0x1
NEIGHBOUR = 0x4
ADDRESS = 0x10 | 0x100
ROUTE = 0x40 | 0x400

_IFINFO = struct.Struct("=BxHiII")
_NDMSG = struct.Struct("=BxxxiHBB")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")


class Change:
    """Something changed: `kind` is the RTM_* number (0: messages were lost), `index` the device's (0: none)."""

    __slots__ = ("index", "kind", "name", "table")

    def __init__(self, kind: int, index: int = 0, name: str = "", table: int = 0) -> None:
        self.kind = kind
        self.index = index
        self.name = name
        self.table = table

    def __repr__(self) -> str:
        return f"Change(kind {self.kind}, index {self.index}, name {self.name!r}, table {self.table})"


class Monitor:
    """A subscription in the network namespace of the thread that makes it. Messages wait in the socket until `wait`."""

    __slots__ = ("_sock",)

    def __init__(self, groups: int) -> None:
        try:
            self._sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 0)
            self._sock.bind((0, groups))
        except OSError as error:
            raise KernelError.of(error.errno or 0, "subscribing to rtnetlink") from error

    def fileno(self) -> int:
        """The descriptor, to be polled."""
        return self._sock.fileno()

    def close(self) -> None:
        """End the subscription."""
        self._sock.close()

    def wait(self, timeout: float | None = None) -> list[Change]:
        """The changes of one datagram, waiting for it at most `timeout` seconds; empty when the time is over."""
        if timeout is not None:
            poller = select.poll()
            poller.register(self._sock.fileno(), select.POLLIN)
            if not poller.poll(timeout * 1000):
                return []
        try:
            data = self._sock.recv(1 << 16)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return [Change(0)]
            raise KernelError.of(error.errno or 0, "listening to rtnetlink") from error
        return [change for message in wire.messages(data) if (change := _change(message)) is not None]


def _change(message: wire.Message) -> Change | None:
    kind, body = message.kind, message.body
    if kind in (links.RTM_NEWLINK, links.RTM_DELLINK):
        _, _, index, _, _ = wire.unpack(_IFINFO, body)
        name = wire.get_string(wire.attributes(body, _IFINFO.size), links.IFLA_IFNAME)
        return Change(kind, index, name)
    if kind in (neighbours.RTM_NEWNEIGH, neighbours.RTM_DELNEIGH):
        return Change(kind, wire.unpack(_NDMSG, body)[1])
    if kind in (RTM_NEWADDR, RTM_DELADDR):
        return Change(kind, wire.unpack(_IFADDR, body)[4])
    if kind in (routes.RTM_NEWROUTE, routes.RTM_DELROUTE):
        table = wire.unpack(_RTMSG, body)[4]
        found = wire.attributes(body, _RTMSG.size)
        return Change(kind, wire.get_u32(found, routes.RTA_OIF), table=wire.get_u32(found, routes.RTA_TABLE, table))
    return None
