"""The sync of one family in iptables mode: what the kernel last accepted, and how to get from there to what is wanted.

`sync` is full when it is asked to be, when a setting changed, or when nothing is known for certain (the start, a
failure); else it is partial. What is remembered advances only after the kernel said yes. A partial sync that is
refused is followed at once by a full one: the chains are not what was remembered (somebody flushed them), and reading
what is there heals that. A full one that is refused leaves the old rules whole, is raised, and the next is full again.

`damaged` finds out what others did to our rules, without reading anything as long as `trace` says that nobody did.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.errors import CommandFailed
from podwire.kubeproxy import iptables_plan as plan
from podwire.kubeproxy.iptables import translate
from podwire.kubeproxy.iptables_base import base_rules, localhost_guard, node_port_rules
from podwire.kubeproxy.iptables_verify import Expected, damage
from podwire.kubeproxy.layout import read_layout
from podwire.kubeproxy.sync import Outcome
from podwire.kubeproxy.view import Handling
from podwire.rules.iptables.run import RestoreRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from podwire.kubeproxy.layout import Layout
    from podwire.kubeproxy.settings import Settings
    from podwire.kubeproxy.state import State
    from podwire.kubeproxy.trace import Trace
    from podwire.kubeproxy.view import PortView
    from podwire.rules.iptables.run import Iptables

log = logging.getLogger("podwire.kubeproxy")

LARGE_CLUSTER_ENDPOINTS = 1000
"""With more endpoints than this over all ports the comments of endpoint rules are left out (pkg/proxy/iptables)."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What is remembered of one port."""

    record: plan.PortRecord
    endpoints: int
    internal_dropped: bool
    external_dropped: bool


_Services = dict[str, list[_Served]]


class IptablesSync:
    """One family's rules in the kernel. Used by one thread."""

    def __init__(self, state: State, door: Iptables, trace: Trace) -> None:
        self._state = state
        self._door = door
        self._trace = trace
        self._settings: Settings | None = None
        self._services: _Services | None = None  # None: not known
        self._endpoints = 0
        self._commits = 0
        self._restores = 0
        self._altered: list[str] = []  # what was found altered, and written anew

    def sync(self, settings: Settings, touched: Iterable[str], *, full: bool = False) -> Outcome:
        """Make the kernel hold what the state says; `touched` names the Services that changed since the last call.

        Raises RestoreRefused, CommandFailed, KernelError or MissingCapability, and then knows nothing any more.
        """
        began = time.monotonic()
        self._commits = self._restores = 0
        names = sorted(touched)
        full = full or self._services is None or settings != self._settings
        refused = False
        if not full:
            self._trace.begin(settings.family.name)
            try:
                self._partial(settings, names)
            except (RestoreRefused, CommandFailed) as error:
                log.warning("partial sync refused, writing everything", extra={"kv": {"error": str(error)}})
                full = refused = True
        if full:
            self._services, self._settings = None, None
            names = self._state.services()
            self._full(settings, names)
            self._settings = settings
        self._trace.end(self._commits)
        return Outcome(full, len(names), self._restores, time.monotonic() - began, refused)

    def _restore(self, text: str) -> None:
        self._restores += 1
        self._commits += text.count("\nCOMMIT\n")
        self._door.restore(text)

    def _restore_all(self, texts: Iterable[str]) -> None:
        """One after the other; the next text is worked out while the kernel's program is at the one before."""
        with ThreadPoolExecutor(1, "restore") as worker:
            running: Future[None] | None = None
            for text in texts:
                if running is not None:
                    running.result()
                running = worker.submit(self._restore, text)
            if running is not None:
                running.result()

    def _full(self, settings: Settings, names: list[str]) -> None:
        layout = read_layout(self._door, settings.family.version)
        self._trace.begin(settings.family.name)
        # Before it is written: what others do while we write, or right after it, is to be looked at.
        self._trace.settled(settings.family.name)
        try:
            self._write_all(settings, names, layout, remove=True)
        except RestoreRefused as error:
            if not plan.leftovers(layout):
                raise
            # Perhaps a rule of somebody else's leads to a chain that nobody of ours needs; then it must stay, empty.
            log.warning("refused, trying without removing old chains", extra={"kv": {"error": str(error)}})
            self._write_all(settings, names, layout, remove=False)

    def _write_all(self, settings: Settings, names: list[str], layout: Layout, *, remove: bool) -> None:
        views = {name: self._state.views(name, settings.zone) for name in names}
        endpoints = sum(view.total for found in views.values() for view in found)
        services: _Services = {name: [] for name in names}

        def ports() -> Iterator[tuple[plan.PortRecord, plan.Spelled]]:
            for name in names:
                for view in views.pop(name):
                    record, chains = _spell(view, settings, endpoints)
                    services[name].append(_served(record, view))
                    yield record, chains

        batch = plan.BATCH if self._door.backend == "nf_tables" else None
        self._restore_all(plan.full(ports(), settings, layout, batch, remove=remove))
        self._services, self._endpoints = services, endpoints

    def _partial(self, settings: Settings, names: list[str]) -> None:
        known = self._services
        assert known is not None
        views = {name: self._state.views(name, settings.zone) for name in names}
        old = [port for name in names for port in known.get(name, ())]
        endpoints = self._endpoints - sum(port.endpoints for port in old)
        endpoints += sum(view.total for found in views.values() for view in found)
        after: list[tuple[plan.PortRecord, plan.Spelled]] = []
        services: _Services = {}
        for name, found in views.items():
            spelled = [_spell(view, settings, endpoints) for view in found]
            after += spelled
            services[name] = [_served(record, view) for (record, _), view in zip(spelled, found, strict=True)]
        text = plan.partial([port.record for port in old], after)
        if text:
            self._restore(text)
        for name, ports in services.items():
            if ports:
                known[name] = ports
            else:
                known.pop(name, None)
        self._endpoints = endpoints

    def damaged(self) -> list[str]:
        """What of our rules somebody took away since the last sync, if it can be told; else and if nothing: empty.

        To be called when the state holds nothing that was not synced. Raises KernelError, CommandFailed.
        """
        settings = self._settings
        if settings is None or not self._trace.doubted(settings.family.name):
            return []
        rules = (
            translate(view, settings)
            for name in self._state.services()
            for view in self._state.views(name, settings.zone)
        )
        own: dict[str, int] = {}
        for ports in (self._services or {}).values():
            for port in ports:
                own |= port.record.own
        missing, altered = damage(Expected(rules, settings), own, self._door, settings.family.version)
        if altered and altered == self._altered:
            # All was written anew and they are still so: this iptables prints them in other words.
            log.debug("rules are shown otherwise than they were written", extra={"kv": {"first": altered[0]}})
            altered = []
        else:
            self._altered = altered
        if not missing and not altered:
            self._trace.settled(settings.family.name)
        return missing + altered

    def rule_counts(self) -> dict[str, int]:
        """How many rules of ours the tables filter and nat have, jumps from built-in chains not counted."""
        counts = {"filter": 0, "nat": 0}
        settings = self._settings
        if settings is None:
            return counts
        for (table, _), _rule in base_rules(settings):
            counts[table] += 1
        counts["filter"] += localhost_guard(settings) is not None
        counts["nat"] += len(list(node_port_rules(settings)))
        for ports in list((self._services or {}).values()):  # a copy: asked from the metrics' thread
            for port in ports:
                counts["nat"] += port.record.own_rules
                for (table, _), _line in port.record.shared:
                    counts[table] += 1
        return counts

    def ports_without_local_endpoints(self) -> dict[str, int]:
        """Ports whose traffic is dropped here, because its policy is Local and only other nodes have endpoints."""
        ports = [port for ports in list((self._services or {}).values()) for port in ports]
        return {
            "internal": sum(port.internal_dropped for port in ports),
            "external": sum(port.external_dropped for port in ports),
        }


def _served(record: plan.PortRecord, view: PortView) -> _Served:
    exposed = view.port.externally_accessible
    return _Served(record, view.total, view.internal is Handling.DROP, exposed and view.external is Handling.DROP)


def _spell(view: PortView, settings: Settings, endpoints: int) -> tuple[plan.PortRecord, plan.Spelled]:
    comments = endpoints <= LARGE_CLUSTER_ENDPOINTS
    return plan.record(translate(view, settings, endpoint_comments=comments))
