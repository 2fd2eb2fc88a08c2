"""Leases in memory: Node records that several flanneld agents share, as they share the API.

    cluster = Cluster()
    cluster.add("n1", "10.244.0.0/24")
    agent = Agent(…, cluster.leases("n1"), …)

It behaves as kubemgr.KubeLeases over a real API does: what one node publishes the others see, records are replaced and
never changed, and while `away` is set reading gives the last state and writing raises ApiUnavailable.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from podwire.errors import ApiNotFound, ApiUnavailable
from podwire.flanneld.lease import NodeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

REASON = "FlannelIsUp"


class Cluster:
    """All Nodes by name."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeRecord] = {}
        self.away = False
        self.writes = 0
        self._uids = itertools.count(1)

    def add(self, name: str, *pod_cidrs: str, annotations: Mapping[str, str] | None = None) -> None:
        """Register a Node, as its kubelet does."""
        self.nodes[name] = NodeRecord(name, f"uid-{next(self._uids)}", dict(annotations or {}), pod_cidrs)

    def change(self, name: str, **fields: object) -> None:
        """Replace fields of a record."""
        self.nodes[name] = dataclasses.replace(self.nodes[name], **fields)  # type: ignore[arg-type]  # any field

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """Merge annotations into a Node."""
        self.change(name, annotations={**self.nodes[name].annotations, **annotations})

    def remove(self, name: str) -> None:
        """Delete a Node."""
        del self.nodes[name]

    def write(self, name: str) -> None:
        """Count a write and raise what an API would."""
        if self.away:
            raise ApiUnavailable("patching", f"nodes/{name}/status", 0, "NoConnection", "connection refused")
        if name not in self.nodes:
            raise ApiNotFound("patching", f"nodes/{name}/status", 404, "NotFound", f'nodes "{name}" not found')
        self.writes += 1

    def leases(self, node: str) -> MemoryLeases:
        """The view of one node's flanneld."""
        return MemoryLeases(self, node)


class MemoryLeases:
    """What one flanneld sees of a Cluster; the same methods as kubemgr.KubeLeases."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.node = node
        self.synced = True
        self._cluster = cluster
        self._seen: dict[str, NodeRecord] = {}

    def _read(self) -> dict[str, NodeRecord]:
        if not self._cluster.away:
            self._seen = dict(self._cluster.nodes)
        return self._seen

    def own(self) -> NodeRecord | None:
        """This node's record."""
        return self._read().get(self.node)

    def nodes(self) -> list[NodeRecord]:
        """All records."""
        return list(self._read().values())

    def publish(self, node: NodeRecord, annotations: Mapping[str, str]) -> bool:
        """Put these annotations on the node if they are not there; whether it was changed."""
        missing = {key: value for key, value in annotations.items() if node.annotations.get(key) != value}
        if missing:
            self._cluster.write(node.name)
            self._cluster.annotate(node.name, missing)
        return bool(missing)

    def network_is_up(self, node: NodeRecord) -> bool:
        """Set the condition NetworkUnavailable to False unless it is; whether it was changed."""
        if node.network_condition == REASON:
            return False
        self._cluster.write(node.name)
        self._cluster.change(node.name, network_condition=REASON)
        return True
