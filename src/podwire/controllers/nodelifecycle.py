"""Node lifecycle: a kubelet that stops renewing its Lease is not believed any longer.

    Lease in kube-node-lease older than 40 s → Node conditions Ready (and the others the kubelet had set) become Unknown,
                                               its pods' Ready becomes False, so that Services stop sending there
    kubelet back                             → it reports its conditions and its pods' itself

The age counts from when *this* process saw the Lease change last, not from the times in it: clocks of machines differ. So
after a start every Node has its full 40 s. A Node without a Lease counts from when it was first seen. Pods are not evicted: a real
cluster waits another five minutes for that, and podwire has no taint-based eviction.

Keys are node names. Nothing polls: each look sets the alarm for the next one.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from podwire.controllers.controller import Context, Controller, gone
from podwire.kube.kinds import LEASES, NODES, PODS
from podwire.kube.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kube.objects import Condition, Lease, Node, Pod

log = logging.getLogger("podwire.controllers")

GRACE_SECONDS = 40.0
LEASE_NAMESPACE = "kube-node-lease"
KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def unknown_conditions(node: Node, now: float) -> list[dict[str, Any]]:
    """Pure: the conditions to write for a Node whose kubelet is silent; empty if they say so already."""
    stale = [
        entry for entry in node.status.conditions if entry.type in KUBELET_CONDITIONS and entry.status != "Unknown"
    ]
    result = [
        {
            "type": entry.type,
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": rfc3339(now),
            "lastHeartbeatTime": entry.last_heartbeat_time,
        }
        for entry in stale
    ]
    if not any(entry.type == "Ready" for entry in node.status.conditions):
        result.append(
            {
                "type": "Ready",
                "status": "Unknown",
                "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastTransitionTime": rfc3339(now),
                "lastHeartbeatTime": node.metadata.creation_timestamp,
            }
        )
    return result


class NodeLifecycle(Controller):
    """The controller; keys are Nodes."""

    name = "nodelifecycle"

    def __init__(
        self, context: Context, grace: float = GRACE_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(context)
        self._nodes = context.informer(NODES)
        self._pods = context.informer(PODS)
        self._leases = context.informer(LEASES)
        self._events = context.recorder("node-controller")
        self._grace = grace
        self._monotonic = monotonic
        self._seen: dict[str, float] = {}
        self._leases.on_change(self._lease_changed)
        self._nodes.on_change(self._node_changed)

    def _lease_changed(self, _key: str, old: Lease | None, new: Lease | None) -> None:
        if new is None or new.metadata.namespace != LEASE_NAMESPACE:
            return
        if old is None or old.spec.renew_time != new.spec.renew_time:
            name = new.metadata.name
            first = name not in self._seen
            self._seen[name] = self._monotonic()
            if first:
                self.queue.add(name)

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or _ready(old) != _ready(new):
            self.queue.add(key)

    def sync(self, key: str) -> None:
        """One Node."""
        node = self._nodes.get(key)
        if node is None:
            self._seen.pop(key, None)
            return
        silent = self._monotonic() - self._seen.setdefault(key, self._monotonic())
        if silent < self._grace:
            self.queue.add_after(key, self._grace - silent + 0.1)
        else:
            conditions = unknown_conditions(node, self.context.clock())
            if conditions:
                body = {"metadata": {"uid": node.metadata.uid}, "status": {"conditions": conditions}}
                gone(lambda: self.client.patch(NODES, key, body, patch_type="strategic", subresource="status"))
                log.warning("kubelet is silent", extra={"kv": {"node": key, "seconds": int(silent)}})
                self._events.event(node, "Normal", "NodeNotReady", f"Node {key} status is now: NodeNotReady")
        ready = _ready(node)
        if silent >= self._grace or (ready is not None and ready.status == "Unknown"):
            self._mark_pods(key)

    def _mark_pods(self, node: str) -> None:
        for pod in self._pods.objects():
            if pod.spec.node_name == node and pod.ready:
                self._mark_pod(pod)

    def _mark_pod(self, pod: Pod) -> None:
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(self.context.clock())}
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        meta = pod.metadata
        gone(
            lambda: self.client.patch(
                PODS, meta.name, body, meta.namespace, patch_type="strategic", subresource="status"
            )
        )
        self._events.event(pod, "Warning", "NodeNotReady", "Node is not ready")


def _ready(node: Node) -> Condition | None:
    return next((entry for entry in node.status.conditions if entry.type == "Ready"), None)
