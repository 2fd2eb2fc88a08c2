"""The status of a Deployment. Pure: the same View that `rollout.plan` works on → what `kubectl rollout status` reads.

    Available    enough pods are available: MinimumReplicasAvailable, MinimumReplicasUnavailable
    Progressing  NewReplicaSetCreated → ReplicaSetUpdated → NewReplicaSetAvailable, or ProgressDeadlineExceeded;
                 DeploymentPaused and DeploymentResumed in between
    ReplicaFailure  a ReplicaSet cannot make its pods

A condition's lastTransitionTime moves with its status, lastUpdateTime with its status or reason; a rollout that makes progress
moves lastUpdateTime, from which the deadline counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.controllers.rollout import View, is_complete, seconds_until_deadline, surge_and_unavailable
from podwire.kube.times import rfc3339

if TYPE_CHECKING:
    from podwire.kube.objects import Condition, DeploymentStatus

COUNTS = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas")


def status_of(view: View, now: float, *, created: str = "") -> dict[str, Any]:
    """The whole status; `created` names a ReplicaSet that was made in this very step."""
    deployment, old = view.deployment, view.deployment.status
    available = sum(rs.status.available_replicas for rs in view.all)
    counts = {
        "replicas": sum(rs.status.replicas for rs in view.all),
        "updatedReplicas": view.new.status.replicas if view.new else 0,
        "readyReplicas": sum(rs.status.ready_replicas for rs in view.all),
        "availableReplicas": available,
        "unavailableReplicas": max(0, sum(rs.spec.replicas for rs in view.all) - available),
    }
    conditions = {entry.type: _as_json(entry) for entry in old.conditions}
    _available(conditions, view, available, now)
    _progressing(conditions, view, counts, now, created)
    _failure(conditions, view)
    return {
        "observedGeneration": deployment.metadata.generation,
        **counts,
        "collisionCount": old.collision_count,
        "conditions": list(conditions.values()),
    }


def differs(status: dict[str, Any], current: DeploymentStatus) -> bool:
    """Whether `status` has to be written."""
    have = (
        current.observed_generation,
        current.replicas,
        current.updated_replicas,
        current.ready_replicas,
        current.available_replicas,
        current.unavailable_replicas,
        current.collision_count,
    )
    new = (status["observedGeneration"], *(status[name] for name in COUNTS), status["collisionCount"])
    return have != new or status["conditions"] != [_as_json(entry) for entry in current.conditions]


def _available(conditions: dict[str, Any], view: View, available: int, now: float) -> None:
    _, unavailable = surge_and_unavailable(view.deployment)
    if available >= view.deployment.spec.replicas - unavailable:
        text = "Deployment has minimum availability."
        _set(conditions, "Available", "True", "MinimumReplicasAvailable", text, now)
    else:
        text = "Deployment does not have minimum availability."
        _set(conditions, "Available", "False", "MinimumReplicasUnavailable", text, now)


def _progressing(conditions: dict[str, Any], view: View, counts: dict[str, int], now: float, created: str) -> None:
    deployment, current = view.deployment, conditions.get("Progressing")
    if deployment.spec.progress_deadline_seconds in (None, 2**31 - 1):
        conditions.pop("Progressing", None)
        return
    reason = current["reason"] if current else ""
    if deployment.spec.paused:
        if reason not in ("DeploymentPaused", "ProgressDeadlineExceeded"):
            _set(conditions, "Progressing", "Unknown", "DeploymentPaused", "Deployment is paused", now)
        return
    if reason == "DeploymentPaused":
        _set(conditions, "Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed", now)
    if created:
        text = f'Created new replica set "{created}"'
        _set(conditions, "Progressing", "True", "NewReplicaSetCreated", text, now)
        return
    name = view.new.metadata.name if view.new else ""
    subject = f'ReplicaSet "{name}"' if name else f'Deployment "{deployment.metadata.name}"'
    if reason == "NewReplicaSetAvailable" and counts["replicas"] == counts["updatedReplicas"]:
        return  # complete; being scaled or losing a pod is not a rollout
    if is_complete(view):
        text = f"{subject} has successfully progressed."
        _set(conditions, "Progressing", "True", "NewReplicaSetAvailable", text, now)
    elif _moved(view, counts) or current is None:
        since = current["lastTransitionTime"] if current and current["status"] == "True" else rfc3339(now)
        conditions.pop("Progressing", None)
        _set(conditions, "Progressing", "True", "ReplicaSetUpdated", f"{subject} is progressing.", now)
        conditions["Progressing"]["lastTransitionTime"] = since
    elif seconds_until_deadline(deployment, now) == 0.0:
        text = f"{subject} has timed out progressing."
        _set(conditions, "Progressing", "False", "ProgressDeadlineExceeded", text, now)


def _moved(view: View, counts: dict[str, int]) -> bool:
    old = view.deployment.status
    return (
        counts["updatedReplicas"] > old.updated_replicas
        or counts["replicas"] - counts["updatedReplicas"] < old.replicas - old.updated_replicas
        or counts["readyReplicas"] > old.ready_replicas
        or counts["availableReplicas"] > old.available_replicas
    )


def _failure(conditions: dict[str, Any], view: View) -> None:
    found = [entry for rs in ([view.new] if view.new else view.old) for entry in rs.status.conditions]
    failure = next((entry for entry in found if entry.type == "ReplicaFailure"), None)
    if failure is None:
        conditions.pop("ReplicaFailure", None)
    else:
        conditions["ReplicaFailure"] = {**_as_json(failure), "lastUpdateTime": failure.last_transition_time}


def _set(conditions: dict[str, Any], kind: str, status: str, reason: str, message: str, now: float) -> None:
    current = conditions.get(kind)
    if current and current["status"] == status and current["reason"] == reason:
        return
    kept = current["lastTransitionTime"] if current and current["status"] == status else rfc3339(now)
    conditions[kind] = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastUpdateTime": rfc3339(now),
        "lastTransitionTime": kept,
    }


def _as_json(entry: Condition) -> dict[str, Any]:
    return {
        "type": entry.type,
        "status": entry.status,
        "reason": entry.reason,
        "message": entry.message,
        "lastUpdateTime": entry.last_update_time,
        "lastTransitionTime": entry.last_transition_time,
    }
