"""Get and list: which revision is meant, which objects, in which pages.

resourceVersion of a list (https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions): unset is the
newest state; "0" is any, which here is the newest as well; a number with resourceVersionMatch=NotOlderThan (or without
match and limit) is the newest, provided it is not older; with Exact (or with a limit) it is that state and no other. Pages
of one list all show the revision of the first. What is no longer kept is 410, what does not exist yet 504.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import status
from podwire.apiserver.options import ListOptions, continue_token, read_token, revision
from podwire.apiserver.store import decode

if TYPE_CHECKING:
    from podwire.apiserver.selectors import Selector
    from podwire.apiserver.store import Reader, Snapshot

_EXPIRED_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted "
    "between the time the first chunk was returned and now may show up in the list."
)
_EXPIRED_REVISION = "The resourceVersion for the provided list is too old."


def get(reader: Reader, selector: Selector, namespace: str, name: str, resource_version: str) -> bytes:
    """One object. Raises StatusError 404, or 504 when asked for a state that is not there yet."""
    with reader.snapshot() as snapshot:
        if resource_version:
            not_newer(revision(resource_version), snapshot)
        raw = snapshot.get(selector.resource.key, namespace, name)
    if raw is None:
        raise status.not_found(selector.resource, name)
    return raw


def page(
    reader: Reader, selector: Selector, namespace: str, options: ListOptions
) -> tuple[list[bytes], dict[str, Any]]:
    """One page of a list (all of it without a limit) and the list's metadata."""
    with reader.snapshot() as snapshot:
        at, after = _place(options, snapshot)
        found: list[bytes] = []
        last = ("", "")
        for row_namespace, row_name, raw in snapshot.scan(selector.resource.key, namespace, at, after):
            if not (selector.everything or selector.matches(decode(raw))):
                continue
            if options.limit and len(found) == options.limit:
                return found, {"resourceVersion": str(at), "continue": continue_token(at, *last)}
            found.append(raw)
            last = (row_namespace, row_name)
        return found, {"resourceVersion": str(at)}


def _place(options: ListOptions, snapshot: Snapshot) -> tuple[int, tuple[str, str]]:
    """The revision to show and the key to begin behind."""
    if options.token:
        at, after = read_token(options.token)
        if at == -1:
            return snapshot.revision, after
        if at < snapshot.compacted:
            error = status.expired(_EXPIRED_CONTINUE)
            error.metadata = {"continue": continue_token(-1, *after)}
            raise error
        not_newer(at, snapshot)
        return at, after
    if options.resource_version in {"", "0"}:
        return snapshot.revision, ("", "")
    asked = revision(options.resource_version)
    not_newer(asked, snapshot)
    if options.match == "Exact" or (not options.match and options.limit):
        if asked < snapshot.compacted:
            raise status.expired(_EXPIRED_REVISION)
        return asked, ("", "")
    return snapshot.revision, ("", "")


def not_newer(asked: int, snapshot: Snapshot) -> None:
    """Raise StatusError 504 for a revision that does not exist yet."""
    if asked > snapshot.revision:
        raise status.too_large_resource_version(asked, snapshot.revision)
