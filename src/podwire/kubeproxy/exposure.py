"""Everything that follows from NodePorts besides rules: sockets that hold them, their reservation, healthCheckNodePorts.

What each Service wants is remembered, so that a sync looks only at the Services that it touched; a node has thousands of
NodePorts, and nearly all of them are as they were. The same port may be wanted twice: by both families of a dual-stack
Service, whose wildcard socket is one. It goes when the last one lets go.

`update` is called after the rules of these Services are in the kernel, so that a held port never answers in place of
a pod; `apply` then does what is due, and tries again what failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from podwire.kubeproxy.lb_health import Check
from podwire.kubeproxy.nodeports import NodePort, Owner

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from podwire.kubeproxy.lb_health import LoadBalancerHealth
    from podwire.kubeproxy.nodeports import NodePortHolder
    from podwire.kubeproxy.reservation import PortReservation
    from podwire.kubeproxy.settings import Settings
    from podwire.kubeproxy.state import State

T = TypeVar("T")
Claimant = tuple[str, str]
"""(family, namespace/name of the Service)."""
Local = tuple[str, frozenset[str]]
"""The Service of a healthCheckNodePort, and its ready addresses on this node."""


class Claims(Generic[T]):
    """Which ports are claimed, by whom and for what. `version` moves on with every change."""

    def __init__(self) -> None:
        self._by_claimant: dict[Claimant, dict[NodePort, T]] = {}
        self._by_port: dict[NodePort, dict[Claimant, T]] = {}
        self.version = 0

    def put(self, claimant: Claimant, claims: Mapping[NodePort, T]) -> None:
        """These are all the claims of the claimant from now on."""
        known = self._by_claimant.get(claimant, {})
        if known == claims:
            return
        self.version += 1
        for port in known:
            claimants = self._by_port[port]
            del claimants[claimant]
            if not claimants:
                del self._by_port[port]
        self._by_claimant.pop(claimant, None)
        if claims:
            self._by_claimant[claimant] = dict(claims)
        for port, claim in claims.items():
            self._by_port.setdefault(port, {})[claimant] = claim

    def claimants(self, family: str) -> list[Claimant]:
        """All claimants of a family."""
        return [claimant for claimant in self._by_claimant if claimant[0] == family]

    def ports(self) -> dict[NodePort, list[T]]:
        """All claims by port."""
        return {port: list(claims.values()) for port, claims in self._by_port.items()}


class Exposure:
    """Holds, reserves and answers for what it is told about. `holder` and `reservation` are None when not wanted."""

    def __init__(
        self, holder: NodePortHolder | None, reservation: PortReservation | None, lb_health: LoadBalancerHealth
    ) -> None:
        self._holder = holder
        self._reservation = reservation
        self._lb_health = lb_health
        self._held: Claims[Owner] = Claims()
        self._checks: Claims[Local] = Claims()
        self._applied = (-1, -1)

    def update(self, state: State, settings: Settings, services: Iterable[str] | None) -> None:
        """These Services of a family changed; None: perhaps all, and those that are gone."""
        family = state.family.name
        if services is None:
            services = state.services()
            gone = {*self._held.claimants(family), *self._checks.claimants(family)}
            for claimant in gone.difference([(family, service) for service in services]):
                self._held.put(claimant, {})
                self._checks.put(claimant, {})
        ips = ("",) if settings.node_port_ips is None else settings.node_port_ips
        for service in services:
            held: dict[NodePort, Owner] = {}
            checks: dict[NodePort, Local] = {}
            for port in state.ports_of(service):
                if port.node_port:
                    owner = Owner(port.service, port.name)
                    held.update({NodePort(port.protocol, port.node_port, ip): owner for ip in ips})
                if port.health_check_node_port:
                    ready = frozenset(end.ip for end in state.endpoints(port) if end.local and end.ready)
                    for ip in ips:
                        key = NodePort("tcp", port.health_check_node_port, ip)
                        _, known = checks.get(key, ("", frozenset()))
                        checks[key] = (port.service, known | ready)
            self._held.put((family, service), held)
            self._checks.put((family, service), checks)

    def apply(self) -> None:
        """Do what changed, and look after what may have failed or been undone by others."""
        versions = (self._held.version, self._checks.version)
        if versions != self._applied:
            self._applied = versions
            checks = self._checks.ports()
            held = {port: owners[0] for port, owners in self._held.ports().items() if port not in checks}
            self._lb_health.sync(
                {
                    port: Check(found[0][0], len(frozenset[str]().union(*[ips for _, ips in found])))
                    for port, found in checks.items()
                }
            )
            if self._holder is not None:
                self._holder.sync(held)
            if self._reservation is not None:
                self._reservation.want({port.port for port in (*held, *checks)})
            return
        self._lb_health.retry()
        if self._holder is not None:
            self._holder.retry()
        if self._reservation is not None:
            self._reservation.check()
