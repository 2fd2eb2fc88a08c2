"""`iptables -L` as people paste it: with or without -n, -v and --line-numbers, through `column -t`, one table after the other.

The header line of each chain says which columns there are. What the listing does not say stays unsaid: without -v
it has no interfaces (`interfaces_shown` is False then), and chains that were not pasted are not there (`partial`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.explain.listing import PROTOCOLS, options_of
from podwire.explain.read_iptables import table_of_chains
from podwire.explain.tables import BUILT_IN, IptablesRules, RuleChain, RuleTable

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHAIN = re.compile(r"^\s*Chain\s+(\S+)\s+\((?:policy\s+(\w+).*|\d+\s+references?.*)\)\s*$")
_TABLE = re.compile(r"ip(6?)tables\S*\s.*?(?:-t|--table)[ =]?(raw|mangle|nat|filter|security)|^\s*Table:?\s+`?(\w+)")
_COUNT = re.compile(r"^\d+[KMGTP]?$")
_OPTIONS = frozenset({"--", "-f", "!f"})


class _Layout:
    """Which columns the header line names."""

    __slots__ = ("counters", "interfaces", "numbers")

    def __init__(self, words: list[str]) -> None:
        self.numbers = "num" in words
        self.counters = "pkts" in words
        self.interfaces = "in" in words and "out" in words


def looks_like_listing(text: str) -> bool:
    """Whether a text has a chain's heading of `iptables -L`."""
    return any(_CHAIN.match(line) for line in text.splitlines() if "Chain" in line)


def read_listing(text: str, family: int, source: str = "iptables", where: str = "", table: str = "") -> IptablesRules:
    """Read it. `table` names the (first) table where the text does not. Never raises."""
    notes: list[str] = []
    groups: list[tuple[str, dict[str, RuleChain]]] = [(table, {})]
    chain: RuleChain | None = None
    layout = _Layout([])
    shown = True
    warned = False
    for line in text.splitlines():
        heading = _CHAIN.match(line)
        if heading is not None:
            if heading[1] in groups[-1][1]:
                groups.append(("", {}))
            chain = RuleChain(heading[1], heading[2], [], [])
            groups[-1][1][heading[1]] = chain
            continue
        words = line.split()
        warned = warned or "tables present, use ip" in line
        if {"target", "prot", "source", "destination"} <= set(words):
            layout = _Layout(words)
            shown = shown and layout.interfaces
        elif words and chain is not None and _row(words, layout, chain):
            chain.shown.append(line.strip())  # type: ignore[union-attr]  # made with a list above
        elif (named := _TABLE.search(line)) is not None:
            if groups[-1][1]:
                groups.append(("", {}))
            groups[-1] = (named[2] or named[3], groups[-1][1])
            chain = None
        elif words and not line.startswith("#"):
            notes.append(f"not read: {line.strip()[:200]}")
    rules = IptablesRules(source, family, _named(groups, notes), where)
    rules.interfaces_shown = shown
    rules.other_variant = warned
    rules.notes = notes[:20]
    return rules


def _named(groups: Iterable[tuple[str, dict[str, RuleChain]]], notes: list[str]) -> dict[str, RuleTable]:
    tables: dict[str, RuleTable] = {}
    for given, chains in groups:
        if not chains:
            continue
        built_in = {name for name, chain in chains.items() if chain.policy is not None}
        name = given or table_of_chains(built_in, [line for chain in chains.values() for line in chain.lines])
        if not given:
            notes.append(f"the listing does not say which table it is; its chains are those of {name}")
        partial = not set(BUILT_IN.get(name, ())) <= set(chains)
        known = tables.get(name)
        if known is None:
            tables[name] = RuleTable(name, chains, partial=partial)
        else:
            known.chains.update(chains)
            known.partial = known.partial or partial
    return tables


def _row(words: list[str], layout: _Layout, chain: RuleChain) -> bool:
    """Add the row's rule to the chain; False when it is no row."""
    words = list(words)
    if layout.numbers:
        if not words[0].isdigit():
            return False
        del words[0]
    if layout.counters:
        if len(words) < 2 or not (_COUNT.match(words[0]) and _COUNT.match(words[1])):
            return False
        del words[:2]
    at = next((index for index, word in enumerate(words[:3]) if word in _OPTIONS), None)
    if at is None:  # ip6tables of old leaves the column empty
        at = 2 if len(words) > 2 and words[1].lstrip("!") in {*PROTOCOLS, *PROTOCOLS.values()} else 1
        words.insert(at, "--")
    fields = 5 if layout.interfaces else 3
    if at not in (1, 2) or len(words) < at + fields:
        return False
    target = words[0] if at == 2 else ""
    columns = words[at + 1 : at + fields]
    parts = _fragment(words[at])
    if layout.interfaces:
        parts += _interface("-i", columns[0]) + _interface("-o", columns[1])
        columns = columns[2:]
    parts += _address("-s", columns[0]) + _address("-d", columns[1]) + _protocol(words[at - 1])
    matches, jump = options_of(target, " ".join(words[at + fields :]))
    chain.lines.append(" ".join([*parts, *matches, jump or (f"-j {target}" if target else "")]).rstrip())
    return True


def _fragment(word: str) -> list[str]:
    return {"-f": ["-f"], "!f": ["! -f"]}.get(word, [])


def _interface(option: str, word: str) -> list[str]:
    name = word.removeprefix("!")
    return [] if name in ("*", "any") else [f"{'! ' if word.startswith('!') else ''}{option} {name}"]


def _address(option: str, word: str) -> list[str]:
    name = word.removeprefix("!")
    sign = "! " if word.startswith("!") else ""
    if name in ("anywhere", "0.0.0.0/0", "::/0"):
        return [] if not sign else [f"! {option} 0.0.0.0/0"]
    if name == "localhost":
        name = "127.0.0.1"
    return [f"{sign}{option} {name}"]


def _protocol(word: str) -> list[str]:
    name = word.removeprefix("!")
    name = PROTOCOLS.get(name, name)
    return [f"{'! ' if word.startswith('!') else ''}-p {name}"] if name else []
