"""Did anybody but us change the packet filter? One cheap number, compared with what our own syncs explain.

nf_tables counts transactions, and an iptables-nft-restore makes one for each table it commits: if the counter moved by just
that much while we wrote, and not at all since, nobody else wrote anything.

x_tables has no such counter. The sizes of all tables stand in for it, which show every flush but not a rule replaced by
another of the same size; a hash over the whole tables shows that too. It takes 2 µs a rule, so above SMALL it is
taken only when nothing else is to do: at 10,000 Services that is 0.8 s once in a sync period, and a replaced rule of the
same size goes unnoticed there if it came between a sync of ours and the next such moment.

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
SMALL = 4 << 20
"""Bytes of x_tables tables whose hash is taken before and after every sync: some 10,000 rules, 20 ms."""


class Trace:
    """The number as last explained. `read` returns something comparable; `step` says what it is after n commits of ours.

    `exact` returns something that differs whenever rules do; it may be slow, and returns None above the size it is given.
    """

    def __init__(
        self,
        read: Callable[[], object],
        step: Callable[[object, int], object] | None = None,
        exact: Callable[[int | None], object] = lambda _limit: None,
    ) -> None:
        self._read = read
        self._step = step
        self._exact = exact
        self._known: object = None
        self._known_exactly: object = None
        self._doubted: set[str] = set()
        self._families: set[str] = set()

    def begin(self, family: str) -> None:
        """Before `family` writes."""
        self._families.add(family)
        self._look(SMALL)

    def end(self, commits: int) -> None:
        """After it wrote, in `commits` transactions."""
        now = self._read()
        if now is None or (self._step is not None and now != self._step(self._known, commits)):
            self._doubted |= self._families
        self._known = now
        self._known_exactly = self._exact(SMALL)

    def doubted(self, family: str) -> bool:
        """Whether somebody else may have changed something since the family was last settled."""
        self._look(None)
        return family in self._doubted

    def settled(self, family: str) -> None:
        """Somebody looked: the family's rules are as they should be, or all of them are about to be written."""
        self._doubted.discard(family)

    def _look(self, limit: int | None) -> None:
        now = self._read()
        if now is None or now != self._known:
            self._doubted |= self._families
            self._known = now
        exactly = self._exact(limit)
        if exactly is not None:
            if self._known_exactly is not None and exactly != self._known_exactly:
                self._doubted |= self._families
            self._known_exactly = exactly


def nft_trace() -> Trace:
    """By the nf_tables generation."""

    def read() -> object:
        with contextlib.suppress(KernelError):
            return netfilter.nft_generation()
        return None

    return Trace(read, lambda known, commits: known + commits if isinstance(known, int) else None)


def legacy_trace() -> Trace:
    """By the sizes of the x_tables tables of both families, and by what is in them."""

    def read() -> object:
        with contextlib.suppress(KernelError):
            return [netfilter.legacy_entries(version, table) for version in (4, 6) for table in _LEGACY_TABLES]
        return None

    def exact(limit: int | None) -> object:
        with contextlib.suppress(KernelError):
            sizes = [netfilter.legacy_entries(version, table) for version in (4, 6) for table in _LEGACY_TABLES]
            if limit is None or sum(size[1] for size in sizes if size is not None) <= limit:
                return [netfilter.legacy_digest(version, table) for version in (4, 6) for table in _LEGACY_TABLES]
        return None

    return Trace(read, exact=exact)
