"""A packet through a base chain of nft, as nft_do_chain does it.

A rule is a row of statements; a match that fails, a field the packet lacks, a map without the key break the rule off, and
the next one is tried. accept ends the base chain (others at the hook still run), drop and reject end everything; jump comes back,
goto comes back to the last jump's caller; a NAT statement makes the mapping and accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.addresses import Ip
from podwire.explain import nat
from podwire.explain.chains import DEEPEST, End, Walked
from podwire.explain.nft_eval import Evaluated, Lookup, evaluate, fits, flag_names
from podwire.explain.nft_spell import spell_rule
from podwire.explain.packet import Answer, Step, Supposed, TooManyWays, Unknown, Way, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.facts import Facts
    from podwire.explain.nft import NftChain, NftRule, NftTable, Statement

#: Statements after which the packet goes on as it was, as far as this walk sees it.
_HARMLESS = frozenset(
    ("counter", "log", "comment", "flow", "last", "quota", "ct helper", "ct timeout", "ct expectation", "secmark")
)


class _Turn:
    """A rule while it is being walked: where its ways end up."""

    __slots__ = ("back", "chain", "ended", "on", "rule")

    def __init__(self, chain: NftChain, rule: NftRule, ended: list[End], back: list[Way], on: list[Way]) -> None:
        self.chain = chain
        self.rule = rule
        self.ended = ended
        self.back = back
        self.on = on


class NftWalk:
    """Walks one base chain."""

    def __init__(self, table: NftTable, base: NftChain, hook: str, facts: Facts) -> None:
        self.table = table
        self.base = base
        self.hook = hook
        self.facts = facts
        self._stack: list[str] = []
        self._lookups: dict[tuple[int, tuple[str, ...]], Lookup] = {}
        self._next_hop = ""

    def run(self, ways: list[Way], next_hop: str = "") -> Walked:
        """From the base chain to its policy: nobody comes `through` without a verdict."""
        self._next_hop = next_hop
        try:
            walked = self._chain(self.base, ways)
        except TooManyWays:
            return Walked([], [End("unknown", way, "too many ways to follow") for way in ways])
        ended = walked.ended
        for way in walked.through:
            if self.base.policy == "drop":
                step = Step("nft", self.hook, self.table.label, self.base.name, 0, "policy drop", "DROP")
                ended.append(End("drop", way.met(step), f"the policy of {self.table.label} {self.base.name} is drop"))
            else:
                ended.append(End("accept", way, "policy"))
        return Walked([], ended)

    def _chain(self, chain: NftChain, ways: list[Way]) -> Walked:
        if chain.name in self._stack or len(self._stack) >= DEEPEST:
            return Walked(
                [], [End("unknown", way, f"chains call each other in a circle at {chain.name}") for way in ways]
            )
        self._stack.append(chain.name)
        ended: list[End] = []
        back: list[Way] = []
        live = ways
        for rule in chain.rules:
            on: list[Way] = []
            turn = _Turn(chain, rule, ended, back, on)
            for way in live:
                self._rule(turn, way)
            live = merge(on) if len(on) > 1 else on
            if not live:
                break
        self._stack.pop()
        return Walked(merge(live + back), ended)

    # -- one rule ----------------------------------------------------------------------------------------------------

    def _rule(self, turn: _Turn, way: Way) -> None:
        live = [way]
        noted = False
        for statement in turn.rule.statements:
            kind = next(iter(statement), "")
            if kind in _HARMLESS:
                continue
            if not noted and kind not in ("match", "opaque", "xt", "limit", "vmap"):
                live, noted = [self._noted(turn, one, way, _effect(statement)) for one in live], True
            handler = _HANDLERS.get(kind, NftWalk._opaque)
            following: list[Way] = []
            for one in live:
                following += handler(self, turn, one, statement)
            live = following
            if not live:
                return
        turn.on += live

    def _noted(self, turn: _Turn, way: Way, start: Way, effect: str) -> Way:
        chance = way.chance / start.chance if start.chance else 1.0
        return way.met(
            Step(
                "nft", self.hook, self.table.label, turn.chain.name, turn.rule.position, turn.rule.text, effect, chance
            )
        )

    def _split(self, turn: _Turn, way: Way, answer: Answer) -> list[Way]:
        """The way where a condition holds; the other one goes on to the next rule."""
        yes, no = way.split(answer)
        if no is not None:
            turn.on.append(no)
        return [yes] if yes is not None else []

    def _match(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        inner = statement["match"]
        if not isinstance(inner, dict):
            return self._opaque(turn, way, statement)
        left = evaluate(inner.get("left"), way.packet, self.facts)
        if left is None:
            turn.on.append(way)
            return []
        answer = self._compared(left, str(inner.get("op")), inner.get("right"), way, statement)
        return self._split(turn, way, answer)

    def _compared(self, left: Evaluated, operator: str, right: Any, way: Way, statement: Statement) -> Answer:
        total = 0.0
        for chance, values in left.choices:
            unknown = next((value for value in values if isinstance(value, Unknown)), None)
            if unknown is not None:
                if unknown.key.startswith("local ") and right == "local" and operator in ("==", "in"):
                    return unknown
                text = spell_rule([statement])
                return Unknown(f"{unknown.key}: {text}", text)
            held = self._holds(left.kinds, values, operator, right, way)
            if held is None:
                text = spell_rule([statement])
                return Unknown(f"nft {text}", text)
            total += chance if held else 0.0
        return True if total > 1 - 1e-12 else False if total == 0 else total

    def _holds(
        self, kinds: tuple[str, ...], values: tuple[Any, ...], operator: str, right: Any, way: Way
    ) -> bool | None:
        if operator in ("<", ">", "<=", ">="):
            found = evaluate(right, way.packet, self.facts)
            other = found.choices[0][1][0] if found is not None else None
            one = values[0]
            if not isinstance(one, int) or not isinstance(other, int):
                return None
            return {"<": one < other, ">": one > other, "<=": one <= other, ">=": one >= other}[operator]
        inverted = operator == "!="
        if isinstance(right, str) and right.startswith("@"):
            found_one = self._in_set(right[1:], kinds, values, way)
        elif isinstance(right, dict) and isinstance(right.get("set"), list):
            found_one = self._lookup(right["set"], kinds, values)
        else:
            return _equal(kinds, values, operator, right, way, self.facts)
        return None if isinstance(found_one, Unknown) else (found_one is not None) is not inverted

    def _in_set(
        self, name: str, kinds: tuple[str, ...], values: tuple[Any, ...], way: Way
    ) -> tuple[Any] | Unknown | None:
        found = self.table.sets.get(name)
        if found is None:
            return Unknown(f"nft @{name}", f"set {name} is not in this input")
        if (f"{self.table.label} {name}", " . ".join([str(value) for value in values])) in way.packet.added:
            return (None,)
        key = (id(found), kinds)
        if key not in self._lookups:
            self._lookups[key] = Lookup(kinds, found.elements)
        return self._lookups[key].find(kinds, values)

    def _lookup(self, items: list[Any], kinds: tuple[str, ...], values: tuple[Any, ...]) -> tuple[Any] | Unknown | None:
        key = (id(items), kinds)
        if key not in self._lookups:
            pairs = [
                (item[0], item[1]) if isinstance(item, list) and len(item) == 2 else (item, None) for item in items
            ]
            self._lookups[key] = Lookup(kinds, pairs)
        return self._lookups[key].find(kinds, values)

    def _choices(self, key: Any, data: Any, way: Way) -> list[tuple[float, Any]] | Unknown | None:
        """What a map gives: (probability, data), data None where it has no such key. None: the packet lacks the field."""
        found = evaluate(key, way.packet, self.facts)
        if found is None:
            return None
        gives: list[tuple[float, Any]] = []
        for chance, values in found.choices:
            unknown = next((value for value in values if isinstance(value, Unknown)), None)
            if unknown is not None:
                return unknown
            if isinstance(data, str) and data.startswith("@"):
                one = self._in_set(data[1:], found.kinds, values, way)
            else:
                items = data.get("set") if isinstance(data, dict) else None
                one = self._lookup(items if isinstance(items, list) else [], found.kinds, values)
            if isinstance(one, Unknown):
                return one
            gives.append((chance, None if one is None else one[0]))
        return gives

    # -- statements --------------------------------------------------------------------------------------------------

    def _vmap(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        inner = statement["vmap"] if isinstance(statement["vmap"], dict) else {}
        gives = self._choices(inner.get("key"), inner.get("data"), way)
        if isinstance(gives, Unknown):
            return self._unknown(turn, way, f"{spell_rule([statement])}: {gives.text}")
        on: list[Way] = []
        missing = 1.0 if gives is None else sum(chance for chance, verdict in gives if not isinstance(verdict, dict))
        rest = way.times(missing)
        if rest is not None and missing > 1e-12:
            turn.on.append(rest if missing < 1 else way)
        for chance, verdict in gives or ():
            part = way.times(chance)
            if not isinstance(verdict, dict) or part is None:
                continue
            part = self._noted(turn, part, way, _effect(verdict))
            handler = _HANDLERS.get(next(iter(verdict), ""), NftWalk._opaque)
            on += handler(self, turn, part, verdict)
        return on

    def _accept(self, turn: _Turn, way: Way, _: Statement) -> list[Way]:
        turn.ended.append(End("accept", way))
        return []

    def _drop(self, turn: _Turn, way: Way, _: Statement) -> list[Way]:
        turn.ended.append(End("drop", way))
        return []

    def _reject(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        inner = statement["reject"]
        said = "port-unreachable"
        if isinstance(inner, dict):
            said = str(inner.get("expr") or inner.get("type") or said)
        turn.ended.append(End("reject", way, said if said.startswith(("icmp", "tcp")) else f"icmp-{said}"))
        return []

    def _return(self, turn: _Turn, way: Way, _: Statement) -> list[Way]:
        turn.back.append(way)
        return []

    def _continue(self, turn: _Turn, way: Way, _: Statement) -> list[Way]:
        turn.on.append(way)
        return []

    def _jump(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        kind = next(iter(statement))
        inner = statement[kind]
        name = inner.get("target") if isinstance(inner, dict) else None
        chain = self.table.chains.get(str(name))
        if chain is None:
            return self._unknown(turn, way, f"chain {name} is not in this input")
        walked = self._chain(chain, [way])
        turn.ended += walked.ended
        if kind == "goto":
            turn.back += walked.through
            return []
        turn.on += walked.through  # a verdict ends its rule
        return []

    def _mangle(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        inner = statement["mangle"] if isinstance(statement["mangle"], dict) else {}
        key = inner.get("key")
        field = {("meta", "mark"): "mark", ("ct", "mark"): "connmark"}.get(_key(key))
        if field is None:
            changes = isinstance(key, dict) and isinstance(key.get("payload"), dict)
            return self._unknown(turn, way, spell_rule([statement])) if changes else [way]
        found = evaluate(inner.get("value"), way.packet, self.facts)
        value = found.choices[0][1][0] if found is not None and len(found.choices) == 1 else None
        if not isinstance(value, int):
            return self._unknown(turn, way, spell_rule([statement]))
        return [way.with_packet(way.packet._replace(**{field: value & 0xFFFFFFFF}))]

    def _set(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        inner = statement["set"] if isinstance(statement["set"], dict) else {}
        element = inner.get("elem")
        if isinstance(element, dict) and isinstance(element.get("elem"), dict):
            element = element["elem"].get("val")
        found = evaluate(element, way.packet, self.facts)
        if found is None:
            turn.on.append(way)
            return []
        entry = (
            f"{self.table.label} {str(inner.get('set')).lstrip('@')}",
            " . ".join([str(value) for value in found.choices[0][1]]),
        )
        added = way.packet.added - {entry} if inner.get("op") == "delete" else way.packet.added | {entry}
        return [way.with_packet(way.packet._replace(added=added))]

    def _nat(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        kind = next(iter(statement))
        inner = statement[kind] if isinstance(statement[kind], dict) else {}
        for chance, target in self._targets(inner, way):
            part = way.times(chance)
            if part is None:
                continue
            if target is None:
                turn.on.append(part)
            elif isinstance(target, Unknown):
                turn.ended.append(End("unknown", nat.unreadable(part, source=kind == "snat"), target.text))
            else:
                turn.ended += [End("accept", one, "nat") for one in self._mapped(kind, part, target)]
        return []

    def _mapped(self, kind: str, way: Way, target: nat.Target) -> list[Way]:
        if kind == "masquerade":
            return nat.masquerade(way, self.facts, self._next_hop, target)
        if kind == "redirect":
            return nat.redirect(way, self.facts, target)
        return nat.dnat(way, target) if kind == "dnat" else nat.snat(way, target)

    def _targets(self, inner: dict[str, Any], way: Way) -> list[tuple[float, nat.Target | Unknown | None]]:
        text, port = inner.get("text", ""), _port_text(inner.get("port"))
        address = inner.get("addr")
        if isinstance(address, dict) and isinstance(address.get("map"), dict):
            gives = self._choices(address["map"].get("key"), address["map"].get("data"), way)
            if gives is None:
                return [(1.0, None)]
            if isinstance(gives, Unknown):
                return [(1.0, gives)]
            return [(chance, None if data is None else _target(data, port)) for chance, data in gives]
        return [
            (1.0, _target(address, port) if address is not None else nat.parse_target(text or port) or _unread(text))
        ]

    def _notrack(self, _: _Turn, way: Way, __: Statement) -> list[Way]:
        return [way.with_packet(way.packet._replace(state="UNTRACKED", dst_settled=True, src_settled=True))]

    def _opaque(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        """A condition that is not understood: both ways."""
        kind = next(iter(statement), "")
        text = str(statement[kind]) if kind == "opaque" else spell_rule([statement])
        if kind == "xt" and isinstance(statement[kind], dict) and statement[kind].get("type") == "target":
            return self._unknown(turn, way, f"{text} (nft does not show what it does; iptables-save does)")
        if kind in ("target", "queue", "tproxy", "fwd", "dup", "synproxy"):
            return self._unknown(turn, way, text)
        place = f"{self.table.label} {turn.chain.name} rule {turn.rule.position}"
        return self._split(turn, way, Unknown(f"{place}: {text}", text))

    def _unknown(self, turn: _Turn, way: Way, text: str) -> list[Way]:
        supposed = Supposed(f"nft {text}", f"what this does: {text}", holds=True)
        turn.ended.append(End("unknown", way._replace(given=(*way.given, supposed)), text))
        return []


def _equal(
    kinds: tuple[str, ...], values: tuple[Any, ...], operator: str, right: Any, way: Way, facts: Facts
) -> bool | None:
    """A value against one literal, a list of them, or another expression."""
    inverted = operator == "!="
    if kinds == ("flags",):
        if operator == "in":
            return bool(values[0] & flag_names(right))
        wanted = frozenset() if right == 0 else flag_names(right)
        return (values[0] == wanted) is not inverted
    if kinds == ("bits",):
        held = fits("bits", values[0], right)
        return None if held is None else held is not inverted
    parts = right["concat"] if isinstance(right, dict) and isinstance(right.get("concat"), list) else [right]
    if isinstance(right, list):
        answers = [fits(kinds[0], values[0], one) for one in right]
        return (True in answers) is not inverted if True in answers or None not in answers else None
    if isinstance(right, dict) and next(iter(right), "") in ("payload", "meta", "ct", "fib", "&", "|", "^", "<<", ">>"):
        found = evaluate(right, way.packet, facts)
        if found is None or isinstance(found.choices[0][1][0], Unknown):
            return None
        return (found.choices[0][1] == values) is not inverted
    if len(parts) != len(kinds):
        return None
    answers = [fits(kind, value, part) for kind, value, part in zip(kinds, values, parts, strict=True)]
    if False in answers:
        return inverted
    return None if None in answers else not inverted


def _key(key: Any) -> tuple[str, str]:
    if isinstance(key, dict) and len(key) == 1:
        kind, inner = next(iter(key.items()))
        if isinstance(inner, dict):
            return kind, str(inner.get("key"))
    return "", ""


def _port_text(port: Any) -> str:
    if isinstance(port, dict) and isinstance(port.get("range"), list) and len(port["range"]) == 2:
        return f":{port['range'][0]}-{port['range'][1]}"
    return f":{port}" if isinstance(port, int) else ""


def _unread(text: Any) -> Unknown:
    return Unknown(f"nft target {text}", f"the target {text} cannot be read")


def _target(data: Any, port: str) -> nat.Target | Unknown:
    """`10.0.0.1`, `10.0.0.1 . 80` or a range, from a map or a statement."""
    if isinstance(data, dict) and isinstance(data.get("concat"), list) and len(data["concat"]) == 2:
        data, port = data["concat"][0], f":{data['concat'][1]}"
    if isinstance(data, dict) and isinstance(data.get("range"), list) and len(data["range"]) == 2:
        data = f"{data['range'][0]}-{data['range'][1]}"
    if not isinstance(data, str):
        return _unread(data)
    try:
        six = Ip.parse(data.partition("-")[0]).bits == 128
    except ValueError:
        return _unread(data)
    found = nat.parse_target(f"[{data}]{port}" if six else f"{data}{port}")
    return found if found is not None else _unread(data)


def _effect(statement: Statement) -> str:
    kind = next(iter(statement), "")
    inner = statement.get(kind)
    if kind in ("jump", "goto") and isinstance(inner, dict):
        return f"{'goes to' if kind == 'goto' else 'jumps to'} {inner.get('target')}"
    return {"mangle": "changes the mark", "set": "adds to a set"}.get(kind, kind.upper())


_HANDLERS: dict[str, Callable[..., list[Way]]] = {
    "match": NftWalk._match,
    "vmap": NftWalk._vmap,
    "accept": NftWalk._accept,
    "drop": NftWalk._drop,
    "reject": NftWalk._reject,
    "return": NftWalk._return,
    "continue": NftWalk._continue,
    "jump": NftWalk._jump,
    "goto": NftWalk._jump,
    "mangle": NftWalk._mangle,
    "set": NftWalk._set,
    "dnat": NftWalk._nat,
    "snat": NftWalk._nat,
    "redirect": NftWalk._nat,
    "masquerade": NftWalk._nat,
    "notrack": NftWalk._notrack,
}
