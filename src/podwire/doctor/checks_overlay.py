"""Checks of the overlay on one node: routes, forwarding entries, neighbours and the VTEP's MAC, against what the Nodes announce."""

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
    from podwire.explain.snapshot import Object


def _vtep(item: Object) -> str:
    try:
        data = json.loads(annotation(item, "backend-data") or "null")
    except (ValueError, RecursionError):
        return ""
    return str(data.get("VtepMAC", "")).lower() if isinstance(data, dict) else ""


def _peers(node: Node, kind: str = "vxlan") -> list[tuple[Object, Network]]:
    """The other nodes of the same backend, with their IPv4 podCIDR. Nodes that are going, or not yet there, are nobody's peers."""
    own = node.snapshot.node
    found: list[tuple[Object, Network]] = []
    for item in node.snapshot.nodes or ():
        if item is own or _deleting(item) or annotation(item, "backend-type") != kind or not _public(item):
            continue
        found += [(item, network) for network in _cidrs(item) if network.version == 4]
    return found


def look_peers(node: Node) -> Iterator[Said]:
    """What flannel needs for each peer; for vxlan a route, a neighbour entry and a forwarding entry, to the VTEP that it announces."""
    snapshot = node.snapshot
    device = next((link for link in snapshot.links or () if link.overlay and link.name.startswith("flannel.")), None)
    kind = annotation(snapshot.node, "backend-type") if snapshot.node else ""
    if snapshot.node is None or kind not in ("vxlan", "host-gw"):
        return
    announced = kind == "vxlan" and bool(annotation(snapshot.node, "backend-data"))
    if announced and snapshot.links is not None and device is None:
        selector = f"-l app=flannel --field-selector spec.nodeName={node.name}"
        where = snapshot.links[0].where if snapshot.links else "ip link"
        evidence = [Evidence("there is no flannel.1 among the devices, though this Node announces a vxlan VTEP", where)]
        yield Said(evidence, [f"kubectl -n kube-flannel delete pod {selector}"], title="flannel.1 is gone")
        return
    # Routes that somebody pasted in part prove nothing: there must be one of the kind that is looked for.
    whole = announced or any(route.dev.startswith(("flannel", "cni0", "cbr0")) for route in snapshot.routes or ())
    lost: list[Evidence] = []
    for item, network in _peers(node, kind):
        if whole:
            lost += _route_missing(node, item, network)
        direct = any(
            route.via and route.via == _public(item) for route in snapshot.routes or () if route.dst == str(network)
        )
        if announced and not direct:
            lost += _entries_missing(node, item, network, device.name if device else "")
    if lost:
        yield _entries_said(node, lost)


def _entries_missing(node: Node, item: Object, network: Network, device: str) -> list[Evidence]:
    """The forwarding and the neighbour entry of a vxlan peer."""
    snapshot, mac, name = node.snapshot, _vtep(item), name_of(item)
    if not mac:
        return []
    lost = []
    table = [one for one in snapshot.fdb or () if not one.dev or one.dev == device or one.dev.startswith("flannel.")]
    entries = [one for one in table if one.mac.lower() == mac]
    if (table or snapshot.live) and snapshot.fdb is not None and not entries:
        lost.append(
            Evidence(f"{name}: no forwarding entry for its VTEP {mac}", table[0].where if table else "bridge fdb")
        )
    for one in entries:
        if one.dst and one.dst != _public(item):
            said = f"{name}: the forwarding entry of {mac} leads to {one.dst}, it announces {_public(item)}"
            lost.append(Evidence(said, one.where))
    listed = [one for one in snapshot.neighbours or () if not one.dev or one.dev.startswith("flannel.")]
    found = [one for one in listed if one.ip == str(network.network_address)]
    if (listed or snapshot.live) and snapshot.neighbours is not None and not found:
        lost.append(
            Evidence(
                f"{name}: no neighbour entry for {network.network_address}", listed[0].where if listed else "ip neigh"
            )
        )
    for neighbour in found:
        if neighbour.mac.lower() != mac:
            said = f"{name}: {neighbour.ip} has {neighbour.mac or 'no MAC'}, its VTEP's is {mac}: packets are dropped there"
            lost.append(Evidence(said, neighbour.where))
    return lost


def _entries_said(node: Node, missing: list[Evidence]) -> Said:
    selector = f"-l app=flannel --field-selector spec.nodeName={node.name}"
    devices = "interface-name:flannel*;interface-name:cni*;interface-name:veth*"
    return Said(
        missing[:20],
        [
            f"kubectl -n kube-flannel delete pod {selector}   # flanneld writes them all when it starts",
            f"NetworkManager: unmanaged-devices={devices} in /etc/NetworkManager/conf.d",
        ],
    )


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


def look_port(node: Node) -> Iterator[Said]:
    """A process that holds the overlay's UDP port; the kernel's own socket has no process."""
    device = next((link for link in node.snapshot.links or () if link.overlay), None)
    port = device.vxlan.port if device and device.vxlan and device.vxlan.port else 8472
    if not node.flannel or node.backend not in ("", "vxlan"):
        return
    for socket in node.snapshot.sockets or ():
        if socket.protocol == "udp" and socket.port == port and socket.listening and (socket.process or socket.pid):
            yield Said(
                [Evidence(f"{socket.owner} has udp/{port}", socket.where)],
                [
                    'net-conf\'s Backend: {"Type": "vxlan", "Port": …} with a free port on all nodes, or stop that process'
                ],
            )


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


def look_vteps(nodes: Sequence[Node]) -> Iterator[Said]:
    """What one node believes about another one's VTEP, where both were looked at."""
    for node in nodes:
        device = next(
            (
                link
                for link in node.snapshot.links or ()
                if link.overlay and link.name.startswith("flannel.") and link.mac
            ),
            None,
        )
        ranges = [
            one.network
            for one in [*node.own_cidrs, *([node.subnet] if node.subnet else [])]
            if one.network.version == 4
        ]
        if device is None or not ranges or (node.snapshot.node and _vtep(node.snapshot.node)):
            continue  # where the Node announces its MAC, each node is compared with that
        for other in nodes:
            for entry in other.snapshot.neighbours or ():
                if (
                    other is not node
                    and entry.ip == str(ranges[0].network_address)
                    and entry.mac
                    and entry.mac.lower() != device.mac.lower()
                ):
                    yield Said(
                        [Evidence(f"{node.title}: {device.name} has {device.mac}", device.where), Evidence(f"{other.title} sends packets for {ranges[0]} to {entry.mac}", entry.where)],
                        [f"restart flanneld on {node.title}", "flannel >= 0.15.1; MACAddressPolicy=none for flannel* in /etc/systemd/network"],
                        nodes=[node.title],
                    )  # fmt: skip


def look_otherhost(node: Node) -> Iterator[Said]:
    """Frames that came to flannel.1 for another MAC."""
    for text in node.snapshot.output("link-stats"):
        device, lines = "", text.text.splitlines()
        for number, line in enumerate(lines):
            head = re.match(r"^\d+: ([^:@]+)", line)
            device = head.group(1) if head else device
            titles, values = line.split(), lines[number + 1].split() if number + 1 < len(lines) else []
            if "otherhost" not in titles or not device.startswith("flannel."):
                continue
            column = titles.index("otherhost") - len(titles)
            if len(values) >= -column and values[column].isdigit() and int(values[column]) > 0:
                yield Said(
                    [Evidence(f"{device}: otherhost {values[column]}", text.where)],
                    ["compare `ip link show flannel.1` with the Node's backend-data annotation; restart flanneld on this node"],
                    title=f"{device} gets frames for another MAC", level="warning",
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


def look_double_masquerade(node: Node) -> Iterator[Said]:
    """kube-proxy < 1.19: the mark is left on the packet, and vxlan's outer packet inherits it and is masqueraded again."""
    if node.backend not in ("", "vxlan"):
        return
    proof = [
        flow
        for flow in node.snapshot.flows or ()
        if flow.protocol == "udp" and flow.dport == 8472 and flow.sport != flow.reply_dport
    ]
    offload = [
        text
        for text in node.snapshot.output("ethtool")
        if re.search(r"flannel", text.text + text.name)
        and re.search(r"tx-checksum-ip-generic: on|^tx-checksumming: on", text.text, re.MULTILINE)
    ]
    for rules in node.iptables:
        nat = rules.tables.get("nat")
        chain = nat.chains.get("KUBE-POSTROUTING") if nat else None
        if rules.family != 4 or chain is None or not any("MASQUERADE" in line for line in chain.lines):
            continue
        if any("--set-xmark" in line or "--xor-mark" in line or "MARK xor" in line for line in chain.lines):
            continue
        overlay = [link for link in node.snapshot.links or () if link.overlay]
        if not (proof or offload or overlay):
            continue
        evidence = [
            Evidence(
                "the mark is not taken off before MASQUERADE: " + f"-A KUBE-POSTROUTING {chain.lines[-1]}",
                f"{rules.where}, nat",
            )
        ]
        evidence += [Evidence(f"the outer packet was masqueraded: {flow.text}", flow.where) for flow in proof[:2]]
        evidence += [Evidence("tx-checksum-ip-generic: on", text.where) for text in offload[:1]]
        evidence += [Evidence(f"vxlan device {link.name}", link.where) for link in overlay[:1]]
        yield Said(
            evidence,
            ["kube-proxy >= 1.19 (it takes the mark off)", "ethtool -K flannel.1 tx-checksum-ip-generic off   # at once; persist it with a .link file or unit"],
            level="error" if proof else "warning",
        )  # fmt: skip


CHECKS = (
    Check(
        "overlay-entries",
        "Routes or entries of flannel are missing or wrong",
        "Pods of one node are unreachable from this one; began with a link that flapped, a restart of the network service, or a reboot of the peer.",
        "flannel needs three things per peer: a route to its podCIDR, a neighbour entry with its VTEP's MAC, and a forwarding entry with its outer"
        " address. flanneld writes them when it starts or the peer changes, and does not look again.",
        look_peers,
    ),
    Check(
        "overlay-port-taken",
        "Another program has the overlay's UDP port",
        "flannel.1 does not come up, or the node's pods are unreachable.",
        "The kernel opens the port for the vxlan device; on a host where another overlay (NSX, Docker's) has it, packets go there.",
        look_port,
    ),
    Check(
        "vtep-mac",
        "flannel.1 has another MAC than the peers were told",
        "Nobody reaches this node's pods; `ip -s -s link show flannel.1` counts otherhost.",
        "The peers' frames carry the announced MAC. The device has another one (systemd gave it, or it was made anew), so the kernel takes them"
        " for somebody else's.",
        look_vtep,
        look_vteps,
    ),
    Check(
        "vtep-otherhost",
        "flannel.1 gets frames that are not for it",
        "Nobody reaches this node's pods, most often after a reboot.",
        "The peers still use the MAC that flannel.1 had before; the kernel counts such frames as for another host and drops them.",
        look_otherhost,
    ),
    Check(
        "policy-routing",
        "A policy rule leads around flannel's routes",
        "Pods on other nodes are unreachable from the node itself, on cloud images.",
        "Rules are asked before the main table. A table that knows nothing of the podCIDRs sends their packets to the gateway.",
        look_policy,
    ),
    Check(
        "vxlan-double-masquerade",
        "NodePort and host traffic to remote pods is masqueraded twice",
        "Connections from the host or through a NodePort to a pod on another node hang for 63 seconds or drop.",
        "The mark stays on the packet, the vxlan device copies it to the outer packet, and that is masqueraded too, with a new source"
        " port; with checksum offload on flannel.1 some kernels then send a wrong checksum and the peer drops it.",
        look_double_masquerade,
    ),
)
