"""nft rulesets as values: tables, chains, sets; statements and expressions in the form of libnftables-json(5).

Both inputs become this one form: `nft -j` has it already, and the text of `nft list ruleset` is parsed into it. A statement that
podwire cannot read is `{"opaque": text}`: whoever evaluates it says so. Rules and elements are parsed when a packet first
comes to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.nft_eval import Lookup

Expression = Any  # a word, a number, a list, or one of libnftables-json's objects
Statement = dict[str, Any]

#: A chain or a set of more rules or elements than this is put in order when it is read.
MANY = 500
_KINDS = {
    "ipv4_addr": "ip", "ipv6_addr": "ip", "inet_proto": "proto", "inet_service": "port", "mark": "int", "ifname": "iface",
}  # fmt: skip
PRIORITY_NAMES = {"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100, "out": 100}


class NftRule:
    """A rule; `position` counts from 1 in its chain."""

    __slots__ = ("_read", "_statements", "position", "text")

    def __init__(self, position: int, text: str, read: Callable[[], list[Statement]]) -> None:
        self.position = position
        self.text = text
        self._read = read
        self._statements: list[Statement] | None = None

    @property
    def statements(self) -> list[Statement]:
        """Its statements in order."""
        if self._statements is None:
            self._statements = self._read()
        return self._statements


class NftChain:
    """A chain; a base chain has a `kind` (filter, nat, route), `hook`, `priority` and `policy`."""

    __slots__ = ("hook", "kind", "name", "policy", "priority", "rules")

    def __init__(self, name: str, kind: str = "", hook: str = "", priority: int = 0, policy: str = "") -> None:
        self.name = name
        self.kind = kind
        self.hook = hook
        self.priority = priority
        self.policy = policy
        self.rules: list[NftRule] = []


class NftSet:
    """A set, or a map (`is_map`): `elements` are pairs of a key and, in a map, a value."""

    __slots__ = ("_elements", "_lookups", "_read", "dynamic", "is_map", "key_type", "name")

    def __init__(
        self, name: str, *, is_map: bool, dynamic: bool, key_type: str, read: Callable[[], list[tuple[Expression, Any]]]
    ) -> None:
        self.name = name
        self.is_map = is_map
        self.dynamic = dynamic
        self.key_type = key_type
        self._read = read
        self._elements: list[tuple[Expression, Any]] | None = None
        self._lookups: dict[tuple[str, ...], Lookup] = {}

    @property
    def elements(self) -> list[tuple[Expression, Any]]:
        """Its elements in order."""
        if self._elements is None:
            self._elements = self._read()
        return self._elements

    def lookup(self, kinds: tuple[str, ...]) -> Lookup:
        """Its elements by value, where the parts of a key are of these kinds; put in order once."""
        if kinds not in self._lookups:
            from podwire.explain.nft_eval import Lookup

            self._lookups[kinds] = Lookup(kinds, self.elements)
        return self._lookups[kinds]

    def prepare(self) -> None:
        """Put a set of many elements in order now, as the packets will ask for it."""
        kinds = tuple([_KINDS.get(part.strip(), "") for part in self.key_type.split(" . ")])
        if "" not in kinds and len(self.elements) > MANY:
            self.lookup(kinds)


class NftTable:
    """A table of a family (ip, ip6, inet, arp, bridge, netdev)."""

    __slots__ = ("chains", "family", "name", "order", "sets", "where")

    def __init__(self, family: str, name: str, where: str = "") -> None:
        self.family = family
        self.name = name
        self.where = where
        self.order = 0  # its place among all tables: the kernel lists them in order of registration
        self.chains: dict[str, NftChain] = {}
        self.sets: dict[str, NftSet] = {}

    @property
    def label(self) -> str:
        """`ip kube-proxy`."""
        return f"{self.family} {self.name}"


def priority_of(text: str) -> int:
    """`dstnat - 10`, `filter`, `-110`. What cannot be read is 0."""
    words = text.replace("+", " + ").replace("-", " - ").split()
    total, sign = 0, 1
    for word in words:
        if word in "+-":
            sign = -1 if word == "-" else 1
        elif word.isdigit():
            total += sign * int(word)
        else:
            total += PRIORITY_NAMES.get(word, 0)
    return total
