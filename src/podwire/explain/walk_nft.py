"""A packet through a base chain of nft, as nft_do_chain does it.

A rule is a row of statements; a match that fails, a field the packet lacks, a map without the key break the rule off, and
the next one is tried. accept ends the base chain (others at the hook still run), drop and reject end everything; jump comes back,
goto comes back to the last jump's caller; a NAT statement makes the mapping and accepts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from podwire.explain import nat
from podwire.explain.chains import DEEPEST, End, Walked
from podwire.explain.nft_conditions import Conditions
from podwire.explain.nft_eval import evaluate
from podwire.explain.nft_spell import spell_rule
from podwire.explain.nft_targets import targets
from podwire.explain.packet import Answer, Step, Supposed, TooManyWays, Unknown, Way, merge

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.facts import Facts
    from podwire.explain.nft import NftChain, NftRule, NftTable, Statement

#: Statements after which the packet goes on as it was, as far as this walk sees it.
_HARMLESS = frozenset(
    ("counter", "log", "comment", "flow", "last", "quota", "ct helper", "ct timeout", "ct expectation", "secmark")
)


_VERDICTS = frozenset(("accept", "drop", "reject", "return", "continue", "jump", "goto"))


class _Turn:
    """A rule while it is being walked: where its ways end up."""

    __slots__ = ("back", "chain", "ended", "on", "rule", "start")

    def __init__(self, chain: NftChain, rule: NftRule, ended: list[End], back: list[Way], on: list[Way]) -> None:
        self.chain = chain
        self.rule = rule
        self.ended = ended
        self.back = back
        self.on = on
        self.start: Way | None = None  # the way as it came to the rule, until the rule is one of its steps


class NftWalk:
    """Walks one base chain."""

    def __init__(self, table: NftTable, base: NftChain, hook: str, facts: Facts) -> None:
        self.table = table
        self.base = base
        self.hook = hook
        self.facts = facts
        self._stack: list[str] = []
        self.conditions = Conditions(table, facts)
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
        turn.start = way
        for statement in turn.rule.statements:
            kind = next(iter(statement), "")
            if kind in _HARMLESS:
                continue
            handler = self._HANDLERS.get(kind, NftWalk._opaque)
            early = not noted and kind in _VERDICTS
            following: list[Way] = []
            for one in live:
                following += handler(
                    self, turn, self._noted(turn, one, way, _effect(statement)) if early else one, statement
                )
            if not noted and kind in ("mangle", "set", "notrack"):
                following, noted = [self._noted(turn, one, way, _effect(statement)) for one in following], True
            turn.start = None if noted else way
            live = following
            if not live:
                return
        turn.on += live if noted else [self._noted(turn, one, way, "counts only") for one in live]

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
        answer = self.conditions.compared(left, str(inner.get("op")), inner.get("right"), way, statement)
        return self._split(turn, way, answer)

    # -- statements --------------------------------------------------------------------------------------------------

    def _vmap(self, turn: _Turn, way: Way, statement: Statement) -> list[Way]:
        inner = statement["vmap"] if isinstance(statement["vmap"], dict) else {}
        gives = self.conditions.choices(inner.get("key"), inner.get("data"), way)
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
            handler = self._HANDLERS.get(next(iter(verdict), ""), NftWalk._opaque)
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
        which = _key(key)
        if which not in (("meta", "mark"), ("ct", "mark")):
            changes = isinstance(key, dict) and isinstance(key.get("payload"), dict)
            return self._unknown(turn, way, spell_rule([statement])) if changes else [way]
        found = evaluate(inner.get("value"), way.packet, self.facts)
        value = found.choices[0][1][0] if found is not None and len(found.choices) == 1 else None
        if not isinstance(value, int):
            return self._unknown(turn, way, spell_rule([statement]))
        value &= 0xFFFFFFFF
        packet = way.packet._replace(mark=value) if which[0] == "meta" else way.packet._replace(connmark=value)
        return [way.with_packet(packet)]

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
        for chance, target in targets(inner, way, self.conditions):
            part = way.times(chance)
            if part is None:
                continue
            if target is None:
                turn.on.append(part)
                continue
            if turn.start is not None:
                part = self._noted(turn, part, turn.start, _effect(statement))
            if isinstance(target, Unknown):
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

    _HANDLERS: ClassVar[dict[str, Callable[..., list[Way]]]] = {
        "match": _match,
        "vmap": _vmap,
        "accept": _accept,
        "drop": _drop,
        "reject": _reject,
        "return": _return,
        "continue": _continue,
        "jump": _jump,
        "goto": _jump,
        "mangle": _mangle,
        "set": _set,
        "dnat": _nat,
        "snat": _nat,
        "redirect": _nat,
        "masquerade": _nat,
        "notrack": _notrack,
    }


def _key(key: Any) -> tuple[str, str]:
    if isinstance(key, dict) and len(key) == 1:
        kind, inner = next(iter(key.items()))
        if isinstance(inner, dict):
            return kind, str(inner.get("key"))
    return "", ""


def _effect(statement: Statement) -> str:
    kind = next(iter(statement), "")
    inner = statement.get(kind)
    if kind in ("jump", "goto") and isinstance(inner, dict):
        return f"{'goes to' if kind == 'goto' else 'jumps to'} {inner.get('target')}"
    return {"mangle": "changes the mark", "set": "adds to a set"}.get(kind, kind.upper())
