"""Findings as text for a terminal, and as JSON."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from podwire.doctor.finding import LEVELS, Evidence, Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.snapshot import Snapshot

_LABEL = 10


def text(findings: Sequence[Finding], snapshots: Sequence[Snapshot], checks: int, width: int = 100) -> str:
    """The report."""
    lines = [summary(findings, snapshots, checks)]
    for finding in findings:
        lines += ["", *_finding(finding, max(width, 60))]
    lines += _notes(snapshots)
    return "\n".join(lines)


def summary(findings: Sequence[Finding], snapshots: Sequence[Snapshot], checks: int) -> str:
    """The first line."""
    where = ", ".join(dict.fromkeys(one.title for one in snapshots)) or "nothing"
    counts = [(sum(finding.level == level for finding in findings), level) for level in LEVELS]
    said = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for count, level in counts if count)
    return f"{where}: {said or 'nothing found'} ({checks} checks)"


def _finding(finding: Finding, width: int) -> list[str]:
    nodes = f"  [{', '.join(finding.nodes)}]" if finding.nodes else ""
    lines = [f"{finding.level.upper()}  {finding.title}  ({finding.id}){nodes}"]
    lines += _part("symptom", finding.symptom, width)
    for number, one in enumerate(finding.evidence):
        lines += _part("evidence" if number == 0 else "", f"{one.text}{_where(one)}", width)
    lines += _part("why", finding.why, width)
    for number, step in enumerate(finding.fix):
        # A command is never wrapped: it must survive being copied.
        lines.append(f"  {'fix' if number == 0 else '':<{_LABEL}}{step}")
    lines += _part("docs", finding.docs, width)
    return lines


def _where(one: Evidence) -> str:
    return f"  ({one.where})" if one.where else ""


def _part(label: str, said: str, width: int) -> list[str]:
    indent = " " * (_LABEL + 2)
    wrapped = textwrap.wrap(said, width - _LABEL - 2, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {label:<{_LABEL}}{wrapped[0]}", *(indent + line for line in wrapped[1:])]


def _notes(snapshots: Sequence[Snapshot]) -> list[str]:
    lines: list[str] = []
    for one in snapshots:
        lines += [f"note: {warning}" for warning in one.warnings]
        if one.unread:
            parts = ", ".join(missing.part for missing in one.unread)
            lines.append(f"note: not read on {one.title}, so not checked: {parts}")
    return ["", *lines] if lines else []


def as_json(findings: Sequence[Finding], snapshots: Sequence[Snapshot], checks: int) -> dict[str, Any]:
    """The same as JSON; the schema is in docs/doctor.md."""
    return {
        "summary": summary(findings, snapshots, checks),
        "findings": [
            {
                "id": finding.id,
                "level": finding.level,
                "title": finding.title,
                "nodes": finding.nodes,
                "symptom": finding.symptom,
                "evidence": [{"text": one.text, "where": one.where} for one in finding.evidence],
                "why": finding.why,
                "fix": finding.fix,
                "docs": finding.docs,
            }
            for finding in findings
        ],
        "nodes": [
            {
                "title": one.title,
                "origin": one.origin,
                "unread": [{"part": missing.part, "reason": missing.reason} for missing in one.unread],
                "warnings": one.warnings,
            }
            for one in snapshots
        ],
        "checks": checks,
    }
