"""Service (core/v1).

A write goes: defaults → what an update left out is taken over from the stored Service, and what a changed type no
longer has is dropped (`carry_over`, `drop_unused`; kubernetes `pkg/registry/core/service/storage/storage.go` and
`strategy.go`) → addresses and node ports are settled → checks. Its addresses and node ports are claims of the object,
so they are free again when it lets go of them or is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import label_selectors
from podwire.apiserver.allocators import CLUSTER_IP, NODE_PORT
from podwire.apiserver.kinds import service_checks
from podwire.apiserver.kinds.podspec import fill
from podwire.apiserver.kinds.service_addresses import Addresses, external, headless
from podwire.apiserver.kinds.service_ports import Ports, all_numbers, needs, needs_health_check
from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from podwire.apiserver.resource import Claim, Context, Object

Spec = dict[str, Any]

AFFINITY_SECONDS = 10800

_COLUMNS = (
    NAME,
    Column("Type", description="How the Service is exposed."),
    Column("Cluster-IP", description="The first address of the Service."),
    Column("External-IP", description="Addresses beyond the cluster's own at which nodes accept traffic for it."),
    Column("Port(s)", description="port[:nodePort]/protocol of each port."),
    AGE,
    Column("Selector", priority=1, description="The labels of the pods behind it."),
)


class ServiceStrategy(Strategy):
    """The rules of Services."""

    def defaults(self, obj: Object) -> None:
        """Type, session affinity, ports, traffic policies."""
        spec = obj.setdefault("spec", {})
        fill(spec, type="ClusterIP", sessionAffinity="None")
        _affinity(spec)
        for port in spec.get("ports") or ():
            fill(port, protocol="TCP")
            if port.get("targetPort") in (None, 0, ""):
                port["targetPort"] = port.get("port", 0)
        if service_checks.reachable_from_outside(spec):
            fill(spec, externalTrafficPolicy="Cluster")
        if not external(spec) and spec.get("internalTrafficPolicy") is None:
            spec["internalTrafficPolicy"] = "Cluster"
        balancer = obj.setdefault("status", {}).setdefault("loadBalancer", {})
        if spec["type"] == "LoadBalancer":
            if spec.get("allocateLoadBalancerNodePorts") is None:
                spec["allocateLoadBalancerNodePorts"] = True
            for ingress in balancer.get("ingress") or ():
                if ingress.get("ip") and ingress.get("ipMode") is None:
                    ingress["ipMode"] = "VIP"

    def prepare_create(self, obj: Object, ctx: Context) -> None:
        """No status; addresses and ports."""
        obj["status"] = {"loadBalancer": {}}
        spec = obj["spec"]
        if spec.get("clusterIP") and not spec.get("clusterIPs"):
            spec["clusterIPs"] = [spec["clusterIP"]]
        self._settle(obj, None, ctx)

    def prepare_update(self, new: Object, old: Object, subresource: str, ctx: Context) -> None:
        """Of the spec: what is kept, dropped, allocated. A status update touches none of it."""
        if subresource:
            return
        spec, before = new["spec"], old["spec"]
        carry_over(spec, before)
        _normalise(spec, before)
        drop_unused(spec, before)
        self._settle(new, old, ctx)

    def _settle(self, new: Object, old: Object | None, ctx: Context) -> None:
        owner = (new["metadata"].get("namespace", ""), new["metadata"]["name"])
        before = old["spec"] if old else None
        Addresses(RESOURCE, owner, new["spec"], before, ctx).settle()
        Ports(RESOURCE, owner, new["spec"], before, ctx).settle()

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """Spec and status."""
        return service_checks.check(obj, old) + service_checks.check_status(obj.get("status") or {})

    def claims(self, obj: Object) -> Sequence[Claim]:
        """Its cluster IPs and node ports."""
        spec = obj["spec"]
        held = [] if external(spec) or headless(spec) else [(CLUSTER_IP, ip) for ip in spec.get("clusterIPs") or ()]
        return list(dict.fromkeys([*held, *((NODE_PORT, str(number)) for number in all_numbers(spec))]))

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE; SELECTOR."""
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        return [
            metadata["name"],
            spec.get("type", ""),
            (spec.get("clusterIPs") or ["<none>"])[0],
            _outside(spec, obj.get("status") or {}),
            ",".join(map(_port, spec.get("ports") or ())) or "<none>",
            age(metadata.get("creationTimestamp"), now),
            label_selectors.labels_text(spec.get("selector")),
        ]


def _affinity(spec: Spec) -> None:
    """A configuration belongs to ClientIP, which needs one."""
    if spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    elif spec["sessionAffinity"] == "ClientIP":
        config = spec.get("sessionAffinityConfig") or {}
        if (config.get("clientIP") or {}).get("timeoutSeconds") is None:
            spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": AFFINITY_SECONDS}}


def carry_over(new: Spec, old: Spec) -> None:
    """What was allocated and an update does not mention stays: a manifest without it may be put again and again."""
    if not external(new) and not external(old):
        if not new.get("clusterIP"):
            _copy(new, old, "clusterIP")
        if not new.get("clusterIPs") and new.get("clusterIP") == old.get("clusterIP"):
            _copy(new, old, "clusterIPs")
    if needs(new) and needs(old):
        before = {port.get("name", ""): port.get("nodePort") for port in old.get("ports") or ()}
        used = {port.get("nodePort") for port in new.get("ports") or ()}
        for port in new.get("ports") or ():
            known = before.get(port.get("name", ""))
            if not port.get("nodePort") and known and known not in used:
                port["nodePort"] = known
                used.add(known)
    if needs_health_check(new) and needs_health_check(old) and not new.get("healthCheckNodePort"):
        _copy(new, old, "healthCheckNodePort")


def _copy(new: Spec, old: Spec, key: str) -> None:
    if key in old:
        new[key] = old[key]


def _normalise(new: Spec, old: Spec) -> None:
    """`clusterIP` is `clusterIPs[0]`: a client that changes or clears only one of the two means both."""
    if new.get("clusterIP") == old.get("clusterIP") or new.get("clusterIPs") != old.get("clusterIPs"):
        if new.get("clusterIP") and not new.get("clusterIPs"):
            new["clusterIPs"] = [new["clusterIP"]]
        return
    if not new.get("clusterIP"):
        new.pop("clusterIPs", None)
    else:
        new["clusterIPs"] = [new["clusterIP"], *(new.get("clusterIPs") or [])[1:]]


def drop_unused(new: Spec, old: Spec) -> None:
    """Fields that belong to the old type and were left as they were go with it; a changed one is checked instead."""

    def drop(applies: bool, applied: bool, *keys: str) -> None:
        for key in keys:
            if applied and not applies and new.get(key) == old.get(key):
                new.pop(key, None)

    addressed = not external(new), not external(old)
    drop(*addressed, "clusterIP", "clusterIPs")
    drop(*addressed, "ipFamilies", "ipFamilyPolicy")
    if needs(old) and not needs(new) and _node_ports(new) == _node_ports(old):
        for port in new.get("ports") or ():
            port.pop("nodePort", None)
    drop(needs_health_check(new), needs_health_check(old), "healthCheckNodePort")
    balanced = (new.get("type") == "LoadBalancer", old.get("type") == "LoadBalancer")
    drop(*balanced, "allocateLoadBalancerNodePorts", "loadBalancerClass")
    reachable = service_checks.reachable_from_outside
    drop(reachable(new), reachable(old), "externalTrafficPolicy")


def _node_ports(spec: Spec) -> list[int]:
    return [port.get("nodePort") or 0 for port in spec.get("ports") or ()]


def _outside(spec: Spec, status: dict[str, Any]) -> str:
    """The EXTERNAL-IP cell."""
    extra = spec.get("externalIPs") or []
    if external(spec):
        return spec.get("externalName") or ""
    if spec.get("type") != "LoadBalancer":
        return ",".join(extra) or "<none>"
    ingress = (status.get("loadBalancer") or {}).get("ingress") or []
    given = sorted({entry.get("ip") or entry.get("hostname") or "" for entry in ingress} - {""})
    return ",".join([*given, *extra]) or "<pending>"


def _port(port: dict[str, Any]) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port', 0)}{node}/{port.get('protocol', '')}"


RESOURCE = Resource(
    group="",
    version="v1",
    kind="Service",
    plural="services",
    singular="service",
    short_names=("svc",),
    categories=("all",),
    subresources=("status",),
    columns=_COLUMNS,
    selectable=("spec.clusterIP", "spec.type"),
    name_rule="label1035",
    strategy=ServiceStrategy(),
)
