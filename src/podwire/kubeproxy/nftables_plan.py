"""Transactions of nftables mode, and what is to be remembered of them once the kernel has accepted one.

`full` makes the table anew, whatever was there: it deletes the old one in the same transaction, so that packets see either
the old or the new. `partial` turns some owners' records into others and writes only what differs.

A `Record` is what one owner (a Service, or the base) has in the table. Of a chain only a 64-bit hash of its text is kept.

Two Services may claim the same element: a clusterIP has several ports, two Services may have the same external IP and port, and
two of them may lead to the same pod. A map can hold only one of two verdicts. `Claims` knows who wants what: the first by
name has it, the others wait; that depends on nothing but who there is, so it comes out the same whatever came first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from podwire.kubeproxy.nftables_base import TABLE, TABLE_COMMENT
from podwire.rules.nft import spell
from podwire.rules.nft import words as w
from podwire.rules.nft.transaction import Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.nftables import Block

Key = tuple[str, str]
"""(set, key) of an element."""


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """`uses`: its rules, and the references to it from rules of the same owner, which only itself leads to its chains."""

    hash: int
    uses: int


@dataclass(frozen=True, slots=True)
class Record:
    """What an owner has in the table. Sets are remembered by their text."""

    sets: dict[str, str]
    chains: dict[str, ChainRecord]
    elements: tuple[w.Element, ...]


Leftovers = tuple[frozenset[str], frozenset[str]]
"""Chains and sets that nothing uses any more and that are still to be removed."""

Spelled = dict[str, tuple[str, ...]]
"""The rules of chains as text."""


@dataclass(slots=True)
class Owned:
    """An owner's blocks as a record and as what a transaction needs, which is not kept."""

    record: Record
    sets: dict[str, w.Set] = field(default_factory=dict)
    chains: dict[str, w.Chain] = field(default_factory=dict)
    rules: Spelled = field(default_factory=dict)


NOTHING = Record({}, {}, ())
_NOTHING_LEFT: Leftovers = (frozenset(), frozenset())


def own(blocks: Iterable[Block]) -> Owned:
    """Spell the blocks of one owner."""
    found = Owned(Record({}, {}, ()))
    elements: dict[Key, w.Element] = {}
    references: dict[str, int] = {}
    for block in blocks:
        for one in block.sets:
            found.sets[one.name] = one
            found.record.sets[one.name] = spell.set_block(one)
        for chain in block.chains:
            found.chains[chain.name] = chain
            found.rules[chain.name] = tuple([spell.rule(rule) for rule in chain.rules])
            for rule in chain.rules:
                for name in w.leads_to(rule):
                    references[name] = references.get(name, 0) + 1
        for element in block.elements:
            elements.setdefault((element.set, element.key), element)
    for name, rules in found.rules.items():
        found.record.chains[name] = ChainRecord(hash(rules), len(rules) + references.get(name, 0))
    record = Record(found.record.sets, found.record.chains, tuple(elements.values()))
    return Owned(record, found.sets, found.chains, found.rules)


class Claims:
    """Which owners want which elements. Nearly all are wanted by one, so that case is kept small."""

    def __init__(self) -> None:
        self._one: dict[Key, tuple[str, w.Element]] = {}
        self._more: dict[Key, dict[str, w.Element]] = {}  # where there are others; all of them, with the one of `_one`

    def add(self, owner: str, element: w.Element) -> None:
        """The owner wants it."""
        key = (element.set, element.key)
        known = self._one.get(key)
        if known is None:
            self._one[key] = (owner, element)
            return
        claims = self._more.setdefault(key, dict([known]))
        claims[owner] = element
        self._choose(key, claims)

    def drop(self, owner: str, element: w.Element) -> None:
        """The owner wants it no more."""
        key = (element.set, element.key)
        claims = self._more.get(key)
        if claims is None:
            self._one.pop(key, None)
            return
        claims.pop(owner, None)
        self._choose(key, claims)
        if len(claims) == 1:
            del self._more[key]

    def _choose(self, key: Key, claims: dict[str, w.Element]) -> None:
        first = min(claims)
        self._one[key] = (first, claims[first])

    def get(self, key: Key) -> w.Element | None:
        """What is to be in the kernel under this key."""
        found = self._one.get(key)
        return None if found is None else found[1]

    def elements(self) -> Iterable[w.Element]:
        """Everything that is to be in the kernel."""
        return [element for _, element in self._one.values()]

    def refused(self) -> list[tuple[str, w.Element]]:
        """Who does not get a verdict of his own, because somebody else has the key."""
        found = []
        for key, claims in self._more.items():
            winner, element = self._one[key]
            verdicts = [(owner, claim) for owner, claim in claims.items() if owner != winner]
            found += [(owner, claim) for owner, claim in verdicts if claim.verdict != element.verdict]
        return found


Timed = dict[str, list[tuple[str, int]]]
"""Elements with the milliseconds they have left, by set."""


def full(family: Family, owners: Iterable[Owned], claims: Claims, timed: Timed) -> Transaction:
    """The transaction that makes the table anew; `timed` are clients of the old one that are to be known in the new one."""
    change = _transaction(family)
    change.replace_table(TABLE_COMMENT)
    for owned in owners:
        for one in owned.sets.values():
            change.add_set(one)
            for address, left in timed.get(one.name, ()):
                change.put(w.Element(one.name, f"{address} expires {min(left, one.timeout * 1000)}ms"))
        for name, chain in owned.chains.items():
            change.add_chain(chain)
            change.add_rules(name, owned.rules[name])
    for element in claims.elements():
        change.put(element)
    return change


def partial(
    family: Family,
    before: Mapping[str, Record],
    after: Mapping[str, Owned],
    claims: Claims,
    leftovers: Leftovers,
    *,
    remove: bool,
) -> tuple[Transaction, Leftovers]:
    """The transaction from some owners' records to others, and what it leaves behind.

    `claims` advances; `move` the other way takes it back. `leftovers` of earlier transactions are removed or used again.
    With `remove` nothing new is left behind.
    """
    change = _transaction(family)
    old_chains, old_sets = set(leftovers[0]), set(leftovers[1])
    left_chains: list[str] = []
    left_sets: list[str] = []
    for owner, owned in after.items():
        old = before[owner]
        _sets_and_chains(change, old, owned, leftovers[1])
        old_chains -= owned.chains.keys()
        old_sets -= owned.sets.keys()
        left_chains += [name for name in old.chains if name not in owned.chains]
        left_sets += [name for name in old.sets if name not in owned.sets]
    for name in left_chains:
        change.empty_chain(name)
    old_chains.update(left_chains if remove else ())
    old_sets.update(left_sets if remove else ())
    for name in sorted(old_chains):
        change.remove_chain(name)
    for name in sorted(old_sets):
        change.remove_set(name)
    _elements(change, before, after, claims)
    return change, _NOTHING_LEFT if remove else (frozenset(left_chains), frozenset(left_sets))


def _sets_and_chains(change: Transaction, old: Record, owned: Owned, leftover_sets: frozenset[str]) -> None:
    anew = False
    for name, one in owned.sets.items():
        if name in leftover_sets:
            change.replace_set(one)
        elif name not in old.sets:
            change.add_set(one)
        elif old.sets[name] != owned.record.sets[name]:
            change.replace_set(one)
            anew = True
    for name, chain in owned.chains.items():
        known = old.chains.get(name)
        if known is None:
            change.add_chain(chain)
        elif known.hash == owned.record.chains[name].hash and not anew:
            continue
        else:
            change.empty_chain(name)
        change.add_rules(name, owned.rules[name])


def _elements(change: Transaction, before: Mapping[str, Record], after: Mapping[str, Owned], claims: Claims) -> None:
    touched: dict[Key, w.Element | None] = {}
    for owner, owned in after.items():
        old = before[owner]
        for element in (*old.elements, *owned.record.elements):
            touched.setdefault((element.set, element.key), claims.get((element.set, element.key)))
    for owner, owned in after.items():
        old = before[owner]
        move(claims, owner, old, owned.record)
    for key, was in touched.items():
        now = claims.get(key)
        if was == now:
            continue
        if was is not None:
            change.take(was)
        if now is not None:
            change.put(now)


def move(claims: Claims, owner: str, old: Record, new: Record) -> None:
    """Replace an owner's claims."""
    for element in old.elements:
        claims.drop(owner, element)
    for element in new.elements:
        claims.add(owner, element)


def _transaction(family: Family) -> Transaction:
    return Transaction("ip" if family.version == 4 else "ip6", TABLE)
