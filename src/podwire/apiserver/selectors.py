r"""Label and field selectors of list, watch and deletecollection.

Label selectors (apimachinery `pkg/labels`): requirements joined by commas, all of which must hold: `k=v`, `k==v`, `k!=v`,
`k in (a,b)`, `k notin (a,b)`, `k`, `!k`, `k>1`, `k<5`. `!=` and `notin` also hold when the key is absent. Field selectors
know `=`, `==` and `!=` only, with `\` before `,`, `=` or `\` to mean the character; which fields there are is
the kind's affair. Parsing refuses with 400, worded so that one sees which part is wrong.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.apiserver import formats, status

if TYPE_CHECKING:
    from podwire.apiserver.resource import Object, Resource

_TOKEN = re.compile(r"\s*(?:(==|=|!=|!|>|<|\(|\)|,)|([^\s=!<>(),]+))")


class Requirement:
    """One condition on one label; `operator` is in, notin, exists, !, gt or lt."""

    __slots__ = ("key", "operator", "values")

    def __init__(self, key: str, operator: str, values: frozenset[str] = frozenset()) -> None:
        self.key = key
        self.operator = operator
        self.values = values

    def holds(self, labels: dict[str, str]) -> bool:
        """Whether labels meet it."""
        value = labels.get(self.key)
        if self.operator in {"notin", "!"}:
            return value is None or (self.operator == "notin" and value not in self.values)
        if value is None:
            return False
        if self.operator == "in":
            return value in self.values
        if self.operator == "exists":
            return True
        bound = int(next(iter(self.values)))
        number = int(value) if re.fullmatch(r"-?\d+", value) else None
        return number is not None and (number > bound if self.operator == "gt" else number < bound)


class _Labels:
    """A reader of the label selector grammar."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            match = _TOKEN.match(text, at)
            if match is None:  # pragma: no cover - every character is a symbol, a blank or part of a word
                raise self.error(f"found '{text[at:]}'")
            self.tokens.append(("symbol", match[1]) if match[1] else ("word", match[2]))
            at = match.end()
        self.at = 0

    def error(self, why: str) -> status.StatusError:
        return status.bad_request(f"unable to parse requirement: {why}")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def next(self) -> tuple[str, str]:
        token = self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")
        self.at += 1
        return token

    def requirements(self) -> list[Requirement]:
        found: list[Requirement] = []
        while self.at < len(self.tokens):
            found.append(self.requirement())
            kind, text = self.next()
            if kind == "end":
                break
            if text != ",":
                raise self.error(f"found '{text}', expected: ',' or 'end of string'")
            if self.at == len(self.tokens):
                raise self.error("found '', expected: identifier after ','")
        return found

    def requirement(self) -> Requirement:
        kind, text = self.next()
        absent = text == "!"
        if absent:
            kind, text = self.next()
        if kind != "word":
            raise self.error(f"found '{text}', expected: !, identifier, or 'end of string'")
        key = text
        if problems := formats.qualified_name(key):
            raise self.error(f'key: Invalid value: "{key}": {problems[0]}')
        if absent:
            return Requirement(key, "!")
        if self.peek() in {"", ","}:
            return Requirement(key, "exists")
        kind, operator = self.next()
        return self.comparison(key, operator)

    def comparison(self, key: str, operator: str) -> Requirement:
        if operator in {"=", "==", "!="}:
            return Requirement(key, "notin" if operator == "!=" else "in", frozenset([self.value()]))
        if operator in {">", "<"}:
            bound = self.value()
            if not re.fullmatch(r"-?\d+", bound):
                raise self.error(
                    f"values[0][{key}]: Invalid value: \"{bound}\": for 'Gt', 'Lt' operators, the value must be an integer"
                )
            return Requirement(key, "gt" if operator == ">" else "lt", frozenset([bound]))
        if operator in {"in", "notin"}:
            return Requirement(key, operator, frozenset(self.value_list()))
        raise self.error(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def value(self) -> str:
        """A value; nothing before a comma or the end is the empty string."""
        if self.peek() in {"", ","} and (self.at == len(self.tokens) or self.tokens[self.at][0] == "symbol"):
            return ""
        kind, text = self.next()
        if kind != "word":
            raise self.error(f"found '{text}', expected: identifier")
        if problems := formats.label_value(text):
            raise self.error(f'values[0]: Invalid value: "{text}": {problems[0]}')
        return text

    def value_list(self) -> list[str]:
        if self.next()[1] != "(":
            raise self.error("expected: '(' after in or notin")
        values = []
        while True:
            values.append("" if self.peek() == ")" else self.value())
            text = self.next()[1]
            if text == ")":
                return values
            if text != ",":
                raise self.error(f"found '{text}', expected: ',' or ')'")


def parse_labels(text: str) -> list[Requirement]:
    """The requirements of a label selector; empty text selects everything. Raises StatusError 400."""
    return _Labels(text).requirements()


def parse_fields(text: str) -> list[tuple[str, bool, str]]:
    """(field path, equal?, value) of a field selector. Raises StatusError 400."""
    terms = []
    for part in re.findall(r"(?:\\.|[^,\\])+|\\$", text, re.DOTALL):
        match = re.fullmatch(r"([^=!\\]+)(==|!=|=)((?:\\[\\,=]|[^\\=])*)", part, re.DOTALL)
        if match is None:
            raise status.bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        terms.append((match[1], match[2] != "!=", re.sub(r"\\(.)", r"\1", match[3], flags=re.DOTALL)))
    return terms


class Selector:
    """What a list or watch asks for: labels and fields together. `everything` when nothing is asked."""

    def __init__(self, resource: Resource, labels: str = "", fields: str = "") -> None:
        self.resource = resource
        self._labels = parse_labels(labels)
        self._fields = parse_fields(fields)
        self.everything = not self._labels and not self._fields
        known = {"metadata.name", "metadata.namespace", *resource.selectable}
        for path, _, _ in self._fields:
            if path not in known:
                raise status.bad_request(f"field label not supported: {path}")

    @property
    def only_name(self) -> str:
        """The one name asked for by `metadata.name=x`, "" if there is none."""
        return next((value for path, equal, value in self._fields if equal and path == "metadata.name"), "")

    def matches(self, obj: Object) -> bool:
        """Whether an object is selected."""
        if self._labels:
            labels = obj["metadata"].get("labels") or {}
            if not all(requirement.holds(labels) for requirement in self._labels):
                return False
        field = self.resource.strategy.field
        return all((field(obj, path) == value) is equal for path, equal, value in self._fields)
