"""The scheduler: gives every waiting pod a node, through the pod's `binding` subresource.

One pod at a time, in the order they came. What was bound is remembered until the informer shows it, so that pods
that are created together do not all see the same empty node. A pod that fits nowhere gets the condition PodScheduled=False and
a FailedScheduling Event, and is tried again when a Node changes, when a pod leaves, and every 30 s.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from podwire.controllers.controller import Context, Controller, gone
from podwire.controllers.scheduling import DEFAULT_SCHEDULER, is_ours, place
from podwire.errors import ApiConflict, ApiNotFound
from podwire.kube.kinds import NODES, PODS
from podwire.kube.times import rfc3339

if TYPE_CHECKING:
    from podwire.kube.objects import Node, Pod

log = logging.getLogger("podwire.controllers")

RETRY_SECONDS = 30.0


class Scheduler(Controller):
    """The controller; keys are pods."""

    name = "scheduler"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._pods = context.informer(PODS)
        self._nodes = context.informer(NODES)
        self._events = context.recorder(DEFAULT_SCHEDULER)
        self._assumed: dict[str, tuple[Pod, str]] = {}  # uid → where it was bound, until the informer knows
        self._waiting: set[str] = set()
        self._pods.on_change(self._pod_changed)
        self._nodes.on_change(self._node_changed)

    def _pod_changed(self, key: str, old: Pod | None, new: Pod | None) -> None:
        if new is not None and is_ours(new):
            if old is None or old.spec != new.spec:  # not for the condition that this controller itself writes
                self.queue.add(key)
        elif new is None or new.finished:
            self._try_waiting()

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        if new is None:
            return
        same = old is not None and old.ready == new.ready and old.spec == new.spec
        if not same or (old is not None and old.metadata.labels != new.metadata.labels):
            self._try_waiting()

    def _try_waiting(self) -> None:
        for key in list(self._waiting):
            self.queue.add(key)

    def sync(self, key: str) -> None:
        """One pod."""
        pod = self._pods.get(key)
        self._forget_assumed()
        if pod is None or not is_ours(pod) or pod.metadata.uid in self._assumed:
            self._waiting.discard(key)
            return
        bound = [(other, other.spec.node_name) for other in self._pods.objects() if other.spec.node_name]
        placement = place(pod, self._nodes.objects(), [*bound, *self._assumed.values()])
        if placement.node:
            self._bind(pod, placement.node)
            self._waiting.discard(key)
        else:
            self._waiting.add(key)
            self._explain(pod, placement.message)
            self.queue.add_after(key, RETRY_SECONDS)

    def _bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            self.client.subresource(PODS, meta.name, "binding", body, meta.namespace)
        except ApiNotFound:
            return
        except ApiConflict as error:  # bound already, or another pod of that name: the informer will show
            log.info("pod not bound", extra={"kv": {"pod": pod.key, "error": str(error)}})
            return
        self._assumed[meta.uid] = (pod, node)
        log.info("pod bound", extra={"kv": {"pod": pod.key, "node": node}})
        self._events.event(pod, "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node}")

    def _explain(self, pod: Pod, message: str) -> None:
        self._events.event(pod, "Warning", "FailedScheduling", message)
        current = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
        if current is not None and (current.status, current.message) == ("False", message):
            return
        log.info("pod fits nowhere", extra={"kv": {"pod": pod.key, "reason": message}})
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": rfc3339(self.context.clock()),
            "lastProbeTime": None,
        }
        body = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        meta = pod.metadata
        gone(
            lambda: self.client.patch(
                PODS, meta.name, body, meta.namespace, patch_type="strategic", subresource="status"
            )
        )

    def _forget_assumed(self) -> None:
        for uid, (pod, _) in list(self._assumed.items()):
            seen = self._pods.get(pod.key)
            if seen is None or seen.metadata.uid != uid or seen.spec.node_name:
                del self._assumed[uid]
