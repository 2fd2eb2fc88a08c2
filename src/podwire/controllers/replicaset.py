"""The ReplicaSet controller: as many pods as `spec.replicas` says, and a status that counts them.

Pods are made with the ReplicaSet's name as generateName and an owner reference with controller=true. Several at once are made
in batches of 1, 2, 4 …, so that a template nobody accepts fails once and not five hundred times. Which pods go first
when there are too many is decided in `pods.to_delete`. What was written but is not shown yet is in `expectations`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from podwire.controllers import ownership, pods
from podwire.controllers.controller import Context, Controller, gone
from podwire.controllers.expectations import Expectations
from podwire.errors import ApiConflict, ApiError, ApiNotFound, ApiUnavailable
from podwire.kube.answers import TERMINATING
from podwire.kube.kinds import PODS, REPLICA_SETS
from podwire.kube.times import rfc3339

if TYPE_CHECKING:
    from podwire.kube.objects import Pod, ReplicaSet

log = logging.getLogger("podwire.controllers")

BURST = 500  # at most so many pods a sync, as the real one


def pod_body(replica_set: ReplicaSet) -> dict[str, Any]:
    """A pod of the set, from its template."""
    template = replica_set.spec.template
    meta = {
        key: value
        for key, value in template.get("metadata", {}).items()
        if key in ("labels", "annotations", "finalizers")
    }
    meta["generateName"] = f"{replica_set.metadata.name}-"
    meta["namespace"] = replica_set.metadata.namespace
    meta["ownerReferences"] = [ownership.owner_reference(replica_set)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template.get("spec", {})}


def status_of(
    replica_set: ReplicaSet, active: list[Pod], failure: str, now: float
) -> tuple[dict[str, Any], float | None]:
    """The status for these pods, and in how many seconds it changes by itself (minReadySeconds)."""
    labels = replica_set.spec.template.get("metadata", {}).get("labels") or {}
    waits = [pods.seconds_until_available(pod, replica_set.spec.min_ready_seconds, now) for pod in active]
    status: dict[str, Any] = {
        "observedGeneration": replica_set.metadata.generation,
        "replicas": len(active),
        "fullyLabeledReplicas": sum(labels.items() <= pod.metadata.labels.items() for pod in active),
        "readyReplicas": sum(wait is not None for wait in waits),
        "availableReplicas": sum(wait == 0.0 for wait in waits),
        "conditions": _conditions(replica_set, failure, now),
    }
    return status, min((wait for wait in waits if wait), default=None)


def _conditions(replica_set: ReplicaSet, failure: str, now: float) -> list[dict[str, Any]]:
    if not failure:
        return []
    old = next((entry for entry in replica_set.status.conditions if entry.type == "ReplicaFailure"), None)
    since = old.last_transition_time if old is not None else rfc3339(now)
    return [
        {
            "type": "ReplicaFailure",
            "status": "True",
            "reason": "FailedCreate",
            "message": failure,
            "lastTransitionTime": since,
        }
    ]


class ReplicaSets(Controller):
    """The controller; keys are ReplicaSets."""

    name = "replicaset"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._sets = context.informer(REPLICA_SETS)
        self._pods = context.informer(PODS)
        self._events = context.recorder("replicaset-controller")
        self._written: Expectations[Pod] = Expectations(context.clock)
        self._sets.on_change(lambda key, _old, _new: self.queue.add(key))
        self._pods.on_change(self._pod_changed)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        self._written.observed(old, new)
        for pod in (old, new):
            if pod is None:
                continue
            owner = pod.metadata.controller
            if owner is not None and owner.kind == "ReplicaSet":
                self.queue.add(f"{pod.metadata.namespace}/{owner.name}")
            elif owner is None and pod is new:
                for replica_set in self._sets.objects(pod.metadata.namespace):
                    selector = replica_set.spec.selector
                    if not ownership.is_empty(selector) and selector.matches(pod.metadata.labels):
                        self.queue.add(replica_set.key)

    def sync(self, key: str) -> None:
        """One ReplicaSet."""
        replica_set = self._sets.get(key)
        if replica_set is None or ownership.is_empty(replica_set.spec.selector):
            return
        self._ask_about_overdue()
        active = self._claim(replica_set)
        failure = ""
        if replica_set.metadata.deletion_timestamp is None:
            active, failure = self._manage(replica_set, active)
        now = self.context.clock()
        status, changes_in = status_of(replica_set, active, failure, now)
        self._write_status(replica_set, status)
        if failure:
            raise ApiUnavailable("creating pods of", key, 0, "FailedCreate", failure)
        if changes_in is not None:
            self.queue.add_after(key, changes_in)

    def _claim(self, replica_set: ReplicaSet) -> list[Pod]:
        namespace = replica_set.metadata.namespace
        candidates = self._written.view(self._pods.objects(namespace), namespace)
        found = ownership.claim(replica_set, replica_set.spec.selector, filter(pods.is_active, candidates))
        owned = list(found.owned)
        for pod in found.adopt:
            if self._still_there(replica_set):
                patch = ownership.adoption(replica_set, pod)
                if not gone(lambda pod=pod, patch=patch: self._patch(pod, patch)):  # type: ignore[misc]  # bound now
                    owned.append(pod)
        for pod in found.release:
            patch = ownership.release(replica_set, pod)
            gone(lambda pod=pod, patch=patch: self._patch(pod, patch))  # type: ignore[misc]  # bound now
        return owned

    def _patch(self, pod: Pod, body: dict[str, Any]) -> None:
        self.client.patch(PODS, pod.metadata.name, body, pod.metadata.namespace, patch_type="strategic")

    def _still_there(self, replica_set: ReplicaSet) -> bool:
        """Ask the API, not the informer: adopting for a ReplicaSet that is gone would orphan the pod to a dead owner."""
        try:
            live = self.client.get(REPLICA_SETS, replica_set.metadata.name, replica_set.metadata.namespace)
        except ApiNotFound:
            return False
        return live.metadata.uid == replica_set.metadata.uid and live.metadata.deletion_timestamp is None

    def _manage(self, replica_set: ReplicaSet, active: list[Pod]) -> tuple[list[Pod], str]:
        """Make or delete pods; returns the active ones afterwards and what the API refused, if it did."""
        missing = replica_set.spec.replicas - len(active)
        if missing > 0:
            made, failure = self._create(replica_set, min(missing, BURST))
            return active + made, failure
        doomed = pods.to_delete(active, min(-missing, BURST), self._siblings(replica_set)) if missing < 0 else []
        for pod in doomed:
            self._delete(replica_set, pod)
        gone_uids = {pod.metadata.uid for pod in doomed}
        return [pod for pod in active if pod.metadata.uid not in gone_uids], ""

    def _create(self, replica_set: ReplicaSet, count: int) -> tuple[list[Pod], str]:
        made: list[Pod] = []
        body, batch = pod_body(replica_set), 1
        while len(made) < count:
            for _ in range(min(batch, count - len(made))):
                try:
                    pod = self.client.create(PODS, body)
                except ApiError as error:
                    if error.reason == TERMINATING:  # the namespace is being emptied
                        return made, ""
                    self._events.event(replica_set, "Warning", "FailedCreate", f"Error creating: {error.message}")
                    return made, error.message
                self._written.created(pod)
                made.append(pod)
                self._events.event(replica_set, "Normal", "SuccessfulCreate", f"Created pod: {pod.metadata.name}")
            batch *= 2
        log.info("created pods", extra={"kv": {"replicaset": replica_set.key, "pods": len(made)}})
        return made, ""

    def _delete(self, replica_set: ReplicaSet, pod: Pod) -> None:
        meta = pod.metadata
        try:
            self.client.delete(PODS, meta.name, meta.namespace, uid=meta.uid)
        except (ApiNotFound, ApiConflict):  # gone, or another pod of that name
            self._written.forget(pod)
            return
        self._written.deleted(pod)
        self._events.event(replica_set, "Normal", "SuccessfulDelete", f"Deleted pod: {meta.name}")
        log.info("deleted pod", extra={"kv": {"replicaset": replica_set.key, "pod": meta.name}})

    def _siblings(self, replica_set: ReplicaSet) -> list[Pod]:
        """Pods of all ReplicaSets with the same controller: what makes a node crowded."""
        owner = replica_set.metadata.controller
        names = {
            other.metadata.uid
            for other in self._sets.objects(replica_set.metadata.namespace)
            if other.metadata.uid == replica_set.metadata.uid
            or (owner is not None and (theirs := other.metadata.controller) is not None and theirs.uid == owner.uid)
        }
        candidates = self._pods.objects(replica_set.metadata.namespace)
        return [pod for pod in candidates if (ours := pod.metadata.controller) is not None and ours.uid in names]

    def _write_status(self, replica_set: ReplicaSet, status: dict[str, Any]) -> None:
        old = replica_set.status
        current = {
            "observedGeneration": old.observed_generation,
            "replicas": old.replicas,
            "fullyLabeledReplicas": old.fully_labeled_replicas,
            "readyReplicas": old.ready_replicas,
            "availableReplicas": old.available_replicas,
        }
        conditions = [entry.message for entry in old.conditions]
        if current == {key: status[key] for key in current} and conditions == [
            c["message"] for c in status["conditions"]
        ]:
            return
        # Zero counts are left out, as Go's omitempty does; `replicas` is always there.
        written = {key: value or (0 if key == "replicas" else None) for key, value in status.items()}
        meta = replica_set.metadata
        body = {"metadata": {"uid": meta.uid}, "status": written}
        gone(lambda: self.client.patch(REPLICA_SETS, meta.name, body, meta.namespace, subresource="status"))

    def _ask_about_overdue(self) -> None:
        for pod in self._written.overdue():
            try:
                live = self.client.get(PODS, pod.metadata.name, pod.metadata.namespace)
            except ApiNotFound:
                live = None
            if live is None or live.metadata.uid != pod.metadata.uid:
                self._written.forget(pod)
            else:
                self._written.created(live)
