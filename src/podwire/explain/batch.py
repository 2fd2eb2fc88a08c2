"""Many questions at once: one JSON object a line in, one a line out; and checks of what a team expects.

A line is `{"from", "to", "in_interface"}`, with `mark`, `ctstate`, `tcp_flags`, `uid`, `gid`, `source_port` where they matter. A line that
cannot be understood is answered by `{"error": …}`, and the exit status is 2. A check adds `expect`: an object of outcome keys,
all of which must be so: `verdict`, `to` (one, or a list of all of them), `masquerade`, `source`, `process`, `probability`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from podwire.addresses import Ip
from podwire.errors import UsageError
from podwire.explain.explain import explain
from podwire.explain.packet import UNKNOWN
from podwire.explain.question import Question
from podwire.explain.snapshot import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from podwire.explain.answer import Answer
    from podwire.explain.picture import Picture

_VERDICTS = frozenset(("dnat", "accept", "drop", "reject", "local", "unknown"))
_KEYS = frozenset(("verdict", "to", "masquerade", "source", "process", "probability"))


@contextlib.contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """A file, or stdin for '-'. Raises UsageError."""
    if path == "-":
        yield sys.stdin
        return
    try:
        file = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115 - closed below, its error is ours to tell
    except OSError as error:
        raise UsageError("reading", path, error.strerror or str(error)) from error
    with file:
        yield file


def number(option: str, text: str) -> int:
    """A number in decimal or with 0x. Raises UsageError."""
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(option, text, "this is no number") from None


def starting_at(question: Question, found: Sequence[Picture]) -> Picture:
    """The node where the packet starts: the one that owns the source or leads to it by a local device, else the first."""
    if len(found) == 1:
        return found[0]
    for picture in found:
        if _starts(question.source, picture):
            return picture
    return next((picture for picture in found if _is_at(question.destination, picture)), found[0])


def _is_at(destination: str, picture: Picture) -> bool:
    """Whether a destination is the node itself: there a packet from outside comes in."""
    if destination.startswith("node/"):
        return _starts(destination.partition(":")[0], picture)
    try:
        return picture.facts.routing.owner(Ip.parse(destination.rpartition(":")[0].strip("[]"))) is not None
    except ValueError:
        return False


def _starts(source: str, picture: Picture) -> bool:
    if source.startswith("node/"):
        node = picture.snapshot.node
        names = (picture.snapshot.hostname, picture.snapshot.label, name_of(node) if node is not None else "")
        return source[5:] in names
    if source.startswith("pod/"):
        _, namespace, name = [*source.split("/"), "", ""][:3]
        pods = [
            one
            for one in picture.snapshot.pods or ()
            if name_of(one) == name and (one.get("metadata") or {}).get("namespace") == namespace
        ]
        source = str((pods[0].get("status") or {}).get("podIP") or "") if pods else ""
    try:
        ip = Ip.parse(source.rpartition(":")[0] if source.count(":") == 1 else source.strip("[]"))
    except ValueError:
        return False
    if picture.facts.routing.owner(ip) is not None:
        return True
    back = picture.facts.routing.lookup(ip)
    return back.kind == "unicast" and not back.via and back.dev != UNKNOWN and not (back.text.startswith("default"))


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    for at, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield at, f"not JSON: {error}"
            continue
        yield at, row if isinstance(row, dict) else "a question is a JSON object"


def _object(row: dict[str, Any] | str, at: int) -> dict[str, Any]:
    if isinstance(row, str):
        raise UsageError(f"line {at}", answer=row)
    return row


def _ask(row: dict[str, Any], found: Sequence[Picture], in_interface: str) -> Answer:
    question = Question.of(row)
    here = starting_at(question, found)
    if not question.in_interface and not _is_own(question.source, here):
        question.in_interface = in_interface
    return explain(question, here, found)


def _is_own(source: str, picture: Picture) -> bool:
    """Whether a source is the node itself: its packets come in nowhere."""
    if source == "node" or source.startswith("node/"):
        return True
    try:
        ip = Ip.parse(source.rpartition(":")[0] if source.count(":") == 1 else source.strip("[]"))
    except ValueError:
        return False
    return picture.facts.routing.owner(ip) is not None or picture.facts.address_type(ip) == "LOCAL"


def answers(lines: Iterable[str], found: Sequence[Picture], out: TextIO, in_interface: str = "") -> int:
    """Answer each line; the exit status."""
    status = 0
    for at, row in _rows(lines):
        try:
            made = _ask(_object(row, at), found, in_interface).as_json()
        except UsageError as error:
            made, status = {"error": str(error), "line": at}, 2
        out.write(json.dumps(made, ensure_ascii=False) + "\n")
        out.flush()
    return status


def checked(lines: Iterable[str], found: Sequence[Picture], out: TextIO, in_interface: str = "") -> int:
    """Compare each line with what it expects; the exit status."""
    counts = {"ok": 0, "no": 0, "wrong": 0}
    for at, given in _rows(lines):
        try:
            row = _object(given, at)
            expected = _expected(row, at)
            answer = _ask(row, found, in_interface)
        except UsageError as error:
            counts["wrong"] += 1
            out.write(f"line {at}: {error}\n")
            continue
        wrong = differences(answer, expected)
        label = row.get("name") or f"{row['from']} to {row['to']}"
        counts["no" if wrong else "ok"] += 1
        out.write(f"{'FAIL' if wrong else 'ok  '} {label}\n")
        out.writelines(f"       {text}\n" for text in wrong)
        if wrong:
            out.write(f"       {answer.sentence}\n")
    out.write(f"{counts['ok']} as expected, {counts['no']} not, {counts['wrong']} lines not understood\n")
    return 2 if counts["wrong"] else 1 if counts["no"] else 0


def _expected(row: dict[str, Any], at: int) -> dict[str, Any]:
    expected = row.get("expect")
    if isinstance(expected, str):
        expected = {"verdict": expected}
    if not isinstance(expected, dict) or not expected or set(expected) - _KEYS:
        raise UsageError(f"line {at}", answer='"expect" needs one or more of ' + ", ".join(sorted(_KEYS)))
    if "verdict" in expected and expected["verdict"] not in _VERDICTS:
        raise UsageError(f"line {at}", answer=f"no verdict is called {expected['verdict']}")
    return expected


def differences(answer: Answer, expected: dict[str, Any]) -> list[str]:
    """How the outcomes are not what is expected; empty when they are."""
    found = []
    for key, value in expected.items():
        if key == "to":
            wanted = set(value if isinstance(value, list) else [value])
            there = {outcome.to for outcome in answer.outcomes}
            if wanted != there:
                found.append(f"to: expected {_list(wanted)}, found {_list(there)}")
            continue
        for outcome in answer.outcomes:
            held = getattr(outcome, key)
            same = (
                abs(held - value) < 1e-6 if key == "probability" and isinstance(value, int | float) else held == value
            )
            if not same:
                found.append(f"{key}: expected {value}, found {held} ({outcome.to})")
    return list(dict.fromkeys(found))


def _list(values: Iterable[str | None]) -> str:
    return ", ".join(sorted(str(value) for value in values)) or "nothing"
