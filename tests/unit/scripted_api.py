"""A server on loopback that answers what a test tells it, for the client's and the reflector's tests.

It knows nothing of Kubernetes: a route is a function from (method, path, query, body) to an answer, and a watch is a queue of
lines that are sent as they are put.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import queue
import ssl
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

END = b"END"  # put into a watch: end it as a server does when its time is over
CUT = b"CUT"  # put into a watch: break the connection in the middle


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]


class Server:
    """`answer(request)` returns (status, JSON value) or a queue of watch lines."""

    def __init__(self, answer: Callable[[Request], Any], context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.connections: set[int] = set()
        self.hang_up = False  # close each connection after its answer, without saying so
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                split = urllib.parse.urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                query = dict(urllib.parse.parse_qsl(split.query))
                request = Request(self.command, split.path, query, json.loads(raw) if raw else None, dict(self.headers))
                outer.requests.append(request)
                outer.connections.add(self.client_address[1])
                result = answer(request)
                if isinstance(result, queue.Queue):
                    self.stream(result)
                else:
                    self.respond(*result)

            def respond(self, status: int, value: Any) -> None:
                body = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = outer.hang_up

            def stream(self, lines: queue.Queue[bytes]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                try:
                    while True:
                        try:
                            line = lines.get(timeout=0.1)
                        except queue.Empty:
                            if outer.closing.is_set():
                                return
                            continue
                        if line == CUT:
                            return
                        if line == END:
                            self.wfile.write(b"0\r\n\r\n")
                            return
                        self.wfile.write(f"{len(line) + 1:x}\r\n".encode() + line + b"\n\r\n")
                except OSError:
                    return

            def __getattr__(self, name: str) -> Any:  # do_GET, do_POST, …
                if name.startswith("do_"):
                    return self.handle_any
                raise AttributeError(name)

            def log_message(self, *args: Any) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: Any) -> None:
                pass

        self.closing = threading.Event()
        self._server = Quiet(("127.0.0.1", 0), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if context else "http"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def kubeconfig(url: str, ca: str = "") -> str:
    """The text of a kubeconfig (JSON is YAML)."""
    cluster = {"server": url, **({"certificate-authority": ca} if ca else {})}
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "t0ken-of-the-test"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def failure(code: int, reason: str, message: str = "no") -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message}


def pod(name: str, version: int, uid: str = "", **status: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, "status": status}


def listing(version: int, *items: dict[str, Any], more: str = "") -> tuple[int, dict[str, Any]]:
    return 200, {"metadata": {"resourceVersion": str(version), "continue": more}, "items": list(items)}


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def serving(answer: Callable[[Request], Any], context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """For fixtures: a server that is closed at the end."""
    server = Server(answer, context)
    try:
        yield server
    finally:
        server.close()


def certificate(folder: Any) -> tuple[str, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1; its path, and a server context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, secret)
    return str(cert), context
