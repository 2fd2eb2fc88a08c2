"""The root file system of a `podwire/host` container: the host's, read-only, with what must be private laid over it.

    /           the host's tree, bound recursively, read-only, nosuid, nodev
    /tmp        the host's, with a private layer over it: a command may lie there, and what is written nobody else sees
    /run        tmpfs of its own
    /dev        tmpfs with null, zero, full, random, urandom, tty, a pts of its own, shm
    /proc       that of its PID namespace; parts that reach the host are read-only or covered, as containers have it
    /sys        read-only, that of its network namespace
    /etc/hosts, /etc/hostname, /etc/resolv.conf       the sandbox's
    what `hidden` names                               covered: the node's credentials are not the pod's business

No writable file system takes device nodes: a container has CAP_MKNOD by default and there is no device cgroup here, so
`mknod /dev/vda` must be of no use. That is why /dev is nodev and its few nodes are bind mounts.

Called in new mount, PID, IPC and UTS namespaces by their first process, with all capabilities. Slim.
"""

from __future__ import annotations

import os
import stat

from podwire.errors import KernelError, MissingCapability, NotFound
from podwire.kernel import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = (
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
)

# What container runtimes cover and protect by default (moby/profiles and containerd's defaults agree).
_COVERED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
_PROTECTED = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_GENERATED = "/run/podwire-etc"  # in the container's own /run: the files that are bound over /etc's

_NOSUID_NODEV = namespaces.MS_NOSUID | namespaces.MS_NODEV
_STRICT = _NOSUID_NODEV | namespaces.MS_NOEXEC

# For mount_setattr(2), which libc does not have
_SYS_MOUNT_SETATTR = 442  # the same on every architecture that got it after unification
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4


def enter(base: str, etc: Mapping[str, str], hidden: Iterable[str]) -> None:
    """Make the file system below the empty folder `base` and make it this process's root.

    `etc` maps paths such as /etc/hosts to the text they shall have.
    """
    namespaces.mount("", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    namespaces.mount("/", base, flags=namespaces.MS_BIND | namespaces.MS_REC)
    _make_readonly(base)
    _mount_dev(f"{base}/dev")
    namespaces.mount("proc", f"{base}/proc", "proc", _STRICT)
    namespaces.mount("sysfs", f"{base}/sys", "sysfs", _STRICT | namespaces.MS_RDONLY)
    _mount_tmp(f"{base}/tmp")  # noqa: S108 - the container's own
    namespaces.mount("tmpfs", f"{base}/run", "tmpfs", _NOSUID_NODEV, "mode=755")
    os.chdir(base)
    namespaces.pivot_root(".", ".")
    namespaces.umount(".", namespaces.MNT_DETACH)
    os.chdir("/")
    for path in _COVERED:
        _cover(path)
    for path in _PROTECTED:
        _protect(path)
    for path in hidden:
        _cover(path)
    for path, text in etc.items():
        _replace(path, text)


def _make_readonly(base: str) -> None:
    import ctypes
    import struct

    wanted = struct.pack("=4Q", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SYS_MOUNT_SETATTR, -100, base.encode(), _AT_RECURSIVE, wanted, ctypes.c_size_t(len(wanted))) != 0:
        error = KernelError.of(ctypes.get_errno(), "making the file system read-only below", base)
        if error.errno == 38:  # ENOSYS
            raise MissingCapability(
                "mount_setattr(2)", answer="the kernel has none", hint="Linux 5.12 or newer is needed"
            )
        raise error


def _mount_tmp(target: str) -> None:
    """A tmpfs that holds the private layer, and over it, out of sight, the overlay of the two."""
    namespaces.mount("tmpfs", target, "tmpfs", _NOSUID_NODEV, "mode=1777")
    upper, work = f"{target}/upper", f"{target}/work"
    os.mkdir(upper)
    os.chmod(upper, 0o1777)  # noqa: S103 - it becomes /tmp
    os.mkdir(work)
    options = f"lowerdir=/tmp,upperdir={upper},workdir={work}"
    namespaces.mount("overlay", target, "overlay", _NOSUID_NODEV, options)


def _mount_dev(dev: str) -> None:
    """The nodes come from the host's /dev, which is still seen by its own path."""
    namespaces.mount("tmpfs", dev, "tmpfs", _NOSUID_NODEV, "mode=755,size=65536k")
    for node in _NODES:
        os.close(os.open(f"{dev}/{node}", os.O_CREAT | os.O_WRONLY, 0o666))
        namespaces.mount(f"/dev/{node}", f"{dev}/{node}", flags=namespaces.MS_BIND)
    for target, name in _LINKS:
        os.symlink(target, f"{dev}/{name}")
    os.mkdir(f"{dev}/pts")
    namespaces.mount("devpts", f"{dev}/pts", "devpts", namespaces.MS_NOSUID, "newinstance,ptmxmode=0666,mode=0620")
    os.mkdir(f"{dev}/shm")
    namespaces.mount("shm", f"{dev}/shm", "tmpfs", _STRICT, "mode=1777,size=65536k")


def _cover(path: str) -> None:
    """Nothing can be read there any more; a path that does not exist needs no covering."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        namespaces.mount("tmpfs", path, "tmpfs", _STRICT | namespaces.MS_RDONLY, "mode=755,size=0")
    else:
        namespaces.mount("/dev/null", path, flags=namespaces.MS_BIND)


def _protect(path: str) -> None:
    try:
        namespaces.mount(path, path, flags=namespaces.MS_BIND)
    except NotFound:
        return
    namespaces.mount("", path, flags=namespaces.MS_BIND | namespaces.MS_REMOUNT | namespaces.MS_RDONLY | _STRICT)


def _replace(path: str, text: str) -> None:
    """Give a file of /etc another content.

    The tree is read-only, so the text is written to /run and bound over the file. /etc/resolv.conf is often a link into
    /run, which is empty here: then what the link names is written.
    """
    target = os.path.realpath(path)
    if target.startswith(("/run/", "/tmp/")):  # noqa: S108 - the container's own
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, text)
    elif os.path.isfile(target):
        os.makedirs(_GENERATED, exist_ok=True)
        source = f"{_GENERATED}/{os.path.basename(path)}"
        _write(source, text)
        namespaces.mount(source, target, flags=namespaces.MS_BIND)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o644)
