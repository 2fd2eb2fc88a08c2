"""The packet as the walk sees it, and one way it may go: values that are never changed, only replaced.

A `Packet` is what rules can ask about: header, interfaces, marks, conntrack's view. A `Way` is a packet at a place with
the probability of having come there, the rules that matched, and what had to be supposed on the way: a match that podwire
cannot evaluate splits a way in two, and both remember which answer they stand for. So `chance` is always the probability *given*
the suppositions in `given`; without any, the chances of all ways together are 1.

Ways that differ in nothing that later rules could see are merged again (`merge`), or thirty rules that cannot be read
would make a thousand million ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.addresses import Ip

#: An interface that exists but whose name is not known. None in its place means that there is none.
UNKNOWN = "?"
#: More ways than this at one place are no answer any more.
MOST_WAYS = 1024
#: More suppositions than this on one way are no answer either (and would cost memory by their square).
MOST_SUPPOSED = 128


class Packet(NamedTuple):
    """What a rule can ask. A port None is not known (or the protocol has none); so is an uid of the node's own packet."""

    protocol: str
    src: Ip
    dst: Ip
    sport: int | None = None
    dport: int | None = None
    iif: str | None = None
    oif: str | None = None
    physin: str = ""
    physout: str = ""
    own: bool = False  # the node made it
    mark: int = 0
    connmark: int = 0
    state: str = "NEW"  # NEW, ESTABLISHED, RELATED, INVALID, UNTRACKED
    reply: bool = False  # in the reply direction of its flow
    dnat: bool = False
    snat: bool = False
    dst_settled: bool = False  # the flow's destination mapping is made, be it "none"
    src_settled: bool = False
    src_known: bool = True  # False: rewritten to an address that the input does not tell
    dst_known: bool = True
    flags: frozenset[str] = frozenset({"SYN"})
    icmp: tuple[int, int] = (8, 0)
    uid: int | None = None
    gid: int | None = None
    first_src: Ip | None = None  # the flow's original addresses and ports
    first_dst: Ip | None = None
    first_sport: int | None = None
    first_dport: int | None = None
    added: frozenset[tuple[str, str]] = frozenset()  # what rules have put into sets and lists: (set, element)
    to_self: bool = False  # sent to an address of this node that the input does not tell

    @property
    def family(self) -> int:
        """4 or 6."""
        return 4 if self.dst.bits == 32 else 6


class Unknown(NamedTuple):
    """A question the input does not answer. The same `key` has the same answer all along a way.

    `inverted`: the match that asks holds where the answer is no.
    """

    key: str
    text: str
    inverted: bool = False


#: What a match says: yes, no, with this probability, or that it cannot be told.
Answer = bool | float | Unknown


class Supposed(NamedTuple):
    """A question and the answer that a way stands for."""

    key: str
    text: str
    holds: bool

    def __str__(self) -> str:
        return self.text if self.holds else f"not: {self.text}"


class Step(NamedTuple):
    """A rule that matched. `position` counts from 1 (0: the chain's policy); `maybe` when only some of the merged ways met it."""

    source: str  # iptables-nft, iptables-legacy, iptables, nft, routing, conntrack, bridge
    hook: str
    table: str
    chain: str
    position: int
    text: str
    effect: str
    chance: float = 1.0
    maybe: bool = False


class Path:
    """The steps of a way, newest first; ways that split share what they had in common."""

    __slots__ = ("before", "depth", "step")

    def __init__(self, step: Step, before: Path | None) -> None:
        self.step = step
        self.before = before
        self.depth: int = 1 if before is None else before.depth + 1


def steps(path: Path | None) -> list[Step]:
    """The steps in the order in which they were met."""
    found = []
    while path is not None:
        found.append(path.step)
        path = path.before
    found.reverse()
    return found


class Way(NamedTuple):
    """See the module's text."""

    packet: Packet
    chance: float = 1.0
    path: Path | None = None
    given: tuple[Supposed, ...] = ()

    def met(self, step: Step) -> Way:
        """With one more step."""
        return Way(self.packet, self.chance, Path(step, self.path), self.given)

    def with_packet(self, packet: Packet) -> Way:
        """The same way with a changed packet."""
        return Way(packet, self.chance, self.path, self.given)

    def split(self, answer: Answer) -> tuple[Way | None, Way | None]:
        """The way where the answer is yes, and the one where it is no."""
        if answer is True:
            return self, None
        if answer is False:
            return None, self
        if isinstance(answer, Unknown):
            for supposed in self.given:
                if supposed.key == answer.key:
                    return (self, None) if supposed.holds is not answer.inverted else (None, self)
            packet, chance, path, given = self
            if len(given) >= MOST_SUPPOSED:
                raise TooManyWays
            yes = Way(packet, chance, path, (*given, Supposed(answer.key, answer.text, holds=True)))
            no = Way(packet, chance, path, (*given, Supposed(answer.key, answer.text, holds=False)))
            return (no, yes) if answer.inverted else (yes, no)
        return self.times(answer), self.times(1.0 - answer)

    def times(self, chance: float) -> Way | None:
        """The same way with a probability; None when that is 0."""
        return Way(self.packet, self.chance * chance, self.path, self.given) if chance > 0 else None


class TooManyWays(Exception):
    """More ways than MOST_WAYS at one place, or more than MOST_SUPPOSED suppositions on one."""


def merge(ways: list[Way]) -> list[Way]:
    """Ways with equal packets become one where that loses nothing but which rules were met. Raises TooManyWays."""
    if len(ways) < 2:
        return ways
    groups: dict[Packet, list[Way]] = {}
    for way in ways:
        groups.setdefault(way.packet, []).append(way)
    if len(groups) < len(ways):
        ways = [way for group in groups.values() for way in _merge_group(group)]
    if len(ways) > MOST_WAYS:
        raise TooManyWays
    return ways


def _merge_group(group: list[Way]) -> list[Way]:
    by_given: dict[frozenset[tuple[str, bool]], Way] = {}
    for way in group:
        _put(by_given, way)
    return list(by_given.values())


def _put(by_given: dict[frozenset[tuple[str, bool]], Way], way: Way) -> None:
    """Add a way: as more of an equal one, or together with one that supposes the contrary of one thing."""
    while True:
        given = frozenset([(supposed.key, supposed.holds) for supposed in way.given])
        other = by_given.pop(given, None)
        if other is not None:
            by_given[given] = Way(way.packet, other.chance + way.chance, _join(other.path, way.path), way.given)
            return
        for supposed in way.given:
            contrary = (given - {(supposed.key, supposed.holds)}) | {(supposed.key, not supposed.holds)}
            other = by_given.get(contrary)
            if other is not None and abs(other.chance - way.chance) < 1e-12:
                del by_given[contrary]
                kept = tuple([one for one in way.given if one.key != supposed.key])
                way = Way(way.packet, way.chance, _join(other.path, way.path), kept)
                break
        else:
            by_given[given] = way
            return


def _join(one: Path | None, two: Path | None) -> Path | None:
    """A path with the steps of both; what is not on both is marked `maybe`."""
    first: list[Step] = []
    second: list[Step] = []
    while one is not two:
        if two is None or (one is not None and one.depth >= two.depth):
            assert one is not None  # they differ
            first.append(one.step)
            one = one.before
        else:
            second.append(two.step)
            two = two.before
    seen = set(first)
    for step in [step for step in reversed(second) if step not in seen] + list(reversed(first)):
        one = Path(step._replace(maybe=True), one)
    return one


def suppositions(ways: Iterable[Way]) -> list[Supposed]:
    """Every question that any of the ways had to answer for itself, once each."""
    found: dict[str, Supposed] = {}
    for way in ways:
        for supposed in way.given:
            found.setdefault(supposed.key, supposed)
    return list(found.values())
