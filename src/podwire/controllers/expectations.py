"""Reading one's own writes: what this process created or deleted but the informer does not show yet.

A ReplicaSet controller that looks only at its informer makes a second set of pods when it looks again before the first set
has arrived. Kubernetes counts what it expects; this keeps the objects themselves: `view` lays them over what the informer
shows, so the controller simply sees the truth as far as the process knows it.

An entry is dropped when the informer has shown the object (even if it is gone again since). Should that never happen, because a
relist skipped both its beginning and its end, `overdue` names it after a while and the controller asks the API itself.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from podwire.kube.meta import Object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T", bound=Object)

PATIENCE = 30.0


class Expectations(Generic[T]):
    """Objects by uid; safe to use from the informer's and the controller's thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._created: dict[str, tuple[T, float]] = {}
        self._deleted: dict[str, float] = {}

    def created(self, obj: T) -> None:
        """The API answered that it made `obj`."""
        with self._lock:
            self._created[obj.metadata.uid] = (obj, self._clock() + PATIENCE)

    def deleted(self, obj: T) -> None:
        """The API answered that it deletes `obj`."""
        with self._lock:
            self._deleted[obj.metadata.uid] = self._clock() + PATIENCE
            self._created.pop(obj.metadata.uid, None)

    def observed(self, old: T | None, new: T | None) -> None:
        """The informer showed a change."""
        with self._lock:
            for obj in (old, new):
                if obj is not None:
                    self._created.pop(obj.metadata.uid, None)
            if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
                self._deleted.pop(old.metadata.uid, None)
            if new is not None and new.metadata.deletion_timestamp is not None:
                self._deleted.pop(new.metadata.uid, None)

    def view(self, shown: Iterable[T], namespace: str) -> list[T]:
        """What the informer shows of a namespace, with what is written but not shown yet."""
        now = self._clock()
        with self._lock:
            for uid in [uid for uid, until in self._deleted.items() if until <= now]:
                del self._deleted[uid]
            result = [obj for obj in shown if obj.metadata.uid not in self._deleted]
            known = {obj.metadata.uid for obj in result}
            for uid, (obj, _) in self._created.items():
                if uid not in known and obj.metadata.namespace == namespace:
                    result.append(obj)
        return result

    def overdue(self) -> list[T]:
        """Created long ago and never shown: ask the API, then `created` again or `forget`."""
        now = self._clock()
        with self._lock:
            return [obj for obj, until in self._created.values() if until <= now]

    def forget(self, obj: T) -> None:
        """It does not exist."""
        with self._lock:
            self._created.pop(obj.metadata.uid, None)
