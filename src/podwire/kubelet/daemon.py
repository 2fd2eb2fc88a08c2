"""`podwire kubelet`: from flags to a running node, and back.

    reflector (pods of this node) ──┐
    events of the runtime ──────────┼──► work queue (namespace/name) ──► 4 workers ──► Pods.sync
    every 30 s everything there is ─┘

Ending the kubelet leaves the pods running; the next one finds them.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from podwire.daemon.supervision import Supervisor
from podwire.errors import CriError, PodwireError, UsageError
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.kinds import PODS, SERVICES
from podwire.kube.reflector import Reflector
from podwire.kube.workqueue import WorkQueue
from podwire.kubelet import node, podstatus, translate
from podwire.kubelet.backoff import CrashLoop
from podwire.kubelet.heartbeat import Heartbeat
from podwire.kubelet.pods import Pods
from podwire.kubelet.runtime import Runtime
from podwire.kubelet.starter import Starter, Voice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.kube.objects import Pod

log = logging.getLogger("podwire.kubelet")

K = TypeVar("K")

WORKERS = 4
RELIST = 30.0
POLL = 1.0  # the real kubelet's period for runtimes without events
FIRST_RETRY = 0.2
LONGEST_RETRY = 10.0
FLUSH = 1.0


@dataclass(frozen=True)
class Options:
    """What the flags say; the names are the real kubelet's."""

    kubeconfig: str | None = None
    hostname_override: str = ""
    node_ip: tuple[str, ...] = ()
    container_runtime_endpoint: str = "unix:///run/podwire/cri.sock"
    node_labels: Mapping[str, str] = field(default_factory=dict)
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""
    pod_logs_dir: str = "/run/podwire/pods"  # not /var/log/pods: what is below /run ends with the machine


def run(options: Options, stop: threading.Event) -> int:
    """Be the node's kubelet until `stop` is set; the exit status."""
    if not options.container_runtime_endpoint.startswith(("unix://", "/")):
        raise UsageError(
            "reading", f"--container-runtime-endpoint {options.container_runtime_endpoint}", "a unix socket is expected"
        )
    client = Client.from_kubeconfig(options.kubeconfig)
    supervisor = Supervisor(stop)
    kubelet = Kubelet(client, Runtime(options.container_runtime_endpoint), options, stop)
    try:
        kubelet.run()
    finally:
        kubelet.close()
        supervisor.close()
    return supervisor.status


def changed(before: Mapping[K, object], now: Mapping[K, object]) -> set[K]:
    """The keys whose values differ, came, or went."""
    return {key for key in {*before, *now} if before.get(key) != now.get(key)}


class Kubelet:
    """All the parts, wired."""

    def __init__(self, client: Client, runtime: Runtime, options: Options, stop: threading.Event) -> None:
        name = options.hostname_override
        self._client = client
        self._runtime = runtime
        self._stop = stop
        self._recorder = EventRecorder(client, "kubelet", name)
        self._queue: WorkQueue[str] = WorkQueue(first_retry=FIRST_RETRY, longest_retry=LONGEST_RETRY)
        self._reflector: Reflector[Pod] = Reflector(
            client, PODS, stop=stop, field_selector=f"spec.nodeName={name}", on_change=self._changed
        )
        self._services = Reflector(client, SERVICES, stop=stop)
        self._heartbeat = Heartbeat(
            client,
            runtime,
            self._recorder,
            node.Facts.read(name, options.node_ip),
            options.node_labels,
            self._relist,
            stop,
        )
        addresses = podstatus.Node(options.node_ip)
        settings = translate.NodeSettings(options.pod_logs_dir, options.cluster_dns, options.cluster_domain)
        voice = Voice(self._recorder)
        self._pods = Pods(
            client=client,
            runtime=runtime,
            starter=Starter(
                client,
                runtime,
                voice,
                name,
                addresses,
                settings,
                self._services.objects,
                lambda: self._heartbeat.status,
            ),
            voice=voice,
            node=addresses,
            settings=settings,
            backoff=CrashLoop(),
            pods=self._reflector.store,
            wake=self._queue.add,
        )

    def run(self) -> None:
        """Start the threads and wait for the end."""
        self._heartbeat.start()
        self._services.start()
        self._reflector.start()
        workers = [threading.Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(WORKERS)]
        # Without the list of pods every sandbox would look like an orphan, without Services their variables would lack.
        waiting = threading.Thread(target=self._begin, args=(workers,), name="begin", daemon=True)
        waiting.start()
        self._stop.wait()
        self._queue.shut_down()
        self._heartbeat.poke()
        for worker in workers:
            if worker.is_alive():
                worker.join(1.0)
        self._recorder.flush(FLUSH)

    def _begin(self, workers: list[threading.Thread]) -> None:
        for reflector in (self._services, self._reflector):
            while not reflector.synced.wait(0.5):
                if self._stop.is_set():
                    return
        for worker in workers:
            worker.start()
        threading.Thread(target=self._listen, name="runtime-events", daemon=True).start()
        while not self._stop.is_set():
            self._relist()
            self._stop.wait(RELIST)

    def close(self) -> None:
        """End connections."""
        self._runtime.close()
        self._client.close()

    # what brings keys into the queue

    def _changed(self, key: str, _old: Pod | None, _new: Pod | None) -> None:
        self._queue.add(key)

    def _relist(self) -> None:
        """Everything: what the API binds to this node, and what the runtime has, known to the API or not."""
        if not self._reflector.synced.is_set():
            return
        for key in self._reflector.store:
            self._queue.add(key)
        try:
            for namespace, name in self._runtime.snapshot():
                self._queue.add(f"{namespace}/{name}")
        except CriError as error:
            log.debug("the runtime does not answer", extra={"kv": {"error": error}})

    def _listen(self) -> None:
        """Follow the runtime's events; after each break whatever happened meanwhile is found by a relist."""
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                for namespace, name in self._runtime.events():
                    self._queue.add(f"{namespace}/{name}")
            except CriError as error:
                if self._stop.is_set():
                    return
                log.debug("the runtime's events broke off", extra={"kv": {"error": error}})
                self._heartbeat.poke()
                if error.code == "UNIMPLEMENTED":
                    log.info("the runtime has no events: it is asked every second")
                    self._poll()
                    return
            except ValueError:  # the channel was closed: we are ending
                return
            if time.monotonic() - started < 1.0:
                self._stop.wait(1.0)
            self._relist()

    def _poll(self) -> None:
        """For runtimes without events (containerd before 1.7): find changes by comparing two lists."""
        before: dict[tuple[str, str], frozenset[tuple[str, int]]] = {}
        while not self._stop.wait(POLL):
            try:
                now = self._runtime.snapshot()
            except CriError as error:
                log.debug("the runtime does not answer", extra={"kv": {"error": error}})
                continue
            for namespace, name in changed(before, now):
                self._queue.add(f"{namespace}/{name}")
            before = now

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            try:
                again = self._pods.sync(key)
                self._queue.forget(key)
                if again is not None:
                    self._queue.add_after(key, again)
            except PodwireError as error:
                delay = self._queue.retry(key)
                log.warning("pod not in order", extra={"kv": {"pod": key, "error": error, "again_in": f"{delay:.1f}s"}})
            except Exception:  # a pod that we have a fault with must not take the others with it
                log.exception("a fault", extra={"kv": {"pod": key, "again_in": f"{self._queue.retry(key):.1f}s"}})
            finally:
                self._queue.done(key)
