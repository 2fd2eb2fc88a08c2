"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386), as the API server applies them.

Pure functions: a document and a patch in, a new document out; the inputs are not changed. Kubernetes' own habits
where the RFCs leave a choice: array indexes may be negative (counted from the end), a failed `test` and a path that is
not there are refused alike with 422 and without saying which (`NewGenericServerResponse`), a patch that cannot be read is 400.
"""

from __future__ import annotations

import copy
from typing import Any

from podwire.apiserver import status

MAX_OPERATIONS = 10_000
_OPERATIONS = {"add", "remove", "replace", "move", "copy", "test"}
_ABSENT = object()


class CannotApply(Exception):
    """The patch is well-formed and does not fit this document."""


def rejected() -> status.StatusError:
    """422 as a real server words a patch that could not be applied."""
    return status.StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def merge(document: Any, patch: Any) -> Any:
    """RFC 7386: objects are merged, null removes, anything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(document: Any, operations: Any) -> Any:
    """RFC 6902: all operations or none. Raises StatusError 400 (unreadable), 413 (too many), 422 (does not fit)."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise status.bad_request("error decoding patch: a JSON patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise status.StatusError(
            413,
            "RequestEntityTooLarge",
            "Request entity too large: The allowed maximum operations in a JSON patch is "
            f"{MAX_OPERATIONS}, got {len(operations)}",
        )
    result = copy.deepcopy(document)
    try:
        for operation in operations:
            result = _operate(result, operation)
    except CannotApply as error:
        raise rejected() from error
    return result


def _operate(document: Any, operation: dict[str, Any]) -> Any:
    name, path = operation.get("op"), operation.get("path")
    if name not in _OPERATIONS or not isinstance(path, str):
        raise CannotApply(f"operation {name!r} at {path!r}")
    if name in {"move", "copy"}:
        source = operation.get("from")
        if not isinstance(source, str):
            raise CannotApply(f"{name} without from")
        value = copy.deepcopy(_get(document, source))
        if name == "move":
            if path.startswith(source + "/"):
                raise CannotApply("a location cannot be moved into one of its children")
            document = _remove(document, source)
        return _add(document, path, value)
    if name == "remove":
        return _remove(document, path)
    value = operation.get("value", _ABSENT)
    if value is _ABSENT and name != "test":
        raise CannotApply(f"{name} without value")
    if name == "test":
        # A missing value tests for null, and a path that is not there is null (as the library of the real server has it).
        wanted = None if value is _ABSENT else value
        if not equal(_get(document, path, missing=None), wanted):
            raise CannotApply(f"testing value {path} failed")
        return document
    value = copy.deepcopy(value)
    if name == "replace":
        _get(document, path)
        return _replace(document, path, value)
    return _add(document, path, value)


def equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: true is not 1, 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    return bool(left == right)


def _tokens(path: str) -> list[str]:
    """RFC 6901: `/a~1b/0` is ["a/b", "0"]; "" is the document."""
    if not path:
        return []
    if not path.startswith("/"):
        raise CannotApply(f"not a JSON pointer: {path}")
    return [token.replace("~1", "/").replace("~0", "~") for token in path[1:].split("/")]


def _index(token: str, length: int) -> int:
    """A position in an array; negative ones count from the end."""
    digits = token.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or (len(digits) > 1 and digits[0] == "0"):
        raise CannotApply(f"not an array index: {token}")
    index = int(token)
    if index < 0:
        index += length
    if not 0 <= index < length:
        raise CannotApply(f"array index out of range: {token}")
    return index


def _step(value: Any, token: str) -> Any:
    """One step down the document."""
    if isinstance(value, dict) and token in value:
        return value[token]
    if isinstance(value, list):
        return value[_index(token, len(value))]
    raise CannotApply(f"missing path: {token}")


def _get(document: Any, path: str, missing: Any = _ABSENT) -> Any:
    value = document
    for token in _tokens(path):
        try:
            value = _step(value, token)
        except CannotApply:
            if missing is _ABSENT:
                raise
            return missing
    return value


def _parent(document: Any, path: str) -> tuple[Any, str]:
    *way, last = _tokens(path)
    value = document
    for token in way:
        value = _step(value, token)
    return value, last


def _add(document: Any, path: str, value: Any) -> Any:
    if not path:
        return value
    parent, token = _parent(document, path)
    if isinstance(parent, dict):
        parent[token] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if token == "-" else _index(token, len(parent) + 1), value)  # noqa: S105 - RFC 6901's "after the end"
    else:
        raise CannotApply(f"missing path: {path}")
    return document


def _replace(document: Any, path: str, value: Any) -> Any:
    if not path:
        return value
    parent, token = _parent(document, path)
    parent[token if isinstance(parent, dict) else _index(token, len(parent))] = value
    return document


def _remove(document: Any, path: str) -> Any:
    if not path:
        raise CannotApply("the document itself cannot be removed")
    parent, token = _parent(document, path)
    if isinstance(parent, dict) and token in parent:
        del parent[token]
    elif isinstance(parent, list):
        del parent[_index(token, len(parent))]
    else:
        raise CannotApply(f"missing path: {path}")
    return document
