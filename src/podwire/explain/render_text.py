"""Reports on a port and on a Service as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.explain.port import holder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.explain.clients import Client
    from podwire.explain.port import PortReport
    from podwire.explain.service import Offer, ServiceReport
    from podwire.explain.snapshot import Socket

_MOST_RULES = 40
_MOST_ENDS = 30


def port_lines(report: PortReport) -> Iterator[str]:
    """A report on a port, the answer first."""
    yield report.sentence
    yield ""
    yield f"Who has {report.port}/{report.protocol}:"
    yield from [f"  {text}" for text in holders(report)]
    yield "Rules that decide:"
    if not report.rules:
        yield "  none"
    for step in report.rules:
        place = f"{step.source} {step.table} {step.chain} {step.position or 'policy'}"
        yield f"  {place}: {step.text}"
    yield "Clients:"
    yield from _clients(report.clients, "  ")
    yield from _notes(report.assumed, report.warnings, report.inputs)


def holders(report: PortReport) -> list[str]:
    """Who listens, whose connection it is, whose NodePort."""
    if report.listeners is None:
        found = ["sockets are not in this input: who listens is not known"]
    else:
        found = [_listens(one) for one in report.listeners] or ["nobody listens on it"]
    for one in report.connections or ():
        found.append(
            f"{one.owner} has it as the port of a connection ({one.state}) with {one.peer_ip}:{one.peer_port}: "
            f"its packets belong to a known flow and are shown to no nat rule ({one.where})"
        )
    for service in report.services:
        found.append(f"NodePort of {service}, by the rules")
    return found


def _listens(one: Socket) -> str:
    held = ": kube-proxy, which only keeps it from others" if holder(one.owner) else ""
    return f"{one.owner} listens on {one.ip}:{one.port}{held} ({one.where})"


def _clients(clients: Sequence[Client], indent: str) -> Iterator[str]:
    width = max([len(one.who) for one in clients], default=0)
    for one in clients:
        yield f"{indent}{one.who.ljust(width)}  {one.answer.sentence}"


def service_lines(report: ServiceReport) -> Iterator[str]:
    """A report on a Service, the answer first."""
    yield report.sentence
    yield ""
    kind = report.type or "type not in this input"
    said = [f"{name} {value}" for name, value in report.policies.items()]
    yield f"Service: {', '.join([kind, *said])} ({'the API' if report.in_api else 'the rules'})"
    for text in report.differences:
        yield f"  ! {text}"
    yield "Frontends:"
    for offer in report.offers:
        yield from _offer(offer)
    yield "Endpoints:"
    yield from [f"  {text}" for text in ends(report)] or ["  none"]
    yield "Chains:"
    if not report.chains:
        yield "  none"
    for chain in report.chains:
        place = chain.place
        family = "" if place.family == "4" else f" {place.family}"
        yield f"  {place.source}{family} {place.table} {place.chain}"
        for position, text in chain.rules[:_MOST_RULES]:
            yield f"    {position}: {text}"
        if len(chain.rules) > _MOST_RULES:
            yield f"    and {len(chain.rules) - _MOST_RULES} more (--json has them all)"
    yield from _notes(report.assumed, report.warnings, report.inputs)


def _offer(offer: Offer) -> Iterator[str]:
    yield f"  {offer.kind or 'address'} {offer.shown}{' ' + offer.port_name if offer.port_name else ''}"
    for one in offer.rules:
        leads = f"leads to {one.place.chain}" if one.place else one.refused
        yield f"    by {one.where.source} {one.where.table} {one.where.chain} {one.position}: {leads}"
    if not offer.rules:
        yield "    no rule takes it"
    if offer.kind == "nodePort":
        if offer.listeners is None:
            yield "    who listens is not in this input"
        else:
            yield from [f"    {_listens(one)}" for one in offer.listeners] or ["    nobody listens on it"]
    yield from _clients(offer.clients, "    ")


def ends(report: ServiceReport) -> list[str]:
    """The endpoints, a line each."""
    found = []
    for one in report.backends[:_MOST_ENDS]:
        words = [one.shown]
        if one.pod:
            words.append(f"pod {one.pod}")
        if one.node:
            words.append(f"on {one.node}")
        if one.in_api:
            words.append(
                "ready" if one.ready else "serving while it ends" if one.serving and one.terminating else "not ready"
            )
        elif one.in_api is False:
            words.append("in no EndpointSlice")
        words.append(f"by {', '.join(one.chains)}" if one.chains else "in no rule of this node")
        found.append(", ".join(words))
    if len(report.backends) > _MOST_ENDS:
        found.append(f"and {len(report.backends) - _MOST_ENDS} more (--json has them all)")
    return found


def _notes(assumed: list[str], warnings: list[str], inputs: list[str]) -> Iterator[str]:
    for title, texts in (("Assumed", assumed), ("Warnings", warnings), ("Read", inputs)):
        if texts:
            yield f"{title}:"
            yield from [f"  {text}" for text in texts]
