"""Checks of the cluster's Nodes together: podCIDRs, who allocates them, public addresses, backends."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING

from podwire.doctor.allocation import manager_problems
from podwire.doctor.finding import Check, Evidence, Said
from podwire.doctor.view import annotation, contains, overlaps
from podwire.explain.snapshot import name_of, node_addresses, pod_cidrs
from podwire.explain.snapshot_words import inner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.doctor.view import Network, Node
    from podwire.explain.snapshot import Object


def _nodes(nodes: Sequence[Node]) -> list[tuple[Object, str]]:
    """Every Node object once, by name, and where it was read."""
    found: dict[str, tuple[Object, str]] = {}
    for node in nodes:
        for item in node.snapshot.nodes or ():
            found.setdefault(name_of(item), (item, node.snapshot.where.get("nodes", "")))
    return list(found.values())


def _cidrs(item: Object) -> list[Network]:
    found = []
    for text in pod_cidrs(item):
        try:
            found.append(ip_network(text, strict=False))
        except ValueError:
            continue
    return found


def _deleting(item: Object) -> bool:
    return bool(inner(item, "metadata").get("deletionTimestamp"))


def _cluster_cidrs(nodes: Sequence[Node]) -> list[tuple[Network, str]]:
    """The manager's --cluster-cidr, else kubeadm's podSubnet. flannel's Network is another check's."""
    for node in nodes:
        said = [(ip, where) for text, where in node.flag("cluster-cidr") for ip in text.split(",")]
        found = []
        for text, where in said:
            try:
                found.append((ip_network(text, strict=False), where))
            except ValueError:
                continue
        if found:
            return found
    said_by = [one for node in nodes for one in node.pod_networks if one.where.startswith("podSubnet")]
    return [(one.network, one.where) for one in said_by[:2]]


def look_missing(nodes: Sequence[Node]) -> Iterator[Said]:
    """Nodes without a podCIDR where somebody hands them out, or needs them."""
    items = _nodes(nodes)
    without = [(item, where) for item, where in items if not pod_cidrs(item)]
    logs = [
        (line.strip(), log.where)
        for node in nodes
        for log in node.snapshot.output("log")
        for line in log.text.splitlines()
        if "pod cidr not assigned" in line
    ]
    wanted = (
        any(pod_cidrs(item) for item, _ in items)
        or bool(logs)
        or any(node.flannel or annotation(item, "kube-subnet-manager") for node in nodes for item, _ in items)
    )
    if not ((without and wanted) or logs):
        return
    evidence = [Evidence(f"Node {name_of(item)} has no spec.podCIDR", where) for item, where in without[:20]]
    evidence += [Evidence(line[:240], where) for line, where in dict.fromkeys(logs)][:3]
    fix, causes = _allocation(nodes, items)
    evidence += causes
    for item, where in items:
        if _deleting(item) and pod_cidrs(item) and without:
            said = f"Node {name_of(item)} is being deleted and still holds {pod_cidrs(item)[0]}: that block is not free before it is gone"
            evidence.append(Evidence(said, where))
    names = [name_of(item) for item, _ in without]
    title = f"No podCIDR: {', '.join(names)}" if names else "No podCIDR is assigned"
    yield Said(evidence, fix, title, nodes=names)


def _allocation(nodes: Sequence[Node], items: list[tuple[Object, str]]) -> tuple[list[str], list[Evidence]]:
    """What the controller manager's flags and the events say, and what to do."""
    causes: list[Evidence] = []
    fix: list[str] = []
    seen: set[str] = set()
    for node in nodes:
        for flags, _, where in node.flags:
            if not ({"allocate-node-cidrs", "node-cidr-mask-size", "controllers"} & flags.keys()) or where in seen:
                continue
            seen.add(where)
            for said, cure in manager_problems(flags, len(items), [net for item, _ in items for net in _cidrs(item)]):
                causes += [Evidence(said, where)] if said not in {one.text for one in causes} else []
                fix += [cure] if cure not in fix else []
        for text in node.snapshot.output("events"):
            line = next((line.strip() for line in text.text.splitlines() if "CIDRNotAvailable" in line), "")
            if line and text.where not in seen:
                seen.add(text.where)
                causes.append(Evidence(line, text.where))
    if not fix:
        fix = [
            "grep -E 'allocate-node-cidrs|cluster-cidr|node-cidr-mask|controllers' /etc/kubernetes/manifests/kube-controller-manager.yaml",
            "kubectl -n kube-system logs -l component=kube-controller-manager | grep -i cidr   # and who is the leader?",
        ]
    fix.append(
        "never patch a Node with the whole cluster CIDR: podCIDR cannot be changed afterwards; delete the Node and register it again"
    )
    return fix, causes


def look_overlaps(nodes: Sequence[Node]) -> Iterator[Said]:
    """PodCIDRs that share addresses, lie outside, or are of another size."""
    items = _nodes(nodes)
    owned = [(item, network, where) for item, where in items for network in _cidrs(item)]
    usual = _usual_mask(nodes, owned)
    for number, (one, first, where) in enumerate(owned):
        for other, second, _ in owned[number + 1 :]:
            if one is not other and overlaps(first, second):
                yield _overlap(nodes, (one, first), (other, second), where, usual)
    yield from _outside(nodes, owned, usual)


def _overlap(
    nodes: Sequence[Node], left: tuple[Object, Network], right: tuple[Object, Network], where: str, usual: int
) -> Said:
    (one, first), (other, second) = left, right
    names = [name_of(one), name_of(other)]
    evidence = [Evidence(f"Node {names[0]}: {first}", where), Evidence(f"Node {names[1]}: {second}", where)]
    title = f"{names[0]} and {names[1]} have the same podCIDR {first}"
    if first == second:
        evidence += _who_gets(nodes, first)
    else:
        title = f"The podCIDRs of {names[0]} ({first}) and {names[1]} ({second}) overlap"
        winner = names[0] if first.prefixlen > second.prefixlen else names[1]
        evidence.append(Evidence(f"the longer prefix wins: packets for addresses of both go to {winner}", where))
    for item in (one, other):
        if _deleting(item):
            evidence.append(
                Evidence(f"Node {name_of(item)} is being deleted but still holds it; its pods may still run", where)
            )
    wrong = names[0] if first.prefixlen != usual and second.prefixlen == usual else names[1]
    then = "then restart its kubelet: it registers again and gets another"
    fix = [f"kubectl drain {wrong} --ignore-daemonsets && kubectl delete node {wrong}   # {then}"]
    return Said(evidence, fix, title, nodes=names)


def _who_gets(nodes: Sequence[Node], network: Network) -> list[Evidence]:
    """Where a node that was looked at really sends the range: its neighbour entry for the range's first address."""
    return [
        Evidence(
            f"{node.title} sends everything for {network} to {neighbour.mac}: one of them gets nothing", neighbour.where
        )
        for node in nodes
        for neighbour in node.snapshot.neighbours or ()
        if neighbour.ip == str(network.network_address) and neighbour.mac and "PERMANENT" in neighbour.state
    ]


def _usual_mask(nodes: Sequence[Node], owned: list[tuple[Object, Network, str]]) -> int:
    """The manager's node mask, else the one that most nodes have."""
    for name in ("node-cidr-mask-size", "node-cidr-mask-size-ipv4"):
        for node in nodes:
            for text, _ in node.flag(name):
                if text.isdigit():
                    return int(text)
    masks = [network.prefixlen for _, network, _ in owned if network.version == 4]
    return max(set(masks), key=lambda mask: (masks.count(mask), mask)) if masks else 24


def _outside(nodes: Sequence[Node], owned: list[tuple[Object, Network, str]], usual: int) -> Iterator[Said]:
    cluster = _cluster_cidrs(nodes)
    for item, network, where in owned:
        name = name_of(item)
        same = [(one, place) for one, place in cluster if one.version == network.version]
        if same and not any(contains(one, network) for one, _ in same):
            yield Said(
                [Evidence(f"Node {name}: {network}", where), Evidence(f"the cluster's range is {', '.join(str(one) for one, _ in same)}", same[0][1])],
                [f"kubectl delete node {name}   # drain first; it registers again and gets one of the cluster's range"],
                title=f"The podCIDR of {name} ({network}) is outside of the cluster's range", nodes=[name],
            )  # fmt: skip
        elif network.version == 4 and network.prefixlen != usual and len(owned) > 1:
            what = (
                "the whole cluster's network: every other node's pods look local to it"
                if any(network == one for one, _ in same) or network.prefixlen <= 16
                else "another size than the others"
            )
            yield Said(
                [Evidence(f"Node {name}: /{network.prefixlen}; node ranges here are /{usual}", where)],
                [f"kubectl delete node {name}   # drain first; podCIDR cannot be changed"],
                title=f"The podCIDR of {name} ({network}) is {what}", nodes=[name],
            )  # fmt: skip


def _public(item: Object) -> str:
    """The address that the other nodes send to: the overwrite counts even before flanneld has taken it over."""
    return annotation(item, "public-ip-overwrite") or annotation(item, "public-ip")


def _loops(node: Node) -> Iterator[tuple[Node, Evidence]]:
    """Forwarding entries to an address of the node's own."""
    own = {address.ip: address for address in node.snapshot.addresses or ()}
    for entry in node.snapshot.fdb or ():
        if entry.dst in own and own[entry.dst].dev != "lo":
            said = f"{entry.mac} dst {entry.dst}, which is {own[entry.dst].dev}'s own address: these packets never leave {node.title}"
            yield node, Evidence(said, entry.where)


def look_public(nodes: Sequence[Node]) -> Iterator[Said]:
    """Two nodes that announce one address, and forwarding entries that lead back to the node itself."""
    items = _nodes(nodes)
    owners: dict[str, list[str]] = {}
    for item, _ in items:
        if _public(item) and not _deleting(item):
            owners.setdefault(_public(item), []).append(name_of(item))
    where = items[0][1] if items else ""
    loops = [found for node in nodes for found in _loops(node)]
    doubles = {address: names for address, names in owners.items() if len(names) > 1}
    if not doubles and not loops:
        return
    evidence = [Evidence(f"{address} is announced by {', '.join(names)}", where) for address, names in doubles.items()]
    evidence += [one for _, one in loops][:10]
    for item, place in items:
        if annotation(item, "public-ip-overwrite") and annotation(item, "public-ip") in doubles:
            evidence.append(
                Evidence(f"{name_of(item)} is not among them: its public-ip-overwrite is {_public(item)}", place)
            )
    internal: dict[str, list[str]] = {}
    for item, _ in items:
        for address in node_addresses(item):
            internal.setdefault(address, []).append(name_of(item))
    twice = [(address, names) for address, names in internal.items() if len(names) > 1]
    evidence += [
        Evidence(f"InternalIP {address} too is that of {', '.join(names)}: kubelet took the same interface", where)
        for address, names in twice
    ]
    for node in nodes:
        default = next((route for route in node.snapshot.routes or () if route.default), None)
        if default and not node.flag("iface"):
            evidence.append(
                Evidence(
                    f"without --iface flanneld takes the interface of the default route: {default.text}", default.where
                )
            )
    fix = [
        "flanneld --iface=IFACE, or --iface-can-reach=ADDRESS-OF-ANOTHER-NODE, or --iface-regex=^NETWORK-OF-THE-NODES; or the annotation flannel.alpha.coreos.com/public-ip-overwrite and a restart"
    ]
    fix += ["kubelet --node-ip=ADDRESS on each node as well"] if twice else []
    names = sorted({name for owner in doubles.values() for name in owner} | {node.title for node, _ in loops})
    yield Said(evidence, fix, nodes=names)


def look_backends(nodes: Sequence[Node]) -> Iterator[Said]:
    """Nodes whose backends differ."""
    kinds: dict[str, list[str]] = {}
    where = ""
    for item, place in _nodes(nodes):
        kind, where = annotation(item, "backend-type"), place
        if kind and not _deleting(item):
            kinds.setdefault(kind, []).append(name_of(item))
    if len(kinds) > 1:
        yield Said(
            [Evidence(f"{kind}: {', '.join(names)}", where) for kind, names in kinds.items()],
            ["one Backend in kube-flannel-cfg; restart flanneld on all nodes"],
            nodes=min(sorted(names) for names in kinds.values() if len(names) == min(map(len, kinds.values()))),
        )


CHECKS = (
    Check(
        "podcidr-missing",
        "Nodes without a podCIDR",
        'flanneld ends with: failed to acquire lease: node "x" pod cidr not assigned; no pod starts there.',
        "flannel takes a node's range from spec.podCIDR, and only kube-controller-manager's node IPAM writes that.",
        look_at_all=look_missing,
    ),
    Check(
        "podcidr-conflict",
        "podCIDRs that cannot be right",
        "Pods of one node are unreachable, or answers come from pods of another node.",
        "Every node routes each range to one node: of two that claim the same addresses one gets nothing.",
        look_at_all=look_overlaps,
    ),
    Check(
        "public-ip-duplicate",
        "Nodes announce the same address, or their own packets to themselves",
        "Pods on different nodes cannot talk; typical for VirtualBox (10.0.2.15 everywhere).",
        "Each node behind its own NAT has the same address on the default route's interface, and flanneld announces that one. The peers'"
        " forwarding entries then lead to the node itself.",
        look_at_all=look_public,
    ),
    Check(
        "mixed-backends",
        "flannel's backends differ between nodes",
        "Pods on some pairs of nodes cannot talk.",
        "A vxlan node does not know how to reach a host-gw node and the other way round.",
        look_at_all=look_backends,
    ),
)
