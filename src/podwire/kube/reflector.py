"""A local copy of one kind of object that follows the API: list, watch, bookmarks, and list again when history is gone.

    list ──► watch from its resourceVersion ──► events, bookmarks move the version on
     ▲            │ ended by the server: watch again from the last version
     │            │ connection lost, 5xx: wait (exponential, with jitter), watch again from the last version
     └────────────┴ 410: the version is too old; list again and let the store work out the difference

Handlers are called from the reflector's one thread, in the order of the server's history. After each call to `on_change`
the store already holds `new`. While the API is away the store keeps its last state for as long as it takes. What a
handler raises as PodwireError is logged and costs only that change; another exception is a bug and ends the thread, and
with it the daemon (see daemon.supervision): better loud than deaf.

The idea is client-go's reflector; unlike it there is no resync period, because no consumer here forgets.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from podwire.errors import ApiGone, PodwireError
from podwire.kube.meta import Object
from podwire.kube.store import Change, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from podwire.kube.client import Client
    from podwire.kube.kinds import Kind

T = TypeVar("T", bound=Object)
log = logging.getLogger("podwire.kube")

FIRST_DELAY = 0.25
LONGEST_DELAY = 15.0
SHORT_WATCH = 1.0  # a watch that ends sooner without an event is a server in trouble, not one that ran its time


class Backoff:
    """Delays of 0.25, 0.5, 1 … 15 s, each times 0.5 to 1.5, so that fifty nodes do not come back in step."""

    def __init__(
        self, first: float = FIRST_DELAY, longest: float = LONGEST_DELAY, rand: random.Random | None = None
    ) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0
        self._random = rand or random.Random()  # noqa: S311  (jitter, not a secret)

    @property
    def failures(self) -> int:
        """How many in a row."""
        return self._failures

    def reset(self) -> None:
        """After a success."""
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        delay = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return delay * (0.5 + self._random.random())


class Reflector(Generic[T]):
    """Follows one kind (in one namespace, by selectors) until `stop` is set."""

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        stop: threading.Event,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[str, T | None, T | None], None] | None = None,
        on_sync: Callable[[], None] | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self.synced = threading.Event()  # the first list is in the store and was handled
        self._store: Store[T] = Store()
        self._client = client
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._on_change = on_change
        self._on_sync = on_sync
        self._stop = stop
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._version = ""
        self._thread = threading.Thread(target=self._run, name=f"reflector-{kind.plural}", daemon=True)

    @property
    def store(self) -> Mapping[str, T]:
        """Key `namespace/name` (or `name`) to object; safe to read from every thread."""
        return self._store

    def objects(self) -> list[T]:
        """All objects as of now."""
        return self._store.snapshot()

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end after `stop` was set."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
            except ApiGone as error:
                log.info("history is gone, listing again", extra=_kv(self.kind, error))
                if not self._version:  # the list itself: do not hammer
                    self._stop.wait(self._backoff.next())
                self._version = ""
            except PodwireError as error:
                if not self._stop.is_set():
                    # The first failure is news, and that it lasts; not each of a dozen tries of a dozen reflectors.
                    level = logging.WARNING if self._backoff.failures in (0, 8) else logging.DEBUG
                    delay = self._backoff.next()
                    log.log(level, "lost the API, trying again", extra=_kv(self.kind, error, delay=f"{delay:.2f}s"))
                    self._stop.wait(delay)

    def _list(self) -> None:
        listing = self._client.list(
            self.kind, self._namespace, label_selector=self._label_selector, field_selector=self._field_selector
        )
        self._version = listing.resource_version
        self._backoff.reset()
        self._handle(self._store.replace(listing.items, listing.unreadable))
        if not self.synced.is_set():
            if self._on_sync is not None:
                self._on_sync()
            self.synced.set()

    def _watch(self) -> None:
        started, seen = self._clock(), False
        events = self._client.watch(
            self.kind,
            self._namespace,
            resource_version=self._version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            stop=self._stop,
        )
        with contextlib.closing(events):
            for event in events:
                seen = True
                self._backoff.reset()
                if event.type == "DELETED":
                    uid = event.object.metadata.uid if event.object else ""
                    self._handle(self._store.remove(event.key, uid))
                elif event.object is not None:
                    self._handle(self._store.put(event.object))
                self._version = event.resource_version or self._version
                if self._stop.is_set():
                    return
        if not seen and self._clock() - started < SHORT_WATCH:
            self._stop.wait(self._backoff.next())

    def _handle(self, changes: list[Change[T]]) -> None:
        if self._on_change is None:
            return
        for key, old, new in changes:
            try:
                self._on_change(key, old, new)
            except PodwireError as error:
                log.warning("change not handled", extra=_kv(self.kind, error, object=key))


def _kv(kind: Kind[Any], error: Exception, **more: object) -> dict[str, object]:
    return {"kv": {"kind": kind.resource, **more, "error": str(error)}}
