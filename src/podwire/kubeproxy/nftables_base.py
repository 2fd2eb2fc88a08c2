"""The part of the table `kube-proxy` that belongs to no Service: base chains, what they lead to, and the shared sets and maps.

    hook         priority      chain                                leads to
    prerouting   dstnat - 10   filter-prerouting-pre-dnat (new)     firewall-check
    output       -110          filter-output-pre-dnat (new)         firewall-check
    prerouting   dstnat        nat-prerouting                       services
    output       -100          nat-output                           services
    input        filter        filter-input (new)                   nodeport-endpoints-check, service-endpoints-check
    forward      filter        filter-forward (new)                 service-endpoints-check, cluster-ips-check
    output       filter        filter-output (new)                  service-endpoints-check, cluster-ips-check
    postrouting  srcnat        nat-postrouting                      masquerading

A source range is asked before DNAT, by the destination that the client used. A clusterIP that still is the destination
behind DNAT met no Service port: it is refused at once, and an address that no Service has, out of the ranges they are given
from, is dropped; else it would leave by the default route.

NodePorts never work on loopback: that would need route_localnet, and open 127.0.0.1 to the neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.kubeproxy import nftables as nft
from podwire.rules import vocabulary as v
from podwire.rules.nft import words as w

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.settings import Settings

TABLE = "kube-proxy"
TABLE_COMMENT = "rules for kube-proxy"

_L4 = ("meta l4proto", "th dport")
_HOOKS = (
    ("filter-prerouting-pre-dnat", "filter", "prerouting", "-110", ("firewall-check",)),
    ("filter-output-pre-dnat", "filter", "output", "-110", ("firewall-check",)),
    ("filter-input", "filter", "input", "0", ("nodeport-endpoints-check", "service-endpoints-check")),
    ("filter-forward", "filter", "forward", "0", ("service-endpoints-check", "cluster-ips-check")),
    ("filter-output", "filter", "output", "0", ("service-endpoints-check", "cluster-ips-check")),
    ("nat-prerouting", "nat", "prerouting", "-100", ("services",)),
    ("nat-output", "nat", "output", "-100", ("services",)),
    ("nat-postrouting", "nat", "postrouting", "100", ("masquerading",)),
)


def base(settings: Settings) -> nft.Block:
    """The base as it is with these settings."""
    ips = () if settings.node_port_ips is None else settings.node_port_ips
    elements = tuple(w.Element(nft.NODE_PORT_IPS, ip) for ip in ips)
    return nft.Block(tuple(_sets(settings)), (*_hooks(), *_helpers(settings)), elements)


def _sets(settings: Settings) -> Iterator[w.Set]:
    address = f"ipv{settings.family.version}_addr"
    frontend = f"{address} . inet_proto . inet_service"
    node_port = "inet_proto . inet_service"
    yield w.Set(nft.HAIRPIN, f"{address} . {frontend}", "service hairpin connections")
    yield w.Set(nft.CLUSTER_IPS, address, "Active ClusterIPs")
    if settings.node_port_ips is not None:
        yield w.Set(nft.NODE_PORT_IPS, address, "IPs that accept NodePort traffic")
    refused = "vmap to drop or reject packets to service{} with no endpoints"
    yield w.Set(nft.NO_ENDPOINT_SERVICES, frontend, refused.format("s"), verdicts=True)
    yield w.Set(nft.NO_ENDPOINT_NODE_PORTS, node_port, refused.format(" nodeports"), verdicts=True)
    what = "destinations that are subject to LoadBalancerSourceRanges"
    yield w.Set(nft.FIREWALL_IPS, frontend, what, verdicts=True)
    yield w.Set(nft.SERVICE_IPS, frontend, "ClusterIP, ExternalIP and LoadBalancer IP traffic", verdicts=True)
    yield w.Set(nft.SERVICE_NODE_PORTS, node_port, "NodePort traffic", verdicts=True)


def _hooks() -> Iterator[w.Chain]:
    new = w.Is("ct state", ("new",))
    for name, kind, hook, priority, targets in _HOOKS:
        condition: tuple[w.Word, ...] = (new,) if kind == "filter" else ()
        rules = tuple(w.Rule((*condition, v.Jump(target))) for target in targets)
        yield w.Chain(name, rules, f"type {kind} hook {hook} priority {priority}")


def _helpers(settings: Settings) -> Iterator[w.Chain]:
    header = "ip" if settings.family.version == 4 else "ip6"
    at = (f"{header} daddr", *_L4)
    by_node_port = w.ByMap(_L4, nft.NO_ENDPOINT_NODE_PORTS)
    checks = tuple(w.Rule((*match, by_node_port)) for match in _node_addresses(settings, header, incoming=True))
    yield w.Chain("nodeport-endpoints-check", checks)
    yield w.Chain("service-endpoints-check", (w.Rule((w.ByMap(at, nft.NO_ENDPOINT_SERVICES),)),))
    yield w.Chain("firewall-check", (w.Rule((w.ByMap(at, nft.FIREWALL_IPS),)),))
    yield w.Chain("services", tuple(_services(settings, header)))
    yield w.Chain("masquerading", tuple(_masquerading(settings, header)))
    yield w.Chain("cluster-ips-check", tuple(_cluster_ips_check(settings, header)))
    what = "helper for @no-endpoint-services / @no-endpoint-nodeports"
    yield w.Chain(nft.REJECT_CHAIN, (w.Rule((w.Reject(),)),), comment=what)


def _node_addresses(settings: Settings, header: str, *, incoming: bool = False) -> Iterator[tuple[w.Word, ...]]:
    """The conditions, of which one must hold, that a packet's destination takes NodePort traffic.

    `incoming` packets are for an address of this node anyway.
    """
    local = w.Is("fib daddr type", ("local",))
    if settings.node_port_ips is None:
        loopback = w.Is(f"{header} daddr", (_spelled(settings.family, settings.family.loopback),), inverted=True)
        yield (loopback,) if incoming else (local, loopback)
        return
    yield (w.In((f"{header} daddr",), nft.NODE_PORT_IPS),)
    for prefix in settings.node_port_ranges:
        yield w.Is(f"{header} daddr", (prefix,)), local


def _spelled(family: Family, prefix: str) -> str:
    return prefix.removesuffix(f"/{family.bits}")


def _services(settings: Settings, header: str) -> Iterator[w.Rule]:
    to_cluster_ip, mark = w.In((f"{header} daddr",), nft.CLUSTER_IPS), w.Mark("|", settings.masquerade_mark)
    if settings.masquerade_all:
        yield w.Rule((to_cluster_ip, mark), "masquerade all clusterIP traffic")
    elif settings.detector is not None:
        outside = nft.is_from(settings.detector, local=False)
        yield w.Rule((to_cluster_ip, outside, mark), "masquerade clusterIP traffic from outside cluster")
    yield w.Rule((w.ByMap((f"{header} daddr", *_L4), nft.SERVICE_IPS),))
    for match in _node_addresses(settings, header):
        yield w.Rule((*match, w.ByMap(_L4, nft.SERVICE_NODE_PORTS)))


def _masquerading(settings: Settings, header: str) -> Iterator[w.Rule]:
    mark = settings.masquerade_mark
    # The mark is cleared, so that a packet which passes the stack again (a tunnel) is not masqueraded twice.
    yield w.Rule((w.Marked(mark), w.Mark("^", mark), w.Masquerade()))
    flow = (f"{header} saddr", f"{header} daddr", *_L4)
    yield w.Rule((w.Is("ct status", ("dnat",)), w.In(flow, nft.HAIRPIN), w.Masquerade()))


def _cluster_ips_check(settings: Settings, header: str) -> Iterator[w.Rule]:
    to_cluster_ip = w.In((f"{header} daddr",), nft.CLUSTER_IPS)
    yield w.Rule((to_cluster_ip, w.Reject()), "Reject traffic to invalid ports of ClusterIPs")
    if settings.service_cidrs:
        unused = w.Is(f"{header} daddr", nft.merged(settings.family, list(settings.service_cidrs)))
        yield w.Rule((unused, v.Drop()), "Drop traffic to unallocated ClusterIPs")
