"""SIGTERM and SIGINT become an event that everything waits on; a second one ends the process at once.

Python runs signal handlers in the main thread only, and a signal does not always wake that thread: the kernel may hand it
to another one, or it comes just before the main thread goes to sleep in `Event.wait`. It would then be seen at the next
signal, or never; with a few busy threads that is one SIGTERM in a hundred. What always happens is that the interpreter's
C handler, in whichever thread, writes the signal's number into the wakeup descriptor (signal.set_wakeup_fd). So a
thread that only reads that descriptor does the work, and the Python handler does nothing.

Setting the event in a thread of its own has a second reason: a handler that interrupts the main thread inside
`Event.wait` would need the very lock which that thread holds.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def stop_event(numbers: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT)) -> threading.Event:
    """The event that the signals `numbers` set; call it from the main thread, once."""
    stop = threading.Event()
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _noted)
    threading.Thread(target=_read, args=(read_end, numbers, stop), name="signals", daemon=True).start()
    return stop


def _noted(_number: int, _frame: FrameType | None) -> None:
    """A handler has to be there for the interpreter to take the signal at all."""


def _read(fd: int, numbers: tuple[int, ...], stop: threading.Event) -> None:
    while True:
        for number in os.read(fd, 64):
            if number not in numbers:
                continue
            if stop.is_set():
                os._exit(128 + number)
            stop.set()
