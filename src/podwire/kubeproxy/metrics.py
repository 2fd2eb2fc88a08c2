"""kube-proxy's metrics, under the names that dashboards and alerts for the real one use.

One set a process, registered when it is made; `text` is the page. Durations are histograms with the real one's buckets.
What is podwire's own begins with podwire_.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

_SYNC_BUCKETS = [0.001 * 2**power for power in range(15)]
_PROGRAMMING_BUCKETS = (
    *(0.25, 0.5, *[float(second) for second in range(1, 60)]),
    *[float(second) for second in range(60, 121, 5)],
    *[float(second) for second in range(150, 301, 30)],
)


class Metrics:
    """All of them; attributes are named after the metric."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        family = ("ip_family",)
        self.sync = self._histogram("sync_proxy_rules_duration_seconds", "Latency of a sync", family)
        self.sync_full = self._histogram("sync_full_proxy_rules_duration_seconds", "Latency of a full sync", family)
        self.sync_partial = self._histogram(
            "sync_partial_proxy_rules_duration_seconds", "Latency of a partial sync", family
        )
        self.last_sync = self._gauge("sync_proxy_rules_last_timestamp_seconds", "When rules were last synced", family)
        self.last_queued = self._gauge(
            "sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for", family
        )
        self.rules = self._gauge("sync_proxy_rules_iptables_total", "iptables rules of ours", (*family, "table"))
        self.restore_failures = self._counter("sync_proxy_rules_iptables_restore_failures", "Syncs that failed", family)
        self.nft_failures = self._counter("sync_proxy_rules_nftables_sync_failures", "Syncs that nft refused", family)
        self.partial_failures = self._counter(
            "sync_proxy_rules_iptables_partial_restore_failures", "Partial syncs that had to be made full", family
        )
        self.service_changes = self._counter("sync_proxy_rules_service_changes", "Service changes seen", family)
        self.endpoint_changes = self._counter("sync_proxy_rules_endpoint_changes", "Endpoint changes seen", family)
        self.service_pending = self._gauge("sync_proxy_rules_service_changes_pending", "Not synced yet", family)
        self.endpoint_pending = self._gauge("sync_proxy_rules_endpoint_changes_pending", "Not synced yet", family)
        self.no_local = self._gauge(
            "sync_proxy_rules_no_local_endpoints", "Ports without local endpoints", (*family, "traffic_policy")
        )
        self.programming = Histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of a Service or pod to the rule in the kernel",
            family,
            buckets=_PROGRAMMING_BUCKETS,
            registry=self.registry,
        )
        self.conntrack_deleted = self._counter(
            "conntrack_reconciler_deleted_entries", "Stale UDP flows deleted", family
        )
        self.conntrack = self._histogram(
            "conntrack_reconciler_sync_duration_seconds", "Latency of reconciling UDP flows", family
        )
        self.healthz = self._counter("proxy_healthz", "Answers on /healthz", ("code",))
        self.livez = self._counter("proxy_livez", "Answers on /livez", ("code",))
        self.node_ports = Gauge(
            "podwire_node_ports_held", "NodePorts held by a socket", ("protocol",), registry=self.registry
        )
        self.node_port_failures = Gauge(
            "podwire_node_ports_not_held", "NodePorts that somebody else has", registry=self.registry
        )
        self.strays = Counter(
            "podwire_node_port_strays",
            "Connections and datagrams that reached a NodePort's own socket, because no rule took them",
            ("protocol",),
            registry=self.registry,
        )
        self.repairs = Counter(
            "podwire_rules_repaired", "Full syncs because somebody took rules away", family, registry=self.registry
        )

    def _histogram(self, name: str, text: str, labels: tuple[str, ...]) -> Histogram:
        return Histogram(f"kubeproxy_{name}", text, labels, buckets=_SYNC_BUCKETS, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...]) -> Gauge:
        return Gauge(f"kubeproxy_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"kubeproxy_{name}", text, labels, registry=self.registry)

    def text(self) -> bytes:
        """The page /metrics."""
        return generate_latest(self.registry)
