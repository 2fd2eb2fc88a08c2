"""A packet through a chain of iptables, as ipt_do_table does it.

Rules are tried in order; all matches of a rule must hold. ACCEPT, DROP, REJECT and the NAT targets end the table, RETURN and the
chain's end go back to the caller, and a chain entered by `-g` goes back to *its caller's* caller. What cannot be
evaluated splits the way, and a target of unknown effect or a chain that the input does not show ends it as unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from podwire.explain import nat
from podwire.explain.chains import DEEPEST, End, Walked
from podwire.explain.hints import dnat_hint
from podwire.explain.matches import test_of
from podwire.explain.packet import Answer, Step, Supposed, TooManyWays, Unknown, Way, merge
from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from podwire.explain.facts import Facts
    from podwire.explain.matches import Test
    from podwire.explain.tables import IptablesRules, RuleChain, RuleRow, RuleTable

#: Targets after which the packet goes on as it was, as far as this walk sees it.
_HARMLESS = frozenset((
    "LOG",    "NFLOG",    "ULOG",    "TRACE",    "AUDIT",    "CHECKSUM",    "TCPMSS",    "TOS",    "DSCP",    "TTL",    "HL",    "ECN",    "CLASSIFY",    "IDLETIMER",    "LED",    "TEE",    "RATEEST",    "SECMARK",    "CONNSECMARK",    "TCPOPTSTRIP",    "SET",    "NFACCT",    "ACCOUNT",
))  # fmt: skip
#: kube-proxy's marking chains, for pastes that leave them out (its documented bits).
_KUBE_MARKS = {"KUBE-MARK-MASQ": 0x4000, "KUBE-MARK-DROP": 0x8000}


class IptablesWalk:
    """Walks one hook of one table. `next_hop` is the route's gateway, for MASQUERADE."""

    def __init__(self, rules: IptablesRules, table: RuleTable, hook: str, facts: Facts) -> None:
        self.rules = rules
        self.table = table
        self.hook = hook
        self.facts = facts
        self._tests: dict[tuple[str, int], tuple[tuple[v.Match, Test], ...]] = {}
        self._stack: list[str] = []

    def run(self, ways: list[Way], next_hop: str = "") -> Walked:
        """From the built-in chain to its policy: nobody comes `through` without a verdict."""
        self._next_hop = next_hop
        chain = self.table.chains.get(self.hook)
        if chain is None:
            return Walked(ways, [])
        try:
            walked = self._chain(chain, ways)
        except TooManyWays:
            return Walked([], [End("unknown", way, "too many ways to follow") for way in ways])
        ended = walked.ended
        policy = (chain.policy or "ACCEPT").upper()
        for way in walked.through:
            if policy == "ACCEPT":
                ended.append(End("accept", way, "policy"))
            else:
                step = self._step(chain, 0, f"-P {chain.name} {policy}", "DROP")
                ended.append(End("drop", way.met(step), f"the policy of {self.table.name} {chain.name} is {policy}"))
        return Walked([], ended)

    def run_from(self, chain: RuleChain, ways: list[Way]) -> Walked:
        """From any chain, for an input that does not show the built-in ones."""
        self._next_hop = ""
        try:
            return self._chain(chain, ways)
        except TooManyWays:
            return Walked([], [End("unknown", way, "too many ways to follow") for way in ways])

    # -- chains ------------------------------------------------------------------------------------------------------

    def _step(self, chain: RuleChain, position: int, text: str, effect: str, chance: float = 1.0) -> Step:
        return Step(self.rules.source, self.hook, self.table.name, chain.name, position, text, effect, chance)

    def _chain(self, chain: RuleChain, ways: list[Way]) -> Walked:
        if chain.name in self._stack or len(self._stack) >= DEEPEST:
            return Walked(
                [], [End("unknown", way, f"chains call each other in a circle at {chain.name}") for way in ways]
            )
        self._stack.append(chain.name)
        ended: list[End] = []
        back: list[Way] = []
        live = ways
        for row in chain.rows_for({(way.packet.dst, way.packet.dport) for way in ways}):
            live = self._row(chain, row, live, ended, back)
            if not live:
                break
        self._stack.pop()
        return Walked(merge(live + back), ended)

    def _row(self, chain: RuleChain, row: RuleRow, ways: list[Way], ended: list[End], back: list[Way]) -> list[Way]:
        """One rule: the ways that go on behind it."""
        on: list[Way] = []
        split = len(ways)
        for way in ways:
            for matched, chance in self._match(chain, row, way, on):
                on += self._verdict(chain, row, matched, chance, ended, back)
        return merge(on) if len(on) > max(1, split) or split > 1 else on

    def _match(self, chain: RuleChain, row: RuleRow, way: Way, on: list[Way]) -> list[tuple[Way, float]]:
        """The way where every match holds, if there is one; those where one does not are added to `on`."""
        key = (chain.name, row.position)
        tests = self._tests.get(key)
        if tests is None:
            place = f"{self.table.name} {chain.name} rule {row.position}:"
            tests = self._tests[key] = tuple([(match, test_of(match, place)) for match in row.matches])
        current: Way | None = way
        chance = 1.0
        for match, test in tests:
            assert current is not None  # the loop ends where it is None
            answer: Answer = test(current.packet, self.facts)
            if answer is True:
                if isinstance(match, v.Recent):
                    current = _listed(current, match)
                continue
            if answer is False:
                on.append(current)
                return []
            if not isinstance(answer, Unknown):
                chance *= answer
            current, other = current.split(answer)
            if other is not None:
                on.append(other)
            if current is None:
                return []
        return [(current, chance)] if current is not None else []

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def _verdict(
        self, chain: RuleChain, row: RuleRow, way: Way, chance: float, ended: list[End], back: list[Way]
    ) -> list[Way]:
        verdict = row.verdict
        if verdict is None:
            return [way.met(self._step(chain, row.position, row.text, "counts only", chance))]
        handler = self._HANDLERS.get(type(verdict), IptablesWalk._opaque)
        return handler(
            self, chain, row, way.met(self._step(chain, row.position, row.text, _effect(verdict), chance)), ended, back
        )

    def _accept(self, _c: RuleChain, _r: RuleRow, way: Way, ended: list[End], _b: list[Way]) -> list[Way]:
        ended.append(End("accept", way))
        return []

    def _drop(self, _c: RuleChain, _r: RuleRow, way: Way, ended: list[End], _b: list[Way]) -> list[Way]:
        ended.append(End("drop", way))
        return []

    def _reject(self, _c: RuleChain, row: RuleRow, way: Way, ended: list[End], _b: list[Way]) -> list[Way]:
        answer = row.verdict.answer if isinstance(row.verdict, v.Reject) else "icmp-port-unreachable"
        ended.append(End("reject", way, answer))
        return []

    def _return(self, _c: RuleChain, _r: RuleRow, way: Way, _e: list[End], back: list[Way]) -> list[Way]:
        back.append(way)
        return []

    def _jump(self, _: RuleChain, row: RuleRow, way: Way, ended: list[End], back: list[Way]) -> list[Way]:
        verdict = row.verdict
        assert isinstance(verdict, v.Jump | v.Goto)  # the table of handlers says so
        target = self.table.chains.get(verdict.chain)
        if target is None:
            return self._missing(row, verdict.chain, way, ended)
        walked = self._chain(target, [way])
        ended += walked.ended
        if isinstance(verdict, v.Goto):
            back += walked.through
            return []
        return walked.through

    def _missing(self, row: RuleRow, name: str, way: Way, ended: list[End]) -> list[Way]:
        """A target without options is an extension or a chain; a chain that the input lacks ends the walk."""
        if name in _HARMLESS:
            return [way]
        if name == "NOTRACK":
            return [way.with_packet(way.packet._replace(state="UNTRACKED", dst_settled=True, src_settled=True))]
        if name in ("REJECT", "MASQUERADE", "REDIRECT", "QUEUE"):
            return self._opaque(None, row, way, ended, [])
        mark = _KUBE_MARKS.get(name)
        if mark is not None:
            text = f"chain {name}, which is not in this input, sets the mark bit {mark:#x} and returns as kube-proxy's does"
            way = way._replace(given=(*way.given, Supposed(f"chain {name}", text, holds=True)))
            return [way.with_packet(way.packet._replace(mark=way.packet.mark | mark))]
        hint = dnat_hint(name, row)
        supposed = Supposed(f"chain {name}", f"what chain {name} does (it is not in this input)", holds=True)
        way = way._replace(given=(*way.given, supposed))
        if hint is not None:
            target = nat.parse_target(hint.target)
            if target is not None and target.addresses:
                way = nat.dnat(way, target)[0]
        ended.append(End("unknown", way, f"chain {name} is not in this input" + (f"; {hint.why}" if hint else "")))
        return []

    def _mark(self, _c: RuleChain, row: RuleRow, way: Way, _e: list[End], _b: list[Way]) -> list[Way]:
        """xt_MARK: skb->mark = (skb->mark & ~mask) ^ value; so value/0x0 is XOR."""
        verdict = row.verdict
        assert isinstance(verdict, v.SetMark)  # as above
        mark = (way.packet.mark & ~verdict.mask & v.FULL_MASK) ^ verdict.value
        return [way.with_packet(way.packet._replace(mark=mark))]

    def _nat(self, _c: RuleChain, row: RuleRow, way: Way, ended: list[End], _b: list[Way]) -> list[Way]:
        verdict: Any = row.verdict
        masquerade = isinstance(verdict, v.Masquerade)
        port_only = isinstance(verdict, v.Masquerade | v.Redirect)
        text = f":{verdict.to}" if port_only and verdict.to else verdict.to
        target = nat.parse_target(text) if text or port_only else None
        if target is None:
            return self._unreadable(row, way, ended, source=isinstance(verdict, v.Snat))
        if masquerade:
            made = nat.masquerade(way, self.facts, self._next_hop, target)
        elif isinstance(verdict, v.Redirect):
            made = nat.redirect(way, self.facts, target)
        else:
            made = nat.snat(way, target) if isinstance(verdict, v.Snat) else nat.dnat(way, target)
        ended += [End("accept", one, "nat") for one in made]
        return []

    def _unreadable(self, row: RuleRow, way: Way, ended: list[End], *, source: bool) -> list[Way]:
        if source:
            ended.append(End("accept", nat.unreadable(way, source=True), "nat"))
            return []
        hint = dnat_hint("", row, way.path)
        target = nat.parse_target(hint.target) if hint is not None else None
        if hint is None or target is None or not target.addresses:
            ended.append(
                End("unknown", nat.unreadable(way, source=False), "the DNAT target is not readable in this input")
            )
            return []
        supposed = Supposed(
            f"target {hint.target}",
            f"the DNAT target, not readable in this input, is {hint.target} ({hint.why})",
            holds=True,
        )
        way = way._replace(given=(*way.given, supposed))
        ended += [End("accept", one, "nat") for one in nat.dnat(way, target)]
        return []

    def _opaque(self, _c: RuleChain | None, row: RuleRow, way: Way, ended: list[End], _b: list[Way]) -> list[Way]:
        verdict = row.verdict
        text = verdict.text if isinstance(verdict, v.OpaqueTarget) else f"-j {getattr(verdict, 'chain', '')}"
        words = text.split()
        name = words[1] if len(words) > 1 and words[0] in ("-j", "-g") else ""
        if name in _HARMLESS:
            return [way]
        if name in ("DNAT", "SNAT"):
            return self._unreadable(row, way, ended, source=name == "SNAT")
        if name == "CT" and "--notrack" in words:
            return [way.with_packet(way.packet._replace(state="UNTRACKED", dst_settled=True, src_settled=True))]
        if name in ("CT", "CONNMARK") and not {"--restore-mark", "--set-zone"} & set(words):
            return [way]
        if name == "CONNMARK" and way.packet.connmark == 0 and not {"--ctmask", "--mask", "--nfmask"} & set(words):
            return [way.with_packet(way.packet._replace(mark=0))]
        if name == "REJECT":
            ended.append(End("reject", way, "icmp-port-unreachable"))
            return []
        if name in ("MASQUERADE", "REDIRECT"):
            ended.append(End("accept", nat.unreadable(way, source=name == "MASQUERADE"), "nat"))
            return []
        supposed = Supposed(f"target {text}", f"what {text or row.text} does", holds=True)
        ended.append(
            End("unknown", way._replace(given=(*way.given, supposed)), f"{text or row.text} is not understood")
        )
        return []

    _HANDLERS: ClassVar[dict[type[v.Verdict], Callable[..., list[Way]]]] = {
        v.Accept: _accept,
        v.Drop: _drop,
        v.Reject: _reject,
        v.Return: _return,
        v.Jump: _jump,
        v.Goto: _jump,
        v.SetMark: _mark,
        v.Dnat: _nat,
        v.Snat: _nat,
        v.Redirect: _nat,
        v.Masquerade: _nat,
        v.OpaqueTarget: _opaque,
    }


def _listed(way: Way, match: v.Recent) -> Way:
    if match.action not in ("set", "update"):
        return way
    ip = way.packet.src if match.side == "rsource" else way.packet.dst
    return way.with_packet(way.packet._replace(added=way.packet.added | {(f"recent {match.name}", str(ip))}))


def _effect(verdict: v.Verdict) -> str:
    if isinstance(verdict, v.Jump | v.Goto):
        return f"{'goes to' if isinstance(verdict, v.Goto) else 'jumps to'} {verdict.chain}"
    if isinstance(verdict, v.SetMark):
        return "changes the mark"
    if isinstance(verdict, v.OpaqueTarget):
        return verdict.text
    return type(verdict).__name__.upper()
