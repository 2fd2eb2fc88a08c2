"""Expressions of nft's language, from the words of a rule to libnftables-json(5)'s objects.

`Words` walks over the words of a rule; its methods take what they understand and raise NotNft at what they do not.
A protocol's name is a header only when one of its fields follows (`tcp dport`), else a value (`meta l4proto tcp`).
"""

from __future__ import annotations

import re
from typing import Any

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|[{}(),;]|[!=<>]=|<<|>>|[&|^=<>](?=\s|$)|[&|^]|!(?=\s)|[^\s{}(),;"<>&|^=!]+|[<>=!]'
)
_NUMBER = re.compile(r"^(?:0x[0-9a-fA-F]+|\d+)$")
_PREFIX = re.compile(r"^([0-9a-fA-F:.]+)/(\d+)$")
_RANGE = re.compile(
    r"^(\d+|0x[0-9a-fA-F]+|\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F:.]*)-(\d+|0x[0-9a-fA-F]+|\d+\.\d+\.\d+\.\d+|[0-9a-fA-F]*:[0-9a-fA-F:.]*)$"
)
_PORTS = frozenset({"sport", "dport"})
_HEADERS: dict[str, frozenset[str]] = {
    "ip": frozenset({"saddr", "daddr", "protocol", "ttl", "length", "id", "dscp", "ecn", "version", "hdrlength", "frag-off", "checksum"}),
    "ip6": frozenset({"saddr", "daddr", "nexthdr", "hoplimit", "length", "dscp", "ecn", "flowlabel", "version"}),
    "tcp": _PORTS | {"flags", "sequence", "ackseq", "doff", "window", "checksum", "urgptr", "reserved"},
    "udp": _PORTS | {"length", "checksum"},
    "udplite": _PORTS | {"checksum"},
    "sctp": _PORTS | {"vtag", "checksum"},
    "dccp": _PORTS | {"type"},
    "th": _PORTS,
    "icmp": frozenset({"type", "code", "id", "sequence", "mtu", "gateway", "checksum"}),
    "icmpv6": frozenset({"type", "code", "id", "sequence", "mtu", "checksum"}),
    "ether": frozenset({"saddr", "daddr", "type"}),
    "vlan": frozenset({"id", "type", "pcp", "dei"}),
    "arp": frozenset({"operation", "htype", "ptype", "saddr", "daddr"}),
}  # fmt: skip
_META = frozenset(
    ["length", "protocol", "priority", "mark", "iif", "iifname", "iiftype", "oif", "oifname", "oiftype", "skuid", "skgid", "nftrace", "rtclassid", "ibriport", "obriport", "ibridgename", "obridgename", "pkttype", "cpu", "iifgroup", "oifgroup", "cgroup", "nfproto", "l4proto", "secpath", "iifkind", "oifkind", "time", "hour", "day", "sdif", "sdifname", "random"]
)  # fmt: skip
#: Keys of meta that are printed without the word.
_BARE_META = frozenset(
    [
        "iif",
        "iifname",
        "iiftype",
        "oif",
        "oifname",
        "oiftype",
        "iifgroup",
        "oifgroup",
        "mark",
        "skuid",
        "skgid",
        "nftrace",
        "pkttype",
        "cpu",
        "rtclassid",
    ]
)
_OPERATORS = {
    "&": "&",
    "|": "|",
    "^": "^",
    "<<": "<<",
    ">>": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">=", "eq", "ne", "lt", "gt", "le", "ge"})


class NotNft(Exception):
    """The words from here on are not understood."""


def tokens(text: str) -> list[str]:
    """The words and signs of a text. Quoted strings keep their quotes."""
    return _TOKEN.findall(text)


def literal(word: str) -> Any:
    """A value: a number, a prefix, a range, or the word itself."""
    if word[:1] == '"':
        return word[1:-1]
    if _NUMBER.match(word):
        return int(word, 0) if not word.isdigit() else int(word)
    found = _PREFIX.match(word)
    if found is not None:
        return {"prefix": {"addr": found[1], "len": int(found[2])}}
    found = _RANGE.match(word)
    if found is not None:
        return {"range": [literal(found[1]), literal(found[2])]}
    return word


class Words:
    """A position in the words of a rule."""

    __slots__ = ("at", "words")

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.at = 0

    def peek(self, ahead: int = 0) -> str:
        """The word at the position, '' behind the end."""
        at = self.at + ahead
        return self.words[at] if at < len(self.words) else ""

    def take(self) -> str:
        """The word, and one further."""
        word = self.peek()
        if not word:
            raise NotNft
        self.at += 1
        return word

    def accept(self, *words: str) -> bool:
        """Take the word if it is one of these."""
        if self.peek() in words and self.peek():
            self.at += 1
            return True
        return False

    def need(self, word: str) -> None:
        """Take this word. Raises NotNft."""
        if not self.accept(word):
            raise NotNft

    def number(self) -> int:
        """A number."""
        value = literal(self.take())
        if not isinstance(value, int):
            raise NotNft
        return value

    # -- expressions -------------------------------------------------------------------------------------------------

    def left(self) -> Any:
        """What a packet is asked: header fields, meta, ct, fib, numgen, hashes, joined by operators and dots."""
        parts = [self._binary(self._selector())]
        while self.accept("."):
            parts.append(self._binary(self._selector()))
        return parts[0] if len(parts) == 1 else {"concat": parts}

    def value(self) -> Any:
        """What it is compared with or becomes: a value, a list, a set, `@name`, or an expression of the packet."""
        if self.accept("{"):
            return self._set()
        first = self._operand()
        if self.peek() == ",":
            items = [first]
            while self.accept(","):
                items.append(self._operand())
            return items
        parts = [first]
        while self.accept("."):
            parts.append(self._operand())
        joined = parts[0] if len(parts) == 1 else {"concat": parts}
        if self.peek() == "map":
            self.at += 1
            return {"map": {"key": joined, "data": self.data()}}
        return joined

    def data(self) -> Any:
        """The map behind `map` or `vmap`: `@name` or `{ key : value, … }`."""
        if self.peek().startswith("@"):
            return self.take()
        self.need("{")
        return self._set()

    def _operand(self) -> Any:
        return self._binary(self._selector() if self._at_selector() else self._word())

    def _word(self) -> Any:
        if self.accept("("):
            inner = self._operand()
            while self.accept(","):
                inner = {"|": [inner, self._operand()]}
            self.need(")")
            return inner
        word = self.take()
        if word in "{}(),;:." or word in COMPARISONS:
            raise NotNft
        return literal(word)

    def _binary(self, left: Any) -> Any:
        while self.peek() in _OPERATORS:
            operator = _OPERATORS[self.take()]
            right = self._selector() if self._at_selector() else self._word()
            left = {operator: [left, right]}
        return left

    def _at_selector(self) -> bool:
        word, following = self.peek(), self.peek(1)
        if word in _HEADERS:
            return following in _HEADERS[word]
        if word == "meta":
            return following in _META
        if word in ("fib", "numgen", "jhash", "symhash"):
            return bool(following)
        return (word == "ct" and following not in (".", "")) or word in _BARE_META

    def _selector(self) -> Any:
        word = self.peek()
        if not self._at_selector():
            if word.startswith("@") and word.count(",") == 2:
                self.take()
                base, offset, length = word[1:].split(",")
                return {"payload": {"base": base, "offset": int(offset), "len": int(length)}}
            raise NotNft
        self.at += 1
        if word in _HEADERS:
            return {"payload": {"protocol": word, "field": self.take()}}
        if word == "meta":
            return {"meta": {"key": self.take()}}
        if word in _BARE_META:
            return {"meta": {"key": word}}
        return {
            "ct": self._ct,
            "fib": self._fib,
            "numgen": self._numgen,
            "jhash": self._jhash,
            "symhash": self._symhash,
        }[word]()

    def _ct(self) -> Any:
        found: dict[str, Any] = {}
        if self.peek() in ("original", "reply"):
            found["dir"] = self.take()
        key = self.take()
        if key in ("ip", "ip6"):
            key = f"{key} {self.take()}"
        return {"ct": {"key": key, **found}}

    def _fib(self) -> Any:
        flags = [self.take()]
        while self.accept("."):
            flags.append(self.take())
        return {"fib": {"result": self.take(), "flags": flags}}

    def _offset(self) -> int:
        return self.number() if self.accept("offset") else 0

    def _numgen(self) -> Any:
        mode = self.take()
        self.need("mod")
        return {"numgen": {"mode": mode, "mod": self.number(), "offset": self._offset()}}

    def _jhash(self) -> Any:
        parts = [self._selector()]
        while self.accept("."):
            parts.append(self._selector())
        self.need("mod")
        found = {"expr": parts[0] if len(parts) == 1 else {"concat": parts}, "mod": self.number()}
        if self.accept("seed"):
            found["seed"] = self.number()
        return {"jhash": {**found, "offset": self._offset()}}

    def _symhash(self) -> Any:
        self.need("mod")
        return {"symhash": {"mod": self.number(), "offset": self._offset()}}

    # -- sets --------------------------------------------------------------------------------------------------------

    def _set(self) -> Any:
        """Behind `{`: keys, or pairs of a key and a value; up to `}`."""
        items: list[Any] = []
        while not self.accept("}"):
            key = self._element()
            items.append([key, self._mapped()] if self.accept(":") else key)
            if not self.accept(",") and self.peek() != "}":
                raise NotNft
        return {"set": items}

    def _element(self) -> Any:
        parts = [self._word()]
        while self.accept("."):
            parts.append(self._word())
        while self.peek() not in (",", "}", ":", ""):  # timeout, expires, comment, counter …
            self.at += 1
        return parts[0] if len(parts) == 1 else {"concat": parts}

    def _mapped(self) -> Any:
        word = self.peek()
        if word in ("accept", "drop", "return", "continue"):
            self.at += 1
            return {word: None}
        if word in ("jump", "goto"):
            self.at += 1
            return {word: {"target": self.take()}}
        return self._element()

    def elements(self) -> list[tuple[Any, Any]]:
        """The elements of a named set or map behind `elements = {`."""
        return [(item[0], item[1]) if isinstance(item, list) else (item, None) for item in self._set()["set"]]
