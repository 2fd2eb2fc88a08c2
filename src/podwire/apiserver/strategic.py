"""Strategic merge patch: merge patch that knows which lists are maps in disguise.

What apimachinery's `pkg/util/strategicpatch` does on the server's side, where the schema says of a list whether it is
replaced or merged, and by which key its items are told apart (containers by `name`, ports by `containerPort`, finalizers
by value). Directives in the patch:

* `$patch: replace | delete | merge` in an object or a list item;
* `$deleteFromPrimitiveList/FIELD: […]` values to drop from a merged list of scalars;
* `$setElementOrder/FIELD: […]` the order of FIELD's items after the merge; items that only the server has keep
  their place relative to their neighbours as well as possible;
* `$retainKeys: […]` of a field with that strategy: all other keys go (Deployment's `strategy`, a volume's source).

Pure: the document and the patch are not changed. A patch that breaks the rules is StatusError 400 or 422.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from podwire.apiserver import status
from podwire.apiserver.patches import equal, rejected

if TYPE_CHECKING:
    from podwire.apiserver.schema import Field, Type

PATCH = "$patch"
RETAIN = "$retainKeys"
DELETE = "$deleteFromPrimitiveList/"
ORDER = "$setElementOrder/"


def merge(document: Any, patch: dict[str, Any], type_: Type | None) -> Any:
    """The document with the patch in it; `type_` None: no schema, lists are replaced."""
    return _map(copy.deepcopy(document), copy.deepcopy(patch), type_)


def _field(type_: Type | None, key: str) -> Field | None:
    return type_.fields.get(key) if type_ is not None and type_.kind == "struct" else None


def _inner(type_: Type | None, key: str) -> Type | None:
    """The type below a key of a struct or a map."""
    if type_ is not None and type_.kind == "map":
        return type_.items
    field = _field(type_, key)
    return field.type if field else None


def _map(original: dict[str, Any], patch: dict[str, Any], type_: Type | None) -> dict[str, Any]:
    directive = patch.pop(PATCH, None)
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: _plain(value) for key, value in patch.items() if value is not None}
    if directive not in {None, "merge"}:
        raise status.bad_request(f"unknown patch type: {directive}")
    _retain(original, patch)
    orders = {key.removeprefix(ORDER): patch.pop(key) for key in list(patch) if key.startswith(ORDER)}
    for key in [key for key in patch if key.startswith(DELETE)]:
        values, name = patch.pop(key), key.removeprefix(DELETE)
        if isinstance(values, list) and isinstance(original.get(name), list):
            original[name] = [item for item in original[name] if not any(equal(item, value) for value in values)]
    before = {key: list(original[key]) for key in orders if isinstance(original.get(key), list)}
    for key, value in patch.items():
        if value is None:
            original.pop(key, None)
        else:
            original[key] = _value(original.get(key), value, _inner(type_, key), _field(type_, key))
    for key, order in orders.items():
        if isinstance(original.get(key), list):
            field = _field(type_, key)
            merge_key = field.merge_key if field else ""
            original[key] = _ordered(original[key], order, before.get(key, []), merge_key)
    return original


def _value(original: Any, value: Any, type_: Type | None, field: Field | None) -> Any:
    if isinstance(value, dict):
        if isinstance(original, dict):
            return _map(original, value, type_)
        return _plain(value)
    if isinstance(value, list):
        if field is not None and field.merges and isinstance(original, list):
            return _list(original, value, type_.items if type_ else None, field.merge_key)
        return _plain(value)
    return value


def _plain(value: Any) -> Any:
    """A new value: nulls and directives have done their work and are dropped."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None and not key.startswith("$")}
    if isinstance(value, list):
        return [
            _plain(item) for item in value if not (isinstance(item, dict) and item.get(PATCH) in {"delete", "replace"})
        ]
    return value


def _retain(original: dict[str, Any], patch: dict[str, Any]) -> None:
    keep = patch.pop(RETAIN, None)
    if keep is None:
        return
    if not isinstance(keep, list):
        raise status.bad_request("invalid patch format of retainKeys")
    if any(key not in keep for key, value in patch.items() if value is not None and not key.startswith("$")):
        raise rejected()
    for key in list(original):
        if key not in keep:
            del original[key]


def _list(original: list[Any], patch: list[Any], items: Type | None, merge_key: str) -> list[Any]:
    if not merge_key:
        merged = list(original)
        merged += [item for item in patch if not any(equal(item, have) for have in original)]
        return _interleaved(merged, patch, original, "")
    if any(not isinstance(item, dict) for item in patch):
        raise status.bad_request(f"a list merged by {merge_key} holds objects only")
    if any(item.get(PATCH) == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get(PATCH) is None]
    merged = list(original)
    for item in patch:
        if merge_key not in item:
            raise status.bad_request(f"map: {item} does not contain declared merge key: {merge_key}")
        at = next((i for i, have in enumerate(merged) if equal(have.get(merge_key), item[merge_key])), None)
        if item.get(PATCH) == "delete":
            merged = [have for have in merged if not equal(have.get(merge_key), item[merge_key])]
        elif at is not None:
            merged[at] = _map(merged[at], item, items)
        else:
            merged.append(_plain(item))
    named = [item for item in patch if item.get(PATCH) != "delete"]
    return _interleaved(merged, named, original, merge_key)


def _ordered(merged: list[Any], order: Any, original: list[Any], merge_key: str) -> list[Any]:
    """`merged` in the order that `$setElementOrder` asks for."""
    if not isinstance(order, list):
        raise status.bad_request("invalid patch format of setElementOrder list")
    return _interleaved(merged, order, original, merge_key)


def _interleaved(merged: list[Any], wanted: list[Any], original: list[Any], merge_key: str) -> list[Any]:
    """The wanted items in their order, and the server's own put before the first wanted one that came after them."""

    def identity(item: Any) -> Any:
        return item.get(merge_key) if merge_key and isinstance(item, dict) else item

    def place(item: Any, among: list[Any]) -> int:
        return next((i for i, have in enumerate(among) if equal(identity(have), identity(item))), -1)

    named = sorted((item for item in merged if place(item, wanted) >= 0), key=lambda item: place(item, wanted))
    own = sorted((item for item in merged if place(item, wanted) < 0), key=lambda item: place(item, original))
    result = []
    while named and own:
        own_place, named_place = place(own[0], original), place(named[0], original)
        own_first = 0 <= own_place < named_place
        result.append(own.pop(0) if own_first else named.pop(0))
    return result + named + own
