"""The network namespace of a sandbox: a bind mount, no process.

`STATE_DIR/netns/ID` is a file on which the namespace is mounted (as `ip netns` and containerd do). It lives as
long as the mount does: kill -9 of the server changes nothing, and when the node's mount namespace ends, it ends. A
namespace that is still in use by processes after `remove` lives on for them, out of our sight; so processes are
killed first.
"""

from __future__ import annotations

import contextlib
import os

from podwire.errors import KernelError, NotFound
from podwire.kernel import namespaces, rtnl


def create(path: str) -> None:
    """Make a namespace with its loopback up and mount it on `path`. Nothing is left if that fails."""
    fd = namespaces.new_netns()
    try:
        with rtnl.Rtnl(fd) as netlink:
            netlink.set_link(1, up=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o400))
        try:
            namespaces.mount(f"/proc/{os.getpid()}/fd/{fd}", path, flags=namespaces.MS_BIND)
        except KernelError:
            os.unlink(path)
            raise
    finally:
        os.close(fd)


def exists(path: str) -> bool:
    """Whether a network namespace is mounted there: the file alone is left when somebody unmounted it."""
    try:
        return os.stat(path).st_dev == os.stat("/proc/self/ns/net").st_dev
    except FileNotFoundError:
        return False


def remove(path: str) -> None:
    """Unmount and delete; no error if it is gone already."""
    while exists(path):
        try:
            namespaces.umount(path, namespaces.MNT_DETACH)
        except NotFound:
            break
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
