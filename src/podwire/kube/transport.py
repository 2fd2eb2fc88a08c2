"""HTTP/1.1 below httpx2, on the standard library's http.client.

httpx2's own transport brings httpcore2, h11, h2 and anyio: 4 MB and 35 ms in each of a node's processes, for HTTP/2, an
async half and proxies that a node's agent does not use. What one needs is little: connections that are kept alive and
shared by threads, answers read as they arrive, and the socket of a watch, to end it. This is that; where a proxy is set for the
server, `connection` leaves httpx2 its own.

* A kept connection is used again only if it is younger than the server's idle limit and silent: something to read on an
  idle connection is its end.
* An answer that was read to its end gives its connection back; one that is closed early closes it.
* `extensions["socket"]` of an answer is its socket; shutting that down ends a blocked read in another thread.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import threading
import time
from typing import TYPE_CHECKING

import httpx2

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

CHUNK = 65536
KEPT = 4


class Transport(httpx2.BaseTransport):
    """Connections to one server."""

    def __init__(self, context: ssl.SSLContext | None, idle_seconds: float) -> None:
        self._context = context
        self._idle_seconds = idle_seconds
        self._lock = threading.Lock()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._closed = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and read the head of its answer."""
        timeout = request.extensions.get("timeout", {})
        body = b"".join(request.stream)  # type: ignore[arg-type]  # a synchronous client's stream is synchronous
        connection = self._take() or self._connect(request.url, timeout.get("connect"))
        try:
            connection.sock.settimeout(timeout.get("read"))
            target = request.url.raw_path.decode("ascii")
            connection.putrequest(request.method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.raw:
                connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
        except BaseException as error:
            connection.close()
            if (known := _known(error)) is not None:
                raise known from error
            raise
        return httpx2.Response(
            answer.status,
            headers=answer.getheaders(),
            stream=_Stream(self, connection, answer),
            extensions={"socket": connection.sock},
        )

    def close(self) -> None:
        """Close what is idle; what is in use closes when its answer is."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def give_back(self, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose answer was read to the end."""
        with self._lock:
            if not self._closed and len(self._idle) < KEPT:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def _take(self) -> http.client.HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()  # the youngest: the others can time out
            if time.monotonic() - since < self._idle_seconds and not _readable(connection):
                return connection
            connection.close()

    def _connect(self, url: httpx2.URL, timeout: float | None) -> http.client.HTTPConnection:
        if url.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                url.host, url.port or 443, timeout=timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=timeout)
        try:
            connection.connect()
        except TimeoutError as error:
            connection.close()
            raise httpx2.ConnectTimeout(f"no answer from {url.host}:{connection.port} in {timeout} s") from error
        except OSError as error:
            connection.close()
            raise httpx2.ConnectError(str(error)) from error
        return connection


class _Stream(httpx2.SyncByteStream):
    """The body of an answer, as it arrives."""

    def __init__(
        self, transport: Transport, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._answer = answer
        self._whole = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            while chunk := self._answer.read1(CHUNK):
                yield chunk
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _known(error) or httpx2.ReadError(str(error)) from error
        # read1 answers b"" also when the peer vanished in the middle of a body of known length.
        missing = self._answer.length
        if missing:
            raise httpx2.RemoteProtocolError(f"the server closed the connection, {missing} bytes are missing")
        self._whole = True

    def close(self) -> None:
        keep = self._whole and not self._answer.will_close
        self._answer.close()
        if keep:
            self._transport.give_back(self._connection)
        else:
            self._connection.close()


def _known(error: BaseException) -> httpx2.TransportError | None:
    """What httpx2 calls it."""
    if isinstance(error, TimeoutError):
        return httpx2.ReadTimeout("no answer in time")
    if isinstance(error, http.client.HTTPException):  # RemoteDisconnected and IncompleteRead among them
        return httpx2.RemoteProtocolError(str(error) or type(error).__name__)
    if isinstance(error, OSError):
        return httpx2.ReadError(str(error) or type(error).__name__)
    return None


def _readable(connection: http.client.HTTPConnection) -> bool:
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):
        poll.register(connection.sock, select.POLLIN)
        return bool(poll.poll(0))
    return True
