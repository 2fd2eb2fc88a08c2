"""SIGTERM and SIGINT become an event that everything waits on; a second one ends the process at once.

The handler runs in the main thread between two bytecodes, possibly while that thread holds the very lock that
`Event.set` needs (it does inside `Event.wait`). So the handler does not set the event itself, a thread started for it
does.
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
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        threading.Thread(target=stop.set, name="stop", daemon=True).start()

    for number in numbers:
        signal.signal(number, handle)
    return stop
