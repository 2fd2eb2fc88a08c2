"""What `ip link`, `ip addr` and `bridge link` print, as values: JSON (`-j`) and text, old and new.

Only what is understood becomes a value; a line that is not what the program prints is skipped. Nothing here raises on input:
these texts come out of bug reports, and JSON from somebody else may hold anything.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from podwire.explain.snapshot import Address, InnerLink, Link, Namespace, Vxlan
from podwire.explain.snapshot_words import inner, is_ip, is_prefix, number_after, number_of, rows, text_of, word

if TYPE_CHECKING:
    from podwire.explain.snapshot import Object

_LINK = re.compile(r"^(\d+): ([^\s:@]+)(?:@(\S+))?: <([^>]*)>(.*)$")


def links_json(value: Any, where: str) -> list[Link]:
    """`ip -j [-d] link`, `ip -j addr`, `bridge -j -d link`."""
    found = []
    indexes = {text_of(row, "ifname"): number_of(row, "ifindex") for row in rows(value)}
    for row in rows(value):
        name = text_of(row, "ifname")
        if not name:
            continue
        info, data = inner(row, "linkinfo"), inner(row, "linkinfo", "info_data")
        kind = text_of(info, "info_kind")
        port = inner(row, "linkinfo", "info_slave_data")
        hairpin = row.get("hairpin", port.get("hairpin"))
        flags = row.get("flags")
        found.append(
            Link(
                name=name,
                mtu=number_of(row, "mtu"),
                kind=kind,
                index=number_of(row, "ifindex"),
                mac=text_of(row, "address"),
                flags=frozenset(str(flag) for flag in flags) if isinstance(flags, list) else frozenset(),
                state=text_of(row, "operstate") or text_of(row, "state"),
                master=text_of(row, "master"),
                # A peer in the same namespace is printed by name.
                peer=number_of(row, "link_index") or indexes.get(text_of(row, "link"), 0),
                vxlan=_vxlan(data) if kind == "vxlan" else None,
                hairpin=hairpin if isinstance(hairpin, bool) else None,
                alias=text_of(row, "ifalias"),
                where=where,
            )
        )
    return found


def _vxlan(data: Object) -> Vxlan:
    learning = data.get("learning")
    return Vxlan(
        vni=number_of(data, "id"),
        local=text_of(data, "local") or text_of(data, "local6"),
        port=number_of(data, "port"),
        dev=text_of(data, "link"),
        learning=learning if isinstance(learning, bool) else None,
    )


def links_text(text: str, where: str) -> list[Link]:
    """`ip link`, `ip addr`, with or without -d; `bridge -d link` gives its ports' hairpin."""
    found: list[Link] = []
    for line in text.splitlines():
        head = _LINK.match(line)
        if head:
            index, name, peer, flags, rest = head.groups()
            words = rest.split()
            peer_index = int(peer[2:]) if peer and re.fullmatch(r"if\d+", peer) else 0
            link = Link(
                name=name,
                mtu=number_after(words, "mtu", 0),
                index=int(index),
                flags=frozenset(flags.split(",")),
                state=word(words, "state"),
                master=word(words, "master"),
                peer=peer_index,
                where=where,
            )
            found.append(link)
            continue
        if not found or not line[:1].isspace():
            continue
        words = line.split()
        last = found[-1]
        mac = words[1] if words and words[0].startswith("link/") and len(words) > 1 else last.mac
        hairpin = {"on": True, "off": False}.get(word(words, "hairpin"), last.hairpin)
        vxlan, kind = last.vxlan, last.kind
        if words and words[0] == "vxlan":
            vxlan = Vxlan(
                number_after(words, "id", 0),
                word(words, "local"),
                number_after(words, "dstport", 0),
                word(words, "dev"),
            )
        if words and words[0] in ("vxlan", "veth", "bridge", "dummy", "wireguard", "ipip"):
            kind = words[0]
        found[-1] = replace(last, mac=mac, hairpin=hairpin, vxlan=vxlan, kind=kind)
    return found


def merge_links(old: list[Link] | None, new: list[Link]) -> list[Link]:
    """Two listings of the same devices as one: what the second knows is added to what the first left open."""
    merged = {link.name: link for link in old or ()}
    for link in new:
        first = merged.get(link.name)
        if first is None:
            merged[link.name] = link
            continue
        empty = {name for name in Link.__slots__ if getattr(first, name) in ("", 0, frozenset())} - {"hairpin"}
        added = {name: getattr(link, name) for name in empty}
        # A port's state (forwarding) never takes the place of the device's: it is only taken where that is unknown.
        hairpin = link.hairpin if first.hairpin is None else first.hairpin
        vxlan = first.vxlan or link.vxlan
        merged[link.name] = replace(first, **(added | {"hairpin": hairpin, "vxlan": vxlan}))
    return list(merged.values())


def addresses_json(value: Any, where: str) -> list[Address]:
    """`ip -j addr`."""
    found = []
    for row in rows(value):
        for one in rows(row.get("addr_info") or []):
            ip, length = text_of(one, "local"), one.get("prefixlen")
            if is_ip(ip) and isinstance(length, int):
                found.append(Address(text_of(row, "ifname"), ip, length, text_of(one, "scope"), where))
    return [one for one in found if is_prefix(one.text)]


def addresses_text(text: str, where: str) -> list[Address]:
    """`ip addr`, `ip -br addr` and `ip -o addr`."""
    found, dev = [], ""
    for line in text.splitlines():
        head = _LINK.match(line)
        if head:
            dev = head.group(2)
            continue
        words = line.split()
        oneline = re.match(r"^\d+:\s+(\S+)\s+(inet6?)\s+(\S+)", line)
        if oneline:
            dev, words = oneline.group(1), [oneline.group(2), oneline.group(3)]
        if len(words) > 1 and words[0] in ("inet", "inet6"):
            shown = words[1] if "/" in words[1] else f"{words[1]}/{128 if words[0] == 'inet6' else 32}"
            if is_prefix(shown):
                ip, _, length = shown.partition("/")
                found.append(Address(dev, ip, int(length), word(words, "scope"), where))
        elif len(words) > 2 and words[1] in ("UP", "DOWN", "UNKNOWN") and not line[:1].isspace():
            for shown in (word for word in words[2:] if "/" in word and is_prefix(word)):
                ip, _, length = shown.partition("/")
                found.append(Address(words[0].partition("@")[0], ip, int(length), "", where))
    return found


def namespaces_json(value: Any, where: str) -> list[Namespace]:
    """net/namespaces.json of a bundle."""
    found = []
    for row in rows(value):
        inner_links = [
            InnerLink(
                text_of(one, "ifname"),
                number_of(one, "ifindex"),
                number_of(one, "link_index"),
                number_of(one, "mtu"),
                text_of(one, "address"),
                tuple(str(ip) for ip in one["addresses"]) if isinstance(one.get("addresses"), list) else (),
            )
            for one in rows(row.get("links") or [])
        ]
        found.append(Namespace(text_of(row, "netns"), text_of(row, "process"), tuple(inner_links), where))
    return found
