"""Is everything of ours still in the table? Asked only when somebody else changed the packet filter, and without a program.

The kernel keeps, for each chain, how many rules it has and how many rules and map elements lead to it; and it lists the
elements of a set. A chain or set that was emptied or removed, the whole table, and a jump that was taken away: all show
in these numbers. What does not show is a rule that was replaced by another one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from podwire.kubeproxy.nftables_base import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kubeproxy.nftables_plan import Record
    from podwire.kubeproxy.nftables_sync import Door
    from podwire.rules.nft import words as w


def damage(records: Iterable[Record], elements: Iterable[w.Element], door: Door) -> list[str]:
    """What is missing, in words; empty if all is there. Raises KernelError."""
    have = door.chain_uses(TABLE)
    if have is None:
        return [f"table {TABLE}: gone"]
    uses: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for record in records:
        for name, chain in record.chains.items():
            uses[name] += chain.uses
    for element in elements:
        counts[element.set] += 1
        if element.leads_to:
            uses[element.leads_to] += 1
    found = []
    for name in sorted(uses):
        if name not in have:
            found.append(f"chain {name}: gone")
        elif have[name] < uses[name]:
            found.append(f"chain {name}: {have[name]} rules and references of {uses[name]}")
    for name in sorted(counts):
        there = door.element_count(TABLE, name)
        if there < counts[name]:
            found.append(f"set {name}: {there} elements of {counts[name]}")
    return found
