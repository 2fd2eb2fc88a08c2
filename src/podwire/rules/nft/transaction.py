"""A transaction on one table: commands in the order in which the kernel is to take them, as `nft -f` reads them.

All of it is applied or nothing. One command a line, so that a refusal can be told by its line; elements by the hundred.
The order is the writer's, whichever way its methods are called, because only one order always works:

    table   chains and sets that are new   chains to be emptied   elements to be taken out   sets and chains to be removed,
    sets in place of removed ones   rules   elements to be added

(An element holds on to the chain it leads to, a rule to its chains and sets; what nobody holds on to can be removed.)
"""

from __future__ import annotations

from podwire.rules.nft import spell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.rules.nft import words as w

_ELEMENTS_A_LINE = 100


class Transaction:
    """`family` is ip or ip6."""

    __slots__ = (
        "_added",
        "_chains",
        "_emptied",
        "_put",
        "_removed",
        "_replaced",
        "_rules",
        "_taken",
        "removals",
        "table",
    )

    def __init__(self, family: str, table: str) -> None:
        self.table = f"{family} {table}"
        self.removals = 0
        self._added: list[str] = []
        self._chains: list[str] = []
        self._emptied: list[str] = []
        self._taken: dict[str, list[str]] = {}
        self._removed: list[str] = []
        self._replaced: list[str] = []
        self._rules: list[str] = []
        self._put: dict[str, list[str]] = {}

    def replace_table(self, comment: str) -> None:
        """Begin with an empty table, whatever there was."""
        # The first line is for where there is none: deleting what is not there fails.
        self._added += [f"add table {self.table}", f"delete table {self.table}"]
        self._added.append(f"add table {self.table} {{ comment {spell.quoted(comment)} ; }}")

    def add_set(self, value: w.Set) -> None:
        """Make a set or map."""
        self._added.append(self._set(value))

    def replace_set(self, value: w.Set) -> None:
        """Make a set anew, of which the definition changed. Rules that use it must be emptied and written in the same transaction."""
        self.remove_set(value.name)
        self._replaced.append(self._set(value))

    def _set(self, value: w.Set) -> str:
        return f"add {'map' if value.verdicts else 'set'} {self.table} {value.name} {spell.set_block(value)}"

    def add_chain(self, chain: w.Chain) -> None:
        """Make a chain, if it is not there, without its rules."""
        self._chains.append(f"add chain {self.table} {chain.name} {spell.chain_block(chain)}".rstrip())

    def empty_chain(self, name: str) -> None:
        """Take all rules of a chain away."""
        self._emptied.append(f"flush chain {self.table} {name}")

    def add_rules(self, chain: str, rules: Iterable[str]) -> None:
        """Append rules, spelled."""
        start = f"add rule {self.table} {chain} "
        self._rules += [start + rule for rule in rules]

    def put(self, element: w.Element) -> None:
        """Add an element."""
        self._put.setdefault(element.set, []).append(spell.element(element))

    def take(self, element: w.Element) -> None:
        """Take an element out."""
        self._taken.setdefault(element.set, []).append(element.key)

    def remove_chain(self, name: str) -> None:
        """Remove a chain that nothing refers to any more."""
        self.removals += 1
        self._removed.append(f"delete chain {self.table} {name}")

    def remove_set(self, name: str) -> None:
        """Remove a set that nothing refers to any more."""
        self.removals += 1
        self._removed.append(f"delete set {self.table} {name}")

    def __bool__(self) -> bool:
        return any((self._added, self._chains, self._emptied, self._taken, self._removed, self._rules, self._put))

    def text(self) -> str:
        """What nft reads; empty if nothing changes."""
        taken = self._elements("delete", self._taken)
        put = self._elements("add", self._put)
        parts = (self._added, self._chains, self._emptied, taken, self._removed, self._replaced, self._rules, put)
        return "".join([line + "\n" for part in parts for line in part])

    def _elements(self, verb: str, by_set: dict[str, list[str]]) -> list[str]:
        return [
            f"{verb} element {self.table} {name} {{ {', '.join(elements[at : at + _ELEMENTS_A_LINE])} }}"
            for name, elements in by_set.items()
            for at in range(0, len(elements), _ELEMENTS_A_LINE)
        ]
