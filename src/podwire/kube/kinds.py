"""Where each kind lives in the API, and which struct it is read into."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from podwire.kube import objects
from podwire.kube.meta import Object

T = TypeVar("T", bound=Object)


class Kind(Generic[T]):
    """One kind of the API: group ("" for core), version, plural, kind, whether it lives in a namespace, its struct."""

    __slots__ = ("_decoder", "group", "kind", "namespaced", "plural", "type", "version")

    def __init__(
        self, group: str, version: str, plural: str, namespaced: bool, struct: type[T], kind: str = ""
    ) -> None:
        self.group = group
        self.version = version
        self.plural = plural
        self.kind = kind or struct.kind
        self.namespaced = namespaced
        self.type = struct
        self._decoder = msgspec.json.Decoder(struct)

    def __repr__(self) -> str:
        return f"Kind({self.resource})"

    @property
    def api_version(self) -> str:
        """What stands in `apiVersion`: v1, apps/v1."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """What stands in messages: pods, deployments.apps."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of an object, or of its subresource; no namespace means all of them."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)

    def decode(self, text: bytes | bytearray | memoryview | msgspec.Raw) -> T:
        """One object from JSON; raises msgspec.MsgspecError if it is malformed."""
        return self._decoder.decode(text)

    def convert(self, value: dict[str, Any]) -> T:
        """One object from plain JSON values (fixtures, files)."""
        return msgspec.convert(value, self.type)


NODES = Kind("", "v1", "nodes", namespaced=False, struct=objects.Node)
NAMESPACES = Kind("", "v1", "namespaces", namespaced=False, struct=objects.Namespace)
PODS = Kind("", "v1", "pods", namespaced=True, struct=objects.Pod)
SERVICES = Kind("", "v1", "services", namespaced=True, struct=objects.Service)
CONFIG_MAPS = Kind("", "v1", "configmaps", namespaced=True, struct=objects.ConfigMap)
EVENTS = Kind("", "v1", "events", namespaced=True, struct=objects.Event)
ENDPOINT_SLICES = Kind("discovery.k8s.io", "v1", "endpointslices", namespaced=True, struct=objects.EndpointSlice)
DEPLOYMENTS = Kind("apps", "v1", "deployments", namespaced=True, struct=objects.Deployment)
REPLICA_SETS = Kind("apps", "v1", "replicasets", namespaced=True, struct=objects.ReplicaSet)
LEASES = Kind("coordination.k8s.io", "v1", "leases", namespaced=True, struct=objects.Lease)

ALL: tuple[Kind[Any], ...] = (
    NODES,
    NAMESPACES,
    PODS,
    SERVICES,
    CONFIG_MAPS,
    EVENTS,
    ENDPOINT_SLICES,
    DEPLOYMENTS,
    REPLICA_SETS,
    LEASES,
)
