"""All chains of a node as one graph, whatever the dialect: a chain's edges lead to other chains, or to ends.

Nothing is evaluated here: the graph says where a rule may lead, the walk says where a packet goes. An nft map is spread out into one
edge for each element, so that `vmap @service-ips` and ten thousand rules of KUBE-SERVICES look alike. Edges are read when
a chain is first asked for them: a node may have 400,000 rules and one question concerns thirty.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.explain.nft_spell import expression

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.explain.hooks import Ruleset
    from podwire.explain.nft import NftChain, NftRule, NftTable
    from podwire.explain.tables import RuleChain

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TARGET = re.compile(r"(?:^| )-([jg]) (\S+)")
_TO = re.compile(r"--to-destination (\S+)")
_SAID_TO = re.compile(r" -> (\[[0-9a-fA-F:]+\]:\d+|[\d.]+:\d+)")
_KINDS = {
    "DNAT": "dnat", "SNAT": "snat", "MASQUERADE": "masquerade", "REDIRECT": "redirect", "MARK": "mark", "DROP": "drop",
    "REJECT": "reject", "ACCEPT": "accept", "RETURN": "return",
}  # fmt: skip
_ENDS = ("drop", "reject", "accept", "return", "masquerade", "snat", "redirect")


class Place(NamedTuple):
    """A chain: `source` is iptables-nft, iptables-legacy, iptables or nft; `family` 4 or 6, or nft's word for it."""

    source: str
    family: str
    table: str
    chain: str

    def beside(self, chain: str) -> Place:
        """Another chain of the same table."""
        return self._replace(chain=chain)


class Edge(NamedTuple):
    """Where a rule may lead. `kind`: jump, goto, dnat, …; `to` a chain, or for dnat what is translated to; `via` the nft map.

    `text` is the rule as it stood in the input; `line` of an iptables rule is always in iptables-save's syntax.
    """

    position: int
    text: str
    kind: str
    to: str
    via: str = ""
    line: str = ""

    @property
    def leads_on(self) -> bool:
        """Whether `to` is a chain."""
        return self.kind in ("jump", "goto")


class Graph:
    """See the module's text."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._iptables: dict[Place, RuleChain] = {}
        self._nft: dict[Place, tuple[NftTable, NftChain]] = {}
        self._edges: dict[Place, list[Edge]] = {}
        for rules in ruleset.iptables:
            for table in rules.tables.values():
                for name, chain in table.chains.items():
                    self._iptables[Place(rules.source, str(rules.family), table.name, name)] = chain
        for one in ruleset.nft:
            for name, nft_chain in one.chains.items():
                self._nft[Place("nft", one.family, one.name, name)] = (one, nft_chain)

    def __contains__(self, place: Place) -> bool:
        return place in self._iptables or place in self._nft

    def places(self) -> Iterator[Place]:
        """Every chain."""
        yield from self._iptables
        yield from self._nft

    def base(self, place: Place) -> bool:
        """Whether the kernel itself calls the chain."""
        if place in self._nft:
            return bool(self._nft[place][1].hook)
        return self._iptables[place].policy is not None

    def policy(self, place: Place) -> str:
        """The policy of a base chain."""
        found = self._nft[place][1].policy if place in self._nft else self._iptables[place].policy
        return (found or "").lower()

    def size(self, place: Place) -> int:
        """How many rules the chain has."""
        return len(self._nft[place][1].rules) if place in self._nft else len(self._iptables[place].lines)

    def rules(self, place: Place) -> list[tuple[int, str]]:
        """The chain's rules as they stood in the input, with their positions."""
        if place in self._nft:
            return [(rule.position, rule.text) for rule in self._nft[place][1].rules]
        chain = self._iptables[place]
        shown = chain.shown or [f"-A {chain.name} {line}".rstrip() for line in chain.lines]
        return list(enumerate(shown, 1))

    def edges(self, place: Place) -> list[Edge]:
        """Where the chain's rules may lead, in order."""
        if place not in self._edges:
            if place in self._nft:
                table, chain = self._nft[place]
                self._edges[place] = [edge for rule in chain.rules for edge in _nft_edges(rule, table)]
            elif place in self._iptables:
                self._edges[place] = list(_iptables_edges(self._iptables[place], place, self._iptables))
            else:
                return []
        return self._edges[place]

    def below(self, *places: Place) -> list[Place]:
        """The chains and all that they lead to, each once, in the order of the rules."""
        found: dict[Place, None] = {}
        todo = list(places[::-1])
        while todo:
            at = todo.pop()
            if at in found or at not in self:
                continue
            found[at] = None
            todo += reversed([at.beside(edge.to) for edge in self.edges(at) if edge.leads_on])
        return list(found)

    def targets(self, place: Place) -> list[str]:
        """What packets may be translated to below a chain, each once; of a chain that was not pasted, what the comment says."""
        return list(dict.fromkeys([end for one in self.below(place) for end, _ in self.ends(one)]))

    def ends(self, place: Place) -> list[tuple[str, str]]:
        """What a chain itself translates to, each with the chain that does: its own name, or one that is not in the input."""
        found = []
        for edge in self.edges(place):
            if edge.kind == "dnat":
                found.append((edge.to, place.chain))
            elif edge.leads_on and edge.to.startswith("KUBE-SEP-") and place.beside(edge.to) not in self:
                said = _SAID_TO.search(edge.line)
                if said is not None:
                    found.append((said[1], edge.to))
        return found


# -- iptables --------------------------------------------------------------------------------------------------------


def _iptables_edges(chain: RuleChain, place: Place, known: dict[Place, RuleChain]) -> Iterator[Edge]:
    for position, line in enumerate(chain.lines, 1):
        bare = _QUOTED.sub('""', line) if '"' in line else line
        found = _TARGET.search(bare)
        if found is None:
            continue
        shown = f"-A {chain.name} {line}" if chain.shown is None else chain.shown[position - 1]
        target = found[2]
        if target in _KINDS and place.beside(target) not in known:
            to = _TO.search(bare, found.start())
            yield Edge(position, shown, _KINDS[target], to[1] if to else "", "", line)
        elif place.beside(target) in known or target.startswith(("KUBE-", "CNI-", "cali-")):
            yield Edge(position, shown, "goto" if found[1] == "g" else "jump", target, "", line)
        else:
            yield Edge(position, shown, "other", target, "", line)


# -- nft -------------------------------------------------------------------------------------------------------------


def _nft_edges(rule: NftRule, table: NftTable) -> Iterator[Edge]:
    for statement in rule.statements:
        kind, value = next(iter(statement.items()), ("", None))
        if kind in ("jump", "goto") and isinstance(value, dict):
            yield Edge(rule.position, rule.text, kind, str(value.get("target", "")))
        elif kind == "vmap" and isinstance(value, dict):
            yield from _map_edges(rule, value.get("data"), table)
        elif kind == "dnat":
            for to in _dnat_targets(value, table):
                yield Edge(rule.position, rule.text, "dnat", to)
        elif kind in _ENDS:
            yield Edge(rule.position, rule.text, kind, "")


def _elements(data: Any, table: NftTable) -> tuple[str, list[tuple[Any, Any]]]:
    """A map's name ('' where it stands in the rule) and its elements."""
    if isinstance(data, str) and data.startswith("@"):
        named = table.sets.get(data[1:])
        return data, list(named.elements) if named is not None else []
    inner = data.get("set") if isinstance(data, dict) else None
    pairs = [tuple(one) for one in inner or () if isinstance(one, list | tuple) and len(one) == 2]
    return "", [(key, value) for key, value in pairs]


def _map_edges(rule: NftRule, data: Any, table: NftTable) -> Iterator[Edge]:
    name, elements = _elements(data, table)
    for key, verdict in elements:
        kind, value = next(iter(verdict.items()), ("", None)) if isinstance(verdict, dict) else (str(verdict), None)
        target = str(value.get("target", "")) if isinstance(value, dict) else ""
        text = f"{expression(key)} : {kind} {target}".rstrip() if name else rule.text
        if kind in ("jump", "goto") or kind in _ENDS:
            yield Edge(rule.position, text, kind, target, name)


def _dnat_targets(value: Any, table: NftTable) -> list[str]:
    if not isinstance(value, dict):
        return []
    if "text" in value:
        return [str(value["text"])]
    addr, port = value.get("addr"), value.get("port")
    inner = addr.get("map") if isinstance(addr, dict) else None
    if not isinstance(inner, dict):
        return [_join(addr, port)] if addr is not None or port is not None else []
    _, elements = _elements(inner.get("data"), table)
    found = []
    for _, to in elements:
        parts = to.get("concat") if isinstance(to, dict) else None
        found.append(_join(parts[0], parts[1]) if isinstance(parts, list) and len(parts) == 2 else _join(to, port))
    return found


def _join(addr: Any, port: Any) -> str:
    host = expression(addr) if addr is not None else ""
    if port is None:
        return host
    return f"[{host}]:{expression(port)}" if ":" in host else f"{host}:{expression(port)}"
