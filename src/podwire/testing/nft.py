"""An nftables without a kernel that behaves like one, for tests of what writes tables; and listings made comparable.

`FakeNft` takes the same calls as `podwire.rules.nft.run.Nft` and raises the same errors. A transaction works on a copy, command
by command, and is swapped in at the end. It refuses what the kernel refuses: what leads to a chain or uses a set that is not
there, another verdict for a key that a map has, removal of what is not there or still in use. A test compares it with the kernel.

`fail` makes it fail like a machine does: it is called with the number of each command and may say why not. With `answers`
False it does what it is told and says that it failed, like a program that is killed at the end. `removes_late` makes it one of
the kernels that remove a chain only when its last reference went in an earlier transaction.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING

from podwire.rules.nft.run import NftRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMMAND = re.compile(r"(add|delete|flush) (table|chain|set|map|rule|element) ip6? (\S+)(?: (\S+))?(?: (.*))?$")
_LEADS_TO = re.compile(r"(?:goto|jump) ([^\s,}]+)")
_USES = re.compile(r"@([^\s,}]+)")
_ELEMENT = re.compile(r'([^:,"]+?)(?: comment "([^"]*)")?(?: : ([^,]+?))?\s*(?:,\s*|$)')
_COLONS = re.compile(r"([0-9a-f]*:[0-9a-f:]*:[0-9a-f]*|::)", re.IGNORECASE)


class FakeTable:
    """Rules of chains, definitions and elements of sets. An element is {key: (comment, verdict)}."""

    def __init__(self) -> None:
        self.chains: dict[str, list[str]] = {}
        self.sets: dict[str, str] = {}
        self.elements: dict[str, dict[str, tuple[str, str]]] = {}

    def references(self, chain: str) -> int:
        """How many rules and elements lead to a chain."""
        rules = sum(_LEADS_TO.findall(rule).count(chain) for rules in self.chains.values() for rule in rules)
        return rules + sum(
            verdict == f"goto {chain}" for found in self.elements.values() for _, verdict in found.values()
        )

    def users(self, name: str) -> int:
        """How many rules use a set."""
        return sum(_USES.findall(rule).count(name) for rules in self.chains.values() for rule in rules)


class FakeNft:
    """One family's tables."""

    def __init__(self) -> None:
        self.tables: dict[str, FakeTable] = {}
        self.fail: Callable[[int], str] = lambda _command: ""
        self.removes_late = False
        self.answers = True
        self.applied: list[str] = []

    def apply(self, text: str) -> None:
        """Apply it, or raise NftRefused."""
        tables = copy.deepcopy(self.tables)
        for number, line in enumerate(text.splitlines()):
            why = self.fail(number) or self._command(tables, line)
            if why:
                raise NftRefused(line, why)
        self.tables = tables
        self.applied.append(text)
        if not self.answers:
            raise NftRefused("", "killed")

    def _command(self, tables: dict[str, FakeTable], line: str) -> str:
        """Do one command; why it cannot be done, or empty."""
        found = _COMMAND.match(line)
        assert found is not None, line
        verb, kind, name, target, rest = found.groups(default="")
        if kind == "table":
            return _table(tables, verb, name)
        table = tables.get(name)
        if table is None:
            return "No such file or directory"
        before = self.tables.get(name) if self.removes_late else None
        if kind == "chain":
            return _chain(table, verb, target, before)
        if kind in ("set", "map"):
            return _set(table, verb, target, rest, before)
        if kind == "rule":
            return _rule(table, target, rest)
        return _elements(table, verb, target, rest)

    def chain_uses(self, table: str) -> dict[str, int] | None:
        """As the kernel counts them."""
        found = self.tables.get(table)
        if found is None:
            return None
        return {name: len(rules) + found.references(name) for name, rules in found.chains.items()}

    def element_count(self, table: str, name: str) -> int:
        """How many elements a set has."""
        return len(self.tables[table].elements.get(name, ()))

    def timed_elements(self, table: str, prefix: str) -> dict[str, list[tuple[str, int]]]:
        """Elements with a time of their own, all of which are new here."""
        found = self.tables.get(table, FakeTable()).elements
        return {
            name: [(key.split()[0], 1000) for key in elements]
            for name, elements in found.items()
            if name.startswith(prefix)
        }

    def listing(self) -> Listing:
        """What is in the table kube-proxy."""
        table = self.tables["kube-proxy"]
        elements = {
            name: sorted(_spell(key, *value) for key, value in found.items()) for name, found in table.elements.items()
        }
        return Listing({name: list(rules) for name, rules in table.chains.items()}, elements)


def _table(tables: dict[str, FakeTable], verb: str, name: str) -> str:
    if verb == "add":
        tables.setdefault(name, FakeTable())
    elif tables.pop(name, None) is None:
        return "No such file or directory"
    return ""


def _chain(table: FakeTable, verb: str, name: str, before: FakeTable | None) -> str:
    if verb == "add":
        table.chains.setdefault(name, [])
    elif name not in table.chains:
        return "No such file or directory"
    elif verb == "flush":
        table.chains[name] = []
    else:
        if table.references(name) or (before is not None and before.references(name)):
            return "Device or resource busy"
        del table.chains[name]
    return ""


def _set(table: FakeTable, verb: str, name: str, block: str, before: FakeTable | None) -> str:
    if verb == "add":
        if table.sets.setdefault(name, block) != block:
            return "File exists"
        table.elements.setdefault(name, {})
        return ""
    if name not in table.sets:
        return "No such file or directory"
    if table.users(name) or (before is not None and before.users(name)):
        return "Device or resource busy"
    del table.sets[name], table.elements[name]
    return ""


def _rule(table: FakeTable, chain: str, rule: str) -> str:
    known = chain in table.chains and all(name in table.chains for name in _LEADS_TO.findall(rule))
    if not known or not all(name in table.sets for name in _USES.findall(rule)):
        return "No such file or directory"
    table.chains[chain].append(rule)
    return ""


def _elements(table: FakeTable, verb: str, name: str, block: str) -> str:
    if name not in table.sets:
        return "No such file or directory"
    elements = table.elements[name]
    for key, comment, verdict in parsed(block.removeprefix("{ ").removesuffix(" }")):
        if verb == "delete":
            if elements.pop(key, None) is None:
                return "No such file or directory"
        elif elements.setdefault(key, (comment, verdict)) != (comment, verdict):
            return "File exists"
        elif verdict.startswith("goto ") and verdict[5:] not in table.chains:
            return "No such file or directory"
    return ""


def parsed(text: str) -> Iterator[tuple[str, str, str]]:
    """The elements of a comma-separated row: key, comment, verdict."""
    # The colons of an IPv6 address are none that a verdict stands behind.
    text = _COLONS.sub(lambda found: found[0].replace(":", "\0"), text)
    for found in _ELEMENT.finditer(text):
        key, comment, verdict = (part or "" for part in found.groups())
        yield key.strip().replace("\0", ":"), comment, verdict.strip()


def _spell(key: str, comment: str, verdict: str) -> str:
    return f"{key}{f' comment {comment}' if comment else ''}{f' : {verdict}' if verdict else ''}"


class Listing:
    """A table as {chain: rules} and {set: sorted elements}.

    What waits to be removed does not count: chains that are empty and that nothing leads to, sets of session affinity that
    no rule uses. Nor does it count which clients session affinity knows.
    """

    def __init__(self, chains: dict[str, list[str]], elements: dict[str, list[str]]) -> None:
        leads = set(_LEADS_TO.findall(" ".join(rule for rules in chains.values() for rule in rules)))
        leads |= set(_LEADS_TO.findall(" ".join(text for found in elements.values() for text in found)))
        self.chains = {name: rules for name, rules in chains.items() if rules or name in leads}
        used = set(_USES.findall(" ".join(rule for rules in chains.values() for rule in rules)))
        affinity = {name for name in elements if name.startswith("affinity-")}
        self.elements = {
            name: [] if name in affinity else found
            for name, found in elements.items()
            if name not in affinity or name in used
        }

    @staticmethod
    def read(text: str, family: str) -> Listing:
        """From what `nft list ruleset` prints, the table kube-proxy of the family (ip or ip6)."""
        found = re.search(rf"^table {family} kube-proxy {{\n(.*?)^}}", text, re.DOTALL | re.MULTILINE)
        body = found[1] if found else ""
        chains, elements = {}, {}
        for kind, name, block in re.findall(r"^\t(chain|set|map) (\S+) {\n(.*?)^\t}", body, re.DOTALL | re.MULTILINE):
            if kind == "chain":
                lines = [line.strip() for line in block.splitlines()]
                chains[name] = [line for line in lines if not line.startswith(("type ", "comment "))]
            else:
                listed = re.search(r"elements = {(.*)}", block, re.DOTALL)
                row = " ".join(listed[1].split()) if listed else ""
                elements[name] = sorted(_spell(*one) for one in parsed(row))
        return Listing(chains, elements)

    def differences(self, other: Listing) -> list[str]:
        """What is different, as lines of text."""
        return [
            f"{name}:\n  this  {ours.get(name)}\n  other {theirs.get(name)}"
            for ours, theirs in ((self.chains, other.chains), (self.elements, other.elements))
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]
