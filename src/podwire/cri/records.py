"""What the server knows about its sandboxes and containers, in memory and on disk.

    STATE_DIR/
      lock                         held by the server that uses this folder
      netns/ID                     the sandbox's network namespace, bind-mounted (no process holds it)
      sandboxes/ID/record.json     and hosts, hostname, resolv.conf for its containers
      containers/ID/record.json    and what launch and shim leave there: spec.json, pid, exit, shim.log

A record is written to a new file, synced, and renamed over the old one, and the folder is synced: after a kill at any
point there is the old record or the new one. A folder leaves by being renamed to a name with a leading dot first, so that
a half-deleted one is never read; such leftovers, folders without a record and namespaces without a sandbox are swept away
when the server starts.

The configuration is kept as the bytes that came over the wire, so that fields unknown to us survive; beside it
stands what a person wants to read.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import threading
from dataclasses import dataclass, field
from typing import Any, TypeVar

from podwire.cri import states
from podwire.criapi import api_pb2

log = logging.getLogger("podwire.cri")

T = TypeVar("T")


@dataclass
class Sandbox:
    """A pod's sandbox: its network namespace and addresses. `netns` is '' on the host's network."""

    id: str
    config: api_pb2.PodSandboxConfig
    created_at: int  # nanoseconds since the epoch, as everywhere in CRI
    state: states.Sandbox = states.Sandbox.PREPARING
    runtime_handler: str = ""
    netns: str = ""
    ips: tuple[str, ...] = ()
    networks: list[dict[str, str]] = field(default_factory=list)  # what it is attached with: DEL of the same undoes it
    result: dict[str, Any] | None = None
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Unique among living sandboxes, as containerd makes it: name_namespace_uid_attempt."""
        pod = self.config.metadata
        return f"{pod.name}_{pod.namespace}_{pod.uid}_{pod.attempt}"

    @property
    def pod(self) -> str:
        """namespace/name, for logs."""
        return f"{self.config.metadata.namespace}/{self.config.metadata.name}"

    def to_json(self) -> dict[str, Any]:
        """What is written to disk."""
        return {
            "id": self.id,
            "state": self.state.value,
            "pod": self.pod,
            "uid": self.config.metadata.uid,
            "attempt": self.config.metadata.attempt,
            "createdAt": self.created_at,
            "runtimeHandler": self.runtime_handler,
            "netns": self.netns,
            "ips": list(self.ips),
            "networks": self.networks,
            "result": self.result,
            "config": base64.b64encode(self.config.SerializeToString()).decode(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Sandbox:
        """The reverse; KeyError, ValueError or DecodeError if it is damaged."""
        return cls(
            id=data["id"],
            config=api_pb2.PodSandboxConfig.FromString(base64.b64decode(data["config"])),
            created_at=data["createdAt"],
            state=states.Sandbox(data["state"]),
            runtime_handler=data["runtimeHandler"],
            netns=data["netns"],
            ips=tuple(data["ips"]),
            networks=data["networks"],
            result=data["result"],
        )


@dataclass
class Container:
    """A container of a sandbox. `exited` is set when its process is known to be gone."""

    id: str
    sandbox: str
    config: api_pb2.ContainerConfig
    created_at: int
    log_path: str = ""
    state: states.Container = states.Container.CREATED
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    exited: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """What is written to disk."""
        return {
            "id": self.id,
            "sandbox": self.sandbox,
            "name": self.config.metadata.name,
            "attempt": self.config.metadata.attempt,
            "image": self.config.image.image,
            "state": self.state.value,
            "createdAt": self.created_at,
            "startedAt": self.started_at,
            "finishedAt": self.finished_at,
            "exitCode": self.exit_code,
            "reason": self.reason,
            "message": self.message,
            "logPath": self.log_path,
            "config": base64.b64encode(self.config.SerializeToString()).decode(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Container:
        """The reverse; KeyError, ValueError or DecodeError if it is damaged."""
        return cls(
            id=data["id"],
            sandbox=data["sandbox"],
            config=api_pb2.ContainerConfig.FromString(base64.b64decode(data["config"])),
            created_at=data["createdAt"],
            log_path=data["logPath"],
            state=states.Container(data["state"]),
            started_at=data["startedAt"],
            finished_at=data["finishedAt"],
            exit_code=data["exitCode"],
            reason=data["reason"],
            message=data["message"],
        )


class Store:
    """All records, by id. Reading gives snapshots; a record itself is changed under its own lock and then saved."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._guard = threading.Lock()
        for folder in ("sandboxes", "containers", "netns"):
            os.makedirs(f"{root}/{folder}", mode=0o700, exist_ok=True)

    def sandboxes(self) -> list[Sandbox]:
        """All sandboxes, oldest first."""
        with self._guard:
            return sorted(self._sandboxes.values(), key=lambda record: record.created_at)

    def containers(self, sandbox: str | None = None) -> list[Container]:
        """All containers, or those of a sandbox, oldest first."""
        with self._guard:
            found = [c for c in self._containers.values() if sandbox is None or c.sandbox == sandbox]
        return sorted(found, key=lambda record: record.created_at)

    def sandbox(self, key: str) -> Sandbox | None:
        """By id or by an unambiguous beginning of it (crictl shows and takes 13 characters)."""
        with self._guard:
            return _by_prefix(self._sandboxes, key)

    def container(self, key: str) -> Container | None:
        """By id or by an unambiguous beginning of it."""
        with self._guard:
            return _by_prefix(self._containers, key)

    def folder(self, record: Sandbox | Container) -> str:
        """Where a record's files are."""
        return f"{self.root}/{'sandboxes' if isinstance(record, Sandbox) else 'containers'}/{record.id}"

    def save(self, record: Sandbox | Container) -> None:
        """Write it down and remember it."""
        folder = self.folder(record)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        write_atomically(f"{folder}/record.json", json.dumps(record.to_json(), indent=1).encode())
        with self._guard:
            if isinstance(record, Sandbox):
                self._sandboxes[record.id] = record
            else:
                self._containers[record.id] = record

    def forget(self, record: Sandbox | Container) -> None:
        """Delete its folder and forget it."""
        _remove_folder(self.folder(record))
        with self._guard:
            self._sandboxes.pop(record.id, None)
            self._containers.pop(record.id, None)

    def load(self) -> None:
        """Read what an earlier server left; containers whose sandbox is gone are kept for `recover` to kill."""
        for sandbox in _load(f"{self.root}/sandboxes", Sandbox.from_json):
            self._sandboxes[sandbox.id] = sandbox
        for container in _load(f"{self.root}/containers", Container.from_json):
            self._containers[container.id] = container


def _by_prefix(records: dict[str, T], key: str) -> T | None:
    exact = records.get(key)
    if exact is not None or not key:
        return exact
    found = [record for identity, record in records.items() if identity.startswith(key)]
    return found[0] if len(found) == 1 else None


def _load(parent: str, decode: Any) -> list[Any]:
    found = []
    for name in sorted(os.listdir(parent)):
        folder = f"{parent}/{name}"
        if name.startswith("."):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            with open(f"{folder}/record.json", "rb") as file:
                found.append(decode(json.load(file)))
        except FileNotFoundError:
            _remove_folder(folder)  # the server was killed before the first record was whole
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it costs only itself
            log.warning("%s/record.json cannot be read (%s); it is set aside as .damaged", folder, error)
            os.rename(folder, f"{parent}/.damaged-{name}")
    return found


def _remove_folder(folder: str) -> None:
    parent, _, name = folder.rpartition("/")
    gone = f"{parent}/.{name}"
    try:
        os.rename(folder, gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def write_atomically(path: str, data: bytes) -> None:
    """The whole file or the old one, also after a power cut."""
    temporary = f"{path}.new"
    with open(temporary, "wb", opener=_private) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
