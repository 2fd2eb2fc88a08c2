"""A Service as kube-proxy sees it: for one address family, one value for each of its ports, with defaults filled in.

This is pure reading of the API object; what it means on this node is `view`'s business. The rules (pkg/proxy's, all of
them visible in the golden cases):

* A Service is skipped when its clusterIP is None, it is an ExternalName, a label says that it is another proxy's (the
  label's value does not matter) or headless, or it has no clusterIP of this family, which stands at the family's place
  in ipFamilies.
* externalTrafficPolicy counts only where there is an external frontend by type: NodePort, LoadBalancer, or externalIPs.
* An ingress address counts unless its ipMode is Proxy: then the load balancer sends to the node ports itself.
* loadBalancerSourceRanges that hold everything (a zero prefix) mean no firewall.
* healthCheckNodePort counts for a LoadBalancer with external policy Local.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from podwire import naming

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.objects import Service, ServiceSpec

# Services and slices with one of these labels are for somebody else. The daemon does not even ask the API for them.
FOREIGN_LABELS = ("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless")
LABEL_SELECTOR = ",".join("!" + label for label in FOREIGN_LABELS)
DEFAULT_AFFINITY_SECONDS = 10800  # core/v1 ClientIPConfig
LONGEST_AFFINITY_SECONDS = 86400
PROTOCOLS = frozenset(("tcp", "udp", "sctp"))
_NAME = re.compile(r"[A-Za-z0-9._-]*")

Key = tuple[str, str, str]
"""(namespace/name, port name, protocol): what a service port is known by."""


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """One port of a Service in one family. `title` is namespace/name:port as comments have it; protocol in lower case."""

    service: str
    name: str
    title: str
    protocol: str
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_seconds: int = 0
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0

    @property
    def key(self) -> Key:
        """What the port is known by."""
        return (self.service, self.name, self.protocol)

    @property
    def externally_accessible(self) -> bool:
        """Whether it has any frontend but its clusterIP."""
        return bool(self.node_port or self.external_ips or self.load_balancer_ips)

    @property
    def uses_cluster(self) -> bool:
        """Whether endpoints of the whole cluster are used: also under external policy Local, for pods and the node."""
        return not self.internal_local or self.externally_accessible

    @property
    def uses_local(self) -> bool:
        """Whether endpoints of this node are used apart."""
        return self.internal_local or (self.external_local and self.externally_accessible)


def check_port(protocol: str, port: int) -> None:
    """Raise ValueError for what no rule can say: one such line would have the kernel refuse those of all Services."""
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r} is none of TCP, UDP, SCTP")
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not between 1 and 65535")


def _check(service: Service) -> None:
    meta = service.metadata
    for name in (meta.namespace, meta.name, *[port.name for port in service.spec.ports]):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name")
    if service.spec.health_check_node_port:
        check_port("tcp", service.spec.health_check_node_port)
    for port in service.spec.ports:
        check_port(port.protocol.lower(), port.port)
        if port.node_port:
            check_port(port.protocol.lower(), port.node_port)


def is_foreign(labels: dict[str, str]) -> bool:
    """Whether these labels say that the object is not for kube-proxy."""
    return any(label in labels for label in FOREIGN_LABELS)


def service_ports(service: Service, family: Family) -> tuple[ServicePort, ...]:
    """The ports of the Service in this family; none if the Service is not ours to serve.

    Raises ValueError for a Service that an API server would not have let in.
    """
    spec = service.spec
    if spec.type == "ExternalName" or is_foreign(service.metadata.labels):
        return ()
    cluster_ip = family.ip(_cluster_ip(spec, family))
    if cluster_ip is None:
        return ()
    _check(service)
    external_ips = _ips(spec.external_ips, family)
    external = spec.type in ("NodePort", "LoadBalancer") or bool(spec.external_ips)
    external_local = external and spec.external_traffic_policy == "Local"
    ingress = [entry.ip for entry in service.status.load_balancer.ingress if entry.ip and entry.ip_mode != "Proxy"]
    meta = service.metadata
    return tuple(
        ServicePort(
            service=meta.key,
            name=port.name,
            title=naming.service_port_name(meta.namespace, meta.name, port.name),
            protocol=port.protocol.lower(),
            cluster_ip=cluster_ip,
            port=port.port,
            node_port=port.node_port,
            external_ips=external_ips,
            load_balancer_ips=_ips(ingress, family),
            source_ranges=_source_ranges(spec, family),
            affinity_seconds=_affinity_seconds(spec),
            internal_local=spec.internal_traffic_policy == "Local",
            external_local=external_local,
            health_check_node_port=spec.health_check_node_port if external_local and spec.type == "LoadBalancer" else 0,
        )
        for port in spec.ports
    )


def _cluster_ip(spec: ServiceSpec, family: Family) -> str:
    if not spec.ip_families:
        return spec.cluster_ip  # from before dual stack; `Family.ip` refuses the other family and None
    for name, ip in zip(spec.ip_families, spec.cluster_ips, strict=False):
        if name == family.name:
            return ip
    return ""


def _ips(texts: Iterable[str], family: Family) -> tuple[str, ...]:
    return tuple(ip for text in texts if (ip := family.ip(text)) is not None)


def _source_ranges(spec: ServiceSpec, family: Family) -> tuple[str, ...]:
    ranges = tuple(prefix for text in spec.load_balancer_source_ranges if (prefix := family.prefix(text)) is not None)
    return () if any(prefix.endswith("/0") for prefix in ranges) else ranges


def _affinity_seconds(spec: ServiceSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    client_ip = (spec.session_affinity_config or {}).get("clientIP") or {}
    seconds = int(client_ip.get("timeoutSeconds") or DEFAULT_AFFINITY_SECONDS)
    if not 0 < seconds <= LONGEST_AFFINITY_SECONDS:
        raise ValueError(f"timeoutSeconds {seconds} is not between 1 and {LONGEST_AFFINITY_SECONDS}")
    return seconds
