"""What is allowed in an object's metadata, and the words a real API server refuses with.

The rules are those of apimachinery's `pkg/api/validation/objectmeta.go`; those of the texts themselves are in `formats`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats
from podwire.apiserver.resource import Cause

if TYPE_CHECKING:
    from podwire.apiserver.resource import Object

MAX_ANNOTATIONS = 256 * 1024
"""Bytes of all annotations of an object together."""
_STANDARD_FINALIZERS = {"orphan", "foregroundDeletion", "kubernetes"}


def label_causes(labels: dict[str, str], path: str) -> list[Cause]:
    """Every bad key and value of a map of labels."""
    causes = []
    for key, value in labels.items():
        causes += [Cause.invalid(path, key, text) for text in formats.qualified_name(key)]
        causes += [Cause.invalid(path, value, text) for text in formats.label_value(value)]
    return causes


def causes_of(metadata: Object, name_rule: str) -> list[Cause]:
    """What is wrong with an object's metadata; names, labels, annotations, owner references, finalizers."""
    causes = []
    name, prefix = metadata.get("name", ""), metadata.get("generateName", "")
    if prefix:
        # A generated name has letters behind the prefix, so the prefix may end in a dash.
        causes += [Cause.invalid("metadata.generateName", prefix, text) for text in _prefix_problems(name_rule, prefix)]
    if not name:
        causes.append(Cause.required("metadata.name", "name or generateName is required"))
    else:
        causes += [Cause.invalid("metadata.name", name, text) for text in formats.NAME_RULES[name_rule](name)]
    causes += label_causes(metadata.get("labels", {}), "metadata.labels")
    annotations: dict[str, str] = metadata.get("annotations", {})
    for key in annotations:
        causes += [Cause.invalid("metadata.annotations", key, text) for text in formats.qualified_name(key.lower())]
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        causes.append(Cause.too_long("metadata.annotations", MAX_ANNOTATIONS))
    causes += _owner_causes(metadata.get("ownerReferences", []))
    for finalizer in metadata.get("finalizers", []):
        problems = formats.qualified_name(finalizer)
        causes += [Cause.invalid("metadata.finalizers", finalizer, text) for text in problems]
        if not problems and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            causes.append(
                Cause.invalid(
                    "metadata.finalizers",
                    finalizer,
                    "name is neither a standard finalizer name nor is it fully qualified",
                )
            )
    return causes


def _prefix_problems(rule: str, prefix: str) -> list[str]:
    return formats.NAME_RULES[rule](f"{prefix[:-1]}a" if prefix.endswith("-") else prefix)


def _owner_causes(owners: list[dict[str, Any]]) -> list[Cause]:
    causes = []
    controllers = []
    for index, owner in enumerate(owners):
        path = f"metadata.ownerReferences[{index}]"
        for field, text in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(field):
                causes.append(Cause.invalid(f"{path}.{field}", owner.get(field, ""), text))
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind')}/{owner.get('name')}")
    if len(controllers) > 1:
        causes.append(
            Cause.invalid(
                "metadata.ownerReferences",
                owners,
                f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]} and {controllers[1]}',
            )
        )
    return causes
