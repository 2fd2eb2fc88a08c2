"""What every Kubernetes object has: metadata, owner references, conditions.

The structs of `kube` hold only the fields that podwire reads; msgspec skips the rest of the JSON without building it, so
that ten thousand objects cost what is used of them. Three rules hold for all of them:

* frozen and without cycles (`gc=False`: the garbage collector need not walk a hundred thousand endpoints);
* Python names in snake case, JSON names in camel case;
* Go servers write `null` for empty lists they must write. Such a field is marked `OrNull` and comes out as its default.

A struct is a view for reading. What is written to the API is a plain dict, because a struct would drop the fields it
does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Optional, TypeVar

import msgspec

T = TypeVar("T")

if TYPE_CHECKING:
    OrNull = Annotated[T, "null is read as the default"]
else:
    OrNull = Optional


_CAPITALS = {"ip": "IP", "ips": "IPs", "cidr": "CIDR", "cidrs": "CIDRs", "id": "ID", "pid": "PID", "ipc": "IPC"}


def json_name(name: str) -> str:
    """The API's spelling of a field: cluster_ips is clusterIPs, api_version apiVersion."""
    first, *rest = name.split("_")
    return first + "".join(_CAPITALS.get(part) or part.capitalize() for part in rest)


class Part(msgspec.Struct, frozen=True, gc=False, rename=json_name, omit_defaults=True):
    """Base of every struct: frozen, camelCase in JSON."""


class Lenient(Part, frozen=True):
    """Base of the structs that have fields marked OrNull, named in `_or_null`."""

    _or_null: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self._or_null:
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, _default(type(self), name))


def _default(struct: type[Lenient], name: str) -> Any:
    for field in msgspec.structs.fields(struct):
        if field.name == name:
            return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    raise AttributeError(name)


class OwnerReference(Part, frozen=True):
    """Who this object belongs to; the owner is the object with this uid, whatever has its name now."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Lenient, frozen=True):
    """metav1.ObjectMeta. Times are RFC 3339 strings as the server wrote them."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    generate_name: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    annotations: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    owner_references: OrNull[tuple[OwnerReference, ...]] = ()
    finalizers: OrNull[tuple[str, ...]] = ()

    _or_null = ("labels", "annotations", "owner_references", "finalizers")

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for an object of the cluster."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object (at most one has controller=true)."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Condition(Part, frozen=True):
    """A condition of a Node, Pod or Deployment; status is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_update_time: str | None = None
    last_heartbeat_time: str | None = None
    last_probe_time: str | None = None
    observed_generation: int = 0


class Object(Part, frozen=True):
    """Base of what has a name of its own. Items of a list carry no kind, so the class knows it."""

    metadata: ObjectMeta = ObjectMeta()

    api_version: ClassVar[str] = ""
    kind: ClassVar[str] = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for an object of the cluster."""
        return self.metadata.key


class LabelSelectorRequirement(Lenient, frozen=True):
    """One `matchExpressions` entry; operator is In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: OrNull[tuple[str, ...]] = ()

    _or_null = ("values",)


class LabelSelector(Lenient, frozen=True):
    """metav1.LabelSelector: all of matchLabels and matchExpressions must hold; an empty one matches everything."""

    match_labels: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    match_expressions: OrNull[tuple[LabelSelectorRequirement, ...]] = ()

    _or_null = ("match_labels", "match_expressions")

    def matches(self, labels: dict[str, str]) -> bool:
        """Whether an object with `labels` is selected."""
        if any(labels.get(key) != value for key, value in self.match_labels.items()):
            return False
        return all(_holds(requirement, labels) for requirement in self.match_expressions)


def _holds(requirement: LabelSelectorRequirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":  # an object without the label is selected too (labels.Requirement of apimachinery)
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


class ObjectReference(Part, frozen=True):
    """v1.ObjectReference: names one object, for Events and targetRef."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


def reference(target: Object | ObjectReference) -> ObjectReference:
    """The reference that names `target`."""
    if isinstance(target, ObjectReference):
        return target
    meta = target.metadata
    return ObjectReference(target.kind, meta.namespace, meta.name, meta.uid, target.api_version, meta.resource_version)
