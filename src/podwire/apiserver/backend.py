"""What every request handler shares: kinds and schemas, the writer's door, a reader, the hub.

The handlers run in the event loop; `write` sends a piece of work to the writer's thread and waits for the commit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from podwire.apiserver.work import Work, utc

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from podwire.apiserver.resource import Registry
    from podwire.apiserver.schema import Schemas
    from podwire.apiserver.store import Reader, Transaction
    from podwire.apiserver.watch import Hub
    from podwire.apiserver.work import World
    from podwire.apiserver.writer import Writer

T = TypeVar("T")


class Backend(NamedTuple):
    """The parts of a running server; `address` is host:port as clients know it."""

    world: World
    schemas: Schemas
    reader: Reader
    writer: Writer
    hub: Hub
    address: str

    @property
    def registry(self) -> Registry:
        """The served kinds."""
        return self.world.registry

    def now(self) -> dt.datetime:
        """The time, for ages."""
        return utc(self.world.clock())

    async def write(self, action: Callable[[Work], T], *, dry_run: bool = False) -> tuple[T, list[str]]:
        """Run `action` in the writer and answer its result and warnings once committed (dry run: once undone)."""
        return await asyncio.wrap_future(self.writer.submit(self.work(action, dry_run=dry_run)))

    def work(self, action: Callable[[Work], T], *, dry_run: bool = False) -> Callable[[Transaction], Any]:
        """`action` as the writer takes it."""

        def run(transaction: Transaction) -> tuple[T, list[str]]:
            work = Work(self.world, transaction)
            result = action(work)
            if dry_run:
                transaction.undo()
            return result, work.warnings

        return run
