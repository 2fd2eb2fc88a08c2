"""Are all our chains, their rules and the jumps to them still there? By counting, and where it costs nothing more by text.

A flush, of a chain, a table or everything, always shows in the counts: a chain is gone or has fewer rules, or fewer rules
lead to it than should. More of either is no damage: the administrator may have a jump of his own into one of our chains.

With the nf_tables backend a kernel dump gives the counts; reading the text takes 24 s where 5,000 Services are in place.
The legacy backend has no counts, so its text is read anyway, and each rule of ours must be in it. `altered` is apart from
the rest, since another version of iptables may print a rule in other words than it was written in.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from podwire.kernel import netfilter
from podwire.kubeproxy.iptables_base import CANARY, JUMPS, TABLES, base_rules, localhost_guard, node_port_rules
from podwire.rules.iptables import save
from podwire.rules.iptables.spell import spell
from podwire.rules.vocabulary import Jump

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from podwire.kubeproxy.iptables import PortRules
    from podwire.kubeproxy.settings import Settings
    from podwire.rules.iptables.run import Iptables
    from podwire.rules.vocabulary import Rule

Where = tuple[str, str]
"""(table, chain)."""


class Expected:
    """How many rules each of our chains has, and how many of our rules lead to it."""

    def __init__(self, ports: Iterable[PortRules], settings: Settings) -> None:
        self.text: dict[Where, Counter[str]] = {}  # of chains that are no single port's
        self.rules: Counter[Where] = Counter()
        self.references: Counter[Where] = Counter()
        for table in TABLES:
            self.rules[table, CANARY] = 0
        for where, rule in base_rules(settings):
            self._add_spelled(where, rule)
        for rule in node_port_rules(settings):
            self._add_spelled(("nat", "KUBE-SERVICES"), rule)
        for jump in JUMPS:
            self.references[jump.table, jump.target] += 1
            self.text.setdefault((jump.table, jump.chain), Counter())[spell(jump.rule)] += 1
        guard = localhost_guard(settings)
        if guard is not None:
            self._add_spelled(("filter", "KUBE-FIREWALL"), guard)
        for port in ports:
            for where, rule in port.shared:
                self._add_spelled(where, rule)
            for chain, rules in port.own:
                for rule in rules:
                    self._add(("nat", chain), rule)

    def _add(self, where: Where, rule: Rule) -> None:
        self.rules[where] += 1
        if isinstance(rule.verdict, Jump):
            self.references[where[0], rule.verdict.chain] += 1

    def _add_spelled(self, where: Where, rule: Rule) -> None:
        self._add(where, rule)
        self.text.setdefault(where, Counter())[spell(rule)] += 1

    def chains(self) -> set[Where]:
        """Every chain that must be there."""
        return self.rules.keys() | self.references.keys()


def damage(expected: Expected, own: Mapping[str, int], door: Iptables, version: int) -> tuple[list[str], list[str]]:
    """What is missing, and what is altered, as `table chain: …`. `own` are the hashes of ports' chains, as in PortRecord.

    Raises KernelError, CommandFailed.
    """
    if door.backend == "nf_tables":
        tables = netfilter.nft_chains(version)
        have = {(table, chain): uses for table, chains in tables.items() for chain, uses in chains.items()}
        return _missing(expected, have), []
    lines = _legacy_lines(door)
    missing = _missing(expected, _legacy_uses(lines))
    return missing, [] if missing else _altered(expected.text, own, lines)


def _altered(
    shared: Mapping[Where, Counter[str]], own: Mapping[str, int], lines: Mapping[Where, list[str]]
) -> list[str]:
    found = [f"nat {chain}: altered" for chain, hashed in own.items() if hash(tuple(lines["nat", chain])) != hashed]
    for where, rules in sorted(shared.items()):
        absent = rules - Counter(lines.get(where, ()))
        if absent:
            found.append(f"{where[0]} {where[1]}: without {next(iter(absent))}")
    return found


def _missing(expected: Expected, have: Mapping[Where, int]) -> list[str]:
    found = []
    for table, chain in sorted(expected.chains()):
        where = (table, chain)
        wanted = expected.rules[where] + expected.references[where]
        if where not in have:
            found.append(f"{table} {chain}: gone")
        elif have[where] < wanted:
            found.append(f"{table} {chain}: {have[where]} rules and references of {wanted}")
    return found


def _legacy_lines(door: Iptables) -> dict[Where, list[str]]:
    return {
        (name, chain.name): chain.lines
        for name in TABLES
        for table in save.read(door.save(name)).tables.values()
        for chain in table.chains.values()
    }


def _legacy_uses(lines: dict[Where, list[str]]) -> Counter[Where]:
    """What nf_tables calls uses, counted from the text."""
    uses: Counter[Where] = Counter()
    for (table, chain), rules in lines.items():
        uses[table, chain] += len(rules)
        for line in rules:
            # The target stands last but for its options, which none of our jumps has.
            head, _, target = line.rpartition(" ")
            if head.endswith(("-j", "-g")):
                uses[table, target] += 1
    return uses
