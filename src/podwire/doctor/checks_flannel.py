"""Checks of flannel on one node: subnet.env, the bridge's address, networks that do not belong together."""

from __future__ import annotations

import re
from ipaddress import ip_interface, ip_network
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said
from podwire.doctor.view import contains, overlaps
from podwire.explain.snapshot import assignments, name_of, pod_cidrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Node

_ENV = "/run/flannel/subnet.env"
#: Lines of flanneld's log that name a cause of its end, and what to do.
_CAUSES = (
    (r"pod cidr not assigned", "this Node has no podCIDR: see podcidr-missing"),
    (r"doesn't contain .*PodCIDR", "net-conf's Network does not hold this node's podCIDR: see flannel-network"),
    (r"failed to (?:get|list) network config|couldn't fetch network config|net-conf\.json: no such file", "flanneld has no net-conf.json: look at the ConfigMap and its mount"),
    (r"Failed to find (?:any valid )?interface|could not find default interface|failed to get default interface", "flanneld found no interface: give it --iface"),
    (r"br_netfilter|bridge-nf-call-iptables", "modprobe br_netfilter: newer flannel refuses to start without it"),
    (r"connection refused|i/o timeout|no route to host|x509:", "flanneld cannot reach the API server: check that first"),
    (r"exec format error", "the image is for another architecture"),
)  # fmt: skip


def _env_missing(node: Node) -> list[Evidence]:
    snapshot = node.snapshot
    if snapshot.subnet_env is not None:
        return []
    found = [
        Evidence(line.strip(), text.where)
        for text in snapshot.output("missing")
        for line in text.text.splitlines()
        if "subnet.env" in line
    ]
    for text in [*snapshot.output("events"), *snapshot.output("log")]:
        line = next(
            (line for line in text.text.splitlines() if re.search(r"open \S*subnet\.env: no such file", line)), ""
        )
        found += [Evidence(line.strip()[:240], text.where)] if line else []
    found += [
        Evidence(one.reason, one.part)
        for one in snapshot.unread
        if one.part == "flannel/subnet.env" and "No such file" in one.reason
    ]
    return found


def look_env_missing(node: Node) -> Iterator[Said]:
    """subnet.env is not there and the network in force needs it."""
    evidence = _env_missing(node)
    winner = node.confdir.winner if node.confdir else None
    if not evidence or (node.confdir is not None and not (winner and "flannel" in winner.types)):
        return
    if winner:
        evidence.append(Evidence(f"{winner.name} runs the flannel plugin", winner.file.where))
    fix = [
        "kubectl -n kube-flannel logs -l app=flannel --tail=50   # on this node; cure what it says, it writes the file itself"
    ]
    for log in node.snapshot.output("log"):
        for pattern, cure in _CAUSES:
            line = next(
                (
                    line
                    for line in log.text.splitlines()
                    if re.search(pattern, line) and re.search(r"^[EWF]\d{4}|rror|ail", line)
                ),
                "",
            )
            if line:
                evidence.append(Evidence(f"the cause: {line.strip()[:240]}", log.where))
                fix.insert(0, cure)
                break
    own = node.snapshot.node
    if own is not None and not pod_cidrs(own):
        evidence.append(
            Evidence(
                f"the cause: Node {name_of(own)} has no spec.podCIDR; flanneld writes the file only when it has a lease",
                node.snapshot.where.get("nodes", ""),
            )
        )
    if node.snapshot.daemonsets is not None and not any("flannel" in name for _, name in node.snapshot.daemonsets):
        evidence.append(Evidence("the cause: no DaemonSet of flannel", node.snapshot.where.get("daemonsets", "")))
        fix.insert(
            0, f"rm /etc/cni/net.d/{winner.name if winner else '10-flannel.conflist'}   # left over from flannel"
        )
    fix.append(f"do not copy {_ENV} from another node: both would hand out the same addresses")
    if own is not None and not pod_cidrs(own):
        # The cause is a finding of its own; this one is its consequence and comes after it.
        title = f"{_ENV} is missing, because Node {name_of(own)} has no podCIDR"
        yield Said(evidence, fix, title, level="warning")
    else:
        yield Said(evidence, fix)


def look_env_proposed(node: Node) -> Iterator[Said]:
    """A subnet.env that somebody means to write by hand."""
    for text in node.snapshot.output("subnet-env-proposed"):
        subnet = assignments(text.text).get("FLANNEL_SUBNET", "")
        try:
            network = ip_interface(subnet).network
        except ValueError:
            continue
        mine = node.snapshot.node
        for other in node.snapshot.nodes or ():
            if other is mine:
                continue
            for cidr in pod_cidrs(other):
                if overlaps(ip_network(cidr, strict=False), network):
                    yield Said(
                        [Evidence(f"FLANNEL_SUBNET={subnet}", text.where), Evidence(f"{cidr} is the podCIDR of {name_of(other)}", node.snapshot.where.get("nodes", ""))],
                        [f"do not write it; let flanneld write {_ENV} when the Node has a podCIDR of its own"],
                        title=f"The proposed subnet.env has the range of {name_of(other)}",
                    )  # fmt: skip


def look_env_incomplete(node: Node) -> Iterator[Said]:
    """Keys that the flannel plugin insists on."""
    text = node.snapshot.subnet_env
    if text is None or not re.search(r"FLANNEL_(?:SUBNET|NETWORK|IPV6)", text.text):
        return
    env = assignments(text.text)
    missing = [key for key in ("FLANNEL_MTU", "FLANNEL_IPMASQ") if key not in env]
    for pair in (("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"), ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")):
        missing += [" or ".join(pair)] if not any(env.get(key) for key in pair) else []
    if missing:
        yield Said([Evidence(f"no {', '.join(missing)}", text.where)], ["restart flanneld: it writes the whole file"])


def look_env_stale(node: Node) -> Iterator[Said]:
    """subnet.env and the Node disagree."""
    subnet, own = (
        node.subnet,
        [one for one in node.own_cidrs if node.subnet and one.network.version == node.subnet.network.version],
    )
    if subnet is None or not own or (node.backend == "" and not node.flannel):
        return
    if all(subnet.network != one.network for one in own):
        yield Said(
            [Evidence(f"FLANNEL_SUBNET is of {subnet.network}", subnet.where), Evidence(f"the Node's podCIDR is {own[0].network}", own[0].where)],
            ["kubectl -n kube-flannel delete pod -l app=flannel --field-selector spec.nodeName=" + node.name],
        )  # fmt: skip


def look_bridge_address(node: Node) -> Iterator[Said]:
    """What the bridge plugin will say when it wants to give the bridge its gateway address."""
    snapshot = node.snapshot
    wanted_text = snapshot.environment().get("FLANNEL_SUBNET", "")
    if snapshot.addresses is None or not wanted_text:
        return
    try:
        wanted = ip_interface(wanted_text)
    except ValueError:
        return
    if wanted.version != 4:
        return
    bridge = node.bridge
    has = [address for address in snapshot.addresses_of(bridge) if address.interface.version == 4]
    # The plugin goes through the addresses in order: the right one ends the search, any other one is an error.
    if not has or has[0].text == str(wanted):
        return
    wrong = has[0]
    assert snapshot.subnet_env is not None
    evidence = [
        Evidence(f"{bridge} has {', '.join(one.text for one in has)}", wrong.where),
        Evidence(f"FLANNEL_SUBNET={wanted}", snapshot.subnet_env.where),
    ]
    own = [one for one in node.own_cidrs if one.network.version == 4]
    evidence += [Evidence(f"the Node's podCIDR is {own[0].network}", own[0].where)] if own else []
    if own and own[0].network != wanted.network:
        yield Said(
            evidence,
            [
                "restart flanneld on this node first: subnet.env is older than the Node's podCIDR, and removing the bridge would not help"
            ],
            why="Three places disagree: the Node, subnet.env and the bridge. flanneld has not read the Node again since its podCIDR changed.",
        )
        return
    same_ip = wrong.ip == str(wanted.ip)
    for one in [box for box in snapshot.sandboxes or () if box.ready][:20]:
        evidence.append(
            Evidence(
                f"{one.namespace}/{one.name} still runs: cut off when the bridge goes, must be made anew", one.where
            )
        )
    yield Said(
        evidence,
        [
            f"kubectl drain {node.name} --ignore-daemonsets",
            f"ip link set {bridge} down && ip link del {bridge}",
            f"remove what is left of {wrong.interface.network} in /var/lib/cni/networks, then start the pods again",
        ],
        title=f"{bridge} has the right address with another mask ({wrong.text}, not {wanted})" if same_ip else f"{bridge} keeps the address of an earlier lease ({wrong.interface.network})",
        why=f'The bridge plugin refuses: "{bridge}" already has an IP address different from {wanted}. The device was made for another range and nobody changes it.',
    )  # fmt: skip


def look_network(node: Node) -> Iterator[Said]:
    """The pods' ranges do not lie in the network that flannel and kube-proxy write rules for."""
    members = [*node.own_cidrs, *([node.subnet] if node.subnet else [])]
    outer = [*node.pod_networks]
    wrong = [
        (one, net)
        for net in outer
        for one in members
        if one.network.version == net.network.version and not contains(net.network, one.network)
    ]
    evidence = [
        Evidence(f"{one.network} does not lie in {net.network}", f"{one.where}; {net.where}") for one, net in wrong
    ]
    apart = [
        (one, other)
        for number, one in enumerate(outer)
        for other in outer[number + 1 :]
        if one.network.version == other.network.version and not overlaps(one.network, other.network)
    ]
    evidence += [
        Evidence(f"{one.network} and {other.network} should be one network", f"{one.where}; {other.where}")
        for one, other in apart
    ]
    if evidence:
        yield Said(
            evidence[:8],
            ["kubectl -n kube-flannel edit configmap kube-flannel-cfg   # Network = the cluster's pod network (kubeadm's podSubnet, --cluster-cidr)",
             "kubectl -n kube-flannel rollout restart ds/kube-flannel-ds"],
        )  # fmt: skip


def look_proxy_cidr(node: Node) -> Iterator[Said]:
    """kube-proxy takes this node's pods for strangers."""
    members = [*node.own_cidrs, *([node.subnet] if node.subnet else [])]
    for range_ in node.proxy_cidrs:
        outside = [
            one
            for one in members
            if one.network.version == range_.network.version
            and not contains(range_.network, one.network)
            and not contains(one.network, range_.network)
        ]
        if outside:
            yield Said(
                [Evidence(f"kube-proxy masquerades what is not from {range_.network}", range_.where), Evidence(f"this node's pods are in {outside[0].network}", outside[0].where)],
                [f"clusterCIDR in kube-proxy's configuration: {outside[0].network.supernet(new_prefix=min(16, outside[0].network.prefixlen))} or the whole pod network; restart kube-proxy"],
                level="warning",
            )  # fmt: skip


def look_overlap(node: Node) -> Iterator[Said]:
    """Local networks inside the pods' or the Services' ranges, and the same address twice."""
    snapshot = node.snapshot
    own_devices = {node.bridge, "cni0", "cbr0", "kube-bridge", "kube-ipvs0", "nodelocaldns", "lo"}
    wanted = [*node.pod_networks, *node.own_cidrs, *([node.subnet] if node.subnet else [])]
    seen: set[str] = set()
    for address in snapshot.addresses or ():
        if (
            address.dev in own_devices
            or address.dev.startswith(("flannel", "veth", "cali", "tunl", "vxlan", "lxc", "cilium", "weave"))
            or address.dev in seen
        ):
            continue
        network = address.interface.network
        ranges = [one for one in wanted if overlaps(one.network, network)]
        kind = "pods"
        if not ranges:
            ranges, kind = [one for one in node.service_networks if overlaps(one.network, network)], "Services"
        if not ranges or network.is_link_local:
            continue
        seen.add(address.dev)
        evidence = [
            Evidence(f"{address.dev} has {address.text}", address.where),
            Evidence(f"{ranges[0].network} is the {kind}'", ranges[0].where),
        ]
        twice = [one for one in snapshot.addresses or () if one.ip == address.ip and one.dev != address.dev]
        evidence += [
            Evidence(
                f"{one.dev} has the same address: {one.text}; the longer prefix wins, the rest goes to the other device",
                one.where,
            )
            for one in twice
        ]
        other = '"bip" in /etc/docker/daemon.json' if address.dev.startswith("docker") else f"{address.dev}'s network"
        yield Said(
            evidence,
            [f"change {other}, or the cluster's range: they may not overlap"],
            title=f"{address.dev} lies in the {kind}' range",
        )


CHECKS = (
    Check(
        "subnet-env-missing",
        "/run/flannel/subnet.env is missing",
        "Pods stay ContainerCreating: loadFlannelSubnetEnv failed: open /run/flannel/subnet.env: no such file or directory.",
        "The flannel plugin reads this file for every pod, and only flanneld writes it, once it has a lease. The missing file is never the"
        " cause: flanneld is not there, has not come up, or ends with an error.",
        look_env_missing,
    ),
    Check(
        "subnet-env-proposed",
        "A subnet.env made by hand has another node's range",
        "Two nodes would hand out the same addresses.",
        "Pods would start, and the other nodes would send their packets to the node that owns the range.",
        look_env_proposed,
    ),
    Check(
        "subnet-env-incomplete",
        "/run/flannel/subnet.env is incomplete",
        "Pods stay ContainerCreating: /run/flannel/subnet.env is missing ….",
        "The flannel plugin insists on FLANNEL_NETWORK, FLANNEL_SUBNET, FLANNEL_MTU and FLANNEL_IPMASQ.",
        look_env_incomplete,
    ),
    Check(
        "subnet-env-stale",
        "subnet.env is not of this Node's podCIDR",
        "New pods get addresses that the other nodes do not route here.",
        "flanneld reads the podCIDR when it starts. The Node was made anew with another one, and flanneld still holds the old lease.",
        look_env_stale,
    ),
    Check(
        "bridge-address",
        "The pods' bridge has another address than its lease",
        'Pods stay ContainerCreating: "cni0" already has an IP address different from 10.x.y.1/24.',
        "The bridge was made for another range.",
        look_bridge_address,
    ),
    Check(
        "flannel-network",
        "The pods' ranges and the configured network do not belong together",
        "Pods reach each other, but not the outside; or traffic is dropped by FORWARD; or flanneld refuses to start.",
        "flannel writes accepts and masquerading for its Network. Packets of pods outside of it match none of these rules.",
        look_network,
    ),
    Check(
        "proxy-cluster-cidr",
        "kube-proxy's clusterCIDR does not hold the pods",
        "Services see a node's address where the pod's was expected.",
        "Everything that is not from clusterCIDR counts as coming from outside and is masqueraded.",
        look_proxy_cidr,
    ),
    Check(
        "range-overlap",
        "A local network overlaps the cluster's ranges",
        "Some pods or Services cannot be reached from this node.",
        "The kernel takes the most specific route: addresses that belong to the cluster go to the local network instead.",
        look_overlap,
    ),
)
