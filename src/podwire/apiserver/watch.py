"""Watch: every committed change to every watcher that wants it, in revision order, without waiting for any of them.

The `Hub` lives in the event loop's thread. The writer hands it each commit's changes; it offers them to the watchers of
that resource, each of which keeps what it selects in a queue of its own and is woken. A watcher that does not keep up
(its queue is full) is cut off: what it still gets is an ERROR event with 410, upon which a client lists again. So the
writer never waits for a client and memory stays bounded.

A watch begins in one of two ways (https://kubernetes.io/docs/reference/using-api/api-concepts/#watch): with the state now as
ADDED events (sendInitialEvents, or no resourceVersion, or 0), its end marked by an annotated bookmark for those who take
bookmarks, or behind an exact revision, from the log. Start state and subscription are taken in one
step of the loop, and the log is read up to the same revision from which live changes count: no gap, no event twice.

An object that moves into a selection is ADDED for that watcher, one that moves out is DELETED (as it was before,
with the revision of the change): how apiserver's watch cache does it.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, NamedTuple

from podwire.apiserver import status
from podwire.apiserver.store import decode, encode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from podwire.apiserver.render import Renderer
    from podwire.apiserver.selectors import Selector
    from podwire.apiserver.store import Change, Reader, Snapshot

QUEUE_EVENTS = 8192
QUEUE_BYTES = 8 * 1024 * 1024
"""What may wait for one watcher before it is cut off."""
BOOKMARK_SECONDS = 60.0
CHUNK = 64 * 1024
"""Events that wait are sent together, up to about so many bytes at once."""
INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class Event(NamedTuple):
    """What one watcher gets: the type for it, and the object's JSON."""

    type: str
    raw: bytes


class Hub:
    """All watchers; `revision` is the last one delivered. Use from the event loop's thread only."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self.listeners: list[Callable[[list[Change]], None]] = []
        self._watchers: dict[str, set[Watcher]] = {}
        self._closed = False

    def publish(self, changes: list[Change]) -> None:
        """Deliver a commit."""
        for change in changes:
            for watcher in self._watchers.get(change.resource, ()):
                watcher.offer(change)
        self.revision = changes[-1].revision
        for listener in self.listeners:
            listener(changes)

    def join(self, watcher: Watcher) -> None:
        """Begin to deliver to a watcher; after `close` it ends at once."""
        self._watchers.setdefault(watcher.selector.resource.key, set()).add(watcher)
        if self._closed:
            watcher.close()

    def leave(self, watcher: Watcher) -> None:
        """End."""
        self._watchers.get(watcher.selector.resource.key, set()).discard(watcher)

    def close(self) -> None:
        """End every watch properly: what is queued is sent, then the stream ends."""
        self._closed = True
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.close()

    def __len__(self) -> int:
        return sum(map(len, self._watchers.values()))


class Watcher:
    """The queue of one watch. Changes up to `start` are part of what it began with."""

    def __init__(self, selector: Selector, namespace: str, start: int) -> None:
        self.selector = selector
        self.namespace = namespace
        self.start = start
        self.queue: collections.deque[Event] = collections.deque()
        self.wake = asyncio.Event()
        self.cut_off = False
        self.closed = False
        self._bytes = 0

    def offer(self, change: Change) -> None:
        """Queue a change if it is wanted. Never blocks; a full queue ends the watch."""
        if change.revision <= self.start or self.cut_off:
            return
        event = select(change, self.selector, self.namespace)
        if event is None:
            return
        self.queue.append(event)
        self._bytes += len(event.raw)
        if len(self.queue) > QUEUE_EVENTS or self._bytes > QUEUE_BYTES:
            self.cut_off = True
            self.queue.clear()
        self.wake.set()

    def take(self) -> Event:
        """The next event; the queue is not empty."""
        event = self.queue.popleft()
        self._bytes -= len(event.raw)
        return event

    def close(self) -> None:
        """End after what is queued."""
        self.closed = True
        self.wake.set()


def select(change: Change, selector: Selector, namespace: str) -> Event | None:
    """What a change means to a watcher with this selection."""
    if namespace and change.namespace != namespace:
        return None
    if selector.everything:
        return Event(change.type, change.value)
    if change.type == "DELETED":
        return Event("DELETED", change.value) if selector.matches(change.before() or change.after()) else None
    before = change.before()
    was = before is not None and selector.matches(before)
    if selector.matches(change.after()):
        return Event("MODIFIED" if was else "ADDED", change.value)
    if not was or change.previous is None:
        return None
    gone = decode(change.previous)
    gone["metadata"]["resourceVersion"] = str(change.revision)
    return Event("DELETED", encode(gone))


class Request(NamedTuple):
    """A watch as asked for. `start`: the exact revision to begin behind, None for the state now."""

    selector: Selector
    namespace: str
    start: int | None
    bookmarks: bool
    seconds: float


def begin(request: Request, hub: Hub, reader: Reader) -> tuple[Watcher, list[Event]]:
    """Subscribe, with the events to send first. Raises StatusError 410 below what is kept."""
    with reader.snapshot() as snapshot:
        first = _state(request, snapshot) if request.start is None else _since(request, request.start, snapshot)
        watcher = Watcher(request.selector, request.namespace, snapshot.revision)
    hub.join(watcher)
    return watcher, first


def _state(request: Request, snapshot: Snapshot) -> list[Event]:
    selector = request.selector
    rows = snapshot.scan(selector.resource.key, request.namespace)
    return [Event("ADDED", raw) for _, _, raw in rows if selector.everything or selector.matches(decode(raw))]


def _since(request: Request, start: int, snapshot: Snapshot) -> list[Event]:
    if start < snapshot.compacted:
        raise status.expired(f"too old resource version: {start} ({snapshot.compacted})")
    if start > snapshot.revision:
        # The client knows a history that this server has not (another data-dir): it has to list again.
        raise status.expired(f"too large resource version: {start}, current: {snapshot.revision}")
    changes = snapshot.changes(request.selector.resource.key, start, snapshot.revision)
    events = (select(change, request.selector, request.namespace) for change in changes)
    return [event for event in events if event is not None]


class Stream:
    """Sends one watch: first the start state, then what comes, bookmarks in between, until time or the client ends it."""

    def __init__(
        self, request: Request, hub: Hub, renderer: Renderer, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._request = request
        self._hub = hub
        self._renderer = renderer
        self._send = send

    async def run(self, watcher: Watcher, first: list[Event]) -> None:
        """Until the end of the watch; the caller leaves the hub."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._request.seconds
        await self._send_all(first)
        if self._request.start is None and self._request.bookmarks:
            await self._send(self._renderer.bookmark(watcher.start, INITIAL_EVENTS_END))
        bookmark = loop.time() + BOOKMARK_SECONDS
        while True:
            await self._send_all(self._drain(watcher))
            if watcher.cut_off:
                await self._send(error_event(status.expired("the watch was too slow; list again")))
                return
            if watcher.queue:
                continue
            now = loop.time()
            if watcher.closed:
                return
            if self._request.bookmarks and now >= min(bookmark, deadline):
                await self._send(self._renderer.bookmark(max(self._hub.revision, watcher.start)))
                bookmark = now + BOOKMARK_SECONDS
            if now >= deadline:
                return
            await _wait(watcher.wake, (min(bookmark, deadline) if self._request.bookmarks else deadline) - now)

    def _drain(self, watcher: Watcher) -> Iterable[Event]:
        while watcher.queue:
            yield watcher.take()

    async def _send_all(self, events: Iterable[Event]) -> None:
        waiting: list[bytes] = []
        size = 0
        for event in events:
            waiting.append(self._renderer.event(*event))
            size += len(waiting[-1])
            if size >= CHUNK:
                await self._send(b"".join(waiting))
                waiting, size = [], 0
        if waiting:
            await self._send(b"".join(waiting))


async def _wait(wake: asyncio.Event, seconds: float) -> None:
    """Until woken or the time is over; a timer is cheaper than a task for each wait."""
    timer = asyncio.get_running_loop().call_later(seconds, wake.set)
    await wake.wait()
    timer.cancel()
    wake.clear()


def error_event(error: status.StatusError) -> bytes:
    """The ERROR line that ends a watch."""
    return encode({"type": "ERROR", "object": error.body()}) + b"\n"
