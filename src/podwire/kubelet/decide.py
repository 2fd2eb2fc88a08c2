"""What to do next for a pod: a function of the pod as the API has it and of what the runtime has of it.

The function is total and has no memory, so it does not matter how a situation came about: a kubelet that was
restarted, a runtime that was, a container that somebody killed. One call gives all that can be done now; when
something changes (an event, a timer, a relist) it is called again.

    ended or deleted     stop what runs ── all ended ──► stop sandbox ──► (deleted: remove all, final delete)
    otherwise            no ready sandbox: stop what is left of the old one, run a new one
                         ready: init containers one after the other, sidecars among them, then all containers
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from podwire.kubelet.translate import container_hash, grace_period
from podwire.kubelet.view import Container as Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from podwire.kube.objects import Container, Pod
    from podwire.kubelet.view import PodView


@dataclass(frozen=True)
class Start:
    """Start this container of the pod as this attempt; `replaces` is the ended one before it."""

    container: Container
    attempt: int
    replaces: Seen | None = None


@dataclass(frozen=True)
class Stop:
    """End a running container: `grace` seconds after SIGTERM with SIGKILL; `why` is for the Event ('': none)."""

    id: str
    name: str
    grace: int
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """What to do now, in the order of the fields."""

    stop: tuple[Stop, ...] = ()
    stop_sandboxes: tuple[str, ...] = ()
    remove_sandboxes: tuple[str, ...] = ()
    remove_containers: tuple[str, ...] = ()
    run_sandbox: int | None = None  # the attempt
    start: tuple[Start, ...] = ()
    gone: bool = False  # nothing is left of a deleted pod: say so to the API
    again_in: float | None = None  # seconds until a back-off ends
    backing_off: dict[str, float] = field(default_factory=dict)  # container name → its whole delay

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do now."""
        return not (
            self.stop
            or self.stop_sandboxes
            or self.remove_sandboxes
            or self.remove_containers
            or self.start
            or self.gone
            or self.run_sandbox is not None
        )


def should_restart(policy: str, exit_code: int) -> bool:
    """Whether a pod's restart policy wants a container that ended so to run again."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def is_sidecar(container: Container) -> bool:
    """An init container that goes on running beside the others (restartPolicy: Always)."""
    return container.restart_policy == "Always"


def finished(pod: Pod, view: PodView) -> bool:
    """Whether the pod has run to its end: no container runs or would be started again."""
    policy = pod.spec.restart_policy
    for init in pod.spec.init_containers:
        if is_sidecar(init):
            continue
        last = view.latest(init.name)
        if last is not None and last.state == "exited" and last.exit_code != 0 and policy == "Never":
            return True
    lasts = [view.latest(container.name) for container in pod.spec.containers]
    return bool(lasts) and all(
        last is not None and last.state == "exited" and not should_restart(policy, last.exit_code) for last in lasts
    )


def with_lost(pod: Pod, view: PodView) -> PodView:
    """The view, with the containers that the API has seen and the runtime has no more (a node that was rebooted).

    They count as killed, so that restarts are counted on and a pod that must not be restarted ends.
    """
    lost = [
        Seen(
            id=known.container_id.rpartition("/")[2],
            name=known.name,
            attempt=known.restart_count,
            state="exited",
            exit_code=137,
            reason="ContainerStatusUnknown",
            message="The container could not be located when the pod was terminated",
            image=known.image,
            image_id=known.image_id,
        )
        for known in (*pod.status.init_container_statuses, *pod.status.container_statuses)
        if known.container_id and view.latest(known.name) is None
    ]
    return replace(view, containers=(*view.containers, *lost)) if lost else view


def teardown(view: PodView, grace: int | None, ending: Collection[str], why: str = "Stopping container") -> Plan:
    """End everything of a pod and remove it; `ending` are the containers whose end was asked for already.

    `grace` None: as the containers were started with (for a pod the API does not know any more).
    """
    running = view.running
    if running:
        return Plan(
            stop=tuple(
                Stop(one.id, one.name, grace if grace is not None else _own_grace(one), f"{why} {one.name}")
                for one in running
                if one.id not in ending
            )
        )
    ids = tuple(one.id for one in view.sandboxes)
    orphans = tuple(one.id for one in view.containers if one.sandbox not in ids)
    return Plan(stop_sandboxes=ids, remove_sandboxes=ids, remove_containers=orphans, gone=True)


def _own_grace(container: Seen) -> int:
    return container.grace if container.grace is not None else 30


def decide(
    pod: Pod, view: PodView, ending: Collection[str], left: Callable[[Seen], float], delay: Callable[[str], float]
) -> Plan:
    """The plan. `left` gives the seconds of back-off an ended container still has, `delay` its whole back-off by name."""
    if pod.terminating:
        return teardown(view, grace_period(pod), ending)
    if pod.finished or finished(pod, view):
        return _wind_up(pod, view, ending)
    if view.ready_sandbox is None:
        return _new_sandbox(view, ending)
    plan = _Containers(pod, view, ending, left, delay).plan()
    old = tuple(one.id for one in view.sandboxes[1:])
    if not old:
        return plan
    return replace(plan, stop_sandboxes=old, remove_sandboxes=old)


def _wind_up(pod: Pod, view: PodView, ending: Collection[str]) -> Plan:
    """A pod at its end keeps its containers, for their logs, but not its network; sidecars are stopped."""
    running = view.running
    if running:
        grace = grace_period(pod)
        return Plan(stop=tuple(Stop(one.id, one.name, grace) for one in running if one.id not in ending))
    return Plan(stop_sandboxes=tuple(one.id for one in view.sandboxes if one.ready))


def _new_sandbox(view: PodView, ending: Collection[str]) -> Plan:
    """Nothing that ran in the old one can go on: its network is gone."""
    running = view.running
    if running:
        return Plan(stop=tuple(Stop(one.id, one.name, _own_grace(one)) for one in running if one.id not in ending))
    attempt = view.sandbox.attempt + 1 if view.sandbox is not None else 0
    return Plan(stop_sandboxes=tuple(one.id for one in view.sandboxes), run_sandbox=attempt)


class _Containers:
    """The decision for the containers of a pod whose sandbox is ready."""

    def __init__(
        self,
        pod: Pod,
        view: PodView,
        ending: Collection[str],
        left: Callable[[Seen], float],
        delay: Callable[[str], float],
    ) -> None:
        self._pod = pod
        self._view = view
        self._ending = ending
        self._left = left
        self._delay = delay
        self._start: list[Start] = []
        self._stop: list[Stop] = []
        self._remove: list[str] = []
        self._waits: list[float] = []
        self._backing_off: dict[str, float] = {}

    def plan(self) -> Plan:
        if self._init():
            for container in self._pod.spec.containers:
                self._one(container, self._pod.spec.restart_policy)
        return Plan(
            stop=tuple(self._stop),
            remove_containers=tuple(self._remove),
            start=tuple(self._start),
            again_in=min(self._waits) if self._waits else None,
            backing_off=self._backing_off,
        )

    def _here(self, container: Container) -> Seen | None:
        """The newest container of this name in the sandbox that is ready: in a new sandbox everything begins anew."""
        sandbox = self._view.ready_sandbox
        last = self._view.latest(container.name)
        return last if last is not None and sandbox is not None and last.sandbox == sandbox.id else None

    def _init(self) -> bool:
        """Bring the init containers forward; whether the others may start.

        Once one of the others exists initialisation is over, whatever is left of the init containers' records.
        """
        started = any(self._here(container) for container in self._pod.spec.containers)
        for init in self._pod.spec.init_containers:
            last = self._here(init)
            if is_sidecar(init):
                self._one(init, "Always")
                if not started and (last is None or not last.running):
                    return False
            elif not started and not (last is not None and last.state == "exited" and last.exit_code == 0):
                self._one(init, "Always" if last is None else "OnFailure")  # with policy Never a failure ends the pod
                return False
        return True

    def _one(self, container: Container, policy: str) -> None:
        last = self._view.latest(container.name)
        if last is None:
            self._start.append(Start(container, 0))
        elif last.running:
            if last.hash and last.hash != container_hash(container) and last.id not in self._ending:
                why = f"Container {container.name} definition changed, will be restarted"
                self._stop.append(Stop(last.id, last.name, grace_period(self._pod), why))
        elif last.state != "exited":
            # Made but never started: the kubelet or the runtime was killed in between. Make a new one.
            self._remove.append(last.id)
            self._start.append(Start(container, last.attempt))
        elif should_restart(policy, last.exit_code):
            self._again(container, last)

    def _again(self, container: Container, last: Seen) -> None:
        left = self._left(last)
        if left > 0:
            self._waits.append(left)
            self._backing_off[container.name] = self._delay(container.name)
            return
        self._start.append(Start(container, last.attempt + 1, last))
        older = [one for one in self._view.containers if one.name == container.name and one.id != last.id]
        self._remove += [one.id for one in older]
