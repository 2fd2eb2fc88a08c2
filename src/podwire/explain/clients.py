"""Who may ask for a port of this node, each walked for real: a client outside, the node itself, its loopback, a pod of it.

A bare dump does not tell the node's addresses. Then one that the rules name for NodePorts stands for the node, else one of a
documentation range; the report says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from podwire.addresses import Ip
from podwire.errors import UsageError
from podwire.explain.explain import explain
from podwire.explain.packet import UNKNOWN
from podwire.explain.question import Question, node_address
from podwire.explain.routing import Routing
from podwire.explain.snapshot import Address, name_of, namespace_of
from podwire.explain.snapshot_words import inner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.explain.answer import Answer
    from podwire.explain.picture import Picture

_STAND_IN = {4: "192.0.2.1", 6: "2001:db8::1"}
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}
_ADDRESS = re.compile(r"^\d+\.\d+\.\d+\.\d+$")
_NODEPORTS_OF = re.compile(r"-d ([\d.]+)/\d+ .*-j KUBE-NODEPORTS")


@dataclass(slots=True)
class Client:
    """Somebody who asks, and what becomes of it. `who`: external, node, loopback or pod NAMESPACE/NAME."""

    who: str
    source: str
    to: str
    answer: Answer

    @property
    def targets(self) -> list[str]:
        """Where it is translated to."""
        return [one.to or "?" for one in self.answer.outcomes if one.verdict == "dnat"]

    @property
    def translated(self) -> bool:
        """Whether every end that needs no supposition is a translation."""
        plain = [one for one in self.answer.outcomes if not one.depends_on] or self.answer.outcomes
        return bool(plain) and all(one.verdict == "dnat" for one in plain)


def with_address(picture: Picture, family: int = 4) -> tuple[Picture, Ip, list[str]]:
    """The node with an address to ask for, that address, and what was assumed."""
    found = node_address(picture, family)
    if found is not None:
        return picture, found, []
    named = _named(picture) if family == 4 else ""
    text = named or _STAND_IN[family]
    why = "the rules name it for NodePorts" if named else "it stands for the node's own, which the input does not tell"
    addresses = [
        *(picture.facts.addresses or ()),
        Address(UNKNOWN, text, 32 if family == 4 else 128, "global", "assumed"),
    ]
    snapshot = picture.snapshot
    routing = Routing(addresses, snapshot.routes, snapshot.policy_rules)
    facts = replace(picture.facts, addresses=addresses, routing=routing)
    said = f"{text} is an address of this node: {why} (--node-address)"
    return replace(picture, facts=facts), Ip.parse(text), [said]


def _named(picture: Picture) -> str:
    """An address that the rules take NodePorts for."""
    for rules in picture.ruleset.iptables:
        table = rules.tables.get("nat")
        chain = table.chains.get("KUBE-SERVICES") if table is not None else None
        for line in chain.lines if chain is not None else ():
            found = _NODEPORTS_OF.search(line)
            if found is not None and not found[1].startswith("127."):
                return found[1]
    for one in picture.ruleset.nft:
        known = one.sets.get("nodeport-ips") if (one.family, one.name) == ("ip", "kube-proxy") else None
        for element, _ in known.elements if known is not None else ():
            if isinstance(element, str) and _ADDRESS.match(element) and not element.startswith("127."):
                return element
    return ""


def ask(who: str, source: str, to: str, picture: Picture, peers: Sequence[Picture], **more: str) -> Client | None:
    """One client; None where the question makes no sense on this node."""
    try:
        answer = explain(Question(source, to, **more), picture, peers)  # type: ignore[arg-type]  # only texts are given
    except UsageError:
        return None
    return Client(who, source, to, answer)


def of_port(picture: Picture, peers: Sequence[Picture], address: Ip, port: int, protocol: str) -> list[Client]:
    """The three kinds of clients of a port of the node."""
    family = 4 if address.bits == 32 else 6
    to = f"{_bracketed(str(address))}:{port}/{protocol}"
    loop = _LOOPBACK[family]
    asked = [
        ask("external", "external", to, picture, peers),
        ask("node", str(address), to, picture, peers, in_interface="local"),
        ask("loopback", loop, f"{_bracketed(loop)}:{port}/{protocol}", picture, peers, in_interface="local"),
    ]
    return [one for one in asked if one is not None]


def of_address(picture: Picture, peers: Sequence[Picture], address: str, port: int, protocol: str, *, outside: bool) -> list[Client]:  # fmt: skip
    """Clients of a clusterIP (`outside` False: the node and a pod of it), or of an address meant for the outside."""
    to = f"{_bracketed(address)}:{port}/{protocol}"
    asked = [ask("external", "external", to, picture, peers)] if outside else []
    asked.append(ask("node", "node", to, picture, peers))
    if not outside:
        asked += [ask(f"pod {pod[4:]}", pod, to, picture, peers) for pod in _pods(picture)]
    return [one for one in asked if one is not None]


def _pods(picture: Picture) -> Iterator[str]:
    """One pod of this node that has its own network."""
    node = picture.snapshot.node
    for pod in picture.snapshot.pods or ():
        spec = inner(pod, "spec")
        if spec.get("hostNetwork") or not inner(pod, "status").get("podIP"):
            continue
        if node is not None and spec.get("nodeName") == name_of(node):
            yield f"pod/{namespace_of(pod) or 'default'}/{name_of(pod)}"
            return


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
