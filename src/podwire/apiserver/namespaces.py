"""The end of a Namespace: everything in it is deleted, then the Namespace itself.

A DELETE only marks a Namespace (phase Terminating); this loop does the rest, inside the server, so that it works without any
controller. It wakes when a Namespace is marked and when something vanishes from a marked one; objects that others
still have to let go of (pods with a grace period, finalizers) are waited for, and condition NamespaceContentRemaining says which.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from podwire.apiserver import deletion
from podwire.apiserver.store import decode
from podwire.apiserver.work import timestamp

if TYPE_CHECKING:
    from podwire.apiserver.backend import Backend
    from podwire.apiserver.resource import Object, Resource
    from podwire.apiserver.store import Change
    from podwire.apiserver.work import Work

log = logging.getLogger("podwire.apiserver")

_RETRY_SECONDS = 5.0
_CONDITION = "NamespaceContentRemaining"


class Sweeper:
    """Empties terminating namespaces; `run` is its task."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ending: set[str] = set()
        self._wake = asyncio.Event()
        backend.hub.listeners.append(self._heard)

    def _heard(self, changes: list[Change]) -> None:
        for change in changes:
            if change.resource == "namespaces":
                if change.type == "DELETED":
                    self._ending.discard(change.name)
                elif change.after()["metadata"].get("deletionTimestamp"):
                    self._ending.add(change.name)
                    self._wake.set()
            elif change.type == "DELETED" and change.namespace in self._ending:
                self._wake.set()

    async def run(self) -> None:
        """For ever; begins with the namespaces that an earlier run of the server left half-way."""
        with self._backend.reader.snapshot() as snapshot:
            for _, name, raw in snapshot.scan("namespaces"):
                if decode(raw)["metadata"].get("deletionTimestamp"):
                    self._ending.add(name)
                    self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            for name in sorted(self._ending):
                try:
                    await self._backend.write(functools.partial(sweep, name=name))
                except Exception:  # one namespace must not keep the others from ending
                    log.exception("emptying namespace %s failed", name)
                    asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._wake.set)


def sweep(work: Work, name: str) -> None:
    """Delete what is in a terminating namespace, and the namespace once nothing is."""
    namespaces = work.lookup("", "v1", "namespaces")
    assert namespaces is not None
    raw = work.transaction.get(namespaces.key, "", name)
    if raw is None:
        return
    namespace: Object = decode(raw)
    if not namespace["metadata"].get("deletionTimestamp"):
        return
    for key, held in work.transaction.held_in(name):
        resource = work.resource(key)
        if resource is not None:
            deletion.delete(work, resource, name, held, deletion.Options())
    left = Counter(key for key, _ in work.transaction.held_in(name))
    if left:
        _tell(work, namespaces, namespace, raw, left)
        return
    namespace["spec"] = {**namespace.get("spec", {}), "finalizers": []}
    if deletion.is_over(namespace):
        deletion.remove(work, namespaces, namespace, raw)
    else:
        work.transaction.put(namespaces.key, namespace, raw, ())


def _tell(work: Work, resource: Resource, namespace: Object, raw: bytes, left: Counter[str]) -> None:
    """Say in the Namespace's status what it waits for."""
    words = ", ".join(f"{key} has {count} resource instances" for key, count in sorted(left.items()))
    message = f"Some resources are remaining: {words}"
    conditions: list[dict[str, Any]] = namespace.setdefault("status", {}).setdefault("conditions", [])
    old = next((condition for condition in conditions if condition["type"] == _CONDITION), None)
    if old is not None and old["message"] == message:
        return
    condition = {
        "type": _CONDITION,
        "status": "True",
        "lastTransitionTime": old["lastTransitionTime"] if old else timestamp(work.now),
        "reason": "SomeResourcesRemain",
        "message": message,
    }
    namespace["status"]["conditions"] = [c for c in conditions if c["type"] != _CONDITION] + [condition]
    work.transaction.put(resource.key, namespace, raw, ())
