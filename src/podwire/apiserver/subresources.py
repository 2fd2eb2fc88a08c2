"""`scale` and `pods/binding`: other kinds that are views of, or orders to, an object.

A Scale (autoscaling/v1) is read from an object's `spec.replicas`, `status.replicas` and `spec.selector`, and written back
to `spec.replicas`; `kubectl scale` speaks to nothing else. A Binding puts a pod on a node, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import label_selectors, status, writes
from podwire.apiserver.resource import Cause, Resource
from podwire.apiserver.store import decode
from podwire.apiserver.work import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.apiserver.resource import Object
    from podwire.apiserver.work import Work

SCALE = Resource("autoscaling", "v1", "Scale", "scales")
BINDING = Resource("", "v1", "Binding", "bindings")


def scale_of(obj: Object) -> Object:
    """The Scale of a Deployment or ReplicaSet."""
    metadata = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    scale: dict[str, Any] = {
        "kind": SCALE.kind,
        "apiVersion": SCALE.api_version,
        "metadata": {key: metadata[key] for key in kept if key in metadata},
        "spec": {"replicas": obj.get("spec", {}).get("replicas", 0)},
        "status": {"replicas": obj.get("status", {}).get("replicas", 0)},
    }
    if selector := label_selectors.text(obj.get("spec", {}).get("selector")):
        scale["status"]["selector"] = selector
    return scale


def set_scale(work: Work, resource: Resource, namespace: str, name: str, change: Callable[[Object], Object]) -> Object:
    """Write a Scale; `change` makes the new one of the present one."""

    def rescale(obj: Object) -> Object:
        scale = change(scale_of(obj))
        _check(resource, obj, scale)
        obj["spec"]["replicas"] = scale.get("spec", {}).get("replicas", 0)
        return obj

    return scale_of(decode(writes.update(work, resource, namespace, name, rescale, "scale")))


def _check(resource: Resource, obj: Object, scale: Object) -> None:
    metadata, name = scale.get("metadata", {}), obj["metadata"]["name"]
    version = metadata.get("resourceVersion")
    if version and version != obj["metadata"]["resourceVersion"]:
        raise status.modified(resource, name)
    replicas = scale.get("spec", {}).get("replicas", 0)
    if replicas < 0:
        cause = Cause.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise status.invalid(SCALE, name, [cause])


def bind(work: Work, resource: Resource, namespace: str, name: str, binding: Object) -> dict[str, Any]:
    """Put a pod on a node: spec.nodeName and condition PodScheduled; a pod is bound once."""
    target = binding.get("target", {})
    causes = []
    if target.get("kind", "") not in {"", "Node"}:
        causes.append(Cause.not_supported("target.kind", target["kind"], ["Node", "<empty>"]))
    if not target.get("name"):
        causes.append(Cause.required("target.name"))
    if causes:
        raise status.invalid(BINDING, name, causes)
    metadata = binding.get("metadata", {})
    if metadata.get("name", name) != name:
        raise status.bad_request("name in URL does not match name in Binding object")

    def assign(pod: Object) -> Object:
        if metadata.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            why = f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: {pod['metadata']['uid']}"
            raise status.conflict(resource, name, why)
        if pod["metadata"].get("deletionTimestamp"):
            raise status.conflict(resource, name, f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise status.conflict(resource, name, f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        pod["spec"]["nodeName"] = target["name"]
        for field in ("labels", "annotations"):
            if metadata.get(field):
                pod["metadata"].setdefault(field, {}).update(metadata[field])
        _scheduled(pod, timestamp(work.now))
        return pod

    writes.update(work, resource, namespace, name, assign, "binding")
    return {**status.success(), "code": 201}


def _scheduled(pod: Object, now: str) -> None:
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [condition for condition in conditions if condition.get("type") != "PodScheduled"]
    conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": now})
