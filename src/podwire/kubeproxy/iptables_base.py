"""The rules that belong to no Service: jumps from the built-in chains, the masquerade mark, forwarding, canaries.

Jumps are put in front of the built-in chains one by one, so the last of `JUMPS` ends up first. A jump that is already there
is left where it is: moving it could reverse the administrator's order.

KUBE-FIREWALL is shared with kubelet and is never emptied or removed; its one rule guards loopback: with route_localnet set, a
neighbour could send to 127.0.0.1 of this node. KUBE-PROXY-CANARY is an empty chain in each table by whose absence a flush
by somebody else (a firewall restart) is noticed.

The last rule of KUBE-SERVICES in nat leads to KUBE-NODEPORTS whatever is addressed to this node itself. That is all that
makes a NodePort: packets are taken in PREROUTING (and OUTPUT, for the node's own), before the kernel looks for a
listening socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.kubeproxy.settings import Settings

CANARY = "KUBE-PROXY-CANARY"
FIREWALL_CHAIN = "KUBE-FIREWALL"
TABLES = ("mangle", "filter", "nat")

_NEW = v.ConnState(("NEW",))
_PORTALS = "kubernetes service portals"
_EXTERNAL = "kubernetes externally-visible service portals"
_LB_FIREWALL = "kubernetes load balancer firewall"


@dataclass(frozen=True, slots=True)
class BuiltinJump:
    """A rule in a built-in chain that leads to one of ours."""

    table: str
    chain: str
    target: str
    comment: str = ""
    new_only: bool = False

    @property
    def rule(self) -> v.Rule:
        """The rule as a value."""
        state: tuple[v.Match, ...] = (_NEW,) if self.new_only else ()
        comment: tuple[v.Match, ...] = (v.Comment(self.comment),) if self.comment else ()
        return v.Rule((*state, *comment), v.Jump(self.target))


JUMPS = (
    BuiltinJump("filter", "INPUT", "KUBE-EXTERNAL-SERVICES", _EXTERNAL, new_only=True),
    BuiltinJump("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES", _EXTERNAL, new_only=True),
    BuiltinJump("filter", "INPUT", "KUBE-NODEPORTS", "kubernetes health check service ports"),
    BuiltinJump("filter", "FORWARD", "KUBE-SERVICES", _PORTALS, new_only=True),
    BuiltinJump("filter", "OUTPUT", "KUBE-SERVICES", _PORTALS, new_only=True),
    BuiltinJump("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    BuiltinJump("filter", "INPUT", "KUBE-PROXY-FIREWALL", _LB_FIREWALL, new_only=True),
    BuiltinJump("filter", "OUTPUT", "KUBE-PROXY-FIREWALL", _LB_FIREWALL, new_only=True),
    BuiltinJump("filter", "FORWARD", "KUBE-PROXY-FIREWALL", _LB_FIREWALL, new_only=True),
    BuiltinJump("filter", "INPUT", FIREWALL_CHAIN),
    BuiltinJump("filter", "OUTPUT", FIREWALL_CHAIN),
    BuiltinJump("nat", "OUTPUT", "KUBE-SERVICES", _PORTALS),
    BuiltinJump("nat", "PREROUTING", "KUBE-SERVICES", _PORTALS),
    BuiltinJump("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
)

# Chains of ours besides those of `iptables.SHARED_CHAINS` and of single ports.
BASE_CHAINS = (("filter", "KUBE-FORWARD"), ("nat", "KUBE-MARK-MASQ"), ("nat", "KUBE-POSTROUTING"))


def base_rules(settings: Settings) -> Iterator[tuple[tuple[str, str], v.Rule]]:
    """The rules of the base chains, as ((table, chain), rule)."""
    mark = settings.masquerade_mark
    marked = v.Mark(mark, mark)
    if not settings.forward_invalid:
        # An answer that conntrack takes for INVALID is not translated back: it would reach the client with the pod's
        # address, which answers with a reset.
        yield ("filter", "KUBE-FORWARD"), v.Rule((v.ConnState(("INVALID",)),), v.Drop())
    yield ("filter", "KUBE-FORWARD"), v.Rule((v.Comment("kubernetes forwarding rules"), marked), v.Accept())
    known = v.ConnState(("RELATED", "ESTABLISHED"))
    comment = v.Comment("kubernetes forwarding conntrack rule")
    yield ("filter", "KUBE-FORWARD"), v.Rule((comment, known), v.Accept())
    yield ("nat", "KUBE-MARK-MASQ"), v.Rule((), v.SetMark(mark, mark))
    yield ("nat", "KUBE-POSTROUTING"), v.Rule((v.Mark(mark, mark, inverted=True),), v.Return())
    # The mark is cleared, so that a packet which passes the stack again (a tunnel) is not masqueraded twice.
    yield ("nat", "KUBE-POSTROUTING"), v.Rule((), v.SetMark(mark, 0))
    comment = v.Comment("kubernetes service traffic requiring SNAT")
    yield ("nat", "KUBE-POSTROUTING"), v.Rule((comment,), v.Masquerade(flags=("random-fully",)))


def node_port_rules(settings: Settings) -> Iterator[v.Rule]:
    """The last rules of KUBE-SERVICES in nat: what goes to an address of this node goes on to KUBE-NODEPORTS."""
    family = settings.family
    comment = v.Comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
    target = v.Jump("KUBE-NODEPORTS")
    local = v.AddrType(destination=("LOCAL",))
    if settings.node_port_ips is None:
        # IPv6 has no route_localnet, so NodePorts never work on ::1.
        loopback_works = family.version == 4 and settings.localhost_node_ports
        but = () if loopback_works else (v.Destination(family.loopback, inverted=True),)
        yield v.Rule((*but, comment, local), target)
        return
    for ip in settings.node_port_ips:
        yield v.Rule((v.Destination(family.host(ip)), comment), target)
    for prefix in settings.node_port_ranges:
        yield v.Rule((v.Destination(prefix), comment, local), target)


def localhost_guard(settings: Settings) -> v.Rule | None:
    """The rule of KUBE-FIREWALL, where one is needed."""
    if settings.family.version != 4 or not settings.localhost_node_ports:
        return None
    loopback = settings.family.loopback
    comment = v.Comment("block incoming localnet connections")
    known = v.ConnState(("RELATED", "ESTABLISHED", "DNAT"), inverted=True)
    return v.Rule((v.Source(loopback, inverted=True), v.Destination(loopback), comment, known), v.Drop())
