"""Reading a component's log."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def read(path: str, *, tail: int = -1, follow: bool = False, pause: float = 0.25) -> Iterator[str]:
    """The lines of a log; with `follow` it goes on until interrupted."""
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        yield from file if tail < 0 else deque(file, maxlen=tail)
        while follow:
            line = file.readline()
            if line:
                yield line
            else:
                time.sleep(pause)
