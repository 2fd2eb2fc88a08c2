"""Rules, chains, sets and elements of nftables as values: what podwire writes, and no more.

A rule is a row of parts, tested and done from left to right; the first condition that does not hold ends the rule. What a
condition looks at is a `field`, nft's own expression: `ip saddr`, `meta l4proto`, `fib daddr type`. Verdicts that iptables has too
(Jump, Goto, Drop) are those of `podwire.rules.vocabulary`.

How names, addresses and numbers are written is nft's business (`spell`); values hold them as text, ready to be written. An
element's key is text as well (`10.96.0.1 . tcp . 80`): a node holds tens of thousands.
"""

from __future__ import annotations

from podwire.rules.vocabulary import Drop, Goto, Jump, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias


class Part(Value):
    """A condition or an action that nft has and iptables has not."""

    __slots__ = ()


class Is(Part):
    """The field has one of the values (addresses, prefixes, names)."""

    __slots__ = ("field", "inverted", "values")
    _names = ("field", "values", "inverted")

    def __init__(self, field: str, values: tuple[str, ...], inverted: bool = False) -> None:
        self.field = field
        self.values = values
        self.inverted = inverted


class In(Part):
    """The fields together are an element of the named set."""

    __slots__ = ("fields", "set")
    _names = ("fields", "set")

    def __init__(self, fields: tuple[str, ...], name: str) -> None:
        self.fields = fields
        self.set = name


class Marked(Part):
    """The packet's mark has this bit."""

    __slots__ = ("bit",)
    _names = ("bit",)

    def __init__(self, bit: int) -> None:
        self.bit = bit


class Chance(Part):
    """One in `of`; each packet is asked anew."""

    __slots__ = ("of",)
    _names = ("of",)

    def __init__(self, of: int) -> None:
        self.of = of


class ByMap(Part):
    """The verdict that the named map has for the fields, if it has one."""

    __slots__ = ("fields", "map")
    _names = ("fields", "map")

    def __init__(self, fields: tuple[str, ...], name: str) -> None:
        self.fields = fields
        self.map = name


class Mark(Part):
    """Set (`operator` |) or flip (^) a bit of the packet's mark."""

    __slots__ = ("bit", "operator")
    _names = ("operator", "bit")

    def __init__(self, operator: str, bit: int) -> None:
        self.operator = operator
        self.bit = bit


class Remember(Part):
    """Put the field into the named set, or start its time there again."""

    __slots__ = ("field", "set")
    _names = ("field", "set")

    def __init__(self, field: str, name: str) -> None:
        self.field = field
        self.set = name


class DnatTo(Part):
    """The new destination: `ip:port`, `[v6]:port`."""

    __slots__ = ("to",)
    _names = ("to",)

    def __init__(self, to: str) -> None:
        self.to = to


class DnatToOneOf(Part):
    """A new destination by chance, each equally likely: `targets` are (ip, port)."""

    __slots__ = ("family", "targets")
    _names = ("family", "targets")

    def __init__(self, family: str, targets: tuple[tuple[str, int], ...]) -> None:
        self.family = family
        self.targets = targets


class GotoOneOf(Part):
    """One of the chains by chance, each equally likely."""

    __slots__ = ("chains",)
    _names = ("chains",)

    def __init__(self, chains: tuple[str, ...]) -> None:
        self.chains = chains


class Masquerade(Part):
    """The address of the interface the packet leaves by becomes its source, with a port by chance."""

    __slots__ = ()


class Reject(Part):
    """Refuse with ICMP port unreachable."""

    __slots__ = ()


Word: TypeAlias = "Part | Jump | Goto | Drop"


class Rule(Value):
    """Parts and a comment or none."""

    __slots__ = ("comment", "parts")
    _names = ("parts", "comment")

    def __init__(self, parts: tuple[Word, ...], comment: str = "") -> None:
        self.parts = parts
        self.comment = comment


class Chain(Value):
    """A chain. `hook` is what makes it a base chain, as nft writes it (`type nat hook output priority -100`)."""

    __slots__ = ("comment", "hook", "name", "rules")
    _names = ("name", "rules", "hook", "comment")

    def __init__(self, name: str, rules: tuple[Rule, ...] = (), hook: str = "", comment: str = "") -> None:
        self.name = name
        self.rules = rules
        self.hook = hook
        self.comment = comment


class Set(Value):
    """A named set, or, with `verdicts`, a map from `key` to verdicts. `timeout` in seconds makes its elements end by themselves."""

    __slots__ = ("comment", "key", "name", "timeout", "verdicts")
    _names = ("name", "key", "comment", "verdicts", "timeout")

    def __init__(self, name: str, key: str, comment: str = "", verdicts: bool = False, timeout: int = 0) -> None:
        self.name = name
        self.key = key
        self.comment = comment
        self.verdicts = verdicts
        self.timeout = timeout


class Element(Value):
    """An element of a set, or of a map if it has a `verdict`."""

    __slots__ = ("comment", "key", "set", "verdict")
    _names = ("set", "key", "verdict", "comment")

    def __init__(self, name: str, key: str, verdict: str = "", comment: str = "") -> None:
        self.set = name
        self.key = key
        self.verdict = verdict
        self.comment = comment

    @property
    def leads_to(self) -> str:
        """The chain that the verdict goes to, or empty."""
        return self.verdict[5:] if self.verdict.startswith("goto ") else ""


def leads_to(rule: Rule) -> tuple[str, ...]:
    """The chains that a rule refers to, as often as it does."""
    found: tuple[str, ...] = ()
    for part in rule.parts:
        if isinstance(part, Jump | Goto):
            found += (part.chain,)
        elif isinstance(part, GotoOneOf):
            found += part.chains
    return found
