"""What `ss`, `conntrack -L` and `sysctl` print, as values.

Only what is understood becomes a value; a line that is not what the program prints is skipped. Nothing here raises on input:
these texts come out of bug reports, and JSON from somebody else may hold anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.explain.snapshot import Flow, Socket, Sysctl

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLOW = re.compile(r"(src|dst|sport|dport|mark|zone)=(\S+)")
_PROTOCOLS = frozenset(("tcp", "udp", "icmp", "icmpv6", "sctp", "dccp", "gre", "udplite", "unknown"))


def sockets_text(text: str, where: str) -> Iterator[Socket]:
    """`ss -tuanp` in any of its layouts: with or without Netid, with or without header."""
    protocol = "udp" if "UNCONN" in text and "LISTEN" not in text and "ESTAB" not in text else "tcp"
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] in ("State", "Netid", "Recv-Q"):
            continue
        this = protocol
        if words[0] in ("tcp", "udp", "tcp6", "udp6", "sctp"):
            this = words.pop(0).rstrip("6")
        if len(words) < 5 or not words[0].replace("-", "").replace("_", "").isalnum() or not words[1].isdigit():
            continue
        local, peer = _endpoint(words[3]), _endpoint(words[4])
        if local is None:
            continue
        found = re.search(r'\(\("([^"]*)",(?:pid=)?(\d+)', line)
        yield Socket(
            this,
            words[0],
            local[0],
            local[1],
            peer[0] if peer else "",
            peer[1] if peer else 0,
            found.group(1) if found else "",
            int(found.group(2)) if found else 0,
            where,
        )


def _endpoint(shown: str) -> tuple[str, int] | None:
    ip, _, port = shown.rpartition(":")
    ip = ip.strip("[]").partition("%")[0]
    if not (port.isdigit() or port == "*"):
        return None
    return ("0.0.0.0" if ip in ("*", "") else ip), int(port) if port != "*" else 0


def flows_text(text: str, where: str) -> Iterator[Flow]:
    """`conntrack -L` and /proc/net/nf_conntrack."""
    for line in text.splitlines():
        words = line.split()
        if line.count("src=") < 2 or not _PROTOCOLS & set(words[:3]):
            continue
        pairs = _FLOW.findall(line)
        sides: list[dict[str, str]] = []
        for key, value in pairs:
            if key == "src":
                sides.append({})
            if sides:
                sides[-1].setdefault(key, value)
        first, second = sides[0], sides[1]
        names = [one for one in words[:3] if one in _PROTOCOLS]
        yield Flow(
            names[0],
            first.get("src", ""),
            first.get("dst", ""),
            _port(first, "sport"),
            _port(first, "dport"),
            second.get("src", ""),
            second.get("dst", ""),
            _port(second, "sport"),
            _port(second, "dport"),
            next((word for word in words[2:7] if word.isupper() and not word.startswith("[")), ""),
            frozenset(re.findall(r"\[([A-Z_]+)\]", line)),
            line.strip(),
            where,
        )


def _port(side: dict[str, str], key: str) -> int:
    value = side.get(key, "")
    return int(value) if value.isdigit() else 0


def sysctls_text(text: str, where: str) -> Iterator[Sysctl]:
    """`sysctl -a`: both spellings of names with dots, `name = value`, `name: value`, and complaints about missing files.

    sysctl prints `net.ipv4.conf.flannel/1.rp_filter` and, when asked with slashes, `net/ipv4/conf/flannel.1/rp_filter`; people also
    write `net.ipv4.conf.flannel.1.rp_filter`. All three mean the same.
    """
    for line in text.splitlines():
        missing = re.search(r"/proc/sys/(\S+?)['\"’]?: No such file", line)
        if missing:
            yield Sysctl(missing.group(1), None, where)
            continue
        found = re.match(r"^\s*([\w./*-]+)\s*=\s*(.*?)\s*$", line)
        if found and ("." in found.group(1) or "/" in found.group(1)):
            yield Sysctl(sysctl_name(found.group(1)), found.group(2), where)


def sysctl_name(shown: str) -> str:
    """The path below /proc/sys of a printed name."""
    shown = shown.removeprefix("/proc/sys/")
    dot, slash = shown.find("."), shown.find("/")
    if slash >= 0 and (dot < 0 or slash < dot):
        return shown
    if slash >= 0:
        return shown.translate({ord("."): "/", ord("/"): "."})
    per_device = re.match(r"^(net\.ipv[46]\.(?:conf|neigh))\.(.+)\.([^.]+)$", shown)
    if per_device:
        return f"{per_device.group(1).replace('.', '/')}/{per_device.group(2)}/{per_device.group(3)}"
    return shown.replace(".", "/")
