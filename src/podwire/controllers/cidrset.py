"""Which podCIDRs of one cluster range are taken, by whom, and which comes next. Pure.

A cluster range of 10.244.0.0/16 with node masks of /24 is 256 CIDRs, index 0 to 255. The rules are those of Kubernetes'
CIDR set:

* the next CIDR is the lowest free one at or after the one given last, round the range: a freed CIDR is not given again
  at once;
* a prefix larger than the node mask takes every CIDR it covers, a smaller one the CIDR around it;
* ranges that are not for nodes (the Service range, where it lies inside) are never given.

One thing differs. Kubernetes keeps a bit a CIDR: two nodes that were created with the same podCIDR share one bit, and
when one of them goes, the CIDR is given to a third although the second still uses it. Here every CIDR knows its holders, and
is free when the last of them is gone.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from podwire.errors import PodwireError

if TYPE_CHECKING:
    from collections.abc import Iterable

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Exhausted(PodwireError):
    """Every CIDR of the range has a holder."""

    def __init__(self) -> None:
        super().__init__(
            "CIDR allocation failed",
            answer="there are no remaining CIDRs left to allocate in the accepted range",
            hint="delete nodes, or start with a larger --cluster-cidr or a longer --node-cidr-mask-size",
        )


class OutOfRange(PodwireError):
    """The CIDR is not part of the cluster range."""

    def __init__(self, cidr: str, cluster: Network) -> None:
        super().__init__("", answer=f"cidr {cidr} is out the range of cluster cidr {cluster}")

    def __str__(self) -> str:
        return self.answer


class CidrSet:
    """The CIDRs of `mask` bits in `cluster`. A holder is any string; use a node's uid, names come back."""

    def __init__(self, cluster: Network, mask: int) -> None:
        if not cluster.prefixlen <= mask <= cluster.max_prefixlen:
            raise ValueError(f"mask {mask} does not fit {cluster}")
        self.cluster = cluster
        self.mask = mask
        self.size = 1 << (mask - cluster.prefixlen)
        self._next = 0
        self._holders: dict[int, set[str]] = {}
        self._held: dict[str, set[int]] = {}
        self._reserved: list[range] = []

    def allocate(self, holder: str) -> str:
        """The next free CIDR, now held by `holder`. Raises Exhausted."""
        index = self._free_from(self._next)
        if index is None:
            index = self._free_from(0, self._next)
        if index is None:
            raise Exhausted
        self._next = (index + 1) % self.size
        self._hold(index, holder)
        return self._cidr(index)

    def occupy(self, cidr: str, holder: str) -> frozenset[str]:
        """Count `cidr` as held by `holder`; returns who else holds a part of it. Raises OutOfRange, ValueError."""
        others: set[str] = set()
        for index in self._covered(cidr):
            others |= self._holders.get(index, set())
            self._hold(index, holder)
        return frozenset(others - {holder})

    def release(self, holder: str) -> bool:
        """`holder` is gone; True if that made a CIDR free."""
        freed = False
        for index in self._held.pop(holder, ()):
            holders = self._holders[index]
            holders.discard(holder)
            if not holders:
                del self._holders[index]
                freed = True
        return freed

    def reserve(self, network: Network) -> None:
        """Never give what overlaps `network`; nothing happens if it lies outside."""
        if network.version != self.cluster.version or not network.overlaps(self.cluster):
            return
        first, last = int(network.network_address), int(network.broadcast_address)
        base, shift = int(self.cluster.network_address), self.cluster.max_prefixlen - self.mask
        low, high = max(0, (first - base) >> shift), min(self.size - 1, (last - base) >> shift)
        self._reserved.append(range(low, high + 1))

    def holders(self) -> Iterable[str]:
        """Everybody who holds a CIDR."""
        return list(self._held)

    def _free_from(self, start: int, end: int | None = None) -> int | None:
        index, end = start, self.size if end is None else end
        while index < end:
            taken = next((span for span in self._reserved if index in span), None)
            if taken is not None:
                index = taken.stop
            elif index in self._holders:
                index += 1
            else:
                return index
        return None

    def _covered(self, cidr: str) -> range:
        network = ipaddress.ip_network(cidr, strict=False)
        mine = network.version == self.cluster.version
        if not mine or not network.overlaps(self.cluster):
            raise OutOfRange(cidr, self.cluster)
        if network.prefixlen <= self.cluster.prefixlen:
            return range(self.size)
        offset = int(network.network_address) - int(self.cluster.network_address)
        first = offset >> (self.cluster.max_prefixlen - self.mask)
        return range(first, first + (1 << max(0, self.mask - network.prefixlen)))

    def _hold(self, index: int, holder: str) -> None:
        self._holders.setdefault(index, set()).add(holder)
        self._held.setdefault(holder, set()).add(index)

    def _cidr(self, index: int) -> str:
        shift = self.cluster.max_prefixlen - self.mask
        base = int(self.cluster.network_address) + (index << shift)
        address = ipaddress.IPv4Address(base) if self.cluster.version == 4 else ipaddress.IPv6Address(base)
        return f"{address}/{self.mask}"
