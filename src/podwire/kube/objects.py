"""The Kubernetes objects podwire reads, as msgspec structs with only the fields it reads.

`meta` holds what all of them have and says how they are made, `podspec` the pod, `workloads` Deployments, ReplicaSets,
Events and Leases; this page holds the others and is the one to import from. A field that is missing here is missing on purpose: add it when something reads it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from podwire.kube.meta import (
    Condition,
    LabelSelector,
    LabelSelectorRequirement,
    Lenient,
    Object,
    ObjectMeta,
    ObjectReference,
    OrNull,
    OwnerReference,
    Part,
    reference,
)
from podwire.kube.podspec import (
    Container,
    ContainerPort,
    ContainerStatus,
    EnvVar,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    Toleration,
)
from podwire.kube.workloads import (
    Deployment,
    DeploymentSpec,
    DeploymentStatus,
    DeploymentStrategy,
    Event,
    EventSource,
    Lease,
    LeaseSpec,
    ReplicaSet,
    ReplicaSetSpec,
    ReplicaSetStatus,
)

__all__ = [
    "AnyObject",
    "Condition",
    "ConfigMap",
    "Container",
    "ContainerPort",
    "ContainerStatus",
    "Deployment",
    "DeploymentSpec",
    "DeploymentStatus",
    "DeploymentStrategy",
    "Endpoint",
    "EndpointConditions",
    "EndpointHints",
    "EndpointPort",
    "EndpointSlice",
    "EnvVar",
    "Event",
    "EventSource",
    "LabelSelector",
    "LabelSelectorRequirement",
    "Lease",
    "LeaseSpec",
    "LoadBalancerIngress",
    "Namespace",
    "Node",
    "NodeAddress",
    "NodeSpec",
    "NodeStatus",
    "Object",
    "ObjectMeta",
    "ObjectReference",
    "OwnerReference",
    "Pod",
    "PodIP",
    "PodSpec",
    "PodStatus",
    "ReplicaSet",
    "ReplicaSetSpec",
    "ReplicaSetStatus",
    "Service",
    "ServicePort",
    "ServiceSpec",
    "ServiceStatus",
    "Taint",
    "Toleration",
    "reference",
]


class Taint(Part, frozen=True):
    """What keeps pods off a node; effect is NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: str | None = None


class NodeSpec(Lenient, frozen=True):
    """podCIDRs are set once, by node IPAM; `pod_cidr` is the first of them."""

    pod_cidr: str = ""
    pod_cidrs: OrNull[tuple[str, ...]] = ()
    unschedulable: bool = False
    taints: OrNull[tuple[Taint, ...]] = ()
    provider_id: str = ""

    _or_null = ("pod_cidrs", "taints")


class NodeAddress(Part, frozen=True):
    """Its type is InternalIP, ExternalIP or Hostname."""

    type: str
    address: str


class NodeStatus(Lenient, frozen=True):
    """What the kubelet reports."""

    addresses: OrNull[tuple[NodeAddress, ...]] = ()
    conditions: OrNull[tuple[Condition, ...]] = ()
    capacity: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    allocatable: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)

    _or_null = ("addresses", "conditions", "capacity", "allocatable")


class Node(Object, frozen=True):
    """v1 Node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    api_version = "v1"
    kind = "Node"

    @property
    def pod_cidrs(self) -> tuple[str, ...]:
        """The node's prefixes for pods, also when only the old single field is set."""
        return self.spec.pod_cidrs or ((self.spec.pod_cidr,) if self.spec.pod_cidr else ())

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)

    @property
    def internal_ips(self) -> tuple[str, ...]:
        """Addresses of type InternalIP."""
        return tuple(entry.address for entry in self.status.addresses if entry.type == "InternalIP")


class Namespace(Object, frozen=True):
    """v1 Namespace; status.phase is Active or Terminating."""

    status: dict[str, Any] = msgspec.field(default_factory=dict)

    api_version = "v1"
    kind = "Namespace"


class ConfigMap(Lenient, Object, frozen=True):
    """v1 ConfigMap."""

    data: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    binary_data: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    immutable: bool = False

    api_version = "v1"
    kind = "ConfigMap"
    _or_null = ("data", "binary_data")


class ServicePort(Part, frozen=True):
    """One port of a Service; target_port is a number or the name of a container port, unset it equals `port`."""

    port: int
    name: str = ""
    protocol: str = "TCP"
    target_port: int | str | None = None
    node_port: int = 0
    app_protocol: str | None = None


class ServiceSpec(Lenient, frozen=True):
    """type is ClusterIP, NodePort, LoadBalancer or ExternalName."""

    type: str = "ClusterIP"
    cluster_ip: str = ""
    cluster_ips: OrNull[tuple[str, ...]] = ()
    ip_families: OrNull[tuple[str, ...]] = ()
    ip_family_policy: str | None = None
    ports: OrNull[tuple[ServicePort, ...]] = ()
    selector: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    external_ips: OrNull[tuple[str, ...]] = ()
    external_name: str = ""
    session_affinity: str = "None"
    session_affinity_config: dict[str, Any] | None = None
    external_traffic_policy: str = ""
    internal_traffic_policy: str | None = None
    traffic_distribution: str | None = None
    health_check_node_port: int = 0
    publish_not_ready_addresses: bool = False
    load_balancer_ip: str = ""
    load_balancer_class: str | None = None
    load_balancer_source_ranges: OrNull[tuple[str, ...]] = ()
    allocate_load_balancer_node_ports: bool | None = None

    _or_null = ("cluster_ips", "ip_families", "ports", "selector", "external_ips", "load_balancer_source_ranges")


class LoadBalancerIngress(Part, frozen=True):
    """An address of the load balancer; ip_mode VIP (the default) or Proxy."""

    ip: str = ""
    hostname: str = ""
    ip_mode: str | None = None


class LoadBalancerStatus(Lenient, frozen=True):
    """What the load balancer's controller reports."""

    ingress: OrNull[tuple[LoadBalancerIngress, ...]] = ()

    _or_null = ("ingress",)


class ServiceStatus(Part, frozen=True):
    """Only the load balancer's addresses."""

    load_balancer: LoadBalancerStatus = LoadBalancerStatus()


class Service(Object, frozen=True):
    """v1 Service."""

    spec: ServiceSpec = ServiceSpec()
    status: ServiceStatus = ServiceStatus()

    api_version = "v1"
    kind = "Service"


class EndpointConditions(Part, frozen=True):
    """None of `ready` and `serving` means true, of `terminating` false (discovery/v1)."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class EndpointHints(Lenient, frozen=True):
    """Which zones and nodes should use this endpoint: lists of {"name": …}."""

    for_zones: OrNull[tuple[dict[str, str], ...]] = ()
    for_nodes: OrNull[tuple[dict[str, str], ...]] = ()

    _or_null = ("for_zones", "for_nodes")


class Endpoint(Lenient, frozen=True):
    """One backend; consumers use the first address only (discovery/v1)."""

    addresses: OrNull[tuple[str, ...]] = ()
    conditions: OrNull[EndpointConditions] = EndpointConditions()
    node_name: str | None = None
    zone: str | None = None
    hostname: str | None = None
    target_ref: ObjectReference | None = None
    hints: EndpointHints | None = None

    _or_null = ("addresses", "conditions")


class EndpointPort(Part, frozen=True):
    """A port of all endpoints of the slice; no number means every port."""

    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    app_protocol: str | None = None


class EndpointSlice(Lenient, Object, frozen=True):
    """discovery.k8s.io/v1 EndpointSlice; address_type IPv4, IPv6 or FQDN."""

    address_type: str = ""
    endpoints: OrNull[tuple[Endpoint, ...]] = ()
    ports: OrNull[tuple[EndpointPort, ...]] = ()

    api_version = "discovery.k8s.io/v1"
    kind = "EndpointSlice"
    _or_null = ("endpoints", "ports")

    @property
    def service(self) -> str:
        """Name of the Service this slice belongs to, or empty."""
        return self.metadata.labels.get("kubernetes.io/service-name", "")


class AnyObject(Object, frozen=True):
    """Only the metadata of an object of any kind, for garbage collection."""
