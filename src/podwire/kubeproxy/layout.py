"""What is already in the kernel that a full sync must know: which chains there are, and which rules our own must not double.

Only names and the few rules of the built-in chains are read, because everything else of ours is written anew. With the
nf_tables backend names come from a netlink dump: iptables-nft-save reads every rule, which takes 24 s where 5,000 Services
are in place. The legacy tools read the whole table whatever is asked, and fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from podwire import naming
from podwire.kernel import netfilter
from podwire.kubeproxy.iptables_base import FIREWALL_CHAIN, JUMPS
from podwire.rules.iptables import save
from podwire.rules.iptables.parse import RuleSyntaxError, parse

if TYPE_CHECKING:
    from podwire.rules.iptables.run import Iptables
    from podwire.rules.vocabulary import Rule

_READ = sorted({(jump.table, jump.chain) for jump in JUMPS} | {("filter", FIREWALL_CHAIN)})
_TABLES = ("mangle", "filter", "nat")


@dataclass(frozen=True, slots=True)
class Layout:
    """`chains`: names by table. `rules`: those of the built-in chains and of KUBE-FIREWALL, by (table, chain).

    `old`: chains of the table nat with rules that a kube-proxy before 1.24 left, which lead into its other chains.
    """

    chains: dict[str, frozenset[str]] = field(default_factory=dict)
    old: frozenset[str] = frozenset()
    rules: dict[tuple[str, str], tuple[Rule, ...]] = field(default_factory=dict)

    def has_chain(self, table: str, chain: str) -> bool:
        """Whether the table has this chain."""
        return chain in self.chains.get(table, ())

    def has_rule(self, table: str, chain: str, rule: Rule) -> bool:
        """Whether one of the chains that were read has this rule, wherever in it."""
        return rule in self.rules.get((table, chain), ())


EMPTY = Layout()


def read_layout(door: Iptables, version: int) -> Layout:
    """The layout of the tables mangle, filter and nat. Raises CommandFailed, KernelError, MissingCapability."""
    if door.backend != "nf_tables":
        tables: dict[str, save.Table] = {}
        for table in _TABLES:
            tables |= save.read(door.save(table)).tables
        uses = {name: len(chain.lines) for name, chain in tables["nat"].chains.items()} if "nat" in tables else {}
        return Layout(
            {table: frozenset(read.chains) for table, read in tables.items()},
            _old(uses),
            {
                (table, chain): _rules(tables[table].chains[chain].lines)
                for table, chain in _READ
                if table in tables and chain in tables[table].chains
            },
        )
    counted = netfilter.nft_chains(version)
    chains = {table: frozenset(names) for table, names in counted.items()}
    return Layout(
        chains,
        _old(counted.get("nat", {})),
        {(table, chain): _rules(door.rules(table, chain)) for table, chain in _READ if chain in chains.get(table, ())},
    )


def _old(uses: dict[str, int]) -> frozenset[str]:
    return frozenset(chain for chain, count in uses.items() if count and chain.startswith(naming.OLD_CHAIN_PREFIX))


def _rules(lines: list[str]) -> tuple[Rule, ...]:
    found = []
    for line in lines:
        try:
            found.append(parse(line))
        except RuleSyntaxError:  # somebody else's, in words we do not know; certainly none of ours
            continue
    return tuple(found)
