"""Services and endpoints as last drained, in one family, and which Services a batch of changes touches.

This is the previous half of every "previous, current" pair: `apply` compares what it knew with what a newer object says
and names only the Services for which something that kube-proxy reads is different. Most updates of a busy cluster
(managed fields, annotations, target references) touch nothing.

An object that cannot be understood costs only itself: it is logged and counts as not there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from podwire.kubeproxy.endpoints import Endpoint, PortKey, merge, slice_endpoints
from podwire.kubeproxy.ports import ServicePort, service_ports
from podwire.kubeproxy.view import PortView, view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.kubeproxy.changes import Batch
    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.objects import EndpointSlice, Service

log = logging.getLogger("podwire.kubeproxy")

_Slices = dict[str, dict[PortKey, tuple[Endpoint, ...]]]
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError)


class State:
    """What is served in one family on the node `node`."""

    def __init__(self, family: Family, node: str) -> None:
        self.family = family
        self.node = node
        self._ports: dict[str, tuple[ServicePort, ...]] = {}
        self._slices: dict[str, _Slices] = {}  # by Service
        self._service_of: dict[str, str] = {}  # Service by slice

    def apply(self, batch: Batch) -> set[str]:
        """Take over a batch; the keys of the Services that mean something else now."""
        touched: set[str] = set()
        for key, service in batch.services.items():
            ports = () if service is None else self._read_service(key, service)
            if ports != self._ports.get(key, ()):
                touched.add(key)
            if ports:
                self._ports[key] = ports
            else:
                self._ports.pop(key, None)
        for key, piece in batch.slices.items():
            touched |= self._apply_slice(key, piece)
        return touched

    def _apply_slice(self, key: str, piece: EndpointSlice | None) -> set[str]:
        found = {} if piece is None else self._read_slice(key, piece)
        service = f"{piece.metadata.namespace}/{piece.service}" if piece is not None and piece.service else ""
        touched: set[str] = set()
        before = self._service_of.get(key, "")
        known = self._slices.get(before, {}).get(key, {})
        if before and (before != service or not found):
            del self._slices[before][key]
            if not self._slices[before]:
                del self._slices[before]
            del self._service_of[key]
            if known:
                touched.add(before)
            known = {}
        if service and found:
            if found != known:
                touched.add(service)
            self._slices.setdefault(service, {})[key] = found
            self._service_of[key] = service
        return touched

    def _read_service(self, key: str, service: Service) -> tuple[ServicePort, ...]:
        try:
            return service_ports(service, self.family)
        except _MALFORMED as error:
            log.warning("Service left out", extra={"kv": {"service": key, "error": repr(error)}})
            return ()

    def _read_slice(self, key: str, piece: EndpointSlice) -> dict[PortKey, tuple[Endpoint, ...]]:
        try:
            return slice_endpoints(piece, self.family, self.node)
        except _MALFORMED as error:
            log.warning("EndpointSlice left out", extra={"kv": {"slice": key, "error": repr(error)}})
            return {}

    def services(self) -> list[str]:
        """The keys of all Services that are served, sorted."""
        return sorted(self._ports)

    def ports(self) -> Iterator[ServicePort]:
        """All ports of all Services."""
        for ports in list(self._ports.values()):
            yield from ports

    def ports_of(self, service: str) -> tuple[ServicePort, ...]:
        """The ports of one Service; none if it is not served."""
        return self._ports.get(service, ())

    def endpoints(self, port: ServicePort) -> tuple[Endpoint, ...]:
        """All endpoints of a port, sorted by ip:port."""
        slices = self._slices.get(port.service)
        if not slices:
            return ()
        key = (port.name, port.protocol)
        # In the order of names, so that the same slices mean the same whatever came first.
        return merge([slices[name][key] for name in sorted(slices) if key in slices[name]])

    def views(self, service: str, zone: str) -> list[PortView]:
        """What each port of a Service means on this node."""
        return [view(port, self.endpoints(port), self.node, zone) for port in self._ports.get(service, ())]
