"""Capabilities of a container's process (capabilities(7)): the set that a container gets by default, and no more.

The set is the one that Docker, containerd and CRI-O agree on. A container may give some up (`drop`, also ALL); it gets
none beyond it: what `add` asks for is reported as not honoured by those who read the configuration.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# linux/capability.h
NUMBERS = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
    "SYS_CHROOT": 18,
    "MKNOD": 27,
    "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}

# linux/prctl.h
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3: two 32-bit words a set


def kept(drop: Iterable[str]) -> list[int]:
    """The numbers that stay when `drop` is taken out of the default set; names with or without CAP_, any case."""
    given_up = {name.upper().removeprefix("CAP_") for name in drop}
    if "ALL" in given_up:
        return []
    return [number for name, number in NUMBERS.items() if name not in given_up]


def prctl(option: int, *arguments: int) -> None:
    """prctl(2); OSError if the kernel refuses."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) < 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) was refused")


def limit_bounding(keep: Iterable[int]) -> None:
    """Take everything else out of the bounding set, so that no file can give it back."""
    wanted = set(keep)
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for number in range(last + 1):
        if number not in wanted:
            prctl(PR_CAPBSET_DROP, number)


def limit(keep: Iterable[int]) -> None:
    """Make `keep` the permitted and effective sets, empty the inheritable and ambient ones (capset(2))."""
    import ctypes
    import struct

    bits = sum(1 << number for number in keep)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _VERSION_3, 0)
    sets = struct.pack("=6I", low, low, 0, high, high, 0)  # effective, permitted, inheritable; twice
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset was refused")
