"""Pod garbage collection: pods on Nodes that no longer exist will never be ended by their kubelet, so they are deleted here.

As the pod garbage collector of Kubernetes: a Node that is gone gets a quarantine (a kubelet may register it again), then
the API is asked once more, then the pod is marked Failed and deleted without grace. A pod that was deleted before it
got a node has no kubelet either and goes at once. Keys are node names; an empty one stands for "no node".
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from podwire.controllers.controller import Context, Controller, gone
from podwire.errors import ApiConflict, ApiNotFound
from podwire.kube.kinds import NODES, PODS

if TYPE_CHECKING:
    from podwire.kube.objects import Node, Pod

log = logging.getLogger("podwire.controllers")

QUARANTINE_SECONDS = 40.0


class PodGarbageCollector(Controller):
    """The controller; keys are names of Nodes."""

    name = "podgc"

    def __init__(self, context: Context, quarantine: float = QUARANTINE_SECONDS) -> None:
        super().__init__(context)
        self._nodes = context.informer(NODES)
        self._pods = context.informer(PODS)
        self._quarantine = quarantine
        self._missing_since: dict[str, float] = {}
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)

    def _node_changed(self, key: str, _old: Node | None, new: Node | None) -> None:
        if new is None:
            self.queue.add(key)

    def _pod_changed(self, _key: str, _old: Pod | None, new: Pod | None) -> None:
        if new is None:
            return
        node = new.spec.node_name
        if (node and self._nodes.get(node) is None) or (not node and new.terminating):
            self.queue.add(node)

    def sync(self, key: str) -> None:
        """The pods of one Node that is gone."""
        if not key:
            for pod in self._pods.objects():
                if pod.terminating and not pod.spec.node_name:
                    self._delete(pod)
            return
        pods = [pod for pod in self._pods.objects() if pod.spec.node_name == key]
        if not pods or self._nodes.get(key) is not None:
            self._missing_since.pop(key, None)
            return
        now = self.context.clock()
        left = self._missing_since.setdefault(key, now) + self._quarantine - now
        if left > 0:
            self.queue.add_after(key, left)
            return
        try:
            self.client.get(NODES, key)
        except ApiNotFound:
            self._missing_since.pop(key, None)
            for pod in pods:
                self._delete(pod)
        else:
            self.queue.add_after(key, self._quarantine)  # it is there; the informer will show it

    def _delete(self, pod: Pod) -> None:
        meta = pod.metadata
        if not pod.finished and pod.spec.node_name:
            body = {"metadata": {"uid": meta.uid}, "status": {"phase": "Failed"}}
            gone(lambda: self.client.patch(PODS, meta.name, body, meta.namespace, subresource="status"))
        try:
            self.client.delete(PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)
        except (ApiNotFound, ApiConflict):
            return
        log.info("deleted orphaned pod", extra={"kv": {"pod": pod.key, "node": pod.spec.node_name}})
