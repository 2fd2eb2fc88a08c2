"""Namespace (core/v1).

Every Namespace carries its name as label `kubernetes.io/metadata.name` and the finalizer `kubernetes` in
`spec.finalizers`, which the server takes away when the namespace is empty; an ordinary update cannot touch it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

NAME_LABEL = "kubernetes.io/metadata.name"


class NamespaceStrategy(Strategy):
    """The rules of Namespaces."""

    def defaults(self, obj: Object) -> None:
        """The name's label and the phase."""
        metadata = obj["metadata"]
        if metadata.get("name"):
            metadata["labels"] = {**(metadata.get("labels") or {}), NAME_LABEL: metadata["name"]}
        obj.setdefault("spec", {})
        obj.setdefault("status", {}).setdefault("phase", "Active")

    def prepare_create(self, obj: Object, ctx: Context) -> None:
        """Active, and held until it is emptied. A generated name has its label only now."""
        obj["status"] = {"phase": "Active"}
        if "kubernetes" not in obj["spec"].setdefault("finalizers", []):
            obj["spec"]["finalizers"].append("kubernetes")
        self.defaults(obj)

    def prepare_update(self, new: Object, old: Object, subresource: str, ctx: Context) -> None:
        """spec.finalizers belongs to the server."""
        if not subresource:
            new["spec"] = old.get("spec", {})

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """The phase goes with deletionTimestamp."""
        phase = obj["status"]["phase"]
        if obj["metadata"].get("deletionTimestamp"):
            wanted, state = "Terminating", "is not empty"
        else:
            wanted, state = "Active", "is empty"
        if phase == wanted:
            return []
        return [Cause.invalid("status.Phase", phase, f"may only be '{wanted}' if `deletionTimestamp` {state}")]

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """STATUS AGE."""
        metadata = obj["metadata"]
        phase = (obj.get("status") or {}).get("phase", "")
        return [metadata["name"], phase, age(metadata.get("creationTimestamp"), now)]


RESOURCE = Resource(
    group="",
    version="v1",
    kind="Namespace",
    plural="namespaces",
    singular="namespace",
    namespaced=False,
    short_names=("ns",),
    subresources=("status",),
    columns=(NAME, Column("Status", description="The status of the namespace."), AGE),
    selectable=("status.phase",),
    name_rule="label",
    strategy=NamespaceStrategy(),
)
