"""One thread that waits on all the sockets of kube-proxy which hold ports: a node may have thousands of NodePorts.

The loop's sockets are only touched in its thread. Others hand it functions with `call`, which waits for the result, so
that what a function raises comes out where it was asked for. With nothing to do the thread sleeps in epoll.
"""

from __future__ import annotations

import logging
import os
import selectors
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

T = TypeVar("T")
log = logging.getLogger("podwire.kubeproxy")


class SocketLoop:
    """Start it, `call` it, stop it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._deadlines: dict[socket.socket, tuple[float, Callable[[], None]]] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="sockets", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; the sockets are their owners' to close."""
        self._stopped = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the loop's thread and return what it returns."""
        future: Future[T] = Future()
        self._calls.append((future, function))
        os.write(self._wake_write, b"x")
        return future.result()

    # In the loop's thread only:

    def watch(
        self, sock: socket.socket, ready: Callable[[], None], *, write: bool = False, timeout: float | None = None
    ) -> None:
        """Call `ready` whenever the socket can be read (or written), and once if nothing happened for `timeout` seconds."""
        events = selectors.EVENT_WRITE if write else selectors.EVENT_READ
        if sock in self._selector.get_map():
            self._selector.modify(sock, events, ready)
        else:
            self._selector.register(sock, events, ready)
        if timeout is not None:
            self._deadlines[sock] = (time.monotonic() + timeout, ready)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching it."""
        self._deadlines.pop(sock, None)
        if sock in self._selector.get_map():
            self._selector.unregister(sock)

    def _run(self) -> None:
        while not self._stopped:
            pause = None
            if self._deadlines:
                pause = max(0.0, min(when for when, _ in self._deadlines.values()) - time.monotonic())
            for key, _ in self._selector.select(pause):
                if key.data is None:
                    os.read(self._wake_read, 4096)
                    self._run_calls()
                else:
                    self._guarded(key.data)
            now = time.monotonic()
            for sock, (when, ready) in list(self._deadlines.items()):
                if when <= now:
                    self._deadlines.pop(sock, None)
                    self._guarded(ready)

    def _run_calls(self) -> None:
        while self._calls:
            future, function = self._calls.popleft()
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - it is the caller's, and is raised there
                future.set_exception(error)

    @staticmethod
    def _guarded(ready: Callable[[], None]) -> None:
        try:
            ready()
        except Exception:  # one socket's trouble must not end the holding of all the others
            log.exception("a held port's socket failed")
