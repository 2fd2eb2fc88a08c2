"""Services and EndpointSlices with only the fields that kube-proxy reads, and ServiceCIDRs, which nobody else reads.

A node of a big cluster holds 10,000 of each and 100,000 endpoints for as long as it runs. Half of what an endpoint says in the
API (its zone, its host name, the pod behind it) and most of an object's metadata mean nothing for rules, so they
are not even built: msgspec skips them in the JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from podwire.kube.kinds import Kind
from podwire.kube.meta import Lenient, Object, OrNull, Part
from podwire.kube.objects import EndpointConditions, EndpointHints, EndpointPort, ServiceStatus

TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
SERVICE_NAME = "kubernetes.io/service-name"
_NO_TEXTS: dict[str, str] = {}


class Meta(Lenient, frozen=True):
    """As much of ObjectMeta as names the object and its version. Of annotations only the one that is read is kept."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    annotations: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)

    _or_null = ("labels", "annotations")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.annotations is not _NO_TEXTS:
            time = self.annotations.get(TRIGGER_TIME)
            msgspec.structs.force_setattr(self, "annotations", {TRIGGER_TIME: time} if time else _NO_TEXTS)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


class ServicePort(Part, frozen=True):
    """One port of a Service."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    node_port: int = 0


class ServiceSpec(Lenient, frozen=True):
    """What a Service asks for."""

    type: str = "ClusterIP"
    cluster_ip: str = ""
    cluster_ips: OrNull[tuple[str, ...]] = ()
    ip_families: OrNull[tuple[str, ...]] = ()
    ports: OrNull[tuple[ServicePort, ...]] = ()
    external_ips: OrNull[tuple[str, ...]] = ()
    session_affinity: str = "None"
    session_affinity_config: dict[str, Any] | None = None
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None
    health_check_node_port: int = 0
    load_balancer_source_ranges: OrNull[tuple[str, ...]] = ()

    _or_null = ("cluster_ips", "ip_families", "ports", "external_ips", "load_balancer_source_ranges")


class Service(Object, frozen=True):
    """v1 Service."""

    metadata: Meta = Meta()  # type: ignore[assignment]  # fewer fields than ObjectMeta, and all that Object's users read
    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()

    api_version = "v1"
    kind = "Service"


class Endpoint(Lenient, frozen=True):
    """One backend; its first address counts."""

    addresses: OrNull[tuple[str, ...]] = ()
    conditions: OrNull[EndpointConditions] = EndpointConditions()
    node_name: str | None = None
    hints: EndpointHints | None = None

    _or_null = ("addresses", "conditions")


class EndpointSlice(Lenient, Object, frozen=True):
    """discovery.k8s.io/v1 EndpointSlice."""

    metadata: Meta = Meta()  # type: ignore[assignment]  # as Service's
    address_type: str = ""
    endpoints: OrNull[tuple[Endpoint, ...]] = ()
    ports: OrNull[tuple[EndpointPort, ...]] = ()

    api_version = "discovery.k8s.io/v1"
    kind = "EndpointSlice"
    _or_null = ("endpoints", "ports")

    @property
    def service(self) -> str:
        """Name of the Service this slice belongs to, or empty."""
        return self.metadata.labels.get(SERVICE_NAME, "")


class ServiceCIDRSpec(Lenient, frozen=True):
    """One prefix a family."""

    cidrs: OrNull[tuple[str, ...]] = ()

    _or_null = ("cidrs",)


class ServiceCIDR(Object, frozen=True):
    """networking.k8s.io/v1 ServiceCIDR (KEP-1880): clusterIPs are given from the ranges of all of them."""

    spec: ServiceCIDRSpec = ServiceCIDRSpec()

    api_version = "networking.k8s.io/v1"
    kind = "ServiceCIDR"


SERVICES = Kind("", "v1", "services", namespaced=True, struct=Service)
ENDPOINT_SLICES = Kind("discovery.k8s.io", "v1", "endpointslices", namespaced=True, struct=EndpointSlice)
SERVICE_CIDRS = Kind("networking.k8s.io", "v1", "servicecidrs", namespaced=False, struct=ServiceCIDR)
