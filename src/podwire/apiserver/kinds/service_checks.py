"""What is checked of a Service once addresses and node ports are settled.

The rules and their words are those of kubernetes `pkg/apis/core/validation/validation.go` (ValidateService,
ValidateServiceUpdate), the order too, because the first message is the one people read.
"""

from __future__ import annotations

from typing import Any

from podwire.apiserver import formats
from podwire.apiserver.kinds import service_addresses as addresses
from podwire.apiserver.kinds.containers import PROTOCOLS, check_port, each, one_of
from podwire.apiserver.kinds.service_ports import needs, needs_health_check
from podwire.apiserver.metadata import label_causes
from podwire.apiserver.resource import Cause

Spec = dict[str, Any]

TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
LONGEST_AFFINITY = 86400
SOURCE_RANGES = "service.beta.kubernetes.io/load-balancer-source-ranges"
DISTRIBUTIONS = ("PreferClose", "PreferSameNode", "PreferSameZone")


def reachable_from_outside(spec: Spec) -> bool:
    """Whether externalTrafficPolicy means anything."""
    return needs(spec) or (spec.get("type") == "ClusterIP" and bool(spec.get("externalIPs")))


def check(service: dict[str, Any], old: dict[str, Any] | None) -> list[Cause]:
    """A Service; `old` is the stored one."""
    spec = service["spec"]
    causes = check_changes(spec, old["spec"]) if old is not None else []
    causes += _type(spec)
    ports = spec.get("ports") or []
    names: set[str] = set()
    for index, port in enumerate(ports):
        causes += _port(f"spec.ports[{index}]", port, names, needs_name=len(ports) > 1)
    causes += label_causes(spec.get("selector") or {}, "spec.selector")
    causes += _affinity(spec)
    causes += addresses.check(spec)
    for index, ip in enumerate(spec.get("externalIPs") or ()):
        wrong = formats.address(ip) or formats.ordinary_address(ip)
        causes += each(f"spec.externalIPs[{index}]", ip, wrong)
    causes += one_of("spec.type", spec.get("type"), TYPES)
    causes += _duplicates(spec, ports)
    causes += _load_balancer(service)
    return causes + _policies(spec)


def _type(spec: Spec) -> list[Cause]:
    """What only some types may or must have."""
    kind, causes = spec.get("type"), []
    if not spec.get("ports") and not addresses.headless(spec) and not addresses.external(spec):
        causes.append(Cause.required("spec.ports"))
    if kind in {"LoadBalancer", "NodePort"} and addresses.headless(spec):
        detail = f"may not be set to 'None' for {kind} services"
        causes.append(Cause.invalid("spec.clusterIPs[0]", "None", detail))
    if addresses.external(spec):
        given = (key for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy") if spec.get(key))
        causes += [Cause.forbidden(f"spec.{key}", "may not be set for ExternalName services") for key in given]
        name = (spec.get("externalName") or "").removesuffix(".")
        if name:
            causes += each("spec.externalName", name, formats.subdomain(name))
        else:
            causes.append(Cause.required("spec.externalName"))
    return causes


def _port(at: str, port: dict[str, Any], names: set[str], *, needs_name: bool) -> list[Cause]:
    causes: list[Cause] = []
    name = port.get("name") or ""
    if name:
        causes += each(f"{at}.name", name, formats.label(name))
        if name in names:
            causes.append(Cause.duplicate(f"{at}.name", name))
        names.add(name)
    elif needs_name:
        causes.append(Cause.required(f"{at}.name"))
    number = port.get("port") or 0
    causes += each(f"{at}.port", number, formats.port_number(number))
    causes += one_of(f"{at}.protocol", port.get("protocol"), PROTOCOLS)
    causes += check_port(f"{at}.targetPort", port.get("targetPort"))
    if (application := port.get("appProtocol")) is not None:
        causes += each(f"{at}.appProtocol", application, formats.qualified_name(application))
    return causes


def _affinity(spec: Spec) -> list[Cause]:
    kind, config = spec.get("sessionAffinity"), spec.get("sessionAffinityConfig")
    causes = one_of("spec.sessionAffinity", kind, ("ClientIP", "None"))
    at = "spec.sessionAffinityConfig"
    if kind == "None" and config is not None:
        causes.append(Cause.forbidden(at, "must not be set when session affinity is None"))
    if kind == "ClientIP":
        seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
        if seconds is None:
            causes.append(Cause.required(at, "when session affinity type is ClientIP"))
        elif not 0 < seconds <= LONGEST_AFFINITY:
            detail = f"must be greater than 0 and less than {LONGEST_AFFINITY}"
            causes.append(Cause.invalid(f"{at}.clientIP.timeoutSeconds", seconds, detail))
    return causes


def _duplicates(spec: Spec, ports: list[dict[str, Any]]) -> list[Cause]:
    causes = []
    if spec.get("type") == "ClusterIP":
        for index, port in enumerate(ports):
            if port.get("nodePort"):
                detail = "may not be used when `type` is 'ClusterIP'"
                causes.append(Cause.forbidden(f"spec.ports[{index}].nodePort", detail))
    node_ports: set[tuple[Any, int]] = set()
    numbers: set[tuple[Any, int]] = set()
    for index, port in enumerate(ports):
        key = (port.get("protocol"), port.get("nodePort") or 0)
        if key[1] and key in node_ports:
            causes.append(Cause.duplicate(f"spec.ports[{index}].nodePort", key[1]))
        node_ports.add(key)
    for index, port in enumerate(ports):
        key = (port.get("protocol"), port.get("port") or 0)
        if key in numbers:
            # The value is how Go prints the internal struct that the original compares by.
            shown = {
                "Name": "",
                "Protocol": key[0],
                "AppProtocol": None,
                "Port": key[1],
                "TargetPort": 0,
                "NodePort": 0,
            }
            causes.append(Cause.duplicate(f"spec.ports[{index}]", shown))
        numbers.add(key)
    return causes


def _load_balancer(service: dict[str, Any]) -> list[Cause]:
    spec, causes = service["spec"], []
    balanced = spec.get("type") == "LoadBalancer"
    only = "may only be used when `type` is 'LoadBalancer'"
    annotated = (service["metadata"].get("annotations") or {}).get(SOURCE_RANGES)
    if ranges := spec.get("loadBalancerSourceRanges"):
        at = "spec.LoadBalancerSourceRanges"  # spelled so in the original
        if not balanced:
            causes.append(Cause.forbidden(at, only))
        for index, text in enumerate(ranges):
            causes += each(f"{at}[{index}]", text.strip(), formats.prefix(text.strip()))
    elif annotated is not None:
        at = f"metadata.annotations[{SOURCE_RANGES}]"
        if not balanced:
            causes.append(Cause.forbidden(at, only))
        for text in filter(None, map(str.strip, annotated.split(","))):
            causes += each(at, text, formats.prefix(text))
    if not balanced:
        for key in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
            if spec.get(key) is not None:
                causes.append(Cause.forbidden(f"spec.{key}", only))
    elif (name := spec.get("loadBalancerClass")) is not None:
        causes += each("spec.loadBalancerClass", name, formats.qualified_name(name))
    return causes


def _policies(spec: Spec) -> list[Cause]:
    causes = []
    outside, port = spec.get("externalTrafficPolicy") or "", spec.get("healthCheckNodePort") or 0
    if reachable_from_outside(spec):
        causes += one_of("spec.externalTrafficPolicy", outside, ("Cluster", "Local"))
    elif outside:
        detail = "may only be set for externally-accessible services"
        causes.append(Cause.invalid("spec.externalTrafficPolicy", outside, detail))
    if needs_health_check(spec):
        causes += each("spec.healthCheckNodePort", port, formats.port_number(port))
    elif port:
        detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        causes.append(Cause.invalid("spec.healthCheckNodePort", port, detail))
    inside = spec.get("internalTrafficPolicy")
    if inside is not None or not addresses.external(spec):
        causes += one_of("spec.internalTrafficPolicy", inside, ("Cluster", "Local"))
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in DISTRIBUTIONS:
        causes.append(Cause.not_supported("spec.trafficDistribution", distribution, DISTRIBUTIONS))
    return causes


def check_changes(new: Spec, old: Spec) -> list[Cause]:
    """What may not change once it is set; everything may when ExternalName comes or goes."""
    causes: list[Cause] = []
    if not addresses.external(new) and not addresses.external(old):
        if not (addresses.headless(new) and addresses.headless(old)):
            causes += _kept("clusterIPs", "clusterIP", new, old)
        if not addresses.headless(new) and not addresses.headless(old):
            causes += _kept("ipFamilies", "ipFamily", new, old)
    if new.get("type") == old.get("type") == "LoadBalancer":
        name = new.get("loadBalancerClass")
        if name != old.get("loadBalancerClass"):
            causes.append(Cause.invalid("spec.loadBalancerClass", name, "may not change once set"))
    both = needs_health_check(new) and needs_health_check(old)
    if both and new.get("healthCheckNodePort") != old.get("healthCheckNodePort"):
        causes.append(Cause.forbidden("spec.healthCheckNodePort", "field is immutable"))
    return causes


def _kept(key: str, word: str, new: Spec, old: Spec) -> list[Cause]:
    """The first of a pair stays; the second may come, and go with ipFamilyPolicy SingleStack."""
    now, before = new.get(key) or [], old.get(key) or []
    if before and not now:
        return [Cause.invalid(f"spec.{key}[0]", now, f"primary {word} can not be unset")]
    causes = [
        Cause.invalid(f"spec.{key}[{index}]", now, "may not change once set")
        for index, (value, was) in enumerate(zip(now, before, strict=False))
        if value != was
    ]
    if len(now) == 1 < len(before) and new.get("ipFamilyPolicy") != "SingleStack":
        detail = f"must be set to 'SingleStack' when releasing the secondary {word}"
        causes.append(Cause.invalid("spec.ipFamilyPolicy", new.get("ipFamilyPolicy"), detail))
    return causes


def check_status(status: dict[str, Any]) -> list[Cause]:
    """status.loadBalancer.ingress."""
    causes: list[Cause] = []
    for index, ingress in enumerate((status.get("loadBalancer") or {}).get("ingress") or ()):
        at = f"status.loadBalancer.ingress[{index}]"
        ip, mode, host = ingress.get("ip") or "", ingress.get("ipMode"), ingress.get("hostname") or ""
        if ip:
            causes += each(f"{at}.ip", ip, formats.address(ip))
        elif mode is not None:
            causes.append(Cause.forbidden(f"{at}.ipMode", "may not be specified when `ip` is not set"))
        if mode is not None and mode not in {"VIP", "Proxy"}:
            causes.append(Cause.not_supported(f"{at}.ipMode", mode, ("Proxy", "VIP")))
        if host:
            wrong = formats.subdomain(host)
            if not formats.address(host):
                wrong.append("must be a DNS name, not an IP address")
            causes += each(f"{at}.hostname", host, wrong)
    return causes
