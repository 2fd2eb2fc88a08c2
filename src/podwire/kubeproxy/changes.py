"""What changed since the last sync, folded by object.

Watch threads only put the newest object under its key and go on; nothing is worked out there, so ten thousand
updates a second delay nobody. The sync thread drains everything at once. An object that changed five times is there once,
one that was made and deleted in between is there as deleted: comparing with what was known before (`state`) is what
finds out that nothing changed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from podwire.kubeproxy.objects import EndpointSlice, Service


@dataclass(slots=True)
class Batch:
    """Newest objects by namespace/name; None for one that was deleted."""

    services: dict[str, Service | None] = field(default_factory=dict)
    slices: dict[str, EndpointSlice | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.services or self.slices)


class Changes:
    """A Batch that grows until it is drained. Safe for many writers and one reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batch = Batch()

    def service(self, key: str, _old: Service | None, new: Service | None) -> None:
        """A Service changed (a reflector's `on_change`)."""
        with self._lock:
            self._batch.services[key] = new

    def slice(self, key: str, _old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """An EndpointSlice changed."""
        with self._lock:
            self._batch.slices[key] = new

    def drain(self) -> Batch:
        """Everything since the last time."""
        with self._lock:
            batch, self._batch = self._batch, Batch()
        return batch

    def pending(self) -> tuple[int, int]:
        """How many Services and slices wait."""
        with self._lock:
            return len(self._batch.services), len(self._batch.slices)
