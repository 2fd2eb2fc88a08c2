"""A small HTTP server for /healthz, /livez, /readyz and /metrics.

Every path is a function that answers when asked: `bool`, `str` (200), `(status, text)` or an `Answer`. A function that
raises is a 500 with one line. The server is one thread that sleeps until somebody connects and one short-lived thread a
connection, with time-outs: a client that says nothing costs nothing for long, and cannot keep others out.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("podwire.daemon")

REQUEST_SECONDS = 10.0


class Answer(NamedTuple):
    """What a path says."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


if TYPE_CHECKING:
    Reply = bool | str | tuple[int, str] | Answer
    Route = Callable[[], Reply]


def answer_of(reply: Reply) -> Answer:
    """The full answer for what a function returned."""
    match reply:
        case Answer():
            return reply
        case bool():
            return Answer(200, b"ok") if reply else Answer(503, b"not ok")
        case str():
            return Answer(200, reply.encode())
        case (status, text):
            return Answer(status, text.encode())


def checks(named: Mapping[str, Callable[[], bool]]) -> Route:
    """A path that is ok when all of `named` are, and says which are not, as Kubernetes' own do."""

    def route() -> Reply:
        lines, good = [], True
        for name, check in named.items():
            held = check()
            good = good and held
            lines.append(f"[{'+' if held else '-'}]{name} {'ok' if held else 'failed'}")
        return (200, "ok") if good else (500, "\n".join([*lines, "check failed", ""]))

    return route


def metrics() -> Reply:
    """The path /metrics: everything registered with prometheus_client, with the process's own numbers."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return Answer(200, generate_latest(), CONTENT_TYPE_LATEST)


class HealthServer:
    """A running server; `address` is where it listens, `close` ends it."""

    def __init__(self, server: ThreadingHTTPServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, the port as the kernel chose it if 0 was asked for."""
        host, port = self._server.socket.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Stop listening."""
        self._server.closing = True  # type: ignore[attr-defined]  # read by _Server
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        self._thread.join(2)
        self._server.server_close()


def serve(bind: str, routes: Mapping[str, Route]) -> HealthServer:
    """Listen on `bind` (127.0.0.1:10256, [::1]:10256, :10256; port 0 is any) and answer `routes`."""
    host, port = split_host_port(bind)

    class Handler(_Handler):
        table = routes

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), Handler)
    except OSError as error:
        raise UsageError("listening on", bind, error.strerror or str(error), "choose another bind address") from None
    thread = threading.Thread(target=server.serve, name="health", daemon=True)
    thread.start()
    return HealthServer(server, thread)


def split_host_port(bind: str) -> tuple[str, int]:
    """Host (empty: all addresses) and port; raises UsageError."""
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise UsageError(
            "reading bind address", bind, "expected HOST:PORT", "for example 127.0.0.1:10256 or [::1]:10256"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    closing = False

    def serve(self) -> None:
        """Accept until closed, without the half-second polling of serve_forever."""
        while not self.closing:
            self.handle_request()

    def server_bind(self) -> None:  # HTTPServer's own looks the host name up in DNS
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)

    def handle_error(self, _request: object, client_address: object) -> None:
        log.debug("health request broke off", extra={"kv": {"client": client_address}})


class _Handler(BaseHTTPRequestHandler):
    table: ClassVar[Mapping[str, Route]]
    timeout = REQUEST_SECONDS
    server_version = "podwire"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one path."""
        path = self.path.partition("?")[0]
        route = self.table.get(path)
        if route is None:
            answer = Answer(404, b"not found: " + " ".join(self.table).encode())
        else:
            try:
                answer = answer_of(route())
            except Exception as error:  # a broken check is a failed check
                log.exception("health check broke", extra={"kv": {"path": path}})
                answer = Answer(500, f"{type(error).__name__}: {error}".encode())
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815  (http.server's name)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (http.server's name)
        """Probes are no news."""
