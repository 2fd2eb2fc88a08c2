"""The answer in one sentence, and probabilities as people say them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from podwire.explain.answer import at

if TYPE_CHECKING:
    from podwire.explain.answer import Answer, Outcome

_MOST_NAMED = 6


def share(probability: float) -> str:
    """1/3, 1/2, or per cent where no small fraction is that near (kube-proxy writes 0.33333333349 for 1/3)."""
    simple = Fraction(probability).limit_denominator(1000)
    if abs(float(simple) - probability) < 1e-6:
        return str(simple)
    return f"{probability * 100:.4g} %"


def sentence(answer: Answer) -> str:
    """What becomes of the packet."""
    packet = answer.asked.packet
    source = str(packet.src) if packet.src_known else "this node"
    return f"{source} to {at(packet)}/{packet.protocol} {predicate(answer)}."


def predicate(answer: Answer) -> str:
    """The same without naming the packet: `is translated to …`."""
    plain = [one for one in answer.outcomes if not _conditions(one)]
    told = plain or answer.outcomes
    text = _together(told)
    rest = [one for one in answer.outcomes if one not in told]
    for one in rest[:3]:
        text += f"; but it {outcome_phrase(one)} if {' and '.join(_conditions(one)[:2])}"
    if len(rest) > 3:
        text += f"; and {len(rest) - 3} more possibilities"
    if any(one.otherwise for one in told):
        text += f"; with other probabilities if {' or if '.join(_reasons(told)[:3])}"
    if not plain and len(answer.outcomes) > 1:
        text += f"; it depends on: {'; '.join(answer.depends_on[:3])}"
    return text


def _reasons(outcomes: list[Outcome]) -> list[str]:
    """What would make the probabilities others."""
    found = [text for one in outcomes for given, _ in one.otherwise for text in given if not text.startswith("not: ")]
    return list(dict.fromkeys(found))


def _conditions(outcome: Outcome) -> list[str]:
    return [text for text in outcome.depends_on if not text.startswith("not: ")]


def _together(outcomes: list[Outcome]) -> str:
    """Outcomes of one kind in one phrase."""
    if not outcomes:
        return "comes to no end that podwire can tell"
    kinds = {(one.verdict, one.masquerade) for one in outcomes}
    if len(outcomes) == 1:
        return outcome_phrase(outcomes[0])
    if {verdict for verdict, _ in kinds} == {"dnat"}:
        shares = {round(one.probability, 6) for one in outcomes}
        equal = len(shares) == 1 and all(not _conditions(one) for one in outcomes)
        named = [f"{one.to}" if equal else f"{one.to} ({share(one.probability)})" for one in outcomes[:_MOST_NAMED]]
        if len(outcomes) > _MOST_NAMED:
            named.append(f"{len(outcomes) - _MOST_NAMED} more")
        each = f" ({share(outcomes[0].probability)} each)" if equal else ""
        return f"is translated to {' or '.join(named)}{each}{_source(outcomes)}"
    if all(one.verdict == "unknown" and one.to and one.packet is not None and one.packet.dnat for one in outcomes):
        named = [f"{one.to} ({share(one.probability)})" for one in outcomes[:_MOST_NAMED]]
        return f"is probably translated to {' or '.join(named)}, by chains that are not in this input"
    return " or ".join([f"{outcome_phrase(one)} ({share(one.probability)})" for one in outcomes[:4]])


def _source(outcomes: list[Outcome]) -> str:
    masked = [one for one in outcomes if one.masquerade]
    if not masked:
        return ", its source is kept"
    if len(masked) < len(outcomes):
        return ", masqueraded on the way to " + " and ".join([str(one.to) for one in masked[:4]])
    names = sorted({one.source or "the output device's address" for one in masked})
    return f", masqueraded as {' or '.join(names[:3])}"


def outcome_phrase(outcome: Outcome) -> str:
    """What becomes of the packet in one outcome."""
    where = _where(outcome)
    if outcome.verdict == "drop":
        moved = (
            f" after it was translated to {outcome.to}"
            if outcome.packet is not None and outcome.packet.dnat and outcome.to
            else ""
        )
        return f"is dropped{moved}: {where}"
    if outcome.verdict == "reject":
        return f"is rejected ({outcome.detail}): {where}"
    if outcome.verdict == "unknown":
        hint = (
            f" (probably translated to {outcome.to})"
            if outcome.packet is not None and outcome.packet.dnat and outcome.to
            else ""
        )
        return f"goes where podwire cannot follow{hint}: {outcome.detail or where}"
    if outcome.verdict == "dnat":
        target = outcome.to or "an address that is not readable in this input"
        local = _process(outcome) if outcome.delivered else ""
        return f"is translated to {target}{local}{_source([outcome])}"
    if outcome.delivered:
        return f"is delivered to this node itself, not translated{_process(outcome)}"
    by = f" by {outcome.out_interface}" if outcome.out_interface else ""
    return f"is not translated and leaves{by}{_source([outcome])}"


def _process(outcome: Outcome) -> str:
    return f", to {outcome.process}" if outcome.process else ""


def _where(outcome: Outcome) -> str:
    """The rule that decided."""
    if not outcome.path:
        return outcome.detail or "no rule said so"
    step = outcome.path[-1]
    if step.source in ("routing", "bridge", "conntrack"):
        return outcome.detail or step.text
    place = f"{step.table} {step.chain}"
    return outcome.detail or f"{place} policy" if step.position == 0 else f"{place} rule {step.position}: {step.text}"
