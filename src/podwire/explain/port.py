"""Who has a port of this node: whoever listens on it, or the rules? The question of a NodePort that another process has taken.

DNAT is made in PREROUTING, for the node's own packets in OUTPUT, and the kernel looks for a socket only behind that. So a rule
wins over a listener, and a connection that uses the port as its client port loses nothing either: its packets belong to a known
flow, which no nat rule is asked about. What is reported is walked, not concluded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.errors import UsageError
from podwire.explain import clients as asking
from podwire.explain.answer import step_json
from podwire.explain.frontends import frontends
from podwire.explain.naming_services import named
from podwire.explain.rule_graph import Graph
from podwire.explain.sentence import outcome_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.answer import Outcome
    from podwire.explain.clients import Client
    from podwire.explain.frontends import Frontend
    from podwire.explain.packet import Step
    from podwire.explain.picture import Picture
    from podwire.explain.snapshot import Socket

PROTOCOLS = ("tcp", "udp", "sctp")
_WORDS = {"external": "external", "node": "node-local", "loopback": "loopback"}


@dataclass(slots=True)
class PortReport:
    """What is known of one port. `listeners` and `connections` are None where the input has no sockets."""

    port: int
    protocol: str
    node: str
    address: str
    listeners: list[Socket] | None
    connections: list[Socket] | None
    frontends: list[Frontend]
    clients: list[Client]
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The answer."""
        return _sentence(self)

    @property
    def services(self) -> list[str]:
        """The Services whose NodePort it is, with the name of their port."""
        return list(dict.fromkeys([f"{one.service}{':' + one.port_name if one.port_name else ''}" for one in self.frontends if one.service]))  # fmt: skip

    @property
    def rules(self) -> list[Step]:
        """The rules that decide where packets to the port go, each once."""
        found: dict[tuple[object, ...], Step] = {}
        for outcome in [one for client in self.clients for one in client.answer.outcomes]:
            rules = [step for step in outcome.path if step.source not in ("routing", "bridge", "conntrack")]
            kept = [
                step
                for step in rules
                if step.hook in ("PREROUTING", "OUTPUT") and (step.table == "nat" or step.source == "nft")
            ]
            if outcome.verdict in ("drop", "reject"):
                kept += rules[-1:]
            for step in kept:
                found.setdefault((step.source, step.table, step.chain, step.position, step.text), step)
        return list(found.values())

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        return {
            "answer": self.sentence,
            "port": self.port,
            "protocol": self.protocol,
            "node": self.node,
            "address": self.address,
            "services": self.services,
            "listeners": None if self.listeners is None else [listener_json(one) for one in self.listeners],
            "connections": None if self.connections is None else [listener_json(one) for one in self.connections],
            "rules": [step_json(step) for step in self.rules],
            "clients": [client_json(one) for one in self.clients],
            "assumed": self.assumed,
            "warnings": self.warnings,
            "inputs": self.inputs,
        }


def client_json(client: Client) -> dict[str, Any]:
    """A client with its whole answer."""
    whole = client.answer.as_json()
    kept = ("answer", "outcomes", "depends_on", "packet", "warnings")
    return {"who": client.who, "from": client.source, "to": client.to} | {key: whole[key] for key in kept}


def listener_json(one: Socket) -> dict[str, Any]:
    """A socket."""
    made: dict[str, Any] = {
        "process": one.process,
        "pid": one.pid,
        "state": one.state,
        "address": one.ip,
        "where": one.where,
    }
    if one.peer_port:
        made["peer"] = f"{one.peer_ip}:{one.peer_port}"
    return made


def parse(text: str) -> tuple[int, str]:
    """Port and protocol ('' where it was not said) of 30450/tcp. Raises UsageError."""
    number, _, protocol = text.partition("/")
    if not (number.isascii() and number.isdigit() and 0 < int(number[:6]) < 65536) or protocol.lower() not in (
        "",
        *PROTOCOLS,
    ):
        raise UsageError("explain port", text, "this is no port", "30450, 30450/udp")
    return int(number), protocol.lower()


def reports(text: str, picture: Picture, peers: Sequence[Picture] = ()) -> list[PortReport]:
    """A report for the protocol that was asked for, or for every one that a rule or a socket has the port in (else tcp)."""
    port, protocol = parse(text)
    all_of = [one for one in named(frontends(Graph(picture.ruleset)), picture.snapshot) if one.port == port]
    sockets = picture.snapshot.sockets
    seen = {one.protocol for one in all_of} | {one.protocol.rstrip("6") for one in sockets or () if one.port == port}
    found = [protocol] if protocol else [one for one in PROTOCOLS if one in seen] or ["tcp"]
    return [_report(port, one, all_of, picture, peers) for one in found]


def _report(port: int, protocol: str, all_of: list[Frontend], picture: Picture, peers: Sequence[Picture]) -> PortReport:
    kept = [one for one in all_of if one.protocol == protocol]
    family = 6 if kept and all(one.where.family in ("6", "ip6") for one in kept) else 4
    there, address, assumed = asking.with_address(picture, family)
    asked = asking.of_port(there, peers, address, port, protocol)
    mine = [one for one in picture.snapshot.sockets or () if one.port == port and one.protocol.rstrip("6") == protocol]
    known = picture.snapshot.sockets is not None
    said = [
        text
        for client in asked
        for text in client.answer.assumed
        if "is an address of this node" not in text or not assumed
    ]
    warned = [text for client in asked for text in client.answer.warnings]
    return PortReport(
        port,
        protocol,
        picture.snapshot.title,
        str(address),
        [one for one in mine if one.listening] if known else None,
        [one for one in mine if not one.listening] if known else None,
        [one for one in kept if one.address in ("", str(address))],
        asked,
        list(dict.fromkeys([*assumed, *said])),
        list(dict.fromkeys(warned)),
        picture.inputs or [picture.snapshot.origin],
    )


# -- the sentence ----------------------------------------------------------------------------------------------------


def _sentence(report: PortReport) -> str:
    name = f"port {report.port}/{report.protocol} of {report.node}"
    probably = any(one.place is not None for one in report.frontends) and any(
        _translates(end) for one in report.clients for end in one.answer.outcomes
    )
    taken = probably or any(one.translated for one in report.clients)
    refused = [one for one in report.frontends if one.refused]
    if taken:
        who = f"the rules of {' and '.join(report.services)}" if report.services else "a rule"
        start = f"{who[0].upper()}{who[1:]} {'take' if report.services else 'takes'} {name}"
    elif refused:
        start = f"{name[0].upper()}{name[1:]} belongs to {' and '.join(report.services) or 'a Service'}, whose packets a rule refuses"
    else:
        start = f"No rule takes {name}"
    groups: dict[str, list[str]] = {}
    for one in report.clients:
        groups.setdefault(gist(one), []).append(one.who)
    parts = [f"{_who(names)} clients {text}" for text, names in groups.items()]
    return f"{start}: {'; '.join(parts)}{_holders(report, taken=taken)}."


def _who(names: list[str]) -> str:
    words = [_WORDS.get(name, name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def gist(client: Client) -> str:
    """What becomes of them, with what it depends on."""
    outcomes = client.answer.outcomes
    plain = [one for one in outcomes if not held(one)]
    text = (
        " or ".join(dict.fromkeys([_end(one, client) for one in _reached(plain or outcomes)]))
        or "come to no end that podwire can tell"
    )
    rest = [one for one in outcomes if held(one)] if plain else []
    for reason in list(dict.fromkeys([" and ".join(held(one)[:2]) for one in rest]))[:2]:
        ends = dict.fromkeys([_end_if(one, client, reason) for one in rest if " and ".join(held(one)[:2]) == reason])
        text += f", but {' or '.join(ends)} if {reason}"
    if not plain and client.answer.depends_on:
        text += f" (it depends on: {'; '.join(client.answer.depends_on[:2])})"
    return text


def held(outcome: Outcome) -> list[str]:
    """What an outcome needs to be so."""
    return [text for text in outcome.depends_on if not text.startswith("not: ")]


def _reached(outcomes: list[Outcome]) -> list[Outcome]:
    """Translations that are alike but for their target, as one."""
    kept: list[Outcome] = []
    for one in outcomes:
        if not _translates(one) or not any(_alike(one, two) for two in kept):
            kept.append(one)
    return kept


def _translates(one: Outcome) -> bool:
    """Whether it is translated, or would be by a chain that is not in the input."""
    return one.verdict == "dnat" or bool(one.verdict == "unknown" and one.to and one.packet and one.packet.dnat)


def _alike(one: Outcome, two: Outcome) -> bool:
    return _translates(two) and (one.verdict, one.masquerade) == (two.verdict, two.masquerade)


def _end_if(outcome: Outcome, client: Client, reason: str) -> str:
    """An end whose reason is said right after it."""
    if outcome.verdict in ("drop", "reject") and outcome.detail == reason:
        return "are dropped" if outcome.verdict == "drop" else "are rejected"
    return _end(outcome, client)


def _end(outcome: Outcome, client: Client) -> str:
    if _translates(outcome):
        alike = [one.to or "?" for one in client.answer.outcomes if _translates(one) and _alike(outcome, one)]
        named = list(dict.fromkeys(alike))
        more = f" or {len(named) - 4} more" if len(named) > 4 else ""
        here = f" ({outcome.process})" if outcome.delivered and outcome.process else ""
        if outcome.verdict == "unknown":
            return f"probably reach {' or '.join(named[:4])}{more}, by chains that are not in this input"
        return f"reach {' or '.join(named[:4])}{more}{here}{', masqueraded' if outcome.masquerade else ''}"
    if outcome.delivered:
        if outcome.process:
            return f"reach {outcome.process}, not translated"
        return (
            "are refused: nobody listens there"
            if "nobody listens" in outcome.detail
            else "reach whoever listens there, not translated"
        )
    last = outcome.path[-1] if outcome.path else None
    if outcome.verdict in ("drop", "reject") and last is not None and last.table and last.position:
        said = f"rejected ({outcome.detail})" if outcome.verdict == "reject" else "dropped"
        return f"are {said} by {last.table} {last.chain} rule {last.position}"
    text = outcome_phrase(outcome)
    for one, many in (("is ", "are "), ("goes ", "go "), ("comes ", "come ")):
        if text.startswith(one):
            return many + text[len(one) :].replace(" it was ", " they were ")
    return text


def _holders(report: PortReport, *, taken: bool) -> str:
    if report.listeners is None:
        every = all(client.translated for client in report.clients)
        return "; who listens on it is not in this input" + (", and makes no difference to them" if every else "")
    words = []
    for owner in dict.fromkeys([one.owner for one in report.listeners]):
        if not taken:
            continue
        if holder(owner):
            words.append(f"{owner} holds the port so that nobody else takes it")
        else:
            served = [_WORDS[c.who] for c in report.clients if any(one.process == owner for one in c.answer.outcomes)]
            words.append(
                f"{owner} listens on it and {'gets only ' + ' and '.join(served) + ' clients' if served else 'gets none of them'}"
            )
    for one in report.connections or ():
        words.append(f"{one.owner} has it as the port of a connection with {one.peer_ip}:{one.peer_port}")
        break
    return "".join(f"; {text}" for text in words)


def holder(owner: str) -> bool:
    """Whether a listener is kube-proxy, which until 1.26 bound every NodePort and accepted nothing."""
    return owner.startswith(("kube-proxy", "hyperkube", "k3s"))
