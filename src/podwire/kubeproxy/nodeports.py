"""Holding NodePorts: a socket on each, so that no other program can get the number.

Until Kubernetes 1.23 kube-proxy did this; today nobody does. Rules take NodePort traffic before the kernel looks for a
socket, so a program that has the port breaks nothing for clients, but is itself never reached, and who looks with lsof
learns nothing. So here each NodePort is bound again. When it cannot be, because another program has it, that is
an error in the log and a Warning Event on the Service; rules are written all the same; and it is tried again each sync period.

What reaches a held socket is traffic that no rule took, because rules are missing. It must never hang there, as it did
when kube-proxy opened ports before it wrote rules and never read from them (kubernetes #106713):

* TCP: accepted and reset at once (SO_LINGER 0), as if the port were closed, and counted.
* UDP: read and thrown away, and counted.
* SCTP: bound and listening like TCP, where the kernel has SCTP sockets; else one warning.

No SO_REUSEADDR: with it, binding would succeed beside a connection that has the port as its source and set the same
option, which is exactly the theft that is to be noticed.

Without nodePortAddresses a port is held on the wildcard of both families by one socket; with them, on each of the
addresses, and it stays free on all others.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from podwire.kubeproxy.metrics import Metrics
    from podwire.kubeproxy.sockets import SocketLoop

log = logging.getLogger("podwire.kubeproxy")

REASON = "FailedToHoldNodePort"
_LINGER_NONE = struct.pack("ii", 1, 0)
_BACKLOG = 16
_DRAIN = 64  # datagrams or connections taken at one wake-up, so that one flooded port does not starve the others


@dataclass(frozen=True, slots=True, order=True)
class NodePort:
    """A port to hold; `ip` is empty for the wildcard of both families. Protocol in lower case."""

    protocol: str
    port: int
    ip: str = ""

    def __str__(self) -> str:
        host = f"[{self.ip}]" if ":" in self.ip else self.ip
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose NodePort it is: namespace/name and the port's name."""

    service: str
    port_name: str

    @property
    def description(self) -> str:
        """As the error has it: an unnamed port leaves its colon."""
        return f"nodePort for {self.service}:{self.port_name}"


def failure_text(node_port: NodePort, owner: Owner, reason: str) -> str:
    """The error in the words of the real one."""
    return (
        f'can\'t open "{owner.description}" ({node_port}/{node_port.protocol}), skipping this nodePort: '
        f"listen {node_port.protocol} {node_port}: bind: {reason}"
    )


class NodePortHolder:
    """Holds what it is told to. `report` is called with the owner and the text of a failure, once for each failure."""

    def __init__(self, loop: SocketLoop, metrics: Metrics, report: Callable[[Owner, str], None]) -> None:
        self._loop = loop
        self._metrics = metrics
        self._report = report
        self._wanted: dict[NodePort, Owner] = {}
        self._held: dict[NodePort, socket.socket] = {}
        self._failed: dict[NodePort, tuple[Owner, str]] = {}
        self._no_sctp_said = False

    def sync(self, wanted: Mapping[NodePort, Owner]) -> None:
        """Hold exactly these from now on."""
        self._wanted = dict(wanted)
        self.retry(always=True)

    def retry(self, *, always: bool = False) -> None:
        """Try again what could not be held before."""
        if not always and not self._failed:
            return
        wanted = self._wanted
        reports = self._loop.call(lambda: self._sync(wanted))
        for protocol in ("tcp", "udp", "sctp"):
            held = sum(node_port.protocol == protocol for node_port in self._held)
            self._metrics.node_ports.labels(protocol).set(held)
        self._metrics.node_port_failures.set(len(self._failed))
        for owner, text in reports:
            log.error("%s", text)
            self._report(owner, text)

    def close(self) -> None:
        """Let go of all."""
        self.sync({})

    def _sync(self, wanted: Mapping[NodePort, Owner]) -> list[tuple[Owner, str]]:
        for node_port in self._held.keys() - wanted.keys():
            sock = self._held.pop(node_port)
            self._loop.forget(sock)
            sock.close()
        for node_port in self._failed.keys() - wanted.keys():
            del self._failed[node_port]
        reports = []
        for node_port in sorted(wanted.keys() - self._held.keys()):
            owner = wanted[node_port]
            failure = self._hold(node_port)
            known = self._failed.pop(node_port, None)
            if failure is None:
                if known is not None:
                    log.info("nodePort is held after all", extra={"kv": {"service": owner.service, "port": node_port}})
                continue
            self._failed[node_port] = (owner, failure)
            if known != (owner, failure):
                reports.append((owner, failure_text(node_port, owner, failure)))
        return reports

    def _hold(self, node_port: NodePort) -> str | None:
        """Open the socket; what the kernel said if it would not."""
        try:
            sock = open_socket(node_port)
        except OSError as error:
            if node_port.protocol == "sctp" and error.errno in (errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
                if not self._no_sctp_said:
                    log.warning("no SCTP sockets on this machine: SCTP nodePorts are not held")
                self._no_sctp_said = True
                return None
            return os.strerror(error.errno or 0).lower()
        self._held[node_port] = sock
        drain = self._drain_datagrams if node_port.protocol == "udp" else self._reset_connections
        self._loop.watch(sock, lambda: drain(node_port, sock))
        return None

    def _reset_connections(self, node_port: NodePort, sock: socket.socket) -> None:
        for _ in range(_DRAIN):
            try:
                connection, _peer = sock.accept()
            except OSError:  # nothing left, or the client has gone already
                return
            # Closing with a linger time of zero sends a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
            connection.close()
            self._metrics.strays.labels(node_port.protocol).inc()

    def _drain_datagrams(self, _node_port: NodePort, sock: socket.socket) -> None:
        for _ in range(_DRAIN):
            try:
                sock.recv(1)
            except OSError:
                return
            self._metrics.strays.labels("udp").inc()


def open_socket(node_port: NodePort) -> socket.socket:
    """A socket that holds the port. Raises OSError."""
    kind = socket.SOCK_DGRAM if node_port.protocol == "udp" else socket.SOCK_STREAM
    number = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP, "sctp": socket.IPPROTO_SCTP}[node_port.protocol]
    if node_port.ip:
        family = socket.AF_INET6 if ":" in node_port.ip else socket.AF_INET
        return _bound(family, kind, number, (node_port.ip, node_port.port))
    try:
        return _bound(socket.AF_INET6, kind, number, ("::", node_port.port))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):  # IPv6 is not there, or switched off
            raise
    return _bound(socket.AF_INET, kind, number, ("0.0.0.0", node_port.port))


def _bound(family: int, kind: int, number: int, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, kind, number)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        sock.setblocking(False)
        sock.bind(address)
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
