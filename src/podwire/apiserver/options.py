"""The query parameters of requests: what list, watch and write may be asked, checked as the real server checks it.

Bad numbers and booleans are 400; combinations that make no sense are 422 about `ListOptions.meta.k8s.io` (or CreateOptions
and so on), with the words of apimachinery's `pkg/apis/meta/internalversion/validation`.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from podwire.apiserver import status
from podwire.apiserver.resource import Cause
from podwire.apiserver.store import encode

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Token(msgspec.Struct):
    """A continue token: the snapshot's revision (-1: whatever is newest) and the last key that was sent."""

    v: str
    rv: int
    start: str


class ListOptions(NamedTuple):
    """Options of list, watch and deletecollection; `send_initial_events` None: not said."""

    labels: str
    fields: str
    watch: bool
    bookmarks: bool
    resource_version: str
    match: str
    limit: int
    token: str
    timeout: int | None
    send_initial_events: bool | None


def list_options(query: Mapping[str, str], watch: bool) -> ListOptions:
    """From the query. Raises StatusError 400 or 422."""
    initial = query.get("sendInitialEvents")
    options = ListOptions(
        query.get("labelSelector", ""),
        query.get("fieldSelector", ""),
        watch or boolean(query, "watch"),
        boolean(query, "allowWatchBookmarks"),
        query.get("resourceVersion", ""),
        query.get("resourceVersionMatch", ""),
        integer(query, "limit") or 0,
        query.get("continue", ""),
        integer(query, "timeoutSeconds"),
        None if initial is None else boolean(query, "sendInitialEvents"),
    )
    causes = _watch_causes(options) if options.watch else _list_causes(options)
    if causes:
        raise status.options_invalid("ListOptions", causes)
    if options.resource_version:
        revision(options.resource_version)
    return options


def _list_causes(options: ListOptions) -> list[Cause]:
    path, causes = "resourceVersionMatch", []
    if options.match:
        if not options.resource_version:
            causes.append(Cause.forbidden(path, "resourceVersionMatch is forbidden unless resourceVersion is provided"))
        if options.token:
            causes.append(Cause.forbidden(path, "resourceVersionMatch is forbidden when continue is provided"))
        if options.match not in {"Exact", "NotOlderThan"}:
            causes.append(Cause.not_supported(path, options.match, ["Exact", "NotOlderThan", ""]))
        if options.match == "Exact" and options.resource_version == "0":
            causes.append(Cause.forbidden(path, 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'))
    if options.send_initial_events is not None:
        causes.append(Cause.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    return causes


def _watch_causes(options: ListOptions) -> list[Cause]:
    path, causes = "resourceVersionMatch", []
    if options.send_initial_events is not None and options.match != "NotOlderThan":
        causes.append(Cause.forbidden(path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"))
    if options.match:
        if options.send_initial_events is None:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            causes.append(Cause.forbidden(path, why))
        if options.match != "NotOlderThan":
            causes.append(Cause.not_supported(path, options.match, ["NotOlderThan"]))
        if options.token:
            causes.append(Cause.forbidden(path, "resourceVersionMatch is forbidden when continue is provided"))
    return causes


def boolean(query: Mapping[str, str], name: str) -> bool:
    """A boolean parameter: present and empty is true, as `?watch` is."""
    text = query.get(name)
    if text is None:
        return False
    return text.lower() not in {"false", "0"}


def integer(query: Mapping[str, str], name: str) -> int | None:
    """A number. Raises StatusError 400."""
    text = query.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def revision(text: str) -> int:
    """A resourceVersion. Raises StatusError 400."""
    if not (text.isascii() and text.isdigit()):
        raise status.bad_request(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


class WriteOptions(NamedTuple):
    """Options of create, update and patch."""

    dry_run: bool
    validation: str


def write_options(query: Mapping[str, str], kind: str) -> WriteOptions:
    """From the query; `kind` is CreateOptions, UpdateOptions or PatchOptions. Raises StatusError 422."""
    causes = []
    validation = query.get("fieldValidation", "")
    if validation not in {"", "Ignore", "Warn", "Strict"}:
        causes.append(Cause.not_supported("fieldValidation", validation, ["", "Ignore", "Strict", "Warn"]))
    try:
        dry_run = is_dry_run(query.get("dryRun"))
    except ValueError as error:
        causes.append(Cause.not_supported("dryRun", str(error), ["All"]))
        dry_run = False
    if causes:
        raise status.options_invalid(kind, causes)
    return WriteOptions(dry_run, validation or "Warn")


def is_dry_run(value: str | None) -> bool:
    """Whether `dryRun` says All. Raises ValueError, with the word, for anything else."""
    if value not in {None, "", "All"}:
        raise ValueError(value)
    return value == "All"


def continue_token(at: int, namespace: str, name: str) -> str:
    """The token behind the object that was sent last; opaque to clients."""
    raw = encode(_Token("meta.k8s.io/v1", at, f"{namespace}/{name}"))
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def read_token(token: str) -> tuple[int, tuple[str, str]]:
    """(revision or -1, (namespace, name)) of a token. Raises StatusError 400."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        read = msgspec.json.decode(raw, type=_Token)
    except (binascii.Error, msgspec.DecodeError, ValueError):
        raise status.bad_request("continue key is not valid: it was not issued by this server") from None
    if "/" not in read.start or not -1 <= read.rv < 2**62:
        raise status.bad_request("continue key is not valid: it names no object")
    namespace, _, name = read.start.partition("/")
    return read.rv, (namespace, name)
