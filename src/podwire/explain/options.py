"""Matches that the vocabulary of rules keeps as text, evaluated from their words where their meaning is plain.

Those of a packet (`owner`, `physdev`, `icmp`, `iprange`, `pkttype`, the rest of `conntrack`) have an answer; those of time and
volume (`limit`, `hashlimit`, `connlimit`, `quota`, `time`) have none, and belong to their own rule; those nobody here
knows are left to the caller. One option that is not understood leaves the whole match to the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.addresses import Ip
from podwire.explain.packet import UNKNOWN, Answer, Packet, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.facts import Facts

    Test = Callable[[Packet, Facts], Answer]
    Option = tuple[str, str, bool]  # name, value, inverted

_STATEFUL = frozenset(
    {"limit", "hashlimit", "connlimit", "quota", "quota2", "time", "connbytes", "rateest", "connrate"}
)
_ICMP = {
    "any": None, "255": None, "255/0-255": None, "echo-reply": (0, None), "pong": (0, None), "destination-unreachable": (3, None),
    "network-unreachable": (3, 0), "host-unreachable": (3, 1), "protocol-unreachable": (3, 2), "port-unreachable": (3, 3),
    "fragmentation-needed": (3, 4), "source-quench": (4, None), "redirect": (5, None), "echo-request": (8, None), "ping": (8, None),
    "router-advertisement": (9, None), "router-solicitation": (10, None), "time-exceeded": (11, None),
    "parameter-problem": (12, None), "timestamp-request": (13, None), "timestamp-reply": (14, None),
}  # fmt: skip
_ICMP6 = {
    "destination-unreachable": (1, None), "packet-too-big": (2, None), "time-exceeded": (3, None),
    "parameter-problem": (4, None), "echo-request": (128, None), "echo-reply": (129, None),
    "router-solicitation": (133, None), "router-advertisement": (134, None), "neighbour-solicitation": (135, None),
    "neighbor-solicitation": (135, None), "neighbour-advertisement": (136, None), "neighbor-advertisement": (136, None),
    "redirect": (137, None),
}  # fmt: skip


def _options(words: list[str]) -> list[Option] | None:
    found: list[Option] = []
    at = 0
    inverted = False
    while at < len(words):
        word = words[at]
        at += 1
        if word == "!":
            inverted = True
            continue
        if not word.startswith("--"):
            return None
        values = []
        while at < len(words) and not words[at].startswith("--") and words[at] != "!":
            values.append(words[at])
            at += 1
        found.append((word[2:], " ".join(values), inverted))
        inverted = False
    return found


def test_of_options(text: str, place: str) -> Test | None:
    """The test for `-m NAME --option value …`; None when it is not known here."""
    words = text.split()
    if words == ["-f"]:
        return lambda _p, _f: False  # a packet that is asked about is whole
    if words[:2] == ["!", "-f"]:
        return lambda _p, _f: True
    if len(words) < 2 or words[0] != "-m":
        return None
    name = words[1]
    if name in _STATEFUL:
        return lambda _p, _f: Unknown(f"{place} {text}", text)
    build = _BUILDERS.get(name)
    options = _options(words[2:])
    if build is None or options is None:
        return None
    tests = [build(option) for option in options]
    if any(test is None for test in tests):
        return None

    def all_hold(packet: Packet, facts: Facts) -> Answer:
        unknown: Unknown | None = None
        for (_, _, inverted), test in zip(options, tests, strict=True):
            answer = test(packet, facts)  # type: ignore[misc]  # None was excluded above
            if isinstance(answer, Unknown):
                unknown = unknown or answer._replace(
                    text=text.replace("! ", ""), inverted=answer.inverted is not inverted
                )
            elif answer is inverted:
                return False
        if unknown is not None and len(options) > 1:
            return Unknown(text, text)
        return unknown if unknown is not None else True

    return all_hold


def _owner(option: Option) -> Test | None:
    """xt_owner: only packets of the node's own have one."""
    name, value, _ = option
    if name == "socket-exists":
        return lambda packet, _: packet.own
    if name not in ("uid-owner", "gid-owner"):
        return None
    low, _, high = value.partition("-")
    if not low.isdigit() or (high and not high.isdigit()):
        users = {"root": 0}
        if low not in users:
            return None
        low = str(users[low])

    def test(packet: Packet, _: Facts) -> Answer:
        owner = packet.uid if name == "uid-owner" else packet.gid
        if not packet.own:
            return False
        if owner is None:
            return Unknown(f"{name} {value}", f"the sender's {name[:3]} is {value}")
        return int(low) <= owner <= int(high or low)

    return test


def _physdev(option: Option) -> Test | None:
    name, value, _ = option

    def fits(pattern: str, device: str, key: str) -> Answer:
        if device == UNKNOWN:
            return Unknown(f"{key} {pattern}", f"the frame's bridge port ({key}) is {pattern}")
        return device.startswith(pattern[:-1]) if pattern.endswith("+") else device == pattern

    if name == "physdev-in":
        return lambda packet, _: fits(value, packet.physin, name) if packet.physin else False
    if name == "physdev-out":
        return lambda packet, _: fits(value, packet.physout, name) if packet.physout else False
    if name == "physdev-is-in":
        return lambda packet, _: bool(packet.physin)
    if name == "physdev-is-out":
        return lambda packet, _: bool(packet.physout)
    if name == "physdev-is-bridged":
        return lambda packet, _: bool(packet.physin and packet.physout)
    return None


def _icmp(option: Option) -> Test | None:
    name, value, _ = option
    if name not in ("icmp-type", "icmpv6-type"):
        return None
    protocol, names = ("icmp", _ICMP) if name == "icmp-type" else ("ipv6-icmp", _ICMP6)
    kind, slash, code = value.partition("/")
    wanted: tuple[int, int | None] | None
    if value in names:
        wanted = names[value]
    elif kind.isdigit() and (not slash or code.isdigit()):
        wanted = (int(kind), int(code) if slash else None)
    else:
        return None

    def test(packet: Packet, _: Facts) -> Answer:
        if packet.protocol != protocol:
            return False
        return wanted is None or (packet.icmp[0] == wanted[0] and wanted[1] in (None, packet.icmp[1]))

    return test


def _iprange(option: Option) -> Test | None:
    name, value, _ = option
    low, _, high = value.partition("-")
    try:
        first, last = Ip.parse(low), Ip.parse(high or low)
    except ValueError:
        return None
    if name not in ("src-range", "dst-range"):
        return None

    def test(packet: Packet, _: Facts) -> Answer:
        ip, known = (packet.src, packet.src_known) if name == "src-range" else (packet.dst, packet.dst_known)
        return first <= ip <= last if known else Unknown(f"{name} {value}", f"the rewritten address is in {value}")

    return test


def _pkttype(option: Option) -> Test | None:
    name, value, _ = option
    if name != "pkt-type" or value not in ("unicast", "broadcast", "multicast"):
        return None
    return lambda packet, facts: (
        (facts.address_type(packet.dst) or "UNICAST").lower().replace("local", "unicast") == value
    )


def _conntrack(option: Option) -> Test | None:
    name, value, _ = option
    tests: dict[str, Test] = {
        "ctstate": lambda packet, _: (
            packet.state in value.split(",") or (packet.dnat and "DNAT" in value) or (packet.snat and "SNAT" in value)
        ),
        "ctdir": lambda packet, _: packet.reply is (value.upper() == "REPLY"),
        "ctproto": lambda packet, _: (
            packet.protocol == value or {"tcp": "6", "udp": "17"}.get(packet.protocol) == value
        ),
        "ctorigdst": lambda packet, _: _within(value, packet.first_dst or packet.dst),
        "ctorigsrc": lambda packet, _: _within(value, packet.first_src or packet.src),
        "ctorigdstport": lambda packet, _: _in_ports(value, packet.first_dport if packet.first_dst else packet.dport),
        "ctorigsrcport": lambda packet, _: _in_ports(value, packet.first_sport if packet.first_dst else packet.sport),
    }
    return tests.get(name)


def _within(prefix: str, ip: Ip) -> Answer:
    from podwire.addresses import Prefix

    try:
        return Prefix.parse(prefix if "/" in prefix else f"{prefix}/{ip.bits}").contains(ip)
    except ValueError:
        return Unknown(f"in {prefix}", f"{ip} is in {prefix}")


def _in_ports(value: str, port: int | None) -> Answer:
    low, _, high = value.partition(":")
    if port is None or not low.isdigit() or not (high or low).isdigit():
        return Unknown(f"port {value}", f"the flow's original port is {value}")
    return int(low) <= port <= int(high or low)


def _nothing(_: Option) -> Test:
    return lambda _p, _f: True


_BUILDERS: dict[str, Callable[[Option], Test | None]] = {
    "owner": _owner,
    "physdev": _physdev,
    "icmp": _icmp,
    "icmp6": _icmp,
    "iprange": _iprange,
    "pkttype": _pkttype,
    "conntrack": _conntrack,
    "comment": _nothing,
    "nfacct": _nothing,
}
