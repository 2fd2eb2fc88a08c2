"""Request bodies: JSON, YAML or protobuf into an object of the expected kind, in shape.

Field validation is the client's choice (`fieldValidation`): Strict refuses unknown and duplicate fields (400), Warn (the
default) says them in Warning headers, Ignore is silent; in each case the unknown field itself is dropped.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from podwire.apiserver import status
from podwire.apiserver.resource import Resource
from podwire.apiserver.schema import Type, cannot_handle, check

if TYPE_CHECKING:
    from podwire.apiserver.resource import Object

LIMIT = 3 * 1024 * 1024
"""Bytes of a body; the real server's --max-request-bytes-read."""
PROTOBUF = "application/vnd.kubernetes.protobuf"
READABLE = ("application/json", "application/yaml", PROTOBUF)
_YAML = {"application/yaml", "application/x-yaml", "text/yaml"}

DELETE_OPTIONS = Resource("meta.k8s.io", "v1", "DeleteOptions", "deleteoptions")


def too_large() -> status.StatusError:
    """413."""
    return status.StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LIMIT}")


def decode(
    content_type: str, body: bytes, resource: Resource, type_: Type, validation: str
) -> tuple[Object, list[str]]:
    """The object in a body, and warnings. Raises StatusError 400 or 415."""
    media_type = content_type.partition(";")[0].strip().lower()
    duplicates: list[str] = []
    if media_type in {"", "application/json"}:
        obj, duplicates = _json(body, resource, validation)
    elif media_type in _YAML:
        obj = _yaml(body, resource)
    elif media_type == PROTOBUF:
        from podwire.apiserver import protobuf

        obj = protobuf.decode(body)
    else:
        raise status.unsupported_media_type(READABLE)
    if not isinstance(obj, dict):
        raise cannot_handle(resource, "the body is not an object")
    _expect_kind(obj, resource)
    return obj, judge(check(obj, type_, resource), duplicates, resource, validation)


def delete_options(content_type: str, body: bytes) -> Object:
    """A DeleteOptions, whatever group it comes under; no body is none. Raises StatusError 400 or 415."""
    media_type = content_type.partition(";")[0].strip().lower()
    if not body.strip():
        return {}
    if media_type == PROTOBUF:
        from podwire.apiserver import protobuf

        obj: Any = protobuf.decode(body)
    elif media_type in _YAML:
        obj = _yaml(body, DELETE_OPTIONS)
    elif media_type in {"", "application/json"}:
        obj = _json(body, DELETE_OPTIONS, "Ignore")[0]
    else:
        raise status.unsupported_media_type(READABLE)
    if not isinstance(obj, dict) or obj.setdefault("kind", DELETE_OPTIONS.kind) != DELETE_OPTIONS.kind:
        raise cannot_handle(DELETE_OPTIONS, "the body is not DeleteOptions")
    return obj


def shaped(body: Object, type_: Type) -> Object:
    """DeleteOptions without nulls and unknown fields. Raises StatusError 400."""
    check(body, type_, DELETE_OPTIONS)
    return body


def judge(unknown: list[str], duplicates: list[str], resource: Resource, validation: str) -> list[str]:
    """Warnings for unknown and duplicate fields, or the refusal when they are strict."""
    if validation == "Ignore":
        return []
    found = [f'unknown field "{path}"' for path in unknown] + [f'duplicate field "{path}"' for path in duplicates]
    if found and validation == "Strict":
        raise cannot_handle(resource, f"strict decoding error: {', '.join(found)}")
    return found


def parse_json(body: bytes) -> Any:
    """JSON of any kind, for patches. Raises StatusError 400."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise status.bad_request(f"error decoding patch: {error}") from error


def _json(body: bytes, resource: Resource, validation: str) -> tuple[Any, list[str]]:
    try:
        obj = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(resource, f"json parse error: {error}") from error
    # Looking for duplicate keys costs a second, slower parse: done only for those who ask (kubectl does).
    return obj, _duplicates(body) if validation == "Strict" else []


def _yaml(body: bytes, resource: Resource) -> Any:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # A round through JSON makes of dates and the like what a JSON body would hold.
        return msgspec.json.decode(msgspec.json.encode(yaml.load(body, loader)))  # noqa: S506 - both are safe loaders
    except (yaml.YAMLError, TypeError, msgspec.DecodeError) as error:
        raise _unreadable(resource, f"yaml parse error: {error}") from error


def _unreadable(resource: Resource, why: str) -> status.StatusError:
    return status.bad_request(
        f"the object provided is unrecognized (must be of type {resource.kind}): couldn't get version/kind; {why}"
    )


def _expect_kind(obj: Object, resource: Resource) -> None:
    """ApiVersion and kind are the path's, or are left out."""
    version, kind = obj.setdefault("apiVersion", resource.api_version), obj.setdefault("kind", resource.kind)
    if version != resource.api_version:
        raise status.bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        raise status.bad_request(
            f'{kind} in version "{resource.version}" cannot be handled as a {resource.kind}: the kind in the data ({kind}) '
            f"does not match the expected kind ({resource.kind})"
        )


def _duplicates(body: bytes) -> list[str]:
    """Paths of keys that stand twice in one object."""
    found = False

    def pairs(items: list[tuple[str, Any]]) -> Any:
        nonlocal found
        found = found or len({key for key, _ in items}) != len(items)
        return items

    tree = json.loads(body, object_pairs_hook=pairs)
    return _repeated(tree, "") if found else []


def _repeated(tree: Any, path: str) -> list[str]:
    """Objects are lists of pairs here; a list of such pairs can't be told from an array of two-element arrays, and need not."""
    result = []
    seen = set()
    for index, item in enumerate(tree if isinstance(tree, list) else ()):
        if isinstance(item, tuple):
            key, value = item
            inner = f"{path}.{key}" if path else key
            if key in seen:
                result.append(inner)
            seen.add(key)
            result += _repeated(value, inner)
        else:
            result += _repeated(item, f"{path}[{index}]")
    return result
