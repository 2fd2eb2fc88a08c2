"""The sync of one family in nftables mode: what the kernel last accepted, and how to get from there to what is wanted.

What the kernel holds is remembered by owner (each Service, and the base), so a sync is the difference between two records: of
the touched Services, or of all of them and the base when a setting changed. Nothing is read from the kernel for it. Only where
nothing is known (the start, a failure, somebody's damage) the table is made anew, in one transaction as well, and the clients
of session affinity are taken over from the old one.

What is remembered advances only after the kernel said yes. A difference that is refused is followed at once by a whole table.
One kind of refusal is expected: a kernel that will not remove a chain in the transaction that takes its last reference away.
It is asked once, and then gets removals one transaction later; until then such a chain is empty.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Protocol

from podwire.errors import KernelError
from podwire.kubeproxy import nftables_plan as plan
from podwire.kubeproxy.nftables import AFFINITY_PREFIX, Choices, translate
from podwire.kubeproxy.nftables_base import TABLE, base
from podwire.kubeproxy.nftables_verify import damage
from podwire.kubeproxy.sync import Outcome
from podwire.kubeproxy.view import Handling
from podwire.rules.nft.run import NftRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from podwire.kubeproxy.settings import Settings
    from podwire.kubeproxy.state import State
    from podwire.kubeproxy.trace import Trace
    from podwire.kubeproxy.view import PortView

log = logging.getLogger("podwire.kubeproxy")

MOST_MAPS = 1000
"""With more ports than this that have a choice, choices are written as rules."""

BASE = ""
"""The owner of what belongs to no Service."""

_NO_LEFTOVERS: plan.Leftovers = (frozenset(), frozenset())


class Door(Protocol):
    """What a sync needs of nftables: `podwire.rules.nft.run.Nft` is the real one."""

    def apply(self, text: str) -> None:
        """Apply a transaction. Raises NftRefused."""

    def chain_uses(self, table: str) -> dict[str, int] | None:
        """How many rules and references each chain of the table has; None without the table."""

    def element_count(self, table: str, name: str) -> int:
        """How many elements a set has; 0 if there is none."""

    def timed_elements(self, table: str, prefix: str) -> dict[str, list[tuple[str, int]]]:
        """The elements of all sets whose names begin so, with the milliseconds they have left."""


class NftablesSync:
    """One family's table in the kernel. Used by one thread."""

    def __init__(self, state: State, door: Door, trace: Trace, most_maps: int = MOST_MAPS) -> None:
        self._state = state
        self._door = door
        self._trace = trace
        self._most_maps = most_maps
        self._settings: Settings | None = None
        self._owners: dict[str, plan.Record] | None = None  # None: not known
        self._claims = plan.Claims()
        self._choices: dict[str, int] = {}  # ports with a choice, by Service
        self._dropped: dict[str, tuple[int, int]] = {}  # ports without local endpoints (internal, external), by Service
        self._leftovers = _NO_LEFTOVERS
        self._removes_at_once = True
        self._commits = 0

    def sync(self, settings: Settings, touched: Iterable[str], *, full: bool = False) -> Outcome:
        """See `sync.Sync`. Raises NftRefused, KernelError or MissingCapability, and then knows nothing any more."""
        began = time.monotonic()
        self._commits = 0
        known = self._owners
        names = sorted(touched)
        refused = False
        family = settings.family.name
        self._trace.begin(family)
        if known is not None and not full:
            if settings != self._settings:
                names = sorted(known.keys() - {BASE} | set(self._state.services()))
            try:
                self._partial(known, settings, names)
            except NftRefused as error:
                log.warning("partial sync refused, writing everything", extra={"kv": {"error": str(error)}})
                refused = True
        full = full or known is None or refused
        if full:
            self._owners = None
            # Before it is written: what others do while we write, or right after it, is to be looked at.
            self._trace.settled(family)
            names = self._state.services()
            self._full(settings, names)
        self._settings = settings
        self._trace.end(self._commits)
        return Outcome(full, len(names), self._commits, time.monotonic() - began, refused)

    def _apply(self, text: str) -> None:
        if text:
            self._door.apply(text)
            self._commits += 1

    # --- everything

    def _full(self, settings: Settings, names: list[str]) -> None:
        views = {name: self._state.views(name, settings.zone) for name in names}
        choices = {name: _choices(found) for name, found in views.items()}
        how = self._how(sum(choices.values()))
        owners: dict[str, plan.Record] = {}
        claims = plan.Claims()
        dropped = {}

        def owned() -> Iterator[plan.Owned]:
            for name in (BASE, *names):
                found = views.pop(name, [])
                one = plan.own([base(settings)] if name == BASE else [translate(view, settings, how) for view in found])
                owners[name] = one.record
                plan.move(claims, name, plan.NOTHING, one.record)
                dropped[name] = _dropped(found)
                yield one

        change = plan.full(settings.family, owned(), claims, self._clients())
        self._apply(change.text())
        self._owners, self._claims, self._choices, self._dropped = owners, claims, choices, dropped
        self._leftovers = _NO_LEFTOVERS
        self._warn_of_conflicts()

    def _clients(self) -> plan.Timed:
        """Which client is led to which endpoint by session affinity, in the table that is there."""
        try:
            return self._door.timed_elements(TABLE, AFFINITY_PREFIX)
        except KernelError as error:
            log.warning("session affinity begins anew", extra={"kv": {"error": str(error)}})
            return {}

    def _how(self, choices: int) -> Choices:
        return Choices.MAPS if choices <= self._most_maps else Choices.RULES

    def _warn_of_conflicts(self) -> None:
        for owner, element in self._claims.refused():
            fields = {"service": owner, "frontend": element.key}
            log.warning("another Service has this frontend already, left out", extra={"kv": fields})

    # --- what differs

    def _partial(self, known: dict[str, plan.Record], settings: Settings, names: list[str]) -> None:
        views = {name: self._state.views(name, settings.zone) for name in names}
        choices = {name: _choices(found) for name, found in views.items()}
        others = sum(self._choices.values()) - sum(self._choices.get(name, 0) for name in names)
        how = self._how(others + sum(choices.values()))
        after = {name: plan.own(translate(view, settings, how) for view in found) for name, found in views.items()}
        if settings != self._settings:
            after[BASE] = plan.own([base(settings)])
        before = {name: known.get(name, plan.NOTHING) for name in after}
        self._write(settings, before, after)
        for name, one in after.items():
            known[name] = one.record
            self._dropped[name] = _dropped(views.get(name, ()))
            self._choices[name] = choices.get(name, 0)
            if name != BASE and not views[name]:
                del known[name], self._dropped[name], self._choices[name]

    def _write(self, settings: Settings, before: dict[str, plan.Record], after: dict[str, plan.Owned]) -> None:
        family, leftovers = settings.family, self._leftovers
        change, left = plan.partial(family, before, after, self._claims, leftovers, remove=self._removes_at_once)
        try:
            self._apply(change.text())
        except NftRefused as error:
            if not self._removes_at_once or not error.line.startswith(("delete chain", "delete set")):
                raise
            log.info("the kernel removes chains only one transaction later", extra={"kv": {"refused": error.line}})
            self._removes_at_once = False
            for name, one in after.items():
                plan.move(self._claims, name, one.record, before[name])
            change, left = plan.partial(family, before, after, self._claims, leftovers, remove=False)
            self._apply(change.text())
        self._leftovers = left
        if any(one.record.elements for one in after.values()):
            self._warn_of_conflicts()

    # --- what others did

    def damaged(self) -> list[str]:
        """See `sync.Sync`. To be called when the state holds nothing that was not synced."""
        settings = self._settings
        if settings is None or self._owners is None or not self._trace.doubted(settings.family.name):
            return []
        found = damage(self._owners.values(), self._claims.elements(), self._door)
        if not found:
            self._trace.settled(settings.family.name)
        return found

    # --- numbers

    def rule_counts(self) -> dict[str, int]:
        """None: they are of iptables."""
        return {}

    def ports_without_local_endpoints(self) -> dict[str, int]:
        """See `sync.Sync`."""
        counts = list(self._dropped.values())  # a copy: asked from the metrics' thread
        return {"internal": sum(pair[0] for pair in counts), "external": sum(pair[1] for pair in counts)}


def _choices(views: Iterable[PortView]) -> int:
    return sum(len(view.reachable) > 1 for view in views)


def _dropped(views: Iterable[PortView]) -> tuple[int, int]:
    internal = external = 0
    for view in views:
        internal += view.internal is Handling.DROP
        external += view.port.externally_accessible and view.external is Handling.DROP
    return internal, external
