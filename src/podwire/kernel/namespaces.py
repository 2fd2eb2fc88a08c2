"""Linux namespaces and mounts: setns(2), unshare(2), mount(2), pivot_root(2), sethostname(2).

Python 3.11 has none of these in `os`, so they go through libc by ctypes, loaded only when one is called: a CNI plugin
that merely opens a namespace file must not pay for it. `setns` and `unshare`, which every CNI plugin that goes into a container
needs, use `_ctypes`, the C half of ctypes: the Python half takes 2 ms to import and brings nothing to a call with two integers.

A namespace is handled as an open file descriptor on its nsfs inode (namespaces(7)): it keeps the namespace alive, can
be handed over, and two of them are the same namespace when `same()` says so. A network namespace belongs to a thread:
`entered(fd)` moves only the calling thread and always moves it back; if moving back fails the process is of no further
use in either world, so that error is raised and must not be swallowed.
"""

from __future__ import annotations

import os

from podwire.errors import KernelError, NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# linux/mount.h
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MNT_DETACH = 0x2

# CPython's Modules/_ctypes/ctypes.h
_FUNCFLAG_CDECL = 0x1
_FUNCFLAG_USE_ERRNO = 0x8


def _libc() -> Any:
    import ctypes

    # errno must be read from this very call, not from what another thread did meanwhile: use_errno is per thread.
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, doing: str, target: str, *arguments: object) -> None:
    import ctypes

    if getattr(_libc(), name)(*arguments) != 0:
        raise KernelError.of(ctypes.get_errno(), doing, target)


class _Calls:
    """libc's setns and unshare as Python calls that return (result, errno); looked up once."""

    __slots__ = ("setns", "unshare")

    def __init__(self) -> None:
        self.setns = _function("setns")
        self.unshare = _function("unshare")


def _function(name: str) -> Callable[..., tuple[int, int]]:
    """A function of libc that takes and returns C ints."""
    import _ctypes

    class Int(_ctypes._SimpleCData):  # type: ignore[type-arg] # noqa: SLF001 - what ctypes.c_int is: it cannot be subscripted
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _FUNCFLAG_CDECL | _FUNCFLAG_USE_ERRNO
        _restype_ = Int

    program = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # NULL, as dlopen(3) allows and ctypes.CDLL uses it
    function = Function(_ctypes.dlsym(program, name))

    def call(*arguments: int) -> tuple[int, int]:
        result: int = function(*arguments)
        # errno as it was after this very call, not what another thread did meanwhile: use_errno keeps it per thread.
        return result, _ctypes.get_errno() if result else 0

    return call


def _libc_calls() -> _Calls:
    global _calls  # a lookup that always finds the same, remembered
    if _calls is None:
        _calls = _Calls()
    return _calls


_calls: _Calls | None = None


def setns(fd: int, kind: int = 0) -> None:
    """Move the calling thread (for a PID namespace: its future children) into the namespace `fd` stands for.

    `kind` is one CLONE_NEW… that `fd` must be, 0 for any.
    """
    result, number = _libc_calls().setns(fd, kind)
    if result:
        raise KernelError.of(number, "entering the namespace", f"fd {fd}")


def unshare(kinds: int) -> None:
    """Give the calling thread (CLONE_NEWPID: its future children) new namespaces of these kinds."""
    result, number = _libc_calls().unshare(kinds)
    if result:
        raise KernelError.of(number, "making namespaces", f"flags {kinds:#x}")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); a `data` string as the file system wants it (overlay: lowerdir=…,upperdir=…)."""
    _call(
        "mount",
        f"mounting {fstype or source} on",
        target,
        source.encode(),
        target.encode(),
        fstype.encode() or None,
        _ulong(flags),
        data.encode() or None,
    )


def umount(target: str, flags: int = 0) -> None:
    """umount2(2); MNT_DETACH takes it out of sight at once even if it is busy."""
    _call("umount2", "unmounting", target, target.encode(), flags)


def pivot_root(new_root: str, put_old: str) -> None:
    """pivot_root(2): `new_root` becomes /, the old root is seen at `put_old` (which may be the same directory)."""
    import ctypes
    import platform

    number = {"x86_64": 155, "aarch64": 41, "riscv64": 41}.get(platform.machine())
    if number is None:
        raise NotFound(
            "pivoting the root to", new_root, f"the system call number for {platform.machine()} is not known"
        )
    if _libc().syscall(number, new_root.encode(), put_old.encode()) != 0:
        raise KernelError.of(ctypes.get_errno(), "pivoting the root to", new_root)


def sethostname(name: str) -> None:
    """Set the host name of the current UTS namespace."""
    import socket

    socket.sethostname(name)


def _ulong(value: int) -> Any:
    import ctypes

    return ctypes.c_ulong(value)


def open_namespace(path: str) -> int:
    """Open a namespace file (/proc/PID/ns/net, /run/netns/NAME); the caller closes the descriptor."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise KernelError.of(error.errno or 0, "opening the namespace", path) from error


def open_netns(path: str = "") -> int:
    """Open a network namespace by path; without a path, that of the calling thread."""
    return open_namespace(path or f"/proc/{os.getpid()}/task/{_thread_id()}/ns/net")


def _thread_id() -> int:
    import _thread

    return _thread.get_native_id()


def same(one: int, other: int) -> bool:
    """Whether two descriptors stand for one namespace: same nsfs device and inode (namespaces(7))."""
    a, b = os.fstat(one), os.fstat(other)
    return (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)


def new_netns() -> int:
    """Make a network namespace and return its descriptor; the calling thread stays where it is.

    The namespace lives as long as somebody holds the descriptor, a mount of it, or a process in it.
    """
    home = open_netns()
    try:
        unshare(CLONE_NEWNET)
        try:
            return open_netns()
        finally:
            setns(home, CLONE_NEWNET)
    finally:
        os.close(home)


class entered:  # noqa: N801 - reads as what it does: `with entered(fd):`
    """The calling thread is in the network namespace `fd` while the block runs."""

    __slots__ = ("_fd", "_home")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._home = -1

    def __enter__(self) -> None:
        self._home = open_netns()
        try:
            setns(self._fd, CLONE_NEWNET)
        except KernelError:
            os.close(self._home)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            setns(self._home, CLONE_NEWNET)
        finally:
            os.close(self._home)
