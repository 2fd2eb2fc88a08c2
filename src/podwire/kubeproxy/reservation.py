"""NodePorts taken out of the kernel's choice of client ports: net.ipv4.ip_local_reserved_ports.

A client that connects out gets its port from ip_local_port_range. Where that range and the NodePorts overlap, it may get
a NodePort; then a socket cannot hold that number any more, and answers to the client meet the NodePort's rules. A reserved
number is never given out so.

The setting is one list for the whole node. What the administrator has in it stays, and what was added here is recorded in a
file before it is added, so that it can be taken out again by a later process, also when this one is killed at any point:

    administrator's = what is there - what is recorded          there after a sync = administrator's + wanted

The file lies below /run (--state-dir), because a reboot empties the setting as well. Whatever rewrites the setting meanwhile (sysctl --system)
is noticed at the next sync.

All this comes too late for clients that are started at boot before kube-proxy: that is what `drop_in` is for, a file for
/etc/sysctl.d, which is applied before services start. It holds the whole range and what other such files reserve, since
the last file that names a setting wins.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from typing import TYPE_CHECKING

from podwire.errors import KernelError, PodwireError, UsageError
from podwire.kernel import reserved_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

log = logging.getLogger("podwire.kubeproxy")

DROP_IN = "/etc/sysctl.d/99-podwire-node-ports.conf"
NODE_PORT_RANGE = "30000-32767"
# sysctl.d(5), in rising order of weight: of two files with one name the one in the later folder counts.
SYSCTL_FOLDERS = ("/usr/lib/sysctl.d", "/usr/local/lib/sysctl.d", "/run/sysctl.d", "/etc/sysctl.d")


class PortReservation:
    """Keeps the ports it is given reserved in this network namespace. The record of what was added is below `folder`."""

    def __init__(self, folder: str) -> None:
        # Nodes that share a /run (labs, tests) have a namespace each.
        self._path = f"{folder}/reserved-ports.{os.stat('/proc/thread-self/ns/net').st_ino}.json"
        self._said = ""
        self._wanted = frozenset[int]()

    def want(self, ports: Iterable[int]) -> None:
        """Reserve exactly these besides the administrator's. Never raises: a failure is one warning until it changes."""
        self._wanted = frozenset(ports)
        self.check()

    def check(self) -> None:
        """See to it that they still are."""
        try:
            added = self._change(self._wanted)
        except (KernelError, OSError, ValueError) as error:
            if str(error) != self._said:
                log.warning("nodePorts are not reserved from clients", extra={"kv": {"error": str(error)}})
            self._said = str(error)
            return
        self._said = ""
        if added is not None:
            log.info("nodePorts reserved from clients", extra={"kv": {"ports": reserved_ports.spell(added) or "none"}})

    def _change(self, wanted: frozenset[int]) -> frozenset[int] | None:
        """What is added now, if that is a change."""
        there, recorded = reserved_ports.read(), self._recorded()
        administrators = there - recorded
        added = wanted - administrators
        if there == administrators | added and recorded == added:
            return None
        if there != administrators | added:
            self._record(recorded | added)
            reserved_ports.write(administrators | added)
        self._record(added)
        return added

    def undo(self) -> None:
        """Take out what was added, whoever added it, and forget about it. Raises KernelError, OSError."""
        if not os.path.exists(self._path):
            return
        self._change(frozenset())
        os.unlink(self._path)

    def _recorded(self) -> frozenset[int]:
        try:
            with open(self._path, encoding="ascii") as file:
                return reserved_ports.parse(json.load(file)["added"])
        except FileNotFoundError:
            return frozenset()
        except (ValueError, KeyError, TypeError) as error:
            # The file is replaced as a whole, so this is nobody's half-written one. Without it nothing can be taken out.
            log.warning("record of reserved ports not read", extra={"kv": {"file": self._path, "error": repr(error)}})
            return frozenset()

    def _record(self, added: frozenset[int]) -> None:
        if not added and not os.path.exists(self._path):
            return
        os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
        _replace(self._path, json.dumps({"added": reserved_ports.spell(added)}) + "\n")


def undo_reservation(folder: str) -> bool:
    """Take out of the setting what any kube-proxy of ours added to it; False, and logged, if that failed."""
    try:
        PortReservation(folder).undo()
    except (KernelError, OSError, ValueError) as error:
        log.error("reserved nodePorts not given back", extra={"kv": {"error": str(error)}})  # noqa: TRY400 - it says why
        return False
    return True


def _replace(path: str, text: str) -> None:
    """Write the file as a whole or not at all, and durably: what it says must be true after a crash."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def port_range(text: str) -> frozenset[int]:
    """The API server's --service-node-port-range: 30000-32767, or 30000+2767. Raises UsageError."""
    with contextlib.suppress(ValueError):
        first, plus, count = text.partition("+")
        ports = reserved_ports.parse(f"{int(first)}-{int(first) + int(count)}" if plus else text)
        if ports and 0 not in ports:
            return ports
    raise UsageError("--service-node-port-range", repr(text), "is no range of ports", "for example 30000-32767")


def drop_in(ports: frozenset[int], path: str, folders: Sequence[str] = SYSCTL_FOLDERS) -> str:
    """The text of the file `path` for sysctl.d(5): these ports and those that the other files there reserve.

    A file that is read later and says otherwise is named in the log, because it will win.
    """
    others = _settings(path, folders)
    mine = os.path.basename(path)
    effective = frozenset[int]()
    for name, file, value in others:
        try:
            effective = reserved_ports.parse(value)
        except ValueError:
            log.warning("setting not understood", extra={"kv": {"file": file, "value": value}})
            continue
        if name > mine and not ports <= effective:
            log.warning("this file is read later and will win", extra={"kv": {"file": file, "value": value}})
    merged = reserved_ports.spell(ports | effective)
    return (
        "# NodePorts of Kubernetes Services: never given to a client as its port.\n"
        "# Written by podwire kube-proxy --write-sysctl-drop-in; applied at boot, or now with sysctl -p and this file.\n"
        f"{reserved_ports.NAME} = {merged}\n"
    )


def _settings(path: str, folders: Sequence[str]) -> list[tuple[str, str, str]]:
    """(name, file, value) of the other files that set it, in the order in which they are read."""
    chosen: dict[str, str] = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            chosen |= {name: f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".conf")}
    chosen.pop(os.path.basename(path), None)
    found = []
    for name in sorted(chosen):
        try:
            with open(chosen[name], encoding="utf-8", errors="replace") as file:
                lines = file.readlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.strip().lstrip("-").partition("=")
            if key.strip().replace("/", ".") == reserved_ports.NAME:
                found.append((name, chosen[name], value.strip()))
    return found


def write_drop_in(ports: frozenset[int], path: str, folders: Sequence[str] = SYSCTL_FOLDERS) -> None:
    """Write that file. Raises PodwireError."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _replace(path, drop_in(ports, path, folders))
    except OSError as error:
        raise PodwireError("writing the sysctl drop-in", path, error.strerror or str(error)) from error
