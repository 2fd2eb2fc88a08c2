"""What a Deployment does next. Pure: the Deployment, its ReplicaSets, the time → a Plan.

The rules are those of the Deployment controller of Kubernetes, so that kubectl (`rollout status`, `rollout history`, `scale`,
`get deploy`) reads what it expects:

* the *new* ReplicaSet is the oldest whose template equals the Deployment's (pod-template-hash aside); all others are old;
* rolling update: at most replicas + maxSurge pods exist, at least replicas - maxUnavailable are available; unhealthy old
  pods go first. Recreate: nothing new before the last old pod has ended;
* a change of `replicas` in the middle of a rollout is shared out over the ReplicaSets in proportion (the annotations
  desired-replicas and max-replicas say which size they were scaled for);
* revision annotations count up, history is limited, paused Deployments scale but do not roll.

One Plan is one step; its effects come back as changed ReplicaSets and lead to the next. Every write in it is safe to repeat
or refused when the view was stale: a scale carries the ReplicaSet's resourceVersion, and the name of a new ReplicaSet is
derived from the template.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.controllers import ownership
from podwire.kube.times import epoch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kube.objects import Deployment, ReplicaSet

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
_OWN_ANNOTATIONS = frozenset(
    {
        REVISION,
        HISTORY,
        DESIRED,
        MAXIMUM,
        "kubectl.kubernetes.io/last-applied-configuration",
        "deprecated.deployment.rollback.to",
    }
)
_SAFE = "bcdfghjklmnpqrstvwxz2456789"  # no vowels: no words (k8s.io/apimachinery/pkg/util/rand)


class Scale(NamedTuple):
    """Set a ReplicaSet's size, and note for which size of the Deployment."""

    replica_set: ReplicaSet
    replicas: int
    annotations: dict[str, str]


class Plan(NamedTuple):
    """One step of a rollout."""

    create: dict[str, Any] | None = None
    scales: tuple[Scale, ...] = ()
    annotate: tuple[tuple[ReplicaSet, dict[str, Any]], ...] = ()  # merge patches
    delete: tuple[ReplicaSet, ...] = ()
    revision: str | None = None  # the Deployment's own annotation


class View(NamedTuple):
    """A Deployment and its ReplicaSets, sorted into new and old (oldest first)."""

    deployment: Deployment
    new: ReplicaSet | None
    old: list[ReplicaSet]
    old_pods_running: bool = False

    @property
    def all(self) -> list[ReplicaSet]:
        """New and old."""
        return [*self.old, self.new] if self.new else list(self.old)


def plan(view: View) -> Plan:
    """The next step; the status is worked out separately (`status.py`), from the same view."""
    deployment = view.deployment
    if deployment.metadata.deletion_timestamp is not None:
        return Plan()
    recreate = deployment.spec.strategy.type == "Recreate"
    notes, revision = _bookkeeping(view)
    if deployment.spec.paused or _replicas_changed(view):
        delete = _superfluous(view) if deployment.spec.paused else ()
        return Plan(scales=tuple(_rescale(view)), annotate=notes, revision=revision, delete=delete)
    if recreate and (down := [_scale(view, old, 0) for old in view.old if old.spec.replicas]):
        return Plan(scales=tuple(down), annotate=notes, revision=revision)
    if recreate and view.old_pods_running:
        return Plan(annotate=notes, revision=revision)
    if view.new is None:
        return Plan(create=replica_set_body(view), revision=str(_next_revision(view.old)))
    target = deployment.spec.replicas if recreate else _new_size(view, view.new.spec.replicas)
    if view.new.spec.replicas != target:
        return Plan(scales=(_scale(view, view.new, target),), annotate=notes, revision=revision)
    scales = () if recreate else tuple(_shrink_old(view))
    delete = _superfluous(view) if is_complete(view) else ()
    return Plan(scales=scales, annotate=notes, revision=revision, delete=delete)


def sort_out(deployment: Deployment, owned: Iterable[ReplicaSet], *, old_pods_running: bool = False) -> View:
    """Tell the new ReplicaSet from the old ones."""
    by_age = sorted(owned, key=lambda rs: (rs.metadata.creation_timestamp or "", rs.metadata.name))
    wanted = _without_hash(deployment.spec.template)
    new = next((rs for rs in by_age if _without_hash(rs.spec.template) == wanted), None)
    return View(deployment, new, [rs for rs in by_age if rs is not new], old_pods_running)


def surge_and_unavailable(deployment: Deployment) -> tuple[int, int]:
    """The numbers maxSurge (rounded up) and maxUnavailable (rounded down) as numbers; never both zero."""
    strategy = deployment.spec.strategy
    if strategy.type == "Recreate":
        return 0, 0
    given = strategy.rolling_update or {}
    surge = _share(given.get("maxSurge", "25%"), deployment.spec.replicas, up=True)
    unavailable = _share(given.get("maxUnavailable", "25%"), deployment.spec.replicas, up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, min(unavailable, deployment.spec.replicas)


def _share(value: int | str, total: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    exact = int(value.rstrip("%")) * total / 100
    return math.ceil(exact) if up else math.floor(exact)


def replica_set_body(view: View) -> dict[str, Any]:
    """The ReplicaSet for the Deployment's present template."""
    deployment = view.deployment
    digest = template_hash(deployment)
    template = json.loads(json.dumps(deployment.spec.template))
    template.setdefault("metadata", {}).setdefault("labels", {})[HASH_LABEL] = digest
    labels = dict(template["metadata"]["labels"])
    selector = {**deployment.spec.selector.match_labels, HASH_LABEL: digest}
    expressions = [
        {"key": entry.key, "operator": entry.operator, **({"values": list(entry.values)} if entry.values else {})}
        for entry in deployment.spec.selector.match_expressions
    ]
    size = deployment.spec.replicas if deployment.spec.strategy.type == "Recreate" else _new_size(view, 0)
    annotations = {**_inherited(deployment), REVISION: str(_next_revision(view.old)), **_size_notes(deployment)}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{deployment.metadata.name}-{digest}",
            "namespace": deployment.metadata.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [ownership.owner_reference(deployment)],
        },
        "spec": {
            "replicas": size,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": {"matchLabels": selector, **({"matchExpressions": expressions} if expressions else {})},
            "template": template,
        },
    }


def template_hash(deployment: Deployment) -> str:
    """The value of pod-template-hash: FNV-1a of the template and the collision count, in letters safe for names.

    Kubernetes hashes Go's dump of the template; other bytes, so other values, of the same look.
    """
    text = json.dumps(deployment.spec.template, sort_keys=True, separators=(",", ":"))
    collisions = deployment.status.collision_count
    value = 0x811C9DC5
    for byte in f"{text}{'' if collisions is None else collisions}".encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return "".join(_SAFE[ord(digit) % len(_SAFE)] for digit in str(value))


def revision_of(replica_set: ReplicaSet) -> int:
    """The ReplicaSet's revision, 0 if it has none."""
    text = replica_set.metadata.annotations.get(REVISION, "")
    return int(text) if text.isdigit() else 0


def is_complete(view: View) -> bool:
    """Whether all pods are new, there are as many as wanted, all available (deploymentutil.DeploymentComplete)."""
    if view.new is None:
        return False
    wanted, status = view.deployment.spec.replicas, view.new.status
    present = sum(rs.status.replicas for rs in view.all)
    available = sum(rs.status.available_replicas for rs in view.all)
    return status.replicas == wanted and present == wanted and available == wanted and _observed(view.new)


def _observed(replica_set: ReplicaSet) -> bool:
    return replica_set.status.observed_generation >= replica_set.metadata.generation


def _bookkeeping(view: View) -> tuple[tuple[tuple[ReplicaSet, dict[str, Any]], ...], str | None]:
    """Annotations and minReadySeconds of the new ReplicaSet, and the Deployment's revision, where they lag behind."""
    new = view.new
    if new is None:
        return (), None
    notes, have = _inherited(view.deployment), new.metadata.annotations
    revision = revision_of(new)
    if (wanted := _next_revision(view.old)) > revision:  # an old template is the new one again: kubectl rollout undo
        notes[REVISION] = str(wanted)
        if revision:
            notes[HISTORY] = ",".join(filter(None, [have.get(HISTORY, ""), str(revision)]))
        revision = wanted
    patch: dict[str, Any] = {}
    if any(have.get(name) != value for name, value in notes.items()):
        patch["metadata"] = {"annotations": notes}
    if new.spec.min_ready_seconds != view.deployment.spec.min_ready_seconds:
        patch["spec"] = {"minReadySeconds": view.deployment.spec.min_ready_seconds}
    stale = view.deployment.metadata.annotations.get(REVISION) != str(revision)
    return ((new, patch),) if patch else (), str(revision) if stale else None


def _next_revision(old: Iterable[ReplicaSet]) -> int:
    return max((revision_of(rs) for rs in old), default=0) + 1


def _inherited(deployment: Deployment) -> dict[str, str]:
    return {name: text for name, text in deployment.metadata.annotations.items() if name not in _OWN_ANNOTATIONS}


def _size_notes(deployment: Deployment) -> dict[str, str]:
    surge, _ = surge_and_unavailable(deployment)
    return {DESIRED: str(deployment.spec.replicas), MAXIMUM: str(deployment.spec.replicas + surge)}


def _scale(view: View, replica_set: ReplicaSet, replicas: int) -> Scale:
    return Scale(replica_set, replicas, _size_notes(view.deployment))


def _without_hash(template: dict[str, Any]) -> dict[str, Any]:
    meta = dict(template.get("metadata") or {})
    labels = {name: value for name, value in (meta.pop("labels", None) or {}).items() if name != HASH_LABEL}
    meta.pop("creationTimestamp", None)
    return {**template, "metadata": {**meta, "labels": labels}}


def _new_size(view: View, current: int) -> int:
    """How large the new ReplicaSet may be now (deploymentutil.NewRSNewReplicas)."""
    wanted = view.deployment.spec.replicas
    surge, _ = surge_and_unavailable(view.deployment)
    total = sum(rs.spec.replicas for rs in view.all)
    if current > wanted:
        return wanted
    return min(wanted, current + max(0, wanted + surge - total))


def _shrink_old(view: View) -> Iterable[Scale]:
    """Which old ReplicaSets can lose pods now: unhealthy ones first, then whatever availability permits, oldest first.

    A ReplicaSet that was scaled down and up again before its controller looked may still report pods that are gone; counting
    on them would take the last ones away. So nothing is taken before every status is of the present size (here the
    real controller is less careful).
    """
    assert view.new is not None
    if not all(_observed(rs) for rs in view.all):
        return []
    _, max_unavailable = surge_and_unavailable(view.deployment)
    least = view.deployment.spec.replicas - max_unavailable
    total = sum(rs.spec.replicas for rs in view.all)
    coming = view.new.spec.replicas - view.new.status.available_replicas
    budget = total - least - coming
    sizes = {rs.metadata.uid: rs.spec.replicas for rs in view.old}
    for old in view.old:
        unhealthy = sizes[old.metadata.uid] - old.status.available_replicas
        drop = max(0, min(budget, unhealthy))
        sizes[old.metadata.uid] -= drop
        budget -= drop
    spare = min(budget, sum(rs.status.available_replicas for rs in view.all) - least)
    for old in view.old:
        drop = max(0, min(spare, sizes[old.metadata.uid]))
        sizes[old.metadata.uid] -= drop
        spare -= drop
    return [
        _scale(view, old, sizes[old.metadata.uid]) for old in view.old if sizes[old.metadata.uid] != old.spec.replicas
    ]


def _replicas_changed(view: View) -> bool:
    """Whether the Deployment was scaled since its ReplicaSets were (DeploymentController.isScalingEvent)."""
    wanted = str(view.deployment.spec.replicas)
    return any(rs.spec.replicas and rs.metadata.annotations.get(DESIRED, wanted) != wanted for rs in view.all)


def _rescale(view: View) -> Iterable[Scale]:
    """Follow a change of `replicas` (DeploymentController.scale)."""
    deployment, wanted = view.deployment, view.deployment.spec.replicas
    active = [rs for rs in view.all if rs.spec.replicas]
    if len(active) <= 1:
        only = active[0] if active else view.new or (view.old[-1] if view.old else None)
        return [_scale(view, only, wanted)] if only is not None and _differs(view, only, wanted) else []
    if view.new is not None and _saturated(view.new, wanted):
        return [_scale(view, old, 0) for old in view.old if old.spec.replicas]
    if deployment.spec.strategy.type == "Recreate":
        return []
    surge, _ = surge_and_unavailable(deployment)
    change = (wanted + surge if wanted else 0) - sum(rs.spec.replicas for rs in active)
    # Largest first; of equal ones the newest when growing, the oldest when shrinking.
    active.sort(key=lambda rs: rs.metadata.creation_timestamp or "", reverse=change > 0)
    active.sort(key=lambda rs: rs.spec.replicas, reverse=True)
    sizes, done = {}, 0
    for rs in active:
        part = _proportion(view, rs, change, done) if change else 0
        sizes[rs.metadata.uid] = rs.spec.replicas + part
        done += part
    sizes[active[0].metadata.uid] = max(0, sizes[active[0].metadata.uid] + change - done)
    return [_scale(view, rs, sizes[rs.metadata.uid]) for rs in active if _differs(view, rs, sizes[rs.metadata.uid])]


def _differs(view: View, replica_set: ReplicaSet, replicas: int) -> bool:
    have = replica_set.metadata.annotations
    notes = _size_notes(view.deployment)
    return replica_set.spec.replicas != replicas or any(have.get(name) != value for name, value in notes.items())


def _saturated(replica_set: ReplicaSet, wanted: int) -> bool:
    noted = replica_set.metadata.annotations.get(DESIRED, "")
    return (
        replica_set.spec.replicas == wanted and noted == str(wanted) and replica_set.status.available_replicas == wanted
    )


def _proportion(view: View, replica_set: ReplicaSet, change: int, done: int) -> int:
    surge, _ = surge_and_unavailable(view.deployment)
    wanted, size = view.deployment.spec.replicas, replica_set.spec.replicas
    noted = replica_set.metadata.annotations.get(MAXIMUM, "")
    former = int(noted) if noted.isdigit() and int(noted) else view.deployment.status.replicas or size
    target = math.floor(size * (wanted + surge) / former + 0.5) if wanted else 0
    rest = change - done
    return min(target - size, rest) if change > 0 else max(target - size, rest)


def _superfluous(view: View) -> tuple[ReplicaSet, ...]:
    """Empty old ReplicaSets beyond revisionHistoryLimit, lowest revision first."""
    limit = view.deployment.spec.revision_history_limit
    if limit is None:
        return ()
    excess = len(view.old) - limit
    if excess <= 0:
        return ()
    candidates = sorted(view.old, key=revision_of)[:excess]
    return tuple(
        rs
        for rs in candidates
        if not rs.spec.replicas and not rs.status.replicas and _observed(rs) and rs.metadata.deletion_timestamp is None
    )


def seconds_until_deadline(deployment: Deployment, now: float) -> float | None:
    """When progressDeadlineSeconds runs out; None when nothing is in progress or there is no deadline."""
    limit = deployment.spec.progress_deadline_seconds
    progress = next((entry for entry in deployment.status.conditions if entry.type == "Progressing"), None)
    if limit is None or limit == 2**31 - 1 or progress is None or progress.status != "True":
        return None
    if progress.reason == "NewReplicaSetAvailable":
        return None
    since = epoch(progress.last_update_time) or now
    return max(0.0, since + limit - now)
