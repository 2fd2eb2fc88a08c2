"""Run something again and again, not too often, not too seldom: what kube-proxy does with its sync.

    request ──► runs at once if the last run ended at least `min_interval` ago, else when that time is over
    failure ──► runs again `retry_interval` after its end, unless something is due sooner
    silence ──► runs again `max_interval` after the last end

Requests made while a run is waiting coalesce into it; one made during a run leads to another. The gaps count from the
*end* of a run, so that runs that take long do not follow each other without a pause. `Schedule` is the pure rule, with the
time as an argument; `BoundedFrequencyRunner` waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from podwire.errors import PodwireError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("podwire.daemon")


class Schedule:
    """When the next run is due. Times are seconds on one clock that does not go back."""

    def __init__(self, min_interval: float, retry_interval: float, max_interval: float) -> None:
        if not 0 <= min_interval <= max_interval or retry_interval < 0:
            raise ValueError("need 0 <= min_interval <= max_interval and retry_interval >= 0")
        self._min = min_interval
        self._retry = retry_interval
        self._max = max_interval
        self._ended: float | None = None
        self._requested = False
        self._retry_at: float | None = None

    def request(self) -> None:
        """Somebody wants a run."""
        self._requested = True

    def started(self) -> None:
        """A run begins: it serves every request made so far."""
        self._requested = False
        self._retry_at = None

    def ended(self, now: float, succeeded: bool) -> None:
        """The run is over."""
        self._ended = now
        if not succeeded:
            self._retry_at = now + self._retry

    def retry_in(self, now: float, seconds: float) -> None:
        """Have a run in `seconds` at the latest (but never before the minimum gap is over)."""
        when = now + seconds
        self._retry_at = when if self._retry_at is None else min(when, self._retry_at)

    def due(self) -> float | None:
        """When the next run is due; None until the first request."""
        if self._ended is None:
            return 0.0 if self._requested else self._retry_at
        earliest = self._ended + self._min
        if self._requested:
            return earliest
        wanted = self._ended + self._max if self._retry_at is None else min(self._ended + self._max, self._retry_at)
        return max(earliest, wanted)


class BoundedFrequencyRunner:
    """Calls `fn` in the thread of `loop` (or `start`). `fn` fails by raising PodwireError or OSError or returning False."""

    def __init__(
        self,
        fn: Callable[[], object],
        min_interval: float,
        retry_interval: float,
        max_interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fn = fn
        self._clock = clock
        self._schedule = Schedule(min_interval, retry_interval, max_interval)
        self._changed = threading.Condition()
        self._stopped = False

    def run(self) -> None:
        """Ask for a run; returns at once."""
        with self._changed:
            self._schedule.request()
            self._changed.notify_all()

    def retry_after(self, seconds: float) -> None:
        """Ask for a run in `seconds` at the latest."""
        with self._changed:
            self._schedule.retry_in(self._clock(), seconds)
            self._changed.notify_all()

    def stop(self) -> None:
        """End the loop after the run that is going on, if any."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def start(self, name: str = "sync") -> threading.Thread:
        """Run the loop in a thread of its own."""
        thread = threading.Thread(target=self.loop, name=name, daemon=True)
        thread.start()
        return thread

    def loop(self) -> None:
        """Run whenever a run is due, until `stop`."""
        while self._wait():
            succeeded = False
            try:
                succeeded = self._fn() is not False
            except (PodwireError, OSError) as error:
                log.warning("run failed, trying again", extra={"kv": {"error": str(error)}})
            with self._changed:
                self._schedule.ended(self._clock(), succeeded)

    def _wait(self) -> bool:
        """Sleep until a run is due and count it as started; False when stopped."""
        with self._changed:
            while not self._stopped:
                due, now = self._schedule.due(), self._clock()
                if due is not None and due <= now:
                    self._schedule.started()
                    return True
                self._changed.wait(None if due is None else due - now)
            return False
