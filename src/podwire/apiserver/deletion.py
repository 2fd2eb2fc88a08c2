"""Deletion: the mark, the grace period, finalizers, and the end.

An object leaves in one step when nothing holds it. Held, it is only marked (`deletionTimestamp` in the future by the
grace period, `deletionGracePeriodSeconds`) and stays, for others to act on and for its clients to see, until the last
hold goes: the grace period is ended by a second DELETE with grace 0 (the kubelet's), finalizers by an update that empties
them, a Namespace's `spec.finalizers` by this server (module `namespaces`). A grace period can be shortened, not prolonged.

propagationPolicy becomes a finalizer for the garbage collector to take off: Foreground `foregroundDeletion`, Orphan
`orphan`; Background, the default, none: the collector finds the dependents by their owner's absence. The rules are those
of apiserver's `pkg/registry/rest/delete.go` and `generic/registry/store.go`.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from podwire.apiserver import status
from podwire.apiserver.resource import Cause
from podwire.apiserver.store import decode
from podwire.apiserver.work import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.apiserver.resource import Object, Resource
    from podwire.apiserver.work import Work

_FINALIZER_OF = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}
_PROTECTED = {"default", "kube-system", "kube-public"}


class Options:
    """DeleteOptions, from the body or the query; `grace` None: the kind decides; `policy` "": the default."""

    __slots__ = ("grace", "policy", "resource_version", "uid")

    def __init__(self, grace: int | None = None, policy: str = "", uid: str = "", resource_version: str = "") -> None:
        self.grace = grace
        self.policy = policy
        self.uid = uid
        self.resource_version = resource_version

    @staticmethod
    def of(body: Object) -> Options:
        """From a DeleteOptions object. Raises StatusError 422."""
        policy = body.get("propagationPolicy", "")
        orphan = body.get("orphanDependents")
        causes = []
        if policy and orphan is not None:
            causes.append(
                Cause.invalid(
                    "propagationPolicy", policy, "orphanDependents and deletionPropagation cannot be both set"
                )
            )
        if policy not in {"", "Foreground", "Background", "Orphan"}:
            supported = ["Foreground", "Background", "Orphan", "nil"]
            causes.append(Cause.not_supported("propagationPolicy", policy, supported))
        if causes:
            raise status.options_invalid("DeleteOptions", causes)
        if orphan is not None:
            policy = "Orphan" if orphan else "Background"
        preconditions = body.get("preconditions", {})
        grace = body.get("gracePeriodSeconds")
        return Options(grace, policy, preconditions.get("uid", ""), preconditions.get("resourceVersion", ""))


def delete(work: Work, resource: Resource, namespace: str, name: str, options: Options) -> dict[str, Any] | bytes:
    """Delete an object: a success Status when it is gone, the JSON of the marked object while something holds it."""
    raw = work.transaction.get(resource.key, namespace, name)
    if raw is None:
        raise status.not_found(resource, name)
    obj: Object = decode(raw)
    _preconditions(resource, obj, options)
    if resource.key == "namespaces":
        _delete_namespace(resource, obj)
    _set_propagation(obj["metadata"], options)
    if not _mark(work, resource, obj, options):
        return raw
    before: Object = decode(raw)
    if is_over(obj):
        # What goes in one step is last seen as it was; what had been marked, with its mark.
        remove(work, resource, obj if "deletionTimestamp" in before["metadata"] else before, raw)
        return status.success(resource, name, obj["metadata"]["uid"])
    if obj == before:
        return raw
    return work.transaction.put(resource.key, obj, raw, resource.strategy.claims(obj))


def delete_all(
    work: Work, resource: Resource, namespace: str, wanted: Callable[[Object], bool], options: Options
) -> list[bytes]:
    """Delete all objects of a kind that are wanted; answers them as they were."""
    raws = [raw for raw in work.transaction.all(resource.key, namespace) if wanted(decode(raw))]
    for raw in raws:
        metadata = decode(raw)["metadata"]
        delete(work, resource, metadata.get("namespace", ""), metadata["name"], options)
    return raws


def is_over(obj: Object) -> bool:
    """Marked, and nothing holds it any more."""
    metadata = obj["metadata"]
    held = metadata.get("finalizers") or (obj["kind"] == "Namespace" and obj.get("spec", {}).get("finalizers"))
    return bool(metadata.get("deletionTimestamp")) and not metadata.get("deletionGracePeriodSeconds") and not held


def remove(work: Work, resource: Resource, obj: Object, raw: bytes) -> bytes:
    """The end of an object; answers its last JSON."""
    value = work.transaction.remove(resource.key, obj, raw)
    resource.strategy.deleted(obj, work)
    return value


def _preconditions(resource: Resource, obj: Object, options: Options) -> None:
    metadata = obj["metadata"]
    for word, asked, have in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"]),
    ):
        if asked and asked != have:
            why = f"Precondition failed: {word} in precondition: {asked}, {word} in object meta: {have}"
            raise status.conflict(resource, metadata["name"], why)


def _mark(work: Work, resource: Resource, obj: Object, options: Options) -> bool:
    """Set or shorten the mark; False when there is nothing to do but wait."""
    metadata = obj["metadata"]
    marked, left = metadata.get("deletionTimestamp"), metadata.get("deletionGracePeriodSeconds") or 0
    if marked:
        if left and options.grace is not None and 0 <= options.grace < left:
            start = dt.datetime.fromisoformat(marked) - dt.timedelta(seconds=left)
            _set_mark(metadata, start, options.grace)
            return True
        return not left
    grace = resource.strategy.grace_seconds(obj, options.grace)
    _set_mark(metadata, work.now, max(grace, 0))
    if metadata.get("generation"):
        metadata["generation"] += 1
    return True


def _set_mark(metadata: dict[str, Any], start: dt.datetime, grace: int) -> None:
    metadata["deletionTimestamp"] = timestamp(start + dt.timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace


def _set_propagation(metadata: dict[str, Any], options: Options) -> None:
    if not options.policy:
        return
    finalizers = [word for word in metadata.get("finalizers", []) if word not in _FINALIZER_OF.values()]
    if options.policy in _FINALIZER_OF:
        finalizers.append(_FINALIZER_OF[options.policy])
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def _delete_namespace(resource: Resource, obj: Object) -> None:
    """A Namespace is Terminating from the first DELETE on; its content goes first."""
    name = obj["metadata"]["name"]
    if name in _PROTECTED:
        raise status.forbidden(resource, name, "this namespace may not be deleted")
    if obj["metadata"].get("deletionTimestamp") and obj.get("spec", {}).get("finalizers"):
        why = (
            "The system is ensuring all content is removed from this namespace.  "
            "Upon completion, this namespace will automatically be purged by the system."
        )
        raise status.conflict(resource, name, why)
    obj.setdefault("status", {})["phase"] = "Terminating"
