"""The endpoints of a Service as slices and rules have them, and the policies that both tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.explain.naming_services import title_of
from podwire.explain.snapshot import name_of, namespace_of
from podwire.explain.snapshot_words import inner, number_of, rows, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.frontends import Frontend
    from podwire.explain.rule_graph import Graph
    from podwire.explain.snapshot import Object, Snapshot

_SECONDS = re.compile(r"-m recent .*--seconds (\d+)")
_LOCAL = ("KUBE-SVL-", "KUBE-XLB-", "local-")


@dataclass(slots=True)
class Backend:
    """An endpoint. `in_api` None: no slices in the input; conditions as the slice says them; `chains` lead to it in the rules."""

    address: str
    port: int
    in_api: bool | None = None
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None
    node: str = ""
    pod: str = ""
    chains: tuple[str, ...] = ()
    port_name: str = ""

    @property
    def in_rules(self) -> bool:
        """Whether a rule translates to it."""
        return bool(self.chains)

    @property
    def shown(self) -> str:
        """10.244.1.5:8080."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        return {
            "address": self.address, "port": self.port, "port_name": self.port_name, "in_api": self.in_api, "ready": self.ready, "serving": self.serving,
            "terminating": self.terminating, "node": self.node, "pod": self.pod, "in_rules": self.in_rules, "chains": list(self.chains),
        }  # fmt: skip


def backends(service: Object | None, found: Sequence[Frontend], graph: Graph, snapshot: Snapshot) -> list[Backend]:
    """All of them: those of the slices first, then those that only the rules have."""
    made: dict[tuple[str, int], Backend] = {}
    known = service is not None and snapshot.slices is not None
    for one in snapshot.slices or () if service is not None else ():
        owner = inner(one, "metadata", "labels").get("kubernetes.io/service-name")
        if f"{namespace_of(one) or 'default'}/{owner}" == title_of(service or {}):
            for backend in _of_slice(one):
                made.setdefault((backend.address, backend.port), backend)
    for frontend in found:
        for place in graph.below(frontend.place) if frontend.place is not None else ():
            for end, chain in graph.ends(place):
                _reached(made, end, chain, frontend.port_name, in_api=False if known else None)
    return list(made.values())


def _reached(made: dict[tuple[str, int], Backend], to: str, chain: str, port_name: str, *, in_api: bool | None) -> None:
    host, _, number = to.rpartition(":")
    port = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else 0
    key = (host.strip("[]") if host else to, port)
    backend = made.setdefault(key, Backend(*key, in_api=in_api, port_name=port_name))
    if chain not in backend.chains:
        backend.chains = (*backend.chains, chain)


def _of_slice(one: Object) -> list[Backend]:
    found = []
    for port in rows(one.get("ports")):
        for endpoint in rows(one.get("endpoints")):
            conditions = inner(endpoint, "conditions")
            ready = conditions.get("ready") is not False
            serving = conditions.get("serving")
            target = inner(endpoint, "targetRef")
            said = (
                number_of(port, "port"),
                True,
                ready,
                ready if serving is None else bool(serving),
                bool(conditions.get("terminating")),
            )
            node, pod, name = text_of(endpoint, "nodeName"), name_of({"metadata": target}), text_of(port, "name")
            found += [Backend(ip, *said, node, pod, (), name) for ip in texts(endpoint.get("addresses"))]
    return found


def policies(service: Object | None, found: Sequence[Frontend], graph: Graph) -> dict[str, str]:
    """What is said of traffic policies and affinity: by the API, else as far as the rules show it."""
    if service is not None:
        spec = inner(service, "spec")
        made = {"internalTrafficPolicy": text_of(spec, "internalTrafficPolicy") or "Cluster"}
        if text_of(spec, "type") in ("NodePort", "LoadBalancer") or spec.get("externalIPs"):
            made["externalTrafficPolicy"] = text_of(spec, "externalTrafficPolicy") or "Cluster"
        made["sessionAffinity"] = text_of(spec, "sessionAffinity") or "None"
        seconds = inner(spec, "sessionAffinityConfig", "clientIP").get("timeoutSeconds")
        if made["sessionAffinity"] == "ClientIP":
            made["sessionAffinity"] = f"ClientIP, {seconds or 10800} s"
        ranges = texts(spec.get("loadBalancerSourceRanges"))
        if ranges:
            made["loadBalancerSourceRanges"] = ", ".join(ranges)
        if text_of(spec, "trafficDistribution"):
            made["trafficDistribution"] = text_of(spec, "trafficDistribution")
        return made
    return _by_rules(found, graph)


def _by_rules(found: Sequence[Frontend], graph: Graph) -> dict[str, str]:
    made: dict[str, str] = {}
    for one in found:
        if one.place is None:
            continue
        below = graph.below(one.place)
        local = any(place.chain.startswith(_LOCAL) for place in below)
        if one.kind == "clusterIP":
            made["internalTrafficPolicy"] = "Local" if local else "Cluster"
        elif one.kind:
            made["externalTrafficPolicy"] = "Local" if local else "Cluster"
        texts_ = [text for place in below for _, text in graph.rules(place)]
        seconds = next((match[1] for text in texts_ if (match := _SECONDS.search(text))), "")
        if seconds or any("@affinity-" in text for text in texts_):
            made["sessionAffinity"] = f"ClientIP{', ' + seconds + ' s' if seconds else ''}"
    if found:
        made.setdefault("sessionAffinity", "None")
    return made
