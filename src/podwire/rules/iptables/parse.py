"""A rule of iptables-save (or of a file for iptables-restore) back to a value.

The text is cut into words, the words into groups: header options, one group for each `-m NAME` with its options, and the
target. `groups` makes values of them, and keeps as it is what it does not understand.

More spellings are read than iptables-save prints, because rules also come from scripts: long option names,
`-s` without a prefix length, `--set-mark`/`--or-mark`, `-p tcp --dport` without `-m tcp`. They become the same values.
What does not parse at all raises RuleSyntaxError, which says the rule; it never raises anything else.
"""

from __future__ import annotations

import re

from podwire.errors import PodwireError
from podwire.rules import vocabulary as v
from podwire.rules.iptables.groups import PORT_PROTOCOLS, match_of, plain, verdict_of

_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|\S+')

_HEADER: dict[str, type[v.Source | v.Destination | v.InInterface | v.OutInterface | v.Protocol]] = {
    "-s": v.Source,
    "-d": v.Destination,
    "-i": v.InInterface,
    "-o": v.OutInterface,
    "-p": v.Protocol,
}
_ORDER = {kind: place for place, kind in enumerate(_HEADER.values())}
_LONG = {
    "--source": "-s",
    "--src": "-s",
    "--destination": "-d",
    "--dst": "-d",
    "--in-interface": "-i",
    "--out-interface": "-o",
    "--protocol": "-p",
    "--proto": "-p",
    "--match": "-m",
    "--jump": "-j",
    "--goto": "-g",
}
# Options whose value is free text, which may look like an option itself: a comment "-m" is not quoted.
_FREE_TEXT = frozenset(("--comment", "--log-prefix", "--nflog-prefix", "--name", "--string"))


class RuleSyntaxError(PodwireError):
    """A text that is no rule."""


def _prefix(text: str) -> str:
    """An address as iptables-save prints it: with a prefix length."""
    address, slash, mask = text.partition("/")
    if not slash:
        return f"{address}/{128 if ':' in address else 32}"
    if "." in mask:  # a dotted mask; one that is no prefix is printed dotted too
        bits = "".join([f"{int(part):08b}" for part in mask.split(".") if part.isdigit()])
        if len(bits) == 32 and "01" not in bits:
            return f"{address}/{bits.count('1')}"
    return text


def _header(option: str, value: str, inverted: bool) -> v.Match | None:
    kind = _HEADER[option]
    value = plain(value)
    if kind in (v.Source, v.Destination):
        value = _prefix(value)
        if value.endswith("/0") and not inverted:
            return None  # holds always; the kernel keeps no such match
    return kind(value, inverted)


def _words(text: str) -> list[str]:
    return text.split() if '"' not in text and "'" not in text else _WORD.findall(text)


def parse(text: str) -> v.Rule:
    """The rule that `text`, without `-A CHAIN`, says. Raises RuleSyntaxError."""
    headers: list[v.Match] = []
    others: list[v.Match] = []
    verdict: v.Verdict | None = None
    protocol = ""
    words = _words(text)
    at, end = 0, len(words)
    while at < end:
        word = words[at]
        inverted = word == "!"
        option = words[at + 1] if inverted and at + 1 < end else word
        option = _LONG.get(option, option)
        start, at = at, at + 1 + inverted
        if option in _HEADER:
            if at >= end:
                raise RuleSyntaxError("reading the rule", text, f"{option} has no value")
            match = _header(option, words[at], inverted)
            at += 1
            if isinstance(match, v.Protocol):
                protocol = match.value
            if match is not None:
                headers.append(match)
            continue
        while at < end and not _starts_group(words, at):
            at += 1
        group = words[start:at]
        if not inverted:
            group[0] = option
        if option in ("-j", "-g"):
            if inverted or len(group) < 2 or verdict is not None:
                raise RuleSyntaxError("reading the rule", text, "its target cannot be read")
            verdict = verdict_of(group)
        elif option == "-m" and not inverted and len(group) >= 2:
            others.append(match_of(group))
        elif option.startswith("--") and protocol in PORT_PROTOCOLS:
            others.append(match_of(["-m", protocol, *group]))
        elif option == "-f":
            headers.append(v.Opaque(" ".join(group)))
        else:
            raise RuleSyntaxError("reading the rule", text, f"{option!r} is no option of iptables")
    headers.sort(key=lambda match: _ORDER.get(type(match), len(_ORDER)))  # type: ignore[arg-type]  # Opaque goes last
    return v.Rule((*headers, *others), verdict)


def _starts_group(words: list[str], at: int) -> bool:
    if words[at - 1] in _FREE_TEXT:
        return False
    word = words[at]
    if word == "!" and at + 1 < len(words):
        word = words[at + 1]
    word = _LONG.get(word, word)
    return word in _HEADER or word in ("-m", "-j", "-g", "-f")
