"""Deployment and ReplicaSet (apps/v1): pods by the number, made from a template.

Both select their pods by a label selector that cannot change later, and the template's labels must satisfy it. Both have
`/scale`. The rules are those of kubernetes `pkg/apis/apps` (v1/defaults.go, validation/validation.go).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from podwire.apiserver import label_selectors
from podwire.apiserver.kinds import podchecks, podspec
from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

_WIDE = (
    Column("Containers", priority=1, description="Names of the containers in the template."),
    Column("Images", priority=1, description="Images of the containers in the template."),
    Column("Selector", priority=1, description="The labels of the pods that belong to it."),
)
_DEPLOYMENT_COLUMNS = (
    NAME,
    Column("Ready", description="Pods that are ready, of those wanted."),
    Column("Up-to-date", description="Pods of the newest template."),
    Column("Available", description="Pods ready for at least minReadySeconds."),
    AGE,
    *_WIDE,
)
_REPLICA_SET_COLUMNS = (
    NAME,
    Column("Desired", "integer", description="Pods wanted."),
    Column("Current", "integer", description="Pods that exist."),
    Column("Ready", "integer", description="Pods that are ready."),
    AGE,
    *_WIDE,
)
_COUNTS = ("replicas", "updatedReplicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas")
_MORE_COUNTS = ("unavailableReplicas", "terminatingReplicas", "collisionCount", "observedGeneration")


class WorkloadStrategy(Strategy):
    """What Deployments and ReplicaSets share."""

    tracks_generation = True
    kind = ""

    def defaults(self, obj: Object) -> None:
        """One replica, and the template's pod spec."""
        spec = obj.setdefault("spec", {})
        if spec.get("replicas") is None:
            spec["replicas"] = 1
        template = spec.setdefault("template", {})
        template.setdefault("metadata", {})
        template["metadata"].pop("creationTimestamp", None)
        podspec.set_defaults(template.setdefault("spec", {}), self.kind)
        obj.setdefault("status", {})

    def prepare_create(self, obj: Object, ctx: Context) -> None:
        """No status yet."""
        obj["status"] = {}

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """Selector, template, counts; what may not change."""
        spec = obj["spec"]
        causes = _not_negative("spec", spec, ("replicas", "minReadySeconds"))
        causes += _selector_and_template(spec)
        if old is not None and spec.get("selector") != old["spec"].get("selector"):
            causes.append(Cause.invalid("spec.selector", spec.get("selector"), "field is immutable"))
        return causes + _check_status(obj.get("status") or {})


class DeploymentStrategy(WorkloadStrategy):
    """The rules of Deployments."""

    kind = "Deployment"

    def defaults(self, obj: Object) -> None:
        """Rolling update by quarters, ten old revisions, ten minutes for progress."""
        super().defaults(obj)
        spec = obj["spec"]
        strategy = spec.setdefault("strategy", {})
        podspec.fill(strategy, type="RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            for key in ("maxUnavailable", "maxSurge"):
                if rolling.get(key) is None:
                    rolling[key] = "25%"
        for key, value in (("revisionHistoryLimit", 10), ("progressDeadlineSeconds", 600)):
            if spec.get(key) is None:
                spec[key] = value

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """Also the strategy of a roll-out."""
        spec = obj["spec"]
        causes = super().validate(obj, old, ctx)
        causes += _check_strategy("spec.strategy", spec["strategy"])
        causes += _not_negative("spec", spec, ("revisionHistoryLimit", "progressDeadlineSeconds"))
        if spec["progressDeadlineSeconds"] <= (spec.get("minReadySeconds") or 0):
            detail = "must be greater than minReadySeconds"
            causes.append(Cause.invalid("spec.progressDeadlineSeconds", spec["progressDeadlineSeconds"], detail))
        return causes

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """READY UP-TO-DATE AVAILABLE AGE; CONTAINERS IMAGES SELECTOR."""
        metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        return [
            metadata["name"],
            f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
            status.get("updatedReplicas", 0),
            status.get("availableReplicas", 0),
            age(metadata.get("creationTimestamp"), now),
            *_template_cells(spec),
            label_selectors.text(spec.get("selector")),
        ]


class ReplicaSetStrategy(WorkloadStrategy):
    """The rules of ReplicaSets."""

    kind = "ReplicaSet"

    def prepare_create(self, obj: Object, ctx: Context) -> None:
        """status.replicas is always written."""
        obj["status"] = {"replicas": 0}

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """DESIRED CURRENT READY AGE; CONTAINERS IMAGES SELECTOR."""
        metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        return [
            metadata["name"],
            spec.get("replicas", 0),
            status.get("replicas", 0),
            status.get("readyReplicas", 0),
            age(metadata.get("creationTimestamp"), now),
            *_template_cells(spec),
            label_selectors.text(spec.get("selector")) or "<none>",
        ]

    def field(self, obj: Object, path: str) -> str:
        """status.replicas is 0 when absent."""
        return super().field(obj, path) or ("0" if path == "status.replicas" else "")


def _template_cells(spec: dict[str, Any]) -> list[str]:
    """CONTAINERS and IMAGES."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
    return [",".join(container.get(key, "") for container in containers) for key in ("name", "image")]


def _selector_and_template(spec: dict[str, Any]) -> list[Cause]:
    selector, template = spec.get("selector"), spec["template"]
    if selector is None:
        causes = [Cause.required("spec.selector")]
    else:
        causes = label_selectors.check_selector("spec.selector", selector)
        if label_selectors.is_empty(selector):
            causes.append(Cause.invalid("spec.selector", selector, "empty selector is invalid for deployment"))
        elif not label_selectors.matches(selector, labels := template["metadata"].get("labels")):
            detail = "`selector` does not match template `labels`"
            causes.append(Cause.invalid("spec.template.metadata.labels", labels, detail))
    causes += podchecks.check_template("spec.template", template)
    pod = template["spec"]
    if pod.get("restartPolicy") in {"OnFailure", "Never"}:
        at = "spec.template.spec.restartPolicy"
        causes.append(Cause.not_supported(at, pod["restartPolicy"], ("Always",)))
    if pod.get("activeDeadlineSeconds") is not None:
        detail = "activeDeadlineSeconds in ReplicaSet is not Supported"
        causes.append(Cause.forbidden("spec.template.spec.activeDeadlineSeconds", detail))
    return causes


def _check_strategy(path: str, strategy: dict[str, Any]) -> list[Cause]:
    kind = strategy["type"]
    if kind == "Recreate":
        if "rollingUpdate" not in strategy:
            return []
        detail = "may not be specified when strategy `type` is 'Recreate'"
        return [Cause.forbidden(f"{path}.rollingUpdate", detail)]
    if kind != "RollingUpdate":
        return [Cause.not_supported(path, strategy, ("Recreate", "RollingUpdate"))]
    causes, rolling = [], strategy["rollingUpdate"]
    for key in ("maxUnavailable", "maxSurge"):
        causes += _int_or_percent(f"{path}.rollingUpdate.{key}", rolling[key])
    at, most = f"{path}.rollingUpdate.maxUnavailable", rolling["maxUnavailable"]
    if _number(most) == 0 and _number(rolling["maxSurge"]) == 0:
        causes.append(Cause.invalid(at, most, "may not be 0 when `maxSurge` is 0"))
    if isinstance(most, str) and _number(most) > 100:
        causes.append(Cause.invalid(at, most, "must not be greater than 100%"))
    return causes


def _int_or_percent(path: str, value: int | str) -> list[Cause]:
    if isinstance(value, int):
        return [] if value >= 0 else [Cause.invalid(path, value, "must be greater than or equal to 0")]
    if re.fullmatch("[0-9]+%", value):
        return []
    detail = (
        "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used "
        "for validation is '[0-9]+%')"
    )
    return [Cause.invalid(path, value, detail)]


def _number(value: int | str) -> int:
    """The number in `25%` or 1; -1 for a text that is no percentage."""
    if isinstance(value, int):
        return value
    return int(value[:-1]) if re.fullmatch("[0-9]+%", value) else -1


def _not_negative(path: str, holder: dict[str, Any], keys: tuple[str, ...]) -> list[Cause]:
    detail = "must be greater than or equal to 0"
    return [Cause.invalid(f"{path}.{key}", holder[key], detail) for key in keys if (holder.get(key) or 0) < 0]


def _check_status(status: dict[str, Any]) -> list[Cause]:
    """No count is negative or greater than the count it is a part of."""
    causes = _not_negative("status", status, _COUNTS + _MORE_COUNTS)
    total, ready = status.get("replicas") or 0, status.get("readyReplicas") or 0
    for key in _COUNTS[1:]:
        if (status.get(key) or 0) > total:
            causes.append(Cause.invalid(f"status.{key}", status[key], "cannot be greater than status.replicas"))
    if (status.get("availableReplicas") or 0) > ready:
        detail = "cannot be greater than readyReplicas"
        causes.append(Cause.invalid("status.availableReplicas", status["availableReplicas"], detail))
    return causes


DEPLOYMENT = Resource(
    group="apps",
    version="v1",
    kind="Deployment",
    plural="deployments",
    singular="deployment",
    short_names=("deploy",),
    categories=("all",),
    subresources=("status", "scale"),
    columns=_DEPLOYMENT_COLUMNS,
    strategy=DeploymentStrategy(),
)

REPLICA_SET = Resource(
    group="apps",
    version="v1",
    kind="ReplicaSet",
    plural="replicasets",
    singular="replicaset",
    short_names=("rs",),
    categories=("all",),
    subresources=("status", "scale"),
    columns=_REPLICA_SET_COLUMNS,
    selectable=("status.replicas",),
    strategy=ReplicaSetStrategy(),
)
