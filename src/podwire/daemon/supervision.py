"""A thread that dies ends the daemon, loudly.

A daemon with a dead reflector looks healthy and is deaf. So an exception that reaches the top of any thread is logged
with its traceback, sets the stop event, and makes the exit status 1; whoever started the daemon starts it again. Nothing
has to be registered: the hook sees every thread of the process.
"""

from __future__ import annotations

import logging
import threading

log = logging.getLogger("podwire.daemon")


class Supervisor:
    """Watches all threads; `status` is what the process should exit with."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._previous = threading.excepthook
        self.failed = ""
        threading.excepthook = self._died

    @property
    def status(self) -> int:
        """0, or 1 after a thread died."""
        return 1 if self.failed else 0

    def close(self) -> None:
        """Stop watching."""
        threading.excepthook = self._previous

    def _died(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        name = args.thread.name if args.thread else "unknown"
        self.failed = self.failed or name
        value = args.exc_value or args.exc_type()
        log.critical("thread died, ending", exc_info=value, extra={"kv": {"thread": name, "error": repr(value)}})
        self._stop.set()
