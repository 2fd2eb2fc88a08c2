"""As much HTTP/1.x as a stand-in needs (RFC 9112): bytes in, a request out; a response out. No sockets.

Pipelining and keep-alive work; a body is awaited by Content-Length and thrown away; a chunked one is answered and ends the
connection, since nothing here needs to find its end. HTTP/2 with prior knowledge is not HTTP here: its preface is echoed.
Slim: `http.server` would cost 8 MB in every pod.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT")
MAX_HEAD: Final = 65536  # bytes of request line and header fields
MAX_BODY: Final = 1 << 20


class Request:
    """One request; `length` is how many bytes of the input it took. With an `error` (and `status`) it is no request."""

    __slots__ = ("error", "host", "keep_alive", "length", "method", "status", "target")

    def __init__(self, length: int) -> None:
        self.length = length
        self.method = ""
        self.target = ""
        self.host = ""
        self.keep_alive = False
        self.status = 200
        self.error = ""


def looks_like(data: bytes) -> bool | None:
    """Whether a connection that begins so speaks HTTP; None while it may still turn out either way."""
    for method in METHODS:
        line = method + b" "
        if data.startswith(line):
            return True
        if line.startswith(data):
            return None
    return False


def parse(data: bytes) -> Request | None:
    """The first request in `data`; None while it is incomplete."""
    head, separator, _ = data.partition(b"\r\n\r\n")
    if not separator:
        head, separator, _ = data.partition(b"\n\n")  # as lenient as most servers: typed by hand through nc
    if not separator:
        return _bad(len(data), 431, "the header is too large") if len(data) > MAX_HEAD else None
    request = Request(len(head) + len(separator))
    lines = [line.rstrip("\r") for line in head.decode("latin-1").split("\n")]
    parts = lines[0].split()
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return _bad(len(data), 400, "the request line is not METHOD TARGET HTTP/1.x")
    request.method, request.target = parts[0], parts[1]
    fields = _fields(lines[1:])
    request.host = fields.get("host", "")
    connection = fields.get("connection", "").lower()
    request.keep_alive = "close" not in connection and (parts[2] != "HTTP/1.0" or "keep-alive" in connection)
    if "transfer-encoding" in fields:
        request.keep_alive = False
        return request
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 20):
        return _bad(len(data), 400, "Content-Length is not a number")
    request.length += int(length)
    if int(length) > MAX_BODY:
        return _bad(len(data), 413, f"a body of more than {MAX_BODY} bytes is not read")
    return request if len(data) >= request.length else None


def _fields(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _bad(length: int, status: int, error: str) -> Request:
    request = Request(length)
    request.status, request.error = status, error
    return request


_PHRASES = {200: "OK", 400: "Bad Request", 413: "Content Too Large", 431: "Request Header Fields Too Large"}


def response(request: Request, body: bytes, server: str) -> bytes:
    """The answer to a request: JSON; the header field X-Pod names who answered."""
    head = (
        f"HTTP/1.1 {request.status} {_PHRASES[request.status]}\r\n"
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}\r\n"
        "Server: podwire-stand-in\r\n"
        f"X-Pod: {server}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if request.keep_alive else 'close'}\r\n\r\n"
    )
    return head.encode("latin-1") + (b"" if request.method == "HEAD" else body)
