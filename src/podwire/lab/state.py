"""A lab's folder: what it is, where its machines' upper layers and logs are, and which processes were started.

    ROOT/NAME/                 0700; locked (flock) while up, down, start or stop are at work
        lab.json               the topology and what `up` did to the host
        kubeconfig             0600
        machines/MACHINE/
            holder.json        pid and start time of the process that holds the machine's namespaces
            etc, opt, var-lib  overlay layers (upper, work)
            logs/COMPONENT.log
            components/COMPONENT.json   how it is started; pid and start time when it was

ROOT is /run/podwire/lab: a lab lives in namespaces, which a reboot ends, and so does /run. Records are written to a
temporary file and renamed, so that a reader sees the old or the new one. A pid is only believed together with the
process's start time.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

from podwire.errors import MissingCapability, PodwireError, UsageError
from podwire.kernel import owner
from podwire.lab.topology import Machine, Topology

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = "/run/podwire/lab"


@dataclass(slots=True)
class Process:
    """A process by pid and start time; both are needed, since pids are used again."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether that very process still runs."""
        return owner.start_time(self.pid) == self.started

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has this pid now."""
        return cls(pid, owner.start_time(pid) or 0)


@dataclass(slots=True)
class Component:
    """One daemon of one machine: how it is started, and the process, if it was."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    process: Process | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs now."""
        return self.process is not None and self.process.alive


class Folder:
    """The folder of one lab."""

    def __init__(self, name: str, root: str = ROOT) -> None:
        self.name = name
        self.root = root
        self.path = f"{root}/{name}"

    @property
    def exists(self) -> bool:
        """Whether there is such a folder (the lab may be up, coming, going or crashed)."""
        return os.path.isdir(self.path)

    @property
    def kubeconfig(self) -> str:
        """The kubeconfig for the host's kubectl."""
        return f"{self.path}/kubeconfig"

    def create(self) -> None:
        """Make the folder; UsageError if it is there already."""
        while True:
            os.makedirs(self.root, mode=0o755, exist_ok=True)
            try:
                os.mkdir(self.path, 0o700)
            except FileNotFoundError:
                continue  # the `down` of the last other lab has just removed ROOT
            except FileExistsError as error:
                raise UsageError(
                    f"lab {self.name} exists already",
                    hint=f"podwire status --name {self.name}, or podwire down --name {self.name} first",
                ) from error
            return

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock of all labs, for what one lab's `up` must do to the host before another's may look.

        It is on ROOT, which cannot go while this lab's folder is in it. Held for a moment only, so it is waited for.
        """
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lab's lock; a second up, down, start or stop waits up to a minute for its turn.

        The lock is on the folder itself, so that there is no lock file to leave behind. When the one waited for was
        `down`, the folder is gone afterwards, and UsageError says so.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise UsageError(f"there is no lab {self.name}", hint="podwire up makes one") from error
        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        raise PodwireError(
                            "waiting for", f"lab {self.name}", "another podwire is at work on it"
                        ) from error
                    time.sleep(0.1)
            if os.fstat(fd).st_nlink == 0:
                raise UsageError(f"lab {self.name} has just been taken down")
            yield
        finally:
            os.close(fd)

    # -- the machines' places ------------------------------------------------------------------------------------

    def machine_path(self, machine: str) -> str:
        """The folder of one machine."""
        return f"{self.path}/machines/{machine}"

    def log_path(self, machine: str, component: str) -> str:
        """Where a component's standard output and error go."""
        return f"{self.machine_path(machine)}/logs/{component}.log"

    def upper(self, machine: str, inside: str) -> str:
        """Where a file that a machine wrote below /etc, /opt or /var/lib lies for the host to read."""
        for mount, layer in LAYERS.items():
            if inside.startswith(mount + "/"):
                return f"{self.machine_path(machine)}/{layer}/upper{inside[len(mount) :]}"
        raise ValueError(inside)

    # -- records ---------------------------------------------------------------------------------------------------

    def write_topology(self, topology: Topology, host: dict[str, Any]) -> None:
        """Keep what the lab is and what was done to the host for it."""
        record = {
            "topology": {
                "name": topology.name,
                "underlay": str(topology.underlay),
                "clusterCIDR": str(topology.cluster_cidr),
                "serviceCIDR": str(topology.service_cidr),
                "controlPlane": {"name": topology.control_plane.name, "address": str(topology.control_plane.address)},
                "nodes": [{"name": node.name, "address": str(node.address)} for node in topology.nodes],
            },
            "host": host,
        }
        self.write_record(record)

    def write_record(self, record: dict[str, Any]) -> None:
        """Write lab.json."""
        write_json(f"{self.path}/lab.json", record)

    def read_record(self) -> dict[str, Any]:
        """lab.json; empty when there is none (a crash in the first moment of `up`)."""
        return read_json(f"{self.path}/lab.json") or {}

    def topology(self) -> Topology:
        """What the lab is. Raises UsageError when there is no such lab."""
        record = self.read_record().get("topology")
        if record is None:
            raise UsageError(f"there is no lab {self.name}", hint="podwire up makes one; podwire status lists them")

        def machine(value: dict[str, str]) -> Machine:
            return Machine(value["name"], IPv4Address(value["address"]))

        return Topology(
            record["name"],
            IPv4Network(record["underlay"]),
            IPv4Network(record["clusterCIDR"]),
            IPv4Network(record["serviceCIDR"]),
            machine(record["controlPlane"]),
            tuple(machine(node) for node in record["nodes"]),
        )

    def write_holder(self, machine: str, process: Process) -> None:
        """Keep which process holds a machine."""
        write_json(f"{self.machine_path(machine)}/holder.json", asdict(process))

    def holder(self, machine: str) -> Process | None:
        """The process that holds a machine, whether or not it lives."""
        record = read_json(f"{self.machine_path(machine)}/holder.json")
        return None if record is None else Process(**record)

    def write_component(self, machine: str, component: Component) -> None:
        """Keep how a component is started and which process it is."""
        write_json(f"{self.machine_path(machine)}/components/{component.name}.json", asdict(component))

    def component(self, machine: str, name: str) -> Component:
        """Look a component up. Raises UsageError that names those there are."""
        for component in self.components(machine):
            if component.name == name:
                return component
        names = ", ".join(component.name for component in self.components(machine))
        raise UsageError(f"{machine} has no component {name}", answer=f"it has {names or 'none'}")

    def components(self, machine: str) -> list[Component]:
        """All components of a machine, in the order of their names."""
        folder = f"{self.machine_path(machine)}/components"
        found = []
        for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            record = read_json(f"{folder}/{entry}")
            if record is not None:
                process = record.pop("process")
                found.append(Component(**record, process=None if process is None else Process(**process)))
        return found

    def remove(self) -> None:
        """Delete the folder and, when it was the last lab's, the folders above it that podwire made."""
        if self.exists:
            shutil.rmtree(self.path)
        for folder in (self.root, os.path.dirname(self.root)):
            if folder.startswith("/run/podwire"):
                try:
                    os.rmdir(folder)
                except OSError:
                    break


#: What is an overlay on a machine, and its folder here.
LAYERS = {"/etc": "etc", "/opt": "opt", "/var/lib": "var-lib"}


def names(root: str = ROOT) -> list[str]:
    """The labs there are."""
    return sorted(os.listdir(root)) if os.path.isdir(root) else []


def write_json(path: str, value: Any) -> None:
    """Write a record so that a reader sees the old or the new one, never a half."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
    os.replace(temporary, path)


def read_json(path: str) -> Any:
    """A record; None when there is none or it is cut (temporary files are never read). Only root may read a lab's."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    except PermissionError as error:
        raise MissingCapability("podwire must be run as root for this", hint="sudo podwire …") from error
