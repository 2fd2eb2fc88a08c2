"""Kernel settings below /proc/sys (sysctl(8)).

A name is written with dots (`net.ipv4.ip_forward`) or slashes (`net/ipv4/conf/eth0.100/rp_filter`). As in sysctl(8)
the first separator decides which of the two it is, so that an interface name with a dot can be spelled. Network
settings are those of the network namespace the calling thread is in: `/proc/sys/net` follows the reader
(`/proc/thread-self/…` is not needed: the kernel looks at the current task).
"""

from __future__ import annotations

import os

from podwire.errors import KernelError


def path(name: str) -> str:
    """The file of a setting, e.g. /proc/sys/net/ipv4/ip_forward."""
    dot, slash = name.find("."), name.find("/")
    if dot >= 0 and (slash < 0 or dot < slash):
        name = name.translate({ord("."): "/", ord("/"): "."})
    return f"/proc/sys/{name}"


def read(name: str) -> str:
    """The value without its line end. Raises NotFound where the kernel has no such setting."""
    try:
        fd = os.open(path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, 4096).decode().rstrip("\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError.of(error.errno or 0, "reading the sysctl", name) from error


def write(name: str, value: object) -> None:
    """Write a value. Raises NotPermitted for settings that are read-only here, NotFound for unknown ones."""
    try:
        fd = os.open(path(name), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError.of(error.errno or 0, f"writing {value} to the sysctl", name) from error


def ensure(name: str, value: object) -> bool:
    """Write a value unless it is there already; whether it was changed."""
    if read(name) == str(value):
        return False
    write(name, value)
    return True
