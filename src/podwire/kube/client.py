"""The Kubernetes API, as far as podwire's components use it: typed reading, plain dicts for writing.

`Client` is synchronous and safe to use from many threads. Answers are decoded into the struct of their `Kind`; failures
are `podwire.errors.Api*`, `ApiUnavailable` where trying again later makes sense (no connection, 429, 5xx). A GET is
sent a second time when a kept-alive connection turns out to be closed by the server; nothing else is ever repeated here,
because only the caller knows whether repeating is right.

`watch` ends when the server ends it, when its stop event is set (from any thread: the socket is shut down under it, so
nothing polls), or with an exception when the connection breaks. The read time-out is longer than the time the server was
asked to keep the watch, so a silent dead peer is noticed too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import msgspec

from podwire.errors import ApiError, ApiGone, ApiUnavailable
from podwire.kube import connection
from podwire.kube.answers import LineSplitter, Listing, WatchEvent, encode, error_of, read_event, read_page
from podwire.kube.meta import Object

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from podwire.kube.kinds import Kind

T = TypeVar("T", bound=Object)

__all__ = ["Client", "Listing", "WatchEvent"]

PAGE = 500
WATCH_SECONDS = 300
PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}


class Client:
    """An API server. `from_kubeconfig` makes one; `close` ends its connections and watches."""

    def __init__(self, http: httpx2.Client) -> None:
        self._http = http
        self._sockets = _Interruptible()

    @classmethod
    def from_kubeconfig(cls, path: str | None = None, environ: Mapping[str, str] | None = None) -> Client:
        """The server of a kubeconfig's current context; None: in-cluster, then $KUBECONFIG, then ~/.kube/config."""
        return cls(connection.open_connection(path, os.environ if environ is None else environ))

    @property
    def server(self) -> str:
        """The server's URL."""
        return str(self._http.base_url).rstrip("/")

    def close(self) -> None:
        """End all watches and connections."""
        self._sockets.shut_all()
        self._http.close()

    # reading

    def get(self, kind: Kind[T], name: str, namespace: str | None = None) -> T:
        """One object."""
        target = _name(kind, name, namespace)
        return _decode(kind, "getting", target, self._call("GET", kind.path(namespace, name), "getting", target))

    def get_raw(self, kind: Kind[Any], name: str, namespace: str | None = None) -> dict[str, Any]:
        """One object as plain JSON, with every field: to be changed and sent back with `replace`."""
        target = _name(kind, name, namespace)
        answer: dict[str, Any] = msgspec.json.decode(self._call("GET", kind.path(namespace, name), "getting", target))
        return answer

    def get_path(self, path: str) -> Any:
        """The JSON at a path that is no object: /version, /apis."""
        return msgspec.json.decode(self._call("GET", path, "getting", path))

    def list(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Listing[T]:
        """All objects, consistent as of one resourceVersion; malformed ones are logged and left out."""
        query = _query(labelSelector=label_selector, fieldSelector=field_selector)
        try:
            return self._pages(kind, namespace, {**query, "limit": str(PAGE)})
        except ApiGone:  # the continue token expired between two pages: everything in one answer, then
            return self._pages(kind, namespace, query)

    def _pages(self, kind: Kind[T], namespace: str | None, query: dict[str, str]) -> Listing[T]:
        items: list[T] = []
        unreadable: list[str] = []
        while True:
            body = self._call("GET", kind.path(namespace), "listing", kind.resource, query=query)
            page, bad, meta = read_page(kind, body)
            items += page
            unreadable += bad
            if not meta.continue_token:
                return Listing(items, meta.resource_version, tuple(unreadable))
            query = {**query, "continue": meta.continue_token}

    def watch(
        self,
        kind: Kind[T],
        namespace: str | None = None,
        *,
        resource_version: str = "",
        label_selector: str | None = None,
        field_selector: str | None = None,
        timeout_seconds: int = WATCH_SECONDS,
        stop: threading.Event | None = None,
    ) -> Generator[WatchEvent[T], None, None]:
        """Changes after `resource_version`, bookmarks among them, on a connection of their own.

        Raises ApiGone when the version is too old, ApiUnavailable when the connection is lost.
        """
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=str(timeout_seconds),
            labelSelector=label_selector,
            fieldSelector=field_selector,
        )
        patience = httpx2.Timeout(connection.REQUEST_SECONDS, connect=connection.CONNECT_SECONDS)
        patience.read = timeout_seconds + connection.REQUEST_SECONDS
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        with _transport_errors("watching", kind.resource, stop):
            url = kind.path(namespace)
            with self._http.stream("GET", url, params=query, headers=headers, timeout=patience) as answer:
                if answer.status_code >= 300:
                    raise error_of("watching", kind.resource, answer.status_code, answer.read())
                with self._sockets.held(answer, stop):
                    lines = LineSplitter()
                    for chunk in answer.iter_raw():
                        for line in lines.feed(chunk):
                            event = read_event(kind, line)
                            if event is not None:
                                yield event

    # writing

    def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str | None = None) -> T:
        """A new object; the namespace is the body's own unless given."""
        namespace = namespace or _namespace(body)
        meta = body.get("metadata", {})
        target = _name(kind, meta.get("name") or f"{meta.get('generateName', '')}…", namespace)
        return _decode(kind, "creating", target, self._call("POST", kind.path(namespace), "creating", target, body))

    def replace(
        self, kind: Kind[T], body: Mapping[str, Any], namespace: str | None = None, *, subresource: str | None = None
    ) -> T:
        """The whole object; with metadata.resourceVersion only if that is still the newest (else ApiConflict)."""
        namespace, name = namespace or _namespace(body), body["metadata"]["name"]
        target = _name(kind, name, namespace, subresource)
        path = kind.path(namespace, name, subresource)
        return _decode(kind, "replacing", target, self._call("PUT", path, "replacing", target, body))

    def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        patch_type: str = "merge",
        subresource: str | None = None,
    ) -> T:
        """Change some fields; `patch_type` is merge (a dict), strategic (a dict) or json (a list of operations)."""
        target, path = _name(kind, name, namespace, subresource), kind.path(namespace, name, subresource)
        answer = self._call("PATCH", path, "patching", target, body, content=PATCHES[patch_type])
        return _decode(kind, "patching", target, answer)

    def delete(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None = None,
        *,
        grace_seconds: int | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str | None = None,
    ) -> None:
        """Delete; with `uid` only that very object (else ApiConflict); propagation Background, Foreground or Orphan."""
        conditions = _query(uid=uid, resourceVersion=resource_version)
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if conditions:
            options["preconditions"] = conditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation:
            options["propagationPolicy"] = propagation
        self._call("DELETE", kind.path(namespace, name), "deleting", _name(kind, name, namespace), options)

    def subresource(
        self, kind: Kind[Any], name: str, subresource: str, body: Mapping[str, Any], namespace: str | None = None
    ) -> dict[str, Any]:
        """POST to a subresource (binding, eviction); returns the plain answer."""
        target, path = _name(kind, name, namespace, subresource), kind.path(namespace, name, subresource)
        answer: dict[str, Any] = msgspec.json.decode(self._call("POST", path, "posting", target, body) or b"{}")
        return answer

    def _call(
        self,
        method: str,
        path: str,
        doing: str,
        target: str,
        body: Any = None,
        *,
        content: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> bytes:
        headers = {"Accept": "application/json"}
        payload = None
        if body is not None:
            payload, headers["Content-Type"] = encode(body), content
        with _transport_errors(doing, target):
            try:
                answer = self._http.request(method, path, params=query, headers=headers, content=payload)
            except (httpx2.RemoteProtocolError, httpx2.ReadError):
                if method != "GET":
                    raise
                answer = self._http.request(method, path, params=query, headers=headers)
        if answer.status_code >= 300:
            raise error_of(doing, target, answer.status_code, answer.content)
        return answer.content


class _Interruptible:
    """The sockets of open watches, by the event that ends them; one waiting thread an event, none without watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, tuple[socket.socket, threading.Event | None]] = {}
        self._waiting: set[threading.Event] = set()

    @contextlib.contextmanager
    def held(self, answer: httpx2.Response, stop: threading.Event | None) -> Iterator[None]:
        sock = answer.extensions.get("socket") or answer.extensions["network_stream"].get_extra_info("socket")
        with self._lock:
            self._held[id(answer)] = (sock, stop)
            if stop is not None and stop not in self._waiting:
                self._waiting.add(stop)
                threading.Thread(target=self._await, args=(stop,), name="watch-stop", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._held.pop(id(answer), None)

    def _await(self, stop: threading.Event) -> None:
        stop.wait()
        with self._lock:
            self._waiting.discard(stop)
        self.shut_all(stop)

    def shut_all(self, stop: threading.Event | None = None) -> None:
        with self._lock:
            for sock, event in self._held.values():
                if stop is None or event is stop:
                    with contextlib.suppress(OSError):
                        # Below TLS: SSLSocket.shutdown takes the TLS state away from the thread that reads.
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)


@contextlib.contextmanager
def _transport_errors(doing: str, target: str, stop: threading.Event | None = None) -> Iterator[None]:
    """Whatever goes wrong below HTTP is ApiUnavailable; after `stop` it is simply the end."""
    try:
        yield
    except ApiError:
        raise
    except Exception as error:
        if stop is not None and stop.is_set():
            return
        text = connection.failure(error)
        if text is None:
            raise
        raise ApiUnavailable(doing, target, 0, "NoConnection", text) from None


def _decode(kind: Kind[T], doing: str, target: str, body: bytes) -> T:
    try:
        return kind.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ApiError(doing, target, 0, "Unreadable", f"the answer is malformed: {error}") from None


def _query(**values: str | None) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _namespace(body: Mapping[str, Any]) -> str | None:
    namespace: str | None = body.get("metadata", {}).get("namespace")
    return namespace


def _name(kind: Kind[Any], name: str, namespace: str | None, subresource: str | None = None) -> str:
    return "/".join(part for part in (kind.resource, namespace, name, subresource) if part)
