"""One run of kube-proxy: take what changed, make the kernel hold it, then do everything that follows from it.

A run is called by one thread, at most once a minimum period, at least once a sync period. Its order:

1. Nothing before the first lists of Services and EndpointSlices are complete: half a list would cut off the other half.
2. Drain the changes; each family works out which Services they touch.
3. Sync each family: nothing if nothing is touched, else the touched Services, or everything if the node's settings changed,
   the last sync failed, or somebody took rules away. One family's failure does not keep the other from its sync.
4. After success: stale UDP flows, held NodePorts, healthCheckNodePorts. Rules come first, so that a held port never answers
   in place of a pod.

What failed is asked for again by raising: the runner calls again after its retry interval, and that sync is full.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from podwire.errors import KernelError, PodwireError
from podwire.kubeproxy import conntrack
from podwire.kubeproxy.objects import TRIGGER_TIME
from podwire.rules.nft.run import NftRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kubeproxy.changes import Batch, Changes
    from podwire.kubeproxy.exposure import Exposure
    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.health import Health
    from podwire.kubeproxy.metrics import Metrics
    from podwire.kubeproxy.objects import EndpointSlice
    from podwire.kubeproxy.settings import Settings
    from podwire.kubeproxy.state import State
    from podwire.kubeproxy.sync import Outcome, Sync

log = logging.getLogger("podwire.kubeproxy")


@dataclass(slots=True)
class FamilyProxy:
    """What there is once for each family. `touched`: Services that changed and are not in the kernel yet."""

    state: State
    sync: Sync
    touched: set[str] = field(default_factory=set)
    settings: Settings | None = None  # as last synced
    failed: bool = False
    flows_due: set[str] | None = field(
        default_factory=set
    )  # whose stale flows could not be deleted; None: all Services

    @property
    def name(self) -> str:
        """IPv4 or IPv6."""
        return self.state.family.name


@dataclass(frozen=True, slots=True)
class World:
    """What a run asks about the node. `settings` resolves for a family; None means that it is too early for rules."""

    ready: Callable[[], bool]
    settings: Callable[[Family], Settings | None]
    node_ips: Callable[[], frozenset[str]]


class Proxier:
    """The families and what hangs on them. `run` is called by one thread."""

    def __init__(
        self,
        families: tuple[FamilyProxy, ...],
        changes: Changes,
        world: World,
        health: Health,
        metrics: Metrics,
        exposure: Exposure,
    ) -> None:
        self._families = families
        self._changes = changes
        self._world = world
        self._health = health
        self._metrics = metrics
        self._exposure = exposure

    def run(self) -> None:
        """One run. Raises the first PodwireError that a family met."""
        if not self._world.ready():
            return
        batch = self._changes.drain()
        for proxy in self._families:
            self._metrics.service_changes.labels(proxy.name).inc(len(batch.services))
            self._metrics.endpoint_changes.labels(proxy.name).inc(len(batch.slices))
            proxy.touched |= proxy.state.apply(batch)
        errors = []
        for proxy in self._families:
            try:
                self._sync(proxy, batch)
            except PodwireError as error:
                proxy.failed = True
                self._health.queued(proxy.name)
                by_nft = isinstance(error, NftRefused)
                failures = self._metrics.nft_failures if by_nft else self._metrics.restore_failures
                failures.labels(proxy.name).inc()
                fields = {"family": proxy.name, "error": str(error)}
                log.error("sync failed, old rules stay", extra={"kv": fields})  # noqa: TRY400 - it says what was refused
                errors.append(error)
        self._exposure.apply()
        if errors:
            raise errors[0]

    def _sync(self, proxy: FamilyProxy, batch: Batch) -> None:
        settings = self._world.settings(proxy.state.family)
        if settings is None:
            return
        full, resolved_anew = proxy.failed, settings != proxy.settings
        why = _why(proxy, settings)
        if not full and not resolved_anew and not proxy.touched:
            missing = proxy.sync.damaged()
            if not missing:
                self._health.synced(proxy.name)
                return
            self._metrics.repairs.labels(proxy.name).inc()
            log.warning("somebody took rules away, writing all again", extra={"kv": {"missing": _some(missing, "; ")}})
            full, why = True, "repair"
        touched = set(proxy.touched)
        outcome = proxy.sync.sync(settings, touched, full=full)
        proxy.touched -= touched
        self._exposure.update(proxy.state, settings, None if outcome.full or resolved_anew else touched)
        proxy.settings, proxy.failed = settings, False
        self._health.synced(proxy.name)
        self._measure(proxy, outcome, batch)
        if outcome.restores:
            fields = {
                "family": proxy.name,
                "kind": "full" if outcome.full else "partial",
                "services": outcome.services,
                "took": f"{outcome.seconds * 1000:.0f}ms",
                "changed": why or _some(sorted(touched), ","),
            }
            log.info("synced", extra={"kv": fields})
        self._clean_flows(proxy, settings, None if outcome.full or resolved_anew else touched)

    def _measure(self, proxy: FamilyProxy, outcome: Outcome, batch: Batch) -> None:
        metrics, name, now = self._metrics, proxy.name, time.time()
        metrics.sync.labels(name).observe(outcome.seconds)
        (metrics.sync_full if outcome.full else metrics.sync_partial).labels(name).observe(outcome.seconds)
        if outcome.refused_partial:
            metrics.partial_failures.labels(name).inc()
        metrics.last_sync.labels(name).set(now)
        for piece in batch.slices.values():
            changed = _changed_at(piece)
            if changed is not None and piece is not None and piece.address_type == name:
                metrics.programming.labels(name).observe(max(0.0, now - changed))

    def _clean_flows(self, proxy: FamilyProxy, settings: Settings, touched: set[str] | None) -> None:
        """Delete the UDP flows to endpoints that are gone, of these Services (None: all) and of those it failed for before."""
        due = None if touched is None or proxy.flows_due is None else touched | proxy.flows_due
        proxy.flows_due = set()
        if due is not None and not any(port.protocol == "udp" for one in due for port in proxy.state.ports_of(one)):
            return
        began = time.monotonic()
        node_ips = self._world.node_ips() if settings.node_port_ips is None else frozenset(settings.node_port_ips)
        try:
            deleted = conntrack.reconcile(proxy.state, node_ips, due)
        except KernelError as error:
            proxy.flows_due = due
            log.warning("stale UDP flows not deleted", extra={"kv": {"error": str(error)}})
            return
        self._metrics.conntrack.labels(proxy.name).observe(time.monotonic() - began)
        self._metrics.conntrack_deleted.labels(proxy.name).inc(deleted)
        if deleted:
            log.info("stale UDP flows deleted", extra={"kv": {"family": proxy.name, "flows": deleted}})


def _why(proxy: FamilyProxy, settings: Settings) -> str:
    """What besides Services leads to a sync; empty if nothing does."""
    if proxy.failed:
        return "failure before"
    if settings == proxy.settings:
        return ""
    return "start" if proxy.settings is None else "settings of the node"


def _some(names: list[str], between: str) -> str:
    """The first few."""
    return between.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _changed_at(piece: EndpointSlice | None) -> float | None:
    """When what a slice tells happened, by the controller's annotation (KEP-0752), as seconds since 1970."""
    text = piece.metadata.annotations.get(TRIGGER_TIME, "") if piece is not None else ""
    if text:
        with contextlib.suppress(ValueError):
            return dt.datetime.fromisoformat(text).timestamp()
    return None
