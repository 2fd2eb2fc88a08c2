"""One group of a rule's words as a value: `-m NAME` with its options as a match, `-j NAME` with its as a verdict.

A group whose options are all understood becomes a value of the vocabulary. Any other, and any module or target that is not in the
tables below, is kept with its own words as `Opaque` or `OpaqueTarget`. Options are taken out one by one and the rest
must be empty, so an option nobody thought of can't be lost.
"""

from __future__ import annotations

import re

from podwire.rules import vocabulary as v

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ESCAPED = re.compile(r"\\(.)")
PORT_PROTOCOLS = frozenset(("tcp", "udp", "sctp", "dccp", "udplite"))


class _NotUnderstood(Exception):
    """The group has an option outside the vocabulary; it is kept as it is."""


class _Options:
    """The words of a group as options: `take` consumes one with its values and says whether `!` stood before it."""

    __slots__ = ("_words",)

    def __init__(self, words: list[str]) -> None:
        self._words = list(words)

    def _find(self, names: tuple[str, ...], values: int) -> tuple[list[str], bool] | None:
        words = self._words
        for at, word in enumerate(words):
            if word in names:
                found = [plain(value) for value in words[at + 1 : at + 1 + values]]
                if len(found) != values:
                    raise _NotUnderstood
                inverted = at > 0 and words[at - 1] == "!"
                del words[at - inverted : at + 1 + values]
                return found, inverted
        return None

    def take(self, *names: str) -> tuple[str, bool] | None:
        """The value of an option with one value, and whether it is inverted."""
        found = self._find(names, 1)
        return None if found is None else (found[0][0], found[1])

    def take_two(self, name: str) -> tuple[str, str, bool] | None:
        """The same for an option with two values."""
        found = self._find((name,), 2)
        return None if found is None else (found[0][0], found[0][1], found[1])

    def flag(self, *names: str) -> bool:
        """Whether an option without a value is there."""
        found = self._find(names, 0)
        if found is None:
            return False
        if found[1]:
            raise _NotUnderstood
        return True

    def text(self, *names: str) -> str | None:
        """The value of an option that must not be inverted."""
        found = self.take(*names)
        if found is None:
            return None
        if found[1]:
            raise _NotUnderstood
        return found[0]

    def need(self, *names: str) -> tuple[str, bool]:
        """The value of an option that must be there."""
        found = self.take(*names)
        if found is None:
            raise _NotUnderstood
        return found

    def end(self) -> None:
        """Nothing may be left."""
        if self._words:
            raise _NotUnderstood


def plain(word: str) -> str:
    """A word without its quotes."""
    if word[:1] == '"':
        return _ESCAPED.sub(r"\1", word[1:-1])
    if word[:1] == "'":
        return word[1:-1]
    return word


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise _NotUnderstood from None


def _range(text: str, inverted: bool = False) -> v.PortRange:
    first, colon, last = text.partition(":")
    return v.PortRange(_number(first or "0"), _number(last or "65535") if colon else None, inverted)


def _ports(protocol: str, options: _Options) -> v.Match:
    source, destination = options.take("--sport", "--source-port"), options.take("--dport", "--destination-port")
    flags = options.take_two("--tcp-flags") if protocol == "tcp" else None
    if protocol == "tcp" and flags is None and options.flag("--syn"):
        flags = ("FIN,SYN,RST,ACK", "SYN", False)
    options.end()
    return v.Ports(
        protocol,
        None if source is None else _range(*source),
        None if destination is None else _range(*destination),
        None if flags is None else v.TcpFlags(*flags),
    )


def _multiport(options: _Options) -> v.Match:
    for side, long in (("sports", "--source-ports"), ("dports", "--destination-ports"), ("ports", "--port")):
        found = options.take("--" + side, long)
        if found is not None:
            options.end()
            ranges = [_range(text) for text in found[0].split(",")]
            return v.Multiport(side, tuple([(item.first, item.last) for item in ranges]), found[1])
    raise _NotUnderstood


def _masked(text: str) -> tuple[int, int]:
    value, slash, mask = text.partition("/")
    return _number(value, 0), _number(mask, 0) if slash else v.FULL_MASK


def _mark(options: _Options) -> v.Match:
    text, inverted = options.need("--mark")
    options.end()
    return v.Mark(*_masked(text), inverted)


def _connmark(options: _Options) -> v.Match:
    text, inverted = options.need("--mark")
    options.end()
    return v.ConnMark(*_masked(text), inverted)


def _addrtype(options: _Options) -> v.Match:
    source, destination = options.take("--src-type"), options.take("--dst-type")
    limit = "in" if options.flag("--limit-iface-in") else "out" if options.flag("--limit-iface-out") else ""
    options.end()
    return v.AddrType(
        tuple(source[0].split(",")) if source else (),
        tuple(destination[0].split(",")) if destination else (),
        bool(source and source[1]),
        bool(destination and destination[1]),
        limit,
    )


def _conntrack(options: _Options) -> v.Match:
    text, inverted = options.need("--ctstate")
    options.end()
    return v.ConnState(tuple(text.split(",")), inverted)


def _state(options: _Options) -> v.Match:
    text, inverted = options.need("--state")
    options.end()
    return v.ConnState(tuple(text.split(",")), inverted, "state")


def _statistic(options: _Options) -> v.Match:
    mode, _ = options.need("--mode")
    if mode == "random":
        text, inverted = options.need("--probability")
        options.end()
        try:
            return v.Random(round(float(text) * v.CHANCE_UNIT), inverted)
        except (ValueError, OverflowError):
            raise _NotUnderstood from None
    every, inverted = options.need("--every")
    packet = options.text("--packet")
    options.end()
    return v.Nth(_number(every), _number(packet or "0"), inverted)


def _recent(options: _Options) -> v.Match:
    for action in ("set", "rcheck", "update", "remove"):
        found = options._find(("--" + action,), 0)  # noqa: SLF001 - a flag that may be inverted, the only one
        if found is not None:
            break
    else:
        raise _NotUnderstood
    name, mask = options.text("--name") or "DEFAULT", options.text("--mask") or ""
    seconds, hits = _number(options.text("--seconds") or "0"), _number(options.text("--hitcount") or "0")
    reap = options.flag("--reap")
    side = "rdest" if options.flag("--rdest") else "rsource"
    options.flag("--rsource")
    options.end()
    return v.Recent(action, name, seconds, hits, reap, mask, side, found[1])


def _set(options: _Options) -> v.Match:
    found = options.take_two("--match-set")
    options.end()
    if found is None:
        raise _NotUnderstood
    return v.SetMatch(found[0], tuple(found[1].split(",")), found[2])


def _comment(options: _Options) -> v.Match:
    text = options.text("--comment")
    options.end()
    if text is None:
        raise _NotUnderstood
    return v.Comment(text)


def _nfacct(options: _Options) -> v.Match:
    name = options.text("--nfacct-name")
    options.end()
    if not name:
        raise _NotUnderstood
    return v.Accounting(name)


_MODULES: dict[str, Callable[[_Options], v.Match]] = {
    "multiport": _multiport,
    "mark": _mark,
    "connmark": _connmark,
    "addrtype": _addrtype,
    "conntrack": _conntrack,
    "state": _state,
    "statistic": _statistic,
    "recent": _recent,
    "set": _set,
    "comment": _comment,
    "nfacct": _nfacct,
}


def match_of(words: list[str]) -> v.Match:
    """The match of a group `-m NAME …`."""
    name, options = words[1], _Options(words[2:])
    try:
        if name in PORT_PROTOCOLS:
            return _ports(name, options)
        if name in _MODULES:
            return _MODULES[name](options)
    except _NotUnderstood:
        pass
    return v.Opaque(" ".join(words))


def _rewrite(
    kind: type[v.Dnat | v.Snat | v.Redirect | v.Masquerade], option: str, *flags: str
) -> Callable[[_Options], v.Verdict]:
    def parse(options: _Options) -> v.Verdict:
        to = options.text(option)
        found = tuple([flag for flag in flags if options.flag("--" + flag)])
        options.end()
        return kind(to or "", found)

    return parse


def _set_mark(options: _Options) -> v.Verdict:
    for name in ("--set-xmark", "--set-mark", "--or-mark", "--and-mark", "--xor-mark"):
        text = options.text(name)
        if text is None:
            continue
        options.end()
        value, mask = _masked(text)
        if name == "--set-mark":
            mask |= value
        elif name == "--or-mark":
            mask = value
        elif name == "--xor-mark":
            mask = 0
        elif name == "--and-mark":
            value, mask = 0, ~value & v.FULL_MASK
        return v.SetMark(value, mask)
    raise _NotUnderstood


def _reject(options: _Options) -> v.Verdict:
    answer = options.text("--reject-with")
    options.end()
    if answer is None:
        raise _NotUnderstood
    return v.Reject(answer)


_TARGETS: dict[str, Callable[[_Options], v.Verdict]] = {
    "REJECT": _reject,
    "DNAT": _rewrite(v.Dnat, "--to-destination", "random", "persistent"),
    "SNAT": _rewrite(v.Snat, "--to-source", "random", "random-fully", "persistent"),
    "REDIRECT": _rewrite(v.Redirect, "--to-ports", "random"),
    "MASQUERADE": _rewrite(v.Masquerade, "--to-ports", "random", "random-fully"),
    "MARK": _set_mark,
}
_PLAIN_TARGETS: dict[str, v.Verdict] = {"ACCEPT": v.Accept(), "DROP": v.Drop(), "RETURN": v.Return()}


def verdict_of(words: list[str]) -> v.Verdict:
    """The verdict of a group `-j NAME …` or `-g CHAIN`."""
    name = plain(words[1])
    try:
        if words[0] == "-g" and len(words) == 2:
            return v.Goto(name)
        if words[0] == "-j" and name in _TARGETS:
            return _TARGETS[name](_Options(words[2:]))
    except _NotUnderstood:
        return v.OpaqueTarget(" ".join(words))
    if words[0] == "-j" and len(words) == 2:
        # A chain of the user's and a target without options (NOTRACK, TRACE) look alike; who has the table can tell.
        return _PLAIN_TARGETS.get(name) or v.Jump(name)
    return v.OpaqueTarget(" ".join(words))
