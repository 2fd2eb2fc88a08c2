"""What a check says: a `Finding` with its evidence, and the `Check` that it belongs to.

A finding names what was read and where, so that a reader can look at the same place and disagree. `level` is
`error` (something does not work), `warning` (it will not work, or only for some), or `note` (works as designed, but is a usual cause
of questions). Notes are no findings for the exit status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from podwire.doctor.view import Node

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read, and where."""

    text: str
    where: str = ""


@dataclass(slots=True)
class Finding:
    """One thing that is wrong. `nodes` are the titles of the nodes it was found on; empty for the cluster as a whole."""

    id: str
    level: Level
    title: str
    symptom: str
    evidence: list[Evidence]
    why: str
    fix: list[str]
    nodes: list[str] = field(default_factory=list)

    @property
    def docs(self) -> str:
        """The place in the documentation."""
        return f"docs/doctor.md#{self.id}"

    @property
    def key(self) -> tuple[object, ...]:
        """Two findings that say the same of two nodes are one finding of both."""
        return (self.id, self.title, tuple(self.evidence), tuple(self.fix))


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table. `look` gets the nodes one by one, `look_at_all` all at once, `look_after` one by one with the ids of what was found before."""

    id: str
    title: str
    symptom: str
    why: str
    look: Callable[[Node], Iterable[Said]] | None = None
    look_at_all: Callable[[Sequence[Node]], Iterable[Said]] | None = None
    look_after: Callable[[Node, AbstractSet[str]], Iterable[Said]] | None = None

    def run(self, nodes: Sequence[Node], found: AbstractSet[str]) -> Iterator[Finding]:
        """The findings of this check; `found` are the ids of what earlier checks have found."""
        if self.look_after is not None:
            for node in nodes:
                for said in self.look_after(node, found):
                    yield self._finding(said, [node.title])
        if self.look_at_all is not None:
            for said in self.look_at_all(nodes):
                yield self._finding(said, said.nodes)
        if self.look is not None:
            for node in nodes:
                for said in self.look(node):
                    yield self._finding(said, [node.title])

    def _finding(self, said: Said, nodes: list[str]) -> Finding:
        return Finding(
            self.id, said.level, said.title or self.title, said.symptom or self.symptom, list(said.evidence),
            said.why or self.why, list(said.fix), list(nodes),
        )  # fmt: skip


@dataclass(slots=True)
class Said:
    """What a check function says; what it leaves empty is taken from the check's row."""

    evidence: list[Evidence]
    fix: list[str]
    title: str = ""
    why: str = ""
    symptom: str = ""
    level: Level = "error"
    nodes: list[str] = field(default_factory=list)
