"""What happened to containers, told to everybody who listens (GetContainerEvents).

Each listener has a queue of its own with a limit: one that does not read is cut off, and finds out what it missed by
listing, which it has to do after a broken stream anyway.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.criapi import api_pb2

WAITING = 1000


class Events:
    """The listeners, and the one place where events are published."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: list[queue.SimpleQueue[api_pb2.ContainerEventResponse | None]] = []

    def publish(self, event: api_pb2.ContainerEventResponse) -> None:
        """Tell all listeners; never blocks."""
        with self._guard:
            for waiting in list(self._queues):
                if waiting.qsize() >= WAITING:
                    self._queues.remove(waiting)
                    waiting.put(None)
                else:
                    waiting.put(event)

    @property
    def listening(self) -> bool:
        """Whether anybody would hear an event."""
        return bool(self._queues)

    def subscribe(self) -> Subscription:
        """Listen from now on."""
        waiting: queue.SimpleQueue[api_pb2.ContainerEventResponse | None] = queue.SimpleQueue()
        with self._guard:
            self._queues.append(waiting)
        return Subscription(self, waiting)

    def close(self) -> None:
        """End all subscriptions."""
        with self._guard:
            for waiting in self._queues:
                waiting.put(None)
            self._queues.clear()

    def drop(self, waiting: queue.SimpleQueue[api_pb2.ContainerEventResponse | None]) -> None:
        """End one subscription."""
        with self._guard:
            if waiting in self._queues:
                self._queues.remove(waiting)
        waiting.put(None)


class Subscription:
    """The events of one listener, in order."""

    def __init__(self, events: Events, waiting: queue.SimpleQueue[api_pb2.ContainerEventResponse | None]) -> None:
        self._events = events
        self._waiting = waiting

    def __iter__(self) -> Iterator[api_pb2.ContainerEventResponse]:
        while (event := self._waiting.get()) is not None:
            yield event

    def close(self) -> None:
        """Stop; wakes a reader in another thread."""
        self._events.drop(self._waiting)
