"""The whole ruleset as a tree of text, long lists cut: hooks → chains → Services → endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.explain.rule_graph import Place
    from podwire.explain.rules_report import Branch, Node, RulesReport, ServiceRules

_MOST_BRANCHES = 24
_MOST_SERVICES = 40
_MOST_ENDS = 4
_WIDE = 150


def lines(report: RulesReport, *, everything: bool = False) -> Iterator[str]:
    """The report, line by line; `everything`: nothing is cut."""
    most = (1 << 30) if everything else 0
    yield report.sentence
    for hook, nodes in report.hooks:
        yield ""
        yield hook
        if not nodes:
            yield "  no rules"
        for node in nodes:
            yield f"  {base(node)}"
            yield from _branches(node, "    ", most or _MOST_BRANCHES)
    if report.services:
        yield ""
        yield "Services"
        shown = report.services[: most or _MOST_SERVICES]
        yield from [f"  {text}" for one in shown for text in service(one, most or _MOST_ENDS)]
        if len(report.services) > len(shown):
            yield f"  and {len(report.services) - len(shown):,} more (--all)"
    if report.unreached:
        yield ""
        yield "No hook leads to"
        cut = report.unreached[: most or _MOST_BRANCHES]
        yield from [f"  {unreached(one)}" for one in cut]
        if len(report.unreached) > len(cut):
            yield f"  and {len(report.unreached) - len(cut):,} more (--all)"
    for title, texts in (("Warnings", report.warnings), ("Read", report.inputs)):
        if texts:
            yield ""
            yield title
            yield from [f"  {text}" for text in texts]


def unreached(place: Place) -> str:
    """A chain that no hook leads to."""
    return f"{place.source}{_family(place)} {place.table} {place.chain}"


def _family(place: Place) -> str:
    return {"4": "", "6": " IPv6"}.get(place.family, f" {place.family}")


def base(node: Node) -> str:
    """A base chain in a line."""
    place = node.place
    return f"{place.source}{_family(place)} {place.table} {place.chain}, priority {node.priority}, policy {node.policy}"


def _branches(node: Node, indent: str, most: int) -> Iterator[str]:
    shown = node.branches[:most]
    for one in shown:
        yield f"{indent}{branch(one)}"
        if one.node is not None and not one.node.again:
            yield from _branches(one.node, indent + "  ", most)
    rest = node.branches[len(shown) :]
    if rest:
        yield f"{indent}and {sum(one.count for one in rest):,} more rules (--all)"
    if node.folded:
        yield f"{indent}{folded(node)}"


def folded(node: Node) -> str:
    """The rules that lead to Services, in a line."""
    names = ", ".join(node.served[:3]) + (f" and {len(node.served) - 3:,} more" if len(node.served) > 3 else "")
    many = node.folded != 1
    return f"{node.folded:,} rule{'s' if many else ''} lead{'' if many else 's'} to Services: {names}"


def branch(one: Branch) -> str:
    """Where a rule leads, and the rule."""
    edge = one.edge
    again = ", shown above" if one.node is not None and one.node.again else ""
    times = f", {one.count:,} rules" if one.count > 1 else ""
    text = edge.text if len(edge.text) <= _WIDE else f"{edge.text[: _WIDE - 1]}…"
    where = f"→ {edge.to}" if edge.leads_on else f"■ {edge.kind}{' ' + edge.to if edge.to else ''}"
    return f"{edge.position} {where}{times}{again}   {text}"


def service(one: ServiceRules, most: int) -> Iterator[str]:
    """A Service's port: its frontends, its endpoints."""
    family = " (IPv6)" if one.family in ("6", "ip6") else ""
    fronts = [f"NodePort {front.port}" if front.kind == "nodePort" else f"{front.shown.rpartition('/')[0]}{' ' + front.kind if front.kind else ''}" for front in one.frontends]  # fmt: skip
    refused = {front.refused for front in one.frontends if front.refused}
    shown = one.endpoints[:most]
    ends = ", ".join(shown) + (
        f" and {len(one.endpoints) - len(shown):,} more" if len(one.endpoints) > len(shown) else ""
    )
    cut = fronts[:6] + ([f"{len(fronts) - 6:,} more"] if len(fronts) > 6 else [])
    yield f"{one.name}/{one.protocol}{family}, {one.source}: {', '.join(cut)}"
    yield f"  → {ends or ' and '.join(sorted(refused)) or 'nothing'}"
