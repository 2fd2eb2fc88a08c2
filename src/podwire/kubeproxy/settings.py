"""What rules depend on besides Services and endpoints: the node and the configuration, resolved for one family.

`resolve` turns names into addresses once a full sync; a change of any field asks for a full sync again. The local
detector is a pair of matches: how a rule asks "does this come from a pod of this cluster (or node)?" and its opposite.
Without one, clusterIP traffic is never masqueraded and external policy Local knows no pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from podwire.kubeproxy.family import Family


@dataclass(frozen=True, slots=True)
class LocalDetector:
    """The match that holds for local pods' traffic, and the one that holds for all other traffic."""

    local: v.Match
    remote: v.Match


@dataclass(frozen=True, slots=True)
class Settings:
    """For one family on this node.

    `node_port_ips` are the addresses that take NodePort traffic, None for every local one; `node_port_ranges` stand for
    addresses nobody knows yet (a dry run away from the node). `forward_invalid` leaves packets of conntrack state INVALID
    alone, as a liberal tracker makes none that matter.
    """

    family: Family
    node: str
    zone: str = ""
    node_ip: str | None = None
    detector: LocalDetector | None = None
    masquerade_mark: int = 1 << 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    node_port_ips: tuple[str, ...] | None = None
    node_port_ranges: tuple[str, ...] = ()
    forward_invalid: bool = False


def detector_for_prefix(prefix: str) -> LocalDetector:
    """Pods are known by their source address."""
    return LocalDetector(v.Source(prefix), v.Source(prefix, inverted=True))


def detector_for_interface(name: str) -> LocalDetector:
    """Pods are known by the interface they come in by; a final + stands for any rest of the name."""
    return LocalDetector(v.InInterface(name), v.InInterface(name, inverted=True))
