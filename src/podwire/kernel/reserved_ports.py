"""net.ipv4.ip_local_reserved_ports: port numbers that the kernel never gives to a client by itself.

A program that binds such a number on purpose still gets it; the setting only takes it out of ip_local_port_range. It counts for
IPv4 and IPv6, TCP, UDP and SCTP, in one network namespace.

The value is a list of numbers and ranges, `80,30000-32767`, which can be longer than what one write takes (a page): a longer
one goes in pieces through one open file, and the kernel adds each piece to the one before (proc_do_large_bitmap).
"""

from __future__ import annotations

import os

from podwire.errors import KernelError
from podwire.kernel import sysctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NAME = "net.ipv4.ip_local_reserved_ports"
_PIECE = 4000  # bytes; a write is cut at PAGE_SIZE - 1


def parse(text: str) -> frozenset[int]:
    """The ports of a list as the kernel prints it. Raises ValueError."""
    found: set[int] = set()
    for part in text.replace("\n", "").split(","):
        if not part.strip():
            continue
        first, dash, last = part.strip().partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high <= 65535:
            raise ValueError(f"{part!r} is no range of ports")
        found.update(range(low, high + 1))
    return frozenset(found)


def spell(ports: Iterable[int]) -> str:
    """The shortest list: neighbours are one range."""
    return ",".join(_ranges(ports))


def _ranges(ports: Iterable[int]) -> list[str]:
    found: list[str] = []
    first = last = -2
    for port in [*sorted(set(ports)), -1]:
        if port != last + 1 or port < 0:
            if first >= 0:
                found.append(str(first) if first == last else f"{first}-{last}")
            first = port
        last = port
    return found


def read() -> frozenset[int]:
    """The ports reserved in this network namespace. Raises KernelError."""
    try:
        with open(sysctl.path(NAME), "rb", buffering=0) as file:
            return parse(file.readall().decode())
    except OSError as error:
        raise KernelError.of(error.errno or 0, "reading the sysctl", NAME) from error


def write(ports: Iterable[int]) -> None:
    """Reserve exactly these. Raises NotPermitted where the setting is read-only, KernelError."""
    pieces, size = [[]], 0  # type: list[list[str]], int
    for text in _ranges(ports):
        if size + len(text) >= _PIECE:
            pieces.append([])
            size = 0
        pieces[-1].append(text)
        size += len(text) + 1
    try:
        fd = os.open(sysctl.path(NAME), os.O_WRONLY | os.O_CLOEXEC)
        try:
            for piece in pieces:
                os.write(fd, ",".join(piece).encode() + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError.of(error.errno or 0, "writing the sysctl", NAME) from error
