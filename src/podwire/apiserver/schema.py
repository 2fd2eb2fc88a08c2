"""What a kind's fields are: types for checking bodies, merge keys for strategic merge patch.

A real API server decodes a body into Go structs; that drops nulls, refuses a string where a number belongs, and finds
fields nobody knows. Here the same is done by walking the JSON along `Type`s, which are compiled from the OpenAPI
definitions (see `definitions`) on first use and hold only what the walk needs. Strategies can therefore rely on the
shapes: a list is a list, an absent field is absent and not null.

Strategic merge keys come from the same definitions (`x-kubernetes-patch-merge-key`, `-strategy`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from podwire.apiserver import status
from podwire.apiserver.definitions import Definitions, definition_name, reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.apiserver.resource import Object, Resource

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_INDEX = re.compile(r"\[\d+\]")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Field:
    """A field of a struct: its type and how strategic merge treats it."""

    __slots__ = ("merge_key", "merges", "retain_keys", "type")

    def __init__(self, type_: Type, merge_key: str = "", strategy: str = "") -> None:
        self.type = type_
        self.merge_key = merge_key
        self.merges = "merge" in strategy.split(",")
        self.retain_keys = "retainKeys" in strategy.split(",")


class Type:
    """One node of the type graph.

    `kind` is struct, map, list, string, time, integer, number, boolean, int-or-string, quantity or any; `name` the Go type as
    error messages show it; `fields` are a struct's, `items` what a map or list holds.
    """

    __slots__ = ("fields", "items", "kind", "name")

    def __init__(self, kind: str, name: str, items: Type | None = None) -> None:
        self.kind = kind
        self.name = name
        self.items = items
        self.fields: dict[str, Field] = {}


class Schemas:
    """The compiled types of the served kinds."""

    def __init__(self, resources: Iterable[Resource], definitions: Definitions | None = None) -> None:
        compiler = _Compiler(definitions or Definitions())
        kinds = {(r.group, r.version, r.kind) for r in resources}
        kinds |= {("autoscaling", "v1", "Scale"), ("", "v1", "Binding")}
        self._types = {kind: compiler.type(definition_name(*kind)) for kind in sorted(kinds)}
        self.delete_options = compiler.type(_META + "DeleteOptions")

    def of(self, group: str, version: str, kind: str) -> Type:
        """The type of a kind."""
        return self._types[group, version, kind]


class _Compiler:
    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._types: dict[str, Type] = {}

    def type(self, name: str) -> Type:
        """The type behind a definition name; recursive definitions meet themselves in the table."""
        if name not in self._types:
            short = name.rpartition(".")[2]
            definition = self._definitions.get(name)
            if short == "IntOrString":
                self._types[name] = Type("int-or-string", "intstr.IntOrString")
            elif short == "Quantity":
                self._types[name] = Type("quantity", "resource.Quantity")
            elif "properties" not in definition:
                self._types[name] = self._plain(definition)
            else:
                made = self._types[name] = Type("struct", f"v1.{short}")
                made.fields = {key: self._field(value) for key, value in definition["properties"].items()}
        return self._types[name]

    def _field(self, schema: dict[str, Any]) -> Field:
        return Field(
            self._of(schema),
            schema.get("x-kubernetes-patch-merge-key", ""),
            schema.get("x-kubernetes-patch-strategy", ""),
        )

    def _of(self, schema: dict[str, Any]) -> Type:
        target = reference(schema)
        return self.type(target) if target else self._plain(schema)

    def _plain(self, schema: dict[str, Any]) -> Type:
        """A schema that stands for itself. `type` may be a list with null in it, an artefact of JSON Schema."""
        types = schema.get("type", "any")
        kind = types if isinstance(types, str) else next(word for word in types if word != "null")
        if kind == "array":
            items = self._of(schema["items"])
            return Type("list", f"[]{items.name}", items)
        if kind == "object":
            if "additionalProperties" not in schema:
                return Type("any", "map[string]interface {}")
            items = self._of(schema["additionalProperties"])
            return Type("map", f"map[string]{items.name}", items)
        if kind == "string":
            return Type("time", "v1.Time") if schema.get("format") == "date-time" else Type("string", "string")
        return Type(kind, {"integer": schema.get("format", "int64"), "boolean": "bool"}.get(kind, "float64"))


class BadType(Exception):
    """A value of another type than the field's; the text is encoding/json's."""


class Walk:
    """Checks one object against its type, in place; `unknown` collects the paths of fields nobody knows."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def struct(self, value: Any, type_: Type, path: str) -> None:
        """Check the fields of a struct, drop nulls and remember unknown fields (which are dropped as well)."""
        for key in list(value):
            field = type_.fields.get(key)
            inner = f"{path}.{key}" if path else key
            if field is None:
                self.unknown.append(inner)
                del value[key]
            elif value[key] is None:
                del value[key]
            else:
                value[key] = self.value(value[key], field.type, inner, type_)

    def value(self, value: Any, type_: Type, path: str, owner: Type) -> Any:
        """Check one value; answers it, in the one spelling that types with several have."""
        kind = type_.kind
        if kind == "any":
            return value
        if kind == "struct" and isinstance(value, dict):
            self.struct(value, type_, path)
        elif kind == "list" and isinstance(value, list):
            assert type_.items is not None
            for index, item in enumerate(value):
                value[index] = self.value(item, type_.items, f"{path}[{index}]", owner)
        elif kind == "map" and isinstance(value, dict):
            assert type_.items is not None
            for key, item in value.items():
                value[key] = self.value(item, type_.items, f"{path}.{key}", owner)
        elif value is None:
            return _zero(kind)
        elif kind == "quantity" and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return str(value)
        elif not _is(value, kind):
            raise BadType(_mismatch(value, type_, path, owner))
        return value


def _zero(kind: str) -> Any:
    """What Go makes of a null inside a list or a map."""
    return {"string": "", "struct": {}, "map": {}, "list": [], "boolean": False, "quantity": "0", "time": None}.get(
        kind, 0
    )


def _is(value: Any, kind: str) -> bool:
    if kind == "string":
        return isinstance(value, str)
    if kind == "time":
        return isinstance(value, str) and _TIME.fullmatch(value) is not None
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == "number":
        return isinstance(value, (int, float))
    return isinstance(value, int) or (kind == "int-or-string" and isinstance(value, str))


def _mismatch(value: Any, type_: Type, path: str, owner: Type) -> str:
    if type_.kind == "time" and isinstance(value, str):
        return f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
    names = {bool: "bool", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    word = names[type(value)]
    if isinstance(value, float) and type_.kind == "integer":
        word = f"number {value}"
    where = f"{owner.name.removeprefix('v1.')}.{_INDEX.sub('', path)}"
    return f"json: cannot unmarshal {word} into Go struct field {where} of type {type_.name}"


def check(obj: Object, type_: Type, resource: Resource) -> list[str]:
    """Bring a decoded body into shape, in place; answers the unknown fields. Raises StatusError 400."""
    walk = Walk()
    try:
        walk.struct(obj, type_, "")
    except BadType as error:
        raise cannot_handle(resource, str(error)) from error
    return walk.unknown


def cannot_handle(resource: Resource, why: str) -> status.StatusError:
    """400: `Deployment in version "v1" cannot be handled as a Deployment: why`."""
    return status.bad_request(
        f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {why}'
    )
