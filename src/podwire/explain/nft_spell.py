"""Statements of libnftables-json(5) as a person reads them: near to what `nft list` prints, for showing, not for loading."""

from __future__ import annotations

from typing import Any


def spell_rule(statements: list[Any], comment: object = None) -> str:
    """A rule in one line."""
    text = " ".join([word for word in (_statement(one) for one in statements) if word])
    return f'{text} comment "{comment}"' if isinstance(comment, str) else text


def _statement(statement: Any) -> str:
    kind, value = next(iter(statement.items()))
    if kind == "match" and isinstance(value, dict):
        operator = value.get("op")
        sign = "" if operator in ("==", "in") else f"{operator} "
        return f"{expression(value.get('left'))} {sign}{expression(value.get('right'))}"
    if kind == "vmap" and isinstance(value, dict):
        return f"{expression(value.get('key'))} vmap {expression(value.get('data'))}"
    if kind == "mangle" and isinstance(value, dict):
        return f"{expression(value.get('key'))} set {expression(value.get('value'))}"
    if kind in ("jump", "goto") and isinstance(value, dict):
        return f"{kind} {value.get('target')}"
    if kind in ("dnat", "snat", "redirect", "masquerade"):
        return _nat(kind, value if isinstance(value, dict) else {})
    if kind == "reject":
        return (
            "reject"
            if not isinstance(value, dict)
            else f"reject with {value.get('type')} {value.get('expr') or ''}".rstrip()
        )
    if kind == "set" and isinstance(value, dict):
        return f"{value.get('op')} {value.get('set')} {{ {expression(value.get('elem'))} }}"
    if kind == "opaque":
        return str(value)
    if kind == "xt" and isinstance(value, dict):
        return f"xt {value.get('type')} {value.get('name')}"
    return kind if value is None or kind in ("counter", "log", "limit") else f"{kind} {expression(value)}"


def _nat(kind: str, value: dict[str, Any]) -> str:
    if "addr" not in value and "port" not in value and "text" not in value:
        target = ""
    else:
        port = f":{expression(value['port'])}" if "port" in value else ""
        target = f" to {expression(value.get('addr', value.get('text', '')))}{port}"
    flags = value.get("flags")
    words = flags if isinstance(flags, list) else [flags] if isinstance(flags, str) else []
    return f"{kind}{target}{''.join([' ' + str(word) for word in words])}"


def expression(value: Any, depth: int = 0) -> str:
    """An expression in one line."""
    if depth > 12:
        return "…"
    if isinstance(value, list):
        return ",".join([expression(one, depth + 1) for one in value])
    if not isinstance(value, dict) or len(value) != 1:
        return str(value) if not isinstance(value, dict) else "…"
    kind, inner = next(iter(value.items()))
    if kind == "set" and isinstance(inner, list):
        items = [
            " : ".join([expression(part, depth + 1) for part in one])
            if isinstance(one, list)
            else expression(one, depth + 1)
            for one in inner
        ]
        return "{ " + ", ".join(items) + " }"
    if kind in ("concat", "range") and isinstance(inner, list):
        return (" . " if kind == "concat" else "-").join([expression(one, depth + 1) for one in inner])
    if kind in ("&", "|", "^", "<<", ">>") and isinstance(inner, list):
        return f" {kind} ".join([expression(one, depth + 1) for one in inner])
    if not isinstance(inner, dict):
        return kind if inner is None else f"{kind} {expression(inner, depth + 1)}"
    return _selector(kind, inner, depth)


def _selector(kind: str, inner: dict[str, Any], depth: int) -> str:
    if kind == "prefix":
        return f"{inner.get('addr')}/{inner.get('len')}"
    if kind == "payload":
        return f"{inner.get('protocol', '@' + str(inner.get('base')))} {inner.get('field', '')}".strip()
    if kind in ("meta", "ct"):
        return f"{kind} {inner.get('dir', '')} {inner.get('key')}".replace("  ", " ")
    if kind == "fib":
        flags = inner.get("flags")
        return f"fib {' . '.join(flags) if isinstance(flags, list) else flags} {inner.get('result')}"
    if kind == "numgen":
        return f"numgen {inner.get('mode')} mod {inner.get('mod')}"
    if kind == "map":
        return f"{expression(inner.get('key'), depth + 1)} map {expression(inner.get('data'), depth + 1)}"
    if kind in ("jump", "goto"):
        return f"{kind} {inner.get('target')}"
    if kind == "elem":
        return expression(inner.get("val"), depth + 1)
    return kind + "".join([f" {name} {expression(one, depth + 1)}" for name, one in inner.items()])
