"""Services as the API has them and as the rules have them, in one shape: frontends and the targets behind them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.explain.snapshot import name_of, namespace_of
from podwire.explain.snapshot_words import inner, rows, texts

if TYPE_CHECKING:
    from podwire.doctor.view import Node
    from podwire.explain.snapshot import Object


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of a slice. Conditions that the slice leaves out count as the API says: ready and serving true, terminating false."""

    ip: str
    port: int
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""


@dataclass(slots=True)
class ServicePort:
    """A port of a Service. `known` is False where no slice of it was in the input: then `endpoints` says nothing."""

    name: str  # ns/name:port
    protocol: str
    ips: set[str] = field(default_factory=set)
    port: int = 0
    node_port: int = 0
    local: bool = False
    endpoints: list[Endpoint] = field(default_factory=list)
    known: bool = False
    where: str = ""

    @property
    def usable(self) -> list[Endpoint]:
        """The ready ones, or where there are none those that still serve while they end."""
        ready = [one for one in self.endpoints if one.ready]
        return ready or [one for one in self.endpoints if one.serving and one.terminating]


def of_api(node: Node) -> list[ServicePort]:
    """The Services of the API with their slices."""
    slices: dict[tuple[str, str], list[Object]] = {}
    for one in node.snapshot.slices or ():
        labels = inner(one, "metadata").get("labels")
        owner = labels.get("kubernetes.io/service-name") if isinstance(labels, dict) else None
        if isinstance(owner, str):
            slices.setdefault((namespace_of(one), owner), []).append(one)
    found = []
    for service in node.snapshot.services or ():
        spec = service.get("spec")
        if not isinstance(spec, dict) or spec.get("type") == "ExternalName":
            continue
        own = slices.get((namespace_of(service), name_of(service)), [])
        ports = spec.get("ports")
        found += [_port(service, spec, port, own, node) for port in ports or () if isinstance(port, dict)]
    return found


def _port(service: Object, spec: dict[str, Any], port: dict[str, Any], slices: list[Object], node: Node) -> ServicePort:
    label = str(port.get("name") or "")
    shown = f"{namespace_of(service) or 'default'}/{name_of(service)}" + (f":{label}" if label else "")
    ips = {str(ip) for ip in texts(spec.get("clusterIPs")) or [str(spec.get("clusterIP") or "")] if ip and ip != "None"}
    ips |= set(texts(spec.get("externalIPs")))
    status = service.get("status")
    ingress = inner(status, "loadBalancer").get("ingress") if isinstance(status, dict) else None
    ips |= {str(one["ip"]) for one in ingress or () if isinstance(one, dict) and one.get("ip")}
    made = ServicePort(
        shown,
        str(port.get("protocol") or "TCP").lower(),
        ips,
        _number(port.get("port")),
        _number(port.get("nodePort")),
        spec.get("externalTrafficPolicy") == "Local",
        where=node.snapshot.where.get("services", ""),
    )
    for one in slices:
        made.known = True
        numbers = [
            _number(entry.get("port"))
            for entry in rows(one.get("ports"))
            if isinstance(entry, dict)
            and str(entry.get("name") or "") == label
            and str(entry.get("protocol") or "TCP").lower() == made.protocol
        ]
        for endpoint in rows(one.get("endpoints")):
            if isinstance(endpoint, dict):
                made.endpoints += [
                    _endpoint(endpoint, str(ip), number)
                    for ip in texts(endpoint.get("addresses"))
                    for number in numbers
                ]
    return made


def _endpoint(endpoint: dict[str, Any], ip: str, port: int) -> Endpoint:
    said = endpoint.get("conditions")
    conditions = said if isinstance(said, dict) else {}
    ready = conditions.get("ready") is not False
    serving = conditions.get("serving")
    return Endpoint(
        ip,
        port,
        ready,
        ready if serving is None else bool(serving),
        bool(conditions.get("terminating")),
        str(endpoint.get("nodeName") or ""),
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


_COMMENT = re.compile(r'--comment "?([^"\s]+)')
_DPORT = re.compile(r"--dport (\d+)")
_PROTOCOL = re.compile(r"(?:^|\s)-p (\w+)")
_JUMP = re.compile(r"-[jg] (KUBE-(?:SVC|SVL|EXT|XLB|FW|SEP)-\w+)")
_TO = re.compile(r"--to-destination ([\d.]+):(\d+)|--to-destination \[([0-9a-f:]+)\]:(\d+)")


def of_rules(node: Node) -> list[ServicePort]:
    """The Services that kube-proxy's iptables rules implement; worked out once, a big node has hundreds of thousands of rules."""
    if node.rule_services is None:
        node.rule_services = _of_rules(node)
    return node.rule_services


def _of_rules(node: Node) -> list[ServicePort]:
    found: list[ServicePort] = []
    for rules in node.iptables:
        nat = rules.tables.get("nat")
        if nat is None:
            continue
        chains = {name: chain.lines for name, chain in nat.chains.items() if name.startswith("KUBE-")}
        made: dict[tuple[str, str], ServicePort] = {}
        for source in ("KUBE-SERVICES", "KUBE-NODEPORTS"):
            for line in chains.get(source, ()):
                jump, port, protocol, comment = (
                    _JUMP.search(line),
                    _DPORT.search(line),
                    _PROTOCOL.search(line),
                    _COMMENT.search(line),
                )
                if not (jump and port and protocol and comment):
                    continue
                name = comment.group(1).rstrip(":")
                one = made.setdefault(
                    (name, protocol.group(1)),
                    ServicePort(name, protocol.group(1), known=True, where=f"{rules.where}, nat"),
                )
                if source == "KUBE-NODEPORTS":
                    one.node_port = int(port.group(1))
                else:
                    one.port = int(port.group(1))
                    address = re.search(r"(?:^|\s)-d ([0-9a-f.:]+)", line)
                    one.ips |= {address.group(1)} if address else set()
                one.endpoints += [end for end in _targets(chains, jump.group(1), set()) if end not in one.endpoints]
        found += made.values()
    return found


def _targets(chains: dict[str, list[str]], name: str, seen: set[str]) -> list[Endpoint]:
    if name in seen:
        return []
    seen.add(name)
    found = []
    for line in chains.get(name, ()):
        to = _TO.search(line)
        if to:
            found.append(Endpoint(to.group(1) or to.group(3), int(to.group(2) or to.group(4))))
        jump = _JUMP.search(line)
        if jump:
            found += _targets(chains, jump.group(1), seen)
    return found
