"""Node (core/v1).

A kubelet creates its Node with a status; later the status changes through /status only. podCIDR(s) are set once, by
the node IPAM controller: podCIDR is podCIDRs[0], and neither may change after that. The not-ready taint that a
real cluster's admission puts on a new Node is not added: it would stay, because its node lifecycle controller is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats
from podwire.apiserver.kinds.containers import each, one_of
from podwire.apiserver.kinds.podchecks import TAINT_EFFECTS
from podwire.apiserver.kinds.quantity import canonicalise
from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

_ROLE_PREFIX = "node-role.kubernetes.io/"
_COLUMNS = (
    NAME,
    Column("Status", description="The status of the node."),
    Column("Roles", description="The roles of the node."),
    AGE,
    Column("Version", description="The kubelet's version."),
    Column("Internal-IP", priority=1, description="The first address of type InternalIP."),
    Column("External-IP", priority=1, description="The first address of type ExternalIP."),
    Column("OS-Image", priority=1, description="The operating system."),
    Column("Kernel-Version", priority=1, description="The kernel."),
    Column("Container-Runtime", priority=1, description="The container runtime and its version."),
)
_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


class NodeStrategy(Strategy):
    """The rules of Nodes."""

    def defaults(self, obj: Object) -> None:
        """`podCIDR` beside `podCIDRs`; the parts of a status that are always written; allocatable from capacity."""
        spec, status = obj.setdefault("spec", {}), obj.setdefault("status", {})
        if spec.get("podCIDR"):
            if not spec.get("podCIDRs"):
                spec["podCIDRs"] = [spec["podCIDR"]]
        elif spec.get("podCIDRs"):
            spec["podCIDR"] = spec["podCIDRs"][0]
        info = status.setdefault("nodeInfo", {})
        for key in _INFO:
            info.setdefault(key, "")
        status.setdefault("daemonEndpoints", {}).setdefault("kubeletEndpoint", {}).setdefault("Port", 0)
        if status.get("capacity") and not status.get("allocatable"):
            status["allocatable"] = dict(status["capacity"])
        canonicalise((status.get(key) or {} for key in ("capacity", "allocatable")), "Node")

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """Taints, podCIDRs, addresses."""
        spec, status = obj["spec"], obj.get("status") or {}
        causes = _check_taints(spec.get("taints") or [])
        causes += _check_prefixes(spec)
        addresses = status.get("addresses") or []
        for index, address in enumerate(addresses):
            if old is not None and address in addresses[:index]:
                causes.append(Cause.duplicate(f"status.addresses[{index}]", address))
        if old is None:
            return causes
        before = old["spec"]
        if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
            detail = 'node updates may not change podCIDR except from "" to valid'
            causes.append(Cause.forbidden("spec.podCIDRs", detail))
        if before.get("providerID") and spec.get("providerID") != before["providerID"]:
            detail = 'node updates may not change providerID except from "" to valid'
            causes.append(Cause.forbidden("spec.providerID", detail))
        return causes

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """STATUS ROLES AGE VERSION; INTERNAL-IP EXTERNAL-IP OS-IMAGE KERNEL-VERSION CONTAINER-RUNTIME."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        info = status.get("nodeInfo") or {}
        return [
            metadata["name"],
            _condition(obj),
            ",".join(roles(metadata.get("labels") or {})) or "<none>",
            age(metadata.get("creationTimestamp"), now),
            info.get("kubeletVersion", ""),
            _address(status, "InternalIP"),
            _address(status, "ExternalIP"),
            info.get("osImage") or "<unknown>",
            info.get("kernelVersion") or "<unknown>",
            info.get("containerRuntimeVersion") or "<unknown>",
        ]

    def field(self, obj: Object, path: str) -> str:
        """spec.unschedulable is a boolean that is false when absent."""
        return super().field(obj, path) or ("false" if path == "spec.unschedulable" else "")


def roles(labels: dict[str, str]) -> list[str]:
    """The roles said by labels `node-role.kubernetes.io/ROLE` and `kubernetes.io/role`, sorted."""
    found = {key.removeprefix(_ROLE_PREFIX) for key in labels if key.startswith(_ROLE_PREFIX)}
    found.add(labels.get("kubernetes.io/role", ""))
    return sorted(found - {""})


def _condition(node: Object) -> str:
    """`Ready`, `NotReady`, `Unknown`; `,SchedulingDisabled` behind a cordoned one."""
    conditions = {c.get("type"): c.get("status") for c in (node.get("status") or {}).get("conditions") or ()}
    word = "Unknown"
    if "Ready" in conditions:
        word = "Ready" if conditions["Ready"] == "True" else "NotReady"
    return f"{word},SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else word


def _address(status: dict[str, Any], kind: str) -> str:
    found = (entry.get("address", "") for entry in status.get("addresses") or () if entry.get("type") == kind)
    return next(found, "<none>")


def _check_taints(taints: list[dict[str, Any]]) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        at, key, value = f"metadata.taints[{index}]", taint.get("key", ""), taint.get("value", "")
        causes += each(f"{at}.key", key, formats.qualified_name(key))
        if wrong := formats.label_value(value):
            causes.append(Cause.invalid(f"{at}.value", value, ";".join(wrong)))
        causes += one_of(f"{at}.effect", taint.get("effect"), TAINT_EFFECTS)
        mark = (key, taint.get("effect", ""))
        if mark in seen:
            plain = Cause.duplicate(at, taint)
            text = f"{plain.message}: taints must be unique by key and effect pair"
            causes.append(Cause(plain.reason, text, at))
        seen.add(mark)
    return causes


def _check_prefixes(spec: dict[str, Any]) -> list[Cause]:
    prefixes = spec.get("podCIDRs") or []
    causes: list[Cause] = []
    for index, prefix in enumerate(prefixes):
        causes += each(f"spec.podCIDRs[{index}]", prefix, formats.prefix(prefix))
    families = [formats.family(prefix) for prefix in prefixes]
    if len(families) != len(set(families)):
        detail = "may specify no more than one CIDR for each IP family"
        causes.append(Cause.invalid("spec.podCIDRs", prefixes, detail))
    if prefixes and spec.get("podCIDR") and spec["podCIDR"] != prefixes[0]:
        detail = "must be equal to podCIDRs[0]"
        causes.append(Cause.invalid("spec.podCIDR", spec["podCIDR"], detail))
    return causes


RESOURCE = Resource(
    group="",
    version="v1",
    kind="Node",
    plural="nodes",
    singular="node",
    namespaced=False,
    short_names=("no",),
    subresources=("status",),
    columns=_COLUMNS,
    selectable=("spec.unschedulable",),
    strategy=NodeStrategy(),
)
