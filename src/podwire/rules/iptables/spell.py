r"""A rule as iptables-save prints it back, byte for byte (iptables 1.8, both backends).

This one form serves for writing too: iptables-restore reads it, so what podwire sends and what the kernel shows can be
compared as text. Spelling is a table from the kind of match to a function; a kind that is missing is a bug, not a
fallback.

Two habits of iptables to know: a value with anything but letters, digits, `_` and `-` is quoted, with `"`, `\` and `'`
escaped by a backslash (xtables_save_string); and nfacct prints two blanks before its name.
"""

from __future__ import annotations

from podwire.rules import vocabulary as v

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PLAIN = frozenset("_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def quote(text: str) -> str:
    """A string value as iptables-save prints it."""
    if text and _PLAIN.issuperset(text):
        return text
    for special in ("\\", '"', "'"):
        if special in text:
            text = text.replace(special, "\\" + special)
    return f'"{text}"'


def _port_range(option: str, ports: v.PortRange | None) -> str:
    if ports is None:
        return ""
    text = str(ports.first) if ports.first == ports.last else f"{ports.first}:{ports.last}"
    return f"{' !' if ports.inverted else ''} --{option} {text}"


def _ports(match: v.Ports) -> str:
    if match.source is None and match.flags is None and match.destination is not None:
        return f"-m {match.protocol}{_port_range('dport', match.destination)}"
    text = f"-m {match.protocol}{_port_range('sport', match.source)}{_port_range('dport', match.destination)}"
    if match.flags is not None:
        flags = match.flags
        text += f"{' !' if flags.inverted else ''} --tcp-flags {flags.mask} {flags.comp}"
    return text


def _multiport(match: v.Multiport) -> str:
    ports = ",".join([str(first) if first == last else f"{first}:{last}" for first, last in match.ranges])
    return f"-m multiport{' !' if match.inverted else ''} --{match.side} {ports}"


def _masked(module: str) -> Callable[[Any], str]:
    def spell(match: v.Mark | v.ConnMark) -> str:
        mask = "" if match.mask == v.FULL_MASK else f"/{match.mask:#x}"
        return f"-m {module}{' !' if match.inverted else ''} --mark {match.value:#x}{mask}"

    return spell


def _addrtype(match: v.AddrType) -> str:
    text = "-m addrtype"
    if match.source:
        text += f"{' !' if match.source_inverted else ''} --src-type {','.join(match.source)}"
    if match.destination:
        text += f"{' !' if match.destination_inverted else ''} --dst-type {','.join(match.destination)}"
    if match.limit:
        text += f" --limit-iface-{match.limit}"
    return text


def _connstate(match: v.ConnState) -> str:
    option = "ctstate" if match.module == "conntrack" else "state"
    return f"-m {match.module}{' !' if match.inverted else ''} --{option} {','.join(match.states)}"


def _random(match: v.Random) -> str:
    inverted = " !" if match.inverted else ""
    return f"-m statistic --mode random{inverted} --probability {match.chance / v.CHANCE_UNIT:.11f}"


def _nth(match: v.Nth) -> str:
    inverted = " !" if match.inverted else ""
    return f"-m statistic --mode nth{inverted} --every {match.every} --packet {match.packet}"


def _recent(match: v.Recent) -> str:
    text = f"-m recent{' !' if match.inverted else ''} --{match.action}"
    if match.seconds:
        text += f" --seconds {match.seconds}"
    if match.reap:
        text += " --reap"
    if match.hitcount:
        text += f" --hitcount {match.hitcount}"
    mask = f" --mask {match.mask}" if match.mask else ""
    return f"{text} --name {match.name}{mask} --{match.side}"


def _set(match: v.SetMatch) -> str:
    return f"-m set{' !' if match.inverted else ''} --match-set {match.name} {','.join(match.sides)}"


def _header(option: str) -> Callable[[Any], str]:
    def spell(match: Any) -> str:
        return f"! -{option} {match.value}" if match.inverted else f"-{option} {match.value}"

    return spell


_MATCHES: dict[type[v.Match], Callable[[Any], str]] = {
    v.Source: _header("s"),
    v.Destination: _header("d"),
    v.InInterface: _header("i"),
    v.OutInterface: _header("o"),
    v.Protocol: _header("p"),
    v.Ports: _ports,
    v.Multiport: _multiport,
    v.Mark: _masked("mark"),
    v.ConnMark: _masked("connmark"),
    v.AddrType: _addrtype,
    v.ConnState: _connstate,
    v.Random: _random,
    v.Nth: _nth,
    v.Recent: _recent,
    v.SetMatch: _set,
    v.Comment: lambda match: "-m comment --comment " + quote(match.text),
    v.Accounting: lambda match: f"-m nfacct --nfacct-name  {match.name}",
    v.Opaque: lambda match: match.text,
}


def _rewrite(target: str, option: str) -> Callable[[Any], str]:
    def spell(verdict: v.Dnat | v.Snat | v.Redirect | v.Masquerade) -> str:
        to = f" --{option} {verdict.to}" if verdict.to else ""
        return f"-j {target}{to}" + "".join([f" --{flag}" for flag in verdict.flags])

    return spell


_VERDICTS: dict[type[v.Verdict], Callable[[Any], str]] = {
    v.Accept: lambda _: "-j ACCEPT",
    v.Drop: lambda _: "-j DROP",
    v.Return: lambda _: "-j RETURN",
    v.Jump: lambda verdict: "-j " + verdict.chain,
    v.Goto: lambda verdict: "-g " + verdict.chain,
    v.Reject: lambda verdict: f"-j REJECT --reject-with {verdict.answer}",
    v.Dnat: _rewrite("DNAT", "to-destination"),
    v.Snat: _rewrite("SNAT", "to-source"),
    v.Redirect: _rewrite("REDIRECT", "to-ports"),
    v.Masquerade: _rewrite("MASQUERADE", "to-ports"),
    v.SetMark: lambda verdict: f"-j MARK --set-xmark {verdict.value:#x}/{verdict.mask:#x}",
    v.OpaqueTarget: lambda verdict: verdict.text,
}


def spell_match(match: v.Match) -> str:
    """One match: `-s 10.0.0.0/8`, `-m mark --mark 0x1`."""
    return _MATCHES[type(match)](match)


def spell_verdict(verdict: v.Verdict) -> str:
    """One verdict: `-j ACCEPT`."""
    return _VERDICTS[type(verdict)](verdict)


def spell(rule: v.Rule) -> str:
    """The rule without `-A CHAIN`."""
    parts = [_MATCHES[type(match)](match) for match in rule.matches]
    if rule.verdict is not None:
        parts.append(_VERDICTS[type(rule.verdict)](rule.verdict))
    return " ".join(parts)
