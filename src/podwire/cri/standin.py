"""The stand-in: what runs in place of an image that is not pulled.

It listens on every declared port of the container and says, to whoever asks over HTTP, who answered and who asked:

    $ curl -s 10.244.1.5:80
    {"pod": "web-0", "namespace": "default", "podIP": "10.244.1.5", "node": "node-2", …, "client": "10.244.0.1:41234"}

Everything else on TCP (and SCTP, where the kernel has it) and every UDP datagram is sent back as it came. On TCP the first
bytes decide: a line that begins with an HTTP method is HTTP, anything else, or a beginning that is not continued within
a fifth of a second, is echo. UDP answers leave from the address that was asked (IP_PKTINFO), also where the host has
several.

One thread, one epoll, no limit on connections but the process's. It is its own shim: it writes its log and its exit
file, ends with status 0 on SIGTERM as a well-behaved server does, and has given up every capability once its ports are
bound. A port that is taken ends it with status 1, as it would end the real program. Slim.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import time

from podwire.cri import http1, shim
from podwire.kernel import capabilities

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from podwire.cri import logs

IPPROTO_SCTP = 132
IP_PKTINFO = 8  # linux/in.h; the socket module has only IPv6's
PKTINFO_SPACE = 256
HTTP_PATIENCE = 0.2  # how long an unfinished beginning may be the beginning of HTTP, in seconds
MAX_BUFFER = 1 << 20  # what a client may leave unread before we stop reading from it


class Connection:
    """An accepted connection: undecided, HTTP or echo."""

    __slots__ = ("closing", "deadline", "kind", "local_port", "peer", "received", "sock", "to_send")

    def __init__(self, sock: socket.socket, peer: str, local_port: int, now: float) -> None:
        self.sock = sock
        self.peer = peer
        self.local_port = local_port
        self.kind = "undecided"
        self.received = b""
        self.to_send = bytearray()
        self.closing = False
        self.deadline: float | None = now + HTTP_PATIENCE


class StandIn:
    """The listening sockets and the connections, served from one epoll."""

    def __init__(self, facts: dict[str, Any], log: logs.Writer) -> None:
        self._facts = facts
        self._log = log
        self._poll = select.epoll()
        self._listeners: dict[int, socket.socket] = {}
        self._datagrams: dict[int, socket.socket] = {}
        self._connections: dict[int, Connection] = {}

    def listen(self, ports: list[list[Any]]) -> None:
        """Bind the declared ports: [number, "TCP"|"UDP"|"SCTP"] each. OSError if one is taken."""
        for number, protocol in ports:
            try:
                sock = _bound(number, protocol)
            except OSError as error:
                if protocol == "SCTP" and error.errno in (errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
                    self._log.line("stderr", f"port {number}/SCTP: the kernel has no SCTP; nobody listens there")
                    continue
                raise OSError(
                    error.errno, f"listen {protocol.lower()} :{number}: {os.strerror(error.errno or 0).lower()}"
                ) from error
            self._poll.register(sock, select.EPOLLIN)
            (self._datagrams if protocol == "UDP" else self._listeners)[sock.fileno()] = sock
            self._log.line("stdout", f"listening on {number}/{protocol}")

    def serve(self, wake_fd: int) -> int:
        """Serve until SIGTERM or SIGINT; the exit code."""
        self._poll.register(wake_fd, select.EPOLLIN)
        while True:
            for fd, events in self._poll.poll(self._patience()):
                if fd == wake_fd:
                    for number in os.read(wake_fd, 512):
                        if number == signal.SIGUSR1:
                            self._log.reopen()
                        else:
                            self._log.line("stdout", f"{signal.Signals(number).name}: stopping")
                            return 0
                else:
                    self._handle(fd, events)
            self._decide_late()

    def _handle(self, fd: int, events: int) -> None:
        if fd in self._listeners:
            self._accept(self._listeners[fd])
        elif fd in self._datagrams:
            self._echo_datagram(self._datagrams[fd])
        elif fd in self._connections:
            connection = self._connections[fd]
            try:
                if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    self._receive(connection)
                self._send(connection)
            except OSError:  # the client went away
                self._close(connection)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(0.05)  # the listener stays readable: without a pause we would spin until somebody hangs up
            return
        sock.setblocking(False)
        connection = Connection(sock, _endpoint(address), listener.getsockname()[1], time.monotonic())
        self._connections[sock.fileno()] = connection
        self._poll.register(sock, select.EPOLLIN)

    def _receive(self, connection: Connection) -> None:
        if connection.closing or len(connection.to_send) > MAX_BUFFER:
            return
        try:
            data = connection.sock.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            connection.closing = True
            if connection.kind == "undecided":
                connection.to_send += connection.received
            return
        if connection.kind == "echo":
            connection.to_send += data
            return
        connection.received += data
        if connection.kind == "undecided":
            self._decide(connection, http1.looks_like(connection.received))
        if connection.kind == "http":
            self._answer(connection)

    def _decide(self, connection: Connection, verdict: bool | None) -> None:
        if verdict is None:
            return
        connection.deadline = None
        connection.kind = "http" if verdict else "echo"
        if not verdict:
            connection.to_send += connection.received
            connection.received = b""

    def _answer(self, connection: Connection) -> None:
        while not connection.closing:
            request = http1.parse(connection.received)
            if request is None:
                return
            connection.received = connection.received[request.length :]
            facts = {**self._facts, "port": connection.local_port, "client": connection.peer}
            if request.error:
                facts = {"error": request.error}
            else:
                facts |= {"method": request.method, "path": request.target, "host": request.host}
                self._log.line("stdout", f'{connection.peer} "{request.method} {request.target}" 200')
            body = json.dumps(facts).encode() + b"\n"
            connection.to_send += http1.response(request, body, str(self._facts.get("pod", "")))
            connection.closing = not request.keep_alive

    def _send(self, connection: Connection) -> None:
        sock = connection.sock
        while connection.to_send:
            try:
                sent = sock.send(connection.to_send)
            except BlockingIOError:
                break
            del connection.to_send[:sent]
        if connection.to_send:
            reading = 0 if connection.closing or len(connection.to_send) > MAX_BUFFER else select.EPOLLIN
            self._poll.modify(sock, select.EPOLLOUT | reading)
        elif connection.closing:
            self._close(connection)
        else:
            self._poll.modify(sock, select.EPOLLIN)

    def _close(self, connection: Connection) -> None:
        fd = connection.sock.fileno()
        if self._connections.pop(fd, None) is not None:
            self._poll.unregister(fd)
            connection.sock.close()

    def _patience(self) -> float | None:
        waiting = [c.deadline for c in self._connections.values() if c.deadline is not None and c.received]
        return max(0.0, min(waiting) - time.monotonic()) if waiting else None

    def _decide_late(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.deadline is not None and connection.received and connection.deadline <= now:
                self._decide(connection, verdict=False)
                try:
                    self._send(connection)
                except OSError:
                    self._close(connection)

    def _echo_datagram(self, sock: socket.socket) -> None:
        try:
            data, ancillary, _, address = sock.recvmsg(1 << 16, PKTINFO_SPACE)
            sock.sendmsg([data], _reply_from(ancillary), 0, address)
        except OSError:  # nobody there any more, or too large for the way back
            return


def _bound(number: int, protocol: str) -> socket.socket:
    kind = socket.SOCK_DGRAM if protocol == "UDP" else socket.SOCK_STREAM
    transport = IPPROTO_SCTP if protocol == "SCTP" else 0
    try:
        sock = socket.socket(socket.AF_INET6, kind, transport)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        any_address = "::"
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.ENOPROTOOPT):
            raise
        sock = socket.socket(socket.AF_INET, kind, transport)
        any_address = "0.0.0.0"
    if protocol == "UDP":
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((any_address, number))
        if protocol != "UDP":
            sock.listen(1024)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _reply_from(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    """The control message that makes the answer leave from the address that was asked; the kernel picks the device."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_PKTINFO:  # struct in6_pktinfo: address, index
            return [(level, kind, data[:16] + bytes(4))]
        if level == socket.IPPROTO_IP and kind == IP_PKTINFO:  # struct in_pktinfo: index, local, destination
            return [(level, kind, bytes(4) + data[8:12] + bytes(4))]
    return []


def _endpoint(address: tuple[Any, ...]) -> str:
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def run(spec: dict[str, Any], log: logs.Writer, exit_fd: int) -> NoReturn:
    """Be the container until it is stopped."""
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, _handled)
    log.line("stdout", f"stand-in for image {spec['facts']['image']}: images are not pulled")
    code = 1
    try:
        server = StandIn(spec["facts"], log)
        server.listen(spec["ports"])
        capabilities.limit_bounding(())
        capabilities.prctl(capabilities.PR_SET_NO_NEW_PRIVS, 1)
        capabilities.limit(())
        shim.ready()
        code = server.serve(wake_read)
    except OSError as error:
        shim.ready()  # it ran and ended, as the real program would have
        log.line("stderr", str(error.strerror or error))
    log.end()
    shim.write_exit(exit_fd, code)
    os._exit(code)


def _handled(_number: int, _frame: object) -> None:
    """See shim._handled."""
