"""The output of `nft -j list ruleset` as tables: the form is the one that the walk uses, only the order is put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.explain.nft import NftChain, NftRule, NftSet, NftTable
from podwire.explain.nft_spell import spell_rule

if TYPE_CHECKING:
    from collections.abc import Callable


def read_nft_json(value: Any, where: str = "") -> list[NftTable]:
    """The tables of a decoded document. Objects that are not as libnftables-json(5) says are skipped; never raises."""
    listed = value.get("nftables") if isinstance(value, dict) else None
    tables: dict[tuple[str, str], NftTable] = {}
    for row in listed if isinstance(listed, list) else ():
        if not isinstance(row, dict) or len(row) != 1:
            continue
        kind, item = next(iter(row.items()))
        if not isinstance(item, dict):
            continue
        family, name = str(item.get("family")), str(item.get("name" if kind == "table" else "table"))
        table = tables.get((family, name))
        if table is None and kind in ("table", "chain", "set", "map", "rule"):
            table = tables[family, name] = NftTable(family, name, where)
        if table is not None and kind in _READERS:
            _READERS[kind](table, item)
    return list(tables.values())


def _chain(table: NftTable, item: dict[str, Any]) -> None:
    name = str(item.get("name"))
    chain = table.chains.setdefault(name, NftChain(name))
    if isinstance(item.get("hook"), str):
        priority = item.get("prio")
        chain.kind, chain.hook = str(item.get("type")), item["hook"]
        chain.priority = priority if isinstance(priority, int) else 0
        chain.policy = str(item.get("policy") or "accept")


def _rule(table: NftTable, item: dict[str, Any]) -> None:
    name = str(item.get("chain"))
    chain = table.chains.setdefault(name, NftChain(name))
    listed = item.get("expr")
    statements = [
        statement if isinstance(statement, dict) and len(statement) == 1 else {"opaque": str(statement)[:200]}
        for statement in (listed if isinstance(listed, list) else [])
    ]
    chain.rules.append(NftRule(len(chain.rules) + 1, spell_rule(statements, item.get("comment")), lambda: statements))


def _set(table: NftTable, item: dict[str, Any], *, is_map: bool) -> None:
    name = str(item.get("name"))
    kind = item.get("type")
    flags = item.get("flags")
    key_type = " . ".join([str(part) for part in kind]) if isinstance(kind, list) else str(kind)
    dynamic = isinstance(flags, list | str) and ("dynamic" in flags or "timeout" in flags)
    table.sets[name] = NftSet(name, is_map=is_map, dynamic=dynamic, key_type=key_type, read=_elements(item.get("elem")))


def _elements(listed: Any) -> Callable[[], list[tuple[Any, Any]]]:
    def read() -> list[tuple[Any, Any]]:
        found = []
        for item in listed if isinstance(listed, list) else ():
            key, value = (item[0], item[1]) if isinstance(item, list) and len(item) == 2 else (item, None)
            found.append((_bare(key), _bare(value)))
        return found

    return read


def _bare(value: Any) -> Any:
    """An element without its comment, timeout and counter."""
    if isinstance(value, dict) and isinstance(value.get("elem"), dict):
        return value["elem"].get("val")
    return value


_READERS: dict[str, Callable[[NftTable, dict[str, Any]], None]] = {
    "chain": _chain,
    "rule": _rule,
    "set": lambda table, item: _set(table, item, is_map=False),
    "map": lambda table, item: _set(table, item, is_map=True),
}
