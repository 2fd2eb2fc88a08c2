"""What /proc and the file system say: sockets with their processes, the plugins' files, command lines, inotify watches."""

from __future__ import annotations

import glob
import os
import re
import stat
import struct
from _socket import AF_INET, AF_INET6, inet_ntop
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_STATES = {1: "ESTAB", 2: "SYN-SENT", 3: "SYN-RECV", 4: "FIN-WAIT-1", 5: "FIN-WAIT-2", 6: "TIME-WAIT", 7: "UNCONN"}
_STATES |= {8: "CLOSE-WAIT", 9: "LAST-ACK", 10: "LISTEN", 11: "CLOSING"}
#: An argument that is a secret: the value is left out.
_SECRET = re.compile(r"((?:token|password|secret|key-data)[\w-]*[= ])\S+", re.IGNORECASE)


def sockets() -> str:
    """As `ss -H -tuanp`, from /proc/thread-self/net: that of the namespace this thread is in."""
    owners = _owners()
    lines = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        try:
            with open(f"/proc/thread-self/net/{name}") as file:
                rows = file.read().splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for row in rows:
            words = row.split()
            if len(words) < 10:
                continue
            state = _STATES.get(int(words[3], 16), "UNKNOWN")
            owner = owners.get(words[9])
            shown = f' users:(("{owner[1]}",pid={owner[0]},fd={owner[2]}))' if owner else ""
            lines.append(f"{name.rstrip('6')} {state} 0 0 {_endpoint(words[1])} {_endpoint(words[2])}{shown}")
    return "\n".join(lines) + ("\n" if lines else "")


def _endpoint(shown: str) -> str:
    """The kernel prints an address as 32-bit words in the machine's own order."""
    raw, _, port = shown.partition(":")
    words = [int(raw[at : at + 8], 16) for at in range(0, len(raw), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    number = int(port, 16)
    ip = inet_ntop(AF_INET, packed) if len(words) == 1 else f"[{inet_ntop(AF_INET6, packed)}]"
    return f"{ip}:{number or '*'}"


def _owners() -> dict[str, tuple[int, str, str]]:
    """Inode of a socket → a process that has it open."""
    found: dict[str, tuple[int, str, str]] = {}
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue  # it has ended, or is not ours to look at
        if target.startswith("socket:["):
            _, _, pid, _, fd = path.split("/")
            found.setdefault(target[8:-1], (int(pid), _name(pid), fd))
    return found


def _name(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def binaries(folder: str) -> str:
    """As `ls -l`; links that lead nowhere are named at the end."""
    lines, dangling = ["total 0"], []
    for name in sorted(os.listdir(folder)):
        full = os.path.join(folder, name)
        found = os.lstat(full)
        target = f" -> {os.readlink(full)}" if stat.S_ISLNK(found.st_mode) else ""
        lines.append(
            f"{stat.filemode(found.st_mode)} 1 {found.st_uid} {found.st_gid} {found.st_size} - - - {name}{target}"
        )
        if target and not os.path.exists(full):
            dangling.append(f"{name}: dangling")
    return "\n".join([*lines, "dangling: those named below", *dangling]) + "\n"


def processes(names: Iterable[str]) -> str:
    """Lines `pid 12: kube-proxy --config=…` of the programs (and of podwire's subcommands) of these names."""
    wanted = set(names)
    lines = []
    for path in sorted(glob.glob("/proc/[0-9]*/cmdline"), key=lambda path: int(path.split("/")[2])):
        try:
            with open(path, "rb") as file:
                words = file.read().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue
        name = next((os.path.basename(word) for word in words[:5] if os.path.basename(word) in wanted), "")
        if name:
            rest = words[[os.path.basename(word) for word in words].index(name) + 1 :]
            lines.append(f"pid {path.split('/')[2]}: " + _SECRET.sub(r"\1…", " ".join([name, *rest])))
    return "\n".join(lines) + ("\n" if lines else "")


def inotify() -> str:
    """What the container runtimes watch: lines of their /proc/PID/fdinfo."""
    lines = []
    for path in glob.glob("/proc/[0-9]*/fdinfo/*"):
        pid = path.split("/")[2]
        if _name(pid) not in ("containerd", "crio", "dockerd"):
            continue
        try:
            with open(path) as file:
                lines += [line for line in file.read().splitlines() if line.startswith("inotify ")]
        except OSError:
            continue
    return "\n".join(lines) + ("\n" if lines else "")
