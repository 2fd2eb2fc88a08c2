"""The container's network namespace, named by a path (CNI_NETNS), as plugins see it.

`open_sandbox` opens it and makes sure that it is one; a path that leads nowhere is `Vanished`, which for DEL means that
there is nothing left to do. The messages are the reference plugins'.
"""

from __future__ import annotations

import fcntl
import os

from podwire.cni.spec.text import quoted
from podwire.cni.spec.versions import INTERNAL
from podwire.errors import CniError

_NS_GET_NSTYPE = 0xB703  # ioctl_ns(2)
_CLONE_NEWNET = 0x40000000


class Vanished(CniError):
    """There is no file at the namespace's path."""


def open_sandbox(path: str) -> int:
    """An open descriptor of the network namespace at `path`. Raises Vanished, or CniError for what is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        said = os.strerror(error.errno or 0)
        kind = Vanished if isinstance(error, FileNotFoundError) else CniError
        raise kind(INTERNAL, f"failed to Statfs {quoted(path)}: {said[:1].lower()}{said[1:]}") from None
    try:
        if fcntl.ioctl(fd, _NS_GET_NSTYPE) == _CLONE_NEWNET:
            return fd
        wrong = CniError(INTERNAL, f"{quoted(path)} is a namespace, but not a network namespace")
    except OSError:
        wrong = CniError(INTERNAL, f"unknown FS magic on {quoted(path)}: {_magic(path):x}")
    os.close(fd)
    raise wrong


def _magic(path: str) -> int:
    """f_type of statfs(2), for which Python has no call."""
    import ctypes

    buffer = ctypes.create_string_buffer(256)
    ctypes.CDLL(None).statfs(path.encode(), buffer)
    return int.from_bytes(buffer.raw[:4], "little")
