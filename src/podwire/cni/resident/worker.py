"""A worker of the resident helper: waits on the helper's socket, and does one stub's work at a time, as the stub itself would.

A worker is a process, not a thread, because umask, working folder and resource limits belong to a process, and because
the death of one must not touch another. It is warm: forked from a process that has imported every plugin.

The stub's death is the worker's: from before "begun" until the answer is ready the kernel sends this process SIGKILL when
the stub's end of the connection is closed (F_SETSIG). So whoever kills a plugin kills the work, as ever, and before the plugin's
parent can know of the death and start a DEL. And the other way round, when a worker dies the stub sees the connection close.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import socket
import struct

from podwire.cni import delegate, skel, stub
from podwire.cni.resident.checks import Process, Refused, check_netns, peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_LIFE = 1000  # requests; then the helper makes a fresh one
_F_SETSIG = 10
_DESCRIPTORS = 4
_UCRED = struct.Struct("=iII")
_SILENCE = struct.pack("@ll", 1, 0)  # struct timeval: how long a connected stub may take to say what it wants
# Lines of /proc/PID/limits.
_LIMITS = {
    b"Max cpu time": resource.RLIMIT_CPU,
    b"Max file size": resource.RLIMIT_FSIZE,
    b"Max data size": resource.RLIMIT_DATA,
    b"Max stack size": resource.RLIMIT_STACK,
    b"Max core file size": resource.RLIMIT_CORE,
    b"Max resident set": resource.RLIMIT_RSS,
    b"Max processes": resource.RLIMIT_NPROC,
    b"Max open files": resource.RLIMIT_NOFILE,
    b"Max locked memory": resource.RLIMIT_MEMLOCK,
    b"Max address space": resource.RLIMIT_AS,
    b"Max pending signals": resource.RLIMIT_SIGPENDING,
    b"Max msgqueue size": resource.RLIMIT_MSGQUEUE,
    b"Max nice priority": resource.RLIMIT_NICE,
    b"Max realtime priority": resource.RLIMIT_RTPRIO,
}


class Worker:
    """Serves stubs until it has served enough, or is told to stop (SIGTERM: at once when idle, else after the stub at hand)."""

    def __init__(self, listener: socket.socket, ident: bytes, me: Process, log: Callable[[str], None]) -> None:
        self._listener = listener
        self._ident = ident
        self._me = me
        self._log = log
        self._limits = me.read("limits")
        self._shared: dict[str, str] = {}  # the environment but for CNI_*, as os.environ has it
        self._busy = False
        self._stopping = False

    def run(self, life: int = _LIFE) -> NoReturn:
        """Serve; leaves the process."""
        signal.signal(signal.SIGTERM, self._stop)
        for _ in range(life):
            connection, _ = self._listener.accept()
            self._busy = True
            with connection:
                fresh = self._serve(connection)
            self._busy = False
            if self._stopping or not fresh:
                break
        os._exit(0)

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        if not self._busy:  # a connection accepted in this very moment closes unread: its stub does the work itself
            os._exit(0)

    def _serve(self, connection: socket.socket) -> bool:
        """Serve one stub; whether this process may serve another."""
        descriptors: list[int] = []
        try:
            request = self._receive(connection, descriptors)
        except Refused as refusal:
            self._log(f"refused: {refusal}")
            self._tell(connection, stub.REFUSED + str(refusal).encode())
        except OSError:
            pass  # it went away, or said nothing
        else:
            return request.serve(connection)
        finally:
            for fd in descriptors:
                os.close(fd)
        return True

    @staticmethod
    def _tell(connection: socket.socket, message: bytes) -> None:
        try:
            connection.send(message)
        except OSError:
            return

    def _receive(self, connection: socket.socket, descriptors: list[int]) -> Call:
        """Read and check what a stub asks for. Raises Refused; OSError where it is gone."""
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SILENCE)
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        space = socket.CMSG_SPACE(4 * _DESCRIPTORS)
        message, ancillary, _, _ = connection.recvmsg(256, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors += struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4])
        if not message:
            raise ConnectionError
        if uid:
            raise Refused(f"user {uid} is not root")
        ident, plugin = message[: delegate.IDENT_LENGTH], message[delegate.IDENT_LENGTH :].decode(errors="replace")
        if ident != self._ident:
            raise Refused("the stub is of another installation: run `podwire cni install`, and start the helper again")
        if plugin not in delegate.PLUGINS or not 3 <= len(descriptors) <= _DESCRIPTORS:
            raise Refused("what the stub asks for is not understood")
        process = peer(descriptors[2], pid, self._me)
        environment = process.environment()
        check_netns(environment.get("CNI_NETNS", ""), descriptors[3] if len(descriptors) > 3 else None)
        return Call(self, plugin, process, environment, (descriptors[0], descriptors[1]))

    def become(self, process: Process, environment: dict[str, str]) -> bool:
        """Take over folder, umask, limits and environment; whether this process can serve others afterwards."""
        process.enter_folder()
        os.umask(process.umask)
        shared = {name: value for name, value in environment.items() if not name.startswith("CNI_")}
        if shared != self._shared:  # programs that plugins start are searched on its PATH and inherit it
            os.environ.clear()
            os.environ.update(shared)
            self._shared = shared
        limits = process.read("limits")
        if limits == self._limits:
            return True
        for line in limits.splitlines():
            number = _LIMITS.get(line[:25].rstrip())
            if number is not None:
                soft, hard = (_limit(word) for word in line[25:].split()[:2])
                resource.setrlimit(number, (soft, hard))
        return False


def _limit(word: bytes) -> int:
    return resource.RLIM_INFINITY if word == b"unlimited" else int(word)


class Call:
    """One stub's call, checked."""

    __slots__ = ("_environment", "_plugin", "_process", "_stderr", "_stdin", "_worker")

    def __init__(
        self, worker: Worker, plugin: str, process: Process, environment: dict[str, str], streams: tuple[int, int]
    ) -> None:
        self._worker = worker
        self._plugin = plugin
        self._process = process
        self._environment = environment
        self._stdin, self._stderr = streams

    def serve(self, connection: socket.socket) -> bool:
        """Do the work and answer; whether this process may serve another."""
        flags = fcntl.fcntl(connection, fcntl.F_GETFL)
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(connection, fcntl.F_SETFL, flags | fcntl.FASYNC)
        try:
            fresh = self._worker.become(self._process, self._environment)
        except (OSError, ValueError) as error:
            fcntl.fcntl(connection, fcntl.F_SETFL, flags)
            connection.send(stub.REFUSED + str(error).encode())
            return False
        try:
            connection.send(stub.BEGUN)
        except OSError:
            return fresh  # it has lost patience, and does the work itself
        module = __import__(f"podwire.cni.plugins.{delegate.PLUGINS[self._plugin]}", fromlist=["PLUGIN"])
        status, text = skel.run(module.PLUGIN, self._environment, self._read, self._note, lasting=True)
        fcntl.fcntl(connection, fcntl.F_SETFL, flags)  # the stub will leave when it has the answer
        self._answer(connection, status, text.encode())
        return fresh

    @staticmethod
    def _answer(connection: socket.socket, status: int, text: bytes) -> None:
        room = stub.LONGEST - 2
        connection.settimeout(None)
        try:
            while len(text) > room:
                connection.send(stub.MORE + text[:room])
                text = text[room:]
            connection.send(stub.DONE + bytes((status,)) + text)
        except OSError:
            return  # killed after its work was done

    def _read(self) -> bytes:
        chunks = []
        while chunk := os.read(self._stdin, 1 << 16):
            chunks.append(chunk)
        return b"".join(chunks)

    def _note(self, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        try:
            while data:
                data = data[os.write(self._stderr, data) :]
        except OSError:
            return
