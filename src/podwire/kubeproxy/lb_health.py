"""healthCheckNodePorts: a load balancer asks on such a port whether this node has endpoints of the Service.

200 if the Service has ready endpoints on this node and kube-proxy itself is healthy, else 503; the number of
endpoints (distinct addresses) is in the body and in X-Load-Balancing-Endpoint-Weight. Terminating endpoints do not count, so
that a load balancer drains a node whose last pod is going while its traffic is still served (KEP-1669).

It is served in the socket loop's thread, one short answer a connection whatever was asked: a big cluster has hundreds of
such ports, and each cloud's load balancer asks each node every few seconds.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from podwire.kubeproxy.nodeports import NodePort, open_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from podwire.kubeproxy.sockets import SocketLoop

log = logging.getLogger("podwire.kubeproxy")

_PATIENCE = 5.0  # seconds a client may take to say its request
_LONGEST_REQUEST = 8192


@dataclass(frozen=True, slots=True)
class Check:
    """What a healthCheckNodePort answers for: the Service and how many ready endpoints it has here."""

    service: str
    endpoints: int


def answer(check: Check, proxy_healthy: bool, now: float) -> bytes:
    """The whole HTTP answer."""
    namespace, _, name = check.service.partition("/")
    body = json.dumps(
        {
            "service": {"namespace": namespace, "name": name},
            "localEndpoints": check.endpoints,
            "serviceProxyHealthy": proxy_healthy,
        },
        indent="\t",
    ).encode()
    status = HTTPStatus.OK if check.endpoints and proxy_healthy else HTTPStatus.SERVICE_UNAVAILABLE
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        "X-Content-Type-Options: nosniff",
        f"X-Load-Balancing-Endpoint-Weight: {check.endpoints}",
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime(now))}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(head).encode() + body


class LoadBalancerHealth:
    """The listening healthCheckNodePorts."""

    def __init__(
        self, loop: SocketLoop, proxy_healthy: Callable[[], bool], clock: Callable[[], float] = time.time
    ) -> None:
        self._loop = loop
        self._proxy_healthy = proxy_healthy
        self._clock = clock
        self._checks: dict[NodePort, Check] = {}
        self._listening: dict[NodePort, socket.socket] = {}
        self._failed: dict[NodePort, str] = {}

    def sync(self, checks: Mapping[NodePort, Check]) -> None:
        """Answer on exactly these ports from now on."""
        self._loop.call(lambda: self._sync(checks))

    def retry(self) -> None:
        """Try again what could not be opened before."""
        if self._failed:
            self._loop.call(lambda: self._sync(self._checks))

    def close(self) -> None:
        """Stop answering."""
        self.sync({})

    def _sync(self, checks: Mapping[NodePort, Check]) -> None:
        self._checks = dict(checks)
        for port in self._listening.keys() - checks.keys():
            sock = self._listening.pop(port)
            self._loop.forget(sock)
            sock.close()
        self._failed = {port: why for port, why in self._failed.items() if port in checks}
        for port in sorted(checks.keys() - self._listening.keys()):
            self._listen(port)

    def _listen(self, port: NodePort) -> None:
        service = self._checks[port].service
        try:
            sock = open_socket(port)
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            if self._failed.get(port) != why:
                fields = {"service": service, "port": port, "error": why}
                log.error("cannot answer on the healthCheckNodePort", extra={"kv": fields})  # noqa: TRY400 - the reason says it all
            self._failed[port] = why
            return
        self._failed.pop(port, None)
        self._listening[port] = sock
        self._loop.watch(sock, lambda: self._accept(port, sock))

    def _accept(self, port: NodePort, sock: socket.socket) -> None:
        try:
            connection, _peer = sock.accept()
        except OSError:
            return
        connection.setblocking(False)
        asked = bytearray()
        started = time.monotonic()

        def ready() -> None:
            try:
                asked.extend(connection.recv(_LONGEST_REQUEST) or b"\r\n\r\n")  # a half-closed request is whole
            except BlockingIOError:
                pass
            except OSError:
                self._end(connection)
                return
            whole = b"\r\n\r\n" in asked or len(asked) >= _LONGEST_REQUEST
            if whole and port in self._checks:
                self._say(connection, self._checks[port])
            elif whole or time.monotonic() - started >= _PATIENCE:
                self._end(connection)

        self._loop.watch(connection, ready, timeout=_PATIENCE)

    def _say(self, connection: socket.socket, check: Check) -> None:
        try:
            # A few hundred bytes always fit into a new socket's buffer.
            connection.send(answer(check, self._proxy_healthy(), self._clock()))
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        self._loop.forget(connection)
        connection.close()
