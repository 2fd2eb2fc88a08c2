"""The Services that the rules implement: each address and port that kube-proxy's rules take packets for.

Read from the rules alone, so that it can be held against the API: iptables' KUBE-SERVICES and KUBE-NODEPORTS name the Service in a
comment, nft's maps lead to chains whose name ends in NAMESPACE/SERVICE/PROTOCOL/PORT. Releases since 1.14 are read; the comments of old
ones end in a colon where the port has no name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.explain.rule_graph import Edge, Graph, Place

_COMMENT = re.compile(r'--comment (?:"([^"]*)"|(\S+))|/\* (.*?) \*/')
_SAID = re.compile(
    r"^([\w.-]+/[\w.-]+?(?::[\w.-]*)?)(?: (cluster IP|external IP|external IPs|loadbalancer IP|has no endpoints|has no local endpoints))?$"
)
_DST = re.compile(r"(?:^| )-d ([0-9a-fA-F.:]+)(?:/(?:32|128))?(?= )")
_PORT = re.compile(r"--dport (\d+)")
_PROTOCOL = re.compile(r"(?:^| )-p (\w+)")
_OWNER = re.compile(r"^(?:service|external|endpoint|local|firewall)-[A-Z2-7]{8}-([^/]+)/([^/]+)/(\w+)/([^/_]*)")
_KINDS = {"cluster IP": "clusterIP", "external IP": "externalIP", "external IPs": "externalIP", "loadbalancer IP": "loadBalancer"}  # fmt: skip
_NODEPORT_CHAINS = ("KUBE-NODEPORTS",)
_SERVICE_CHAINS = ("KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES")
_MAPS = {
    "@service-ips": "",
    "@service-nodeports": "nodePort",
    "@no-endpoint-services": "",
    "@no-endpoint-nodeports": "nodePort",
}


@dataclass(frozen=True, slots=True)
class Frontend:
    """An address and port that rules take packets for. `address` '' : any of the node's (a NodePort); `place` the chain it leads to.

    `refused`: the rule itself refuses ("reject", "drop"), as where there is no endpoint. `kind` '' where the rules do not tell.
    """

    service: str  # namespace/name
    port_name: str
    protocol: str
    kind: str
    address: str
    port: int
    place: Place | None
    refused: str
    rule: str
    where: Place
    position: int

    @property
    def shown(self) -> str:
        """10.96.0.10:80/tcp, or :30450/tcp for a NodePort."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol}"


def frontends(graph: Graph) -> list[Frontend]:
    """All of them, in the order of the rules."""
    found: dict[tuple[str, ...], Frontend] = {}
    for place in graph.places():
        if place.source == "nft":
            if place.table == "kube-proxy":
                _keep(found, _nft(graph, place))
        elif place.chain in _SERVICE_CHAINS + _NODEPORT_CHAINS and place.table in ("nat", "filter"):
            _keep(found, _iptables(graph, place))
    return list(found.values())


def _keep(found: dict[tuple[str, ...], Frontend], made: Iterator[Frontend]) -> None:
    for one in made:
        key = (one.where.source, one.where.family, one.shown, one.service)
        if key not in found or (found[key].refused and not one.refused):
            found[key] = one


# -- iptables --------------------------------------------------------------------------------------------------------


def _iptables(graph: Graph, place: Place) -> Iterator[Frontend]:
    for edge in graph.edges(place):
        if edge.to in ("KUBE-MARK-MASQ", "KUBE-MARK-DROP", "KUBE-NODEPORTS") or not (
            edge.leads_on or edge.kind in ("reject", "drop")
        ):
            continue
        port, protocol, said = _PORT.search(edge.line), _PROTOCOL.search(edge.line), _said(edge.line)
        if port is None or protocol is None or said is None or len(port[1]) > 5:
            continue
        name, _, port_name = said[0].partition(":")
        address = _DST.search(edge.line)
        kind = _KINDS.get(said[1], "") if address else "nodePort"
        yield Frontend(
            name, port_name, protocol[1], kind, address[1] if address else "", int(port[1]),
            place.beside(edge.to) if edge.leads_on else None, "" if edge.leads_on else edge.kind, edge.text, place, edge.position,
        )  # fmt: skip


def _said(text: str) -> tuple[str, str] | None:
    for groups in _COMMENT.findall(text):
        found = _SAID.match(next((one for one in groups if one), ""))
        if found is not None:
            return found[1], found[2] or ""
    return None


# -- nft -------------------------------------------------------------------------------------------------------------


def _nft(graph: Graph, place: Place) -> Iterator[Frontend]:
    for edge in graph.edges(place):
        if edge.via not in _MAPS:
            continue
        words = edge.text.partition(" : ")[0].split(" . ")
        if len(words) == 2:
            words.insert(0, "")
        if len(words) != 3 or not words[2].isdigit():
            continue
        owner = _owner(graph, place, edge)
        name, port_name = owner if owner is not None else ("", "")
        kind = _MAPS[edge.via] or ("clusterIP" if edge.to.startswith(("service-", "local-")) else "")
        refused = "" if owner is not None else _refusal(graph, place, edge)
        yield Frontend(
            name, port_name, words[1], kind, words[0], int(words[2]), place.beside(edge.to) if edge.to else None,
            refused, edge.text, place, edge.position,
        )  # fmt: skip


def _owner(graph: Graph, place: Place, edge: Edge) -> tuple[str, str] | None:
    """The Service that a chain belongs to, by its own name or, where a map leads straight to an endpoint, that one's."""
    for one in graph.below(place.beside(edge.to)):
        found = _OWNER.match(one.chain)
        if found is not None:
            return f"{found[1]}/{found[2]}", found[4]
    return None


def _refusal(graph: Graph, place: Place, edge: Edge) -> str:
    if edge.kind in ("drop", "reject"):
        return edge.kind
    return next((one.kind for one in graph.edges(place.beside(edge.to)) if one.kind in ("drop", "reject")), "")
