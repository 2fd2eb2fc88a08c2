"""UDP flows that still go to a backend that is no longer there, and their deletion.

Only the first packet of a flow meets the nat rules; afterwards the tracker translates. A UDP client that keeps its socket
(a DNS resolver, a log shipper) is therefore sent to a dead pod for as long as it sends. TCP notices by itself.

A flow is stale when it goes to a frontend of a UDP service port and its answers would come from an address that is no
serving endpoint of it. Terminating but serving endpoints keep their flows. Two differences from the real kube-proxy:

* A flow to a NodePort's number counts only if it was addressed to this node. The real one deletes flows to any host's port
  of that number, also those that merely pass.
* With no serving endpoint left every flow is stale. The real one leaves them, so a client is not told by the
  REJECT rule that there is nobody.

When a Service is gone its flows are left to time out, as the real one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.kernel.conntrack import UDP, Conntrack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kernel.conntrack import Flow
    from podwire.kubeproxy.state import State


@dataclass(frozen=True, slots=True)
class Backends:
    """Serving endpoint addresses of UDP ports, by frontend (ip, port) and by NodePort."""

    by_address: dict[tuple[str, int], frozenset[str]]
    by_node_port: dict[int, frozenset[str]]

    def __bool__(self) -> bool:
        return bool(self.by_address or self.by_node_port)


def backends(state: State, services: Iterable[str] | None = None) -> Backends:
    """The backends of every UDP port of a family, or only of some Services'."""
    ports = state.ports() if services is None else (port for one in services for port in state.ports_of(one))
    by_address: dict[tuple[str, int], frozenset[str]] = {}
    by_node_port: dict[int, frozenset[str]] = {}
    for port in ports:
        if port.protocol != "udp":
            continue
        serving = frozenset(endpoint.ip for endpoint in state.endpoints(port) if endpoint.serving)
        for ip in (port.cluster_ip, *port.external_ips, *port.load_balancer_ips):
            by_address[ip, port.port] = serving
        if port.node_port:
            by_node_port[port.node_port] = serving
    return Backends(by_address, by_node_port)


def stale(flows: Iterable[Flow], known: Backends, node_ips: frozenset[str]) -> list[Flow]:
    """The flows to delete; `node_ips` are the addresses of this node that take NodePort traffic."""
    found = []
    for flow in flows:
        to, port = flow.original.destination, flow.original.destination_port
        serving = known.by_address.get((to, port))
        if serving is None and to in node_ips:
            serving = known.by_node_port.get(port)
        if serving is not None and flow.reply.source not in serving:
            found.append(flow)
    return found


def reconcile(state: State, node_ips: frozenset[str], services: Iterable[str] | None = None) -> int:
    """Delete the stale flows of a family, or only of some Services; how many there were. Raises KernelError."""
    known = backends(state, services)
    if not known:
        return 0
    with Conntrack() as table:
        return sum(table.delete(flow) for flow in stale(table.flows(state.family.version, UDP), known, node_ips))
