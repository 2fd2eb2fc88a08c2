"""One pod at a time: look, decide, act, report.

`Pods.sync(key)` is called by a worker for a key of the work queue and does all that can be done now. It never waits for
a container to end: it asks for that and is called again when it happens. So four workers are enough for a node, and a
pod with a long grace period holds nobody up.

Failures end the round and are reported where a user looks for them: as an Event, and as the reason for which a container
waits. The queue brings the key back after a growing pause.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.errors import ApiConflict, ApiNotFound, CriError
from podwire.kube.kinds import CONFIG_MAPS, PODS
from podwire.kube.meta import ObjectReference, reference
from podwire.kubelet import decide, environment, honour, podstatus, translate
from podwire.kubelet.view import PodView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from podwire.kube.client import Client
    from podwire.kube.events import EventRecorder
    from podwire.kube.objects import Container, Pod, Service
    from podwire.kubelet.backoff import CrashLoop
    from podwire.kubelet.runtime import Image, Runtime, RuntimeStatus
    from podwire.kubelet.view import Container as Seen

log = logging.getLogger("podwire.kubelet")

ROUNDS = 6  # of looking and acting in one sync: sandbox, then containers, with room for an init container or two


@dataclass
class Memory:
    """What is known of a pod beyond the API and the runtime; losing it costs a repeated report, nothing else."""

    reported: dict[str, Any] | None = None  # the status as last sent
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)  # container → (reason, message)


class Pods:
    """The pods of this node."""

    def __init__(
        self,
        *,
        client: Client,
        runtime: Runtime,
        recorder: EventRecorder,
        node_name: str,
        node: podstatus.Node,
        settings: translate.NodeSettings,
        backoff: CrashLoop,
        pods: Mapping[str, Pod],
        services: Callable[[], Iterable[Service]],
        runtime_status: Callable[[], RuntimeStatus],
        wake: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._recorder = recorder
        self._node_name = node_name
        self._node = node
        self._settings = settings
        self._backoff = backoff
        self._pods = pods
        self._services = services
        self._runtime_status = runtime_status
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
            self._event(pod, "Warning", "BackOff", message, container)
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
            self._run_sandbox(pod, plan.run_sandbox)
        failed: Exception | None = None
        for start in plan.start:
            try:
                self._start(pod, view, start)
            except (CriError, environment.ConfigError) as error:
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
            self._event(pod, "Normal", "Killing", stop.why, container)

        def ended(error: CriError | None) -> None:
            with self._guard:
                self._ending.discard(stop.id)
            if error is not None:
                log.warning("stopping failed", extra={"kv": {"pod": key, "container": stop.name, "error": error}})
            self._wake(key)

        self._runtime.stop_container(stop.id, stop.grace, ended)

    def _run_sandbox(self, pod: Pod, attempt: int) -> None:
        status = self._runtime_status()
        if status.network_problem and not pod.spec.host_network:
            self._event(pod, "Warning", "NetworkNotReady", f"network is not ready: {status.network_problem}")
            raise CriError("running", pod.key, "UNAVAILABLE", status.network_problem)
        if attempt == 0:
            self._announce(pod)
        else:
            message = "Pod sandbox changed, it will be killed and re-created."
            self._event(pod, "Normal", "SandboxChanged", message)
        try:
            self._runtime.run_sandbox(translate.sandbox_config(pod, attempt, self._settings))
        except CriError as error:
            text = f"Failed to create pod sandbox: rpc error: code = {_go_name(error.code)} desc = {error.message}"
            self._event(pod, "Warning", "FailedCreatePodSandBox", text)
            raise

    def _announce(self, pod: Pod) -> None:
        """Say once what this pod gets here and what not."""
        everything = (*pod.spec.init_containers, *pod.spec.containers)
        stand_ins = frozenset(one.name for one in everything if self._runtime.image(one.image).runs == "stand-in")
        settings = honour.not_honoured(pod, stand_ins)
        if settings:
            self._event(pod, "Warning", "NotHonoured", f"podwire does not honour: {'; '.join(settings)}")
        for container in everything:
            if container.name in stand_ins:
                self._event(pod, "Normal", "StandIn", honour.stand_in_message(container), container)

    def _start(self, pod: Pod, view: PodView, start: decide.Start) -> None:
        container, memory = start.container, self._remember(pod)
        sandbox = view.ready_sandbox
        if sandbox is None:
            raise CriError("starting", container.name, "FAILED_PRECONDITION", "the sandbox is gone")
        if start.replaces is not None:
            ended = start.replaces.finished_at / 1e9
            self._backoff.restarted(pod.metadata.uid, container.name, ended, self._clock())
        reason = "ErrImagePull"
        try:
            image = self._image(pod, container)
            reason = "CreateContainerConfigError"
            if image.runs != "stand-in":
                translate.check_user(pod, container)
            env = self._environment(pod, container, sandbox.ips)
            reason = "CreateContainerError"
            key = self._runtime.create_container(
                sandbox.id,
                translate.container_config(pod, container, start.attempt, image.id, env),
                translate.sandbox_config(pod, sandbox.attempt, self._settings),
            )
            self._event(pod, "Normal", "Created", f"Created container: {container.name}", container)
            reason = "RunContainerError"
            self._runtime.start_container(key)
        except (CriError, environment.ConfigError) as error:
            message = error.message if isinstance(error, CriError) else error.answer
            if reason != "RunContainerError":  # that one has ended, and says so itself
                memory.waiting[container.name] = (reason, message)
            self._event(pod, "Warning", "Failed", f"Error: {message}", container)
            raise
        memory.waiting.pop(container.name, None)
        self._event(pod, "Normal", "Started", f"Started container {container.name}", container)

    def _image(self, pod: Pod, container: Container) -> Image:
        """The image, pulled if the policy wants it; podwire's own runtime needs no pulling, and says what runs instead."""
        name, policy = container.image, container.image_pull_policy
        image = self._runtime.image(name)
        if image.runs:
            return image
        if image.id and policy != "Always":
            self._event(pod, "Normal", "Pulled", f'Container image "{name}" already present on machine', container)
            return image
        if policy == "Never":
            raise CriError(
                "finding image", name, "NOT_FOUND", f'Container image "{name}" is not present with pull policy of Never'
            )
        self._event(pod, "Normal", "Pulling", f'Pulling image "{name}"', container)
        image = self._runtime.pull(name)
        self._event(pod, "Normal", "Pulled", f'Successfully pulled image "{name}"', container)
        return image

    def _environment(self, pod: Pod, container: Container, ips: tuple[str, ...]) -> dict[str, str]:
        links = pod.spec.enable_service_links
        services = environment.service_variables(self._services(), pod.metadata.namespace, links=links)
        facts = environment.Downward(self._node_name, self._node.ips, self._node.ips if pod.spec.host_network else ips)

        def config_map(name: str) -> Mapping[str, str] | None:
            try:
                return self._client.get(CONFIG_MAPS, name, pod.metadata.namespace).data
            except ApiNotFound:
                return None

        return environment.container_environment(pod, container, facts, services, config_map)

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
            self._forget(view.uid)

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
        self._forget(pod.metadata.uid)

    # reporting

    def _report(self, pod: Pod, view: PodView) -> None:
        """Send the status if it differs from what was last sent; that of a pod that has run to its end is final."""
        if pod.finished:
            return
        memory = self._remember(pod)
        wanted = podstatus.status(pod, view, self._node, memory.waiting, self._clock(), memory.reported)
        if memory.reported is not None and podstatus.same(memory.reported, wanted):
            return
        body = {"metadata": {"uid": pod.metadata.uid}, "status": wanted}
        try:
            self._client.patch(PODS, pod.metadata.name, body, pod.metadata.namespace, subresource="status")
        except (ApiNotFound, ApiConflict):
            return  # deleted meanwhile, or another pod of that name: the reflector will say so
        memory.reported = wanted

    def _remember(self, pod: Pod) -> Memory:
        return self._memory.setdefault(pod.metadata.uid, Memory())

    def _forget(self, uid: str) -> None:
        self._memory.pop(uid, None)
        self._backoff.forget(uid)

    def _event(self, pod: Pod, kind: str, reason: str, message: str, container: Container | None = None) -> None:
        target = reference(pod)
        if container is not None:
            target = ObjectReference(
                kind=target.kind,
                namespace=target.namespace,
                name=target.name,
                uid=target.uid,
                api_version=target.api_version,
                resource_version=target.resource_version,
                field_path=f"spec.{_section(pod, container)}{{{container.name}}}",
            )
        self._recorder.event(target, kind, reason, message)


def _section(pod: Pod, container: Container) -> str:
    return "initContainers" if container in pod.spec.init_containers else "containers"


def _go_name(code: str) -> str:
    """FAILED_PRECONDITION as Go spells it: FailedPrecondition."""
    return "".join(part.capitalize() for part in code.split("_"))
