"""`/openapi/v3`: the schemas of the served kinds, made from the definitions on disk for each request.

kubectl reads it for three things: `explain` (descriptions), `create/apply --validate` (does PATCH of this kind know
`fieldValidation`? then the server validates) and merge keys of kinds it was not built with. So the documents hold the schemas
of the served kinds with everything they refer to, and for each served path the operations with their action, kind and
query parameters; prose about responses is left out.

Nothing is kept in memory: a document is built in some ten milliseconds and clients cache it by the hash in its URL.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import podwire
from podwire.apiserver.definitions import Definitions, definition_name, reference
from podwire.apiserver.discovery import KUBERNETES_VERSION
from podwire.apiserver.subresources import BINDING, SCALE

if TYPE_CHECKING:
    from podwire.apiserver.resource import Registry, Resource

_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_STRING = {"type": "string", "uniqueItems": True}
_INTEGER = {"type": "integer", "uniqueItems": True}
_BOOLEAN = {"type": "boolean", "uniqueItems": True}
_WRITE = {"dryRun": _STRING, "fieldManager": _STRING, "fieldValidation": _STRING}
_LIST = {
    "allowWatchBookmarks": _BOOLEAN,
    "continue": _STRING,
    "fieldSelector": _STRING,
    "labelSelector": _STRING,
    "limit": _INTEGER,
    "resourceVersion": _STRING,
    "resourceVersionMatch": _STRING,
    "sendInitialEvents": _BOOLEAN,
    "timeoutSeconds": _INTEGER,
    "watch": _BOOLEAN,
}
_DELETE = {
    "dryRun": _STRING,
    "gracePeriodSeconds": _INTEGER,
    "orphanDependents": _BOOLEAN,
    "propagationPolicy": _STRING,
}
_PARAMETERS = {
    "get": {},
    "list": _LIST,
    "create": _WRITE,
    "update": _WRITE,
    "patch": _WRITE,
    "delete": _DELETE,
    "deletecollection": {**_DELETE, **_LIST},
}
_METHODS = {
    "get": "get",
    "list": "get",
    "create": "post",
    "update": "put",
    "patch": "patch",
    "delete": "delete",
    "deletecollection": "delete",
}
_ACTIONS = {"create": "post", "update": "put"}
"""x-kubernetes-action where it is not the verb."""


def index(registry: Registry) -> dict[str, Any]:
    """`/openapi/v3`: one document for each served group and version."""
    paths = {}
    for group, versions in registry.groups().items():
        for version in versions:
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest(registry, group, version)}"}
    return {"paths": paths}


def digest(registry: Registry, group: str, version: str) -> str:
    """What a document depends on: this program's version and the kinds; changes when the document does."""
    kinds = [
        (r.plural, r.verbs, r.subresources) for r in registry.resources if (r.group, r.version) == (group, version)
    ]
    return hashlib.sha256(repr((podwire.__version__, KUBERNETES_VERSION, kinds)).encode()).hexdigest()[:32].upper()


def document(registry: Registry, group: str, version: str) -> dict[str, Any] | None:
    """The OpenAPI 3 document of one group and version; None when it is not served."""
    served = [r for r in registry.resources if (r.group, r.version) == (group, version)]
    if not served:
        return None
    roots = [definition_name(r.group, r.version, kind) for r in served for kind in (r.kind, r.list_kind)]
    roots += [_META + "DeleteOptions", _META + "Status", _META + "Patch"]
    for name, resource in (("scale", SCALE), ("binding", BINDING)):
        if any(name in r.subresources for r in served):
            roots.append(definition_name(resource.group, resource.version, resource.kind))
    paths: dict[str, Any] = {}
    for resource in served:
        paths.update(_paths(resource))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": f"{KUBERNETES_VERSION}+podwire"},
        "paths": paths,
        "components": {"schemas": _schemas(roots)},
    }


def _paths(resource: Resource) -> dict[str, Any]:
    root = f"/apis/{resource.group}" if resource.group else "/api"
    root += f"/{resource.version}"
    where = f"{root}/namespaces/{{namespace}}" if resource.namespaced else root
    collection = f"{where}/{resource.plural}"
    found = {
        collection: _item(resource, resource, ("list", "create", "deletecollection"), collection),
        f"{collection}/{{name}}": _item(resource, resource, ("get", "update", "patch", "delete"), "{namespace}{name}"),
    }
    if resource.namespaced:
        found[f"{root}/{resource.plural}"] = _item(resource, resource, ("list",), "")
    for name in resource.subresources:
        kind = {"scale": SCALE, "binding": BINDING}.get(name, resource)
        verbs = ("create",) if name == "binding" else ("get", "update", "patch")
        found[f"{collection}/{{name}}/{name}"] = _item(resource, kind, verbs, "{namespace}{name}")
    return found


def _item(resource: Resource, kind: Resource, verbs: tuple[str, ...], path: str) -> dict[str, Any]:
    """A path with its operations; `path` tells which path parameters it has."""
    item: dict[str, Any] = {}
    names = ["name"] if "{name}" in path else []
    names += ["namespace"] if resource.namespaced and "{namespace}" in path else []
    if names:
        item["parameters"] = [{"name": n, "in": "path", "required": True, "schema": _STRING} for n in names]
    for verb in verbs:
        if verb in resource.verbs or kind is not resource:
            item[_METHODS[verb]] = _operation(kind, verb)
    return item


def _operation(kind: Resource, verb: str) -> dict[str, Any]:
    gvk = {"group": kind.group, "kind": kind.kind, "version": kind.version}
    schema = _ref(definition_name(kind.group, kind.version, kind.list_kind if verb == "list" else kind.kind))
    operation: dict[str, Any] = {
        "x-kubernetes-action": _ACTIONS.get(verb, verb),
        "x-kubernetes-group-version-kind": gvk,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": schema}}}},
    }
    if verb == "create":
        operation["responses"]["201"] = {**operation["responses"]["200"], "description": "Created"}
    if _PARAMETERS[verb]:
        operation["parameters"] = [{"name": n, "in": "query", "schema": s} for n, s in _PARAMETERS[verb].items()]
    if verb in {"create", "update"}:
        operation["requestBody"] = {"required": True, "content": {"*/*": {"schema": schema}}}
    elif verb == "patch":
        patch = {"schema": _ref(_META + "Patch")}
        operation["requestBody"] = {"required": True, "content": dict.fromkeys(_PATCHES, patch)}
    elif verb.startswith("delete"):
        operation["requestBody"] = {"content": {"*/*": {"schema": _ref(_META + "DeleteOptions")}}}
    return operation


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(roots: list[str]) -> dict[str, Any]:
    """The definitions named and all they refer to, as OpenAPI writes them."""
    definitions = Definitions()
    found: dict[str, Any] = {}
    waiting = [name for name in roots if name in definitions]
    while waiting:
        name = waiting.pop()
        if name not in found:
            schema = definitions.get(name)
            waiting += [target for target in _references(schema) if target not in found]
            found[name] = _openapi(schema, name.rpartition(".")[2])
    return dict(sorted(found.items()))


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [target for value in schema for target in _references(value)]
    if not isinstance(schema, dict):
        return []
    target = reference(schema) if isinstance(schema.get("$ref"), str) else ""
    return ([target] if target else []) + [name for value in schema.values() for name in _references(value)]


def _openapi(schema: dict[str, Any], name: str = "") -> dict[str, Any]:
    """Undo what the package did to make JSON Schema of OpenAPI: null among the types, enums of apiVersion and kind."""
    if name == "IntOrString":
        return {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"}
    if name == "Quantity":
        return {**schema, "oneOf": [{"type": "string"}, {"type": "number"}]}
    if target := reference(schema):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**rest, "default": {}, "allOf": [_ref(target)]} if rest else _ref(target)
    result = dict(schema)
    if isinstance(schema.get("type"), list):
        result["type"] = next(word for word in schema["type"] if word != "null")
    if "enum" in result:
        result["enum"] = [word for word in result["enum"] if word is not None]
    if "properties" in schema:
        result["properties"] = {key: _property(key, value) for key, value in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = _openapi(schema[key])
    return result


def _property(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    result = _openapi(schema)
    if key in {"apiVersion", "kind"}:
        result.pop("enum", None)
    return result
