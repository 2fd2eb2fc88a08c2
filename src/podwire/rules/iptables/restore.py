"""A change of one table as iptables-restore --noflush reads it: all of it happens, or nothing.

    *nat
    :KUBE-SVC-… - [0:0]         create the chain, or empty it
    -I PREROUTING -j …          put in front          (in the order given: the last one ends up first)
    -D KUBE-SERVICES …          take out
    -A KUBE-SVC-… …             append
    -X KUBE-SVC-…               remove the (empty, unreferenced) chain
    COMMIT

The sections are written in this order whatever the order of the calls, because it is the only one that always works:
a chain must exist before a rule jumps to it and must be empty and unreferenced when it goes. To remove a chain is therefore to
declare it (which empties it) and to `-X` it.

`:` lines are sorted: iptables-nft-restore looks chains up in a list and takes three times as long when they are not.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class Change:
    """A change of the table `table`; rules are texts without `-A CHAIN`, as `spell` makes them."""

    __slots__ = ("_appended", "_chains", "_deleted", "_inserted", "_removed", "table")

    def __init__(self, table: str) -> None:
        self.table = table
        self._chains: set[str] = set()
        self._inserted: list[str] = []
        self._deleted: list[str] = []
        self._appended: list[str] = []
        self._removed: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._chains or self._inserted or self._deleted or self._appended)

    @property
    def declared(self) -> frozenset[str]:
        """The chains that are created or emptied, those to be removed among them."""
        return frozenset(self._chains)

    @property
    def removed(self) -> tuple[str, ...]:
        """The chains that are removed."""
        return tuple(self._removed)

    def rule_count(self) -> int:
        """How many rules are appended or inserted."""
        return len(self._appended) + len(self._inserted)

    def declare(self, chain: str) -> None:
        """Create the chain, or empty it."""
        self._chains.add(chain)

    def insert(self, chain: str, rule: str) -> None:
        """Put the rule in front of the chain."""
        self._inserted.append(f"-I {chain} {rule}")

    def delete(self, chain: str, rule: str) -> None:
        """Take this rule out of the chain; if it is not there the whole change fails."""
        self._deleted.append(f"-D {chain} {rule}")

    def append(self, chain: str, rules: Iterable[str]) -> None:
        """Append the rules to the chain."""
        start = f"-A {chain} "
        self._appended.extend([start + rule for rule in rules])

    def remove(self, chain: str) -> None:
        """Empty the chain and remove it."""
        self._chains.add(chain)
        self._removed.append(chain)

    def text(self) -> str:
        """What iptables-restore reads."""
        lines = [f"*{self.table}"]
        lines += [f":{chain} - [0:0]" for chain in sorted(self._chains)]
        lines += self._deleted
        lines += self._inserted
        lines += self._appended
        lines += [f"-X {chain}" for chain in sorted(self._removed)]
        lines.append("COMMIT\n")
        return "\n".join(lines)
