"""Conditions of nft rules: a value against a literal, a set or a map, with what is not known and what is random.

`Conditions` belongs to one table, whose sets it looks up; the literals of a set are put in order once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.explain.nft_eval import Evaluated, Lookup, evaluate, fits, flag_names
from podwire.explain.nft_spell import spell_rule
from podwire.explain.packet import Answer, Unknown, Way

if TYPE_CHECKING:
    from podwire.explain.facts import Facts
    from podwire.explain.nft import NftTable, Statement

_EXPRESSIONS = frozenset(("payload", "meta", "ct", "fib", "&", "|", "^", "<<", ">>"))


class Conditions:
    """See the module's text."""

    def __init__(self, table: NftTable, facts: Facts) -> None:
        self.table = table
        self.facts = facts
        self._lookups: dict[tuple[int, tuple[str, ...]], Lookup] = {}

    def compared(self, left: Evaluated, operator: str, right: Any, way: Way, statement: Statement) -> Answer:
        """Whether a match holds."""
        total = 0.0
        for chance, values in left.choices:
            unknown = next((value for value in values if isinstance(value, Unknown)), None)
            if unknown is not None:
                if unknown.key.startswith("local ") and right == "local" and operator in ("==", "in", "!="):
                    return unknown._replace(inverted=operator == "!=")
                text = spell_rule([statement])
                return Unknown(f"{unknown.key}: {text}", text)
            held = self._holds(left.kinds, values, operator, right, way)
            if held is None:
                text = spell_rule([statement])
                return Unknown(f"nft {text}", text)
            total += chance if held else 0.0
        return True if total > 1 - 1e-12 else False if total == 0 else total

    def _holds(
        self, kinds: tuple[str, ...], values: tuple[Any, ...], operator: str, right: Any, way: Way
    ) -> bool | None:
        if operator in ("<", ">", "<=", ">="):
            found = evaluate(right, way.packet, self.facts)
            other = found.choices[0][1][0] if found is not None else None
            one = values[0]
            if not isinstance(one, int) or not isinstance(other, int):
                return None
            return {"<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}[operator]
        inverted = operator == "!="
        if isinstance(right, str) and right.startswith("@"):
            found_one = self._in_set(right[1:], kinds, values, way)
        elif isinstance(right, dict) and isinstance(right.get("set"), list):
            found_one = self._lookup(right["set"], kinds, values)
        else:
            return _equal(kinds, values, operator, right, way, self.facts)
        return None if isinstance(found_one, Unknown) else (found_one is not None) is not inverted

    def _in_set(
        self, name: str, kinds: tuple[str, ...], values: tuple[Any, ...], way: Way
    ) -> tuple[Any] | Unknown | None:
        found = self.table.sets.get(name)
        if found is None:
            return Unknown(f"nft @{name}", f"set {name} is not in this input")
        if (f"{self.table.label} {name}", " . ".join([str(value) for value in values])) in way.packet.added:
            return (None,)
        return found.lookup(kinds).find(kinds, values)

    def _lookup(self, items: list[Any], kinds: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any] | Unknown | None:
        key = (id(items), kinds)
        if key not in self._lookups:
            pairs = [
                (item[0], item[1]) if isinstance(item, list) and len(item) == 2 else (item, None) for item in items
            ]
            self._lookups[key] = Lookup(kinds, pairs)
        return self._lookups[key].find(kinds, values)

    def choices(self, key: Any, data: Any, way: Way) -> list[tuple[float, Any]] | Unknown | None:
        """What a map gives: (probability, data), data None where it has no such key. None: the packet lacks the field."""
        found = evaluate(key, way.packet, self.facts)
        if found is None:
            return None
        gives: list[tuple[float, Any]] = []
        for chance, values in found.choices:
            unknown = next((value for value in values if isinstance(value, Unknown)), None)
            if unknown is not None:
                return unknown
            if isinstance(data, str) and data.startswith("@"):
                one = self._in_set(data[1:], found.kinds, values, way)
            else:
                items = data.get("set") if isinstance(data, dict) else None
                one = self._lookup(items if isinstance(items, list) else [], found.kinds, values)
            if isinstance(one, Unknown):
                return one
            gives.append((chance, None if one is None else one[0]))
        return gives


def _equal(
    kinds: tuple[str, ...], values: tuple[Any, ...], operator: str, right: Any, way: Way, facts: Facts
) -> bool | None:
    """A value against one literal, a list of them, or another expression."""
    inverted = operator == "!="
    if kinds == ("flags",):
        if operator == "in":
            return bool(values[0] & flag_names(right))
        wanted = frozenset() if right == 0 else flag_names(right)
        return (values[0] == wanted) is not inverted
    if kinds == ("bits",):
        held = fits("bits", values[0], right)
        return None if held is None else held is not inverted
    parts = right["concat"] if isinstance(right, dict) and isinstance(right.get("concat"), list) else [right]
    if isinstance(right, list):
        answers = [fits(kinds[0], values[0], one) for one in right]
        return (True in answers) is not inverted if True in answers or None not in answers else None
    if isinstance(right, dict) and next(iter(right), "") in _EXPRESSIONS:
        found = evaluate(right, way.packet, facts)
        if found is None or isinstance(found.choices[0][1][0], Unknown):
            return None
        return (found.choices[0][1] == values) is not inverted
    if len(parts) != len(kinds):
        return None
    answers = [fits(kind, value, part) for kind, value, part in zip(kinds, values, parts, strict=True)]
    if False in answers:
        return inverted
    return None if None in answers else not inverted
