"""Checks of what the filter table does to pod traffic: FORWARD, INPUT for the overlay, and masquerading."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said
from podwire.doctor.judge import Probe, judge
from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Network, Node
    from podwire.explain.tables import IptablesRules, RuleTable

VXLAN_PORT = 8472


def _pod_network(node: Node) -> tuple[Network, str] | None:
    """The pods' network and how it is known: by what was configured, by the podCIDR, or by the rules' own accepts."""
    for one in [*node.own_cidrs, *([node.subnet] if node.subnet else []), *node.pod_networks, *node.proxy_cidrs]:
        if one.network.version == 4:
            return one.network, one.where
    for chain, rules in node.chains("nat", "POSTROUTING"):
        for line in chain.lines:
            found = re.match(r"^-s (\S+) (?:-d \S+|! -d \S+|! -o \S+) .*flannel", line)
            if found:
                return ip_network(found.group(1), strict=False), rules.where
    return None


def _others(network: Network) -> tuple[str, str]:
    """An address in the network that is a pod here, and one that is a pod elsewhere."""
    here, there = int(network.network_address) + 5, int(network.network_address) + 9
    if network.prefixlen < 24:
        there += 256
    kind = type(network.network_address)
    return str(kind(here)), str(kind(there))


def look_forward(node: Node) -> Iterator[Said]:
    """A packet from a remote pod, come out of the overlay for a pod here, and the other way round."""
    if node.any_chain("cali-") or node.any_chain("CILIUM"):
        return  # policy decides there, and "unknown" would be the answer to everything
    known = _pod_network(node)
    for rules in node.iptables:
        table = rules.tables.get("filter")
        if rules.family != 4 or table is None or "FORWARD" not in table.chains or table.partial:
            continue
        if not node.kube_rules and not node.flannel:
            continue
        network, where = known or (ip_network("10.244.0.0/16"), "")
        if network.num_addresses < 16:
            continue
        here, there = _others(network)
        out = node.bridge
        overlay = "flannel.1" if node.backend in ("", "vxlan") else ""
        end = judge(table, "FORWARD", Probe(there, here, overlay, out, dport=8080))
        if end.verdict not in ("drop", "reject"):
            continue
        yield _forward_said(rules, table, end.text, end.position, network, where)


def _forward_said(
    rules: IptablesRules, table: RuleTable, text: str, position: int, network: Network, where: str
) -> Said:
    forward = table.chains["FORWARD"]
    accepts = [line for line in forward.lines if "FLANNEL-FWD" in line or "flanneld forward" in line]
    if text:
        title = "A rule in FORWARD rejects pod traffic before anybody accepts it"
        evidence = [Evidence(f"rule {position}: {text}", f"{rules.where}, filter FORWARD")]
        if accepts:
            later = forward.lines.index(accepts[0]) + 1
            evidence.append(
                Evidence(f"rule {later} comes too late: -A FORWARD {accepts[0]}", f"{rules.where}, filter FORWARD")
            )
        why = (
            "Rules are tried in order. This one ends the walk of every packet from or to a pod, so the rules behind it"
            " (flannel appends its own at the end) are never reached."
        )
        fix = [
            f"iptables -D FORWARD {position}   # or stop firewalld/ufw on the node, and persist that",
            f"iptables -I FORWARD 1 -s {network} -j ACCEPT && iptables -I FORWARD 1 -d {network} -j ACCEPT",
        ]
        return Said(evidence, fix, title, why)
    evidence = [Evidence(f":FORWARD {forward.policy}", f"{rules.where}, filter")]
    if accepts:
        evidence.append(
            Evidence(f"what is accepted is another network: -A FORWARD {accepts[0]}", f"{rules.where}, filter FORWARD")
        )
    elif where:
        evidence.append(Evidence(f"no rule accepts new packets from or to {network}", f"{rules.where}; {where}"))
    else:
        evidence.append(
            Evidence(
                "no rule accepts new packets of a pod network (neither FLANNEL-FWD nor `-s NETWORK -j ACCEPT`)",
                rules.where,
            )
        )
    if "KUBE-FORWARD" in table.chains and table.chains["KUBE-FORWARD"].lines:
        evidence.append(
            Evidence(
                "KUBE-FORWARD accepts packets with kube-proxy's mark and replies only: NodePorts work, pod to pod does not",
                rules.where,
            )
        )
    shown = str(network) if where else "POD-NETWORK"
    fix = [
        "kubectl -n kube-flannel rollout restart ds/kube-flannel-ds   # flannel >= 0.9.1 writes the two accepts, once at its start",
        f"iptables -A FORWARD -s {shown} -j ACCEPT; iptables -A FORWARD -d {shown} -j ACCEPT",
    ]
    return Said(evidence, fix)


def look_input(node: Node) -> Iterator[Said]:
    """A vxlan packet of another node, for the outer port."""
    if not node.flannel or node.backend not in ("", "vxlan"):
        return
    link = next((one for one in node.snapshot.links or () if one.vxlan and one.vxlan.port), None)
    port = link.vxlan.port if link and link.vxlan else VXLAN_PORT
    for rules in node.iptables:
        table = rules.tables.get("filter")
        if rules.family != 4 or table is None or "INPUT" not in table.chains or table.partial:
            continue
        end = judge(table, "INPUT", Probe(protocol="udp", dport=port, to_node=True))
        if end.verdict not in ("drop", "reject"):
            continue
        shown = f"rule {end.position}: {end.text}" if end.text else f"policy {table.chains['INPUT'].policy}"
        yield Said(
            [
                Evidence(f"nothing accepts udp/{port} before {shown}", f"{rules.where}, filter INPUT"),
                Evidence("the node uses flannel's vxlan backend", node.flannel),
            ],
            [
                f"iptables -I INPUT 1 -p udp --dport {port} -j ACCEPT   # from the other nodes only: add -s NODE-NETWORK",
                f"firewall-cmd --permanent --add-port={port}/udp && firewall-cmd --reload",
            ],
        )


def look_masquerade(node: Node) -> Iterator[Said]:
    """A pod's packet to itself through its Service: marked, source and destination the pod."""
    for rules in node.iptables:
        nat = rules.tables.get("nat")
        if rules.family != 4 or nat is None or "POSTROUTING" not in nat.chains or nat.partial:
            continue
        mark = _masquerade_mark(nat)
        if mark is None:
            continue
        for pod, chain in _endpoints(nat)[:64]:
            end = judge(nat, "POSTROUTING", Probe(pod, pod, oif=node.bridge, mark=mark))
            if end.verdict != "accept" or not end.text:
                continue
            yield Said(
                [
                    Evidence(f"{end.text}", f"{rules.where}, nat {end.chain}, rule {end.position}"),
                    Evidence(f"{pod} is an endpoint here and needs the mark {mark:#x} to be masqueraded", f"{rules.where}, nat {chain}"),
                ],
                [f"iptables -t nat -D {end.chain} {end.position}   # or change ACCEPT to RETURN; newer flannel does",
                 "restart kube-proxy so that its POSTROUTING rule comes first"],
            )  # fmt: skip
            break


def _masquerade_mark(nat: RuleTable) -> int | None:
    for chain in nat.chains.values():
        if chain.name not in ("POSTROUTING", "KUBE-POSTROUTING"):
            continue
        for row in chain.rows():
            marks = [match for match in row.matches if isinstance(match, v.Mark)]
            if marks and (
                isinstance(row.verdict, v.Masquerade) or (isinstance(row.verdict, v.Return) and marks[0].inverted)
            ):
                return marks[0].value
    return None


def _endpoints(nat: RuleTable) -> list[tuple[str, str]]:
    found = []
    for name, chain in nat.chains.items():
        if name.startswith("KUBE-SEP-") and chain.lines:
            match = re.match(r"^-s ([\d.]+)(?:/32)? ", chain.lines[0])
            if match:
                found.append((match.group(1), name))
    return found


CHECKS = (
    Check(
        "forward-drop",
        "FORWARD drops pod traffic",
        "Pods on different nodes cannot talk; NodePorts may still work. Began with a restart of Docker, a reboot or an upgrade.",
        "The policy of FORWARD is DROP (Docker >= 1.13 sets it) and no rule accepts new connections from or to the pods' network."
        " flannel < 0.9.1 wrote no accepts; newer ones write them once at start, so a later flush takes them away for good.",
        look_forward,
    ),
    Check(
        "overlay-port-blocked",
        "The host's firewall rejects the overlay's packets",
        'Pods on different nodes cannot talk; the sender sees "no route to host".',
        "vxlan packets of the other nodes are ordinary UDP packets to this node. A REJECT at the end of INPUT (cloud images, firewalld)"
        " answers them with icmp-host-prohibited before the kernel unpacks them.",
        look_input,
    ),
    Check(
        "masquerade-hidden",
        "An ACCEPT in nat hides kube-proxy's masquerading",
        "A pod cannot reach itself through its Service; from outside the Service works.",
        "ACCEPT ends the walk through the whole nat table, also from a chain of somebody else's. The marked packet is then not masqueraded,"
        " the pod gets a packet from its own address and drops it as a martian. RETURN would have gone on.",
        look_masquerade,
    ),
)
