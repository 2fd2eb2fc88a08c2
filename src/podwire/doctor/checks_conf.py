"""Checks of /etc/cni/net.d: which file wins, broken files, leftovers, and pods that got their address from the wrong one."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said
from podwire.doctor.view import inside
from podwire.explain.snapshot import name_of, namespace_of
from podwire.explain.snapshot_words import inner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.doctor.view import Node
    from podwire.explain.confdir import ConfDir, ConfFile
    from podwire.explain.snapshot import Object

#: Network plugins that a cluster installs on purpose; a bare bridge is what distributions and runtimes ship as a default.
_CLUSTER_PLUGINS = frozenset(
    (
        "flannel",
        "calico",
        "cilium-cni",
        "weave-net",
        "antrea",
        "kube-ovn",
        "kube-router",
        "ptp",
        "multus",
        "multus-shim",
        "ovn-k8s-cni-overlay",
        "azure-vnet",
        "aws-cni",
        "gke",
        "canal",
        "romana",
    )
)


def _cluster(file: ConfFile) -> bool:
    return bool(_CLUSTER_PLUGINS & set(file.types))


def look_broken(node: Node) -> Iterator[Said]:
    """Candidates that are no networks."""
    conf = node.confdir
    if conf is None:
        return
    for file in conf.candidates:
        if not file.error:
            continue
        evidence = [Evidence(f"{file.name}: {file.error}", file.file.where)]
        winner = conf.winner
        if winner:
            said = f"runtimes that pass over broken files (CRI-O, the old kubelet) use {winner.name}"
            said += (
                ": pods get nothing but a loopback interface, and the node says it is ready"
                if winner.loopback_only
                else ""
            )
            evidence.append(Evidence(said, winner.file.where))
        first = conf.first is file
        if first:
            evidence.append(
                Evidence(
                    'it is the first file by name: containerd stops here ("cni plugin not initialized")',
                    file.file.where,
                )
            )
        yield Said(
            evidence,
            [file.hint or "mend the file", "the runtime watches the directory: no restart is needed"],
            title=f"{file.name} is no valid network configuration",
            level="error" if first else "warning",
        )


def look_loopback(node: Node) -> Iterator[Said]:
    """The network in force is lo alone."""
    winner = node.confdir.winner if node.confdir else None
    if node.confdir and winner and winner.loopback_only:
        names = ", ".join(file.name for file in node.confdir.candidates)
        yield Said(
            [
                Evidence(
                    f"{winner.name} wins with the chain {'+'.join(winner.types)} (files, in order: {names})",
                    winner.file.where,
                )
            ],
            ["put the real network's .conflist in place, under a name that sorts first"],
        )


def look_wrong_winner(node: Node) -> Iterator[Said]:
    """A default bridge of a distribution wins over the cluster's network."""
    conf = node.confdir
    if conf is None or conf.winner is None or _cluster(conf.winner):
        return
    losers = [file for file in conf.candidates if file.network and _cluster(file)]
    winner = conf.winner
    if not losers or winner.loopback_only:
        return
    subnets = (
        [Evidence(f"it hands out {', '.join(winner.subnets)}, on every node the same", winner.file.where)]
        if winner.subnets
        else []
    )
    yield Said(
        [
            Evidence(f"{winner.name} ({'+'.join(winner.types)}) sorts before {losers[0].name} ({'+'.join(losers[0].types)}) by the bytes of the names", winner.file.where),
            *subnets,
        ],
        [f"rm /etc/cni/net.d/{winner.name}   # the runtime sees it at once", "delete the pods that were made meanwhile: they keep their addresses until then"],
        title=f"{winner.name} wins over the cluster's network {losers[0].name}",
    )  # fmt: skip


def look_leftover(node: Node) -> Iterator[Said]:
    """Flannel's file on a node that has no flannel any more."""
    conf = node.confdir
    if conf is None:
        return
    flannel = [file for file in conf.candidates if "flannel" in file.types]
    others = [file for file in conf.candidates if file.network and _cluster(file) and "flannel" not in file.types]
    sets = node.snapshot.daemonsets
    gone = sets is not None and not any("flannel" in name or "canal" in name for _, name in sets)
    if (
        not flannel
        or not (gone or others)
        or (sets is None and node.snapshot.subnet_env)
        or (sets is not None and not gone)
    ):
        return
    file = flannel[0]
    winner = conf.winner
    wins = winner is file
    if not gone and not wins:
        return  # two networks, and nothing says that flannel's is the one that is gone
    evidence = [Evidence(f"{file.name} is there" + (f" beside {others[0].name}" if others else ""), file.file.where)]
    if gone:
        names = ", ".join(f"{namespace}/{name}" for namespace, name in sets or ())
        evidence.append(Evidence(f"no DaemonSet of flannel: {names}", node.snapshot.where.get("daemonsets", "")))
    for link in node.snapshot.links or ():
        if link.name.startswith("flannel") or (link.name == "cni0" and "NO-CARRIER" in link.flags):
            what = "without carrier or ports" if link.name == "cni0" else "without a flanneld"
            evidence.append(Evidence(f"device {link.name} is left over, {what}", link.where))
    stale = [route for route in node.snapshot.routes or () if route.dev.startswith("flannel.")] if gone else []
    evidence += [Evidence(f"route left over: {route.text}", route.where) for route in stale[:3]]
    why = (
        ""
        if wins
        else "The other network's file sorts first, so it is used today. The leftover takes over the moment that file is renamed, rewritten or removed."
    )
    yield Said(
        evidence,
        [f"rm /etc/cni/net.d/{file.name}", "ip link del flannel.1; ip link del cni0   # only when nothing runs on them: routes to other podCIDRs go with them"],
        title=f"{file.name} is left over from flannel and {'is what the runtime uses' if wins else 'waits to take over'}",
        why=why,
        level="error" if wins else "warning",
    )  # fmt: skip


def _host_network(pod: Object) -> bool:
    spec, status = inner(pod, "spec"), inner(pod, "status")
    return bool(spec.get("hostNetwork")) or (bool(status.get("hostIP")) and status.get("hostIP") == status.get("podIP"))


def _pod_ip(pod: Object) -> str:
    ip = str(inner(pod, "status").get("podIP") or "")
    return "" if inner(pod, "status").get("phase") in ("Succeeded", "Failed") else ip


def look_foreign_pods(node: Node) -> Iterator[Said]:
    """Pods of this node whose address is not of its podCIDR."""
    where = node.snapshot.where.get("pods", "")
    own = [*node.own_cidrs, *([node.subnet] if node.subnet else [])]
    for pod in node.pods_of():
        ip = _pod_ip(pod)
        if not ip or _host_network(pod):
            continue
        culprit = _giver(node.confdir, ip)
        wrong = (
            not inside(ip, own)
            if own and any(one.network.version == ip_address(ip).version for one in own)
            else bool(culprit)
        )
        if not wrong or (culprit and _cluster(culprit)) or node.any_chain("cali-"):
            continue
        title = f"{namespace_of(pod)}/{name_of(pod)} has {ip}, which is not of this node's range"
        evidence = [Evidence(f"{namespace_of(pod)}/{name_of(pod)} {ip}", where)]
        evidence += [Evidence(f"this node's range is {one.network}", one.where) for one in own[:1]]
        fix = [f"kubectl -n {namespace_of(pod)} delete pod {name_of(pod)}   # once the right file wins"]
        conf = node.confdir
        if culprit and conf:
            wins = conf.winner is culprit
            said = f"{culprit.name} hands out {', '.join(culprit.subnets)}" + ("; it wins" if wins else "")
            evidence.append(Evidence(said, culprit.file.where))
            if wins:
                fix.insert(0, f"rm /etc/cni/net.d/{culprit.name}")
            elif conf.winner:
                evidence.append(
                    Evidence(
                        f"{conf.winner.name} wins today: the pod was made while that file was not there yet (boot)",
                        conf.winner.file.where,
                    )
                )
        yield Said(evidence, fix, title)


def _giver(conf: ConfDir | None, ip: str) -> ConfFile | None:
    for file in conf.candidates if conf else ():
        for subnet in file.subnets:
            try:
                network = ip_network(subnet, strict=False)
            except ValueError:
                continue
            if ip_address(ip) in network:
                return file
    return None


def look_duplicate_pods(nodes: Sequence[Node]) -> Iterator[Said]:
    """Two pods with one address."""
    seen: dict[str, dict[tuple[str, str], tuple[str, str]]] = {}
    for node in nodes:
        for pod in node.snapshot.pods or ():
            ip = _pod_ip(pod)
            if ip and not _host_network(pod):
                spec = inner(pod, "spec")
                key = (namespace_of(pod), name_of(pod))
                seen.setdefault(ip, {})[key] = (str(spec.get("nodeName", "")), node.snapshot.where.get("pods", ""))
    own = {address.ip for node in nodes for address in node.snapshot.addresses or ()}
    for ip, pods in sorted(seen.items()):
        places = {place for place, _ in pods.values()}
        if len(pods) < 2 or ip in own or (len(places) == 1 and len(pods) > 2):
            continue  # many pods of one node with its own address: host network that the input does not tell
        evidence = [
            Evidence(f"{namespace}/{name} on {place or '?'}: {ip}", where)
            for (namespace, name), (place, where) in sorted(pods.items())
        ]
        yield Said(
            evidence,
            ["see which file wins on these nodes (ls -1 /etc/cni/net.d | LC_ALL=C sort), mend it, delete the pods"],
            title=f"{len(pods)} pods have the address {ip}",
            nodes=sorted(places - {""}),
        )


CHECKS = (
    Check(
        "conf-broken",
        "A broken file in /etc/cni/net.d",
        'The node is NotReady with "cni plugin not initialized", or pods start without a network.',
        "containerd's loader stops at the first file that is no network; CRI-O and the old kubelet log it and go on to the next.",
        look_broken,
    ),
    Check(
        "conf-loopback-only",
        "The network in force is a bare loopback",
        "Pods start, the node is Ready, and pods have no address but 127.0.0.1.",
        "The first file that runtimes can read is a loopback configuration, so that is the pods' whole network.",
        look_loopback,
    ),
    Check(
        "conf-wrong-wins",
        "The wrong file in /etc/cni/net.d wins",
        "Pods have addresses like 10.88.x, 10.85.x; pods on different nodes have the same address and cannot talk.",
        "Runtimes take the first of the .conf, .conflist and .json files by the bytes of their names. A dot sorts before letters and digits, '-'"
        ' before digits, "10-c" before "10-f".',
        look_wrong_winner,
    ),
    Check(
        "conf-leftover-flannel",
        "flannel's configuration is left over",
        "Pods stay ContainerCreating with the subnet.env error although the cluster runs another network.",
        "kubectl delete removes flannel's pods, not its files. The runtime goes by file names and runs a plugin whose daemon is gone.",
        look_leftover,
    ),
    Check(
        "pod-ip-foreign",
        "A pod's address is not of its node's range",
        "The pod cannot be reached from other nodes.",
        "The other nodes route only this node's podCIDR to it; another range is nobody's, or everybody's.",
        look_foreign_pods,
    ),
    Check(
        "pod-ip-duplicate",
        "Pods with the same address",
        "Answers come from the wrong pod, or from none.",
        "Each node handed out the address from a range that was meant for one node only.",
        look_at_all=look_duplicate_pods,
    ),
)
