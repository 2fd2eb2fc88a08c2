"""Which chains a packet meets at a hook, in the kernel's order: iptables tables and nft base chains together.

Chains go by priority; of two with the same priority the one that was registered last runs first (nf_hook_entries_grow). nft lists
tables and chains in order of registration; between iptables-legacy and nft the input does not tell the order, which only
matters for NAT, where both orders are followed. NAT chains of all kinds are called from one hook of the NAT core (at -100 and 100),
whatever their own priority, which only orders them among themselves, and until one has made a mapping.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from podwire.explain.tables import BUILT_IN, PRIORITIES
from podwire.explain.walk_iptables import IptablesWalk
from podwire.explain.walk_nft import NftWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from podwire.explain.chains import Walked
    from podwire.explain.facts import Facts
    from podwire.explain.nft import NftTable
    from podwire.explain.packet import Way
    from podwire.explain.tables import IptablesRules

    Run = Callable[[list[Way], str], Walked]


#: More chains than a table can have: tables are told apart by it in an entry's order.
MOST_CHAINS = 1 << 24


class Entry(NamedTuple):
    """A base chain: `order` is that of registration (0: not known); `nat` chains are called by the NAT core, `reroutes` ones look up the route again when the mark changed."""

    priority: int
    order: int
    source: str
    nat: bool
    reroutes: bool
    run: Run
    family: str = "4"  # with the next two: which chain it is, as rule_graph names it
    table: str = ""
    chain: str = ""


class Ruleset(NamedTuple):
    """All rules of a node; `nft` in order of registration."""

    iptables: Sequence[IptablesRules] = ()
    nft: Sequence[NftTable] = ()


_CONNTRACK = re.compile(
    r"-j (?:DNAT|SNAT|MASQUERADE|REDIRECT|NETMAP|CT|CONNMARK)\b|-m (?:conntrack|state|connmark|helper)\b"
)
_NFT_CONNTRACK = re.compile(r"\b(?:dnat|snat|masquerade|redirect|ct)\b")


def _uses_conntrack(rules: IptablesRules) -> bool:
    lines = (line for table in rules.tables.values() for chain in table.chains.values() for line in chain.lines)
    return any(_CONNTRACK.search(line) for line in lines)


def _nft_uses_conntrack(table: NftTable) -> bool:
    return any(_NFT_CONNTRACK.search(rule.text) for chain in table.chains.values() for rule in chain.rules)


class Hooks:
    """The entries of each hook for one address family."""

    def __init__(self, ruleset: Ruleset, family: int, facts: Facts) -> None:
        self._ruleset = ruleset
        self._family = family
        self._facts = facts
        self._known: dict[str, list[Entry]] = {}
        self._tracks: bool | None = None

    def at(self, hook: str) -> list[Entry]:
        """The entries of PREROUTING, INPUT, FORWARD, OUTPUT or POSTROUTING, in order."""
        if hook not in self._known:
            entries = [*self._iptables(hook), *self._nft(hook)]
            entries.sort(key=lambda entry: (entry.priority, -entry.order))
            self._known[hook] = entries
        return self._known[hook]

    @property
    def tracks(self) -> bool:
        """Whether conntrack is at work: the kernel starts it in a namespace with the first rule that needs it.

        No NAT chain is asked before (nf_ct_netns_get in xt_DNAT, xt_conntrack, nft_nat, nft_ct and their like).
        """
        if self._tracks is None:
            self._tracks = any(
                _uses_conntrack(rules) for rules in self._ruleset.iptables if rules.family == self._family
            ) or any(_nft_uses_conntrack(table) for table in self._ruleset.nft if table.family in ("inet", "ip", "ip6"))
        return self._tracks

    def _iptables(self, hook: str) -> list[Entry]:
        found = []
        for rules in self._ruleset.iptables:
            if rules.family != self._family:
                continue
            for name, table in rules.tables.items():
                if hook not in BUILT_IN.get(name, ()) or hook not in table.chains:
                    continue
                side = ("-dst" if hook in ("PREROUTING", "OUTPUT") else "-src") if name == "nat" else ""
                walk = IptablesWalk(rules, table, hook, self._facts)
                order = rules.registered[name] * MOST_CHAINS if name in rules.registered else 0
                found.append(
                    Entry(
                        PRIORITIES[name + side],
                        order,
                        rules.source,
                        name == "nat",
                        name == "mangle",
                        walk.run,
                        str(rules.family),
                        name,
                        hook,
                    )
                )
        return found

    def _nft(self, hook: str) -> list[Entry]:
        found = []
        for table in self._ruleset.nft:
            if table.family not in ("inet", "ip" if self._family == 4 else "ip6"):
                continue
            for at, chain in enumerate(table.chains.values(), 1):
                order = table.order * MOST_CHAINS + min(at, MOST_CHAINS - 1)
                if chain.hook.upper() == hook:
                    walk = NftWalk(table, chain, hook, self._facts)
                    found.append(
                        Entry(
                            chain.priority,
                            order,
                            "nft",
                            chain.kind == "nat",
                            chain.kind == "route",
                            walk.run,
                            table.family,
                            table.name,
                            chain.name,
                        )
                    )
        return found
