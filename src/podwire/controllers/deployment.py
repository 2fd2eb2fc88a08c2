"""The Deployment controller: carries out what `rollout.plan` says, one step a change, and writes the status.

Only this file talks to the API; what to do is decided in `rollout` and what to report in `rolloutstatus`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from podwire.controllers import ownership, rollout, rolloutstatus
from podwire.controllers.controller import Context, Controller, gone
from podwire.errors import ApiAlreadyExists, ApiConflict, ApiNotFound
from podwire.kube.kinds import DEPLOYMENTS, PODS, REPLICA_SETS

if TYPE_CHECKING:
    from podwire.kube.objects import Deployment, Pod, ReplicaSet

log = logging.getLogger("podwire.controllers")


class Deployments(Controller):
    """The controller; keys are Deployments."""

    name = "deployment"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deployments = context.informer(DEPLOYMENTS)
        self._sets = context.informer(REPLICA_SETS)
        self._pods = context.informer(PODS)
        self._events = context.recorder("deployment-controller")
        self._deployments.on_change(lambda key, _old, _new: self.queue.add(key))
        self._sets.on_change(self._set_changed)
        self._pods.on_change(self._pod_changed)

    def _set_changed(self, _key: str, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        for replica_set in (old, new):
            if replica_set is None:
                continue
            owner = replica_set.metadata.controller
            if owner is not None and owner.kind == "Deployment":
                self.queue.add(f"{replica_set.metadata.namespace}/{owner.name}")
            elif owner is None and replica_set is new:
                for deployment in self._deployments.objects(replica_set.metadata.namespace):
                    if deployment.spec.selector.matches(replica_set.metadata.labels):
                        self.queue.add(deployment.key)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        """Recreate waits for the last old pod, which ends after its ReplicaSet no longer counts it."""
        if old is None or (new is not None and not new.finished):
            return
        owner = old.metadata.controller
        replica_set = self._sets.get(f"{old.metadata.namespace}/{owner.name}") if owner else None
        above = replica_set.metadata.controller if replica_set else None
        if above is not None and above.kind == "Deployment":
            self.queue.add(f"{old.metadata.namespace}/{above.name}")

    def sync(self, key: str) -> None:
        """One Deployment."""
        deployment = self._deployments.get(key)
        if deployment is None or ownership.is_empty(deployment.spec.selector):
            return
        view = self._view(deployment)
        plan = rollout.plan(view)
        created = ""
        for replica_set, patch in plan.annotate:
            self._patch_set(replica_set, patch)
        if plan.create is not None:
            created = self._create(view, plan.create)
        for scale in plan.scales:
            self._scale(deployment, scale)
        for replica_set in plan.delete:
            self._delete(replica_set)
        if plan.revision is not None:
            self._note_revision(deployment, plan.revision)
        now = self.context.clock()
        self._write_status(deployment, rolloutstatus.status_of(view, now, created=created))
        deadline = rollout.seconds_until_deadline(deployment, now)
        if deadline:
            self.queue.add_after(key, deadline + 1)

    def _view(self, deployment: Deployment) -> rollout.View:
        namespace = deployment.metadata.namespace
        found = ownership.claim(deployment, deployment.spec.selector, self._sets.objects(namespace))
        owned = list(found.owned)
        for replica_set in found.adopt:
            if self._still_there(deployment):
                self._patch_set(replica_set, ownership.adoption(deployment, replica_set), strategic=True)
                owned.append(replica_set)
        for replica_set in found.release:
            self._patch_set(replica_set, ownership.release(deployment, replica_set), strategic=True)
        view = rollout.sort_out(deployment, owned)
        if deployment.spec.strategy.type != "Recreate":
            return view
        old = {replica_set.metadata.uid for replica_set in view.old}
        running = any(
            not pod.finished and (owner := pod.metadata.controller) is not None and owner.uid in old
            for pod in self._pods.objects(namespace)
        )
        return view._replace(old_pods_running=running)

    def _still_there(self, deployment: Deployment) -> bool:
        try:
            live = self.client.get(DEPLOYMENTS, deployment.metadata.name, deployment.metadata.namespace)
        except ApiNotFound:
            return False
        return live.metadata.uid == deployment.metadata.uid and live.metadata.deletion_timestamp is None

    def _create(self, view: rollout.View, body: dict[str, Any]) -> str:
        deployment, name, size = view.deployment, body["metadata"]["name"], body["spec"]["replicas"]
        try:
            self.client.create(REPLICA_SETS, body)
        except ApiAlreadyExists:
            self._resolve_collision(deployment, name)
            return ""
        log.info(
            "created replica set", extra={"kv": {"deployment": deployment.key, "replicaset": name, "replicas": size}}
        )
        if size:
            self._say_scaled(deployment, name, 0, size)
        return str(name)

    def _resolve_collision(self, deployment: Deployment, name: str) -> None:
        """The name is taken: by our own ReplicaSet that the informer does not show yet, or by another template."""
        live = self.client.get(REPLICA_SETS, name, deployment.metadata.namespace)
        owner = live.metadata.controller
        ours = owner is not None and owner.uid == deployment.metadata.uid
        if ours and rollout.sort_out(deployment, [live]).new is not None:
            return
        count = (deployment.status.collision_count or 0) + 1
        log.warning("hash collision", extra={"kv": {"deployment": deployment.key, "replicaset": name, "count": count}})
        self._patch_status(deployment, {"collisionCount": count})
        raise ApiConflict("creating", name, 409, "AlreadyExists", "the template's hash collides; trying another")

    def _scale(self, deployment: Deployment, scale: rollout.Scale) -> None:
        replica_set = scale.replica_set
        before = replica_set.spec.replicas
        meta: dict[str, Any] = {"resourceVersion": replica_set.metadata.resource_version}
        meta["annotations"] = scale.annotations
        patch: dict[str, Any] = {"metadata": meta}
        if before != scale.replicas:
            patch["spec"] = {"replicas": scale.replicas}
        self._patch_set(replica_set, patch)
        if before != scale.replicas:
            fields = {"deployment": deployment.key, "replicaset": replica_set.metadata.name, "replicas": scale.replicas}
            log.info("scaled replica set", extra={"kv": fields})
            self._say_scaled(deployment, replica_set.metadata.name, before, scale.replicas)

    def _say_scaled(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        way = "up" if after > before else "down"
        text = f"Scaled {way} replica set {name} from {before} to {after}"
        self._events.event(deployment, "Normal", "ScalingReplicaSet", text)

    def _delete(self, replica_set: ReplicaSet) -> None:
        meta = replica_set.metadata
        gone(
            lambda: self.client.delete(REPLICA_SETS, meta.name, meta.namespace, uid=meta.uid, propagation="Background")
        )

    def _patch_set(self, replica_set: ReplicaSet, body: dict[str, Any], *, strategic: bool = False) -> None:
        meta, how = replica_set.metadata, "strategic" if strategic else "merge"
        gone(lambda: self.client.patch(REPLICA_SETS, meta.name, body, meta.namespace, patch_type=how))

    def _note_revision(self, deployment: Deployment, revision: str) -> None:
        meta = deployment.metadata
        body = {"metadata": {"uid": meta.uid, "annotations": {rollout.REVISION: revision}}}
        gone(lambda: self.client.patch(DEPLOYMENTS, meta.name, body, meta.namespace))

    def _write_status(self, deployment: Deployment, status: dict[str, Any]) -> None:
        if rolloutstatus.differs(status, deployment.status):
            # Counts of zero are left out, as Go's omitempty does.
            self._patch_status(deployment, {name: value or None for name, value in status.items()})

    def _patch_status(self, deployment: Deployment, status: dict[str, Any]) -> None:
        meta = deployment.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        gone(lambda: self.client.patch(DEPLOYMENTS, meta.name, body, meta.namespace, subresource="status"))
