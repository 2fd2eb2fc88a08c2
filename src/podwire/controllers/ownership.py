"""Who belongs to whom: owner references and the claiming of objects by a selector.

A ReplicaSet owns the pods, a Deployment the ReplicaSets, that carry its uid as controller. Objects that match the selector and
have no controller are adopted; objects it owns that no longer match are released. The rules are those of Kubernetes'
controller reference manager; this file is the pure part and the two patches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from podwire.kube.meta import LabelSelector, Object

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T", bound=Object)


class Claim(NamedTuple, Generic[T]):
    """What is owned and stays so, what is to be adopted, what to be released."""

    owned: list[T]
    adopt: list[T]
    release: list[T]


def claim(owner: Object, selector: LabelSelector, candidates: Iterable[T]) -> Claim[T]:
    """Sort `candidates` (of the owner's namespace)."""
    result: Claim[T] = Claim([], [], [])
    for candidate in candidates:
        controller = candidate.metadata.controller
        matches = selector.matches(candidate.metadata.labels)
        if controller is not None and controller.uid == owner.metadata.uid:
            (result.owned if matches else result.release).append(candidate)
        elif controller is None and matches and not _leaving(candidate) and not _leaving(owner):
            result.adopt.append(candidate)
    return result


def owner_reference(owner: Object) -> dict[str, Any]:
    """The controller reference to put into what `owner` makes."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def adoption(owner: Object, target: Object) -> dict[str, Any]:
    """Strategic merge patch that adopts `target` (ownerReferences are merged by uid)."""
    return {"metadata": {"uid": target.metadata.uid, "ownerReferences": [owner_reference(owner)]}}


def release(owner: Object, target: Object) -> dict[str, Any]:
    """Strategic merge patch that releases `target`."""
    gone = [{"$patch": "delete", "uid": owner.metadata.uid}]
    return {"metadata": {"uid": target.metadata.uid, "ownerReferences": gone}}


def is_empty(selector: LabelSelector) -> bool:
    """Whether it selects everything, which a controller must not claim."""
    return not selector.match_labels and not selector.match_expressions


def _leaving(obj: Object) -> bool:
    return obj.metadata.deletion_timestamp is not None
