"""The sets of `ipset save`, and whether a packet is in one (ipset(8)): hash:ip, hash:net, hash:ip,port and the like, list:set.

A set of another kind, or an entry that cannot be read, makes the answer None.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from podwire.addresses import Ip, Prefix

if TYPE_CHECKING:
    from podwire.explain.packet import Packet

_PORT = re.compile(r"^(?:(\w+):)?(\d+)(?:-(\d+))?$")


class IpSet(NamedTuple):
    """A set: its type's parts ("ip", "port", "net", …) and entries with whether they exclude (nomatch)."""

    parts: tuple[str, ...]
    entries: list[tuple[tuple[str, ...], bool]]


class IpSets:
    """All sets by name."""

    __slots__ = ("sets",)

    def __init__(self, sets: dict[str, IpSet]) -> None:
        self.sets = sets

    def holds(self, name: str, sides: tuple[str, ...], packet: Packet) -> bool | None:
        """Whether the packet's sides are in the set. The kernel gives no match for a set with more parts than sides."""
        found = self.sets.get(name)
        if found is None:
            return None
        if found.parts == ("set",):
            answers = [self.holds(entry[0], sides, packet) for entry, _ in found.entries]
            return True if True in answers else None if None in answers else False
        if len(sides) < len(found.parts):
            return False
        best: tuple[int, bool] | None = None
        for entry, excludes in found.entries:
            length = _fits(entry, found.parts, sides, packet)
            if length is None:
                return None
            if length >= 0 and (best is None or length > best[0]):
                best = (length, excludes)
        return best is not None and not best[1]


def _fits(entry: tuple[str, ...], parts: tuple[str, ...], sides: tuple[str, ...], packet: Packet) -> int | None:
    """How many prefix bits an entry fits a packet with; -1: not at all; None: cannot be told."""
    if len(entry) != len(parts):
        return None
    total = 0
    for value, part, side in zip(entry, parts, sides, strict=False):
        source = side == "src"
        if part in ("ip", "net"):
            length = _address(value, packet.src if source else packet.dst)
        elif part == "port":
            length = _port(value, packet.protocol, packet.sport if source else packet.dport)
        elif part == "mark":
            length = 0 if value.startswith("0x") and int(value, 16) == packet.mark else -1
        elif part == "iface":
            length = 0 if value == (packet.iif if source else packet.oif) else -1
        else:
            return None
        if length is None or length < 0:
            return length
        total += length
    return total


def _address(value: str, ip: Ip) -> int | None:
    first, dash, last = value.partition("-")
    try:
        if dash:
            return ip.bits if Ip.parse(first) <= ip <= Ip.parse(last) else -1
        prefix = Prefix.parse(value if "/" in value else f"{value}/{128 if ':' in value else 32}")
    except ValueError:
        return None
    return prefix.length if prefix.contains(ip) else -1


def _port(value: str, protocol: str, port: int | None) -> int | None:
    found = _PORT.match(value)
    if found is None or port is None:
        return None
    if found[1] and found[1] != protocol:
        return -1
    return 0 if int(found[2]) <= port <= int(found[3] or found[2]) else -1


def read_ipsets(text: str) -> IpSets:
    """`ipset save` (`create NAME TYPE …`, `add NAME ENTRY …`). Lines that are neither are skipped."""
    sets: dict[str, IpSet] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[0] == "create":
            parts = words[2].partition(":")[2].split(",")
            sets[words[1]] = IpSet(tuple(parts), [])
        elif len(words) >= 3 and words[0] == "add" and words[1] in sets:
            sets[words[1]].entries.append((tuple(words[2].split(",")), "nomatch" in words[3:]))
    return IpSets(sets)
