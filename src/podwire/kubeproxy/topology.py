"""Which endpoints a service port uses on this node.

There are up to two sets: `cluster` for traffic policy Cluster, `local` (endpoints on this node) for policy Local. For each
set by itself: ready endpoints, and if there is none, those that are terminating but still serving (KEP-1669). So with
policy Local a draining pod of this node is used while ready ones run elsewhere.

The cluster set is narrowed by hints (KEP-2433, KEP-3015): to this node when every ready endpoint has a node hint and one names
this node; else to this zone when every ready endpoint has a zone hint and one names this zone; else not at all. Only
hints in slices count; what the Service asks for was the controller's to work out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.kubeproxy.endpoints import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kubeproxy.ports import ServicePort

Endpoints = tuple[Endpoint, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """`reachable` is the union of both sets; `any_usable` says whether there is a usable endpoint on any node."""

    cluster: Endpoints = ()
    local: Endpoints = ()
    reachable: Endpoints = ()
    any_usable: bool = False


def choose(endpoints: Endpoints, port: ServicePort, node: str, zone: str) -> Choice:
    """Choose among all endpoints of the port, sorted; `zone` is this node's zone label or empty."""
    usable = _usable(endpoints)
    cluster: Endpoints = ()
    local: Endpoints = ()
    if port.uses_cluster:
        cluster = tuple(filter(_hinted(usable, node, zone), usable)) if usable and usable[0].ready else usable
    if port.uses_local:
        local = _usable(tuple([endpoint for endpoint in endpoints if endpoint.local]))
    return Choice(cluster, local, _union(cluster, local), bool(usable))


def _usable(endpoints: Endpoints) -> Endpoints:
    """The ready ones, else the draining ones."""
    ready = tuple([endpoint for endpoint in endpoints if endpoint.ready])
    return ready or tuple([endpoint for endpoint in endpoints if endpoint.draining])


def _hinted(ready: Endpoints, node: str, zone: str) -> Callable[[Endpoint], bool]:
    """Which of the ready endpoints the hints give to this node."""
    if all(endpoint.nodes for endpoint in ready) and any(node in endpoint.nodes for endpoint in ready):
        return lambda endpoint: node in endpoint.nodes
    if all(endpoint.zones for endpoint in ready) and any(zone in endpoint.zones for endpoint in ready):
        return lambda endpoint: zone in endpoint.zones
    return lambda _: True


def _union(cluster: Endpoints, local: Endpoints) -> Endpoints:
    if not local or cluster == local:
        return cluster
    if not cluster:
        return local
    both = {endpoint.address: endpoint for endpoint in (*cluster, *local)}
    return tuple([both[address] for address in sorted(both)])
