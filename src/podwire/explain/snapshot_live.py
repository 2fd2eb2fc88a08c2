"""Read the node that podwire runs on, part by part. A part that cannot be read is noted with the reason and the rest goes on.

The result is the files of a bundle; a Snapshot of the live node is made from them in the same way as from a bundle, so that there is
one way from evidence to picture.
"""

from __future__ import annotations

import glob
import os
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.errors import KernelError, MissingCapability, PodwireError
from podwire.explain import snapshot_kernel as kernel
from podwire.explain import snapshot_parts as parts
from podwire.explain import snapshot_proc as proc
from podwire.explain.snapshot_files import File
from podwire.explain.snapshot_load import bundle
from podwire.kernel import spawn

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.snapshot import Snapshot

_TIMEOUT = 60.0
_MAX_COPY = 256 << 20
_MAX_TREE_FILES = 20_000
_MAX_TREE_FILE = 1 << 20


@dataclass(slots=True)
class Collected:
    """The files of a bundle, and for each part how it was read or why not."""

    node: str
    files: dict[str, bytes] = field(default_factory=dict)
    read: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, file: str, data: bytes, read: str) -> None:
        """A part that was read."""
        self.files[file] = data
        self.read[file] = read

    def manifest(self, when: float) -> dict[str, Any]:
        """What is in the bundle, from where, and what is not."""
        from podwire import __version__

        listed = [{"file": file, "read": how} for file, how in sorted(self.read.items())]
        missing = [{"file": file, "unread": why} for file, why in sorted(self.unread.items())]
        return {
            "format": "podwire bundle 1",
            "node": self.node,
            "collected": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
            "by": f"podwire {__version__}",
            "notes": self.notes,
            "parts": listed + missing,
        }

    def snapshot(self, when: float, origin: str, live: bool) -> Snapshot:
        """The picture of the node that these files show."""
        files = [File(name, data, name) for name, data in self.files.items()]
        return bundle(files, "", self.manifest(when), origin, live)


#: What is read without the program where there is none.
_FALLBACKS: dict[str, tuple[str, Callable[[], str]]] = {
    "net/ip-link.json": ("rtnetlink RTM_GETLINK", kernel.links),
    "net/ip-addr.json": ("rtnetlink RTM_GETADDR", kernel.addresses),
    "net/ip-route.json": ("rtnetlink RTM_GETROUTE", lambda: kernel.routes(4)),
    "net/ip-route6.json": ("rtnetlink RTM_GETROUTE", lambda: kernel.routes(6)),
    "net/ip-rule.json": ("rtnetlink RTM_GETRULE", lambda: kernel.policy_rules(4)),
    "net/ip-rule6.json": ("rtnetlink RTM_GETRULE", lambda: kernel.policy_rules(6)),
    "net/ip-neigh.json": ("rtnetlink RTM_GETNEIGH", kernel.neighbours),
    "net/bridge-fdb.json": ("rtnetlink RTM_GETNEIGH", kernel.fdb),
    "net/conntrack.txt": ("ctnetlink IPCTNL_MSG_CT_GET", lambda: kernel.flows(4)),
    "net/conntrack6.txt": ("ctnetlink IPCTNL_MSG_CT_GET", lambda: kernel.flows(6)),
    "net/ss.txt": ("/proc/net/tcp, tcp6, udp, udp6 and /proc/*/fd", proc.sockets),
}


def collect(kubeconfig: str | None = None, *, runtime_endpoint: str = "", kernel_log: bool = True) -> Collected:
    """Read everything that can be read. `kernel_log` False where this kernel's log is not only this node's."""
    into = Collected(os.uname().nodename)
    for command in parts.COMMANDS:
        _command(into, command)
    for copy in parts.COPIES:
        _attempt(into, copy.file, copy.read, lambda path=copy.path: _file(path, _MAX_COPY))  # type: ignore[misc]  # bound now
    for tree in parts.TREES:
        _tree(into, tree)
    _attempt(into, parts.SYSCTL_FILE, "/proc/sys", _sysctls)
    _attempt(
        into, parts.BINARIES_FILE, f"ls -l {parts.BINARIES_PATH}", lambda: proc.binaries(parts.BINARIES_PATH).encode()
    )
    _attempt(into, parts.PROCESSES_FILE, "/proc/*/cmdline", lambda: proc.processes(parts.PROCESSES).encode())
    _attempt(into, parts.INOTIFY_FILE, "/proc/*/fdinfo", lambda: proc.inotify().encode())
    _attempt(into, parts.NAMESPACES_FILE, "rtnetlink in /proc/*/ns/net", lambda: kernel.namespaces().encode())
    if kernel_log:
        _attempt(into, parts.KERNEL_LOG_FILE, "dmesg", _kernel_log)
    else:
        into.unread[parts.KERNEL_LOG_FILE] = "the kernel's log is the whole machine's, not this node's alone"
    _logs(into)
    if "runtime/crictl-pods.json" not in into.files:
        _runtime(into, runtime_endpoint)
    _kube(into, kubeconfig)
    return into


def _command(into: Collected, command: parts.Command) -> None:
    if command.only_if and not _has_content(command.only_if):
        into.unread[command.file] = f"nothing to read: {command.only_if} is empty or not there"
        return
    try:
        # An environment of its own: no variable of ours may change what a program prints (LANG) or reads.
        done = spawn.run(command.argv, env={"PATH": _path(), "LC_ALL": "C"}, timeout=_TIMEOUT)
    except MissingCapability:
        _fall_back(into, command, f"{command.argv[0]} is not installed")
        return
    except PodwireError as error:
        _fall_back(into, command, str(error))
        return
    said = done.stderr.decode(errors="replace").strip()
    if done.status != 0:
        _fall_back(
            into,
            command,
            f"{command.read}: exit status {done.status}: {said.splitlines()[-1] if said else 'no output'}",
        )
        return
    into.put(command.file, done.stdout, command.read)


def _fall_back(into: Collected, command: parts.Command, reason: str) -> None:
    if command.file not in _FALLBACKS:
        into.unread[command.file] = reason
        return
    how, read = _FALLBACKS[command.file]
    _attempt(into, command.file, how, lambda: read().encode())
    if command.file in into.unread:
        into.unread[command.file] = f"{reason}; {into.unread[command.file]}"


def _attempt(into: Collected, file: str, how: str, read: Callable[[], bytes]) -> None:
    try:
        into.put(file, read(), how)
    except OSError as error:
        into.unread[file] = f"{error.filename or how}: {error.strerror or error}"
    except PodwireError as error:
        into.unread[file] = str(error)


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def _has_content(path: str) -> bool:
    try:
        return bool(_file(path, 4096))
    except OSError:
        return False


def _file(path: str, limit: int) -> bytes:
    with open(path, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise KernelError("reading", path, f"it is longer than {limit >> 20} MiB")
    return data


def _tree(into: Collected, tree: parts.Tree) -> None:
    count = 0
    try:
        os.listdir(tree.path)
    except OSError as error:
        into.unread[tree.file] = f"{tree.path}: {error.strerror}"
        return
    into.read[tree.file] = tree.read
    for folder, inner, names in os.walk(tree.path):
        inner.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            relative = os.path.relpath(full, tree.path)
            count += 1
            if count > _MAX_TREE_FILES:
                into.unread[tree.file] = f"more than {_MAX_TREE_FILES} files: the rest was left out"
                return
            if not os.path.isfile(full):
                continue
            try:
                into.files[tree.file + relative] = _file(full, _MAX_TREE_FILE)
            except (OSError, KernelError) as error:
                into.unread[tree.file + relative] = str(getattr(error, "strerror", None) or error)


def _sysctls() -> bytes:
    lines = []
    for pattern in parts.SYSCTLS:
        found = sorted(glob.glob(f"/proc/sys/{pattern}"))
        if not found and "*" not in pattern:
            lines.append(f"sysctl: cannot stat /proc/sys/{pattern}: No such file or directory")
        for path in found:
            name = path.removeprefix("/proc/sys/")
            try:
                lines.append(f"{name} = {_file(path, 65536).decode().strip()}")
            except OSError as error:
                lines.append(f"# {name}: {error.strerror}")
    return ("\n".join(lines) + "\n").encode()


def _kernel_log() -> bytes:
    done = spawn.run(["dmesg"], env={"PATH": _path(), "LC_ALL": "C"}, timeout=_TIMEOUT).check()
    wanted = re.compile(parts.KERNEL_LOG)
    lines = [line for line in done.stdout.decode(errors="replace").splitlines() if wanted.search(line)]
    return ("\n".join(lines[-2000:]) + "\n").encode() if lines else b""


def _logs(into: Collected) -> None:
    """The ends of flannel's and kube-proxy's logs, where kubelet keeps them."""
    for path in sorted(glob.glob("/var/log/pods/*/*/*.log")):
        folder = path.split("/")[4]
        if not re.search(r"flannel|kube-proxy", folder):
            continue
        name = f"logs/{folder}-{os.path.basename(path)}"
        _attempt(into, name, path, lambda path=path: _tail(path))  # type: ignore[misc]  # bound now


def _tail(path: str, length: int = 1 << 17) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - length))
        return file.read(length)


def _runtime(into: Collected, endpoint: str) -> None:
    from podwire.explain import snapshot_runtime as runtime

    sockets = [endpoint] if endpoint else [path for path in runtime.ENDPOINTS if os.path.exists(path)]
    if not sockets:
        return
    for file, read in (("runtime/crictl-pods.json", runtime.sandboxes), ("runtime/crictl-info.json", runtime.info)):
        before = into.unread.pop(file, "")
        _attempt(into, file, f"CRI at {sockets[0]}", lambda read=read: read(sockets[0]).encode())  # type: ignore[misc]  # bound now
        if file in into.unread and before:
            into.unread[file] = f"{before}; {into.unread[file]}"


def _kube(into: Collected, kubeconfig: str | None) -> None:
    if not kubeconfig:
        for file, _, _ in parts.KUBE:
            into.unread[file] = "no kubeconfig was given"
        return
    from podwire.explain import snapshot_api as api

    for file, data, how, why in api.read(kubeconfig):
        if why:
            into.unread[file] = why
        else:
            into.put(file, data, how)
