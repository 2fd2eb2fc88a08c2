"""A picture of ways through boxes, as SVG: boxes in layers, one arrow for all ways that go from a box to the next.

A way is a list of boxes. A box stands in the layer behind the last box that leads to it, so that arrows only go forward; ways that
meet two boxes in contrary order get boxes of their own. Each box and arrow says which ways it is on (`data-p`): the script of
the page lights the ways of what is clicked. Without a script a box is a link to its details.
"""

from __future__ import annotations

import html
import itertools
import re
from dataclasses import dataclass, field

_WIDE, _NARROW, _HEIGHT = 224, 206, 44  # a box; the narrow ones stand in columns
_THIN = 26
_GAP_ACROSS, _GAP_ALONG = 16, 26
_MARGIN = 10
_LETTERS, _SMALL_LETTERS = 7.6, 6.1  # how wide a letter is
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def esc(text: object) -> str:
    """Text for HTML: what a browser could take for markup is not, and what no page may hold is shown as such."""
    return html.escape(_CONTROL.sub("\ufffd", str(text)), quote=True)


def cut(text: str, letters: int) -> str:
    """The text, its middle left out where it is too long: both ends of a chain's name tell something."""
    if len(text) <= letters:
        return text
    tail = letters // 3
    return f"{text[: letters - tail - 1]}…{text[-tail:]}"


@dataclass(slots=True)
class Box:
    """`kind` is its looks: start, chain, path (routing and such), good, bad, open; `link` the id of its details."""

    title: str
    small: str
    kind: str = "chain"
    link: str = ""


@dataclass(slots=True)
class Figure:
    """`name` is a prefix for ids, unique on the page; `across`: layers are columns (many boxes), else rows (few)."""

    name: str
    label: str
    across: bool = False
    boxes: dict[str, Box] = field(default_factory=dict)
    ways: list[list[str]] = field(default_factory=list)
    numbers: dict[tuple[int, int], int] = field(default_factory=dict)  # (client, its outcome) → the number of the way

    def add(self, key: str, box: Box) -> str:
        """The box of this key, made once."""
        self.boxes.setdefault(key, box)
        return key

    def svg(self) -> str:
        """The picture."""
        return _Layout(self).svg() if self.ways else ""


class _Layout:
    """Where each box is. Boxes are numbered; a long arrow goes through thin places of the layers between."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.width = _NARROW if figure.across else _WIDE
        self.ways = _forward(figure.ways)
        self.on: dict[str, set[int]] = {}
        self.arrows: dict[tuple[str, str], set[int]] = {}
        for number, way in enumerate(self.ways):
            for key in way:
                self.on.setdefault(key, set()).add(number)
            for pair in itertools.pairwise(way):
                self.arrows.setdefault(pair, set()).add(number)
        self.layer = _layers(self.on, self.arrows) or {}
        self.routes: dict[tuple[str, str], list[str]] = {}
        rows: dict[int, list[str]] = {}
        for key in self.on:
            rows.setdefault(self.layer[key], []).append(key)
        for one, two in self.arrows:
            between = [f"\0{one}\0{two}\0{at}" for at in range(self.layer[one] + 1, self.layer[two])]
            for at, thin in enumerate(between, self.layer[one] + 1):
                rows.setdefault(at, []).append(thin)
            self.routes[one, two] = [one, *between, two]
        self.rows = [rows[at] for at in sorted(rows)]
        self.across: dict[str, float] = {}
        self._place()

    def _size(self, key: str) -> int:
        """How much room a place takes across the layers."""
        if key.startswith("\0"):
            return _THIN
        return _HEIGHT if self.figure.across else self.width

    def _place(self) -> None:
        before: dict[str, list[str]] = {}
        after: dict[str, list[str]] = {}
        for route in self.routes.values():
            for one, two in itertools.pairwise(route):
                before.setdefault(two, []).append(one)
                after.setdefault(one, []).append(two)
        for row in self.rows:
            self._spread(row)
        for turn in range(4):
            near, rows = (before, self.rows) if turn % 2 == 0 else (after, self.rows[::-1])
            for row in rows:
                middles = {key: _mean([self.across[one] for one in near.get(key, ())], self.across[key]) for key in row}
                row.sort(key=lambda key: middles[key])
                self._spread(row)
        low = min(self.across[key] - self._size(key) / 2 for row in self.rows for key in row)
        self.across = {key: value - low + _MARGIN for key, value in self.across.items()}

    def _spread(self, row: list[str]) -> None:
        """Side by side around 0, or where layers are columns from the top."""
        total = sum(self._size(key) for key in row) + _GAP_ACROSS * (len(row) - 1)
        at = -total / 2 if not self.figure.across else 0.0
        for key in row:
            self.across[key] = at + self._size(key) / 2
            at += self._size(key) + _GAP_ACROSS

    def _along(self, layer: int) -> float:
        return _MARGIN + layer * (
            (self.width if self.figure.across else _HEIGHT) + _GAP_ALONG + (14 if self.figure.across else 0)
        )

    def _corner(self, key: str) -> tuple[float, float]:
        """Left and top of a box."""
        along, across = self._along(self.layer[key]), self.across[key] - self._size(key) / 2
        return (along, across) if self.figure.across else (across, along)

    def svg(self) -> str:
        """The whole."""
        wide = max(self.across[key] + self._size(key) / 2 for row in self.rows for key in row) + _MARGIN
        long = self._along(len(self.rows) - 1) + (self.width if self.figure.across else _HEIGHT) + _MARGIN
        width, height = (long, wide) if self.figure.across else (wide, long)
        name = self.figure.name
        head = (
            f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="group" aria-label="{esc(self.figure.label)}">'
            f'<defs><marker id="{name}-m" viewBox="0 0 8 8" refX="7" refY="4" markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>'
        )  # fmt: skip
        arrows = "".join([self._arrow(pair) for pair in self.arrows])
        return f"{head}{arrows}{''.join([self._box(key) for key in self.on])}</svg>"

    def _arrow(self, pair: tuple[str, str]) -> str:
        points: list[tuple[float, float]] = []
        for at, key in enumerate(self.routes[pair]):
            layer = self.layer[pair[0]] + at
            start, size = self._along(layer), self.width if self.figure.across else _HEIGHT
            ends = [start + size] if at == 0 else [start] if key == pair[1] else [start, start + size]
            points += [(one, self.across[key]) if self.figure.across else (self.across[key], one) for one in ends]
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
        for at in range(1, len(points)):
            (x0, y0), (x1, y1) = points[at - 1], points[at]
            if at % 2 == 0:
                path += f"L{x1:.1f} {y1:.1f}"
            elif self.figure.across:
                path += f"C{(x0 + x1) / 2:.1f} {y0:.1f} {(x0 + x1) / 2:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
            else:
                path += f"C{x0:.1f} {(y0 + y1) / 2:.1f} {x1:.1f} {(y0 + y1) / 2:.1f} {x1:.1f} {y1:.1f}"
        return f'<path class="arrow" data-p="{_numbers(self.arrows[pair])}" d="{path}" marker-end="url(#{self.figure.name}-m)"/>'

    def _box(self, key: str) -> str:
        box = self.figure.boxes[key.partition("\1")[0]]
        x, y = self._corner(key)
        rect = f'<rect x="{x:.1f}" y="{y:.1f}" width="{self.width}" height="{_HEIGHT}" rx="{22 if box.kind in ("start", "good", "bad", "open") else 6}"/>'
        middle = x + self.width / 2
        title = f'<text x="{middle:.1f}" y="{y + 19:.1f}" class="t">{esc(cut(box.title, int(self.width / _LETTERS)))}</text>'
        small = f'<text x="{middle:.1f}" y="{y + 34:.1f}" class="s">{esc(cut(box.small, int(self.width / _SMALL_LETTERS)))}</text>'
        inner = f"<title>{esc(box.title)}\n{esc(box.small)}</title>{rect}{title}{small}"
        marks = f'class="box {box.kind}" data-b="{self.figure.name}-{_number(self.figure, key)}" data-p="{_numbers(self.on[key])}"'
        return f'<a href="#{box.link}" {marks}>{inner}</a>' if box.link else f'<g tabindex="0" {marks}>{inner}</g>'


def _number(figure: Figure, key: str) -> int:
    return list(figure.boxes).index(key.partition("\1")[0])


def box_id(figure: Figure, key: str) -> str:
    """What details say to belong to a box."""
    return f"{figure.name}-{_number(figure, key)}"


def _numbers(ways: set[int]) -> str:
    return " ".join([str(one) for one in sorted(ways)])


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _forward(ways: list[list[str]]) -> list[list[str]]:
    """The ways, or where they make a circle, each with boxes of its own."""
    pairs = {pair: {0} for way in ways for pair in itertools.pairwise(way)}
    on = {key: {0} for way in ways for key in way}
    if _layers(on, pairs) is not None and all(len(set(way)) == len(way) for way in ways):
        return ways
    return [[f"{key}\1{number}.{at}" for at, key in enumerate(way)] for number, way in enumerate(ways)]


def _layers(on: dict[str, set[int]], arrows: dict[tuple[str, str], set[int]]) -> dict[str, int] | None:
    """The longest way to each box; None where there is a circle."""
    layer = dict.fromkeys(on, 0)
    for _ in range(len(on) + 1):
        moved = False
        for one, two in arrows:
            if layer[two] <= layer[one]:
                layer[two] = layer[one] + 1
                moved = True
        if not moved:
            return layer
    return None
