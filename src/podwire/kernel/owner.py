"""The marks that everything podwire makes carries from birth, so that it can be listed, repaired and deleted by mark.

    what                 mark
    interfaces           ifalias `podwire:ROLE:…` (ip link show prints it as `alias`)
    routes, neighbours   rtm_protocol 87 (linux/rtnetlink.h leaves 5–255 to user space; 87 is in no rt_protos file we know)
    processes            environment PODWIRE_LAB / PODWIRE_NODE / PODWIRE_COMPONENT, read back from /proc/PID/environ
    lab folders          below LAB_ROOT

Foreign things, which lack the mark, are reported and never touched; never by name pattern, never killed by name.
"""

from __future__ import annotations

import os

ALIAS_PREFIX = "podwire:"
ROUTE_PROTOCOL = 87

ENV_LAB = "PODWIRE_LAB"
ENV_NODE = "PODWIRE_NODE"
ENV_COMPONENT = "PODWIRE_COMPONENT"


def alias(*parts: str) -> str:
    """An interface mark, e.g. alias("lab", "demo", "host") → podwire:lab:demo:host (the kernel keeps 255 bytes)."""
    return (ALIAS_PREFIX + ":".join(parts))[:255]


def alias_parts(text: str) -> list[str] | None:
    """The parts of an interface mark; None for an interface that is not podwire's."""
    if not text.startswith(ALIAS_PREFIX):
        return None
    return text[len(ALIAS_PREFIX) :].split(":")


class MarkedProcess:
    """A process that carries a lab's mark: host pid, start time (clock ticks since boot), node and component."""

    __slots__ = ("component", "lab", "node", "pid", "started")

    def __init__(self, pid: int, started: int, lab: str, node: str, component: str) -> None:
        self.pid = pid
        self.started = started
        self.lab = lab
        self.node = node
        self.component = component

    def __repr__(self) -> str:
        return f"MarkedProcess({self.pid}, {self.lab}/{self.node}/{self.component})"


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; with the pid it names a process for good, since pids are used again."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] == b"Z" else int(fields[19])


def environ_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            raw = file.read()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def marked_processes(lab: str | None = None) -> list[MarkedProcess]:
    """All living processes that carry the mark of `lab` (None: of any lab), by pid."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        pid = int(entry)
        environ = environ_of(pid)
        if ENV_LAB not in environ or (lab is not None and environ[ENV_LAB] != lab):
            continue
        started = start_time(pid)
        if started is not None:
            found.append(
                MarkedProcess(pid, started, environ[ENV_LAB], environ.get(ENV_NODE, ""), environ.get(ENV_COMPONENT, ""))
            )
    return sorted(found, key=lambda process: process.pid)
