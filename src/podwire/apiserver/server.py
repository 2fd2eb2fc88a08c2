"""The process: from flags to a listening server, and to its orderly end.

The order of start: flags → folder (0700, locked) → credentials → store → kinds → writer → the objects every cluster
has → listening → kubeconfig. So a client that can connect finds everything, and a kubeconfig that exists works. At
the end: watches are ended, requests that are being answered get a second, the writer finishes what it has, the store
is closed.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import datetime as dt
import errno
import fcntl
import functools
import logging
import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import uvicorn

from podwire.apiserver import app, bootstrap, credentials, settings
from podwire.apiserver.backend import Backend
from podwire.apiserver.janitor import tidy
from podwire.apiserver.kinds import registry
from podwire.apiserver.namespaces import Sweeper
from podwire.apiserver.schema import Schemas
from podwire.apiserver.settings import Options
from podwire.apiserver.store import Store
from podwire.apiserver.watch import Hub
from podwire.apiserver.work import World
from podwire.apiserver.writer import Writer
from podwire.daemon import logs
from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from podwire.apiserver.credentials import Credentials
    from podwire.apiserver.settings import Settings
    from podwire.apiserver.store import Change

__all__ = ["Options", "run"]

log = logging.getLogger("podwire.apiserver")

TLS_BUFFER = 16 * 1024
"""asyncio keeps a buffer of 256 KiB for each TLS connection, touched at birth; one TLS record is 16 KiB."""
KEEP_ALIVE_SECONDS = 120
"""Longer than Go clients keep idle connections (90 s): it is they who close, so no request meets a closing server."""
GRACE_SECONDS = 1


def run(options: Options, stop: threading.Event) -> int:
    """Serve until `stop` is set; answers the exit status. Raises PodwireError."""
    logs.configure("apiserver", options.verbosity)
    # Its warnings are about upgrades that exec and attach ask for; those are answered with a Status.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    checked = settings.check(options)
    with _folder(options.data_dir), contextlib.closing(_listener(checked)) as sock:
        now = dt.datetime.now(dt.UTC)
        certified = credentials.ensure(options.data_dir, checked.certificate_addresses(), now)
        asyncio.sslproto.SSLProtocol.max_size = TLS_BUFFER
        asyncio.run(_serve(checked, certified, sock, stop))
    return 0


@contextlib.contextmanager
def _folder(path: str) -> Iterator[None]:
    """The data folder, ours alone while the server runs. Raises UsageError."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
        lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError("--data-dir", path, error.strerror or str(error), "expected a folder to write to") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise UsageError("--data-dir", path, "another apiserver is using it") from None
    try:
        yield
    finally:
        os.close(lock)


def _listener(checked: Settings) -> socket.socket:
    """The listening socket. Raises UsageError."""
    family = socket.AF_INET6 if ":" in checked.bind else socket.AF_INET
    # The protocol is said because asyncio sets TCP_NODELAY on sockets that have it only (else: 40 ms an answer).
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    where = f"{checked.bind}:{checked.port}"
    try:
        sock.bind((checked.bind, checked.port))
    except OSError as error:
        sock.close()
        hints = {
            errno.EADDRINUSE: "another process has the port; see `ss -ltnp`, or choose --secure-port",
            errno.EADDRNOTAVAIL: "this machine has no such address; see `ip addr`, or choose --bind-address",
            errno.EACCES: "ports below 1024 need root",
        }
        said = error.strerror or str(error)
        raise UsageError("listening on", where, said, hints.get(error.errno or 0, "")) from error
    return sock


class _Server(uvicorn.Server):
    """uvicorn without its ten wake-ups a second and without its signal handlers; it stops when told to."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event, ready: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._ready = ready

    def capture_signals(self) -> Any:
        """Signals are the process's affair, not the server's."""
        return contextlib.nullcontext()

    async def main_loop(self) -> None:
        """Wait."""
        await self._ready()
        await self._stopping.wait()


async def _serve(checked: Settings, certified: Credentials, sock: socket.socket, stop: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    threading.Thread(target=_forward, args=(stop, loop, stopping), name="stop", daemon=True).start()
    store = Store(os.path.join(checked.options.data_dir, "objects.db"))
    backend = _backend(checked, store, loop)
    tasks: list[asyncio.Task[None]] = []

    async def ready() -> None:
        out = checked.options.kubeconfig_out
        if out:
            _write_kubeconfig(out, credentials.kubeconfig(certified, checked.url))
        logs.kv(log, logging.INFO, "serving", url=checked.url, revision=backend.hub.revision, kubeconfig=out or "-")

    async def end_watches() -> None:
        await stopping.wait()
        backend.hub.close()

    backend.writer.start()
    try:
        ensure = functools.partial(bootstrap.ensure, advertise_address=checked.advertise, port=checked.port)
        await backend.write(ensure)
        loops = (Sweeper(backend).run(), tidy(backend, checked.options.event_ttl, ensure), end_watches())
        tasks += [asyncio.create_task(work) for work in loops]
        await _Server(_config(backend, certified), stopping, ready).serve([sock])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await loop.run_in_executor(None, backend.writer.stop)
        backend.reader.close()
        store.close()
        log.info("ended")


def _backend(checked: Settings, store: Store, loop: asyncio.AbstractEventLoop) -> Backend:
    kinds = registry()
    hub = Hub(store.revision)
    world = World(kinds, checked.flags, time.time, lambda: str(uuid.uuid4()))

    def deliver(changes: list[Change]) -> None:
        loop.call_soon_threadsafe(hub.publish, changes)

    writer = Writer(store, deliver, time.time)
    return Backend(world, Schemas(kinds.resources), store.reader(), writer, hub, checked.address)


def _write_kubeconfig(path: str, text: str) -> None:
    try:
        credentials.write_atomically(path, text, 0o600)
    except OSError as error:
        raise UsageError("--kubeconfig-out", path, error.strerror or str(error)) from error


def _forward(stop: threading.Event, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Carry the stop event of the process into the loop."""
    stop.wait()
    with contextlib.suppress(RuntimeError):  # the loop has ended for another reason
        loop.call_soon_threadsafe(stopping.set)


def _config(backend: Backend, certified: Credentials) -> uvicorn.Config:
    return uvicorn.Config(
        app.build(backend, certified.token),
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=lambda _config, _default: credentials.context(certified),
    )
