"""The log file of a container in CRI's format, which kubelet, crictl and log collectors read.

    2026-02-09T18:00:00.123456789Z stdout F a whole line
    2026-02-09T18:00:00.123456789Z stderr P a piece of a line that was longer than 16 KiB, or unfinished at the end

(kubernetes/design-proposals, "CRI: Dockershim log format"; `F` full, `P` partial). A time is that of the read. Slim: this
runs in the process of every container.
"""

from __future__ import annotations

import os
import time

MAX_LINE = 16384  # containerd's limit for one entry


class Writer:
    """Turns the bytes of the two streams into entries of one file.

    The folder is held open, not the path, so that `reopen` works after the process has changed its root.
    """

    __slots__ = ("_fd", "_folder", "_name", "_rest")

    def __init__(self, path: str) -> None:
        self._rest = {"stdout": b"", "stderr": b""}
        self._folder = -1
        self._name = os.path.basename(path)
        if path:
            self._folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._fd = self._open()
        else:
            self._fd = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self._name, flags, 0o640, dir_fd=self._folder)

    def reopen(self) -> None:
        """Go on in a new file of the same name: somebody has renamed the old one."""
        if self._folder >= 0:
            old, self._fd = self._fd, self._open()
            os.close(old)

    def feed(self, stream: str, data: bytes) -> None:
        """Write what is complete in `data`, keep the rest."""
        lines = (self._rest[stream] + data).split(b"\n")
        self._rest[stream] = lines.pop()
        entries = [piece for line in lines for piece in _pieces(stream, line)]
        while len(self._rest[stream]) >= MAX_LINE:
            entries.append(_entry(stream, b"P", self._rest[stream][:MAX_LINE]))
            self._rest[stream] = self._rest[stream][MAX_LINE:]
        self._write(b"".join(entries))

    def line(self, stream: str, text: str) -> None:
        """Write one line of our own."""
        self.feed(stream, text.encode() + b"\n")

    def end(self) -> None:
        """Write what is left without a line end."""
        for stream, rest in self._rest.items():
            if rest:
                self._write(_entry(stream, b"P", rest))
            self._rest[stream] = b""

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError:  # a full disk must not stop the container, as it would not stop a real one
                return


def _pieces(stream: str, line: bytes) -> list[bytes]:
    pieces = []
    while len(line) > MAX_LINE:
        pieces.append(_entry(stream, b"P", line[:MAX_LINE]))
        line = line[MAX_LINE:]
    pieces.append(_entry(stream, b"F", line))
    return pieces


def _entry(stream: str, tag: bytes, text: bytes) -> bytes:
    return f"{timestamp(time.time_ns())} {stream} ".encode() + tag + b" " + text + b"\n"


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 in UTC with nine digits."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"
