"""Whether this kube-proxy is alive, and whether load balancers should send to this node.

/livez    200 if every family's rules are, or within two sync periods will be, as the API wants them; else 503
/healthz  the same, and 503 too when the node is about to be deleted (it has a deletion time, or the cluster autoscaler's
          taint), so that load balancers drain it in time (KEP-3836)

A family is unhealthy until its first sync, and when a change has waited for longer than two sync periods. Bodies are
JSON as the real one writes it, times in nanoseconds and all.
"""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

from podwire.daemon.health import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from podwire.kube.objects import Node

AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"
_NANOSECONDS = 1_000_000_000


class Health:
    """What the sync reports and what the pages say. `clock` gives nanoseconds since 1970; safe from every thread."""

    def __init__(self, families: Iterable[str], sync_period: float, clock: Callable[[], int] = time.time_ns) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._patience = int(2 * sync_period * _NANOSECONDS)
        self._updated: dict[str, int] = dict.fromkeys(families, 0)
        self._waiting_since: dict[str, int] = {}
        self._eligible = True

    def queued(self, family: str = "") -> None:
        """Something changed, or a sync failed: this family (or every one) is to be synced."""
        with self._lock:
            for name in (family,) if family else self._updated:
                self._waiting_since.setdefault(name, self._clock())

    def synced(self, family: str) -> None:
        """The kernel has what was wanted."""
        with self._lock:
            self._updated[family] = self._clock()
            self._waiting_since.pop(family, None)

    def node_changed(self, node: Node | None) -> None:
        """The own Node changed or is gone."""
        with self._lock:
            self._eligible = node is None or not (
                node.metadata.deletion_timestamp or any(taint.key == AUTOSCALER_TAINT for taint in node.spec.taints)
            )

    def healthy(self) -> bool:
        """Whether every family is."""
        with self._lock:
            return all(self._is_healthy(family, self._clock()) for family in self._updated)

    def _is_healthy(self, family: str, now: int) -> bool:
        if not self._updated[family]:
            return False
        return now - self._waiting_since.get(family, now) < self._patience

    def page(self, *, with_node: bool) -> Answer:
        """The answer of /healthz (`with_node`) or /livez."""
        with self._lock:
            now = self._clock()
            families = {family: self._is_healthy(family, now) for family in self._updated}
            healthy = all(families.values())
            # The real one reports the moment of asking while all is well, else the last update.
            updated = now if healthy else max(self._updated.values())
            body: dict[str, Any] = {"lastUpdated": _rfc3339(updated), "currentTime": _rfc3339(now)}
            if with_node:
                body["nodeEligible"] = self._eligible
                healthy = healthy and self._eligible
            body["healthy"] = healthy
            body["status"] = {
                family: {"lastUpdated": _rfc3339(self._updated[family]), "healthy": good}
                for family, good in families.items()
            }
        return json_answer(200 if healthy else 503, json.dumps(body, separators=(",", ":")).encode())


def json_answer(status: int, body: bytes, *headers: tuple[str, str]) -> Answer:
    """A JSON answer with the header that the real one always sends."""
    return Answer(status, body, "application/json", (("X-Content-Type-Options", "nosniff"), *headers))


def _rfc3339(nanoseconds: int) -> str:
    """As Go prints a time: fractions without trailing zeros; the zero time for 0."""
    if not nanoseconds:
        return "0001-01-01T00:00:00Z"
    seconds, rest = divmod(nanoseconds, _NANOSECONDS)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"
