"""What an nft expression is for a packet: its value, with the probabilities of a random one, or that it cannot be told.

`evaluate` gives the kinds of the parts of an expression (a concatenation has several) and its possible values, each with a
probability. None means the packet has no such field: the kernel then breaks off the rule, whatever the operator.
`Lookup` finds a value among literals: the elements of a set or the keys of a map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.addresses import Ip, Prefix
from podwire.explain.listing import NAMED_PORTS
from podwire.explain.matches import FLAG_BITS, protocol_name
from podwire.explain.packet import UNKNOWN, Packet, Unknown

if TYPE_CHECKING:
    from podwire.explain.facts import Facts
    from podwire.explain.nft import Expression

_MOST_CHOICES = 4096
_ICMP = {
    "echo-reply": 0, "destination-unreachable": 3, "source-quench": 4, "redirect": 5, "echo-request": 8,
    "router-advertisement": 9, "router-solicitation": 10, "time-exceeded": 11, "parameter-problem": 12,
    "timestamp-request": 13, "timestamp-reply": 14,
}  # fmt: skip
_ICMP6 = {
    "destination-unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4, "echo-request": 128,
    "echo-reply": 129, "mld-listener-query": 130, "mld-listener-report": 131, "nd-router-solicit": 133,
    "nd-router-advert": 134, "nd-neighbor-solicit": 135, "nd-neighbor-advert": 136, "nd-redirect": 137,
}  # fmt: skip
_PORT_PROTOCOLS = frozenset(("tcp", "udp", "sctp", "dccp", "udplite"))


class Evaluated(NamedTuple):
    """`choices`: (probability, values of the parts); a value may be Unknown."""

    kinds: tuple[str, ...]
    choices: list[tuple[float, tuple[Any, ...]]]


def evaluate(expr: Expression, packet: Packet, facts: Facts) -> Evaluated | None:
    """See the module's text. A literal has the kind `literal`."""
    if isinstance(expr, dict) and isinstance(expr.get("concat"), list):
        kinds: tuple[str, ...] = ()
        values: tuple[Any, ...] = ()
        for part in expr["concat"]:
            found = evaluate(part, packet, facts)
            if found is None:
                return None
            kinds += found.kinds
            values += found.choices[0][1] if len(found.choices) == 1 else (_unknown(expr),)
        return Evaluated(kinds, [(1.0, values)])
    if isinstance(expr, dict):
        for generator in ("numgen", "jhash", "symhash"):
            if isinstance(expr.get(generator), dict):
                return _random(expr[generator])
    read = _read(expr, packet, facts)
    return None if read is None else Evaluated((read[0],), [(1.0, (read[1],))])


def _unknown(expr: Expression) -> Unknown:
    from podwire.explain.nft_spell import expression

    text = expression(expr)
    return Unknown(f"nft {text}", text)


def _random(inner: dict[str, Any]) -> Evaluated:
    number, offset = inner.get("mod"), inner.get("offset") or 0
    if not isinstance(number, int) or not isinstance(offset, int) or not 0 < number <= _MOST_CHOICES:
        return Evaluated(("int",), [(1.0, (Unknown(f"nft {inner}", "which number numgen gives"),))])
    return Evaluated(("int",), [(1 / number, (offset + at,)) for at in range(number)])


def _read(expr: Expression, packet: Packet, facts: Facts) -> tuple[str, Any] | None:
    """Kind and value of one part."""
    if not isinstance(expr, dict):
        return "literal", expr
    if len(expr) != 1:
        return "unknown", _unknown(expr)
    kind, inner = next(iter(expr.items()))
    if kind in ("&", "|", "^", "<<", ">>"):
        return _operation(kind, inner, packet, facts)
    if kind not in ("payload", "meta", "ct", "fib"):
        return ("literal", expr) if kind in ("prefix", "range", "set", "elem") else ("unknown", _unknown(expr))
    if not isinstance(inner, dict):
        return "unknown", _unknown(expr)
    found = {"payload": _payload, "meta": _meta, "ct": _ct, "fib": _fib}[kind](inner, packet, facts)
    return ("unknown", _unknown(expr)) if found == () else found


def _operation(sign: str, inner: Any, packet: Packet, facts: Facts) -> tuple[str, Any] | None:
    if not isinstance(inner, list) or len(inner) < 2:
        return "unknown", _unknown({sign: inner})
    found = _read(inner[0], packet, facts)
    if found is None:
        return None
    kind, value = found
    for part in inner[1:]:
        if kind == "flags":
            value = value & flag_names(part) if sign == "&" else value | flag_names(part)
            continue
        other = _read(part, packet, facts)
        number = other[1] if other is not None else None
        if not isinstance(value, int) or not isinstance(number, int):
            return "unknown", _unknown({sign: inner})
        value = {"&": value & number, "|": value | number, "^": value ^ number}.get(sign, value)
        if sign in ("<<", ">>"):
            value = value << min(number, 32) & 0xFFFFFFFF if sign == "<<" else value >> min(number, 64)
    return ("int" if kind == "literal" else kind), value


def flag_names(value: Any) -> frozenset[str]:
    """TCP flags of a literal: a name, a number, a list, or names joined by |."""
    if isinstance(value, dict):
        value = next(iter(value.values()))
    if isinstance(value, list):
        return frozenset().union(*[flag_names(one) for one in value])
    if isinstance(value, int):
        return frozenset([name for at, name in enumerate(FLAG_BITS) if value >> at & 1])
    return frozenset({str(value).upper()})


def _payload(inner: dict[str, Any], packet: Packet, _: Facts) -> Any:
    header, field = inner.get("protocol"), inner.get("field")
    if header in ("ip", "ip6"):
        if packet.family != (4 if header == "ip" else 6):
            return None
        if field in ("saddr", "daddr"):
            known, ip = (packet.src_known, packet.src) if field == "saddr" else (packet.dst_known, packet.dst)
            return "ip", ip if known else Unknown(f"nft {header} {field}", f"the rewritten {header} {field}")
        return ("proto", packet.protocol) if field in ("protocol", "nexthdr") else ()
    if header in ("th", *_PORT_PROTOCOLS):
        if packet.protocol not in _PORT_PROTOCOLS or header not in ("th", packet.protocol):
            return None
        if field in ("sport", "dport"):
            port = packet.sport if field == "sport" else packet.dport
            return "port", port if port is not None else Unknown(f"nft {field}", f"the packet's {field}")
        return ("flags", packet.flags) if field == "flags" and header == "tcp" else ()
    if header in ("icmp", "icmpv6"):
        if packet.protocol != ("icmp" if header == "icmp" else "ipv6-icmp"):
            return None
        return {"type": (header, packet.icmp[0]), "code": ("int", packet.icmp[1])}.get(str(field), ())
    return ()


def _meta(inner: dict[str, Any], packet: Packet, facts: Facts) -> Any:
    key = inner.get("key")
    if key in ("iif", "iifname", "oif", "oifname"):
        name = packet.iif if str(key).startswith("i") else packet.oif
        return "iface", Unknown(
            f"nft {str(key)[:3]}", f"the packet's {str(key)[:3]} interface"
        ) if name == UNKNOWN else name or ""
    if key in ("skuid", "skgid"):
        owner = packet.uid if key == "skuid" else packet.gid
        if not packet.own:
            return None
        return "int", owner if owner is not None else Unknown(f"nft {key}", f"the sender's {key}")
    if key == "pkttype":
        return "name", "multicast" if facts.address_type(packet.dst) == "MULTICAST" else "host"
    return {
        "l4proto": ("proto", packet.protocol),
        "protocol": ("name", "ip" if packet.family == 4 else "ip6"),
        "nfproto": ("name", f"ipv{packet.family}"),
        "mark": ("int", packet.mark),
    }.get(str(key), ())


def _ct(inner: dict[str, Any], packet: Packet, _: Facts) -> Any:
    key, direction = inner.get("key"), inner.get("dir")
    if key == "state":
        return "state", packet.state.lower()
    if packet.state in ("INVALID", "UNTRACKED"):
        return None
    if key == "status":
        bits = {"dnat": packet.dnat, "snat": packet.snat}
        for name in ("seen-reply", "assured", "confirmed"):
            bits[name] = packet.state == "ESTABLISHED" or (name == "confirmed" and packet.iif == "lo")
        return "bits", frozenset([name for name, held in bits.items() if held])
    if key == "mark":
        return "int", packet.connmark
    if key == "direction":
        return "name", "reply" if packet.reply else "original"
    first = packet.first_dst is not None
    if direction != "original":
        return ()
    return {
        "ip saddr": ("ip", packet.first_src or packet.src),
        "ip6 saddr": ("ip", packet.first_src or packet.src),
        "saddr": ("ip", packet.first_src or packet.src),
        "ip daddr": ("ip", packet.first_dst or packet.dst),
        "ip6 daddr": ("ip", packet.first_dst or packet.dst),
        "daddr": ("ip", packet.first_dst or packet.dst),
        "proto-dst": ("port", packet.first_dport if first else packet.dport),
        "protocol": ("proto", packet.protocol),
    }.get(str(key), ())


def _fib(inner: dict[str, Any], packet: Packet, facts: Facts) -> Any:
    listed = inner.get("flags")
    flags = listed if isinstance(listed, list) else [listed]
    ip, known = (packet.src, packet.src_known) if "saddr" in flags else (packet.dst, packet.dst_known)
    device = packet.iif if "iif" in flags else packet.oif if "oif" in flags else None
    if inner.get("result") == "type":
        kind = facts.address_type(ip, device) if known and device != UNKNOWN else None
        local = Unknown(f"local {ip}", f"{ip} is an address of this node")
        return "fibtype", kind.lower() if kind is not None else local
    if inner.get("result") not in ("oif", "oifname") or not known or not facts.routing.known or device == UNKNOWN:
        return ()
    found = facts.routing.lookup(ip, None, packet.iif, packet.mark if "mark" in flags else 0)
    if found.dev == UNKNOWN:
        return ()
    there = found.kind in ("unicast", "local") and (device is None or found.dev == device or found.kind == "local")
    return "route", found.dev if there else ""


# -- literals --------------------------------------------------------------------------------------------------------


def exact(kind: str, literal: Any) -> Any:
    """A literal as a value of a kind; None when it is a prefix, a range, or not of that kind."""
    if isinstance(literal, bool):
        return literal if kind == "route" else None
    if kind == "ip" and isinstance(literal, str):
        try:
            return Ip.parse(literal)
        except ValueError:
            return None
    if kind == "proto" and isinstance(literal, str | int):
        return protocol_name(str(literal))
    if isinstance(literal, int):
        return literal
    if isinstance(literal, str):
        named = {"port": NAMED_PORTS, "icmp": _ICMP, "icmpv6": _ICMP6}.get(kind)
        if named is not None:
            return named.get(literal)
        if kind in ("iface", "name", "state", "fibtype"):
            return (
                None if kind == "iface" and literal.endswith("*") else literal.lower() if kind != "iface" else literal
            )
        if kind == "int":
            return {"root": 0}.get(literal)
    return None


def fits(kind: str, value: Any, literal: Any) -> bool | None:
    """Whether a value is what a literal stands for; None when the literal cannot be read."""
    wanted = exact(kind, literal)
    if kind == "route":
        if literal in (True, "exists", False, "missing", 0, 1):
            return bool(value) is (literal in (True, "exists", 1))
        return bool(value == literal)
    if kind == "bits":
        return bool(value & _names(literal))
    if kind == "flags":
        return bool(value == flag_names(literal))
    if wanted is not None:
        return bool(wanted == value)
    if isinstance(literal, str) and kind == "iface" and literal.endswith("*"):
        return str(value).startswith(literal[:-1])
    if isinstance(literal, dict) and isinstance(literal.get("prefix"), dict) and kind == "ip":
        inner = literal["prefix"]
        try:
            return Prefix(Ip.parse(str(inner.get("addr"))), int(inner.get("len", -1))).contains(value)
        except (ValueError, TypeError):
            return None
    if isinstance(literal, dict) and isinstance(literal.get("range"), list) and len(literal["range"]) == 2:
        low, high = exact(kind, literal["range"][0]), exact(kind, literal["range"][1])
        try:
            return None if low is None or high is None else bool(low <= value <= high)
        except (TypeError, AttributeError):
            return None
    if isinstance(literal, str) and literal == "*":
        return True
    return None


def _names(literal: Any) -> frozenset[str]:
    if isinstance(literal, dict):
        literal = next(iter(literal.values()), ())
    if isinstance(literal, list):
        return frozenset().union(*[_names(one) for one in literal])
    return frozenset({str(literal)})


class Lookup:
    """Literals by value: those that are exact in a dict, the others (prefixes, ranges, wildcards) in a list."""

    __slots__ = ("_exact", "_others", "_unread")

    def __init__(self, kinds: tuple[str, ...], elements: list[tuple[Any, Any]]) -> None:
        self._exact: dict[tuple[Any, ...], Any] = {}
        self._others: list[tuple[tuple[Any, ...], Any]] = []
        self._unread = False
        for key, data in elements:
            parts = key["concat"] if isinstance(key, dict) and isinstance(key.get("concat"), list) else [key]
            parts = [
                part.get("elem", {}).get("val", part) if isinstance(part, dict) and "elem" in part else part
                for part in parts
            ]
            if len(parts) != len(kinds):
                self._unread = True
                continue
            values = tuple([exact(kind, part) for kind, part in zip(kinds, parts, strict=True)])
            if None in values or "route" in kinds:
                self._others.append((tuple(parts), data))
            else:
                self._exact.setdefault(values, (data,))

    def find(self, kinds: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any] | Unknown | None:
        """The data of the element that fits, in a tuple; None: no element does."""
        found = self._exact.get(values)
        if found is not None:
            return found  # type: ignore[no-any-return]  # stored above
        doubt = self._unread
        for parts, data in self._others:
            answers = [fits(kind, value, part) for kind, value, part in zip(kinds, values, parts, strict=True)]
            if all(answers):
                return (data,)
            doubt = doubt or (None in answers and False not in answers)
        return (
            Unknown("nft an element that cannot be read", "an element of the set that cannot be read")
            if doubt
            else None
        )
