"""The ends of a walk as outcomes, and the sentence that answers.

Ways that end alike are one outcome. `probability` is the sum of theirs, given that nothing of what could not be evaluated
holds; an outcome that needs one of those things has the probability given them, and names them in `depends_on`. Where another
answer to an open question only changes an outcome's probability, that is in `otherwise`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.explain.packet import UNKNOWN, merge, steps

if TYPE_CHECKING:
    from podwire.explain.chains import End
    from podwire.explain.packet import Packet, Step, Supposed
    from podwire.explain.question import Asked, Question


@dataclass(slots=True)
class Outcome:
    """One end. `verdict`: dnat, accept, drop, reject, local, unknown. `to` is None where the input does not tell it."""

    probability: float
    verdict: str
    to: str | None
    masquerade: bool
    source: str | None
    path: list[Step]
    depends_on: list[str] = field(default_factory=list)
    otherwise: list[tuple[list[str], float]] = field(default_factory=list)
    detail: str = ""
    out_interface: str | None = None
    via: str = ""
    delivered: bool = False
    mark: int = 0
    process: str = ""
    node: str = ""
    packet: Packet | None = None
    overlay: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        made: dict[str, Any] = {
            "probability": round(self.probability, 9),
            "verdict": self.verdict,
            "to": self.to,
            "masquerade": self.masquerade,
            "source": self.source,
            "detail": self.detail,
            "out_interface": self.out_interface,
            "delivered_locally": self.delivered,
            "mark": f"{self.mark:#x}",
            "depends_on": self.depends_on,
            "path": [step_json(step) for step in self.path],
        }
        more = {"next_hop": self.via, "process": self.process, "node": self.node, "overlay": self.overlay}
        made |= {key: value for key, value in more.items() if value}
        if self.otherwise:
            made["otherwise"] = [
                {"depends_on": given, "probability": round(chance, 9)} for given, chance in self.otherwise
            ]
        return made


def step_json(step: Step) -> dict[str, Any]:
    """A matched rule."""
    made: dict[str, Any] = {
        "source": step.source,
        "hook": step.hook,
        "table": step.table,
        "chain": step.chain,
        "position": step.position,
        "rule": step.text,
        "effect": step.effect,
    }
    if step.chance < 1:
        made["probability"] = round(step.chance, 9)
    if step.maybe:
        made["maybe"] = True
    return made


@dataclass(slots=True)
class Answer:
    """All that is known about a question. `sentence` is the answer in one."""

    question: Question
    asked: Asked
    outcomes: list[Outcome]
    depends_on: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    sentence: str = ""

    def as_json(self) -> dict[str, Any]:
        """The documented form (docs/explain.md)."""
        packet = self.asked.packet
        return {
            "answer": self.sentence,
            "outcomes": [outcome.as_json() for outcome in self.outcomes],
            "depends_on": self.depends_on,
            "packet": packet_json(packet),
            "question": {"from": self.question.source, "to": self.question.destination},
            "assumed": self.assumed,
            "inputs": self.inputs,
            "warnings": self.warnings,
        }


def packet_json(packet: Packet) -> dict[str, Any]:
    """The packet where it starts."""
    return {
        "protocol": packet.protocol,
        "source": str(packet.src) if packet.src_known else None,
        "source_port": packet.sport,
        "destination": str(packet.dst),
        "port": packet.dport,
        "in_interface": None if packet.own else ("unknown" if packet.iif == UNKNOWN else packet.iif),
        "made_here": packet.own,
        "ctstate": packet.state,
        "mark": f"{packet.mark:#x}",
    }


def at(packet: Packet) -> str | None:
    """Where a packet is going now: ip:port, or the address where there are no ports."""
    if not packet.dst_known and not packet.to_self:
        return None
    host = str(packet.dst) if packet.dst_known else "this node"
    if packet.dport is None:
        return host
    return f"[{host}]:{packet.dport}" if ":" in host else f"{host}:{packet.dport}"


def outcomes_of(ends: list[End], node: str = "") -> list[Outcome]:
    """The ends put together, most probable first."""
    groups: dict[tuple[Any, ...], list[End]] = {}
    for end in ends:
        packet = end.way.packet
        key = (
            _verdict(end), at(packet), packet.snat, packet.src_known and packet.src, end.detail if end.verdict in ("drop", "reject", "unknown") else "",
            end.verdict == "local", packet.oif,
        )  # fmt: skip
        groups.setdefault(key, []).append(end)
    found = [_outcome(group, node) for group in groups.values()]
    found.sort(key=lambda outcome: (bool(_held(outcome)), -outcome.probability))
    return found


def _held(outcome: Outcome) -> list[str]:
    return [text for text in outcome.depends_on if not text.startswith("not: ")]


def _verdict(end: End) -> str:
    packet = end.way.packet
    if end.verdict in ("drop", "reject"):
        return end.verdict
    if end.verdict == "unknown":
        return "dnat" if packet.dnat and not packet.dst_known else "unknown"
    if packet.dnat:
        return "dnat"
    return "local" if end.verdict == "local" else "accept"


def _outcome(group: list[End], node: str) -> Outcome:
    last = group[0]
    # Marks and what was added to sets do not matter any more: without them more ways are alike.
    plain = last.way.packet._replace(added=frozenset(), mark=last.way.packet.mark)
    ways = merge([end.way.with_packet(plain) for end in group])
    ways.sort(key=lambda way: sum(supposed.holds for supposed in way.given))
    first = ways[0]
    packet = last.way.packet
    return Outcome(
        probability=first.chance,
        verdict=_verdict(last),
        to=at(packet),
        masquerade=packet.snat,
        source=str(packet.src) if packet.src_known else None,
        path=steps(first.path),
        depends_on=_texts(first.given),
        otherwise=[(_texts(way.given), way.chance) for way in ways[1:]],
        detail=last.detail if last.verdict in ("drop", "reject", "unknown") else "",
        out_interface=None if packet.oif in (None, UNKNOWN) or last.verdict == "local" else packet.oif,
        via=last.detail if last.verdict == "sent" and _is_ip(last.detail) else "",
        delivered=last.verdict == "local",
        mark=packet.mark,
        node=node,
        packet=packet,
    )


def _is_ip(text: str) -> bool:
    return text[:1].isdigit() or ":" in text


def _texts(given: tuple[Supposed, ...]) -> list[str]:
    return [str(supposed) for supposed in given]


def open_questions(ends: list[End]) -> list[str]:
    """Every question that could not be answered, once each."""
    found: dict[str, str] = {}
    for end in ends:
        for supposed in end.way.given:
            found.setdefault(supposed.key, supposed.text)
    return list(found.values())
