"""What a URL path means: `Target` for a path below /api/v1 or /apis/GROUP/VERSION.

/api/v1/pods                                    all namespaces
/api/v1/namespaces/NS/pods[/NAME[/SUBRESOURCE]]
/api/v1/namespaces/NAME[/status|finalize]       the Namespace itself
/apis/apps/v1/namespaces/NS/deployments/NAME/scale
/api/v1/watch/…                                 the old spelling of ?watch=true
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.apiserver import status

if TYPE_CHECKING:
    from podwire.apiserver.resource import Registry, Resource

_OF_NAMESPACES = {"status", "finalize"}
_SERVED_ELSEWHERE = {
    "pods": {"attach", "ephemeralcontainers", "eviction", "exec", "log", "portforward", "proxy", "resize"},
    "services": {"proxy"},
    "nodes": {"proxy"},
    "namespaces": {"finalize"},
}
"""Subresources that Kubernetes has and this server has not: 501 with a sentence, instead of 404."""


class Target:
    """A resource, one object of it (`name`) or all; `watch` when the path itself says so."""

    __slots__ = ("name", "namespace", "resource", "subresource", "watch")

    def __init__(self, resource: Resource, namespace: str, name: str, subresource: str, watch: bool) -> None:
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.subresource = subresource
        self.watch = watch


def parse(path: str, registry: Registry) -> Target:
    """The target of a path. Raises StatusError 404 or 501."""
    parts = [part for part in path.split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise status.path_not_found()
    watch = rest[0] == "watch"
    rest = rest[1:] if watch else rest
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces" and rest[2] not in _OF_NAMESPACES:
        namespace, rest = rest[1], rest[2:]
    resource = registry.by_plural(group, version, rest[0]) if rest else None
    name = rest[1] if len(rest) > 1 else ""
    if resource is None or (namespace and not resource.namespaced) or (resource.namespaced and name and not namespace):
        raise status.path_not_found()
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and (subresource not in resource.subresources or len(rest) > 3):
        if subresource in _SERVED_ELSEWHERE.get(resource.key, ()):
            raise status.not_implemented(f"{resource.plural}/{subresource}")
        raise status.path_not_found()
    return Target(resource, namespace, name, subresource, watch)
