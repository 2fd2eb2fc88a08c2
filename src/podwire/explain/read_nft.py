"""The text of `nft list ruleset` (and of `nft list table`, or several pasted together) as tables.

The reader follows braces: a table holds chains, sets, maps and things that do not matter here. A rule is a line, or several
when a set in it is. Text around is skipped; a table that is cut off in the middle is read as far as it goes. Linear in the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.explain.nft import NftChain, NftRule, NftSet, NftTable, priority_of
from podwire.explain.nft_rules import parse_rule
from podwire.explain.nft_words import NotNft, Words, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from podwire.explain.nft import Expression, Statement

_TABLE = re.compile(r"^\s*(?:add\s+|create\s+)?table\s+(?:(ip|ip6|inet|arp|bridge|netdev)\s+)?(\S+)\s*\{")
_BASE = re.compile(r"type\s+(\w+)\s+hook\s+(\w+)(?:\s+devices?\s+[^;]*?)?\s+priority\s+([^;]+)(?:;|$)")
_POLICY = re.compile(r"policy\s+(\w+)")
_STRING = re.compile(r'"[^"]*"')


def looks_like_nft(text: str) -> bool:
    """Whether a text has the beginning of an nft table."""
    return any(_TABLE.match(line) for line in text.splitlines() if "table" in line)


def _depth(line: str) -> int:
    if '"' in line:
        line = _STRING.sub("", line)
    return line.count("{") - line.count("}")


def read_nft(text: str, where: str = "") -> list[NftTable]:
    """All tables, in the order of the text. Never raises."""
    found: list[NftTable] = []
    lines = iter(text.splitlines())
    for line in lines:
        heading = _TABLE.match(line)
        if heading is None:
            continue
        table = next((one for one in found if (one.family, one.name) == (heading[1] or "ip", heading[2])), None)
        if table is None:
            table = NftTable(heading[1] or "ip", heading[2], where)
            found.append(table)
        if _depth(line) > 0:
            _table(table, lines)
    return found


def _table(table: NftTable, lines: Iterator[str]) -> None:
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] == "}":
            return
        if words[0] == "chain" and len(words) >= 2:
            name = words[1].strip('"')
            chain = table.chains.setdefault(name, NftChain(name))
            if _depth(line) > 0:
                _chain(chain, lines)
        elif words[0] in ("set", "map") and len(words) >= 2:
            body = _block(lines) if _depth(line) > 0 else []
            table.sets[words[1].strip('"')] = _set(words[1].strip('"'), body, is_map=words[0] == "map")
        elif _depth(line) > 0:
            _block(lines)


def _block(lines: Iterator[str]) -> list[str]:
    """The lines up to the brace that closes a block already open."""
    body: list[str] = []
    depth = 1
    for line in lines:
        depth += _depth(line)
        if depth <= 0:
            break
        body.append(line)
    return body


def _chain(chain: NftChain, lines: Iterator[str]) -> None:
    pending = ""
    for raw in lines:
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if pending:
            line, pending = f"{pending} {line}", ""
        depth = _depth(line)
        if depth > 0:
            pending = line
            continue
        if line == "}" or depth < 0:
            return
        if line.startswith("type ") and " hook " in line:
            _base(chain, line)
        elif not line.startswith(('comment "', "policy ", "devices =", "flags ")):
            text = line.split(" # handle ")[0]
            chain.rules.append(NftRule(len(chain.rules) + 1, text, _statements(text)))
        elif line.startswith("policy "):
            chain.policy = line[7:].rstrip("; ")


def _statements(text: str) -> Callable[[], list[Statement]]:
    return lambda: parse_rule(text)


def _base(chain: NftChain, line: str) -> None:
    found = _BASE.search(line)
    if found is None:
        return
    chain.kind, chain.hook, chain.priority = found[1], found[2], priority_of(found[3])
    policy = _POLICY.search(line)
    chain.policy = policy[1] if policy else "accept"


def _set(name: str, body: list[str], *, is_map: bool) -> NftSet:
    key_type, dynamic, start = "", False, len(body)
    for at, raw in enumerate(body):
        line = raw.strip()
        if line.startswith(("type ", "typeof ")):
            key_type = line.split(None, 1)[1].rstrip(";").partition(":")[0].strip()
        elif line.startswith("flags "):
            dynamic = "dynamic" in line or "timeout" in line
        elif line.startswith("elements"):
            start = at
            break
    rest = body[start:]

    def read() -> list[tuple[Expression, object]]:
        words = Words(tokens("\n".join(rest)))
        if words.accept("elements") and words.accept("=") and words.accept("{"):
            try:
                return words.elements()
            except (NotNft, RecursionError, ValueError):
                return [({"opaque": name}, None)]
        return []

    return NftSet(name, is_map=is_map, dynamic=dynamic, key_type=key_type, read=read)
