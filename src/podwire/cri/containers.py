"""Containers: create, start, stop, remove; what happens when one ends; what is left of them after a restart.

Each operation holds the container's own lock for as long as it changes the record, never while it waits for a process to
end, so that one slow container keeps nobody else waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

from podwire.cri import convert, images, launch, states
from podwire.cri.records import Container, Sandbox, Store
from podwire.cri.watch import Watcher
from podwire.criapi import api_pb2
from podwire.errors import CriError

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.cri.events import Events

log = logging.getLogger("podwire.cri")

KILL_PATIENCE = 30.0  # seconds that the kernel has to end a killed process

# What containerd reports, so that `kubectl describe` reads as usual.
START_FAILED = 128
KILLED = 137


class Containers:
    """All containers of this server."""

    def __init__(
        self, store: Store, events: Events, place: launch.Place, clock: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self._store = store
        self._events = events
        self._place = place
        self._clock = clock
        self._new_id = new_id
        self._watcher = Watcher(self._ended)

    def find(self, key: str) -> Container:
        """The container with this id; CriError NOT_FOUND."""
        record = self._store.container(key)
        if record is None:
            raise CriError("finding container", key, "NOT_FOUND", "there is no such container")
        return record

    def create(self, sandbox: Sandbox, config: api_pb2.ContainerConfig) -> Container:
        """Make a record; nothing runs yet."""
        if not config.metadata.name:
            raise CriError("creating a container", "", "INVALID_ARGUMENT", "its configuration has no metadata.name")
        with sandbox.lock:
            if sandbox.state is not states.Sandbox.READY:
                raise CriError("creating a container in", sandbox.id, "FAILED_PRECONDITION", "the sandbox is not ready")
            for other in self._store.containers(sandbox.id):
                if other.config.metadata == config.metadata:
                    raise CriError(
                        "creating container", config.metadata.name, "ALREADY_EXISTS", f"the name is taken by {other.id}"
                    )
            record = Container(self._new_id(), sandbox.id, config, self._clock())
            if config.log_path and sandbox.config.log_directory:
                record.log_path = os.path.join(sandbox.config.log_directory, config.log_path)
                os.makedirs(os.path.dirname(record.log_path), mode=0o755, exist_ok=True)
            self._store.save(record)
        self._tell(record, api_pb2.CONTAINER_CREATED_EVENT)
        return record

    def start(self, record: Container, sandbox: Sandbox) -> None:
        """Run it. A program that cannot be started makes it EXITED with reason StartError, and raises."""
        with record.lock:
            record.state = states.next_container(record.state, states.ContainerEvent.START)
            self._store.save(record)
            try:
                self._launch(record, sandbox)
            except Exception as error:
                self._failed(record, str(error))
                raise
            record.started_at = self._clock()
            record.state = states.next_container(record.state, states.ContainerEvent.RAN)
            self._store.save(record)
            self._tell(record, api_pb2.CONTAINER_STARTED_EVENT)
            self._watch(record)

    def _launch(self, record: Container, sandbox: Sandbox) -> None:
        if sandbox.state is not states.Sandbox.READY:
            raise launch.StartError("starting", record.config.metadata.name, "its sandbox is not ready")
        folder = self._store.folder(record)
        spec = launch.describe(record, sandbox, folder, self._place)
        launch.start(folder, spec, f"{sandbox.pod}/{record.config.metadata.name}")

    def _watch(self, record: Container) -> None:
        """Wait for its end in the background; one that has ended already is recorded at once."""
        fd = launch.pidfd(self._store.folder(record))
        if fd is None:
            self._ended(record.id)
        else:
            self._watcher.add(record.id, fd)

    def _failed(self, record: Container, reason: str) -> None:
        record.state = states.next_container(record.state, states.ContainerEvent.DIED)
        record.started_at = record.started_at or self._clock()
        record.finished_at = self._clock()
        record.exit_code, record.reason, record.message = START_FAILED, "StartError", reason
        self._store.save(record)
        record.exited.set()
        self._tell(record, api_pb2.CONTAINER_STOPPED_EVENT)

    def _ended(self, key: str) -> None:
        """Its process is gone (from the watcher's thread, or from a start that found it gone)."""
        record = self._store.container(key)
        if record is None:
            return
        with record.lock:
            if record.state is states.Container.EXITED:
                return
            record.state = states.next_container(record.state, states.ContainerEvent.DIED)
            said = launch.read_exit(self._store.folder(record))
            record.exit_code, record.finished_at = said or (KILLED, self._clock())
            record.reason = "Completed" if record.exit_code == 0 else "Error"
            self._store.save(record)
            record.exited.set()
        log.info(
            "container ended",
            extra={"kv": {"container": record.config.metadata.name, "id": record.id[:13], "code": record.exit_code}},
        )
        self._tell(record, api_pb2.CONTAINER_STOPPED_EVENT)

    def stop(self, record: Container, timeout: float) -> None:
        """SIGTERM, at most `timeout` seconds of patience, SIGKILL. Nothing to do unless it runs."""
        with record.lock:  # a start that is going on is waited for
            if record.state is not states.Container.RUNNING:
                return
        folder = self._store.folder(record)
        if timeout > 0:
            self._signal(folder, signal.SIGTERM)
            if record.exited.wait(timeout):
                return
        self._signal(folder, signal.SIGKILL)
        if not record.exited.wait(KILL_PATIENCE):
            raise CriError("stopping container", record.id, "DEADLINE_EXCEEDED", "it survives SIGKILL")

    @staticmethod
    def _signal(folder: str, number: int) -> None:
        fd = launch.pidfd(folder)
        if fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
            os.close(fd)

    def remove(self, record: Container) -> None:
        """Kill it if it runs and forget it; its log stays, as the kubelet's business."""
        self.stop(record, 0)
        with record.lock:
            if self._store.container(record.id) is None:
                return
            self._store.forget(record)
        self._tell(record, api_pb2.CONTAINER_DELETED_EVENT)

    def reopen_log(self, record: Container) -> None:
        """Make it write to a new file of the same name."""
        if record.state is not states.Container.RUNNING:
            raise CriError("reopening the log of", record.id, "FAILED_PRECONDITION", "the container is not running")
        self._signal(self._store.folder(record), signal.SIGUSR1)

    def pid(self, record: Container) -> int | None:
        """Of its process, as the node sees it."""
        if record.state is not states.Container.RUNNING:
            return None
        with contextlib.suppress(OSError, ValueError), open(f"{self._store.folder(record)}/pid", encoding="ascii") as f:
            return int(f.read())
        return None

    def recover(self) -> None:
        """Find out what became of the containers while no server ran, and watch what lives."""
        self._watcher.start()
        for record in self._store.containers():
            folder = self._store.folder(record)
            if self._store.sandbox(record.sandbox) is None:
                launch.kill(folder)
                self._store.forget(record)
                continue
            if record.state is states.Container.EXITED:
                record.exited.set()
            if states.RECOVERY[record.state] is states.Recovery.VERIFY:
                self._verify(record, folder)

    def _verify(self, record: Container, folder: str) -> None:
        fd = launch.pidfd(folder)
        if fd is None:
            self._ended(record.id)
            return
        if record.state is states.Container.STARTING:
            record.started_at = self._clock()
            record.state = states.next_container(record.state, states.ContainerEvent.RAN)
            self._store.save(record)
        self._watcher.add(record.id, fd)

    def close(self) -> None:
        """Stop watching; the containers go on."""
        self._watcher.stop()

    def _tell(self, record: Container, kind: api_pb2.ContainerEventType) -> None:
        if not self._events.listening:
            return
        event = api_pb2.ContainerEventResponse(
            container_id=record.id, container_event_type=kind, created_at=self._clock()
        )
        sandbox = self._store.sandbox(record.sandbox)
        if sandbox is not None:
            event.pod_sandbox_status.CopyFrom(convert.sandbox_status(sandbox))
        event.containers_statuses.extend(
            convert.container_status(other) for other in self._store.containers(record.sandbox)
        )
        self._events.publish(event)


def used_images(store: Store) -> list[str]:
    """The images that containers name, and the one that is always there."""
    return sorted({images.HOST_IMAGE, *(images.name_of(record.config.image) for record in store.containers())})
