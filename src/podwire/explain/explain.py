"""One question about one node, answered: the packet made, walked, and what else has to be said put beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from podwire.explain import asides
from podwire.explain.answer import Answer, open_questions, outcomes_of
from podwire.explain.overlay import through_overlay
from podwire.explain.question import packet_of
from podwire.explain.sentence import sentence
from podwire.explain.walk import Journey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.chains import End
    from podwire.explain.picture import Picture
    from podwire.explain.question import Question


def explain(question: Question, picture: Picture, peers: Sequence[Picture] = ()) -> Answer:
    """The answer. Raises UsageError for a question that cannot be understood."""
    asked = packet_of(question, picture)
    picture = replace(picture, facts=asides.supposed(question, asked, picture))
    packet = asked.packet
    warnings: list[str] = []
    flow = asides.flow_of(packet, picture.facts, warnings)
    if flow is not None:
        entry, reply = flow
        seen = reply or "UNREPLIED" not in entry.marks
        state = question.state.upper() or ("ESTABLISHED" if seen else "NEW")
        packet = packet._replace(state=state, reply=reply)
        asked.packet = packet
        asked.assumed = [text for text in asked.assumed if "new flow" not in text]
    ends = asides.partial_start(packet, picture, warnings)
    if ends is None:
        ends = Journey(picture.ruleset, picture.facts, packet.family, flow).run(packet)
    return _answer(question, asked, ends, picture, peers, warnings)


def _answer(
    question: Question, asked: object, ends: list[End], picture: Picture, peers: Sequence[Picture], warnings: list[str]
) -> Answer:
    outcomes = outcomes_of(ends, picture.snapshot.title)
    made = Answer(
        question,
        asked,  # type: ignore[arg-type]  # an Asked; typed in explain()
        outcomes,
        depends_on=[*open_questions(ends), *picture.doubts],
        assumed=[*picture.assumed, *asked.assumed, *picture.facts.assumed],  # type: ignore[attr-defined]  # as above
        warnings=[*warnings, *asides.about(outcomes, picture), *picture.warnings],
        inputs=picture.inputs or [picture.snapshot.origin],
    )
    for outcome in outcomes:
        asides.name_process(outcome, picture.facts)
    made.outcomes = through_overlay(outcomes, picture, peers, made.warnings)
    made.sentence = sentence(made)
    return made
