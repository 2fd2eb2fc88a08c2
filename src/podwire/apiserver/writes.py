"""Create and update: the order of things that module `resource` promises to the kinds.

Everything here runs in the writer's thread inside a transaction. Bodies come decoded and in shape (`schema.check`);
what comes back is the JSON of the object as it is now stored.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from podwire.apiserver import deletion, status
from podwire.apiserver import metadata as meta
from podwire.apiserver.resource import Cause
from podwire.apiserver.store import decode
from podwire.apiserver.work import timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.apiserver.resource import Object, Resource
    from podwire.apiserver.work import Work

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Without vowels and look-alikes, as apimachinery's `rand.String`."""
_GENERATED_PREFIX = 58
"""A generated name is at most 63 long, five of which are the suffix."""
_OPTIONAL = ("labels", "annotations", "finalizers", "ownerReferences", "generateName", "namespace")
_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generateName",
)


def create(work: Work, resource: Resource, namespace: str, obj: Object) -> bytes:
    """Store a new object."""
    metadata = obj.setdefault("metadata", {})
    if metadata.get("resourceVersion"):
        raise status.bad_request("resourceVersion should not be set on objects to be created")
    _check_namespace(resource, metadata, namespace)
    if resource.namespaced:
        _namespace_is_open(work, resource, namespace, metadata.get("name", ""))
    obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
    resource.strategy.defaults(obj)
    _new_metadata(work, resource, metadata)
    resource.strategy.prepare_create(obj, work)
    causes = meta.causes_of(metadata, resource.name_rule) + resource.strategy.validate(obj, None, work)
    if causes:
        raise status.invalid(resource, metadata.get("name", ""), causes)
    if work.transaction.get(resource.key, namespace, metadata["name"]) is not None:
        raise status.already_exists(resource, metadata["name"])
    return work.transaction.put(resource.key, obj, None, resource.strategy.claims(obj))


def _check_namespace(resource: Resource, metadata: dict[str, Any], namespace: str) -> None:
    """The body's namespace is the path's, or is taken from it."""
    if not resource.namespaced:
        metadata.pop("namespace", None)
    elif metadata.setdefault("namespace", namespace) != namespace:
        raise status.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _namespace_is_open(work: Work, resource: Resource, namespace: str, name: str) -> None:
    """Nothing is created in a namespace that is missing (404) or on its way out (403)."""
    namespaces = work.lookup("", "v1", "namespaces")
    if namespaces is None:
        return
    found = work.get(namespaces, "", namespace)
    if found is None:
        raise status.not_found(namespaces, namespace)
    if found["metadata"].get("deletionTimestamp"):
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        raise status.forbidden(resource, name, why, cause)


def _new_metadata(work: Work, resource: Resource, metadata: dict[str, Any]) -> None:
    """What the server says about a new object, and what a client may not say."""
    for field in ("managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        metadata.pop(field, None)
    _drop_empty(metadata)
    if not metadata.get("name") and metadata.get("generateName"):
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
        metadata["name"] = metadata["generateName"][:_GENERATED_PREFIX] + suffix
    metadata["uid"] = work.new_uid()
    metadata["creationTimestamp"] = timestamp(work.now)
    if resource.strategy.tracks_generation:
        metadata["generation"] = 1


def _drop_empty(metadata: dict[str, Any]) -> None:
    """Go's omitempty: `labels: {}` is the same as none."""
    for field in _OPTIONAL:
        if not metadata.get(field, True):
            del metadata[field]


def update(
    work: Work,
    resource: Resource,
    namespace: str,
    name: str,
    change: Callable[[Object], Object],
    subresource: str = "",
) -> bytes:
    """Replace an object by what `change` makes of it (`change` gets a copy of its own and may alter that)."""
    raw = work.transaction.get(resource.key, namespace, name)
    if raw is None:
        raise status.not_found(resource, name)
    old: Object = decode(raw)
    new = change(decode(raw))
    _same_object(resource, new, old)
    resource.strategy.defaults(new)
    new = _allowed_part(resource, new, old, subresource)
    _keep_metadata(new["metadata"], old["metadata"])
    resource.strategy.prepare_update(new, old, subresource, work)
    if resource.strategy.tracks_generation and _without_status(new) != _without_status(old):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    if new == old:
        return raw
    causes = _metadata_causes(new["metadata"], old["metadata"], resource)
    causes += resource.strategy.validate(new, old, work)
    if causes:
        raise status.invalid(resource, name, causes)
    if deletion.is_over(new):
        return deletion.remove(work, resource, new, raw)
    return work.transaction.put(resource.key, new, raw, resource.strategy.claims(new))


def _same_object(resource: Resource, new: Object, old: Object) -> None:
    """The body means this object, in its newest version (or says nothing of versions)."""
    mine, theirs = old["metadata"], new.setdefault("metadata", {})
    name, namespace = theirs.setdefault("name", mine["name"]), theirs.setdefault("namespace", mine.get("namespace", ""))
    if name != mine["name"]:
        raise status.bad_request(f"the name of the object ({name}) does not match the name on the URL ({mine['name']})")
    if resource.namespaced and namespace != mine["namespace"]:
        raise status.bad_request(
            f"the namespace of the object ({namespace}) does not match the namespace on the request ({mine['namespace']})"
        )
    if theirs.get("uid") and theirs["uid"] != mine["uid"]:
        why = f"Precondition failed: UID in precondition: {theirs['uid']}, UID in object meta: {mine['uid']}"
        raise status.conflict(resource, name, why)
    version = theirs.get("resourceVersion")
    if version and version != mine["resourceVersion"]:
        raise status.modified(resource, name)


def _allowed_part(resource: Resource, new: Object, old: Object, subresource: str) -> Object:
    """What this subresource may change; the rest is old's."""
    new["apiVersion"], new["kind"] = resource.api_version, resource.kind
    if subresource == "status":
        kept = {key: value for key, value in old.items() if key not in {"metadata", "status"}}
        kept["metadata"] = dict(old["metadata"])
        for field in ("labels", "annotations"):
            kept["metadata"][field] = new["metadata"].get(field)
        if "status" in new:
            kept["status"] = new["status"]
        return kept
    if not subresource and "status" in resource.subresources:
        new.pop("status", None)
        if "status" in old:
            new["status"] = old["status"]
    return new


def _keep_metadata(new: dict[str, Any], old: dict[str, Any]) -> None:
    for field in ("managedFields", "selfLink"):
        new.pop(field, None)
    for field in (*_SERVER_OWNED, "resourceVersion"):
        new.pop(field, None)
        if field in old:
            new[field] = old[field]
    _drop_empty(new)


def _metadata_causes(new: dict[str, Any], old: dict[str, Any], resource: Resource) -> list[Cause]:
    if new == old:
        return []
    causes = meta.causes_of(new, resource.name_rule)
    added = [word for word in new.get("finalizers", []) if word not in old.get("finalizers", [])]
    if added and old.get("deletionTimestamp"):
        words = ", ".join(f'"{word}"' for word in added)
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{words}}}"
        causes.append(Cause.forbidden("metadata.finalizers", why))
    return causes


def _without_status(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in {"metadata", "status"}}
