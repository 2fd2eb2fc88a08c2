"""Keeps the Node and its Lease: registers, reports, renews. One thread, which also asks the runtime how it is.

While the node is not ready the runtime is asked five times a second, because everybody waits for the answer; a ready one is
asked every five seconds, as the real kubelet does. A Node that exists is adopted. One that is deleted under a running
kubelet stays deleted until the kubelet is restarted, as with the real one: whoever deletes a Node means it.

A runtime that stops answering is given half a minute before the node says so: it may only be restarting, its containers run
on, and a node that is not ready has its endpoints taken away. Whoever notices that it is gone says so (`poke`).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from podwire.errors import ApiAlreadyExists, ApiConflict, ApiError, ApiNotFound, CriError, PodwireError
from podwire.kube.kinds import LEASES, NODES
from podwire.kubelet import node
from podwire.kubelet.runtime import Runtime, RuntimeStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from podwire.kube.client import Client
    from podwire.kube.events import EventRecorder
    from podwire.kube.objects import Node

log = logging.getLogger("podwire.kubelet")

ASK_UNREADY = 0.2
ASK_READY = 5.0
RENEW = 10.0
REPORT = 300.0
RETRY = 1.0
PATIENCE = 30.0  # the real kubelet's maxWaitForContainerRuntime


class Heartbeat:
    """The node's voice. `status` is the runtime's state as last seen; `on_ready` is called when it becomes ready."""

    def __init__(
        self,
        client: Client,
        runtime: Runtime,
        recorder: EventRecorder,
        facts: node.Facts,
        labels: Mapping[str, str],
        on_ready: Callable[[], None],
        stop: threading.Event,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._recorder = recorder
        self._facts = facts
        self._labels = labels
        self._on_ready = on_ready
        self._stop = stop
        self._clock = clock
        self.status = RuntimeStatus("container runtime status check may not have completed yet", answered=False)
        self.registered = threading.Event()
        self._sent: dict[str, Any] | None = None
        self._sent_at = 0.0
        self._renewed = 0.0
        self._conditions: dict[str, tuple[str, str]] = {}
        self._uid = ""
        self._pod_cidr = ""
        self._failing = ""
        self._answered: float | None = None
        self._looked = 0.0
        self._poked = threading.Event()

    def poke(self) -> None:
        """Look now: something has happened to the runtime, or it is time to end."""
        self._poked.set()

    def start(self) -> None:
        """Run in a thread of its own until the stop event."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._look()
            pause = ASK_READY if self.status.ready and self._answered == self._looked else ASK_UNREADY
            try:
                self._speak()
                self._failing = ""
            except PodwireError as error:
                if str(error) != self._failing:
                    log.warning("the node cannot be reported", extra={"kv": {"node": self._facts.name, "error": error}})
                self._failing = str(error)
                pause = max(pause, RETRY)
            self._poked.wait(pause)
            self._poked.clear()

    def _look(self) -> None:
        """Ask the runtime; its version is asked for once it answers."""
        before, self._looked = self.status, self._clock()
        found = self._runtime.status()
        if found.answered:
            self._answered = self._looked
        self.status = settled(before, found, self._answered, self._looked)
        if not self._facts.runtime_version and not self.status.runtime_problem:
            try:
                self._facts = dataclasses.replace(self._facts, runtime_version=self._runtime.version())
            except CriError as error:
                log.warning("asking for the runtime's version", extra={"kv": {"error": error}})
        if self.status.ready and not before.ready:
            log.info("runtime is ready", extra={"kv": {"runtime": self._facts.runtime_version}})
            self._on_ready()
        elif not self.status.ready and before != self.status:
            problem = self.status.runtime_problem or self.status.network_problem
            log.warning("runtime is not ready", extra={"kv": {"problem": problem}})

    def _speak(self) -> None:
        now = self._clock()
        wanted = node.status(self._facts, self.status, self._conditions, now)
        if not self._uid:
            self._register(wanted, now)
        elif (
            self._sent is None
            or node.comparable(wanted) != node.comparable(self._sent)
            or now - self._sent_at >= REPORT
        ):
            self._report(wanted, now)
        if self._uid and now - self._renewed >= RENEW:
            self._renew(now)

    def _register(self, wanted: dict[str, Any], now: float) -> None:
        name = self._facts.name
        try:
            made = self._client.create(NODES, node.body(self._facts, self._labels, wanted))
            log.info("node registered", extra={"kv": {"node": name}})
        except ApiAlreadyExists:
            made = self._client.patch(NODES, name, {"metadata": {"labels": node.labels(self._facts, self._labels)}})
            self._conditions = {
                one.type: (one.status, one.last_transition_time or "") for one in made.status.conditions
            }
            wanted = node.status(self._facts, self.status, self._conditions, now)
            log.info("node adopted", extra={"kv": {"node": name}})
        self._uid = made.metadata.uid
        self._recorder.event(made, "Normal", "Starting", "Starting kubelet.")
        # A real API server ignores nothing of a Node's status at creation; one that does gets it now.
        self._report(wanted, now)
        self.registered.set()

    def _report(self, wanted: dict[str, Any], now: float) -> None:
        try:
            answer = self._client.patch(
                NODES, self._facts.name, {"status": wanted}, patch_type="strategic", subresource="status"
            )
        except ApiNotFound as error:
            raise self._deleted(error) from None
        ready = {one["type"]: one["status"] for one in wanted["conditions"]}["Ready"]
        if self._conditions.get("Ready", ("",))[0] != ready:
            reason = "NodeReady" if ready == "True" else "NodeNotReady"
            self._recorder.event(answer, "Normal", reason, f"Node {self._facts.name} status is now: {reason}")
        self._sent, self._sent_at = wanted, now
        self._conditions = {one["type"]: (one["status"], one["lastTransitionTime"]) for one in wanted["conditions"]}
        self._tell_pod_cidr(answer)

    def _deleted(self, error: ApiError) -> ApiError:
        self._sent = None
        return ApiNotFound(
            "reporting",
            f"node {self._facts.name}",
            error.code,
            error.reason,
            "the Node was deleted",
            "restart the kubelet",
        )

    def _tell_pod_cidr(self, answer: Node) -> None:
        """The runtime may want to know the podCIDR (containerd fills a template with it)."""
        pod_cidr = ",".join(answer.pod_cidrs)
        if pod_cidr and pod_cidr != self._pod_cidr and not self.status.runtime_problem:
            try:
                self._runtime.set_pod_cidr(pod_cidr)
                self._pod_cidr = pod_cidr
            except CriError as error:
                log.warning("telling the runtime the podCIDR", extra={"kv": {"error": error}})

    def _renew(self, now: float) -> None:
        name = self._facts.name
        spec = node.lease(name, self._uid, now)["spec"]
        try:
            self._client.patch(LEASES, name, {"spec": spec}, node.LEASE_NAMESPACE)
        except ApiNotFound:
            try:
                self._client.create(LEASES, node.lease(name, self._uid, now))
            except (ApiAlreadyExists, ApiConflict):
                return
        self._renewed = now


def settled(before: RuntimeStatus, found: RuntimeStatus, answered: float | None, now: float) -> RuntimeStatus:
    """What counts: what was found, but for a runtime that was there `PATIENCE` seconds ago at most and is silent now."""
    if found.answered or answered is None or now - answered > PATIENCE:
        return found
    return before
