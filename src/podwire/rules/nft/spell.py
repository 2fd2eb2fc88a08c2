"""Values as nft writes them: one line a rule, chain or set.

The text is what `nft -f` reads. `nft list` prints most of it alike; where it does not (numbers of marks, spaces) nothing
depends on it, because podwire never compares with a listing.
"""

from __future__ import annotations

from podwire.rules.nft import words as w
from podwire.rules.vocabulary import Drop, Goto, Jump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

AFFINITY_SIZE = 65535
_MARK = "meta mark"


def quoted(text: str) -> str:
    """A string of nft's, which knows no escapes."""
    return '"' + text.replace('"', "'") + '"'


def _is(part: w.Is) -> str:
    values = [quoted(value) for value in part.values] if part.field in ("iifname", "oifname") else part.values
    value = values[0] if len(values) == 1 else f"{{ {', '.join(values)} }}"
    return f"{part.field} {'!= ' if part.inverted else ''}{value}"


def _dnat(part: w.DnatTo) -> str:
    return f"dnat to {part.to}"


def _dnat_to_one_of(part: w.DnatToOneOf) -> str:
    targets = ", ".join([f"{at} : {ip} . {port}" for at, (ip, port) in enumerate(part.targets)])
    return f"dnat {part.family} to numgen random mod {len(part.targets)} map {{ {targets} }}"


def _goto_one_of(part: w.GotoOneOf) -> str:
    targets = ", ".join([f"{at} : goto {chain}" for at, chain in enumerate(part.chains)])
    return f"numgen random mod {len(part.chains)} vmap {{ {targets} }}"


_SPELL: dict[type[Any], Callable[[Any], str]] = {
    w.Is: _is,
    w.In: lambda part: f"{' . '.join(part.fields)} @{part.set}",
    w.Marked: lambda part: f"{_MARK} & {part.bit:#010x} != 0x00000000",
    w.Chance: lambda part: f"numgen random mod {part.of} 0",
    w.ByMap: lambda part: f"{' . '.join(part.fields)} vmap @{part.map}",
    w.Mark: lambda part: f"{_MARK} set {_MARK} {part.operator} {part.bit:#010x}",
    w.Remember: lambda part: f"update @{part.set} {{ {part.field} }}",
    w.DnatTo: _dnat,
    w.DnatToOneOf: _dnat_to_one_of,
    w.GotoOneOf: _goto_one_of,
    w.Masquerade: lambda _: "masquerade fully-random",
    w.Reject: lambda _: "reject",
    Jump: lambda part: f"jump {part.chain}",
    Goto: lambda part: f"goto {part.chain}",
    Drop: lambda _: "drop",
}


def rule(value: w.Rule) -> str:
    """A rule without its chain."""
    text = " ".join([_SPELL[type(part)](part) for part in value.parts])
    return f"{text} comment {quoted(value.comment)}" if value.comment else text


def chain_block(value: w.Chain) -> str:
    """What stands behind a chain's name, without its rules; empty for a plain chain."""
    parts = [f"{value.hook} ;"] if value.hook else []
    if value.comment:
        parts.append(f"comment {quoted(value.comment)} ;")
    return f"{{ {' '.join(parts)} }}" if parts else ""


def set_block(value: w.Set) -> str:
    """What stands behind a set's name."""
    parts = [f"type {value.key}{' : verdict' if value.verdicts else ''} ;"]
    if value.timeout:
        parts.append(f"flags dynamic,timeout ; timeout {value.timeout}s ; size {AFFINITY_SIZE} ;")
    if value.comment:
        parts.append(f"comment {quoted(value.comment)} ;")
    return f"{{ {' '.join(parts)} }}"


def element(value: w.Element) -> str:
    """An element as it stands in braces. A comment stands before the colon."""
    text = f"{value.key} comment {quoted(value.comment)}" if value.comment else value.key
    return f"{text} : {value.verdict}" if value.verdict else text
