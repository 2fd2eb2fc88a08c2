"""The ASGI side of a watch: response start, chunks, and noticing that the client has gone."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from podwire.apiserver import watch
from podwire.apiserver.status import StatusError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from podwire.apiserver.render import Renderer
    from podwire.apiserver.store import Reader


class WatchResponse:
    """A running watch as a response."""

    def __init__(self, request: watch.Request, hub: watch.Hub, reader: Reader, renderer: Renderer) -> None:
        self._request = request
        self._hub = hub
        self._reader = reader
        self._renderer = renderer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Send it. A revision that is no longer kept is an ERROR event in a 200 stream, as the real server does it."""
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-cache, private")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def chunk(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        try:
            watcher, first = watch.begin(self._request, self._hub, self._reader)
        except StatusError as error:
            await chunk(watch.error_event(error))
        else:
            gone = asyncio.create_task(_until_gone(receive, watcher))
            try:
                await watch.Stream(self._request, self._hub, self._renderer, chunk).run(watcher, first)
            finally:
                self._hub.leave(watcher)
                gone.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await gone
        await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive, watcher: watch.Watcher) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.queue.clear()
    watcher.close()
