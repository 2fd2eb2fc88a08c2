"""Leases kept in the Kubernetes API: flannel's kube subnet manager.

Everybody's lease is read from the Nodes, one's own is published on one's own Node. Writing goes through the `status`
subresource only, and as a strategic merge patch, because that is all that flannel's ClusterRole allows (nodes: get, list,
watch; nodes/status: patch); annotations are part of what may be changed there.

A Node changes every few seconds in what is of no concern here (heartbeats, images), so a change counts only if what a
lease is made of differs. With the same methods another source of leases (etcd) can take this one's place.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from podwire.errors import UsageError
from podwire.flanneld.lease import NodeRecord
from podwire.kube.kinds import NODES, PODS
from podwire.kube.reflector import Reflector

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from podwire.kube.client import Client
    from podwire.kube.objects import Node

NETWORK_UNAVAILABLE = "NetworkUnavailable"
REASON = "FlannelIsUp"
MESSAGE = "Flannel is running on this node"


def node_name(client: Client, environ: Mapping[str, str]) -> str:
    """This node's name: NODE_NAME, else the node of the pod that POD_NAME and POD_NAMESPACE name."""
    name = environ.get("NODE_NAME", "")
    if name:
        return name
    pod, namespace = environ.get("POD_NAME", ""), environ.get("POD_NAMESPACE", "")
    if not pod or not namespace:
        raise UsageError(
            "finding this node's name", "", "NODE_NAME is not set, nor are POD_NAME and POD_NAMESPACE", "set NODE_NAME"
        )
    name = client.get(PODS, pod, namespace).spec.node_name
    if not name:
        raise UsageError("finding this node's name", f"{namespace}/{pod}", "the pod is bound to no node")
    return name


def record(node: Node) -> NodeRecord:
    """What a lease is made of."""
    condition = next((one for one in node.status.conditions if one.type == NETWORK_UNAVAILABLE), None)
    return NodeRecord(
        name=node.metadata.name,
        uid=node.metadata.uid,
        annotations=node.metadata.annotations,
        pod_cidrs=node.pod_cidrs,
        network_condition=condition.reason if condition is not None and condition.status == "False" else "",
    )


class KubeLeases:
    """Follows all Nodes from `start` on."""

    def __init__(self, client: Client, name: str, stop: threading.Event) -> None:
        self.node = name
        self.synced = False
        """Whether all Nodes are known. Before that a node that is missing may just not have been heard of."""
        self._client = client
        self._on_change: Callable[[], None] = lambda: None
        self._reflector = Reflector(client, NODES, stop=stop, on_change=self._changed, on_sync=self._listed)

    def start(self, on_change: Callable[[], None]) -> None:
        """Begin to follow, in a thread of its own, which calls `on_change` when a lease may have changed."""
        self._on_change = on_change
        self._reflector.start()

    def own(self) -> NodeRecord | None:
        """This node's record."""
        node = self._reflector.store.get(self.node)
        return None if node is None else record(node)

    def nodes(self) -> list[NodeRecord]:
        """All nodes' records."""
        return [record(node) for node in self._reflector.objects()]

    def publish(self, node: NodeRecord, annotations: Mapping[str, str]) -> bool:
        """Put these annotations on our Node if they are not there; whether it was changed. Raises ApiError."""
        missing = {key: value for key, value in annotations.items() if node.annotations.get(key) != value}
        if not missing:
            return False
        self._patch(node.name, {"metadata": {"annotations": missing}})
        return True

    def network_is_up(self, node: NodeRecord) -> bool:
        """Set the condition NetworkUnavailable to False unless it is; whether it was changed. Raises ApiError."""
        if node.network_condition == REASON:
            return False
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        condition = {
            "type": NETWORK_UNAVAILABLE,
            "status": "False",
            "reason": REASON,
            "message": MESSAGE,
            "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }
        self._patch(node.name, {"status": {"conditions": [condition]}})
        return True

    def _patch(self, name: str, body: Mapping[str, object]) -> None:
        self._client.patch(NODES, name, body, patch_type="strategic", subresource="status")

    def _listed(self) -> None:
        self.synced = True
        self._on_change()

    def _changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        # The first list is announced once, when it is complete.
        if self.synced and (old is None or new is None or record(old) != record(new)):
            self._on_change()
