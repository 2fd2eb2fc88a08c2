"""Each report of `explain` as a page: packet, port, Service, ruleset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.explain.html_figure import esc
from podwire.explain.html_page import drawn, heading, notes, outcomes, page, rule_list, section, table
from podwire.explain.html_ways import chain_link, packet_figure, rules_figure, service_figure
from podwire.explain.render_rules import base, branch, folded, unreached
from podwire.explain.render_text import ends, holders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.answer import Answer
    from podwire.explain.clients import Client
    from podwire.explain.port import PortReport
    from podwire.explain.rule_graph import Graph
    from podwire.explain.rules_report import Node, RulesReport
    from podwire.explain.service import Offer, ServiceReport

_MOST_RULES = 200
_MOST_BRANCHES = 200
_MOST_SERVICES = 2000
_MOST_OPEN = 40


def packet_page(answer: Answer) -> str:
    """The page of `explain packet`."""
    figure = packet_figure("way", [("", answer)])
    body = drawn(figure) + section("Ends, and the rules on the way", outcomes(figure, 0, answer))
    body += notes("Depends on", answer.depends_on) + notes("Assumed", answer.assumed)
    body += notes("Warnings", answer.warnings) + notes("Read", answer.inputs)
    return page(f"explain packet · {answer.question.source} → {answer.question.destination}", answer.sentence, body)


def port_page(reports: Sequence[PortReport]) -> str:
    """The page of `explain port`; one part for each protocol."""
    body = ""
    for at, report in enumerate(reports):
        name = f"port{at}"
        head = "" if at == 0 else heading(report.sentence)
        body += head + _clients(name, report.clients)
        body += section(f"Who has {report.port}/{report.protocol}", f'<ul class="notes">{"".join([f"<li>{esc(one)}</li>" for one in holders(report)])}</ul>')  # fmt: skip
        body += notes("Assumed", report.assumed) + notes("Warnings", report.warnings) + notes("Read", report.inputs)
    first = reports[0]
    return page(f"explain port {first.port} · {first.node}", first.sentence, body)


def _clients(name: str, clients: Sequence[Client]) -> str:
    """One picture of all clients' ways, and each client's rules."""
    figure = packet_figure(name, [(one.who, one.answer) for one in clients])
    body = drawn(figure)
    for number, client in enumerate(clients):
        body += f"<details{' open' if number == 0 else ''}><summary><b>{esc(client.who)}</b>: {esc(client.answer.sentence)}</summary>"
        body += outcomes(figure, number, client.answer) + "</details>"
    return body


def service_page(report: ServiceReport, graph: Graph) -> str:
    """The page of `explain service`."""
    body = drawn(service_figure(report, graph))
    if report.differences:
        items = "".join([f'<li class="bang">{esc(one)}</li>' for one in report.differences])
        body += section("The rules and the API differ", f'<ul class="notes">{items}</ul>')
    said = [(name, value) for name, value in report.policies.items()]
    source = "of the API" if report.in_api else "as the rules show them"
    body += section(
        f"Policies, {source}", table(("policy", "value"), [("type", report.type or "not in this input"), *said])
    )
    body += section("Frontends", "".join([_offer(number, one) for number, one in enumerate(report.offers)]))
    listed = "".join([f"<li>{esc(one)}</li>" for one in ends(report)])
    body += section("Endpoints", f'<ul class="notes">{listed}</ul>' if listed else "<p>none</p>", "endpoints")
    chains = "".join(
        [
            f'<div class="card" id="{chain_link(one.place)}"><h3>{esc(one.place.chain)}</h3><span class="place">{esc(f"{one.place.source} {one.place.family} {one.place.table}")}</span>{rule_list(one.rules[:_MOST_RULES])}</div>'
            for one in report.chains
        ]
    )
    body += section("Chains", f'<div class="ways">{chains}</div>' if chains else "")
    body += notes("Assumed", report.assumed) + notes("Warnings", report.warnings) + notes("Read", report.inputs)
    return page(f"explain service {report.service} · {report.node}", report.sentence, body)


def _offer(number: int, offer: Offer) -> str:
    rules = [
        (f"{one.where.source} {one.where.table} {one.where.chain} {one.position}", f"→ {one.place.chain}" if one.place else one.refused)
        for one in offer.rules
    ]  # fmt: skip
    title = (
        f"NodePort {offer.port}/{offer.protocol}"
        if offer.kind == "nodePort"
        else f"{offer.kind or 'address'} {offer.shown}"
    )
    body = table(("rule", "leads to"), rules) or '<p class="bang">no rule takes it</p>'
    if offer.kind == "nodePort":
        who = "who listens is not in this input" if offer.listeners is None else ", ".join([one.owner for one in offer.listeners]) or "nobody listens on it"  # fmt: skip
        body += f"<p>Listens: {esc(who)}</p>"
    return f'<details id="offer-{number}"{" open" if number < 3 else ""}><summary><b>{esc(title)}</b></summary>{body}{_clients(f"f{number}", offer.clients)}</details>'


def rules_page(report: RulesReport) -> str:
    """The page of `explain rules`."""
    body = drawn(rules_figure(report))
    for hook, nodes in report.hooks:
        inner = "".join([_tree(one, 0) for one in nodes]) or "<p>no rules</p>"
        body += section(hook, inner, f"hook-{hook}")
    rows = [
        (
            f"{one.name}/{one.protocol}",
            ", ".join([f"NodePort {front.port}" if front.kind == "nodePort" else front.shown.rpartition("/")[0] for front in one.frontends]),
            ", ".join(one.endpoints[:8]) + (f" and {len(one.endpoints) - 8} more" if len(one.endpoints) > 8 else "") or " ".join(sorted({front.refused for front in one.frontends if front.refused})),
            one.source,
        )
        for one in report.services[:_MOST_SERVICES]
    ]  # fmt: skip
    body += section("Services", table(("Service", "frontends", "endpoints", "by"), rows), "services")
    if len(report.services) > _MOST_SERVICES:
        body += f"<p>and {len(report.services) - _MOST_SERVICES:,} more, which --json has</p>"
    body += notes("No hook leads to", [unreached(one) for one in report.unreached[:_MOST_BRANCHES]])
    body += notes("Warnings", report.warnings) + notes("Read", report.inputs)
    return page(f"explain rules · {report.node}", report.sentence, body)


def _tree(node: Node, depth: int) -> str:
    """A chain as something to unfold."""
    place = node.place
    title = base(node) if depth == 0 else place.chain
    items = []
    for one in node.branches[:_MOST_BRANCHES]:
        unfold = _tree(one.node, depth + 1) if one.node is not None and not one.node.again else ""
        again = f' <a href="#{chain_link(one.node.place)}">above</a>' if one.node is not None and one.node.again else ""
        items.append(f'<li><span class="rule">{esc(branch(one))}</span>{again}{unfold}</li>')
    rest = len(node.branches) - _MOST_BRANCHES
    if rest > 0:
        items.append(f"<li>and {rest:,} more, which --json has</li>")
    if node.folded:
        items.append(f'<li>{esc(folded(node))} (<a href="#services">all Services</a>)</li>')
    mark = "" if node.again else f' id="{chain_link(place)}"'
    opened = " open" if depth < 2 and len(node.branches) <= _MOST_OPEN else ""
    return f'<details{mark}{opened}><summary>{esc(title)}</summary><ul class="tree">{"".join(items)}</ul></details>'
