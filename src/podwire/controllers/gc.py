"""The garbage collector: objects whose owners are gone go too.

Informers of every kind that can own or be owned keep two tables: which uids exist, and who depends on which uid. What they
say only decides whom to look at. Before anything is deleted or changed the API itself is asked for the object and for each
owner, by uid, so a view that lags behind can delay a deletion but never cause a wrong one.

Foreground deletion and orphaning arrive as the finalizers `foregroundDeletion` and `orphan`: the first is taken off
when no dependent with blockOwnerDeletion is left, the second when every dependent has forgotten its owner.

Kinds: those podwire's API serves. Owners of other kinds are left alone, with a log line; Events have no owners.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.controllers.controller import Context, Controller, gone
from podwire.controllers.dependents import FOREGROUND, ORPHAN, Fate, judge, orphans_dependents, waits_for_dependents
from podwire.errors import ApiNotFound
from podwire.kube import kinds
from podwire.kube.kinds import Kind
from podwire.kube.objects import AnyObject

if TYPE_CHECKING:
    from podwire.kube.meta import Object, OwnerReference

log = logging.getLogger("podwire.controllers")

#: Kinds that other controllers watch in full anyway, and kinds of which only the metadata matters here.
FULL = (
    kinds.NODES,
    kinds.PODS,
    kinds.SERVICES,
    kinds.ENDPOINT_SLICES,
    kinds.DEPLOYMENTS,
    kinds.REPLICA_SETS,
    kinds.LEASES,
)
NAMESPACES = Kind("", "v1", "namespaces", namespaced=False, struct=AnyObject, kind="Namespace")
CONFIG_MAPS = Kind("", "v1", "configmaps", namespaced=True, struct=AnyObject, kind="ConfigMap")


class Node(NamedTuple):
    """One object in the graph: its kind and key."""

    kind: Kind[Any]
    key: str

    def __str__(self) -> str:
        return f"{self.kind.resource}|{self.key}"


class Graph:
    """Who exists and who depends on whom, by uid; fed by the informers, read by the collector."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._dependents: dict[str, set[str]] = {}

    def change(self, kind: Kind[Any], old: Object | None, new: Object | None) -> None:
        """Take over a change."""
        with self._lock:
            if old is not None:
                for owner in old.metadata.owner_references:
                    self._dependents.get(owner.uid, set()).discard(old.metadata.uid)
                    self._tidy(owner.uid)
                if new is None:
                    self._nodes.pop(old.metadata.uid, None)
                    self._tidy(old.metadata.uid)
            if new is not None:
                self._nodes[new.metadata.uid] = Node(kind, new.key)
                for owner in new.metadata.owner_references:
                    self._dependents.setdefault(owner.uid, set()).add(new.metadata.uid)

    def _tidy(self, uid: str) -> None:
        if uid not in self._nodes and not self._dependents.get(uid):
            self._dependents.pop(uid, None)

    def exists(self, uid: str) -> bool:
        """Whether an informer shows it."""
        with self._lock:
            return uid in self._nodes

    def dependents(self, uid: str) -> list[Node]:
        """What names it as an owner."""
        with self._lock:
            return [self._nodes[dependent] for dependent in self._dependents.get(uid, ()) if dependent in self._nodes]


class GarbageCollector(Controller):
    """The controller; keys are `resource|namespace/name`."""

    name = "gc"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._graph = Graph()
        self._informers = {kind.resource: context.informer(kind) for kind in (*FULL, NAMESPACES, CONFIG_MAPS)}
        self._by_owner = {(i.kind.api_version, i.kind.kind): i.kind for i in self._informers.values()}
        self._unknown: set[tuple[str, str]] = set()
        self._live = False
        for informer in self._informers.values():
            informer.on_change(functools.partial(self._changed, informer.kind))

    def prepare(self) -> None:
        """Only now, with every kind listed, does the absence of an owner mean something."""
        self._live = True
        for informer in self._informers.values():
            for obj in informer.objects():
                self._consider(informer.kind, obj)

    def _changed(self, kind: Kind[Any], _key: str, old: Object | None, new: Object | None) -> None:
        self._graph.change(kind, old, new)
        if not self._live:
            return
        if new is not None:
            self._consider(kind, new)
        elif old is not None:
            for node in self._graph.dependents(old.metadata.uid):
                self.queue.add(str(node))
            for owner in old.metadata.owner_references:  # it may have waited for this one
                self._look_at_owner(owner, old.metadata.namespace)

    def _consider(self, kind: Kind[Any], obj: Object) -> None:
        missing = any(not self._graph.exists(owner.uid) for owner in obj.metadata.owner_references)
        if missing or waits_for_dependents(obj) or orphans_dependents(obj):
            self.queue.add(str(Node(kind, obj.key)))

    def _look_at_owner(self, owner: OwnerReference, namespace: str) -> None:
        kind = self._by_owner.get((owner.api_version, owner.kind))
        if kind is not None:
            key = f"{namespace}/{owner.name}" if kind.namespaced else owner.name
            shown = self._informers[kind.resource].get(key)
            if shown is not None and waits_for_dependents(shown):
                self.queue.add(str(Node(kind, key)))

    def sync(self, key: str) -> None:
        """One object that may have to go, or that waits for its dependents."""
        resource, _, name = key.partition("|")
        kind = self._informers[resource].kind
        obj = self._get(kind, name)
        if obj is None:
            return
        if orphans_dependents(obj):
            self._orphan(kind, obj)
        elif waits_for_dependents(obj):
            self._foreground(kind, obj)
        else:
            self._collect(kind, obj)

    def _collect(self, kind: Kind[Any], obj: Object) -> None:
        fates = [Fate(owner, self._fate(owner, obj.metadata.namespace)) for owner in obj.metadata.owner_references]
        verdict = judge(obj, fates, has_dependents=bool(self._graph.dependents(obj.metadata.uid)))
        meta = obj.metadata
        if verdict.action == "strike":
            self._strike(kind, obj, verdict.strike)
        elif verdict.action == "delete":
            try:
                self.client.delete(
                    kind,
                    meta.name,
                    meta.namespace or None,
                    uid=meta.uid,
                    # If somebody adopts it meanwhile, this is a conflict and we look again.
                    resource_version=meta.resource_version,
                    propagation=verdict.propagation,
                )
            except ApiNotFound:
                return
            log.info("deleted dependent", extra={"kv": {"kind": kind.resource, "object": obj.key}})

    def _fate(self, owner: OwnerReference, namespace: str) -> str:
        kind = self._by_owner.get((owner.api_version, owner.kind))
        if kind is None or (kind.namespaced and not namespace):
            if (owner.api_version, owner.kind) not in self._unknown:
                self._unknown.add((owner.api_version, owner.kind))
                log.info("owners of this kind are not collected", extra={"kv": {"kind": owner.kind}})
            return "unknown"
        found = self._get(kind, f"{namespace}/{owner.name}" if kind.namespaced else owner.name)
        if found is None or found.metadata.uid != owner.uid:
            return "gone"
        return "waits" if waits_for_dependents(found) else "lives"

    def _foreground(self, kind: Kind[Any], obj: Object) -> None:
        dependents = [(node.kind, self._get(node.kind, node.key)) for node in self._graph.dependents(obj.metadata.uid)]
        blocking = False
        for other_kind, other in dependents:
            if other is None:
                continue
            mine = next((ref for ref in other.metadata.owner_references if ref.uid == obj.metadata.uid), None)
            if mine is not None:
                blocking = blocking or mine.block_owner_deletion
                self.queue.add(str(Node(other_kind, other.key)))
        if not blocking:
            self._drop_finalizer(kind, obj, FOREGROUND)

    def _orphan(self, kind: Kind[Any], obj: Object) -> None:
        for node in self._graph.dependents(obj.metadata.uid):
            other = self._get(node.kind, node.key)
            if other is not None:
                self._strike(node.kind, other, (obj.metadata.uid,))
        self._drop_finalizer(kind, obj, ORPHAN)

    def _strike(self, kind: Kind[Any], obj: Object, uids: tuple[str, ...]) -> None:
        """Take owner references away."""
        gone_refs = [{"$patch": "delete", "uid": uid} for uid in uids]
        body = {"metadata": {"uid": obj.metadata.uid, "ownerReferences": gone_refs}}
        self._patch(kind, obj, body, "strategic")

    def _drop_finalizer(self, kind: Kind[Any], obj: Object, finalizer: str) -> None:
        rest = [name for name in obj.metadata.finalizers if name != finalizer]
        version = obj.metadata.resource_version  # a list is replaced as a whole: only if nobody else changed it
        self._patch(kind, obj, {"metadata": {"resourceVersion": version, "finalizers": rest}}, "merge")

    def _patch(self, kind: Kind[Any], obj: Object, body: dict[str, Any], patch_type: str) -> None:
        meta = obj.metadata
        gone(lambda: self.client.patch(kind, meta.name, body, meta.namespace or None, patch_type=patch_type))

    def _get(self, kind: Kind[Any], key: str) -> Object | None:
        """The object as the API has it now."""
        namespace, _, name = key.rpartition("/")
        try:
            found: Object = self.client.get(kind, name, namespace or None)
        except ApiNotFound:
            return None
        return found
