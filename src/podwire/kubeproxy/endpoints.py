"""The endpoints of an EndpointSlice as kube-proxy sees them, by service port.

Rules of reading (discovery/v1 and pkg/proxy/endpointslicecache): `ready` and `serving` not said mean true, `terminating`
not said means false; only the first address of an endpoint counts; a port without a name or a number is ignored, and so is a
slice of another family or of FQDNs, or one that is labelled headless. An address that is none costs only itself.

Several slices may hold the same ip:port. It counts once, and a copy that is not terminating wins: a new pod may
have the address of one that is still going. The list is sorted as text by `ip:port`, which is the order of the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from podwire.kubeproxy.ports import check_port, is_foreign

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.objects import Endpoint as ApiEndpoint
    from podwire.kubeproxy.objects import EndpointSlice

PortKey = tuple[str, str]
"""(port name, protocol in lower case)."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One backend of one service port. `address` is ip:port; `zones` and `nodes` are its topology hints."""

    address: str
    ip: str
    port: int
    local: bool = False
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zones: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()

    @property
    def draining(self) -> bool:
        """Terminating but still answering."""
        return self.serving and self.terminating


def slice_endpoints(piece: EndpointSlice, family: Family, node: str) -> dict[PortKey, tuple[Endpoint, ...]]:
    """The endpoints of a slice by port; empty when the slice is not for us. `node` is the name of this node."""
    if piece.address_type != family.name or is_foreign(piece.metadata.labels):
        return {}
    found: dict[PortKey, tuple[Endpoint, ...]] = {}
    for port in piece.ports:
        if port.name is None or not port.port:
            continue
        key = (port.name, (port.protocol or "TCP").lower())
        check_port(key[1], port.port)
        found[key] = tuple(
            endpoint for entry in piece.endpoints if (endpoint := _endpoint(entry, port.port, family, node)) is not None
        )
    return found


def _endpoint(entry: ApiEndpoint, port: int, family: Family, node: str) -> Endpoint | None:
    ip = family.ip(entry.addresses[0]) if entry.addresses else None
    if ip is None:
        return None
    if ip == entry.addresses[0]:
        ip = entry.addresses[0]  # the same text as one object: there are 100,000 of them
    conditions = entry.conditions
    hints = entry.hints
    return Endpoint(
        address=family.endpoint(ip, port),
        ip=ip,
        port=port,
        local=entry.node_name == node,
        ready=conditions.ready is not False,
        serving=conditions.serving is not False,
        terminating=conditions.terminating is True,
        zones=_names(hints.for_zones) if hints else frozenset(),
        nodes=_names(hints.for_nodes) if hints else frozenset(),
    )


def _names(entries: Iterable[dict[str, str]]) -> frozenset[str]:
    return frozenset(entry["name"] for entry in entries if "name" in entry)


def merge(pieces: Iterable[tuple[Endpoint, ...]]) -> tuple[Endpoint, ...]:
    """The endpoints of several slices, each ip:port once, sorted by it."""
    found: dict[str, Endpoint] = {}
    for piece in pieces:
        for endpoint in piece:
            known = found.get(endpoint.address)
            if known is None or (known.terminating and not endpoint.terminating):
                found[endpoint.address] = endpoint
    return tuple([found[address] for address in sorted(found)])
