"""What is served here, in the three shapes clients ask for it: group lists, resource lists, and all at once.

kubectl since 1.26 asks `/api` and `/apis` for `APIGroupDiscoveryList` (apidiscovery.k8s.io/v2) and needs two requests
for everything; older clients walk `/apis` → `/apis/GROUP/VERSION`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver.subresources import BINDING, SCALE

if TYPE_CHECKING:
    from podwire.apiserver.resource import Registry, Resource

KUBERNETES_VERSION = "v1.34.0"
"""The release whose behaviour is imitated; clients compare it with their own."""

_SUBRESOURCE_VERBS = {"status": ("get", "patch", "update"), "scale": ("get", "patch", "update"), "binding": ("create",)}
_SUBRESOURCE_KINDS = {"scale": SCALE, "binding": BINDING}


def version() -> dict[str, str]:
    """`/version`, as `kubectl version` prints it."""
    import platform

    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": "1",
        "minor": KUBERNETES_VERSION.split(".")[1],
        "emulationMajor": "1",
        "emulationMinor": KUBERNETES_VERSION.split(".")[1],
        "gitVersion": f"{KUBERNETES_VERSION}+podwire",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation(),
        "platform": f"linux/{machine}",
    }


def paths(registry: Registry) -> dict[str, Any]:
    """`/`: the paths there are."""
    found = ["/api", "/api/v1", "/apis"]
    for group, versions in registry.groups().items():
        if group:
            found += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
    return {"paths": sorted([*found, "/healthz", "/livez", "/readyz", "/openapi/v3", "/version"])}


def core_versions(server_address: str) -> dict[str, Any]:
    """`/api`."""
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}


def group_list(registry: Registry) -> dict[str, Any]:
    """`/apis`."""
    groups = [_group(group, versions) for group, versions in registry.groups().items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> dict[str, Any] | None:
    """`/apis/GROUP`; None when there is no such group."""
    versions = registry.groups().get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if name and versions else None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    rows = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": rows, "preferredVersion": rows[0]}


def resource_list(registry: Registry, group_name: str, version_name: str) -> dict[str, Any] | None:
    """`/api/v1` and `/apis/GROUP/VERSION`; None when it is not served."""
    served = [r for r in registry.resources if (r.group, r.version) == (group_name, version_name)]
    if not served:
        return None
    rows = []
    for resource in served:
        row = {
            "name": resource.plural,
            "singularName": resource.singular or resource.kind.lower(),
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": list(resource.verbs),
        }
        if resource.short_names:
            row["shortNames"] = list(resource.short_names)
        if resource.categories:
            row["categories"] = list(resource.categories)
        rows.append(row)
        rows += [_subresource(resource, name) for name in resource.subresources]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": served[0].api_version, "resources": rows}


def _subresource(resource: Resource, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
    kind = _SUBRESOURCE_KINDS.get(name, resource)
    if kind is not resource and kind.group:
        row |= {"group": kind.group, "version": kind.version}
    return {**row, "kind": kind.kind, "verbs": list(_SUBRESOURCE_VERBS[name])}


def aggregated(registry: Registry, core: bool) -> dict[str, Any]:
    """`/api` (core) or `/apis` (all others) as APIGroupDiscoveryList."""
    items = []
    for name, versions in registry.groups().items():
        if core is not (name == ""):
            continue
        rows = [
            {
                "version": version,
                "resources": [_aggregated(r) for r in registry.resources if (r.group, r.version) == (name, version)],
                "freshness": "Current",
            }
            for version in versions
        ]
        metadata = {"name": name, "creationTimestamp": None} if name else {"creationTimestamp": None}
        items.append({"metadata": metadata, "versions": rows})
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}


def _aggregated(resource: Resource) -> dict[str, Any]:
    row: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular or resource.kind.lower(),
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    if resource.subresources:
        row["subresources"] = [
            {
                "subresource": name,
                "responseKind": _response_kind(_SUBRESOURCE_KINDS.get(name, resource)),
                "verbs": list(_SUBRESOURCE_VERBS[name]),
            }
            for name in resource.subresources
        ]
    return row


def _response_kind(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}
