"""Enough of Redis's protocol for a vote: RESP2 (https://redis.io/docs/latest/develop/reference/protocol-spec/).

A command is an array of bulk strings, `*2 $3 GET $4 Cats`, each part ended by CR LF. A reply says by its first byte what
it is: `+` a simple string, `-` an error, `:` an integer, `$` a bulk string (-1: nil), `*` an array.
"""

from __future__ import annotations

import socket
from typing import IO, Self, TypeAlias

Reply: TypeAlias = "bytes | int | list[Reply] | None"

MOST = 1 << 20
"""Longest string or array that is read: a server that promises more is not ours."""


class RedisError(Exception):
    """Redis cannot be reached, does not answer in time, or refused the command."""


def encode(*words: str | bytes | int) -> bytes:
    """One command."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def decode(stream: IO[bytes]) -> Reply:
    """One reply. Raises RedisError, also for the reply that is an error."""
    line = stream.readline(MOST)
    if not line.endswith(b"\r\n"):
        raise RedisError("Redis closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return rest
    if kind == b"-":
        raise RedisError(f"Redis answered: {rest.decode(errors='replace')}")
    if kind not in (b":", b"$", b"*"):
        raise RedisError(f"this is not Redis: {line[:40]!r}")
    try:
        number = int(rest)
    except ValueError:
        raise RedisError(f"this is not Redis: {line[:40]!r}") from None
    if kind == b":":
        return number
    if number < 0:
        return None
    if number > MOST:
        raise RedisError(f"the answer is too long: {number}")
    if kind == b"*":
        return [decode(stream) for _ in range(number)]
    data = stream.read(number + 2)
    if len(data) != number + 2:
        raise RedisError("Redis closed the connection")
    return data[:-2]


class Redis:
    """One connection, for one thread."""

    def __init__(self, host: str, port: int, timeout: float = 2.0) -> None:
        try:
            self._sock = socket.create_connection((host, port), timeout)
        except OSError as error:
            raise RedisError(f"no connection to {host}:{port}: {error.strerror or error}") from error
        self._stream = self._sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._sock.close()

    def call(self, *words: str | bytes | int) -> Reply:
        """Send one command and wait for its reply."""
        try:
            self._sock.sendall(encode(*words))
            return decode(self._stream)
        except OSError as error:
            raise RedisError(f"no answer from Redis: {error.strerror or error}") from error

    def get(self, key: str) -> int:
        """The number kept under a key; 0 if there is none."""
        reply = self.call("GET", key)
        try:
            return int(reply) if isinstance(reply, bytes) else 0
        except ValueError:
            raise RedisError(f"the value of {key} is no number") from None

    def incr(self, key: str) -> int:
        """Add one, and return what it is now."""
        reply = self.call("INCR", key)
        return reply if isinstance(reply, int) else 0

    def set(self, key: str, value: int) -> None:
        """Set the number kept under a key."""
        self.call("SET", key, value)
