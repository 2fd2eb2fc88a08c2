"""One pass of flanneld, from leases to kernel, Node and file. Everything it does, it does by comparing.

    own Node ──► own leases ─┐
    other Nodes ──► peers ───┼─► Plan ──► kernel ──► annotations ──► rules ──► subnet.env ──► condition
    interface ───────────────┘

The order is that of what depends on what: peers may send to us once the device is up; a pod may be made once subnet.env is
there; the node counts as connected last. Each pass does the whole of it, and what is right already costs a look: a pass
is asked for when a Node or the kernel changes, and every ten seconds in any case.

What is known is kept when it can't be read: while the API is away, while our own Node is gone or has no podCIDR yet, the last
leases go on to hold, and traffic with them.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Protocol

from podwire.daemon.logs import kv
from podwire.errors import PodwireError
from podwire.flanneld import hostgw, subnetenv, underlay, vxlan
from podwire.flanneld.lease import Lease, own_subnets, peers
from podwire.flanneld.plan import Plan
from podwire.flanneld.reconcile import Scope, reconcile
from podwire.kernel import links, neighbours, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from podwire.flanneld.door import KernelDoor
    from podwire.flanneld.enforce import Enforcer
    from podwire.flanneld.flags import Options
    from podwire.flanneld.lease import Annotations, IPNetwork, NodeRecord
    from podwire.flanneld.netconf import NetworkConfig
    from podwire.flanneld.plan import Underlay
    from podwire.flanneld.reconcile import Outcome
    from podwire.kernel.monitor import Change

log = logging.getLogger("podwire.flanneld")

STEPS_SHOWN = 20
"""A pass that does more than this, at the start in a large cluster, is told as a number."""


class Leases(Protocol):
    """Where leases are kept (kubemgr.KubeLeases)."""

    node: str
    synced: bool

    def own(self) -> NodeRecord | None:
        """Our node."""

    def nodes(self) -> list[NodeRecord]:
        """All nodes."""

    def publish(self, node: NodeRecord, annotations: Mapping[str, str]) -> bool:
        """Make our lease known."""

    def network_is_up(self, node: NodeRecord) -> bool:
        """Say that our node is connected."""


class Agent:
    """The state of one flanneld between passes; `sync` is one pass. Not for several threads."""

    def __init__(
        self,
        config: NetworkConfig,
        options: Options,
        annotations: Annotations,
        leases: Leases,
        door: KernelDoor,
        enforcer: Enforcer,
        look: Callable[[], underlay.View],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._options = options
        self._annotations = annotations
        self._leases = leases
        self._door = door
        self._enforcer = enforcer
        self._look = look
        self._clock = clock
        self._checked: tuple[tuple[IPNetwork, ...], float] | None = None
        self._macs: dict[int, str] = {}
        self._record: NodeRecord | None = None
        self._subnets: tuple[IPNetwork, ...] = ()
        self._known: frozenset[Lease] = frozenset()
        self._said: dict[str, object] = {}
        self._watched: frozenset[str] = frozenset()
        self.ready = False

    def sync(self) -> bool:
        """One pass; False if something is left to do. Raises PodwireError if nothing could be done."""
        if not self._leases.synced:
            return True
        current = self._leases.own()
        self._take_over(current)
        node = self._record
        if node is None:
            return True
        way = underlay.choose(
            self._look(),
            self._options,
            [subnet.version for subnet in self._subnets],
            {version: self._annotations.chosen_public_ip(node, version) for version in (4, 6)},
        )
        own = [self._lease(node, subnet, way) for subnet in self._subnets]
        plan, news = self._plan(own, way)
        scope = Scope(frozenset(device.name for device in plan.devices), self._config.networks())
        self._watched = scope.devices | {way.device}
        outcome = reconcile(plan, scope, self._door)
        self._tell(outcome, news=news)
        if not _standing(plan, outcome):
            return False
        # Of a Node that is gone, or new and without a podCIDR, nothing is said to the API.
        present = current is not None and current.uid == node.uid
        done = [
            not present or self._try("publishing the lease", lambda: self._publish(node, own)),
            self._try("checking the packet-filter rules", self._rules),
            self._try("writing the subnet file", lambda: self._write(plan)),
        ]
        if all(done) and not self.ready:
            log.info("flannel is ready")
            self.ready = True
        if self.ready and present and self._options.set_node_network_unavailable:
            done.append(self._try("setting the Node's condition", lambda: self._leases.network_is_up(node)))
        return all(done) and not outcome.failed

    def concerns(self, change: Change) -> bool:
        """Whether a change in the kernel may be one that a pass would mend (asked by another thread)."""
        if change.kind in (neighbours.RTM_NEWNEIGH, neighbours.RTM_DELNEIGH):
            return change.index in self._door.indices
        if change.kind in (links.RTM_NEWLINK, links.RTM_DELLINK):
            return change.name in self._watched
        if change.kind in (routes.RTM_NEWROUTE, routes.RTM_DELROUTE):
            return change.table == routes.RT_TABLE_MAIN
        return True

    def _take_over(self, node: NodeRecord | None) -> None:
        """Remember our Node and its podCIDRs, or say why they are not to be had."""
        why = f'node "{self._leases.node}" not found'
        if node is not None:
            subnets, why = own_subnets(node, self._config)
            if subnets:
                if subnets != self._subnets:
                    kv(log, logging.INFO, "own lease", subnets=" ".join(map(str, subnets)))
                self._record, self._subnets = node, subnets
        if self._changed("waiting", why) and why:
            log.warning(why)

    def _rules(self) -> None:
        """Check the packet-filter rules if it is time, or if they are to be others."""
        now = self._clock()
        if self._checked is not None and self._checked[0] == self._subnets and now < self._checked[1]:
            return
        if self._enforcer.ensure(self._subnets):
            if self._checked is not None and self._checked[0] == self._subnets:
                log.warning("packet-filter rules were missing and are back")
            else:
                log.info("packet-filter rules are in place")
        # A little early, or a pass that comes just before its time would leave them for another whole period.
        self._checked = (self._subnets, now + self._options.iptables_resync - 0.5)

    def _lease(self, node: NodeRecord, subnet: IPNetwork, way: Underlay) -> Lease:
        """Our lease of one family. A MAC once published is kept: peers need not learn another one."""
        backend = self._config.backend
        if backend != "vxlan":
            return Lease(node.name, subnet, way.public_address(subnet.version), backend)
        version, vni = subnet.version, self._config.vxlan.vni
        if version not in self._macs:
            self._macs[version] = (
                self._annotations.stored_mac(node, version)
                or self._door.mac(vxlan.device_name(vni, version))
                or random_mac()
            )
        return Lease(node.name, subnet, way.public_address(version), backend, self._macs[version], vni)

    def _plan(self, own: Sequence[Lease], way: Underlay) -> tuple[Plan, bool]:
        """The plan for all families, and whether the leases it is made of are others than last time."""
        nodes = self._leases.nodes()
        plan, known, unusable = Plan(), set(own), []
        for lease in own:
            others, bad = peers(nodes, lease, self._annotations)
            known.update(others)
            unusable += [str(one) for one in bad]
            if lease.backend == "vxlan":
                direct = self._config.vxlan.direct_routing
                on_link = self._door.on_link(peer.public_ip for peer in others) if direct else frozenset()
                plan += vxlan.plan(self._config.vxlan, way, lease, others, on_link)
            else:
                hostgw.check(way)
                plan += hostgw.plan(way, others)
        if self._changed("unusable", tuple(unusable)):
            for line in unusable:
                kv(log, logging.WARNING, "cannot use a node's lease", why=line)
        return plan, self._news(frozenset(known))

    def _news(self, known: frozenset[Lease]) -> bool:
        for verb, some in (("peer gone", self._known - known), ("peer", known - self._known)):
            for lease in sorted(some, key=lambda one: (one.node, one.version)):
                if lease.node != self._leases.node:
                    kv(log, logging.INFO, verb, node=lease.node, subnet=lease.subnet, public_ip=lease.public_ip)
        changed, self._known = known != self._known, known
        return changed

    def _tell(self, outcome: Outcome, *, news: bool) -> None:
        """Log what was done: with new leases as information, without them as a repair."""
        level = logging.INFO if news else logging.WARNING
        verb = "kernel" if news else "repaired"
        if len(outcome.done) > STEPS_SHOWN:
            kv(log, level, verb, steps=len(outcome.done))
        for step in outcome.done:
            kv(log, logging.DEBUG if len(outcome.done) > STEPS_SHOWN else level, verb, step=step)
        for failed, error in outcome.failed:
            kv(log, logging.ERROR, "failed", step=failed, error=error)
        if self._changed("foreign", outcome.foreign):
            for route in sorted(map(str, outcome.foreign)):
                kv(log, logging.WARNING, "a foreign route leads into the pod network", route=route)

    def _publish(self, node: NodeRecord, own: Sequence[Lease]) -> None:
        if self._leases.publish(node, self._annotations.published(node, own)):
            kv(log, logging.INFO, "published the lease", public_ip=" ".join(str(lease.public_ip) for lease in own))

    def _write(self, plan: Plan) -> None:
        text = subnetenv.text(self._config, self._subnets, plan.mtu, ip_masq=self._options.ip_masq)
        if subnetenv.ensure(self._options.subnet_file, text):
            kv(log, logging.INFO, "wrote the subnet file", path=self._options.subnet_file)

    def _try(self, doing: str, action: Callable[[], object]) -> bool:
        """Do it; a failure is logged (once, while it is the same) and costs only itself."""
        try:
            action()
        except PodwireError as error:
            if self._changed(doing, str(error)):
                kv(log, logging.ERROR, f"{doing} failed, trying again", error=error)
            return False
        self._changed(doing, "")
        return True

    def _changed(self, subject: str, value: object) -> bool:
        """Whether this is something else than what was last said on the subject."""
        before = self._said.get(subject)
        self._said[subject] = value
        return value != before


def _standing(plan: Plan, outcome: Outcome) -> bool:
    """Whether our own end of the network is there: without it nobody should send to us."""
    needed = {*plan.devices, *plan.addresses}
    return not any(step.item in needed for step, _ in outcome.failed)


def random_mac() -> str:
    """A random MAC: locally administered, unicast."""
    raw = bytearray(os.urandom(6))
    raw[0] = raw[0] & 0xFE | 0x02
    return raw.hex(":")
