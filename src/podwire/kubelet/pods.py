"""One pod at a time: look, decide, act, report.

`Pods.sync(key)` is called by a worker for a key of the work queue and does all that can be done now. It never waits for
a container to end: it asks for that and is called again when it happens. So four workers are enough for a node, and a
pod with a long grace period holds nobody up.

Failures end the round and are reported where a user looks for them: as an Event, and as the reason for which a container
waits. The queue brings the key back after a growing pause.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.errors import ApiConflict, ApiNotFound
from podwire.kube.kinds import PODS
from podwire.kubelet import decide, podstatus, translate
from podwire.kubelet.starter import StartFailed
from podwire.kubelet.view import PodView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from podwire.errors import CriError
    from podwire.kube.client import Client
    from podwire.kube.objects import Pod
    from podwire.kubelet.backoff import CrashLoop
    from podwire.kubelet.runtime import Runtime
    from podwire.kubelet.starter import Starter, Voice
    from podwire.kubelet.view import Container as Seen

log = logging.getLogger("podwire.kubelet")

ROUNDS = 6  # of looking and acting in one sync: sandbox, then containers, with room for an init container or two


@dataclass
class Memory:
    """What is known of a pod beyond the API and the runtime; losing it costs a repeated report, nothing else."""

    uid: str
    reported: dict[str, Any] | None = None  # the status as last sent
    announced: bool = False  # whether it was said what the pod gets here and what not
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)  # container → (reason, message)


class Pods:
    """The pods of this node."""

    def __init__(
        self,
        *,
        client: Client,
        runtime: Runtime,
        starter: Starter,
        voice: Voice,
        node: podstatus.Node,
        settings: translate.NodeSettings,
        backoff: CrashLoop,
        pods: Mapping[str, Pod],
        wake: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._starter = starter
        self._voice = voice
        self._node = node
        self._settings = settings
        self._backoff = backoff
        self._pods = pods
        self._wake = wake
        self._clock = clock
        self._memory: dict[str, Memory] = {}
        self._ending: set[str] = set()  # containers whose end was asked for and has not come yet
        self._guard = threading.Lock()

    def sync(self, key: str) -> float | None:
        """Bring one pod forward; seconds until it wants to be looked at again. PodwireError to be called again soon."""
        namespace, _, name = key.partition("/")
        pod = self._pods.get(key)
        for _ in range(ROUNDS):
            views = self._runtime.views(namespace, name)
            for uid, view in views.items():
                if pod is None or uid != pod.metadata.uid:
                    self._end_orphan(key, view)
            if pod is None:
                self._memory.pop(key, None)
                return None
            view = decide.with_lost(pod, views.get(pod.metadata.uid, PodView(pod.metadata.uid)))
            plan = self._decide(pod, view)
            if plan.gone:
                self._finish(key, pod, view, plan)
                return None
            waits = {name: self._crash_text(pod, name, delay) for name, delay in plan.backing_off.items()}
            memory = self._remember(pod)
            memory.waiting = {**{n: w for n, w in memory.waiting.items() if w[0] != "CrashLoopBackOff"}, **waits}
            if plan.idle:
                self._report(pod, view)
                return plan.again_in
            if view.ready_sandbox is not None and view.ready_sandbox.id in plan.stop_sandboxes:
                self._report(pod, view)  # its address is known only as long as the sandbox is there
            try:
                self._act(key, pod, view, plan)
            except Exception:
                after = self._runtime.views(namespace, name).get(pod.metadata.uid, PodView(pod.metadata.uid))
                self._report(pod, decide.with_lost(pod, after))
                raise
            if plan.stop:
                self._report(pod, view)
                return plan.again_in  # until something has ended there is nothing more to do
        return 0.0

    def _decide(self, pod: Pod, view: PodView) -> decide.Plan:
        uid, now = pod.metadata.uid, self._clock()

        def left(seen: Seen) -> float:
            return self._backoff.left(uid, seen.name, seen.finished_at / 1e9, now)

        with self._guard:
            ending = frozenset(self._ending)
        return decide.decide(pod, view, ending, left, lambda name: self._backoff.delay(uid, name))

    def _crash_text(self, pod: Pod, name: str, delay: float) -> tuple[str, str]:
        where = f"{pod.metadata.name}_{pod.metadata.namespace}({pod.metadata.uid})"
        text = f"restarting failed container={name} pod={where}"
        container = next((one for one in pod.spec.containers if one.name == name), None)
        if self._remember(pod).waiting.get(name, ("",))[0] != "CrashLoopBackOff":
            message = f"Back-off restarting failed container {name} in pod {where}"
            self._voice.warning(pod, "BackOff", message, container)
        minutes, seconds = divmod(round(delay), 60)
        return "CrashLoopBackOff", f"back-off {f'{minutes}m' if minutes else ''}{seconds}s {text}"

    # acting

    def _act(self, key: str, pod: Pod, view: PodView, plan: decide.Plan) -> None:
        for stop in plan.stop:
            self._stop(key, stop, pod)
        for sandbox in plan.stop_sandboxes:
            self._runtime.stop_sandbox(sandbox)
        for container in plan.remove_containers:
            self._runtime.remove_container(container)
        for sandbox in plan.remove_sandboxes:
            self._runtime.remove_sandbox(sandbox)
        if plan.run_sandbox is not None:
            memory = self._remember(pod)
            announce, memory.announced = not memory.announced, True
            self._starter.run_sandbox(pod, plan.run_sandbox, announce=announce)
        failed: Exception | None = None
        for start in plan.start:
            try:
                self._start(pod, view, start)
            except StartFailed as error:
                failed = failed or error  # the other containers of the pod do not have to wait for this one
        if failed is not None:
            raise failed

    def _stop(self, key: str, stop: decide.Stop, pod: Pod | None) -> None:
        with self._guard:
            if stop.id in self._ending:
                return
            self._ending.add(stop.id)
        if pod is not None and stop.why:
            container = next((one for one in pod.spec.containers if one.name == stop.name), None)
            self._voice.normal(pod, "Killing", stop.why, container)

        def ended(error: CriError | None) -> None:
            with self._guard:
                self._ending.discard(stop.id)
            if error is not None:
                log.warning("stopping failed", extra={"kv": {"pod": key, "container": stop.name, "error": error}})
            self._wake(key)

        self._runtime.stop_container(stop.id, stop.grace, ended)

    def _start(self, pod: Pod, view: PodView, start: decide.Start) -> None:
        container, memory, sandbox = start.container, self._remember(pod), view.ready_sandbox
        if sandbox is None:
            raise StartFailed(container.name, "ContainerCreating", "the sandbox is gone")
        if start.replaces is not None:
            ended = start.replaces.finished_at / 1e9
            self._backoff.restarted(pod.metadata.uid, container.name, ended, self._clock())
        try:
            self._starter.start(pod, container, start.attempt, sandbox)
            memory.waiting.pop(container.name, None)
        except StartFailed as error:
            if error.reason:
                memory.waiting[container.name] = (error.reason, error.message)
            raise

    # ending

    def _end_orphan(self, key: str, view: PodView) -> None:
        """A pod the API does not know (any more): end it with the grace period it was started with."""
        with self._guard:
            ending = frozenset(self._ending)
        plan = decide.teardown(view, None, ending)
        for stop in plan.stop:
            log.info("ending a pod that is gone from the API", extra={"kv": {"pod": key, "uid": view.uid}})
            self._stop(key, stop, None)
        self._remove(plan)
        if plan.gone:
            self._backoff.forget(view.uid)
            self._remove_logs(key, view.uid)

    def _remove(self, plan: decide.Plan) -> None:
        for sandbox in plan.stop_sandboxes:
            self._runtime.stop_sandbox(sandbox)
        for container in plan.remove_containers:
            self._runtime.remove_container(container)
        for sandbox in plan.remove_sandboxes:
            self._runtime.remove_sandbox(sandbox)

    def _finish(self, key: str, pod: Pod, view: PodView, plan: decide.Plan) -> None:
        """Nothing of a deleted pod runs any more: report how it ended, give everything back, delete it for good."""
        self._report(pod, view)
        self._remove(plan)
        try:
            self._client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_seconds=0, uid=pod.metadata.uid)
        except (ApiNotFound, ApiConflict):
            log.debug("it was gone already", extra={"kv": {"pod": key}})
        self._memory.pop(key, None)
        self._backoff.forget(pod.metadata.uid)
        self._remove_logs(key, pod.metadata.uid)

    def _remove_logs(self, key: str, uid: str) -> None:
        namespace, _, name = key.partition("/")
        shutil.rmtree(translate.log_directory(self._settings, namespace, name, uid), ignore_errors=True)

    # reporting

    def _report(self, pod: Pod, view: PodView) -> None:
        """Send the status if it differs from what was last sent; that of a pod that has run to its end is final."""
        if pod.finished:
            return
        memory = self._remember(pod)
        node = self._node._replace(runtime=self._runtime.name)
        wanted = podstatus.status(pod, view, node, memory.waiting, self._clock(), memory.reported)
        if memory.reported is not None and podstatus.same(memory.reported, wanted):
            return
        body = {"metadata": {"uid": pod.metadata.uid}, "status": wanted}
        try:
            self._client.patch(PODS, pod.metadata.name, body, pod.metadata.namespace, subresource="status")
        except (ApiNotFound, ApiConflict):
            return  # deleted meanwhile, or another pod of that name: the reflector will say so
        memory.reported = wanted

    def _remember(self, pod: Pod) -> Memory:
        known = self._memory.get(pod.key)
        if known is None or known.uid != pod.metadata.uid:
            known = self._memory[pod.key] = Memory(pod.metadata.uid)
        return known
