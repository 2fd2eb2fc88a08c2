"""Once a minute: the objects every cluster has are there, objects past their time (Events) go, and the log forgets what no watcher needs any more."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

from podwire.apiserver import deletion
from podwire.apiserver.store import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.apiserver.backend import Backend
    from podwire.apiserver.resource import Resource
    from podwire.apiserver.work import Work

log = logging.getLogger("podwire.apiserver")

PERIOD_SECONDS = 60.0
KEEP_SECONDS = 300.0
"""etcd's history in a real cluster is as long: the server compacts every five minutes."""
KEEP_ROWS = 20_000


async def tidy(backend: Backend, event_ttl: int, ensure: Callable[[Work], None]) -> None:
    """For ever. `event_ttl`: the seconds Events live, 0 for ever. `ensure` puts the objects every cluster has back."""
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        try:
            await backend.write(ensure)
            for resource in backend.registry.resources:
                if resource.expires and event_ttl:
                    await backend.write(functools.partial(expire, resource=resource, seconds=event_ttl))
            await asyncio.wrap_future(backend.writer.compact(KEEP_SECONDS, KEEP_ROWS))
        except Exception:  # what could not be done now is done in a minute
            log.exception("tidying failed")


def expire(work: Work, resource: Resource, seconds: int) -> None:
    """Remove the objects last written more than `seconds` ago."""
    for namespace, name in work.transaction.written_before(resource.key, work.now.timestamp() - seconds):
        raw = work.transaction.get(resource.key, namespace, name)
        if raw is not None:
            deletion.remove(work, resource, decode(raw), raw)
