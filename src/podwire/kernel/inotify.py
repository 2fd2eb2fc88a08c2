"""inotify(7): the kernel tells when something in a directory changes.

A watch follows the inode, not the path: when a directory is removed and made again, its watch is gone (IN_IGNORED) and
says nothing about the new one. Whoever watches a path has to watch its parent too and arm again. Events can be lost when
the queue overflows (IN_Q_OVERFLOW) and are never sent for changes in an overlay's lower layer: they are a hint to look,
not a log.
"""

from __future__ import annotations

import os
import struct

from podwire.errors import KernelError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

# linux/inotify.h
IN_MODIFY = 0x00000002
IN_ATTRIB = 0x00000004
IN_CLOSE_WRITE = 0x00000008
IN_MOVED_FROM = 0x00000040
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_DELETE = 0x00000200
IN_DELETE_SELF = 0x00000400
IN_MOVE_SELF = 0x00000800
IN_Q_OVERFLOW = 0x00004000
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000
IN_NONBLOCK = os.O_NONBLOCK
IN_CLOEXEC = os.O_CLOEXEC

_EVENT = struct.Struct("iIII")  # struct inotify_event: wd, mask, cookie, len; then len bytes of name


class Event:
    """What happened (`mask`, IN_… bits) to the entry `name` of the watched directory `wd`; '' is the directory itself."""

    __slots__ = ("mask", "name", "wd")

    def __init__(self, wd: int, mask: int, name: str) -> None:
        self.wd = wd
        self.mask = mask
        self.name = name

    def __repr__(self) -> str:
        return f"Event(wd={self.wd}, mask={self.mask:#x}, name={self.name!r})"


class Inotify:
    """One inotify instance; `fd` is readable (poll, epoll) when there are events."""

    __slots__ = ("_libc", "fd")

    def __init__(self) -> None:
        import ctypes

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        if self.fd < 0:
            raise KernelError.of(ctypes.get_errno(), "making an inotify instance")

    def add(self, path: str, mask: int) -> int:
        """Watch `path` and return the watch's number; a path whose inode is watched already keeps its number."""
        import ctypes

        wd: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask))
        if wd < 0:
            raise KernelError.of(ctypes.get_errno(), "watching", path)
        return wd

    def remove(self, wd: int) -> None:
        """Stop a watch; one that the kernel has dropped already is no error."""
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[Event]:
        """The events that are waiting, none if there are none."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        return list(_events(data))

    def close(self) -> None:
        """Give back the descriptor and with it all watches."""
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _events(data: bytes) -> list[Event]:
    found = []
    offset = 0
    while offset + _EVENT.size <= len(data):
        wd, mask, _, length = _EVENT.unpack_from(data, offset)
        offset += _EVENT.size
        name = data[offset : offset + length].partition(b"\0")[0]
        offset += length
        found.append(Event(wd, mask, os.fsdecode(name)))
    return found
