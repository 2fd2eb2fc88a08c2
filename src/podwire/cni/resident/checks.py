"""Who is asking: whether the resident helper may act for a stub, and what of the stub's process the helper must take over.

A stub hands over a descriptor of its /proc/self. Whatever is asked through it is answered for that very process or, once it has ended,
not at all: a process ID that is used again cannot be mistaken for it. The kernel's word on who is connected (SO_PEERCRED) must
name the same process, so that nobody can hand over another's.

    refused unless   root in the helper's own user namespace, with the helper's capabilities and seccomp mode;
                     in the helper's mount, network, user namespace and below its root folder;
                     CNI_NETNS leads to the same file for both
    taken over       environment, working folder, umask, resource limits

Not taken over, because the work is done by another process: cgroup, priority, security label, process and session ID.
"""

from __future__ import annotations

import os

_SAME = ("mnt", "net", "user")
_COMPARED = (b"Uid", b"Gid", b"NoNewPrivs", b"CapEff", b"CapBnd", b"Seccomp")
_LOOK = os.O_PATH | os.O_CLOEXEC


class Refused(Exception):  # not an error: the stub does the work itself
    """The helper must not act for this stub; says why."""


class Process:
    """What is known of a process through a descriptor of its folder in /proc. Raises OSError once it has ended."""

    __slots__ = ("folder", "namespaces", "root", "status", "umask")

    def __init__(self, folder: int) -> None:
        self.folder = folder
        self.namespaces = tuple(self._id(f"ns/{kind}") for kind in _SAME)
        # The path too: a bind mount of / has the same inode, but perhaps not what is mounted below.
        self.root = (os.readlink("root", dir_fd=folder), *self._id("root"))
        status = dict(line.split(b":\t", 1) for line in self.read("status").splitlines() if b":\t" in line)
        self.status = tuple(status.get(key, b"") for key in _COMPARED)
        self.umask = int(status.get(b"Umask", b"022"), 8)

    def _id(self, name: str) -> tuple[int, int]:
        found = os.stat(name, dir_fd=self.folder)
        return found.st_dev, found.st_ino

    def read(self, name: str) -> bytes:
        """A file of it."""
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder)
        try:
            chunks = []
            while chunk := os.read(fd, 1 << 16):
                chunks.append(chunk)
            return b"".join(chunks)
        finally:
            os.close(fd)

    def environment(self) -> dict[str, str]:
        """The environment it was started with; of a name that is there twice the first counts, as for getenv(3)."""
        found: dict[str, str] = {}
        for entry in self.read("environ").split(b"\0"):
            name, equals, value = entry.partition(b"=")
            if equals:
                found.setdefault(os.fsdecode(name), os.fsdecode(value))
        return found

    def enter_folder(self) -> None:
        """Go to its working folder."""
        fd = os.open("cwd", _LOOK | os.O_DIRECTORY, dir_fd=self.folder)
        try:
            os.fchdir(fd)
        finally:
            os.close(fd)


def own() -> Process:
    """This process."""
    return Process(os.open("/proc/self", _LOOK | os.O_DIRECTORY))


def peer(folder: int, pid: int, me: Process) -> Process:
    """The process that is connected as `pid` and handed over `folder`. Raises Refused."""
    try:
        named, handed = os.stat(f"/proc/{pid}"), os.fstat(folder)
        if (named.st_dev, named.st_ino) != (handed.st_dev, handed.st_ino):
            raise Refused("the descriptor handed over is not of the process that is connected")
        found = Process(folder)
    except OSError as error:
        raise Refused(f"cannot look at process {pid}: {error.strerror}") from error
    for kind, its, mine in zip(_SAME, found.namespaces, me.namespaces, strict=True):
        if its != mine:
            raise Refused(f"process {pid} is in another {kind} namespace")
    if found.root != me.root:
        raise Refused(f"process {pid} has another root folder")
    if found.status != me.status:
        raise Refused(f"process {pid} has not the helper's user, capabilities and seccomp mode")
    return found


def check_netns(path: str, handed: int | None) -> None:
    """Whether CNI_NETNS means the same file here as for the stub, which opened it. Raises Refused."""
    try:
        here = os.stat(path) if path else None
    except OSError:
        here = None
    there = os.fstat(handed) if handed is not None else None
    if (here and (here.st_dev, here.st_ino)) != (there and (there.st_dev, there.st_ino)):
        raise Refused(f"{path} is not the same for both")
