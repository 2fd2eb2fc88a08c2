"""The resident helper's first process: makes the socket, keeps workers, and ends them.

    podwire cni helper        at a prompt, or as a systemd service; SIGTERM ends it

It has a few workers that live long (podwire.cni.resident.worker). When stubs wait although all workers are busy (one may
wait for seconds for IPv6, or for somebody else's plugin), it makes more, one every few milliseconds; each of these serves one
stub and ends. A worker that dies is replaced. Nothing runs and nothing is polled while no stub comes.

A lock beside the socket says that a helper is running, so that a socket that a killed one left can be told from a live one. Workers
end with their helper, also when it is killed (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import socket
import sys
import time

from podwire.cni import delegate, stub
from podwire.cni.resident.checks import own
from podwire.cni.resident.worker import Worker
from podwire.errors import PodwireError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SOCKET = f"{stub.FOLDER}/{stub.SOCKET}"
_BACKLOG = 4096
_MOST = 256  # workers
_GRACE = 0.005  # seconds that a stub may wait before a worker is made for it
_PR_SET_PDEATHSIG = 1


def main(ident: bytes) -> NoReturn:
    """Be the helper; `ident` is the bundle's. Leaves the process."""
    try:
        helper = Helper(ident)
    except PodwireError as error:
        _say(str(error))
        os._exit(error.exit_status)
    helper.run()
    os._exit(0)


def _say(text: str) -> None:
    sys.stderr.write(f"podwire cni helper: {text}\n")
    sys.stderr.flush()


class Helper:
    """A helper that holds the lock and listens."""

    def __init__(self, ident: bytes) -> None:
        if os.geteuid():
            raise UsageError("starting the CNI helper", answer="it must be root: CNI plugins are")
        _warm_up()
        self._ident = ident
        self._me = own()
        self._workers: set[int] = set()
        self._lasting: set[int] = set()
        self._wanted = min(2 * (os.cpu_count() or 2), 8)  # some of them always wait for the kernel
        try:
            os.makedirs(stub.FOLDER, 0o755, exist_ok=True)
            self._lock = os.open(f"{stub.FOLDER}/cni-helper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._listener = _listen()
        except BlockingIOError:
            raise PodwireError("starting the CNI helper", _SOCKET, "another helper is running") from None
        except OSError as error:
            raise PodwireError("starting the CNI helper", _SOCKET, error.strerror or "") from error

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        wake, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        poller = select.poll()
        poller.register(self._listener, select.POLLIN)
        poller.register(wake, select.POLLIN)
        self._keep()
        _say(f"ready on {_SOCKET}, {self._wanted} workers")
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if wake in ready:
                if {signal.SIGTERM, signal.SIGINT} & set(os.read(wake, 512)):
                    break
                self._reap()
                self._keep()
            else:
                self._relieve()
        self._end()

    def _relieve(self) -> None:
        """Somebody knocks; make a worker for whoever is still waiting a little later, if all workers are asleep over their work.

        Workers that compute, or wait for a lock of the kernel's (D), are helped by patience: one more would slow them down.
        """
        time.sleep(_GRACE)
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        if waiting.poll(0) and len(self._workers) < _MOST and all(_state(pid) in "SZ" for pid in self._workers):
            self._fork(1)

    def _reap(self) -> None:
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._workers.discard(pid)
                self._lasting.discard(pid)
        except ChildProcessError:
            return

    def _keep(self) -> None:
        while len(self._lasting) < self._wanted:
            self._lasting.add(self._fork(0))

    def _fork(self, life: int) -> int:
        """A worker: for so many requests, 0 for as many as is usual."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self._workers.add(pid)
            return pid
        try:
            _die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.SIG_IGN)
            worker = Worker(self._listener, self._ident, own(), _say)
            worker.run(life) if life else worker.run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it must not unwind into the helper's own loop
            _say(f"worker {os.getpid()}: {error!r}")
        os._exit(1)

    def _end(self) -> None:
        """No more stubs; those being served are served to the end."""
        os.unlink(_SOCKET)
        self._listener.close()
        for pid in self._workers:
            os.kill(pid, signal.SIGTERM)
        for pid in list(self._workers):
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


def _listen() -> socket.socket:
    """The socket, root's from the first moment, in the place of one that a killed helper left."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    draft = f"{_SOCKET}.{os.getpid()}"
    before = os.umask(0o177)
    try:
        listener.bind(draft)
    finally:
        os.umask(before)
    listener.listen(_BACKLOG)
    os.rename(draft, _SOCKET)
    return listener


def _state(pid: int) -> str:
    """R, S, D, Z: proc(5)."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "Z"
    try:
        return os.read(fd, 256).rpartition(b")")[2].split()[0].decode()
    finally:
        os.close(fd)


def _warm_up() -> None:
    """Import what calls may need, once for all workers."""
    for module in delegate.PLUGINS.values():
        __import__(f"podwire.cni.plugins.{module}")
    for name in ("namespaces", "netfilter", "spawn"):
        __import__(f"podwire.kernel.{name}")
    __import__("podwire.cni.plugins.masquerade")
    for name in ("ctypes", "json.decoder", "traceback"):
        __import__(name)
    gc.collect()
    gc.freeze()  # what is here stays: a collection in a worker must not touch, and so copy, its pages


def _die_with_parent(parent: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)
