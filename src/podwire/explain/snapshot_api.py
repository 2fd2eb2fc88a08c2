"""Nodes, Services, EndpointSlices, Pods and DaemonSets from the API, reduced to what the network is made of.

A bundle goes to other people: environment variables, volumes, images, managed fields and foreign annotations never get into it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from podwire.errors import PodwireError
from podwire.explain.snapshot_parts import KUBE

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = 500
_METADATA = (
    "name",
    "namespace",
    "uid",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "ownerReferences",
)
_ANNOTATIONS = ("flannel.", "flannel-", "service.kubernetes.io/", "projectcalico.org/", "k3s.io/")
_POD_SPEC = ("nodeName", "hostNetwork", "terminationGracePeriodSeconds")
_POD_STATUS = ("phase", "podIP", "podIPs", "hostIP", "hostIPs", "conditions")
_NODE_STATUS = ("addresses", "conditions", "nodeInfo")


def read(kubeconfig: str) -> Iterator[tuple[str, bytes, str, str]]:
    """File of the bundle, its JSON, how it was read, and why not ('' when it was)."""
    from podwire.kube.client import Client

    try:
        client = Client.from_kubeconfig(kubeconfig)
    except PodwireError as error:
        for file, _, _ in KUBE:
            yield file, b"", "", str(error)
        return
    try:
        for file, path, _ in KUBE:
            try:
                items, kind = _pages(client, path)
            except PodwireError as error:
                yield file, b"", "", str(error)
                continue
            value = {"kind": kind, "items": [reduce(one, kind.removesuffix("List")) for one in items]}
            yield file, json.dumps(value, separators=(",", ":")).encode(), f"GET {path}", ""
    finally:
        client.close()


def _pages(client: Any, path: str) -> tuple[list[dict[str, Any]], str]:
    items: list[dict[str, Any]] = []
    token = ""
    while True:
        more = f"&continue={token}" if token else ""
        answer = client.get_path(f"{path}?limit={_PAGE}{more}")
        items += [one for one in answer.get("items") or () if isinstance(one, dict)]
        token = (answer.get("metadata") or {}).get("continue", "")
        if not token:
            return items, str(answer.get("kind", "List"))


def reduce(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """An object with only what the network is made of."""
    metadata = item.get("metadata") or {}
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    annotations = metadata.get("annotations") or {}
    wanted = {key: value for key, value in annotations.items() if key.startswith(_ANNOTATIONS)}
    if wanted:
        kept["annotations"] = wanted
    shown: dict[str, Any] = {"kind": kind, "metadata": kept}
    spec, status = item.get("spec") or {}, item.get("status") or {}
    if kind == "Pod":
        shown["spec"] = {key: spec[key] for key in _POD_SPEC if key in spec}
        containers = [
            {"name": one.get("name"), "ports": one["ports"]} for one in spec.get("containers") or () if one.get("ports")
        ]
        if containers:
            shown["spec"]["containers"] = containers
        shown["status"] = {key: status[key] for key in _POD_STATUS if key in status}
    elif kind == "Node":
        shown["spec"] = {key: spec[key] for key in ("podCIDR", "podCIDRs", "taints", "unschedulable") if key in spec}
        shown["status"] = {key: status[key] for key in _NODE_STATUS if key in status}
    elif kind == "Service":
        shown["spec"] = spec
        shown["status"] = status
    elif kind == "EndpointSlice":
        shown |= {key: item[key] for key in ("addressType", "endpoints", "ports") if key in item}
    return shown
