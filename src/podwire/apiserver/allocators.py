"""Which cluster IP or node port is free.

There is no allocator state: what is taken is what stored objects claim (`Strategy.claims`, a unique index in the
store), asked for inside the write transaction that will take it. So nothing can leak, and 10,000 Services cost a
create a few index look-ups.

Both ranges are used as the real API server uses them (KEP-3070, KEP-3668): a static band at the low end is left
to people who name their address or port; values that nobody names come from above it, from a random place onwards,
and from the band only when the rest is full. Random keeps a value that was just freed from being handed out again while
somebody still caches it.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.apiserver.resource import Claim

CLUSTER_IP = "clusterIP"
NODE_PORT = "nodePort"


class Claims(Protocol):
    """The part of a strategy's Context that is needed here."""

    def holder(self, claim: Claim) -> str | None:
        """Who holds a claim."""


class Refused(Exception):
    """A value that was asked for cannot be had; the text is the API server's."""


class Range:
    """Values 0 … size-1 of a space, spelled by a subclass."""

    def __init__(self, space: str, size: int, band: int) -> None:
        self.space = space
        self.size = size
        self.band = band if band < size else 0

    def text(self, offset: int) -> str:
        """The value as claimed."""
        raise NotImplementedError

    def offset(self, value: str) -> int:
        """Its offset; Refused when it is not in the range."""
        raise NotImplementedError

    def take(self, claims: Claims, value: str, owner: str) -> None:
        """Refuse a value that is out of range or held by another object than `owner` (`namespace/name`)."""
        self.offset(value)
        if claims.holder((self.space, value)) not in {None, owner}:
            raise Refused(self.taken)

    taken = "provided value is already allocated"

    def next(self, claims: Claims, seed: int, reserved: frozenset[str] = frozenset()) -> str:
        """A free value that is not among `reserved` (taken by the same request); Refused when there is none."""
        for offset in self._order(seed):
            value = self.text(offset)
            if value not in reserved and claims.holder((self.space, value)) is None:
                return value
        raise Refused("range is full")

    def _order(self, seed: int) -> Iterator[int]:
        """Above the band from a random place onwards and round, then the band likewise."""
        upper = self.size - self.band
        yield from (self.band + (seed + step) % upper for step in range(upper))
        yield from ((seed + step) % self.band for step in range(self.band))


class AddressRange(Range):
    """The Service addresses of one family: the prefix without its first and, in IPv4, its last address."""

    taken = "provided IP is already allocated"

    def __init__(self, prefix: str) -> None:
        network = ipaddress.ip_network(prefix)
        hosts = network.num_addresses - (2 if network.version == 4 else 1)
        super().__init__(CLUSTER_IP, max(hosts, 0), min(max(16, hosts // 16), 256))
        self._first = int(network.network_address) + 1
        self._network = network
        self.family = f"IPv{network.version}"

    def text(self, offset: int) -> str:
        """An address."""
        return str(type(self._network.network_address)(self._first + offset))

    def offset(self, value: str) -> int:
        """Its place in the prefix."""
        ip = ipaddress.ip_address(value)
        offset = int(ip) - self._first
        if ip.version != self._network.version or not 0 <= offset < self.size:
            raise Refused(f"provided IP is not in the valid range. The range of valid IPs is {self._network}")
        return offset


class PortRange(Range):
    """Node ports. One claim serves every protocol that a Service uses a number for."""

    taken = "provided port is already allocated"

    def __init__(self, ports: range) -> None:
        super().__init__(NODE_PORT, len(ports), min(max(16, len(ports) // 32), 128))
        self._ports = ports

    def text(self, offset: int) -> str:
        """A port number."""
        return str(self._ports[offset])

    def offset(self, value: str) -> int:
        """Its place in the range."""
        if int(value) not in self._ports:
            valid = f"{self._ports[0]}-{self._ports[-1]}"
            raise Refused(f"provided port is not in the valid range. The range of valid ports is {valid}")
        return self._ports.index(int(value))
