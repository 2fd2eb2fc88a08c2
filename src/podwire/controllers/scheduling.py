"""Which node a pod goes to. Pure: a pod, the nodes, the other pods → a node's name, or the reason there is none.

Filters, as the default scheduler's plug-ins of the same purpose: NodeUnschedulable, NodeName is not needed (such pods are
not ours), TaintToleration, NodeAffinity as far as nodeSelector goes, NodePorts. A node that is not Ready counts as tainted
`node.kubernetes.io/not-ready:NoSchedule`, which the real node controller would write. Resource requests are not
looked at: podwire's containers share one machine anyway.

Score: fewest pods of the same owner, then fewest pods, then the name, so that the answer is always the same.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from podwire.kube.objects import Node, Pod, Taint, Toleration

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_SCHEDULER = "default-scheduler"
NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


class Placement(NamedTuple):
    """The chosen node; or an empty name and the message for the Event and the condition."""

    node: str
    message: str = ""


def is_ours(pod: Pod) -> bool:
    """Whether the pod waits for the default scheduler."""
    spec = pod.spec
    waits = not spec.node_name and not pod.terminating and not pod.finished and not spec.scheduling_gates
    return waits and spec.scheduler_name in ("", DEFAULT_SCHEDULER)


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint (v1.Toleration.ToleratesTaint)."""
    return any(
        (not toleration.effect or toleration.effect == taint.effect)
        and (not toleration.key or toleration.key == taint.key)
        and (
            toleration.operator == "Exists"
            or (toleration.operator in ("", "Equal") and bool(toleration.key) and toleration.value == taint.value)
        )
        for toleration in tolerations
    )


def place(pod: Pod, nodes: Iterable[Node], others: Iterable[tuple[Pod, str]]) -> Placement:
    """Choose a node; `others` are the pods that are on a node or on their way there, with its name."""
    all_nodes = sorted(nodes, key=lambda node: node.key)
    if not all_nodes:
        return Placement("", "no nodes available to schedule pods")
    placed = [
        (other, where) for other, where in others if not other.finished and other.metadata.uid != pod.metadata.uid
    ]
    ports = _host_ports(pod)
    taken: dict[str, list[tuple[str, str, int]]] = {}
    if ports:
        for other, where in placed:
            taken.setdefault(where, []).extend(_host_ports(other))
    reasons: Counter[str] = Counter()
    fitting: list[str] = []
    for node in all_nodes:
        reason = _objection(pod, node) or _port_objection(ports, taken.get(node.key, []))
        if reason:
            reasons[reason] += 1
        else:
            fitting.append(node.key)
    if not fitting:
        counted = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        return Placement("", f"0/{len(all_nodes)} nodes are available: {counted}.")
    owner = _owner(pod)
    total = Counter(where for _, where in placed)
    siblings = Counter(where for other, where in placed if owner and _owner(other) == owner)
    return Placement(min(fitting, key=lambda name: (siblings[name], total[name], name)))


def _objection(pod: Pod, node: Node) -> str:
    """Why the pod cannot go there, in the scheduler's words; empty if it can."""
    tolerations = pod.spec.tolerations
    if node.spec.unschedulable and not tolerates(tolerations, UNSCHEDULABLE):
        return "node(s) were unschedulable"
    if not node.ready and not tolerates(tolerations, NOT_READY):
        return "node(s) were not ready"
    for taint in node.spec.taints:
        if taint.effect in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
            return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _port_objection(wanted: list[tuple[str, str, int]], taken: list[tuple[str, str, int]]) -> str:
    everywhere = ("", "0.0.0.0", "::")
    for ip, protocol, port in wanted:
        for other_ip, other_protocol, other_port in taken:
            same = (protocol, port) == (other_protocol, other_port)
            if same and (ip == other_ip or ip in everywhere or other_ip in everywhere):
                return "node(s) didn't have free ports for the requested pod ports"
    return ""


def _host_ports(pod: Pod) -> list[tuple[str, str, int]]:
    """(address, protocol, port) on the node; with hostNetwork every container port is one."""
    host = pod.spec.host_network
    ports = [port for container in pod.spec.containers for port in container.ports]
    numbers = [(port, port.host_port or (port.container_port if host else 0)) for port in ports]
    return [(port.host_ip, port.protocol, number) for port, number in numbers if number]


def _owner(pod: Pod) -> str:
    owner = pod.metadata.controller
    return owner.uid if owner else ""
