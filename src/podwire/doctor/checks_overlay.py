"""Checks of the overlay on one node: MTUs, routes, forwarding entries, neighbours and the VTEP's MAC, against what the Nodes announce."""

from __future__ import annotations

import json
import re
from ipaddress import ip_network
from typing import TYPE_CHECKING

from podwire.doctor.checks_nodes import _cidrs, _deleting, _public
from podwire.doctor.finding import Check, Evidence, Said
from podwire.doctor.view import annotation, overlaps
from podwire.explain.snapshot import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.doctor.view import Network, Node
    from podwire.explain.snapshot import Link, Object

#: What a backend adds to each packet, IPv4 outside / IPv6 outside.
_OVERHEAD = {"vxlan": (50, 70), "wireguard": (60, 80), "ipip": (20, 40)}
_INNER = re.compile(
    r"^(?:lo|cni\d|cbr0|flannel|veth|cali|docker|br-|tunl|vxlan|kube|nodelocal|lxc|cilium|virbr|weave|dummy|ip6tnl|sit|gre|ifb|bond_slave)"
)


def _uplink(node: Node) -> Link | None:
    """The device that outer packets leave by: the vxlan device's own, else the default route's, else the only one."""
    links = node.snapshot.links or ()
    below = next((link.vxlan.dev for link in links if link.vxlan and link.vxlan.dev), "")
    default = next((route.dev for route in node.snapshot.routes or () if route.default), "")
    for name in (below, default):
        found = node.snapshot.link(name) if name else None
        if found:
            return found
    outer = [link for link in links if not _INNER.match(link.name) and link.mtu]
    return outer[0] if len(outer) == 1 else None


def _overlay(node: Node) -> Link | None:
    return next((link for link in node.snapshot.links or () if link.name.startswith("flannel") and link.mtu), None)


def look_mtu(node: Node) -> Iterator[Said]:
    """Inner devices may not be larger than the overlay, nor the overlay larger than the uplink allows."""
    overlay, uplink = _overlay(node), _uplink(node)
    if overlay is None:
        return
    kind = "wireguard" if "wg" in overlay.name else "vxlan"
    six = bool(overlay.vxlan and ":" in overlay.vxlan.local)
    overhead = _OVERHEAD[kind][1 if six or kind == "wireguard" else 0]
    most = uplink.mtu - overhead if uplink else 0
    if uplink and overlay.mtu > most:
        yield Said(
            [
                Evidence(
                    f"{overlay.name} has mtu {overlay.mtu}; {uplink.name} has {uplink.mtu}, and {kind} needs {overhead}: at most {most}",
                    overlay.where,
                )
            ],
            [
                f"ip link set {overlay.name} mtu {most}",
                "restart flanneld (it takes the uplink's MTU at start), then recreate the bridge and the pods",
            ],
            title=f"{node.title}: {overlay.name} is larger than its uplink carries",
            why="Outer packets of full size do not fit on the wire. This node fragments its own, but what others send to it is lost on the way: connections"
            " open and large transfers hang, in one direction only. Lowering an uplink's MTU later does not lower the overlay's.",
        )
    inner = [
        link
        for link in node.snapshot.links or ()
        if (node.bridge in (link.name, link.master) or link.name == "cni0") and link.mtu > overlay.mtu
    ]
    bridge = node.snapshot.link(node.bridge)
    # An empty bridge has the MTU it was born with (1500); it takes that of its ports with the first pod.
    if inner and not (bridge and inner == [bridge] and not node.ports(node.bridge) and node.snapshot.live):
        yield Said(
            [Evidence(", ".join(f"{link.name} {link.mtu}" for link in inner[:6]) + f"; {overlay.name} {overlay.mtu}", inner[0].where)],
            [f"\"mtu\": {overlay.mtu} in the bridge's configuration (flannel's delegate gets FLANNEL_MTU by itself), then recreate {node.bridge} and the pods"],
            title=f"{node.title}: pods' devices are larger than {overlay.name}", level="warning",
            why='It works only by ICMP: the node tells each pod "fragmentation needed" per destination, for ten minutes. Where ICMP is filtered, large transfers hang.',
        )  # fmt: skip
    yield from _said_mtu(node, overlay)


def _said_mtu(node: Node, overlay: Link) -> Iterator[Said]:
    env = node.snapshot.environment().get("FLANNEL_MTU", "")
    assert_where = node.snapshot.subnet_env.where if node.snapshot.subnet_env else ""
    if env.isdigit() and int(env) != overlay.mtu:
        yield Said(
            [Evidence(f"FLANNEL_MTU={env}", assert_where), Evidence(f"{overlay.name} has mtu {overlay.mtu}", overlay.where)],
            ["restart flanneld on this node, then recreate the bridge and the pods"],
            title=f"{node.title}: FLANNEL_MTU is not the overlay's MTU", level="warning",
        )  # fmt: skip
    backend = node.net_conf.get("Backend")
    wanted = backend.get("MTU") if isinstance(backend, dict) else None
    if (
        isinstance(wanted, int)
        and not isinstance(wanted, bool)
        and wanted
        and env.isdigit()
        and int(env) not in (wanted, wanted - 50, wanted - 70)
    ):
        assert node.snapshot.net_conf is not None
        yield Said(
            [Evidence(f'"MTU": {wanted}', node.snapshot.net_conf.where), Evidence(f"FLANNEL_MTU={env}", assert_where)],
            ["restart flanneld on this node; existing bridges, veths and pods keep the old value: recreate them"],
            title="net-conf's MTU is newer than subnet.env: flanneld was not restarted", level="warning",
        )  # fmt: skip


def look_mtus(nodes: Sequence[Node]) -> Iterator[Said]:
    """All nodes' overlays must have the same MTU."""
    sizes: dict[int, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    for node in nodes:
        overlay = _overlay(node)
        if overlay and node.title not in seen:
            seen.add(node.title)
            sizes.setdefault(overlay.mtu, []).append((node.title, overlay.where))
    if len(sizes) > 1:
        smallest = min(sizes)
        odd = [
            name
            for size, names in sizes.items()
            if size != max(sizes, key=lambda one: len(sizes[one]))
            for name, _ in names
        ]
        yield Said(
            [Evidence(f"{size}: {', '.join(name for name, _ in names)}", names[0][1]) for size, names in sorted(sizes.items())],
            [f"\"MTU\" in net-conf's Backend for all nodes: what the smallest uplink carries (here an overlay of {smallest}); restart flanneld, recreate bridges and pods"],
            nodes=odd,
        )  # fmt: skip


def _vtep(item: Object) -> str:
    try:
        data = json.loads(annotation(item, "backend-data") or "null")
    except (ValueError, RecursionError):
        return ""
    return str(data.get("VtepMAC", "")).lower() if isinstance(data, dict) else ""


def _peers(node: Node) -> list[tuple[Object, Network]]:
    """The other nodes that announce a vxlan VTEP, with their IPv4 podCIDR. Nodes that are going, or not yet there, are nobody's peers."""
    own = node.snapshot.node
    found: list[tuple[Object, Network]] = []
    for item in node.snapshot.nodes or ():
        if item is own or _deleting(item) or annotation(item, "backend-type") != "vxlan" or not _public(item):
            continue
        found += [(item, network) for network in _cidrs(item) if network.version == 4]
    return found


def look_peers(node: Node) -> Iterator[Said]:
    """What vxlan needs for each peer: a route, a neighbour entry, a forwarding entry; all to the VTEP that the peer announces."""
    snapshot = node.snapshot
    device = next((link for link in snapshot.links or () if link.overlay and link.name.startswith("flannel.")), None)
    if snapshot.node is None or not annotation(snapshot.node, "backend-data"):
        return
    if snapshot.links is not None and device is None:
        yield Said([Evidence("there is no flannel.1 among the devices, though this Node announces a vxlan VTEP", snapshot.links[0].where if snapshot.links else "ip link")],
                   ["kubectl -n kube-flannel delete pod -l app=flannel --field-selector spec.nodeName=" + node.title], title="flannel.1 is gone")  # fmt: skip
        return
    missing: list[Evidence] = []
    for item, network in _peers(node):
        missing += _route_missing(node, item, network)
        mac = _vtep(item)
        if not mac or (snapshot.live is False and snapshot.fdb is None):
            continue
        entries = [
            one
            for one in snapshot.fdb or ()
            if one.mac.lower() == mac and (one.dev == (device.name if device else one.dev) or not one.dev)
        ]
        if snapshot.fdb is not None and not entries:
            missing.append(
                Evidence(
                    f"{name_of(item)}: no forwarding entry for its VTEP {mac}",
                    snapshot.fdb[0].where if snapshot.fdb else "bridge fdb",
                )
            )
        missing += [
            Evidence(
                f"{name_of(item)}: the forwarding entry of {mac} leads to {one.dst}, it announces {_public(item)}",
                one.where,
            )
            for one in entries
            if one.dst and one.dst != _public(item)
        ]
        neighbours = [one for one in snapshot.neighbours or () if one.ip == str(network.network_address)]
        if snapshot.neighbours is not None and not neighbours:
            missing.append(
                Evidence(
                    f"{name_of(item)}: no neighbour entry for {network.network_address}",
                    snapshot.neighbours[0].where if snapshot.neighbours else "ip neigh",
                )
            )
        missing += [
            Evidence(
                f"{name_of(item)}: {one.ip} has {one.mac or 'no MAC'}, its VTEP's is {mac}: packets are dropped there",
                one.where,
            )
            for one in neighbours
            if one.mac.lower() != mac
        ]
    if missing:
        yield Said(missing[:20], ["kubectl -n kube-flannel delete pod -l app=flannel --field-selector spec.nodeName=" + node.title + "   # flanneld writes them all when it starts",
                                  "NetworkManager: unmanaged-devices=interface-name:flannel*;interface-name:cni*;interface-name:veth* in /etc/NetworkManager/conf.d"])  # fmt: skip


def _route_missing(node: Node, item: Object, network: Network) -> list[Evidence]:
    routes = node.snapshot.routes
    if routes is None:
        return []
    found = [route for route in routes if route.network == network and route.kind == "unicast"]
    where = routes[0].where if routes else "ip route"
    if not found:
        return [Evidence(f"{name_of(item)}: no route for its podCIDR {network}", where)]
    wrong = [
        route
        for route in found
        if not route.dev.startswith("flannel") and not (route.via and route.via == _public(item))
    ]
    return [Evidence(f"{name_of(item)}: its podCIDR goes elsewhere: {route.text}", route.where) for route in wrong[:1]]


def look_vtep(node: Node) -> Iterator[Said]:
    """The device's MAC and the one that the peers were told."""
    own = node.snapshot.node
    device = next(
        (link for link in node.snapshot.links or () if link.overlay and link.name.startswith("flannel.") and link.mac),
        None,
    )
    told = _vtep(own) if own else ""
    if device and told and device.mac.lower() != told:
        yield Said(
            [Evidence(f"{device.name} has {device.mac}", device.where), Evidence(f"the Node's backend-data says {told}", node.snapshot.where.get("nodes", ""))],
            ["restart flanneld on this node", "flannel >= 0.15.1; /etc/systemd/network/10-flannel.link with [Match] OriginalName=flannel* and [Link] MACAddressPolicy=none"],
        )  # fmt: skip


def look_policy(node: Node) -> Iterator[Said]:
    """Policy rules that send pod traffic to tables without flannel's routes."""
    if not node.flannel:
        return
    pods = [one.network for one in [*node.pod_networks, *node.own_cidrs]]
    for rule in node.snapshot.policy_rules or ():
        if (
            rule.family != 4
            or not rule.src
            or rule.inverted
            or not 0 < rule.priority < 32766
            or rule.table in ("local", "main", "default", "")
        ):
            continue
        try:
            source = ip_network(rule.src, strict=False)
        except ValueError:
            continue
        known = any(
            route.table == rule.table and route.dev.startswith("flannel") for route in node.snapshot.routes or ()
        )
        cloud = 30000 <= rule.priority <= 31999 and rule.table.isdigit()  # nm-cloud-setup's numbers
        if not known and (cloud or any(overlaps(source, one) for one in pods)):
            yield Said(
                [Evidence(f"{rule.priority}: from {rule.src} lookup {rule.table}", rule.where), Evidence(f"table {rule.table} has none of flannel's routes", "ip route show table all")],
                ["systemctl disable --now nm-cloud-setup.timer nm-cloud-setup.service; reboot"],
            )  # fmt: skip


CHECKS = (
    Check(
        "mtu",
        "MTUs that do not fit",
        "Small packets pass, large transfers and TLS handshakes hang.",
        "Each layer must leave room for the one around it.",
        look_mtu,
    ),
    Check(
        "mtu-differs",
        "The overlay's MTU differs between nodes",
        "Large transfers hang between some pairs of nodes, in one direction.",
        "A node sends packets as large as its own overlay allows; the smallest uplink on the way decides what arrives.",
        look_at_all=look_mtus,
    ),
    Check(
        "overlay-entries",
        "Routes or entries of flannel are missing or wrong",
        "Pods of one node are unreachable from this one; began with a link that flapped, a restart of the network service, or a reboot of the peer.",
        "flannel needs three things per peer: a route to its podCIDR, a neighbour entry with its VTEP's MAC, and a forwarding entry with its outer"
        " address. flanneld writes them when it starts or the peer changes, and does not look again.",
        look_peers,
    ),
    Check(
        "vtep-mac",
        "flannel.1 has another MAC than the peers were told",
        "Nobody reaches this node's pods; `ip -s -s link show flannel.1` counts otherhost.",
        "The peers' frames carry the announced MAC. The device has another one (systemd gave it, or it was made anew), so the kernel takes them"
        " for somebody else's.",
        look_vtep,
    ),
    Check(
        "policy-routing",
        "A policy rule leads around flannel's routes",
        "Pods on other nodes are unreachable from the node itself, on cloud images.",
        "Rules are asked before the main table. A table that knows nothing of the podCIDRs sends their packets to the gateway.",
        look_policy,
    ),
)
