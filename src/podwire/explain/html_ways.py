"""What is drawn: the ways of a packet, of the clients of a port, of a Service to its endpoints, of hooks to Services."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.explain.answer import at
from podwire.explain.html_figure import Box, Figure
from podwire.explain.sentence import share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.explain.answer import Answer, Outcome
    from podwire.explain.packet import Step
    from podwire.explain.rule_graph import Graph, Place
    from podwire.explain.rules_report import Node, RulesReport
    from podwire.explain.service import ServiceReport

MOST_ENDS = 6
MOST_ENDS_OF_MANY = 4  # in a picture of several clients
_MOST_SERVICES = 14
_MOST_ENDPOINTS = 24
_MOST_WAYS = 60
_PLAIN = ("routing", "bridge", "conntrack")
_LOOKS = {"dnat": "good", "accept": "good", "local": "good", "drop": "bad", "reject": "bad"}


def packet_figure(name: str, asked: Sequence[tuple[str, Answer]]) -> Figure:
    """The ways of one packet, or of several clients' packets (`asked`: who, and the answer)."""
    figure = Figure(name, "The ways of the packet through the hooks, from top to bottom")
    for number, (who, answer) in enumerate(asked):
        packet = answer.asked.packet
        source = str(packet.src) if packet.src_known else "this node"
        start = figure.add(f"start {number}", Box(who or source, f"to {at(packet) or '?'}/{packet.protocol}", "start"))
        for place, outcome in enumerate(answer.outcomes[: MOST_ENDS if len(asked) == 1 else MOST_ENDS_OF_MANY]):
            figure.numbers[number, place] = len(figure.ways)
            way = [start, *[figure.add(key, box) for key, box in _chains(name, number, place, outcome)]]
            title, small = end_words(outcome)
            end = figure.add(
                f"end {number} {place}",
                Box(title, small, _LOOKS.get(outcome.verdict, "open"), f"{name}-o{number}-{place}"),
            )
            figure.ways.append([*way, end])
    return figure


def _chains(name: str, number: int, place: int, outcome: Outcome) -> Iterator[tuple[str, Box]]:
    """The chains of a way, each with the rules that matched there."""
    seen: dict[str, int] = {}
    for first, group in chain_groups(outcome.path):
        step = group[0]
        key = step_key(step)
        seen[key] = seen.get(key, 0) + 1
        link = f"{name}-o{number}-{place}-{first}"
        if step.source in _PLAIN:
            yield f"{key} {seen[key]}", Box(step.effect or step.source, step.source, "path", link)
            continue
        where = f"{step.hook} · {step.table}" + ("" if step.source != "iptables-legacy" else " (legacy)")
        yield f"{key} {seen[key]}", Box(step.chain, where, "chain", link)


def step_key(step: Step) -> str:
    """Steps of one box."""
    if step.source in _PLAIN:
        return f"{step.source} {step.text} {step.effect}"
    return f"{step.hook} {step.source} {step.table} {step.chain}"


def chain_groups(path: Sequence[Step]) -> Iterator[tuple[int, list[Step]]]:
    """Steps that follow each other in one chain, with the number of the first."""
    group: list[Step] = []
    for number, step in enumerate(path):
        if group and step_key(group[0]) != step_key(step):
            yield number - len(group), group
            group = []
        group.append(step)
    if group:
        yield len(path) - len(group), group


def end_words(outcome: Outcome) -> tuple[str, str]:
    """An end as a box says it."""
    words = [share(outcome.probability)] if outcome.probability < 1 else []
    if outcome.masquerade:
        words.append("masqueraded")
    if outcome.process:
        words.append(outcome.process)
    elif outcome.delivered:
        words.append("delivered here")
    elif outcome.out_interface and _LOOKS.get(outcome.verdict) == "good":
        words.append(f"out by {outcome.out_interface}")
    if outcome.depends_on and any(not text.startswith("not: ") for text in outcome.depends_on):
        words.append("depends")
    title = f"{outcome.verdict} {outcome.to}" if outcome.to and outcome.verdict != "local" else outcome.verdict
    return title, " · ".join(words) or outcome.detail


def service_figure(report: ServiceReport, graph: Graph) -> Figure:
    """Frontends → chains → endpoints."""
    figure = Figure("svc", "From the addresses of the Service to its endpoints, from left to right", across=True)
    for number, offer in enumerate(report.offers):
        title = f"NodePort {offer.port}/{offer.protocol}" if offer.kind == "nodePort" else offer.shown
        front = figure.add(f"offer {number}", Box(title, offer.kind or "address", "start", f"offer-{number}"))
        for rule in offer.rules:
            if rule.place is None:
                end = figure.add(f"refused {rule.refused}", Box(rule.refused, "by the rule itself", "bad"))
                figure.ways.append([front, end])
                continue
            for way in _to_endpoints(graph, rule.place, ()):
                if len(figure.ways) < _MOST_WAYS:
                    figure.ways.append([front, *_boxes(figure, way)])
    return figure


def _boxes(figure: Figure, way: list[Place | str]) -> Iterator[str]:
    for one in way:
        if isinstance(one, str):
            yield figure.add(f"end {one}", Box(one, "endpoint", "good", "endpoints"))
        else:
            yield figure.add(
                f"chain {'/'.join(one)}", Box(one.chain, f"{one.source} · {one.table}", "chain", chain_link(one))
            )


def chain_link(place: Place) -> str:
    """The id of a chain's details; names of chains may hold anything."""
    return "chain-" + "-".join(place).encode().hex()


def _to_endpoints(graph: Graph, place: Place, above: tuple[Place, ...]) -> Iterator[list[Place | str]]:
    """Every way from a chain to what packets are translated to."""
    if place in above or len(above) > 8:
        return
    for end, _ in graph.ends(place):
        yield [place, end]
    for to in dict.fromkeys([place.beside(edge.to) for edge in graph.edges(place) if edge.leads_on]):
        for way in _to_endpoints(graph, to, (*above, place)):
            yield [place, *way]


def rules_figure(report: RulesReport) -> Figure:
    """Hooks → chains → Services → endpoints, the many folded."""
    figure = Figure(
        "all", "From the hooks of the kernel to chains, Services and endpoints, from left to right", across=True
    )
    services, known = _service_boxes(report), _by_place(report)
    for hook, nodes in report.hooks:
        start = figure.add(f"hook {hook}", Box(hook, "hook", "start", f"hook-{hook}"))
        for node in nodes:
            for way in _down(node, services, figure, known):
                if len(figure.ways) < _MOST_WAYS * 5:
                    figure.ways.append([start, *way])
    return figure


def _by_place(report: RulesReport) -> dict[Place, Node]:
    """Chains where their branches are."""
    found: dict[Place, Node] = {}
    todo = [node for _, nodes in report.hooks for node in nodes]
    while todo:
        node = todo.pop()
        if not node.again:
            found.setdefault(node.place, node)
        todo += [one.node for one in node.branches if one.node is not None]
    return found


def _service_boxes(report: RulesReport) -> dict[str, list[list[tuple[str, Box]]]]:
    """Service → the ends of its ways: its own box, and a box an endpoint where there are few; the many share boxes."""
    names = list(dict.fromkeys([one.name for one in report.services]))
    few = len({end for one in report.services for end in one.endpoints}) <= _MOST_ENDPOINTS
    found: dict[str, list[list[tuple[str, Box]]]] = {}
    for number, name in enumerate(names):
        if number >= _MOST_SERVICES:
            found[name] = [
                [("more services", Box(f"{len(names) - _MOST_SERVICES:,} more", "Services", "good", "services"))]
            ]
            continue
        ends = list(dict.fromkeys([end for one in report.services if one.name == name for end in one.endpoints]))
        own = (
            f"service {name}",
            Box(name, f"Service · {len(ends)} endpoint{'' if len(ends) == 1 else 's'}", "start", "services"),
        )
        if few and ends:
            found[name] = [[own, (f"end {end}", Box(end, "endpoint", "good", "services"))] for end in ends]
        elif ends:
            found[name] = [[own, (f"ends {name}", Box(f"{len(ends)} endpoints", f"{ends[0]}, …", "good", "services"))]]
        else:
            found[name] = [[own, ("refused", Box("no endpoints", "refused", "bad", "services"))]]
    return found


def _down(node: Node, services: dict[str, list[list[tuple[str, Box]]]], figure: Figure, known: dict[Place, Node], depth: int = 0) -> Iterator[list[str]]:  # fmt: skip
    place = node.place
    small = f"{place.source} · {place.table}" + (f" · {place.family}" if place.family in ("6", "ip6", "inet") else "")
    key = figure.add(f"chain {'/'.join(place)}", Box(place.chain, small, "chain", chain_link(place)))
    full = known.get(place, node)
    ways = 0
    for branch in full.branches[:20]:
        if branch.node is not None and depth < 6:
            for way in _down(branch.node, services, figure, known, depth + 1):
                ways += 1
                yield [key, *way]
    done: set[str] = set()
    for end in [one for name in full.served for one in services.get(name, ())]:
        way = [figure.add(name, box) for name, box in end]
        if way[-1] != "more services" or "more services" not in done:
            done.add(way[-1])
            ways += 1
            yield [key, *way]
    if not ways:
        yield [key]
