"""The output of iptables-save as tables and chains, rules parsed only when somebody asks.

A node with 10,000 Services prints 400,000 rules, of which one packet meets some dozens. So reading cuts the text into
lines and hands each to its chain, and `Chain.rules` parses on first use.

What is read: headers, comment lines, several tables, the same table twice (the later lines are added, as
iptables-restore does), packet counters before or behind a rule. A rule for a chain that no `:` line declared
makes the chain. Lines outside of a table, and what is no line of this format, are kept in `Dump.ignored`: a dump pasted into a bug
report has text around it.
"""

from __future__ import annotations

import re

from podwire.rules.iptables.parse import RuleSyntaxError, parse
from podwire.rules.iptables.spell import spell
from podwire.rules.vocabulary import OpaqueTarget, Rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_COUNTERS = re.compile(r"^\[\d+:\d+\] ")
_COUNTERS_INSIDE = re.compile(r'("(?:[^"\\]|\\.)*")|(?:^| )-c \d+ \d+(?= |$)')  # not those in a quoted comment


class Chain:
    """A chain: `policy` of a built-in one (ACCEPT, DROP) or None, and its rules, as `lines` without `-A CHAIN`."""

    __slots__ = ("_rules", "lines", "name", "policy")

    def __init__(self, name: str, policy: str | None = None, lines: list[str] | None = None) -> None:
        self.name = name
        self.policy = policy
        self.lines = [] if lines is None else lines
        self._rules: tuple[Rule, ...] | None = None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules as values; one that cannot be read is there as an OpaqueTarget."""
        if self._rules is None or len(self._rules) != len(self.lines):
            self._rules = tuple([_rule(line) for line in self.lines])
        return self._rules

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and (self.name, self.policy, self.rules) == (
            other.name,
            other.policy,
            other.rules,
        )

    __hash__ = None  # type: ignore[assignment]  # it grows while it is read

    def __repr__(self) -> str:
        return f"Chain({self.name!r}, {self.policy!r}, {len(self.lines)} rules)"


def _rule(line: str) -> Rule:
    try:
        return parse(line)
    except RuleSyntaxError:
        return Rule((), OpaqueTarget(line))


class Table:
    """A table (filter, nat, mangle, raw, security): its chains by name, in the order of the text."""

    __slots__ = ("chains", "name")

    def __init__(self, name: str, chains: dict[str, Chain] | None = None) -> None:
        self.name = name
        self.chains = {} if chains is None else chains

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and (self.name, self.chains) == (other.name, other.chains)

    __hash__ = None  # type: ignore[assignment]  # as Chain

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {len(self.chains)} chains)"


class Dump:
    """The tables of one dump by name, and the lines that belong to none."""

    __slots__ = ("ignored", "tables")

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.ignored: list[str] = []


def read(text: str) -> Dump:
    """Read iptables-save output. Never raises."""
    dump = Dump()
    table: Table | None = None
    for line in text.splitlines():
        if line.startswith("-A ") and table is not None:
            _add(table, line)
        elif line.startswith("["):
            bare = _COUNTERS.sub("", line)
            if table is None or not bare.startswith("-A "):
                dump.ignored.append(line)
            else:
                _add(table, bare)
        elif line.startswith(":") and table is not None:
            name, _, rest = line[1:].partition(" ")
            policy = rest.split(" ", 1)[0]
            if name in table.chains:
                table.chains[name].policy = None if policy in ("-", "") else policy
            else:
                table.chains[name] = Chain(name, None if policy in ("-", "") else policy)
        elif line.startswith("*"):
            name = line[1:].strip()
            table = dump.tables.setdefault(name, Table(name))
        elif line == "COMMIT":
            table = None
        elif line and not line.startswith("#"):
            dump.ignored.append(line)
    return dump


def _add(table: Table, line: str) -> None:
    _, name, *rest = line.split(" ", 2)
    chain = table.chains.get(name)
    if chain is None:
        chain = table.chains[name] = Chain(name)
    rule = rest[0] if rest else ""
    if "-c " in rule:
        rule = _COUNTERS_INSIDE.sub(lambda found: found[1] or "", rule).lstrip()
    chain.lines.append(rule)


def write(tables: dict[str, Table]) -> str:
    """The tables as iptables-save prints them, without comment lines and with counters at zero."""
    return "".join([line + "\n" for table in tables.values() for line in _write(table)])


def _write(table: Table) -> Iterator[str]:
    yield "*" + table.name
    for chain in table.chains.values():
        yield f":{chain.name} {chain.policy or '-'} [0:0]"
    for chain in table.chains.values():
        for rule in chain.rules:
            yield f"-A {chain.name} {spell(rule)}".rstrip()
    yield "COMMIT"
