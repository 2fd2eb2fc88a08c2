"""Plans of a sync in iptables mode: texts for iptables-restore, and what to remember of them once they are accepted.

`full` writes everything: the shared chains with every Service's lines, every port's own chains, the base rules, missing
jumps and canaries; and it removes KUBE-SVC-, -SVL-, -EXT-, -FW-, -SEP- chains that nobody needs any more, whoever
left them. `partial` writes only what differs for the Services it is given: it takes their old lines out of the shared
chains and puts the new ones in front (the order of Services is free; the last rule of KUBE-SERVICES stays last), and
rewrites the own chains whose text is another.

A `PortRecord` holds the lines in shared chains as text, because taking a rule out needs it, and of own chains only a
64-bit hash: with 10,000 Services of 10 endpoints the text alone would be 50 MB.

iptables-nft-restore takes time that grows with the square of the chains in its input. So for that backend a full sync is
several restores of about `BATCH` chains, in which a port's chains stay together, and the shared chains come last:
until then traffic takes the old way or, for a port that was there before, already the new one, never half of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire import naming
from podwire.kubeproxy.iptables import NAT_SERVICES, SHARED_CHAINS, PortRules
from podwire.kubeproxy.iptables_base import (
    BASE_CHAINS,
    CANARY,
    FIREWALL_CHAIN,
    JUMPS,
    TABLES,
    base_rules,
    localhost_guard,
    node_port_rules,
)
from podwire.rules.iptables.restore import Change
from podwire.rules.iptables.spell import spell
from podwire.rules.vocabulary import Goto, Jump

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from podwire.kubeproxy.iptables import SharedChain
    from podwire.kubeproxy.layout import Layout
    from podwire.kubeproxy.settings import Settings
    from podwire.rules.iptables.save import Dump

BATCH = 2000
MARK_CHAIN = "KUBE-MARK-MASQ"


@dataclass(frozen=True, slots=True)
class PortRecord:
    """What was written for a port: lines in shared chains, hashes of own chains, how many rules those have."""

    shared: tuple[tuple[SharedChain, str], ...]
    own: dict[str, int]
    own_rules: int


Spelled = tuple[tuple[str, tuple[str, ...]], ...]
"""Own chains as text: ((chain, rules), …)."""


def record(rules: PortRules) -> tuple[PortRecord, Spelled]:
    """Spell a port's rules."""
    own = tuple([(chain, tuple([spell(rule) for rule in body])) for chain, body in rules.own])
    shared = tuple([(chain, spell(rule)) for chain, rule in rules.shared])
    hashes = {chain: hash(body) for chain, body in own}
    return PortRecord(shared, hashes, sum([len(body) for _, body in own])), own


class Tables:
    """One change for each table, written out together."""

    def __init__(self) -> None:
        self.changes = {table: Change(table) for table in TABLES}

    def __getitem__(self, table: str) -> Change:
        return self.changes[table]

    def text(self) -> str:
        """What iptables-restore reads; empty if nothing changes."""
        return "".join([change.text() for change in self.changes.values() if change])


def full(
    ports: Iterable[tuple[PortRecord, Spelled]],
    settings: Settings,
    layout: Layout,
    batch: int | None = BATCH,
    *,
    remove: bool = True,
) -> Iterator[str]:
    """The texts of a full sync, in order. `ports` is gone through once; `batch` None makes a single text.

    `remove` False empties the chains that nobody needs, but leaves them.
    """
    last = Tables()
    shared: list[tuple[SharedChain, str]] = []
    needed: set[str] = set()
    own: list[tuple[str, tuple[str, ...]]] = []
    first = True
    for entry, chains in ports:
        shared.extend(entry.shared)
        needed.update(entry.own)
        own.extend(chains)
        if batch is not None and len(own) >= batch:
            yield _own_batch(own, settings, first)
            own, first = [], False
    _write_own(last["nat"], own)
    _write_base(last, settings, layout)
    for (table, chain), line in shared:
        last[table].append(chain, (line,))
    last["nat"].append(NAT_SERVICES[1], [spell(rule) for rule in node_port_rules(settings)])
    for chain in leftovers(layout) - needed:
        if remove:
            last["nat"].remove(chain)
        else:
            last["nat"].declare(chain)
    yield last.text()


def leftovers(layout: Layout) -> set[str]:
    """The chains of single ports that are there, whoever made them for whatever Service."""
    chains = layout.chains.get("nat", frozenset())
    return {*layout.old, *[chain for chain in chains if chain.startswith(naming.SERVICE_CHAIN_PREFIXES)]}


def _own_batch(own: list[tuple[str, tuple[str, ...]]], settings: Settings, first: bool) -> str:
    change = Change("nat")
    if first:  # what own chains jump to besides each other
        _write_base_chain(change, MARK_CHAIN, settings)
    _write_own(change, own)
    return change.text()


def _write_own(change: Change, own: Iterable[tuple[str, tuple[str, ...]]]) -> None:
    for chain, rules in own:
        change.declare(chain)
        change.append(chain, rules)


def _write_base_chain(change: Change, chain: str, settings: Settings) -> None:
    change.declare(chain)
    change.append(chain, [spell(rule) for where, rule in base_rules(settings) if where == (change.table, chain)])


def _write_base(tables: Tables, settings: Settings, layout: Layout) -> None:
    for table in TABLES:
        tables[table].declare(CANARY)
    for table, chain in SHARED_CHAINS:
        tables[table].declare(chain)
    for table, chain in BASE_CHAINS:
        _write_base_chain(tables[table], chain, settings)
    if not layout.has_chain("filter", FIREWALL_CHAIN):
        tables["filter"].declare(FIREWALL_CHAIN)
    guard = localhost_guard(settings)
    if guard is not None and not layout.has_rule("filter", FIREWALL_CHAIN, guard):
        tables["filter"].append(FIREWALL_CHAIN, (spell(guard),))
    for jump in JUMPS:
        if not layout.has_rule(jump.table, jump.chain, jump.rule):
            tables[jump.table].insert(jump.chain, spell(jump.rule))


def partial(before: Iterable[PortRecord], after: Iterable[tuple[PortRecord, Spelled]]) -> str:
    """The text that turns some ports' records into others; empty if the kernel need not know."""
    tables = Tables()
    old_shared: list[tuple[SharedChain, str]] = []
    old_own: dict[str, int] = {}
    for entry in before:
        old_shared.extend(entry.shared)
        old_own.update(entry.own)
    new_shared: list[tuple[SharedChain, str]] = []
    for entry, chains in after:
        new_shared.extend(entry.shared)
        for chain, rules in chains:
            if old_own.pop(chain, None) != entry.own[chain]:
                tables["nat"].declare(chain)
                tables["nat"].append(chain, rules)
    for chain in old_own:
        tables["nat"].remove(chain)
    for where in SHARED_CHAINS:
        old = [line for at, line in old_shared if at == where]
        new = [line for at, line in new_shared if at == where]
        if old == new:
            continue
        table, name = where
        for line in old:
            tables[table].delete(name, line)
        for line in reversed(new):  # each goes in front of the one before
            tables[table].insert(name, line)
    return tables.text()


def cleanup(layout: Layout, keep: Collection[tuple[str, str]] = ()) -> str:
    """The text that takes away everything of ours but KUBE-FIREWALL, which is kubelet's too.

    `keep` are chains (table, name) that somebody else's rules lead to, which cannot be removed: see `foreign_targets`.
    """
    tables = Tables()
    ours = {*SHARED_CHAINS, *BASE_CHAINS, *[(table, CANARY) for table in TABLES]}
    targets = {where for where in ours if layout.has_chain(*where)}
    for (table, chain), rules in layout.rules.items():
        for rule in rules:  # in whatever words a kube-proxy of any age put it there
            if isinstance(rule.verdict, Jump | Goto) and (table, rule.verdict.chain) in targets:
                tables[table].delete(chain, spell(rule))
    for table, chain in (*targets, *[("nat", chain) for chain in leftovers(layout)]):
        if (table, chain) not in keep:
            tables[table].remove(chain)
        elif chain != MARK_CHAIN:  # that one leads nowhere and works for whoever uses it
            tables[table].declare(chain)
    return tables.text()


def foreign_targets(dump: Dump) -> set[tuple[str, str]]:
    """The chains of ours, as (table, name), that rules of other programs' chains lead to."""
    found = set()
    for table in dump.tables.values():
        for chain in table.chains.values():
            own = (table.name, chain.name) in {*SHARED_CHAINS, *BASE_CHAINS} or chain.name.startswith(
                (*naming.SERVICE_CHAIN_PREFIXES, naming.OLD_CHAIN_PREFIX)
            )
            if not own and chain.policy is None:
                found |= {(table.name, line.rpartition(" ")[2]) for line in chain.lines}
    return found
