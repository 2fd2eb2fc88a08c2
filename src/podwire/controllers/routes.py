"""The route controller: the control plane's own way to every podCIDR.

In a cloud, the route controller of the cloud provider tells the cloud's router that a podCIDR is behind a node's address. Here the
router is the kernel this process runs on: for each Node `podCIDR via InternalIP` in the main table of its network
namespace. A control plane that is not a node reaches pods with it (webhooks, `kubectl port-forward`, the lab's own checks).

Ensure, tick off, sweep: each pass compares all Nodes with all routes that carry the mark, adds or replaces what is missing or
differs, and removes what nobody wants. It runs at once when a Node changes, and every 30 s, so that what somebody deleted by hand
comes back. The mark is podwire's routing protocol number together with the metric below: flanneld and the lab write
routes of that protocol too, and are not to be swept away.

A Node whose address is this machine's own gets no route (its pods are behind a bridge here). A next hop that cannot be reached is
logged once and tried again in each pass; a fault with one Node costs only its routes.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

from podwire.controllers.controller import Context, Controller
from podwire.errors import KernelError, NotFound
from podwire.kernel.owner import ROUTE_PROTOCOL
from podwire.kernel.routes import RT_TABLE_MAIN, Route
from podwire.kernel.rtnl import Rtnl
from podwire.kube.kinds import NODES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kube.objects import Node

log = logging.getLogger("podwire.controllers")

METRIC = 870
PERIOD_SECONDS = 30.0
KEY = "routes"


def wanted_routes(nodes: Iterable[Node], own_addresses: frozenset[str]) -> dict[str, str]:
    """Pure: destination → next hop, for every podCIDR that has an InternalIP of its family on another machine."""
    wanted: dict[str, str] = {}
    for node in sorted(nodes, key=lambda node: node.key):
        for cidr in node.pod_cidrs:
            try:
                network = ipaddress.ip_network(cidr)
            except ValueError:
                continue
            hops = [ip for ip in node.internal_ips if (":" in ip) == (network.version == 6)]
            if hops and hops[0] not in own_addresses:
                wanted.setdefault(str(network), hops[0])
    return wanted


class Routes(Controller):
    """The controller; its one key stands for all routes."""

    name = "route"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._nodes = context.informer(NODES)
        self._nodes.on_change(self._changed)
        self._told: set[tuple[str, str]] = set()

    def _changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if _of_interest(old) != _of_interest(new):
            self.queue.add(KEY)

    def prepare(self) -> None:
        """Sweep also when there is no Node at all."""
        self.queue.add(KEY)

    def sync(self, key: str) -> None:
        """All routes."""
        with Rtnl() as kernel:
            own = frozenset(address.ip for address in kernel.addresses())
            wanted = wanted_routes(self._nodes.objects(), own)
            left = {route.dst: route for route in marked(kernel)}
            for dst, via in wanted.items():
                route = left.pop(dst, None)
                if route is None or route.via != via:
                    self._put(kernel, dst, via)
            for route in left.values():
                self._remove(kernel, route)
        self.queue.add_after(key, PERIOD_SECONDS)

    def _put(self, kernel: Rtnl, dst: str, via: str) -> None:
        try:
            kernel.add_route(dst, via=via, protocol=ROUTE_PROTOCOL, metric=METRIC, replace=True)
        except KernelError as error:
            if (dst, via) not in self._told:
                self._told.add((dst, via))
                log.warning("route not set", extra={"kv": {"dst": dst, "via": via, "error": str(error)}})
            return
        self._told.discard((dst, via))
        log.info("route set", extra={"kv": {"dst": dst, "via": via}})

    def _remove(self, kernel: Rtnl, route: Route) -> None:
        try:
            kernel.delete_route(route)
        except NotFound:
            return
        log.info("route removed", extra={"kv": {"dst": route.dst, "via": route.via}})


def marked(kernel: Rtnl) -> list[Route]:
    """The routes that are this controller's."""
    routes = kernel.routes(table=RT_TABLE_MAIN, protocol=ROUTE_PROTOCOL)
    return [route for route in routes if route.metric == METRIC]


def _of_interest(node: Node | None) -> tuple[object, ...]:
    return (node.pod_cidrs, node.internal_ips) if node is not None else ()
