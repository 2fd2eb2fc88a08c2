"""What controllers want to know of a pod, and which of several to delete first. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from podwire.kube.times import epoch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kube.objects import Condition, Pod


def is_active(pod: Pod) -> bool:
    """Whether it counts as a replica: not ended and not being deleted."""
    return not pod.finished and not pod.terminating


def condition(pod: Pod, name: str) -> Condition | None:
    """The pod's condition of that type."""
    return next((entry for entry in pod.status.conditions if entry.type == name), None)


def seconds_until_available(pod: Pod, min_ready_seconds: int, now: float) -> float | None:
    """0 for a pod that has been ready long enough, the rest of the time for a ready one, None for one that is not ready."""
    ready = condition(pod, "Ready")
    if ready is None or ready.status != "True":
        return None
    since = epoch(ready.last_transition_time)
    if not min_ready_seconds or since is None:
        return 0.0
    return max(0.0, since + min_ready_seconds - now)


def to_delete(pods: list[Pod], count: int, related: Iterable[Pod]) -> list[Pod]:
    """`count` of `pods`, those that will be missed least first (controller.ActivePodsWithRanks).

    Not on a node before on one; pending, then unknown, then running; not ready before ready; from the node that has most of the
    related pods; ready for a shorter time; restarted more often; younger.
    """
    crowd = Counter(pod.spec.node_name for pod in related if is_active(pod))
    phases = {"Pending": 0, "Unknown": 1}

    def rank(pod: Pod) -> tuple[object, ...]:
        ready = condition(pod, "Ready")
        since = epoch(ready.last_transition_time) if ready else None
        restarts = max((status.restart_count for status in pod.status.container_statuses), default=0)
        return (
            bool(pod.spec.node_name),
            phases.get(pod.status.phase, 2),
            pod.ready,
            -crowd[pod.spec.node_name],
            -(since or 0.0),
            -restarts,
            -(epoch(pod.metadata.creation_timestamp) or 0.0),
            pod.metadata.name,
        )

    return sorted(pods, key=rank)[:count]
