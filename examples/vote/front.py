"""The voting app's front end: one page, two buttons, the votes kept in a Redis that all replicas share.

It runs on a bare Python (standard library only) with a read-only file system, as process 1 of a container:

    python3 -IS front.py [--port 80] [--redis HOST:PORT]

Without --redis the back end is found as Kubernetes tells a pod about a Service, through AZURE_VOTE_BACK_SERVICE_HOST and
…_PORT, or through REDIS (a host name). Redis need not be there: the page then says so, with status 503, and comes right
as soon as it is. TITLE, VOTE1VALUE and VOTE2VALUE change what is voted on.

Every answer closes its connection (HTTP/1.0): a Service spreads connections, not requests, and this page is here to show it.
"""

from __future__ import annotations

import argparse
import html
import os
import signal
import socket
import socketserver
import sys
import threading
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

# Isolated mode (-I) leaves the script's own folder out of the path.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from resp import Redis, RedisError  # noqa: E402 - it is found through the path just set

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LONGEST_BODY = 1024

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 24em; margin: 3em auto; text-align: center; }}
button {{ font-size: 1.2em; margin: .3em; padding: .5em 1.5em; }}
.error {{ color: #a00; }}
footer {{ color: #666; margin-top: 2em; font-size: .8em; }}
</style>
</head>
<body>
<h1>{title}</h1>
<form method="post" action="/">
{buttons}
<button name="vote" value="reset">Reset</button>
</form>
{result}
<footer>answered by {pod}</footer>
</body>
</html>
"""


class Settings(NamedTuple):
    """What the page is about, and where the votes are. `redis` None: nobody said where."""

    title: str
    options: tuple[str, str]
    redis: tuple[str, int] | None
    pod: str


def settings(environ: Mapping[str, str], redis: str = "") -> Settings:
    """From the environment that Kubernetes gives the container; `redis` is the flag, HOST:PORT. Raises ValueError."""
    host, port = environ.get("AZURE_VOTE_BACK_SERVICE_HOST", ""), environ.get("AZURE_VOTE_BACK_SERVICE_PORT", "6379")
    if redis:
        host, colon, port = redis.rpartition(":")
        if not colon:
            host, port = redis, "6379"
    elif not host:
        host, port = environ.get("REDIS", ""), "6379"
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is no port")
    return Settings(
        title=environ.get("TITLE", "Azure Voting App"),
        options=(environ.get("VOTE1VALUE", "Cats"), environ.get("VOTE2VALUE", "Dogs")),
        redis=(host, int(port)) if host else None,
        pod=socket.gethostname(),
    )


def count(about: Settings, vote: str | None) -> dict[str, int]:
    """Cast a vote (an option, "reset", or None: just look) and return the counts. Raises RedisError."""
    if about.redis is None:
        raise RedisError("nobody said where Redis is: AZURE_VOTE_BACK_SERVICE_HOST is not set")
    with Redis(*about.redis) as redis:
        if vote == "reset":
            for option in about.options:
                redis.set(option, 0)
        elif vote is not None:
            redis.incr(vote)
        return {option: redis.get(option) for option in about.options}


def page(about: Settings, counts: Mapping[str, int] | None, error: str = "") -> bytes:
    """The page, with the counts or with what went wrong."""
    buttons = "\n".join(
        f'<button name="vote" value="{html.escape(option)}">{html.escape(option)}</button>' for option in about.options
    )
    if counts is None:
        result = f'<p class="error">The votes cannot be read: {html.escape(error)}</p>'
    else:
        result = "<p>" + " | ".join(f"{html.escape(option)} - {number}" for option, number in counts.items()) + "</p>"
    return PAGE.format(
        title=html.escape(about.title), buttons=buttons, result=result, pod=html.escape(about.pod)
    ).encode()


class Handler(BaseHTTPRequestHandler):
    """Answers /, for a look (GET) and for a vote (POST), and /healthz."""

    server: Front
    timeout = 10
    server_version = "vote"
    sys_version = ""

    def do_GET(self) -> None:
        """Show the page; any query is ignored."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._send(HTTPStatus.OK, b"ok\n", "text/plain")
        elif path == "/":
            self._show(None)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def do_POST(self) -> None:
        """Cast a vote and show the page."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > LONGEST_BODY:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE if length.isdecimal() else HTTPStatus.LENGTH_REQUIRED)
            return
        form = urllib.parse.parse_qs(self.rfile.read(int(length)).decode(errors="replace"))
        vote = form.get("vote", [""])[0]
        if vote != "reset" and vote not in self.server.about.options:
            self.send_error(HTTPStatus.BAD_REQUEST, "there is no such option")
            return
        self._show(vote)

    def _show(self, vote: str | None) -> None:
        about = self.server.about
        try:
            self._send(HTTPStatus.OK, page(about, count(about, vote)))
        except RedisError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, page(about, None, str(error)))

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/html; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Requests are no news."""


class Front(ThreadingHTTPServer):
    """The server; a thread a connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, about: Settings) -> None:
        self.about = about
        super().__init__(("", port), Handler)

    def server_bind(self) -> None:
        """Bind without asking DNS for our own name, as HTTPServer's does: there may be none in the pod."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - socketserver's signature
        """A client that went away is its own business; what else happens is told in a line."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"request from {client_address} failed: {error!r}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="The voting app's front end.")
    parser.add_argument("--port", type=int, default=80)
    parser.add_argument("--redis", default="", metavar="HOST:PORT")
    flags = parser.parse_args(arguments)
    try:
        about = settings(os.environ, flags.redis)
        server = Front(flags.port, about)
    except (ValueError, OSError) as error:
        print(f"cannot serve: {error}", file=sys.stderr)
        return 1

    def end(*_: object) -> None:
        # Process 1 has no default action for a signal, and shutdown() waits for the loop that this handler interrupts.
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    where = "nowhere" if about.redis is None else "{}:{}".format(*about.redis)
    print(f"{about.title} on port {server.server_address[1]}, votes at {where}", file=sys.stderr, flush=True)
    with server:
        server.serve_forever(poll_interval=1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
