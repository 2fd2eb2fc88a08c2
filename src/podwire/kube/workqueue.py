"""A queue of keys for level-driven controllers, with client-go's promises.

* A key that is added while it waits is not added twice.
* A key that is added while it is being worked on waits until `done`, then comes again: no two workers have one key.
* `add_after` and `retry` bring a key back later; of two times for one key the sooner counts.
* `retry` doubles the delay of a key each time (5 ms, 10 ms, …) until `forget`.

No thread of its own: `get` sleeps until a key is there or due.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

K = TypeVar("K", bound="Hashable")

FIRST_RETRY = 0.005
LONGEST_RETRY = 1000.0


class WorkQueue(Generic[K]):
    """Keys to work on, each once at a time. All times in seconds."""

    def __init__(
        self,
        *,
        first_retry: float = FIRST_RETRY,
        longest_retry: float = LONGEST_RETRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._changed = threading.Condition()
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()  # waiting in _ready, or to be put there by done()
        self._processing: set[K] = set()
        self._due: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []  # a heap; entries that _due no longer confirms are stale
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._first_retry = first_retry
        self._longest_retry = longest_retry
        self._clock = clock
        self._shut = False

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Work on `key` as soon as possible."""
        with self._changed:
            self._due.pop(key, None)
            self._add(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Work on `key` in `seconds`, or sooner if somebody adds it sooner."""
        if seconds <= 0:
            self.add(key)
            return
        with self._changed:
            when = self._clock() + seconds
            if self._shut or (key in self._due and self._due[key] <= when):
                return
            self._due[key] = when
            self._sequence += 1
            heapq.heappush(self._timers, (when, self._sequence, key))
            self._changed.notify()

    def retry(self, key: K) -> float:
        """Work on `key` again after its next delay, which is returned."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
        delay = min(self._longest_retry, self._first_retry * 2.0 ** min(failures, 60))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """`key` succeeded: its next retry starts at the first delay again."""
        with self._changed:
            self._failures.pop(key, None)

    def get(self, timeout: float | None = None) -> K | None:
        """The next key, to be handed back with `done`; None after `shut_down` or `timeout` seconds."""
        deadline = None if timeout is None else self._clock() + timeout
        with self._changed:
            while True:
                if self._shut:
                    return None
                next_due = self._release_due()
                if self._ready:
                    key = self._ready.popleft()
                    self._dirty.discard(key)
                    self._processing.add(key)
                    return key
                ends = [when for when in (next_due, deadline) if when is not None]
                pause = min(ends) - self._clock() if ends else None
                if deadline is not None and deadline <= self._clock():
                    return None
                self._changed.wait(None if pause is None else max(pause, 0.0))

    def done(self, key: K) -> None:
        """The worker is finished with `key`; if it was added meanwhile, it comes again."""
        with self._changed:
            self._processing.discard(key)
            if key in self._dirty:
                self._ready.append(key)
                self._changed.notify()

    def shut_down(self) -> None:
        """Wake all workers; every further `get` answers None."""
        with self._changed:
            self._shut = True
            self._changed.notify_all()

    def _add(self, key: K) -> None:
        if self._shut or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._ready.append(key)
            self._changed.notify()

    def _release_due(self) -> float | None:
        """Move what is due into the queue; the time of the next one, if any."""
        now = self._clock()
        while self._timers:
            when, _, key = self._timers[0]
            if self._due.get(key) != when:
                heapq.heappop(self._timers)
            elif when <= now:
                heapq.heappop(self._timers)
                del self._due[key]
                self._add(key)
            else:
                return when
        return None
