"""The contract between the server (how any object is stored, listed, watched, patched) and the kinds (what one is).

A kind is a `Resource`: one frozen row of names, flags and table columns, and one `Strategy` object with the rules
that are its own. A strategy never touches HTTP, SQLite or another strategy. Objects are plain JSON dictionaries
(`dict[str, Any]`) with camelCase keys, always holding `apiVersion`, `kind` and `metadata` when a strategy sees them.

The pipeline calls a strategy in this order. Everything from "namespace" to "commit" runs in one write transaction of
the only writer, so what `ctx` reads cannot change before the commit:

* **create**: decode (JSON, YAML, protobuf) → namespace exists and is not terminating → `defaults(obj)` → metadata
  (name from generateName, uid, creationTimestamp; resourceVersion must be unset; managedFields are dropped) →
  `prepare_create(obj, ctx)` → metadata checked, then `validate(obj, None, ctx)` → claims of the object reserved
  (`claims(obj)`) → commit → event to the watchers.
* **update and patch**: read the old object → apply the patch or take the body → `defaults(new)` → metadata that no client may
  change is put back (uid, creationTimestamp, deletionTimestamp …) → `prepare_update(new, old, subresource, ctx)` →
  equal to old: answered without a write → metadata checked, then `validate(new, old, ctx)` → claims exchanged → commit →
  event. `subresource` is `""`, `"status"`, `"scale"` or `"binding"`. An object that is terminating and loses its last
  finalizer is removed by that update.
* **delete**: `grace_seconds(obj, asked)` says 0 (remove now) or how long the object is only marked
  (deletionTimestamp); finalizers keep it in any case → removed: `deleted(obj, ctx)`, claims released → commit → event.
* **read**: `row(obj, now)` for `as=Table`, `field(obj, path)` for field selectors. Outside of any transaction, and
  `obj` must not be changed.

A strategy refuses in one of two ways: a list of `Cause` from `validate` becomes 422 Invalid with these causes; a
`StatusError` (module `status`) raised anywhere is the answer as it is. dryRun=All runs the whole pipeline and rolls
the transaction back, so a strategy need not know about it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

Object = dict[str, Any]
Claim = tuple[str, str]

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of `kubectl get` (meta/v1 TableColumnDefinition); priority > 0 is shown by `-o wide` only."""

    name: str
    type: str = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one field is not valid (meta/v1 StatusCause); build it with the functions below, worded as Go's `field`.

    `reason` is FieldValueInvalid and so on; `message` the text without the path; `field` the path, `spec.ports[0].port`.
    """

    reason: str
    message: str
    field: str

    @staticmethod
    def invalid(path: str, value: object, detail: str) -> Cause:
        """`Invalid value: "x": detail`."""
        return Cause("FieldValueInvalid", f"Invalid value: {_go(value)}: {detail}", path)

    @staticmethod
    def required(path: str, detail: str = "") -> Cause:
        """`Required value: detail`."""
        return Cause("FieldValueRequired", f"Required value: {detail}" if detail else "Required value", path)

    @staticmethod
    def forbidden(path: str, detail: str) -> Cause:
        """`Forbidden: detail`."""
        return Cause("FieldValueForbidden", f"Forbidden: {detail}", path)

    @staticmethod
    def duplicate(path: str, value: object) -> Cause:
        """`Duplicate value: "x"`."""
        return Cause("FieldValueDuplicate", f"Duplicate value: {_go(value)}", path)

    @staticmethod
    def not_supported(path: str, value: object, supported: Iterable[str]) -> Cause:
        """`Unsupported value: "x": supported values: "A", "B"`."""
        values = ", ".join(_go(word) for word in supported)
        return Cause("FieldValueNotSupported", f"Unsupported value: {_go(value)}: supported values: {values}", path)

    @staticmethod
    def not_found(path: str, value: object) -> Cause:
        """`Not found: "x"`."""
        return Cause("FieldValueNotFound", f"Not found: {_go(value)}", path)

    @staticmethod
    def too_long(path: str, maximum: int) -> Cause:
        """`Too long: may not be more than N bytes`."""
        return Cause("FieldValueTooLong", f"Too long: may not be more than {maximum} bytes", path)

    @staticmethod
    def too_many(path: str, actual: int, maximum: int) -> Cause:
        """`Too many: 5: must have at most 2 items`."""
        items = "item" if maximum == 1 else "items"
        return Cause("FieldValueTooMany", f"Too many: {actual}: must have at most {maximum} {items}", path)


def _go(value: object) -> str:
    """A value as Go's field errors print it: strings quoted, scalars plain, the rest as JSON."""
    if value is None:
        return "null"
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Flags:
    """The server flags a strategy needs: Service ranges as CIDR texts (the first is the primary one), node ports."""

    service_ranges: tuple[str, ...] = ("10.96.0.0/16",)
    node_ports: range = field(default=range(30000, 32768))


class Context(Protocol):
    """What a strategy may see of the world inside the write transaction that is under way."""

    flags: Flags
    now: datetime
    """The transaction's time: aware, UTC, whole seconds."""

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Another object as this transaction sees it; namespace "" for cluster-scoped ones."""

    def list(self, resource: Resource, namespace: str = "") -> Iterator[Object]:
        """All objects of a kind (in one namespace). Decodes each: for allocation use claims instead."""

    def lookup(self, group: str, version: str, plural: str) -> Resource | None:
        """A served resource by name."""

    def holder(self, claim: Claim) -> str | None:
        """Who holds a claim: `namespace/name` of the object, None when it is free."""

    def claim_count(self, space: str) -> int:
        """How many claims of a space are held."""

    def new_uid(self) -> str:
        """A fresh UUID (an injected maker: tests make it predictable)."""

    def warn(self, text: str) -> None:
        """Add a `Warning: 299` header to the answer; kubectl prints it."""


# ruff: noqa: ARG002 - the base's hooks take what a kind may need and use nothing


class Strategy:
    """The rules of a kind; this base is a complete strategy for a kind without rules (such as ConfigMap)."""

    tracks_generation = False
    """metadata.generation starts at 1 and counts changes outside metadata and status."""

    def defaults(self, obj: Object) -> None:
        """Fill absent fields, in place. Pure: the same on create, update and patch. Must be idempotent."""

    def prepare_create(self, obj: Object, ctx: Context) -> None:
        """Change a new object, in place: drop what clients may not set (most kinds: `status`), allocate."""

    def prepare_update(self, new: Object, old: Object, subresource: str, ctx: Context) -> None:
        """Change an updated object, in place, before it is checked.

        The server has already kept what the subresource rule says (`""`: status is old's for kinds with a status
        subresource; `"status"`: everything but status, labels and annotations is old's). Base: nothing more.
        """

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """What is wrong with `obj` (`old` is None on create), without metadata, which the server checks itself."""
        return []

    def claims(self, obj: Object) -> Sequence[Claim]:
        """Values this object alone may hold: `("clusterIP", "10.96.0.10")`, `("nodePort/TCP", "30450")`.

        Pure. The store keeps (space, value) → object under a unique key, in step with the object itself and in the
        same transaction; they are free again when the object changes or is gone. `ctx.holder` asks for one.
        """
        return ()

    def grace_seconds(self, obj: Object, asked: int | None) -> int:
        """Seconds between the mark (deletionTimestamp) and the end that somebody else (the kubelet) makes; 0: at once."""
        return 0

    def deleted(self, obj: Object, ctx: Context) -> None:
        """The object is gone in this transaction."""

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """The cells for `Resource.columns`. Base: name and age."""
        metadata = obj["metadata"]
        return [metadata["name"], age(metadata.get("creationTimestamp"), now)]

    def field(self, obj: Object, path: str) -> str:
        """The value of a selectable field as text. Base: walks the dotted path; absent is "", true is "true"."""
        value: Any = obj
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, bool):
            return "true" if value else "false"
        return "" if value is None else str(value)


NAME = Column("Name", "string", "name", "Name must be unique within a namespace.")
AGE = Column("Age", "string", "", "CreationTimestamp is the server time when this object was created.")


@dataclass(frozen=True, slots=True)
class Resource:
    """One served kind.

    `name_rule` is how metadata.name is checked: "subdomain" (RFC 1123), "label" (RFC 1123) or "label1035".
    `selectable` are the field selectors beside metadata.name and metadata.namespace.
    `subresources` may hold "status", "scale", "binding". `expires`: its objects go by
    themselves, --event-ttl after their last write (Events).
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    columns: tuple[Column, ...] = (NAME, AGE)
    selectable: tuple[str, ...] = ()
    name_rule: str = "subdomain"
    verbs: tuple[str, ...] = VERBS
    expires: bool = False
    strategy: Strategy = field(default_factory=Strategy)

    @property
    def api_version(self) -> str:
        """`v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """The storage name: `pods`, `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def list_kind(self) -> str:
        """`PodList`."""
        return f"{self.kind}List"


class Registry:
    """All served resources; the order given is the order of discovery."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self.resources = tuple(resources)
        self._by_plural = {(r.group, r.version, r.plural): r for r in self.resources}
        self._by_kind = {(r.group, r.version, r.kind): r for r in self.resources}
        self._by_key = {r.key: r for r in self.resources}

    def by_plural(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource behind a path."""
        return self._by_plural.get((group, version, plural))

    def by_kind(self, group: str, version: str, kind: str) -> Resource | None:
        """The resource behind `apiVersion` and `kind` of a body."""
        return self._by_kind.get((group, version, kind))

    def by_key(self, key: str) -> Resource | None:
        """The resource behind a storage name."""
        return self._by_key.get(key)

    def groups(self) -> dict[str, list[str]]:
        """Served groups with their versions, the core group ("") among them, in order."""
        served: dict[str, list[str]] = {}
        for resource in self.resources:
            versions = served.setdefault(resource.group, [])
            if resource.version not in versions:
                versions.append(resource.version)
        return served


def age(timestamp: str | None, now: datetime) -> str:
    """The age column as kubectl's `HumanDuration` writes it (apimachinery `pkg/util/duration`)."""
    from datetime import datetime as clock

    if not timestamp:
        return "<unknown>"
    seconds = int((now - clock.fromisoformat(timestamp)).total_seconds())
    return human_duration(seconds)


def human_duration(seconds: int) -> str:
    """`45s`, `3m20s`, `12m`, `4h12m`, `9h`, `3d4h`, `12d`, `2y101d`, `9y`."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    """Two units, the small one only when it is not zero."""
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"
