"""Node ports of a Service: nodePort of its ports, and healthCheckNodePort.

One number serves all protocols that the Service uses it for; between Services a number is taken whatever the protocol,
as in kubernetes (`pkg/registry/core/service/storage/alloc.go`, `portallocator`). Refusals come at once, before
validation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import status
from podwire.apiserver.allocators import PortRange, Refused
from podwire.apiserver.resource import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.apiserver.resource import Context, Resource

Spec = dict[str, Any]


def needs(spec: Spec) -> bool:
    """NodePort or LoadBalancer."""
    return spec.get("type") in {"NodePort", "LoadBalancer"}


def needs_health_check(spec: Spec) -> bool:
    """A load balancer with externalTrafficPolicy Local asks nodes whether they have an endpoint."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def numbers(spec: Spec) -> list[int]:
    """The nodePorts in use."""
    return [port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort")]


def all_numbers(spec: Spec) -> Iterator[int]:
    """What the Service holds of the range."""
    if needs(spec):
        yield from numbers(spec)
    if needs_health_check(spec) and spec.get("healthCheckNodePort"):
        yield spec["healthCheckNodePort"]


class Ports:
    """One request's work on the node ports of a Service; `old` is its stored spec, None on create."""

    def __init__(self, resource: Resource, owner: tuple[str, str], spec: Spec, old: Spec | None, ctx: Context) -> None:
        self._resource = resource
        self._owner = "/".join(owner)
        self._name = owner[1]
        self._spec = spec
        self._ctx = ctx
        self._range = PortRange(ctx.flags.node_ports)
        self._before = frozenset(all_numbers(old or {}))
        self._new = old is None
        self._shared: dict[int, int] = {}

    def settle(self) -> None:
        """Fill in the numbers; raises StatusError."""
        spec = self._spec
        if needs(spec):
            for index, port in enumerate(spec.get("ports") or ()):
                if port.get("nodePort") or spec["type"] == "NodePort" or spec.get("allocateLoadBalancerNodePorts"):
                    self._port(f"spec.ports[{index}].nodePort", port)
        if needs_health_check(spec):
            self._health_check()

    def _port(self, path: str, port: dict[str, Any]) -> None:
        """One port. A new Service uses one number for the same port of two protocols, as far as nobody says otherwise."""
        number = port.get("port") or 0
        asked = port.get("nodePort") or 0
        if self._new:
            asked = asked or self._shared.get(number) or self._asked_elsewhere(number)
        if not asked:
            port["nodePort"] = self._shared[number] = self._next("a nodePort")
            return
        twice = self._new and asked in self._shared.values() and self._shared.get(number) != asked
        try:
            self._take(asked, twice=twice)
        except Refused as refusal:
            cause = Cause.invalid(path, asked, str(refusal))
            raise status.invalid(self._resource, self._name, [cause]) from None
        port["nodePort"] = self._shared[number] = asked

    def _asked_elsewhere(self, port: int) -> int:
        """The number that the same port of another protocol asks for."""
        same = (other.get("nodePort") for other in self._spec["ports"] if other.get("port") == port)
        return next((number for number in same if number), 0)

    def _health_check(self) -> None:
        asked = self._spec.get("healthCheckNodePort")
        if not asked:
            self._spec["healthCheckNodePort"] = self._next("a HealthCheck NodePort 0")
            return
        try:
            self._take(asked)
        except Refused as refusal:
            raise status.internal(f"failed to allocate requested HealthCheck NodePort {asked}: {refusal}") from None

    def _take(self, number: int, *, twice: bool = False) -> None:
        """A number the Service already had is not looked at again, also when the range has changed meanwhile."""
        if twice:
            raise Refused(PortRange.taken)
        if number not in self._before:
            self._range.take(self._ctx, str(number), self._owner)

    def _next(self, what: str) -> int:
        reserved = frozenset(map(str, [*numbers(self._spec), self._spec.get("healthCheckNodePort") or 0]))
        try:
            return int(self._range.next(self._ctx, int(self._ctx.new_uid().replace("-", ""), 16), reserved))
        except Refused as refusal:
            raise status.internal(f"failed to allocate {what}: {refusal}") from None
