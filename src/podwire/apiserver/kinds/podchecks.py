"""What is checked of a pod spec, in a Pod and in a template (kubernetes `pkg/apis/core/validation/validation.go`).

`check_spec` is for both; `check_update` says what of a running Pod may change. Not checked, because nothing in podwire
acts on it: sources of volumes, affinity terms, topology spread, security contexts, DNS configuration.
"""

from __future__ import annotations

import copy
from typing import Any

from podwire.apiserver import formats
from podwire.apiserver.kinds.containers import check_containers, check_init_containers, each, one_of
from podwire.apiserver.metadata import label_causes
from podwire.apiserver.resource import Cause

Spec = dict[str, Any]

UPDATABLE = (
    "`spec.containers[*].image`",
    "`spec.initContainers[*].image`",
    "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)

RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

_NAMES = {
    "serviceAccountName": formats.subdomain,
    "nodeName": formats.subdomain,
    "hostname": formats.label,
    "subdomain": formats.label,
    "priorityClassName": formats.subdomain,
    "runtimeClassName": formats.subdomain,
}


def check_spec(path: str, spec: Spec | None) -> list[Cause]:
    """A pod spec with its defaults filled in."""
    spec = spec or {}
    containers = spec.get("containers")
    causes = _volumes(f"{path}.volumes", spec.get("volumes") or [])
    causes += check_containers(f"{path}.containers", containers)
    causes += check_init_containers(f"{path}.initContainers", spec.get("initContainers"), containers)
    if spec.get("hostNetwork"):
        causes += _host_network_ports(f"{path}.containers", containers or [])
    causes += one_of(f"{path}.restartPolicy", spec.get("restartPolicy"), RESTART_POLICIES)
    causes += one_of(f"{path}.dnsPolicy", spec.get("dnsPolicy"), DNS_POLICIES)
    causes += label_causes(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    for index, gate in enumerate(spec.get("readinessGates") or ()):
        kind = gate.get("conditionType", "")
        causes += each(f"{path}.readinessGates[{index}].conditionType", kind, formats.qualified_name(kind))
    for key, rule in _NAMES.items():
        if value := spec.get(key):
            causes += each(f"{path}.{key}", value, rule(value))
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        detail = f"must be between 1 and {2**31 - 1}, inclusive"
        causes.append(Cause.invalid(f"{path}.activeDeadlineSeconds", deadline, detail))
    causes += check_tolerations(f"{path}.tolerations", spec.get("tolerations") or [])
    for index, alias in enumerate(spec.get("hostAliases") or ()):
        ip = alias.get("ip", "")
        causes += each(f"{path}.hostAliases[{index}].ip", ip, formats.address(ip))
    return causes


def check_template(path: str, template: dict[str, Any] | None) -> list[Cause]:
    """A pod template: its labels, annotations and spec."""
    template = template or {}
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    causes = label_causes(metadata.get("labels") or {}, f"{path}.labels")
    for key in metadata.get("annotations") or ():
        causes += each(f"{path}.annotations", key, formats.qualified_name(key.lower()))
    causes += check_spec(f"{path}.spec", spec)
    if spec.get("ephemeralContainers"):
        detail = "ephemeral containers not allowed in pod template"
        causes.append(Cause.forbidden(f"{path}.spec.ephemeralContainers", detail))
    return causes


def _volumes(path: str, volumes: list[dict[str, Any]]) -> list[Cause]:
    causes: list[Cause] = []
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        at, name = f"{path}[{index}]", volume.get("name", "")
        if not name:
            causes.append(Cause.required(f"{at}.name"))
        else:
            causes += each(f"{at}.name", name, formats.label(name))
        if name in names:
            causes.append(Cause.duplicate(f"{at}.name", name))
        names.add(name)
        sources = [key for key, value in volume.items() if key != "name" and value is not None]
        causes += [Cause.forbidden(f"{at}.{key}", "may not specify more than 1 volume type") for key in sources[1:]]
    return causes


def _host_network_ports(path: str, containers: list[dict[str, Any]]) -> list[Cause]:
    """Under hostNetwork a host port, where one is given, is the container's own."""
    causes = []
    for index, container in enumerate(containers):
        for number, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort") and port["hostPort"] != port.get("containerPort"):
                detail = "must match `hostPort` when `hostNetwork` is true"
                where = f"{path}[{index}].ports[{number}].containerPort"
                causes.append(Cause.invalid(where, port.get("containerPort", 0), detail))
    return causes


def check_tolerations(path: str, tolerations: list[dict[str, Any]]) -> list[Cause]:
    """Key, operator, value and effect of each."""
    causes: list[Cause] = []
    for index, toleration in enumerate(tolerations):
        at = f"{path}[{index}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or ""
        value, effect = toleration.get("value") or "", toleration.get("effect") or ""
        if key:
            causes += each(f"{at}.key", key, formats.qualified_name(key))
        elif operator != "Exists":
            detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            causes.append(Cause.invalid(f"{at}.operator", operator, detail))
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            causes.append(Cause.invalid(f"{at}.effect", effect, detail))
        if operator in {"", "Equal"}:
            if wrong := formats.label_value(value):
                causes.append(Cause.invalid(f"{at}.operator", value, ";".join(wrong)))
        elif operator != "Exists":
            causes.append(Cause.not_supported(f"{at}.operator", operator, ("Equal", "Exists")))
        elif value:
            causes.append(Cause.invalid(f"{at}.operator", value, "value must be empty when `operator` is 'Exists'"))
        if effect:
            causes += one_of(f"{at}.effect", effect, TAINT_EFFECTS)
    return causes


def check_update(new: Spec, old: Spec) -> list[Cause]:
    """A Pod's spec may change in a few places only; both specs have their defaults filled in."""
    causes: list[Cause] = []
    for key in ("containers", "initContainers"):
        if len(new.get(key) or ()) != len(old.get(key) or ()):
            detail = "pod updates may not add or remove containers"
            return [*causes, Cause.forbidden(f"spec.{key}", detail)]
    causes += _deadline(new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds"))
    causes += _only_added(new.get("tolerations") or [], old.get("tolerations") or [])
    if changed := _changed(_munged(new, old), old):
        detail = f"pod updates may not change fields other than {','.join(UPDATABLE)}\n{_difference(changed)}"
        causes.append(Cause.forbidden("spec", detail))
    return causes


def _munged(new: Spec, old: Spec) -> Spec:
    """The new spec with everything that may change put back to what it was."""
    spec = copy.deepcopy(new)
    for key in ("containers", "initContainers"):
        for container, before in zip(spec.get(key) or (), old.get(key) or (), strict=True):
            container["image"] = before.get("image")
    for key in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        spec.pop(key, None)
        if key in old:
            spec[key] = old[key]
    if (old.get("terminationGracePeriodSeconds") or 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        spec["terminationGracePeriodSeconds"] = old["terminationGracePeriodSeconds"]
    return spec


def _changed(new: Spec, old: Spec) -> list[tuple[str, Any, Any]]:
    keys = sorted({*new, *old})
    return [(key, old.get(key), new.get(key)) for key in keys if (old.get(key) or None) != (new.get(key) or None)]


def _difference(changed: list[tuple[str, Any, Any]]) -> str:
    """What changed, a line each way; the real server prints a diff of Go structs here."""
    return "\n".join(f"- {key}: {before!r}\n+ {key}: {after!r}" for key, before, after in changed)


def _deadline(new: int | None, old: int | None) -> list[Cause]:
    path = "spec.activeDeadlineSeconds"
    if new is None:
        if old is None:
            return []
        return [Cause.invalid(path, None, "must not update from a positive integer to nil value")]
    if old is not None and new > old:
        return [Cause.invalid(path, new, "must be less than or equal to previous value")]
    return []


def _only_added(new: list[dict[str, Any]], old: list[dict[str, Any]]) -> list[Cause]:
    """Every old toleration is still there, but for its tolerationSeconds."""

    def bare(toleration: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}

    kept = [bare(toleration) for toleration in new]
    if all(bare(toleration) in kept for toleration in old):
        return []
    detail = "existing toleration can not be modified except its tolerationSeconds"
    return [Cause.forbidden("spec.tolerations", detail)]
