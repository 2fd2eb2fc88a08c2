"""Who died: one thread that waits on the pidfds (pidfd_open(2)) of all containers at once.

A pidfd becomes readable when its process ends, whether or not it is our child, so containers that an earlier server
started are watched in the same way. A child has to be waited for as well, or it stays a zombie; for others that is the
business of whoever is their parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("podwire.cri")


class Watcher:
    """Calls `on_exit(container id)` from its own thread, once for each process given to `add`."""

    def __init__(self, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, str] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def add(self, container: str, pidfd: int) -> None:
        """Watch a process; the descriptor is the watcher's from now on."""
        self._watched[pidfd] = container
        self._poll.register(pidfd, select.EPOLLIN)

    def stop(self) -> None:
        """End the thread; the processes go on."""
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for fd in (*self._watched, self._wake):
            os.close(fd)
        self._watched.clear()
        self._poll.close()

    def _run(self) -> None:
        while not self._stopping:
            for fd, _ in self._poll.poll():
                if fd != self._wake:
                    self._ended(fd)

    def _ended(self, fd: int) -> None:
        container = self._watched.pop(fd)
        self._poll.unregister(fd)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
        os.close(fd)
        try:
            self._on_exit(container)
        except Exception:  # a full disk while writing the record must not leave the others unwatched
            log.exception("the end of a container could not be recorded", extra={"kv": {"container": container}})
