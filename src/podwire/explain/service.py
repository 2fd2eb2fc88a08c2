"""A Service on one node: what the API wants of it, what the rules do for it, and what becomes of its clients.

The two are read apart and held against each other: a frontend that the API has and no rule takes, a target in the rules that no
EndpointSlice has. With rules alone (a bare dump) the report says what they tell, and that the rest is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.errors import UsageError
from podwire.explain import clients as asking
from podwire.explain.backends import Backend, backends, policies
from podwire.explain.frontends import frontends
from podwire.explain.naming_services import named, services_of, spots
from podwire.explain.port import client_json, listener_json
from podwire.explain.rule_graph import Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.clients import Client
    from podwire.explain.frontends import Frontend
    from podwire.explain.picture import Picture
    from podwire.explain.rule_graph import Place
    from podwire.explain.snapshot import Object, Socket


@dataclass(slots=True)
class Offer:
    """An address and port of the Service. `rules`: what takes it on this node (several where dialects or families overlap)."""

    kind: str
    address: str
    port: int
    protocol: str
    port_name: str = ""
    in_api: bool = False
    rules: list[Frontend] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    listeners: list[Socket] | None = None

    @property
    def shown(self) -> str:
        """10.96.0.10:80/tcp; a NodePort has no address."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol}"

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        made: dict[str, Any] = {
            "kind": self.kind or "unknown", "address": self.address or None, "port": self.port, "protocol": self.protocol, "port_name": self.port_name,
            "in_api": self.in_api, "rules": [_rule(one) for one in self.rules], "clients": [client_json(one) for one in self.clients],
        }  # fmt: skip
        if self.kind == "nodePort":
            made["listeners"] = None if self.listeners is None else [listener_json(one) for one in self.listeners]
        return made


def _rule(one: Frontend) -> dict[str, Any]:
    return {
        "source": one.where.source, "table": one.where.table, "chain": one.where.chain, "position": one.position, "rule": one.rule,
        "leads_to": one.place.chain if one.place else None, "refused": one.refused or None,
    }  # fmt: skip


@dataclass(slots=True)
class Chain:
    """A chain that implements the Service, with its rules as they stood."""

    place: Place
    rules: list[tuple[int, str]]


@dataclass(slots=True)
class ServiceReport:
    """See the module's text."""

    service: str
    node: str
    in_api: bool | None
    type: str
    policies: dict[str, str]
    offers: list[Offer]
    backends: list[Backend]
    chains: list[Chain]
    differences: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The answer."""
        return _sentence(self)

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        return {
            "answer": self.sentence,
            "service": self.service,
            "node": self.node,
            "in_api": self.in_api,
            "type": self.type or None,
            "policies": self.policies,
            "frontends": [one.as_json() for one in self.offers],
            "backends": [one.as_json() for one in self.backends],
            "chains": [
                {**one.place._asdict(), "rules": [{"position": at, "rule": text} for at, text in one.rules]}
                for one in self.chains
            ],
            "differences": self.differences,
            "assumed": self.assumed,
            "warnings": self.warnings,
            "inputs": self.inputs,
        }


def report(which: str, picture: Picture, peers: Sequence[Picture] = ()) -> ServiceReport:
    """The report. Raises UsageError where neither the API nor the rules know the Service."""
    namespace, _, name = which.rpartition("/")
    title = f"{namespace or 'default'}/{name}"
    graph = Graph(picture.ruleset)
    found = [one for one in named(frontends(graph), picture.snapshot) if one.service == title]
    service = services_of(picture.snapshot).get(title)
    if service is None and not found:
        known = picture.snapshot.services is not None
        raise UsageError("looking for", f"svc/{title}", "neither the API nor the rules have it" if known else "no rule names it, and this input has no Services")  # fmt: skip
    offers = _offers(service, found)
    assumed, warnings = _ask(offers, picture, peers)
    ends = backends(service, found, graph, picture.snapshot)
    made = ServiceReport(
        title,
        picture.snapshot.title,
        None if picture.snapshot.services is None else service is not None,
        str((service or {}).get("spec", {}).get("type") or ("ClusterIP" if service else "")),
        policies(service, found, graph),
        offers,
        ends,
        _chains(found, graph),
        assumed=assumed,
        warnings=warnings,
        inputs=picture.inputs or [picture.snapshot.origin],
    )
    made.differences = _differences(made, picture)
    return made


def _offers(service: Object | None, found: list[Frontend]) -> list[Offer]:
    offers: dict[tuple[str, int, str], Offer] = {}
    for (kind, address, port, protocol), port_name in spots(service) if service else ():
        offers[address, port, protocol] = Offer(kind, address, port, protocol, port_name, in_api=True)
    for one in found:
        key = (one.address, one.port, one.protocol)
        offer = offers.setdefault(key, Offer(one.kind, one.address, one.port, one.protocol, one.port_name))
        offer.rules.append(one)
    order = {"clusterIP": 0, "nodePort": 1, "externalIP": 2, "loadBalancer": 3}
    return sorted(offers.values(), key=lambda one: (order.get(one.kind, 4), one.port, one.protocol))


def _ask(offers: list[Offer], picture: Picture, peers: Sequence[Picture]) -> tuple[list[str], list[str]]:
    """Walk the clients of every offer; what was assumed, and what to be warned of."""
    assumed: list[str] = []
    sockets = picture.snapshot.sockets
    for one in offers:
        if one.kind != "nodePort":
            outside = one.kind != "clusterIP"
            there, _, _ = asking.with_address(picture, 6 if ":" in one.address else 4)
            one.clients = asking.of_address(there, peers, one.address, one.port, one.protocol, outside=outside)
            continue
        six = bool(one.rules) and all(rule.where.family in ("6", "ip6") for rule in one.rules)
        there, address, said = asking.with_address(picture, 6 if six else 4)
        assumed += said
        one.clients = asking.of_port(there, peers, address, one.port, one.protocol)
        if sockets is not None:
            one.listeners = [s for s in sockets if s.listening and s.port == one.port and s.protocol.rstrip("6") == one.protocol]  # fmt: skip
    answers = [client.answer for one in offers for client in one.clients]
    assumed += [text for answer in answers for text in answer.assumed]
    return list(dict.fromkeys(assumed)), list(dict.fromkeys([text for answer in answers for text in answer.warnings]))


def _chains(found: list[Frontend], graph: Graph) -> list[Chain]:
    places: dict[Place, None] = {}
    for one in found:
        for place in graph.below(one.place) if one.place is not None else ():
            if place.chain not in ("KUBE-MARK-MASQ", "KUBE-MARK-DROP"):
                places[place] = None
    return [Chain(place, graph.rules(place)) for place in places]


def _differences(made: ServiceReport, picture: Picture) -> list[str]:
    """Where the rules and the API do not say the same."""
    if made.in_api is None:
        return []
    if not made.in_api:
        return [f"the API has no Service {made.service}, the rules still have it"]
    families = {one.family for one in picture.ruleset.iptables}
    families |= {4 if one.family == "ip" else 6 for one in picture.ruleset.nft}
    there = [one for one in made.offers if (6 if ":" in one.address else 4) in families]
    said = [f"no rule takes {one.kind} {one.shown}" for one in there if not one.rules]
    said += [f"the rules take {one.shown}, which is not in the API" for one in made.offers if not one.in_api]
    said += [
        f"the rules send to {one.shown}, which no EndpointSlice has" for one in made.backends if one.in_api is False
    ]
    usable = [one for one in made.backends if one.in_api and one.ready]
    if usable and not any(one.in_rules for one in made.backends) and any(one.rules for one in made.offers):
        said.append(f"{len(usable)} endpoints are ready, and the rules lead to none of them")
    return said


def _sentence(made: ServiceReport) -> str:
    kind = f" ({made.type})" if made.type else ""
    used = [one for one in made.backends if one.in_rules]
    taken = [one for one in made.offers if any(not rule.refused for rule in one.rules)]
    refused = [one for one in made.offers if one.rules and one not in taken]
    sources = sorted({rule.where.source for one in made.offers for rule in one.rules})
    if taken:
        count = f"{len(used)} endpoint{'' if len(used) == 1 else 's'}"
        text = f"{made.service}{kind} is served on {made.node} by {' and '.join(sources)}: {_list(taken)} lead{'s' if len(taken) == 1 else ''} to {count}"
        if len(used) <= 4 and used:
            text += f", {' and '.join([one.shown for one in used])}"
        if refused:
            text += f"; {_list(refused)} {'is' if len(refused) == 1 else 'are'} refused"
    elif refused:
        text = f"{made.service}{kind} has nothing that {made.node} could send to: {_list(refused)} {'is' if len(refused) == 1 else 'are'} refused by {' and '.join(sources)}"
    else:
        text = f"{made.service}{kind} is not served on {made.node}: no rule takes it"
    return f"{text}; {made.differences[0]}." if made.differences and (taken or refused) else f"{text}."


def _list(offers: list[Offer]) -> str:
    words = [f"NodePort {one.port}/{one.protocol}" if one.kind == "nodePort" else one.shown for one in offers]
    if len(words) > 5:
        words[5:] = [f"{len(words) - 5} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
