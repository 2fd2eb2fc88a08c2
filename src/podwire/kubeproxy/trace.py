"""Did anybody but us change the packet filter? One cheap number, compared with what our own syncs explain.

nf_tables counts transactions, and an iptables-nft-restore makes one for each table it commits: if the counter moved by just
that much while we wrote, and not at all since, nobody else wrote anything. x_tables has no such counter; the sizes
of all tables stand in for it, which show every flush but not a rule replaced by another.

When the number does not add up, every family is in doubt until somebody has looked at its rules and says `settled`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from podwire.errors import KernelError
from podwire.kernel import netfilter

if TYPE_CHECKING:
    from collections.abc import Callable

_LEGACY_TABLES = ("mangle", "filter", "nat")


class Trace:
    """The number as last explained. `read` returns something comparable; `step` says what it is after n commits of ours."""

    def __init__(self, read: Callable[[], object], step: Callable[[object, int], object] | None = None) -> None:
        self._read = read
        self._step = step
        self._known: object = None
        self._doubted: set[str] = set()
        self._families: set[str] = set()

    def begin(self, family: str) -> None:
        """Before `family` writes."""
        self._families.add(family)
        self._look()

    def end(self, commits: int) -> None:
        """After it wrote, in `commits` transactions."""
        now = self._read()
        if now is None or (self._step is not None and now != self._step(self._known, commits)):
            self._doubted |= self._families
        self._known = now

    def doubted(self, family: str) -> bool:
        """Whether somebody else may have changed something since the family was last settled."""
        self._look()
        return family in self._doubted

    def settled(self, family: str) -> None:
        """Somebody looked: the family's rules are as they should be, or have just been written."""
        self._doubted.discard(family)

    def _look(self) -> None:
        now = self._read()
        if now is None or now != self._known:
            self._doubted |= self._families
            self._known = now


def nft_trace() -> Trace:
    """By the nf_tables generation."""

    def read() -> object:
        with contextlib.suppress(KernelError):
            return netfilter.nft_generation()
        return None

    return Trace(read, lambda known, commits: known + commits if isinstance(known, int) else None)


def legacy_trace() -> Trace:
    """By the sizes of the x_tables tables of both families."""

    def read() -> object:
        with contextlib.suppress(KernelError):
            return [netfilter.legacy_entries(version, table) for version in (4, 6) for table in _LEGACY_TABLES]
        return None

    return Trace(read)
