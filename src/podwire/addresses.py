"""IP addresses and prefixes as numbers: what node IPAM, host-local and the packet walk count with.

`Ip` is an address, `Prefix` an address with a prefix length, which keeps its host bits (10.244.1.5/24 is the address
of an interface *and* tells its network). Both are immutable, hashable and ordered within a family. Spelling is the kernel's own
(inet_pton, inet_ntop): IPv4 octets have no leading zeros, IPv6 is compressed and in lower case.

This is not `ipaddress` because a CNI plugin pays 1.2 ms for importing that, and uses little of it.
"""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, inet_ntop, inet_pton

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Ip:
    """An address: `value` as an unsigned number of `bits` (32 or 128) bits."""

    __slots__ = ("bits", "value")

    def __init__(self, value: int, bits: int) -> None:
        self.value = value
        self.bits = bits

    @classmethod
    def parse(cls, text: str) -> Ip:
        """The address that `text` spells. Raises ValueError."""
        try:
            if ":" in text:
                return cls(int.from_bytes(inet_pton(AF_INET6, text), "big"), 128)
            return cls(int.from_bytes(inet_pton(AF_INET, text), "big"), 32)
        except (OSError, ValueError):  # ValueError: a NUL byte in it
            raise ValueError(f"invalid IP address: {text}") from None

    @property
    def family(self) -> int:
        """AF_INET or AF_INET6."""
        return AF_INET if self.bits == 32 else AF_INET6

    @property
    def packed(self) -> bytes:
        """Its 4 or 16 bytes in network order."""
        return self.value.to_bytes(self.bits // 8, "big")

    def __str__(self) -> str:
        return inet_ntop(self.family, self.packed)

    def __repr__(self) -> str:
        return f"Ip({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ip) and self.value == other.value and self.bits == other.bits

    def __lt__(self, other: Ip) -> bool:
        return (self.bits, self.value) < (other.bits, other.value)

    def __le__(self, other: Ip) -> bool:
        return (self.bits, self.value) <= (other.bits, other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.bits))

    def __add__(self, offset: int) -> Ip:
        """The address `offset` further on. Raises OverflowError past either end."""
        value = self.value + offset
        if not 0 <= value < 1 << self.bits:
            raise OverflowError(f"{self} {offset:+d} is no IP address")
        return Ip(value, self.bits)


class Prefix:
    """An address `ip` with a prefix `length`; ordered by address, then length."""

    __slots__ = ("ip", "length")

    def __init__(self, ip: Ip, length: int) -> None:
        if not 0 <= length <= ip.bits:
            raise ValueError(f"invalid CIDR address: {ip}/{length}")
        self.ip = ip
        self.length = length

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """The prefix that `text` spells, with or without host bits. Raises ValueError."""
        ip, slash, length = text.partition("/")
        # isdecimal also takes other alphabets' digits and int() reads them; the kernel's tools do not.
        if not slash or not length.isdecimal() or not length.isascii() or len(length) > 3:
            raise ValueError(f"invalid CIDR address: {text}")
        try:
            return cls(Ip.parse(ip), int(length))
        except ValueError:
            raise ValueError(f"invalid CIDR address: {text}") from None

    @property
    def family(self) -> int:
        """AF_INET or AF_INET6."""
        return self.ip.family

    @property
    def host_mask(self) -> int:
        """The bits behind the prefix, all set."""
        return (1 << (self.ip.bits - self.length)) - 1

    @property
    def network(self) -> Ip:
        """The first address: all host bits zero."""
        return Ip(self.ip.value & ~self.host_mask, self.ip.bits)

    @property
    def last(self) -> Ip:
        """The last address: all host bits one (IPv4: the broadcast address)."""
        return Ip(self.ip.value | self.host_mask, self.ip.bits)

    @property
    def canonical(self) -> Prefix:
        """The same network without host bits."""
        return Prefix(self.network, self.length)

    @property
    def broadcast(self) -> str:
        """The IPv4 broadcast address; '' where there is none (/31, /32, IPv6)."""
        return str(self.last) if self.ip.bits == 32 and self.length < 31 else ""

    def contains(self, ip: Ip) -> bool:
        """Whether an address is in the network."""
        return ip.bits == self.ip.bits and (ip.value ^ self.ip.value) >> (self.ip.bits - self.length) == 0

    def covers(self, other: Prefix) -> bool:
        """Whether the other network is this one or a part of it."""
        return other.length >= self.length and self.contains(other.ip)

    def overlaps(self, other: Prefix) -> bool:
        """Whether some address is in both networks: then one covers the other."""
        return self.covers(other) or other.covers(self)

    def count(self, length: int) -> int:
        """How many networks of `length` fit in."""
        return 1 << (length - self.length) if length >= self.length else 0

    def subnet(self, length: int, index: int) -> Prefix:
        """The `index`-th (from 0) network of `length` in this one. Raises IndexError."""
        if not 0 <= index < self.count(length):
            raise IndexError(f"{self.canonical} has no /{length} number {index}")
        return Prefix(self.network + (index << (self.ip.bits - length)), length)

    def subnets(self, length: int) -> Iterator[Prefix]:
        """All networks of `length` in this one, in order."""
        return (self.subnet(length, index) for index in range(self.count(length)))

    def __str__(self) -> str:
        return f"{self.ip}/{self.length}"

    def __repr__(self) -> str:
        return f"Prefix({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prefix) and self.ip == other.ip and self.length == other.length

    def __lt__(self, other: Prefix) -> bool:
        return (self.ip, self.length) < (other.ip, other.length)

    def __le__(self, other: Prefix) -> bool:
        return (self.ip, self.length) <= (other.ip, other.length)

    def __hash__(self) -> int:
        return hash((self.ip, self.length))
