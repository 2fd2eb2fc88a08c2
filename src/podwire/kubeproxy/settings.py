"""What rules depend on besides Services and endpoints: the node and the configuration, resolved for one family.

`resolve` turns names into addresses before each sync; any difference to the last time leads to a full sync. The local
detector is a pair of matches: how a rule asks "does this come from a local pod?" and its opposite. Without one, clusterIP
traffic is never masqueraded and external policy Local knows no pods.

Which addresses take NodePort traffic is "all local ones" unless prefixes are configured; nftables mode's default is `primary`.
Then it is the addresses of the node's interfaces that lie in the prefixes, and `primary` stands for the node's own IP. A
family for which no prefix is given takes all. Loopback addresses take it in iptables mode only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.kubeproxy.config import PRIMARY
from podwire.kubeproxy.family import contains
from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from collections.abc import Iterable

    from podwire.kube.objects import Node
    from podwire.kubeproxy.config import Config
    from podwire.kubeproxy.family import Family

ZONE_LABEL = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True)
class LocalDetector:
    """The match that holds for local pods' traffic, and the one that holds for all other traffic."""

    local: v.Match
    remote: v.Match


@dataclass(frozen=True, slots=True)
class Settings:
    """For one family on this node.

    `node_port_ips` are the addresses that take NodePort traffic, None for every local one; `node_port_ranges` stand for
    addresses that cannot be known here (a dry run away from the node). `forward_invalid`: packets of conntrack state INVALID
    are left alone, because the tracker was told to be liberal. `service_cidrs` are the ranges clusterIPs are given from.
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
    service_cidrs: tuple[str, ...] = ()


def resolve(
    config: Config,
    family: Family,
    name: str,
    node: Node | None,
    interface_ips: Iterable[str],
    *,
    forward_invalid: bool = False,
    service_cidrs: Iterable[str] = (),
    on_node: bool = True,
) -> Settings:
    """The settings of a node: `node` is its object if there is one, `interface_ips` are its addresses of any family.

    `on_node` False says that these may not be all of them.
    """
    node_ip = _node_ip(config, family, node)
    prefixes = _node_port_prefixes(config, family, node_ip)
    guarded = config.localhost_node_ports and family.version == 4 and config.mode != "nftables"
    if prefixes and not any(contains(prefix, "127.0.0.1") for prefix in prefixes):
        guarded = False
    ips = _node_port_ips(family, prefixes, interface_ips, loopback=guarded) if prefixes else None
    unknown = (
        () if on_node else tuple(prefix for prefix in prefixes if not any(contains(prefix, ip) for ip in ips or ()))
    )
    return Settings(
        family=family,
        node=name,
        zone=node.metadata.labels.get(ZONE_LABEL, "") if node else "",
        node_ip=node_ip,
        detector=_detector(config, family, node),
        masquerade_mark=1 << config.masquerade_bit,
        masquerade_all=config.masquerade_all,
        localhost_node_ports=guarded,
        node_port_ips=ips,
        node_port_ranges=unknown,
        forward_invalid=forward_invalid,
        service_cidrs=tuple(sorted(prefix for text in service_cidrs if (prefix := family.prefix(text)) is not None)),
    )


def _node_ip(config: Config, family: Family, node: Node | None) -> str | None:
    """The bind address if it is a specific one, else the Node's InternalIP, else its ExternalIP."""
    bound = family.ip(config.bind_address)
    if bound is not None and bound not in ("0.0.0.0", "::"):
        return bound
    addresses = node.status.addresses if node else ()
    for kind in ("InternalIP", "ExternalIP"):
        for entry in addresses:
            ip = family.ip(entry.address) if entry.type == kind else None
            if ip is not None:
                return ip
    return None


def _node_port_prefixes(config: Config, family: Family, node_ip: str | None) -> tuple[str, ...]:
    """The prefixes NodePorts are limited to; none means all addresses."""
    found = []
    for text in config.node_port_prefixes:
        prefix = family.prefix(text) if text != PRIMARY else (family.host(node_ip) if node_ip else None)
        if prefix is not None:
            found.append(prefix)
    return () if any(prefix.endswith("/0") for prefix in found) else tuple(found)


def _node_port_ips(
    family: Family, prefixes: tuple[str, ...], interface_ips: Iterable[str], *, loopback: bool
) -> tuple[str, ...]:
    own = sorted({ip for text in interface_ips if (ip := family.ip(text)) is not None})
    return tuple(
        ip
        for ip in own
        if any(contains(prefix, ip) for prefix in prefixes) and (loopback or not contains(family.loopback, ip))
    )


def _detector(config: Config, family: Family, node: Node | None) -> LocalDetector | None:
    match config.detect_local_mode:
        case "BridgeInterface":
            return _by(v.InInterface, config.bridge_interface)
        case "InterfaceNamePrefix":
            return _by(v.InInterface, config.interface_name_prefix + "+")
        case "NodeCIDR":
            candidates = node.pod_cidrs if node else ()
        case _:
            candidates = config.cluster_cidrs
    prefixes = [prefix for text in candidates if (prefix := family.prefix(text)) is not None]
    return _by(v.Source, prefixes[0]) if prefixes else None


def _by(match: type[v.Source | v.InInterface], value: str) -> LocalDetector:
    return LocalDetector(match(value), match(value, inverted=True))
