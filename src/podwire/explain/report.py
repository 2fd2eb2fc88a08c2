"""An answer as text for a terminal: the sentence, then each outcome with the rules that led there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.explain.sentence import share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.explain.answer import Answer, Outcome
    from podwire.explain.packet import Step

_MOST_PATHS = 8


def lines(answer: Answer) -> Iterator[str]:
    """The report, line by line."""
    yield answer.sentence
    yield ""
    for number, outcome in enumerate(answer.outcomes, 1):
        if number > _MOST_PATHS:
            yield f"and {len(answer.outcomes) - _MOST_PATHS} more outcomes (--json has them all)"
            yield ""
            break
        yield from _outcome(number, outcome)
    for title, texts in (
        ("Depends on", answer.depends_on),
        ("Assumed", answer.assumed),
        ("Warnings", answer.warnings),
        ("Read", answer.inputs),
    ):
        if texts:
            yield f"{title}:"
            yield from [f"  {text}" for text in texts]


def _outcome(number: int, outcome: Outcome) -> Iterator[str]:
    yield f"{number}. {_headline(outcome)}"
    for text in outcome.depends_on:
        yield f"     if {text}"
    for given, chance in outcome.otherwise:
        yield f"     ({share(chance)} if {' and '.join([text for text in given if not text.startswith('not: ')]) or 'otherwise'})"
    hook = ""
    for step in outcome.path:
        if step.hook != hook and step.hook:
            hook = step.hook
            yield f"   {hook}"
        yield f"     {_step(step)}"
    yield ""


def _headline(outcome: Outcome) -> str:
    words = [outcome.verdict]
    if outcome.to:
        words.append(f"to {outcome.to}")
    words.append(f"probability {share(outcome.probability)}")
    if outcome.masquerade:
        words.append(f"source {outcome.source or 'the output device’s address'} (masqueraded)")
    elif outcome.source and outcome.verdict in ("dnat", "accept"):
        words.append(f"source {outcome.source} kept")
    if outcome.delivered:
        words.append(f"delivered here{', to ' + outcome.process if outcome.process else ''}")
    elif outcome.out_interface:
        words.append(f"out by {outcome.out_interface}{' via ' + outcome.via if outcome.via else ''}")
    if outcome.node and outcome.overlay:
        words.append(f"on {outcome.node}")
    if outcome.detail:
        words.append(outcome.detail)
    return ", ".join(words)


def _step(step: Step) -> str:
    if step.source in ("routing", "bridge", "conntrack"):
        return f"[{step.source}] {step.text} ⇒ {step.effect}"
    chance = f" with probability {share(step.chance)}" if step.chance < 1 else ""
    maybe = " (on some of the ways)" if step.maybe else ""
    place = f"{step.table} {step.chain} {step.position}" if step.position else f"{step.table} {step.chain} policy"
    return f"{place}: {step.text}{chance}{maybe}"
