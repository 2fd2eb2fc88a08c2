"""The pod's status, from the pod and from what the runtime has of it. Pure.

Phase and conditions follow the kubelet's rules (kubelet_pods.go getPhase, status/generate.go), so that `kubectl get` and
`wait` read as they always do. A condition keeps its lastTransitionTime as long as its status stays; conditions that others
own (PodScheduled, DisruptionTarget) are passed through untouched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from podwire.kube.times import rfc3339
from podwire.kubelet.decide import is_sidecar, should_restart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.kube.objects import Container, Pod
    from podwire.kubelet.view import Container as Seen
    from podwire.kubelet.view import PodView

OWN = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
RUNTIME = "podwire"


class Node(NamedTuple):
    """The node's addresses, the primary one first, and the runtime's name for container ids."""

    ips: tuple[str, ...]
    runtime: str = RUNTIME


def _when(nanoseconds: int) -> str | None:
    return rfc3339(nanoseconds / 1e9) if nanoseconds else None


def status(
    pod: Pod,
    view: PodView,
    node: Node,
    waiting: Mapping[str, tuple[str, str]],
    now: float,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The status as it is sent: every field the kubelet owns is there, None where it has to be taken away.

    `waiting` says, by container, why it does not run: (reason, message). `before` is the status as last sent, which the
    pod from the API may not show yet.
    """
    before = before or {}
    initialized = _initialized(pod, view)
    inits = [_container(pod, view, one, node, waiting, "PodInitializing") for one in pod.spec.init_containers]
    reason = "ContainerCreating" if initialized else "PodInitializing"
    mains = [_container(pod, view, one, node, waiting, reason) for one in pod.spec.containers]
    phase = _phase(pod, view)
    ips = _ips(pod, view, node, before)
    found: dict[str, Any] = {
        "phase": phase,
        "hostIP": node.ips[0] if node.ips else None,
        "hostIPs": [{"ip": ip} for ip in node.ips] or None,
        "podIP": ips[0] if ips else None,
        "podIPs": [{"ip": ip} for ip in ips] or None,
        "startTime": pod.status.start_time or before.get("startTime") or rfc3339(now),
        "containerStatuses": mains,
        "conditions": _conditions(pod, view, phase, initialized, mains, _Since(pod, before, now)),
    }
    if pod.spec.init_containers:
        found["initContainerStatuses"] = inits
    return found


def _ips(pod: Pod, view: PodView, node: Node, before: dict[str, Any]) -> tuple[str, ...]:
    """Of the ready sandbox; an ended pod keeps the address it had, which tells whose traffic an old log shows."""
    if pod.spec.host_network:
        return node.ips if view.sandboxes else ()
    sandbox = view.ready_sandbox
    if sandbox is not None:
        return sandbox.ips
    if not view.sandboxes or view.running:
        return ()
    return tuple(one["ip"] for one in before.get("podIPs") or ()) or pod.addresses


def _container(
    pod: Pod, view: PodView, container: Container, node: Node, waiting: Mapping[str, tuple[str, str]], default: str
) -> dict[str, Any]:
    last = view.latest(container.name)
    found: dict[str, Any] = {
        "name": container.name,
        "image": container.image,
        "imageID": last.image_id if last is not None else "",
        "ready": last is not None and last.running,
        "started": last is not None and last.running,
        "restartCount": last.attempt if last is not None else 0,
        "state": {},
    }
    if last is not None:
        found["containerID"] = f"{node.runtime}://{last.id}"
    if _is_init(pod, container) and not is_sidecar(container):
        found["ready"] = last is not None and last.state == "exited" and last.exit_code == 0
    previous = view.previous(container.name)
    reason = waiting.get(container.name)
    if last is not None and last.running:
        found["state"] = {"running": {"startedAt": _when(last.started_at)}}
    elif last is not None and last.state == "exited" and reason is None:
        found["state"] = {"terminated": _terminated(last, node)}
    else:
        text = reason or (default, "")
        found["state"] = {"waiting": {"reason": text[0], **({"message": text[1]} if text[1] else {})}}
        if last is not None and last.state == "exited":
            previous = last
    if previous is not None and previous.state == "exited":
        found["lastState"] = {"terminated": _terminated(previous, node)}
    return found


def _terminated(seen: Seen, node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {
        "exitCode": seen.exit_code,
        "reason": seen.reason or ("Completed" if seen.exit_code == 0 else "Error"),
        "message": seen.message or None,
        "startedAt": _when(seen.started_at),
        "finishedAt": _when(seen.finished_at),
        "containerID": f"{node.runtime}://{seen.id}",
    }
    return {name: value for name, value in found.items() if value is not None}


def _is_init(pod: Pod, container: Container) -> bool:
    return any(one.name == container.name for one in pod.spec.init_containers)


def _initialized(pod: Pod, view: PodView) -> bool:
    if any(view.latest(one.name) for one in pod.spec.containers):
        return True
    for init in pod.spec.init_containers:
        last = view.latest(init.name)
        if last is None:
            return False
        if is_sidecar(init):
            if not last.running:
                return False
        elif last.state != "exited" or last.exit_code != 0:
            return False
    return True


def _phase(pod: Pod, view: PodView) -> str:
    if pod.finished:
        return pod.status.phase  # for ever: a phase never goes back
    policy = pod.spec.restart_policy
    for init in pod.spec.init_containers:
        last = view.latest(init.name)
        failed = last is not None and last.state == "exited" and last.exit_code != 0
        if failed and policy == "Never" and not is_sidecar(init):
            return "Failed"
    if not _initialized(pod, view):
        return "Pending"
    lasts = [view.latest(one.name) for one in pod.spec.containers]
    if any(last is None or last.state not in ("running", "exited") for last in lasts):
        return "Pending"
    ended = [last for last in lasts if last is not None and last.state == "exited"]
    if len(ended) < len(lasts):
        return "Running"
    # A deleted pod is not started again, whatever its policy: what has ended has ended.
    if not pod.terminating and any(should_restart(policy, last.exit_code) for last in ended):
        return "Running"
    return "Succeeded" if all(last.exit_code == 0 for last in ended) else "Failed"


class _Since:
    """Since when a condition has had its status: as last sent, else as the API has it, else now."""

    def __init__(self, pod: Pod, before: dict[str, Any], now: float) -> None:
        self._known = {one.type: (one.status, one.last_transition_time) for one in pod.status.conditions}
        self._known |= {
            one["type"]: (one["status"], one.get("lastTransitionTime")) for one in before.get("conditions", ())
        }
        self._now = rfc3339(now)

    def of(self, name: str, state: str) -> str:
        """The lastTransitionTime of a condition that now has `state`."""
        old, when = self._known.get(name, ("", None))
        return when if old == state and when else self._now


def _conditions(
    pod: Pod, view: PodView, phase: str, initialized: bool, mains: list[dict[str, Any]], since: _Since
) -> list[dict[str, Any]]:
    unready = [one["name"] for one in mains if not one["ready"]]
    ended = phase in ("Succeeded", "Failed")
    over = "PodCompleted" if phase == "Succeeded" else "PodFailed"
    if ended:
        ready = ("False", over, "")
    elif unready:
        ready = ("False", "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]")
    else:
        ready = ("True", "", "")
    whole = ready if ready[0] == "False" else _gates(pod) or ready
    open_ = [one.name for one in pod.spec.init_containers if not _done(view, one)]
    initial = (
        ("True", over if phase == "Succeeded" else "", "")
        if initialized
        else ("False", "ContainersNotInitialized", f"containers with incomplete status: [{' '.join(open_)}]")
    )
    sandbox = view.ready_sandbox is not None
    wanted = {
        "PodReadyToStartContainers": ("True" if sandbox else "False", "", ""),
        "Initialized": initial,
        "Ready": whole,
        "ContainersReady": ready,
    }
    found = [msgspec.to_builtins(one) for one in pod.status.conditions if one.type not in OWN]
    for name, (state, reason, message) in wanted.items():
        one = {"type": name, "status": state, "lastProbeTime": None, "lastTransitionTime": since.of(name, state)}
        if reason:
            one["reason"] = reason
        if message:
            one["message"] = message
        found.append(one)
    return found


def _done(view: PodView, init: Container) -> bool:
    last = view.latest(init.name)
    if last is None:
        return False
    return last.running if is_sidecar(init) else last.state == "exited" and last.exit_code == 0


def _gates(pod: Pod) -> tuple[str, str, str] | None:
    states = {one.type: one.status for one in pod.status.conditions}
    for gate in pod.spec.readiness_gates:
        name = gate.get("conditionType", "")
        if states.get(name) != "True":
            text = f'corresponding condition of pod readiness gate "{name}" does not exist.'
            if name in states:
                text = f'the status of pod readiness gate "{name}" is not "True", but {states[name]}'
            return ("False", "ReadinessGatesNotReady", text)
    return None


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two statuses say the same; startTime is only set once."""
    skip = ("startTime",)
    return {k: v for k, v in one.items() if k not in skip} == {k: v for k, v in other.items() if k not in skip}
