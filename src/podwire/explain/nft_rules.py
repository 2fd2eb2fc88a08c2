"""Statements of nft's language, from the text of a rule to libnftables-json(5)'s objects.

A rule is read from left to right. At words that are not understood the reader goes on to the next word that begins a
statement it knows, and keeps what it skipped as `{"opaque": text}`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.explain.nft_words import COMPARISONS, NotNft, Words, tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.nft import Statement

_IN = {"state", "status", "event", "label"}
_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">="}
_NAT_FLAGS = ("random", "fully-random", "persistent")


def parse_rule(text: str) -> list[Statement]:
    """The statements of a rule. Never raises."""
    words = Words(tokens(text))
    found: list[Statement] = []
    while words.peek():
        start = words.at
        try:
            found.append(_statement(words))
        except (NotNft, RecursionError, ValueError):
            words.at = start + 1
            while words.peek() and words.peek() not in _STARTS:
                words.at += 1
            found.append({"opaque": " ".join(words.words[start : words.at])})
    return found


def _statement(words: Words) -> Statement:
    word = words.peek()
    handler = _HANDLERS.get(word)
    if handler is not None:
        words.at += 1
        return handler(words)
    left = words.left()
    if words.accept("vmap"):
        return {"vmap": {"key": left, "data": words.data()}}
    if words.accept("set"):
        return {"mangle": {"key": left, "value": words.value()}}
    operator = words.take() if words.peek() in COMPARISONS else ""
    operator = _SIGNS.get(operator, operator)
    right = words.value()
    if words.peek() == "/":  # tcp flags syn / fin,syn,rst,ack
        words.at += 1
        left, operator = {"&": [left, words.value()]}, operator or "=="
    if not operator:
        key = left.get("ct", {}).get("key", "") if isinstance(left, dict) else ""
        bits = key in _IN or (isinstance(left, dict) and left.get("payload", {}).get("field") == "flags")
        operator = "in" if bits and not (isinstance(right, dict) and "set" in right) else "=="
    return {"match": {"op": operator, "left": left, "right": right}}


def _verdict(name: str) -> Callable[[Words], Statement]:
    return lambda _: {name: None}


def _to_chain(name: str) -> Callable[[Words], Statement]:
    return lambda words: {name: {"target": words.take()}}


def _counter(words: Words) -> Statement:
    if words.accept("packets"):
        words.take()
        words.need("bytes")
        words.take()
    elif words.accept("name"):
        words.take()
    return {"counter": None}


def _log(words: Words) -> Statement:
    while words.peek() in ("prefix", "level", "group", "snaplen", "queue-threshold", "flags"):
        flags = words.take() == "flags"
        words.take()
        while flags and (words.accept(",") or words.peek() in ("sequence", "options", "ether", "all")):
            words.at += words.peek(-1) == ","
    return {"log": None}


def _limit(words: Words) -> Statement:
    start = words.at
    if words.accept("name"):
        words.take()
    else:
        words.need("rate")
        words.accept("over")
        words.take()
        while words.peek() in ("bytes/second", "kbytes/second", "mbytes/second") or words.peek().startswith("/"):
            words.at += 1
        if words.accept("burst"):
            words.take()
            words.accept("packets", "bytes", "kbytes", "mbytes")
    return {"opaque": "limit " + " ".join(words.words[start : words.at]), "stateful": True}


def _comment(words: Words) -> Statement:
    return {"comment": words.take().strip('"')}


def _reject(words: Words) -> Statement:
    if not words.accept("with"):
        return {"reject": None}
    kind = words.take()
    if kind == "tcp":
        words.need("reset")
        return {"reject": {"type": "tcp reset"}}
    words.accept("type")
    return {"reject": {"type": kind, "expr": words.take()}}


def _nat(name: str) -> Callable[[Words], Statement]:
    def read(words: Words) -> Statement:
        found: dict[str, Any] = {}
        if words.peek() in ("ip", "ip6") and words.peek(1) in ("to", "addr", "prefix"):
            found["family"] = words.take()
        while words.accept("addr", ".", "port", "prefix"):
            pass
        if words.accept("to"):
            while words.peek() == "addr" or (words.peek() == "." and words.peek(1) == "port"):
                words.at += 1
            _target(words, found)
        flags = []
        while words.peek() in _NAT_FLAGS:
            flags.append(words.take())
            words.accept(",")
        return {name: found | ({"flags": flags} if flags else {})}

    return read


def _target(words: Words, found: dict[str, Any]) -> None:
    """`10.0.0.1:80-90`, `[fd00::1]:80`, `:8080`, `10.0.0.1-10.0.0.3`, or an expression with a map."""
    word = words.peek()
    plain = word[:1].isdigit() or word[:1] in "[:"
    if plain and words.peek(1) not in (".", "map", "&", "|"):
        words.at += 1
        found["text"] = word
        return
    found["addr"] = words.value()
    if words.peek().startswith(":") and words.peek() != ":":
        found["port"] = int(words.take()[1:].partition("-")[0])


def _update(operation: str) -> Callable[[Words], Statement]:
    def read(words: Words) -> Statement:
        name = words.take()
        if not name.startswith("@"):
            raise NotNft
        words.need("{")
        element = words.left()
        depth = 1
        while depth:  # timeout, counters and mapped values do not matter here
            depth += {"{": 1, "}": -1}.get(words.take(), 0)
        return {"set": {"op": operation, "elem": element, "set": name}}

    return read


def _xt(words: Words) -> Statement:
    kind = words.take()
    return {"xt": {"type": kind, "name": words.take().strip('"')}}


def _rest(name: str) -> Callable[[Words], Statement]:
    def read(words: Words) -> Statement:
        rest = " ".join(words.words[words.at :])
        words.at = len(words.words)
        return {"target": f"{name} {rest}".strip()}

    return read


def _flow(words: Words) -> Statement:
    words.take()
    words.take()
    return {"flow": None}


_HANDLERS: dict[str, Callable[[Words], Statement]] = {
    **{name: _verdict(name) for name in ("accept", "drop", "return", "continue", "notrack", "last")},
    **{name: _to_chain(name) for name in ("jump", "goto")},
    **{name: _nat(name) for name in ("dnat", "snat", "masquerade", "redirect")},
    **{name: _update(name) for name in ("add", "update", "delete")},
    **{name: _rest(name) for name in ("queue", "tproxy", "fwd", "dup", "synproxy")},
    "counter": _counter,
    "log": _log,
    "limit": _limit,
    "comment": _comment,
    "reject": _reject,
    "xt": _xt,
    "flow": _flow,
}
_STARTS = frozenset(_HANDLERS) | {
    "meta",
    "ct",
    "ip",
    "ip6",
    "tcp",
    "udp",
    "th",
    "fib",
    "iifname",
    "oifname",
    "iif",
    "oif",
    "numgen",
}
