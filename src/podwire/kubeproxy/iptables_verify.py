"""Are all our chains, their rules and the jumps to them still there? By counting, not by reading text.

Text would differ between versions of iptables for rules that are the same. A flush, of a chain, a table or everything,
always shows in the counts: a chain is gone or has fewer rules, or fewer rules lead to it than should. More of
either is no damage: the administrator may have a jump of his own into one of our chains.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from podwire.kernel import netfilter
from podwire.kubeproxy.iptables_base import CANARY, JUMPS, TABLES, base_rules, localhost_guard, node_port_rules
from podwire.rules.iptables import save
from podwire.rules.vocabulary import Jump

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kubeproxy.iptables import PortRules
    from podwire.kubeproxy.settings import Settings
    from podwire.rules.iptables.run import Iptables
    from podwire.rules.vocabulary import Rule

Where = tuple[str, str]
"""(table, chain)."""


class Expected:
    """How many rules each of our chains has, and how many of our rules lead to it."""

    def __init__(self, ports: Iterable[PortRules], settings: Settings) -> None:
        self.rules: Counter[Where] = Counter()
        self.references: Counter[Where] = Counter()
        for table in TABLES:
            self.rules[table, CANARY] = 0
        for where, rule in base_rules(settings):
            self._add(where, rule)
        for rule in node_port_rules(settings):
            self._add(("nat", "KUBE-SERVICES"), rule)
        for jump in JUMPS:
            self.references[jump.table, jump.target] += 1
        guard = localhost_guard(settings)
        if guard is not None:
            self._add(("filter", "KUBE-FIREWALL"), guard)
        for port in ports:
            for where, rule in port.shared:
                self._add(where, rule)
            for chain, rules in port.own:
                for rule in rules:
                    self._add(("nat", chain), rule)

    def _add(self, where: Where, rule: Rule) -> None:
        self.rules[where] += 1
        if isinstance(rule.verdict, Jump):
            self.references[where[0], rule.verdict.chain] += 1

    def chains(self) -> set[Where]:
        """Every chain that must be there."""
        return self.rules.keys() | self.references.keys()


def damage(expected: Expected, door: Iptables, version: int) -> list[str]:
    """What is missing, as `table chain: …`; empty if all is there. Raises KernelError, CommandFailed."""
    if door.backend == "nf_tables":
        tables = netfilter.nft_chains(version)
        have = {(table, chain): uses for table, chains in tables.items() for chain, uses in chains.items()}
    else:
        have = _legacy_uses(door)
    found = []
    for table, chain in sorted(expected.chains()):
        where = (table, chain)
        wanted = expected.rules[where] + expected.references[where]
        if where not in have:
            found.append(f"{table} {chain}: gone")
        elif have[where] < wanted:
            found.append(f"{table} {chain}: {have[where]} rules and references of {wanted}")
    return found


def _legacy_uses(door: Iptables) -> Counter[Where]:
    """What nf_tables calls uses, counted from the text."""
    uses: Counter[Where] = Counter()
    for name in TABLES:
        for table in save.read(door.save(name)).tables.values():
            for chain in table.chains.values():
                uses[name, chain.name] += len(chain.lines)
                for line in chain.lines:
                    # The target stands last but for its options, which none of our jumps has.
                    head, _, target = line.rpartition(" ")
                    if head.endswith(("-j", "-g")):
                        uses[name, target] += 1
    return uses
