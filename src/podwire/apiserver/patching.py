"""PATCH: which kind of patch a body is, and its application to an object inside the writer's transaction.

The patched object is brought into shape like any body; what does not fit is 422 about field `patch`, and unknown fields are
treated as `fieldValidation` says. Server-side apply is not served: 415 with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.apiserver import patches, status, strategic
from podwire.apiserver.bodies import parse_json
from podwire.apiserver.resource import Cause
from podwire.apiserver.schema import check
from podwire.apiserver.store import encode

if TYPE_CHECKING:
    from podwire.apiserver.resource import Object, Resource
    from podwire.apiserver.schema import Type
    from podwire.apiserver.work import Work

JSON = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
READABLE = (JSON, MERGE, STRATEGIC)


class Patch(NamedTuple):
    """A decoded patch and its media type."""

    media_type: str
    content: Any


def read(content_type: str, body: bytes) -> Patch:
    """Decode a patch. Raises StatusError 400 or 415."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type not in READABLE:
        hint = "podwire does not serve server-side apply" if media_type == APPLY else ""
        raise status.unsupported_media_type(READABLE, hint)
    content = parse_json(body)
    if media_type != JSON and not isinstance(content, dict):
        raise status.bad_request("error decoding patch: the patch is not an object")
    return Patch(media_type, content)


def apply(patch: Patch, obj: Object, resource: Resource, type_: Type, validation: str, work: Work) -> Object:
    """The patched object. Raises StatusError 400 or 422."""
    if patch.media_type == JSON:
        new = patches.apply(obj, patch.content)
    elif patch.media_type == MERGE:
        new = patches.merge(obj, patch.content)
    else:
        new = strategic.merge(obj, patch.content, type_)
    if not isinstance(new, dict):
        raise patches.rejected()
    new["apiVersion"], new["kind"] = obj["apiVersion"], obj["kind"]
    text = encode(new).decode()
    try:
        unknown = check(new, type_, resource)
    except status.StatusError as error:
        raise _does_not_fit(text, error.message.partition(": ")[2]) from error
    found = [f'unknown field "{path}"' for path in unknown]
    if found and validation == "Strict":
        raise _does_not_fit(text, f"strict decoding error: {', '.join(found)}")
    if validation == "Warn":
        for line in found:
            work.warn(line)
    return new


def _does_not_fit(patched: str, why: str) -> status.StatusError:
    """422 without a name, as the real server has it: `"" is invalid: patch: Invalid value: …`."""
    return status.invalid_object("", "", "", [Cause.invalid("patch", patched, why)])
