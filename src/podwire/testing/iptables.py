"""An iptables without a kernel that behaves like one, for tests of what writes rules.

`FakeIptables` takes the same calls as `podwire.rules.iptables.run.Iptables` and raises the same errors: a restore works on a copy of
each table and swaps it in at COMMIT, so a refused one leaves its table as it was and the tables before it changed. It refuses
what the kernel refuses: a rule in or a jump to a chain that is not there, a deletion of a rule that is not there, a
removal of a chain that has rules or is jumped to. A parity test compares it with both real backends.

`fail` makes it fail like a machine does: it is called with the number of the COMMIT in this restore and may say why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.rules.iptables import save
from podwire.rules.iptables.parse import parse
from podwire.rules.iptables.run import RestoreRefused
from podwire.rules.iptables.spell import spell
from podwire.rules.vocabulary import Goto, Jump

if TYPE_CHECKING:
    from collections.abc import Callable

BUILTIN = {
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
}

Chains = dict[str, list[str]]


class FakeIptables:
    """Tables of one family; `tables` is {table: {chain: rules without -A CHAIN}}."""

    backend = "legacy"

    def __init__(self, dump: str = "") -> None:
        self.tables: dict[str, Chains] = {table: {chain: [] for chain in chains} for table, chains in BUILTIN.items()}
        self.fail: Callable[[int], str] = lambda _commit: ""
        self.restores: list[str] = []
        for name, table in save.read(dump).tables.items():
            for chain in table.chains.values():
                self.tables[name][chain.name] = [spell(rule) for rule in chain.rules]

    def save(self, table: str = "") -> str:
        """As iptables-save prints it."""
        wanted = [table] if table else list(self.tables)
        return save.write(
            {
                name: save.Table(
                    name,
                    {
                        chain: save.Chain(chain, "ACCEPT" if chain in BUILTIN[name] else None, list(rules))
                        for chain, rules in self.tables[name].items()
                    },
                )
                for name in wanted
            }
        )

    def rules(self, table: str, chain: str) -> list[str]:
        """The rules of a chain."""
        return list(self.tables[table].get(chain, ()))

    def restore(self, text: str) -> None:
        """Apply it, or raise RestoreRefused."""
        self.restores.append(text)
        name, chains, commits = "", dict[str, list[str]](), 0
        for line in text.splitlines():
            if line.startswith("*"):
                name = line[1:]
                chains = {chain: list(rules) for chain, rules in self.tables[name].items()}
            elif line == "COMMIT":
                commits += 1
                why = self.fail(commits) or _dangling(chains)
                if why:
                    raise RestoreRefused("fake-iptables-restore", line, why)
                self.tables[name] = chains
            else:
                why = _apply(chains, line, name)
                if why:
                    raise RestoreRefused("fake-iptables-restore", line, why)


def _apply(chains: Chains, line: str, table: str) -> str:
    """Apply one line; why it cannot be, or empty."""
    if line.startswith(":"):
        chain = line[1:].split(" ", 1)[0]
        chains[chain] = []
        return ""
    command, chain, *rest = line.split(" ", 2)
    rule = spell(parse(rest[0])) if rest else ""
    if chain not in chains:
        return "No such chain"
    if command == "-A":
        chains[chain].append(rule)
    elif command == "-I":
        chains[chain].insert(0, rule)
    elif command == "-D":
        if rule not in chains[chain]:
            return "Bad rule (does a matching rule exist in that chain?)"
        chains[chain].remove(rule)
    elif command == "-X":
        if chains[chain] or chain in BUILTIN[table]:
            return "Directory not empty"
        del chains[chain]
    else:
        return f"unknown command {command}"
    return ""


def _dangling(chains: Chains) -> str:
    """Why the table cannot be: a rule leads to a chain that is not in it."""
    for chain, rules in chains.items():
        for text in rules:
            verdict = parse(text).verdict
            if isinstance(verdict, Jump | Goto) and verdict.chain not in chains:
                return f"{chain} leads to {verdict.chain}, which is not there"
    return ""
