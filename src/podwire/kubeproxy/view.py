"""What a service port means on this node, in no dialect: which frontends there are and what becomes of their traffic.

    frontend                                     policy      traffic
    clusterIP:port                               internal    → cluster or local endpoints
    externalIP:port, ingress IP:port, :nodePort  external    → cluster or local endpoints, behind source ranges

Each policy ends in one `Handling`: FORWARD, or REJECT when no endpoint anywhere can take the traffic, or DROP when there are
some but none on this node and the policy is Local (so that a load balancer's probe fails without telling more).

Under external policy Local, pods of the cluster and the node itself may still use every endpoint ("short circuit"):
they would reach them by the clusterIP anyway. That is why `exposed` asks for any usable endpoint, not for a local one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from podwire.kubeproxy.topology import Endpoints, choose

if TYPE_CHECKING:
    from podwire.kubeproxy.endpoints import Endpoint
    from podwire.kubeproxy.ports import ServicePort


class Handling(Enum):
    """What becomes of a new flow to a frontend."""

    FORWARD = "forward"
    REJECT = "reject"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class PortView:
    """A service port on this node.

    `total` counts all its endpoints, usable or not. `reachable` are those that any frontend may choose.
    """

    port: ServicePort
    cluster: Endpoints
    local: Endpoints
    reachable: Endpoints
    internal: Handling
    external: Handling
    any_usable: bool
    total: int

    @property
    def exposed(self) -> bool:
        """Whether external frontends lead anywhere from anywhere."""
        return self.any_usable and self.port.externally_accessible

    @property
    def firewalled(self) -> bool:
        """Whether traffic to the ingress addresses is limited to source ranges."""
        return bool(self.port.load_balancer_ips and self.port.source_ranges)

    @property
    def local_ready_ips(self) -> frozenset[str]:
        """The ready addresses on this node: what a healthCheckNodePort counts."""
        return frozenset(endpoint.ip for endpoint in self.local if endpoint.ready)


def view(port: ServicePort, endpoints: tuple[Endpoint, ...], node: str, zone: str) -> PortView:
    """Work out the meaning of a port with all its endpoints on the node `node` in `zone`."""
    choice = choose(endpoints, port, node, zone)

    def handling(local: bool) -> Handling:
        if not choice.any_usable:
            return Handling.REJECT
        return Handling.DROP if local and not choice.local else Handling.FORWARD

    return PortView(
        port=port,
        cluster=choice.cluster,
        local=choice.local,
        reachable=choice.reachable,
        internal=handling(port.internal_local),
        external=handling(port.external_local),
        any_usable=choice.any_usable,
        total=len(endpoints),
    )
