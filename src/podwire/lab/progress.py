"""What `podwire up` says while it works: one line a step, with the seconds since it began."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable


class Progress:
    """Prints steps; `clock` and `stream` are the world."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._began = clock()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._clock() - self._began

    def step(self, sentence: str) -> None:
        """One line for something that is done."""
        print(f"{self.seconds:6.2f} s  {sentence}", file=self._stream, flush=True)

    def note(self, sentence: str) -> None:
        """One line that belongs to no step: a warning, a hint."""
        print(f"          {sentence}", file=self._stream, flush=True)
