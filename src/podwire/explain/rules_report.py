"""The whole ruleset in the order of the kernel: hooks, the chains each calls, where those lead, and the Services behind them.

A node of a big cluster has a hundred thousand chains that are all alike, so the chains of Services are folded into one entry a Service (its
frontends, and the endpoints they lead to), and long lists are cut with their length said; JSON has everything. A chain that
several rules lead to is shown where it is met first. What no hook leads to is told: leftovers of what ran here before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.explain.frontends import frontends
from podwire.explain.hooks import Hooks
from podwire.explain.naming_services import named
from podwire.explain.rule_graph import Graph, Place

if TYPE_CHECKING:
    from podwire.explain.frontends import Frontend
    from podwire.explain.picture import Picture
    from podwire.explain.rule_graph import Edge

HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
_DEEPEST = 32


@dataclass(slots=True)
class Node:
    """A chain in the tree. `again`: it was shown before, its branches are there. `folded`: how many rules lead to Services."""

    place: Place
    rules: int
    policy: str = ""
    priority: int | None = None
    branches: list[Branch] = field(default_factory=list)
    again: bool = False
    folded: int = 0
    served: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Branch:
    """Rules of a chain that lead to the same place: `edge` is the first of `count`; `node` is None at an end."""

    edge: Edge
    count: int = 1
    node: Node | None = None


@dataclass(slots=True)
class ServiceRules:
    """A port of a Service as the rules have it; `name` is namespace/name:port."""

    name: str
    protocol: str
    source: str
    family: str
    frontends: list[Frontend] = field(default_factory=list)
    endpoints: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RulesReport:
    """See the module's text. `hooks`: name of the hook and its chains in order."""

    node: str
    hooks: list[tuple[str, list[Node]]]
    services: list[ServiceRules]
    unreached: list[Place]
    chains: int
    rules: int
    warnings: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """How much there is."""
        ends = {end for one in self.services for end in one.endpoints}
        names = {one.name.partition(":")[0] for one in self.services}
        text = f"{self.node} has {_count(self.rules, 'rule')} in {_count(self.chains, 'chain')}"
        if self.services:
            text += f", for {_count(len(names), 'Service')} with {_count(len(ends), 'endpoint')}"
        if self.unreached:
            text += f"; {_count(len(self.unreached), 'chain')} that no hook leads to"
        return f"{text}."

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        return {
            "answer": self.sentence,
            "node": self.node,
            "hooks": [{"hook": hook, "chains": [_node_json(one) for one in nodes]} for hook, nodes in self.hooks],
            "services": [_service_json(one) for one in self.services],
            "unreached": [one._asdict() for one in self.unreached],
            "warnings": self.warnings,
            "inputs": self.inputs,
        }


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _node_json(node: Node) -> dict[str, Any]:
    made: dict[str, Any] = {**node.place._asdict(), "rules": node.rules}
    if node.policy:
        made |= {"policy": node.policy, "priority": node.priority}
    if node.again:
        return made | {"shown_before": True}
    if node.folded:
        made |= {"rules_of_services": node.folded, "services": node.served}
    made["leads_to"] = [
        {"position": one.edge.position, "count": one.count, "rule": one.edge.text, "kind": one.edge.kind, "to": one.edge.to}
        | ({"chain": _node_json(one.node)} if one.node else {})
        for one in node.branches
    ]  # fmt: skip
    return made


def _service_json(one: ServiceRules) -> dict[str, Any]:
    ends = [
        {"kind": front.kind or "unknown", "address": front.address or None, "port": front.port, "leads_to": front.place.chain if front.place else None, "refused": front.refused or None}
        for front in one.frontends
    ]  # fmt: skip
    made = {"name": one.name, "protocol": one.protocol, "source": one.source, "family": one.family}
    return made | {"frontends": ends, "endpoints": one.endpoints}


def report(picture: Picture) -> RulesReport:
    """The report on a node."""
    graph = Graph(picture.ruleset)
    found = named(frontends(graph), picture.snapshot)
    services, owned = _services(found, graph)
    tree = _Tree(graph, owned)
    hooks: list[tuple[str, list[Node]]] = []
    families = [Hooks(picture.ruleset, family, picture.facts) for family in (4, 6)]
    for hook in HOOKS:
        entries = [entry for one in families for entry in one.at(hook)]
        places: dict[Place, int] = {}
        for entry in entries:
            places.setdefault(Place(entry.source, entry.family, entry.table, entry.chain), entry.priority)
        nodes = [tree.node(place, priority) for place, priority in places.items() if graph.edges(place)]
        hooks.append((hook, nodes))
    everything = list(graph.places())
    reached = set(graph.below(*[one for one in everything if graph.base(one)]))
    unreached = [one for one in everything if one not in reached and not _always(one)]
    rules = sum(graph.size(one) for one in everything)
    inputs = picture.inputs or [picture.snapshot.origin]
    return RulesReport(picture.snapshot.title, hooks, services, unreached, len(everything), rules, picture.warnings, inputs)  # fmt: skip


def _always(place: Place) -> bool:
    """Chains that kube-proxy and the kubelet make whether a rule leads to them or not."""
    return place.chain.endswith("-CANARY") or place.chain in ("KUBE-MARK-MASQ", "KUBE-MARK-DROP")


def _services(found: list[Frontend], graph: Graph) -> tuple[list[ServiceRules], dict[Place, str]]:
    """The Services, and which chain belongs to which of them."""
    services: dict[tuple[str, ...], ServiceRules] = {}
    owned: dict[Place, str] = {}
    for one in found:
        name = one.service or "a Service that the rules do not name"
        name += f":{one.port_name}" if one.port_name else ""
        key = (name, one.protocol, one.where.source, one.where.family)
        made = services.setdefault(key, ServiceRules(*key))
        made.frontends.append(one)
        if one.place is None or not one.service:
            continue
        for place in graph.below(one.place):
            if place.chain.startswith(_OF_A_SERVICE):
                owned[place] = name
        made.endpoints = list(dict.fromkeys([*made.endpoints, *graph.targets(one.place)]))
    return list(services.values()), owned


#: How the chains of one Service or endpoint begin, in kube-proxy's two modes and its releases.
_OF_A_SERVICE = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-XLB-", "KUBE-FW-", "service-", "external-", "endpoint-", "local-", "firewall-")  # fmt: skip


class _Tree:
    """Builds the tree; `seen` are the chains in it."""

    def __init__(self, graph: Graph, owned: dict[Place, str]) -> None:
        self.graph = graph
        self.owned = owned
        self.seen: set[Place] = set()

    def node(self, place: Place, priority: int | None = None, depth: int = 0) -> Node:
        made = Node(place, self.graph.size(place), priority=priority)
        if self.graph.base(place):
            made.policy = self.graph.policy(place)
        if place in self.seen or depth > _DEEPEST:
            made.again = bool(self.graph.edges(place))
            return made
        self.seen.add(place)
        groups: dict[tuple[object, ...], Branch] = {}
        served: dict[str, None] = {}
        for edge in self.graph.edges(place):
            to = place.beside(edge.to)
            if edge.leads_on and to in self.owned:
                made.folded += 1
                served[self.owned[to]] = None
                continue
            key = (
                (edge.kind, edge.to, edge.via)
                if edge.leads_on or edge.kind in ("dnat", "mark")
                else (edge.position, edge.kind)
            )
            if key in groups:
                groups[key].count += 1
            else:
                groups[key] = Branch(edge)
        made.served = list(served)
        made.branches = list(groups.values())
        for branch in made.branches:
            if branch.edge.leads_on and place.beside(branch.edge.to) in self.graph:
                branch.node = self.node(place.beside(branch.edge.to), depth=depth + 1)
        return made
