"""What `ip route`, `ip rule`, `ip neigh` and `bridge fdb` print, as values: JSON (`-j`) and text.

Only what is understood becomes a value; a line that is not what the program prints is skipped. Nothing here raises on input:
these texts come out of bug reports, and JSON from somebody else may hold anything.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from podwire.explain.snapshot import FdbEntry, Neighbour, PolicyRule, Route
from podwire.explain.snapshot_words import hexadecimal, is_ip, is_prefix, number_after, number_of, rows, text_of, word


def _prefix(shown: str, six: bool) -> str:
    if shown in ("default", "all", ""):
        return "::/0" if six else "0.0.0.0/0"
    if "/" in shown:
        return shown
    return f"{shown}/{128 if ':' in shown else 32}"


def routes_json(value: Any, where: str, six: bool = False) -> list[Route]:
    """`ip -j route [show table all]`."""
    found = []
    for row in rows(value):
        dst = _prefix(text_of(row, "dst"), six or ":" in text_of(row, "gateway"))
        via = row.get("via")
        gateway = text_of(row, "gateway") or (text_of(via, "host") if isinstance(via, dict) else "")
        flags = row.get("flags")
        hops = tuple((text_of(hop, "gateway"), text_of(hop, "dev")) for hop in rows(row.get("nexthops") or []))
        if "dst" in row and is_prefix(dst):
            found.append(
                Route(
                    dst,
                    via=gateway or (hops[0][0] if hops else ""),
                    dev=text_of(row, "dev") or (hops[0][1] if hops else ""),
                    src=text_of(row, "prefsrc"),
                    table=text_of(row, "table") or "main",
                    protocol=text_of(row, "protocol"),
                    scope=text_of(row, "scope"),
                    metric=number_of(row, "metric"),
                    onlink=isinstance(flags, list) and "onlink" in flags,
                    kind=text_of(row, "type") or "unicast",
                    hops=hops,
                    where=where,
                )
            )
    return [_with_text(route) for route in found]


_ROUTE_KINDS = frozenset(
    ("unicast", "local", "broadcast", "multicast", "anycast", "blackhole", "unreachable", "prohibit", "throw")
)


def routes_text(text: str, where: str) -> list[Route]:
    """`ip route [show table all]`; the hops of a multipath route stand in indented lines."""
    found: list[Route] = []
    for line in text.splitlines():
        words = line.split()
        if words and line[:1].isspace() and words[0] == "nexthop" and found:
            last = found[-1]
            hop = (word(words, "via"), word(words, "dev"))
            found[-1] = replace(last, hops=(*last.hops, hop), via=last.via or hop[0], dev=last.dev or hop[1])
            continue
        kind = words.pop(0) if words and words[0] in _ROUTE_KINDS else "unicast"
        if not words:
            continue
        dst = _prefix(words[0], ":" in line)
        if not is_prefix(dst):
            continue
        via = word(words, "via")
        if via in ("inet", "inet6"):
            via = words[words.index("via") + 2] if words.index("via") + 2 < len(words) else ""
        found.append(
            Route(
                dst,
                via=via,
                dev=word(words, "dev"),
                src=word(words, "src"),
                table=word(words, "table") or "main",
                protocol=word(words, "proto"),
                scope=word(words, "scope"),
                metric=number_after(words, "metric", 0),
                onlink="onlink" in words,
                kind=kind,
                text=line.strip(),
                where=where,
            )
        )
    return found


def _with_text(route: Route) -> Route:
    words = [route.kind] if route.kind != "unicast" else []
    words.append("default" if route.default else route.dst)
    for key, value in (("via", route.via), ("dev", route.dev), ("proto", route.protocol), ("src", route.src)):
        words += [key, value] if value else []
    words += ["metric", str(route.metric)] if route.metric else []
    words += ["onlink"] if route.onlink else []
    words += ["table", route.table] if route.table != "main" else []
    return replace(route, text=" ".join(words))


_FIRST_TABLES = {"0": "", "253": "default", "254": "main", "255": "local"}


def rules_json(value: Any, where: str, six: bool = False) -> list[PolicyRule]:
    """`ip -j rule`."""
    found = []
    for row in rows(value):
        source, destination = text_of(row, "src"), text_of(row, "dst")
        srclen, dstlen = row.get("srclen"), row.get("dstlen")
        mark = text_of(row, "fwmark")
        known = {
            "priority",
            "src",
            "srclen",
            "dst",
            "dstlen",
            "table",
            "fwmark",
            "fwmask",
            "iif",
            "oif",
            "not",
            "action",
        }
        found.append(
            PolicyRule(
                priority=number_of(row, "priority"),
                table=_FIRST_TABLES.get(text_of(row, "table"), text_of(row, "table")),
                src="" if source in ("all", "") else f"{source}/{srclen}" if isinstance(srclen, int) else source,
                dst=""
                if destination in ("all", "")
                else f"{destination}/{dstlen}"
                if isinstance(dstlen, int)
                else destination,
                iif=text_of(row, "iif"),
                oif=text_of(row, "oif"),
                mark=hexadecimal(mark),
                mask=hexadecimal(text_of(row, "fwmask")) or 0xFFFFFFFF,
                inverted="not" in row,
                action=text_of(row, "action").replace("to_tbl", ""),
                rest=" ".join(sorted(set(row) - known - {"protocol", "suppress_prefixlen_unused"})),
                family=6 if six else 4,
                where=where,
            )
        )
    return found


def rules_text(text: str, where: str) -> list[PolicyRule]:
    """`ip rule`."""
    found = []
    for line in text.splitlines():
        head = re.match(r"^(\d+):\s+(.*)$", line)
        if not head or "from" not in line:
            continue
        words = head.group(2).split()
        source = word(words, "from")
        mark, _, mask = word(words, "fwmark").partition("/")
        known = {"not", "from", "to", "fwmark", "iif", "oif", "lookup", "table", "proto", "all"}
        actions = [word for word in ("unreachable", "blackhole", "prohibit", "goto", "nop") if word in words]
        values = {word(words, key) for key in known}
        found.append(
            PolicyRule(
                priority=int(head.group(1)),
                table=word(words, "lookup") or word(words, "table"),
                src="" if source == "all" else source,
                dst=word(words, "to"),
                iif=word(words, "iif"),
                oif=word(words, "oif"),
                mark=hexadecimal(mark),
                mask=hexadecimal(mask) or 0xFFFFFFFF,
                inverted="not" in words,
                action=actions[0] if actions else "",
                rest=" ".join(word for word in words if word not in known | values | set(actions)),
                family=6 if ":" in source else 4,
                where=where,
            )
        )
    return found


def neighbours_json(value: Any, where: str) -> list[Neighbour]:
    """`ip -j neigh`."""
    found = []
    for row in rows(value):
        state = row.get("state")
        words = " ".join(str(one) for one in state) if isinstance(state, list) else text_of(row, "state")
        if is_ip(text_of(row, "dst")):
            found.append(Neighbour(text_of(row, "dst"), text_of(row, "dev"), text_of(row, "lladdr"), words, where))
    return found


def neighbours_text(text: str, where: str) -> list[Neighbour]:
    """`ip neigh [show dev X]`."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and is_ip(words[0]):
            states = [word for word in words[1:] if word.isupper()]
            found.append(Neighbour(words[0], word(words, "dev"), word(words, "lladdr"), " ".join(states), where))
    return found


def fdb_json(value: Any, where: str) -> list[FdbEntry]:
    """`bridge -j fdb`."""
    return [
        FdbEntry(
            text_of(row, "mac"),
            text_of(row, "ifname"),
            text_of(row, "dst"),
            text_of(row, "state"),
            text_of(row, "master"),
            where,
        )
        for row in rows(value)
        if text_of(row, "mac")
    ]


def fdb_text(text: str, where: str) -> list[FdbEntry]:
    """`bridge fdb [show dev X]`."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if words and re.fullmatch(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}", words[0].lower()):
            state = "permanent" if "permanent" in words or "static" in words else ""
            found.append(
                FdbEntry(words[0], word(words, "dev"), word(words, "dst"), state, word(words, "master"), where)
            )
    return found
