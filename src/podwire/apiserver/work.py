"""One write request inside the writer's transaction: what strategies see of the world, and what the answer needs.

`Work` is the `Context` of the contract (module `resource`) over a store `Transaction`; objects read through it are
decoded fresh each time, so a strategy may keep or change what it got.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from podwire.apiserver.store import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from podwire.apiserver.resource import Claim, Flags, Object, Registry, Resource
    from podwire.apiserver.store import Transaction


class World:
    """What the server has one of: the kinds, the flags, a clock (seconds since the epoch), a maker of uids."""

    __slots__ = ("clock", "flags", "new_uid", "registry")

    def __init__(
        self, registry: Registry, flags: Flags, clock: Callable[[], float], new_uid: Callable[[], str]
    ) -> None:
        self.registry = registry
        self.flags = flags
        self.clock = clock
        self.new_uid = new_uid


class Work:
    """The context of one write; `warnings` become Warning headers."""

    def __init__(self, world: World, transaction: Transaction) -> None:
        self._world = world
        self.transaction = transaction
        self.flags: Flags = world.flags
        self.now = utc(world.clock())
        self.warnings: list[str] = []

    def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Another object, as this transaction sees it."""
        raw = self.transaction.get(resource.key, namespace, name)
        return decode(raw) if raw is not None else None

    def list(self, resource: Resource, namespace: str = "") -> Iterator[Object]:
        """All objects of a kind, in one namespace or in all."""
        return map(decode, self.transaction.all(resource.key, namespace))

    def lookup(self, group: str, version: str, plural: str) -> Resource | None:
        """A served resource."""
        return self._world.registry.by_plural(group, version, plural)

    def resource(self, key: str) -> Resource | None:
        """A served resource by its storage name."""
        return self._world.registry.by_key(key)

    def holder(self, claim: Claim) -> str | None:
        """Who holds a claim, `namespace/name`."""
        return self.transaction.holder(claim)

    def claim_count(self, space: str) -> int:
        """How many claims of a space are held."""
        return self.transaction.claim_count(space)

    def new_uid(self) -> str:
        """A fresh UUID."""
        return self._world.new_uid()

    def warn(self, text: str) -> None:
        """Remember a warning for the answer."""
        if text not in self.warnings:
            self.warnings.append(text)


def utc(seconds: float) -> dt.datetime:
    """The aware time of seconds since the epoch, cut to whole seconds as Kubernetes' Time is."""
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC)


def timestamp(time: dt.datetime) -> str:
    """RFC 3339 as in creationTimestamp: `2026-01-02T03:04:05Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
