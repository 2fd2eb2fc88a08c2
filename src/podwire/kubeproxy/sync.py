"""What a mode has to offer: bring one family's rules in the kernel to what the state says, and notice what others did to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kubeproxy.settings import Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sync did: `services` were looked at, in `restores` calls of iptables-restore or nft.

    `refused_partial` says that it had to be made full on the way.
    """

    full: bool
    services: int
    restores: int
    seconds: float
    refused_partial: bool = False


class Sync(Protocol):
    """One family's rules in the kernel. Used by one thread, but for the numbers."""

    def sync(self, settings: Settings, touched: Iterable[str], *, full: bool = False) -> Outcome:
        """Make the kernel hold what the state says; `touched` names the Services that changed since the last call.

        `full` asks for everything to be written anew. Raises a PodwireError, and then the next one is full whatever is asked.
        """

    def damaged(self) -> list[str]:
        """What of our rules somebody took away since the last sync; empty if nothing or if it can't be told. Raises KernelError."""

    def rule_counts(self) -> dict[str, int]:
        """How many rules of ours there are by table of iptables; empty in another mode."""

    def ports_without_local_endpoints(self) -> dict[str, int]:
        """Ports whose traffic is dropped here, because its policy is Local and only other nodes have endpoints."""
