"""host-local's ranges: which addresses may be given out, and in which order they are tried.

A *range* is a stretch of one subnet; a *range set* is a list of ranges of one family, and an attachment gets one address of
every range set. Filled in where not said: gateway .1, start .1, end the last address but the broadcast one. Addresses are
tried round robin from the one after the last that was reserved, so that an address just freed is the last to be used again;
gateways are left out.
"""

from __future__ import annotations

from podwire.addresses import Ip, Prefix
from podwire.cni.spec.text import Fields, TextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Range:
    """A stretch of addresses, both ends included."""

    __slots__ = ("end", "gateway", "start", "subnet")

    def __init__(self, subnet: Prefix, start: Ip, end: Ip, gateway: Ip) -> None:
        self.subnet = subnet
        self.start = start
        self.end = end
        self.gateway = gateway

    def __contains__(self, ip: Ip) -> bool:
        return self.subnet.contains(ip) and self.start <= ip <= self.end

    def overlaps(self, other: Range) -> bool:
        """Whether some address is in both."""
        return self.start in other or self.end in other or other.start in self or other.end in self

    def __str__(self) -> str:
        return f"{self.start}-{self.end}"


class RangeSet:
    """Ranges of one family; an attachment gets one address of it."""

    __slots__ = ("ranges",)

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges = ranges

    @property
    def bits(self) -> int:
        """32 or 128."""
        return self.ranges[0].start.bits

    def range_of(self, ip: Ip) -> Range | None:
        """The range that has this address."""
        return next((one for one in self.ranges if ip in one), None)

    def overlaps(self, other: RangeSet) -> bool:
        """Whether some address is in both."""
        return any(mine.overlaps(theirs) for mine in self.ranges for theirs in other.ranges)

    def candidates(self, last: Ip | None) -> Iterator[tuple[Ip, Range]]:
        """Every address that may be given out, each once, beginning after `last` (None or foreign: at the start)."""
        index = next((i for i, one in enumerate(self.ranges) if last is not None and last in one), None)
        if index is None or last is None:
            index, ip = 0, self.ranges[0].start
            first: Ip | None = ip
            if ip != self.ranges[0].gateway:
                yield ip, self.ranges[0]
        else:
            ip, first = last, None
        while True:
            if ip == self.ranges[index].end:
                index = (index + 1) % len(self.ranges)
                ip = self.ranges[index].start
            else:
                ip = ip + 1
            if first is None:
                first = ip
            elif ip == first:
                return
            if ip != self.ranges[index].gateway:
                yield ip, self.ranges[index]

    def __str__(self) -> str:
        return ",".join(str(one) for one in self.ranges)


def parse_ip(text: str) -> Ip | None:
    """An address; '' is none. Raises TextError."""
    if not text:
        return None
    try:
        return Ip.parse(text)
    except ValueError as error:
        raise TextError(str(error)) from None


def parse_range(fields: Fields) -> Range:
    """Read a range and fill it in. Raises ValueError in the reference plugin's words."""
    text = fields.text("subnet")
    if not text:
        raise ValueError("IP <nil> not v4 nor v6")
    try:
        subnet = Prefix.parse(text)
    except ValueError as error:
        raise TextError(str(error)) from None
    if subnet.length > subnet.ip.bits - 2:
        raise ValueError(f"Network {subnet} too small to allocate from")
    if subnet.ip != subnet.network:
        raise ValueError(
            "Network has host bits set. For a subnet mask of length "
            f"{subnet.length} the network address is {subnet.network}"
        )
    gateway = parse_ip(fields.text("gateway")) or subnet.network + 1
    start = parse_ip(fields.text("rangeStart")) or subnet.network + 1
    said_end = parse_ip(fields.text("rangeEnd"))
    end = said_end or subnet.last + (-1 if subnet.ip.bits == 32 else 0)
    if not subnet.contains(start) or (said_end and start > said_end):
        raise ValueError(f"RangeStart {start} not in network {subnet}")
    if not subnet.contains(end) or end < start:
        raise ValueError(f"RangeEnd {end} not in network {subnet}")
    return Range(subnet, start, end, gateway)


def parse_range_set(value: object) -> RangeSet:
    """Read a range set: same family, no overlaps. Raises ValueError."""
    if value is not None and not isinstance(value, list):
        raise TextError(
            "json: cannot unmarshal value into Go struct field IPAMConfig.ranges of type allocator.RangeSet"
        )
    ranges = [parse_range(Fields(item, "Range")) for item in value or ()]
    if not ranges:
        raise ValueError("empty range set")
    if any(one.start.bits != ranges[0].start.bits for one in ranges):
        raise ValueError("mixed address families")
    for index, one in enumerate(ranges):
        for other in ranges[index + 1 :]:
            if one.overlaps(other):
                raise ValueError(f"subnets {one} and {other} overlap")
    return RangeSet(ranges)
