"""One self-contained HTML page: its frame, and the parts that all reports share.

No part of a page is loaded from anywhere, and its Content-Security-Policy forbids it to. Everything that comes from the input goes
through `esc`. With JavaScript off the picture's boxes are links to what they stand for.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from podwire.explain.html_assets import CSS, SCRIPT
from podwire.explain.html_figure import box_id, esc
from podwire.explain.html_ways import MOST_ENDS, step_key
from podwire.explain.sentence import share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from podwire.explain.answer import Answer, Outcome
    from podwire.explain.html_figure import Figure
    from podwire.explain.packet import Step

_HINT = "Click a box, or step along the way of the packet."
_HINT_ACROSS = "Click a box to see what leads to it, and where it leads."
_LONG = 220
_GOOD, _BAD = ("dnat", "accept", "local"), ("drop", "reject")


def page(kind: str, answer: str, body: str) -> str:
    """The whole page. `answer` is its heading."""
    policy = f"default-src 'none'; style-src 'sha256-{_hash(CSS)}'; script-src 'sha256-{_hash(SCRIPT)}'; base-uri 'none'; form-action 'none'"
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{esc(kind)}</title><style>{CSS}</style></head>\n"
        f'<body><main><header><p class="kind">{esc(kind)}</p>{heading(answer)}</header>\n{body}\n'
        f"<footer>podwire explain. It only read; nothing was changed.</footer></main><script>{SCRIPT}</script></body></html>\n"
    )


def heading(answer: str) -> str:
    """The answer, smaller where it is long. A name that it begins with keeps its small letter."""
    answer = f"T{answer[1:]}" if answer.startswith(("the node ", "this node ")) else answer
    looks = ' class="long"' if len(answer) > _LONG else ""
    return f"<h1{looks}>{esc(answer)}</h1>"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def section(title: str, body: str, name: str = "") -> str:
    """A part with a heading; nothing where it would be empty."""
    mark = f' id="{esc(name)}"' if name else ""
    return f"<section{mark}><h2>{esc(title)}</h2>{body}</section>\n" if body else ""


def drawn(figure: Figure) -> str:
    """A picture with its bar of buttons."""
    svg = figure.svg()
    if not svg:
        return ""
    across = ' data-across="1"' if figure.across else ""
    return (
        f'<figure data-name="{esc(figure.name)}"{across}><div class="scroll" tabindex="0" role="region" aria-label="{esc(figure.label)}">{svg}</div>'
        '<div class="bar"><button type="button" class="back">Back</button><button type="button" class="on">Next</button>'
        f'<button type="button" class="all">All</button><p class="said" aria-live="polite" data-hint="{_HINT_ACROSS if figure.across else _HINT}"></p></div></figure>\n'
    )


def notes(title: str, texts: Sequence[str]) -> str:
    """A list of remarks."""
    return (
        section(title, f'<ul class="notes">{"".join([f"<li>{esc(one)}</li>" for one in texts])}</ul>') if texts else ""
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts."""
    cells = "".join([f"<tr>{''.join([f'<td>{esc(one)}</td>' for one in row])}</tr>" for row in rows])
    return (
        f'<div class="wide"><table><tr>{"".join([f"<th>{esc(one)}</th>" for one in head])}</tr>{cells}</table></div>'
        if cells
        else ""
    )


def rule_list(rules: Sequence[tuple[int, str]]) -> str:
    """Rules with their positions."""
    return '<ol class="steps">' + "".join([f'<li><span class="place">{at}</span><span class="rule">{esc(text)}</span></li>' for at, text in rules]) + "</ol>"  # fmt: skip


# -- outcomes ----------------------------------------------------------------------------------------------------------


def outcomes(figure: Figure, number: int, answer: Answer) -> str:
    """A card for each end with the rules on the way."""
    cards = [_card(figure, number, place, one) for place, one in enumerate(answer.outcomes[:MOST_ENDS])]
    more = len(answer.outcomes) - MOST_ENDS
    rest = f'<p class="card">and {more} more ends, which --json has</p>' if more > 0 else ""
    return f'<div class="ways">{"".join(cards)}{rest}</div>'


def _card(figure: Figure, number: int, place: int, outcome: Outcome) -> str:
    looks = "good" if outcome.verdict in _GOOD else "bad" if outcome.verdict in _BAD else ""
    name = f"{figure.name}-o{number}-{place}"
    words = [f"probability {share(outcome.probability)}"]
    if outcome.masquerade:
        words.append(f"source becomes {outcome.source or 'the output device’s address'}")
    elif outcome.source:
        words.append(f"source {outcome.source}")
    if outcome.delivered:
        words.append(f"delivered here{', to ' + outcome.process if outcome.process else ''}")
    elif outcome.out_interface:
        words.append(f"out by {outcome.out_interface}{' via ' + outcome.via if outcome.via else ''}")
    if outcome.detail:
        words.append(outcome.detail)
    given = "".join([f"<li>{esc(text)}</li>" for text in outcome.depends_on])
    depends = f'<ul class="notes">{given}</ul>' if given else ""
    way = figure.numbers.get((number, place))
    keys: dict[str, int] = {}
    items, before = [], ""
    for at, step in enumerate(outcome.path):
        key = step_key(step)
        if key != before:
            keys[key] = keys.get(key, 0) + 1
            before = key
        items.append(_item(figure, step, f"{name}-{at}", f"{key} {keys[key]}", way))
    return (
        f'<div class="card" id="{name}"><h3><span class="tag {looks}">{esc(outcome.verdict)}</span>{esc(outcome.to or "")}</h3>'
        f'<div>{esc(", ".join(words))}</div>{depends}<ol class="steps">{"".join(items)}</ol></div>'
    )


def _item(figure: Figure, step: Step, name: str, key: str, way: int | None) -> str:
    if step.source in ("routing", "bridge", "conntrack"):
        place, text = step.source, f"{step.text} ⇒ {step.effect}"
    else:
        place = f"{step.hook} · {step.source} {step.table} {step.chain} · {f'rule {step.position}' if step.position else 'policy'}"
        text = step.text
        place += f" · with probability {share(step.chance)}" if step.chance < 1 else ""
        place += " · on some of the ways" if step.maybe else ""
    mark = f' data-b="{box_id(figure, key)}" data-w="{way}"' if way is not None else ""
    return f'<li id="{name}"{mark}><span class="place">{esc(place)} </span><span class="rule">{esc(text)}</span></li>'
