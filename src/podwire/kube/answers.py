"""What an API server answers, read: errors become classes once, here; lists keep their items apart.

Pure: bytes in, values or exceptions out. A list is read in two steps, the envelope first, then each item on its own, so
that one malformed object costs only itself.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from podwire.errors import ApiAlreadyExists, ApiConflict, ApiError, ApiGone, ApiNotFound, ApiUnavailable
from podwire.kube.meta import Object, ObjectMeta, Part

if TYPE_CHECKING:
    from podwire.kube.kinds import Kind

T = TypeVar("T", bound=Object)
log = logging.getLogger("podwire.kube")


class StatusCause(Part, frozen=True):
    """metav1.StatusCause."""

    reason: str = ""


class StatusDetails(Part, frozen=True):
    """metav1.StatusDetails."""

    causes: list[StatusCause] | None = None


class Status(Part, frozen=True):
    """metav1.Status, the body of every error."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class ListMeta(Part, frozen=True):
    """`continue_token` is set when there are more pages."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class Page(Part, frozen=True):
    """A list whose items are not read yet."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class Identity(Part, frozen=True):
    """As much of an object as says which one it is, however malformed the rest."""

    metadata: ObjectMeta = ObjectMeta()


class WireEvent(Part, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Listing(Generic[T]):
    """The objects of a list and the resourceVersion to watch from; `unreadable` holds keys of malformed objects."""

    __slots__ = ("items", "resource_version", "unreadable")

    def __init__(self, items: list[T], resource_version: str, unreadable: tuple[str, ...] = ()) -> None:
        self.items = items
        self.resource_version = resource_version
        self.unreadable = unreadable


class WatchEvent(Generic[T]):
    """ADDED, MODIFIED, DELETED with an object; BOOKMARK with a resourceVersion only; MALFORMED with the key only."""

    __slots__ = ("key", "object", "resource_version", "type")

    def __init__(self, kind: str, key: str, resource_version: str, obj: T | None) -> None:
        self.type = kind
        self.key = key
        self.resource_version = resource_version
        self.object = obj

    def __repr__(self) -> str:
        return f"WatchEvent({self.type} {self.key}@{self.resource_version})"


_PAGES = msgspec.json.Decoder(Page)
_IDENTITIES = msgspec.json.Decoder(Identity)
_EVENTS = msgspec.json.Decoder(WireEvent)
_STATUSES = msgspec.json.Decoder(Status)

#: The cause of a 403 for whatever is created in a Namespace that is being emptied (v1.NamespaceTerminatingCause).
TERMINATING = "NamespaceTerminating"

_BY_REASON: dict[str, type[ApiError]] = {"AlreadyExists": ApiAlreadyExists, "Expired": ApiGone, "Gone": ApiGone}
_BY_CODE: dict[int, type[ApiError]] = {404: ApiNotFound, 409: ApiConflict, 410: ApiGone, 429: ApiUnavailable}


def error_of(doing: str, target: str, code: int, body: bytes) -> ApiError:
    """The exception for an answer that is not 2xx, whether the body is a Status or not.

    `reason` is the Status', but for NamespaceTerminating, which Kubernetes hides among the causes of a Forbidden.
    """
    try:
        status = _STATUSES.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        status = Status()
    message = status.message or " ".join(body[:200].decode("utf-8", "replace").split()) or "no explanation"
    number = status.code or code
    kind = _BY_REASON.get(status.reason) or _BY_CODE.get(number) or (ApiUnavailable if number >= 500 else ApiError)
    hint = "is the token in the kubeconfig still valid?" if number == 401 else ""
    causes = status.details.causes if status.details is not None else None
    terminating = any(cause.reason == TERMINATING for cause in causes or ())
    return kind(doing, target, number, TERMINATING if terminating else status.reason or "NoReason", message, hint)


def read_page(kind: Kind[T], body: bytes) -> tuple[list[T], list[str], ListMeta]:
    """The readable objects of one page, the keys of the others, and its metadata."""
    try:
        page = _PAGES.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiUnavailable("listing", kind.resource, 0, "Unreadable", str(error)) from None
    items: list[T] = []
    unreadable: list[str] = []
    for raw in page.items or ():
        try:
            items.append(kind.decode(raw))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            key = _identity(raw).key
            unreadable.append(key)
            log.warning(
                "malformed object skipped", extra={"kv": {"kind": kind.resource, "object": key, "error": str(error)}}
            )
    return items, unreadable, page.metadata


def read_event(kind: Kind[T], line: bytes) -> WatchEvent[T] | None:
    """One line of a watch; None if it is not an event at all. An ERROR event is raised as what it says."""
    try:
        event = _EVENTS.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("malformed watch line skipped", extra={"kv": {"kind": kind.resource, "error": str(error)}})
        return None
    if event.type == "ERROR":
        raise error_of("watching", kind.resource, 500, bytes(event.object))
    if event.type == "BOOKMARK":
        return WatchEvent("BOOKMARK", "", _identity(event.object).resource_version, None)
    try:
        obj = kind.decode(event.object)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        meta = _identity(event.object)
        log.warning(
            "malformed object skipped", extra={"kv": {"kind": kind.resource, "object": meta.key, "error": str(error)}}
        )
        # A deletion needs no more than the name.
        gone = event.type == "DELETED" and meta.name
        return WatchEvent("DELETED" if gone else "MALFORMED", meta.key, meta.resource_version, None)
    return WatchEvent(event.type, obj.key, obj.metadata.resource_version, obj)


def _identity(raw: msgspec.Raw) -> ObjectMeta:
    try:
        return _IDENTITIES.decode(raw).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ObjectMeta()


class LineSplitter:
    """Cuts a byte stream into lines however it arrives; an event larger than a chunk is scanned once, not once a chunk."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their newline, empty ones left out."""
        head, newline, rest = chunk.partition(b"\n")
        if not newline:
            self._parts.append(chunk)
            return []
        lines = [b"".join([*self._parts, head]), *rest.split(b"\n")]
        last = lines.pop()
        self._parts = [last] if last else []
        return [line for line in lines if line.strip()]


def encode(body: Any) -> bytes:
    """A request body as JSON."""
    return msgspec.json.encode(body)
