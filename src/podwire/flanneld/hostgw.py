"""The host-gw backend: a plain route to every other node's prefix, via the node itself. All nodes share one link.

No tunnel, so no overhead and no device: pods get the underlay's MTU. A node whose public IP is not on the interface sits
behind NAT, where nobody can use it as a gateway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.errors import UsageError
from podwire.flanneld.plan import Plan, Underlay, direct_route

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.flanneld.lease import Lease


def check(underlay: Underlay) -> None:
    """Raise UsageError if this node could not be a gateway."""
    for local in underlay.local:
        public = underlay.public_address(local.version)
        if public != local:
            raise UsageError(
                "using the host-gw backend on",
                underlay.device,
                f"the public IP {public} differs from the interface's {local}: there is NAT in between",
                "use the vxlan backend",
            )


def plan(underlay: Underlay, peers: Iterable[Lease]) -> Plan:
    """The plan for one family."""
    return Plan(routes=tuple(direct_route(peer, underlay) for peer in peers), mtu=underlay.mtu)
