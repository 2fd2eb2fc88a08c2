"""Sandboxes: run, stop, remove; finishing after a restart what an earlier server had begun.

The order of the steps is what makes a kill at any point harmless: the record that says what may be there is on disk
before it is made, and goes only after it is gone.

    run      record PREPARING → namespace → CNI ADD → record READY
    stop     record STOPPING → containers killed → CNI DEL → namespace removed → record STOPPED
    remove   stop → containers removed → record removed
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from podwire.cri import netns, states
from podwire.cri.records import Sandbox, Store
from podwire.criapi import api_pb2
from podwire.errors import CniError, CriError, PodwireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.cri.containers import Containers
    from podwire.cri.network import Pods

log = logging.getLogger("podwire.cri")


class Sandboxes:
    """All sandboxes of this server."""

    def __init__(
        self,
        store: Store,
        containers: Containers,
        network: Pods,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._containers = containers
        self._network = network
        self._clock = clock
        self._new_id = new_id
        self._reserving = threading.Lock()  # between looking whether a name is free and taking it

    def find(self, key: str) -> Sandbox:
        """The sandbox with this id; CriError NOT_FOUND."""
        record = self._store.sandbox(key)
        if record is None:
            raise CriError("finding sandbox", key, "NOT_FOUND", "there is no such sandbox")
        return record

    def run(self, config: api_pb2.PodSandboxConfig, handler: str) -> Sandbox:
        """Make a sandbox and wire it. If that fails nothing is left, and the error has the plugin's own message."""
        record = Sandbox(self._new_id(), config, self._clock(), runtime_handler=handler)
        if not on_host_network(config):
            record.netns = f"{self._store.root}/netns/{record.id}"
            record.networks = self._network.used()
        with record.lock:
            with self._reserving:
                self._check(config, handler)
                self._store.save(record)
            try:
                self._wire(record)
            except Exception:
                self._undo(record)
                raise
            self._move(record, states.SandboxEvent.WIRED)
        log.info("sandbox ready", extra={"kv": {"pod": record.pod, "id": record.id[:13], "ip": ",".join(record.ips)}})
        return record

    def _check(self, config: api_pb2.PodSandboxConfig, handler: str) -> None:
        if not config.metadata.name or not config.metadata.namespace or not config.metadata.uid:
            raise CriError("running a sandbox", "", "INVALID_ARGUMENT", "its metadata lack name, namespace or uid")
        if handler:
            raise CriError("running a sandbox", "", "INVALID_ARGUMENT", f'no runtime for "{handler}" is configured')
        for other in self._store.sandboxes():
            if other.config.metadata == config.metadata:
                raise CriError("running sandbox", other.name, "ALREADY_EXISTS", f"the name is taken by {other.id}")

    def _wire(self, record: Sandbox) -> None:
        if not record.netns:
            return
        netns.create(record.netns)
        try:
            record.result, record.ips = self._network.attach(record.networks, record.id, record.netns, record.config)
        except CniError as error:
            raise CriError(
                "running sandbox", record.id, "UNKNOWN", f'failed to setup network for sandbox "{record.id}": {error}'
            ) from error
        if not record.ips:
            raise CriError(
                "running sandbox",
                record.id,
                "UNKNOWN",
                f'failed to setup network for sandbox "{record.id}": no IP address',
            )

    def _undo(self, record: Sandbox) -> None:
        """Give back what a failed or unfinished run has taken, as far as it goes, and forget the sandbox."""
        if record.netns:
            try:
                self._detach(record)
            except PodwireError as error:
                log.warning(
                    "undoing a sandbox", extra={"kv": {"pod": record.pod, "id": record.id[:13], "error": error}}
                )
            netns.remove(record.netns)
        self._store.forget(record)

    def _detach(self, record: Sandbox) -> None:
        """A namespace that is gone is named as '', as the CNI specification wants it."""
        path = record.netns if netns.exists(record.netns) else ""
        self._network.detach(record.networks, record.id, path, record.config)

    def stop(self, record: Sandbox) -> None:
        """Kill its containers and give its network back. May be asked any number of times."""
        with record.lock:
            if record.state is states.Sandbox.STOPPED:
                return
            self._move(record, states.SandboxEvent.STOP)
        # Outside the lock: a status may be asked for while containers die.
        for container in self._store.containers(record.id):
            self._containers.stop(container, 0)
        with record.lock:
            self._release(record)
        log.info("sandbox stopped", extra={"kv": {"pod": record.pod, "id": record.id[:13]}})

    def _release(self, record: Sandbox) -> None:
        """Give the network back; somebody else who was asked to stop it may have done so."""
        if record.state is states.Sandbox.STOPPING:
            if record.netns:
                try:
                    self._detach(record)
                except CniError as error:
                    raise CriError(
                        "stopping sandbox",
                        record.id,
                        "UNKNOWN",
                        f'failed to destroy network for sandbox "{record.id}": {error}',
                    ) from error
                netns.remove(record.netns)
            self._move(record, states.SandboxEvent.RELEASED)

    def remove(self, record: Sandbox) -> None:
        """Stop it, remove its containers, forget it."""
        self.stop(record)
        for container in self._store.containers(record.id):
            self._containers.remove(container)
        with record.lock:
            self._store.forget(record)

    def _move(self, record: Sandbox, event: states.SandboxEvent) -> None:
        record.state = states.next_sandbox(record.state, event)
        self._store.save(record)

    def lost(self, record: Sandbox) -> bool:
        """Whether somebody took the namespace away; then the sandbox is not ready any more."""
        with record.lock:
            if record.state is not states.Sandbox.READY or not record.netns or netns.exists(record.netns):
                return False
            self._move(record, states.SandboxEvent.LOST)
        log.warning(
            "the network namespace of a sandbox is gone", extra={"kv": {"pod": record.pod, "id": record.id[:13]}}
        )
        return True

    def recover(self) -> None:
        """Finish what an earlier server began. Containers have recovered already."""
        for record in self._store.sandboxes():
            try:
                match states.RECOVERY[record.state]:
                    case states.Recovery.UNDO:
                        log.info("undoing a half-made sandbox", extra={"kv": {"pod": record.pod, "id": record.id[:13]}})
                        self._undo(record)
                    case states.Recovery.VERIFY:
                        self.lost(record)
                    case states.Recovery.FINISH:
                        self.stop(record)
                    case states.Recovery.KEEP:
                        pass
            except PodwireError as error:  # stays as it is; the kubelet will ask for its end
                log.warning("recovering", extra={"kv": {"pod": record.pod, "id": record.id[:13], "error": error}})
        self._sweep()

    def _sweep(self) -> None:
        known = {os.path.basename(record.netns) for record in self._store.sandboxes() if record.netns}
        folder = f"{self._store.root}/netns"
        for name in os.listdir(folder):
            if name not in known:
                netns.remove(f"{folder}/{name}")


def on_host_network(config: api_pb2.PodSandboxConfig) -> bool:
    """Whether the pod wants the node's own network."""
    return config.linux.security_context.namespace_options.network == api_pb2.NODE
