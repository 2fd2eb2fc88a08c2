"""iptables tables as the walk uses them: a rule is parsed when a packet comes to it, or skipped where its text is enough.

A node with 10,000 Services has 10,000 rules in KUBE-SERVICES, each for one destination. Parsing them all for one packet
would take a second; looking at the first word of each takes milliseconds. A rule is skipped only when its text begins
with `-d ADDRESS/32` of another address, or asks for one other destination port outside of any quotes; what is not so
plain is parsed and evaluated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.addresses import Ip
from podwire.rules import vocabulary as v
from podwire.rules.iptables.parse import RuleSyntaxError, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = re.compile(r"(?:! -s \S+ |-s \S+ )?-d (\S+)/(?:32|128)(?: |$)")
_PORT = re.compile(r"(?<!! )--dport (\d+)(?= |$)")

#: Table and built-in chain by hook, in the kernel's order of priority.
PRIORITIES = {"raw": -300, "mangle": -150, "nat-dst": -100, "filter": 0, "security": 50, "nat-src": 100}
BUILT_IN = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "security": ("INPUT", "FORWARD", "OUTPUT"),
}


class RuleRow:
    """A rule with its place: `position` counts from 1, `text` is its original text."""

    __slots__ = ("matches", "position", "text", "verdict")

    def __init__(self, position: int, text: str, rule: v.Rule) -> None:
        self.position = position
        self.text = text
        self.matches = rule.matches
        self.verdict = rule.verdict


class RuleChain:
    """A chain: `policy` is None for a user's; `lines` are in iptables-save's syntax without `-A CHAIN`.

    `shown` are the lines as they stood in the input, where that was another syntax. `damaged` are positions whose text was
    mended or could not be read.
    """

    __slots__ = ("_heads", "_rows", "lines", "name", "policy", "shown")

    def __init__(self, name: str, policy: str | None, lines: list[str], shown: list[str] | None = None) -> None:
        self.name = name
        self.policy = policy
        self.lines = lines
        self.shown = shown
        self._rows: dict[int, RuleRow] = {}
        self._heads: list[tuple[Ip | None, int | None]] | None = None

    def row(self, index: int) -> RuleRow:
        """The rule at `index`, from 0."""
        row = self._rows.get(index)
        if row is None:
            line = self.lines[index]
            shown = f"-A {self.name} {line}".rstrip() if self.shown is None else self.shown[index]
            row = self._rows[index] = RuleRow(index + 1, shown, _rule(line))
        return row

    def prepare(self) -> list[tuple[Ip | None, int | None]]:
        """What each rule's text alone asks of the destination; worked out once."""
        if self._heads is None:
            self._heads = [_head(line) for line in self.lines]
        return self._heads

    def rows_for(self, targets: set[tuple[Ip, int | None]]) -> Iterator[RuleRow]:
        """The rules that may match a packet to one of these destinations; a port None may be any."""
        heads = self.prepare()
        addresses = {address for address, _ in targets}
        ports = {port for _, port in targets}
        any_port = None in ports
        for index, (address, port) in enumerate(heads):
            if address is not None and address not in addresses:
                continue
            if port is not None and not any_port and port not in ports:
                continue
            yield self.row(index)

    def rows(self) -> Iterator[RuleRow]:
        """All rules, in order."""
        return (self.row(index) for index in range(len(self.lines)))


def _head(line: str) -> tuple[Ip | None, int | None]:
    address: Ip | None = None
    if "-d " in line[:60]:
        found = _HEAD.match(line)
        if found is not None:
            try:
                address = Ip.parse(found[1])
            except ValueError:
                address = None
    at = line.rfind('"')
    port = None
    if "'" not in line and "--dport " in line:
        numbers = _PORT.findall(line, max(at, 0))
        if len(numbers) == 1 and len(numbers[0]) < 6:
            port = int(numbers[0])
    return address, port


def _rule(line: str) -> v.Rule:
    try:
        return parse(line)
    except RuleSyntaxError:
        return v.Rule((), v.OpaqueTarget(line))


class RuleTable:
    """A table of one variant: its chains by name. `partial`: the input shows only some chains (a paste)."""

    __slots__ = ("chains", "name", "partial")

    def __init__(self, name: str, chains: dict[str, RuleChain], *, partial: bool = False) -> None:
        self.name = name
        self.chains = chains
        self.partial = partial


class IptablesRules:
    """The tables of one family as one variant shows them. `source`: iptables-nft, iptables-legacy or iptables (not known).

    `notes` say what was odd about the text (mended lines, interfaces that a listing does not show), `other_variant` that
    the program said there are rules of the other one which this input does not have.
    """

    __slots__ = ("family", "interfaces_shown", "notes", "other_variant", "registered", "source", "tables", "where")

    def __init__(self, source: str, family: int, tables: dict[str, RuleTable], where: str = "") -> None:
        self.source = source
        self.family = family
        self.tables = tables
        self.where = where
        self.notes: list[str] = []
        self.registered: dict[str, int] = {}  # a table's place among all nf_tables tables, where nft's listing tells it
        self.other_variant = False
        self.interfaces_shown = True
