"""nft listings as far as the checks need them: base chains, and per rule its jumps, its DNAT, its verdict and what it asks.

Reads `nft list ruleset` and `nft -j list ruleset` into the same values. It is no evaluator: a rule knows whether it asks for a local
destination or for a destination address at all, not for which packets it holds.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from podwire.explain.snapshot_words import inner, rows


@dataclass(slots=True)
class NftRule:
    """A rule: `text` as listed (or what stands for it), and what it does."""

    text: str
    jumps: list[str] = field(default_factory=list)
    dnat: str = ""
    verdict: str = ""
    asks_local: bool = False
    asks_daddr: bool = False
    ports: str = ""


@dataclass(slots=True)
class NftChain:
    """A chain; `hook` is '' for one that is only jumped to."""

    table: tuple[str, str]
    name: str
    hook: str = ""
    kind: str = ""
    priority: str = ""
    policy: str = ""
    rules: list[NftRule] = field(default_factory=list)


@dataclass(slots=True)
class NftTables:
    """All chains by (family, table) and name; maps and sets by name with their elements as text."""

    names: set[tuple[str, str]] = field(default_factory=set)
    chains: dict[tuple[tuple[str, str], str], NftChain] = field(default_factory=dict)
    sets: dict[tuple[tuple[str, str], str], str] = field(default_factory=dict)


_TABLE = re.compile(r"^\s*table (\S+) (\S+) \{")
_CHAIN = re.compile(r"^\s*(chain|set|map) (\S+) \{")
_BASE = re.compile(r"type (\S+) hook (\S+)(?: devices? .*?)? priority ([^;]+);(?: policy (\w+);)?")


def read_nft(text: str) -> NftTables:
    """Read either form; what is not understood is left out."""
    if text.lstrip()[:1] == "{":
        try:
            return _from_json(json.loads(text))
        except (ValueError, RecursionError):
            return NftTables()
    return _from_text(text)


def _from_text(text: str) -> NftTables:
    found = NftTables()
    table: tuple[str, str] | None = None
    kind, name = "", ""
    body: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        head = _TABLE.match(line)
        if head and not name:
            table = (head.group(1), head.group(2))
            found.names.add(table)
        elif table and not name and (inner := _CHAIN.match(line)):
            kind, name, body = inner.group(1), inner.group(2), []
        elif name and stripped == "}":
            assert table is not None
            _close(found, table, kind, name, body)
            name = ""
        elif name:
            body.append(stripped)
        elif stripped == "}":
            table = None
    return found


def _close(found: NftTables, table: tuple[str, str], kind: str, name: str, body: list[str]) -> None:
    if kind != "chain":
        found.sets[table, name] = "\n".join(body)
        return
    chain = NftChain(table, name)
    for line in body:
        base = _BASE.search(line)
        if base:
            chain.kind, chain.hook, chain.priority = base.group(1), base.group(2), base.group(3).strip()
            chain.policy = base.group(4) or "accept"
        elif line and not line.startswith(("comment ", "#")):
            chain.rules.append(_rule(line))
    found.chains[table, name] = chain


def _rule(line: str) -> NftRule:
    bare = re.sub(r'"[^"]*"', '""', line)
    dnat = re.search(r"\bdnat (?:ip6? )?(?:addr \. port )?to (.+?)(?: comment|$)", bare)
    ports = re.search(r"\b(tcp|udp|sctp|th) dport (\{[^}]*\}|\S+)", bare)
    verdict = re.search(r"\b(accept|drop|reject)\b", bare)
    return NftRule(
        line,
        jumps=re.findall(r"\b(?:jump|goto) ([^\s,}]+)", bare),
        dnat=dnat.group(1) if dnat else "",
        verdict=verdict.group(1) if verdict else "",
        asks_local="fib daddr" in bare and "local" in bare,
        asks_daddr=re.search(r"\bip6? daddr (?!!=)\S", bare) is not None,
        ports=f"{ports.group(2)}/{ports.group(1)}" if ports else "",
    )


def _from_json(value: Any) -> NftTables:
    found = NftTables()
    for row in value.get("nftables", []) if isinstance(value, dict) else []:
        kind, item = next(iter(row.items()), ("", None)) if isinstance(row, dict) else ("", None)
        if not isinstance(item, dict):
            continue
        table = (str(item.get("family", "")), str(item.get("table", item.get("name", ""))))
        name = str(item.get("name", ""))
        if kind == "table":
            found.names.add(table)
        elif kind == "chain":
            priority, policy = str(item.get("prio", "")), str(item.get("policy", "accept"))
            found.chains[table, name] = NftChain(
                table, name, str(item.get("hook", "")), str(item.get("type", "")), priority, policy
            )
        elif kind in ("set", "map"):
            found.sets[table, name] = json.dumps(item.get("elem", []))
        elif kind == "rule":
            chain = found.chains.get((table, str(item.get("chain", ""))))
            if chain is not None:
                chain.rules.append(_json_rule(item))
    return found


def _json_rule(item: dict[str, Any]) -> NftRule:
    rule = NftRule(json.dumps(item.get("expr", []))[:400])
    for part in rows(item.get("expr")):
        for word in ("jump", "goto"):
            if isinstance(part.get(word), dict):
                rule.jumps.append(str(part[word].get("target", "")))
        if "dnat" in part and isinstance(part["dnat"], dict):
            rule.dnat = f"{part['dnat'].get('addr', '')}:{part['dnat'].get('port', '')}"
        for word in ("accept", "drop", "reject"):
            if word in part:
                rule.verdict = word
        if "vmap" in part:
            rule.jumps += re.findall(r'"target": "([^"]+)"', json.dumps(part["vmap"]))
        _json_match(part.get("match"), rule)
        _json_match(
            {"left": inner(part, "vmap").get("key"), "op": "in"} if isinstance(part.get("vmap"), dict) else None,
            rule,
        )
        if "xt" in part:
            rule.asks_local = rule.asks_daddr = True  # a rule of iptables-nft: what it asks is in iptables' own listing
    return rule


def _json_match(match: Any, rule: NftRule) -> None:
    if not isinstance(match, dict) or match.get("op") == "!=":
        return
    left = json.dumps(match.get("left"))
    if '"fib"' in left and "local" in json.dumps(match.get("right")):
        rule.asks_local = True
    if '"field": "daddr"' in left:
        rule.asks_daddr = True
    if '"field": "dport"' in left:
        rule.ports = json.dumps(match.get("right"))
