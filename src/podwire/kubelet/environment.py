"""The environment of a container: what the pod says, and what tells it where the Services are. Pure.

Order and precedence are the kubelet's (kubelet_pods.go, makeEnvironmentVariables; pkg/kubelet/envvars):

    1. envFrom, in order, a later source overriding an earlier one
    2. env, in order, $(NAME) replaced by what stands above it or by a Service variable
    3. Service variables, where neither of the others has set the name

A Service counts when it has a clusterIP and is in the pod's namespace, unless enableServiceLinks is false; the
Service `default/kubernetes` always counts. Only Services that exist when the container is made are seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.errors import PodwireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from podwire.kube.objects import Container, Pod, Service

_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")
_REFERENCE = re.compile(r"\$(\$|\([^$()]*\))?")


class ConfigError(PodwireError):
    """The container cannot be made as it is written: the waiting reason CreateContainerConfigError."""


@dataclass(frozen=True)
class Downward:
    """What fieldRef can name beyond the pod object."""

    node: str
    host_ips: tuple[str, ...]
    pod_ips: tuple[str, ...]


def service_variables(services: Iterable[Service], namespace: str, *, links: bool) -> dict[str, str]:
    """The variables of the Services that a pod of `namespace` sees."""
    seen: dict[str, Service] = {}
    for service in services:
        meta = service.metadata
        if service.spec.cluster_ip in ("", "None") or not service.spec.ports:
            continue
        if meta.namespace == "default" and meta.name == "kubernetes":
            seen.setdefault(meta.name, service)  # one of that name in the pod's own namespace comes first
        if links and meta.namespace == namespace:
            seen[meta.name] = service
    found: dict[str, str] = {}
    for name in sorted(seen):
        found |= _of(seen[name])
    return found


def _of(service: Service) -> dict[str, str]:
    prefix = service.metadata.name.replace("-", "_").upper()
    ip = service.spec.cluster_ip
    host = f"[{ip}]" if ":" in ip else ip
    ports = service.spec.ports
    found = {f"{prefix}_SERVICE_HOST": ip, f"{prefix}_SERVICE_PORT": str(ports[0].port)}
    for port in ports:
        if port.name:
            found[f"{prefix}_SERVICE_PORT_{port.name.replace('-', '_').upper()}"] = str(port.port)
    for index, port in enumerate(ports):
        protocol = port.protocol or "TCP"
        url = f"{protocol.lower()}://{host}:{port.port}"
        if index == 0:
            found[f"{prefix}_PORT"] = url
        link = f"{prefix}_PORT_{port.port}_{protocol.upper()}"
        found |= {link: url, f"{link}_PROTO": protocol.lower(), f"{link}_PORT": str(port.port), f"{link}_ADDR": ip}
    return found


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value; an unknown name stays as it is written, $$ is a dollar sign."""

    def one(match: re.Match[str]) -> str:
        inner = match[1]
        if inner is None:
            return "$"
        if inner == "$":
            return "$"
        name = inner[1:-1]
        return values.get(name, match[0])

    return _REFERENCE.sub(one, text)


def container_environment(
    pod: Pod,
    container: Container,
    downward: Downward,
    services: Mapping[str, str],
    config_map: Callable[[str], Mapping[str, str] | None],
) -> dict[str, str]:
    """The whole environment; `config_map` gives a ConfigMap's data by name, None where there is none. ConfigError."""
    found: dict[str, str] = {}
    for source in container.env_from:
        found |= _from_source(source, pod, config_map)
    for variable in container.env:
        value: str | None
        if variable.value_from is not None:
            value = _value_from(variable.value_from, pod, downward, config_map)
        else:
            value = expand(variable.value, {**services, **found})
        if value is not None:
            found[variable.name] = value
    return found | {name: value for name, value in services.items() if name not in found}


def _from_source(
    source: dict[str, Any], pod: Pod, config_map: Callable[[str], Mapping[str, str] | None]
) -> dict[str, str]:
    prefix = source.get("prefix") or ""
    if "configMapRef" in source:
        reference = source["configMapRef"]
        data = config_map(reference.get("name", ""))
        if data is None:
            if reference.get("optional"):
                return {}
            raise ConfigError("", answer=f'configmap "{reference.get("name", "")}" not found')
        return {f"{prefix}{name}": value for name, value in data.items()}
    if "secretRef" in source:
        _no_secret(source["secretRef"], pod)
    return {}


def _value_from(
    source: dict[str, Any], pod: Pod, downward: Downward, config_map: Callable[[str], Mapping[str, str] | None]
) -> str | None:
    if "fieldRef" in source:
        return field(pod, downward, source["fieldRef"].get("fieldPath", ""))
    if "configMapKeyRef" in source:
        reference = source["configMapKeyRef"]
        name, key = reference.get("name", ""), reference.get("key", "")
        data = config_map(name)
        if data is not None and key in data:
            return data[key]
        if reference.get("optional"):
            return None
        if data is None:
            raise ConfigError("", answer=f'configmap "{name}" not found')
        raise ConfigError("", answer=f"couldn't find key {key} in ConfigMap {pod.metadata.namespace}/{name}")
    if "secretKeyRef" in source:
        _no_secret(source["secretKeyRef"], pod)
    return None


def _no_secret(reference: dict[str, Any], _pod: Pod) -> None:
    if not reference.get("optional"):
        raise ConfigError("", answer=f'secret "{reference.get("name", "")}" not found (podwire serves no Secrets)')


def field(pod: Pod, downward: Downward, path: str) -> str:
    """The value of a fieldRef. ConfigError for a path that is none."""
    match = _SUBSCRIPT.match(path)
    if match:
        values = pod.metadata.labels if match[1] == "labels" else pod.metadata.annotations
        return values.get(match[2], "")
    known = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": downward.node,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": downward.host_ips[0] if downward.host_ips else "",
        "status.hostIPs": ",".join(downward.host_ips),
        "status.podIP": downward.pod_ips[0] if downward.pod_ips else "",
        "status.podIPs": ",".join(downward.pod_ips),
    }
    if path not in known:
        raise ConfigError("", answer=f"unsupported fieldPath: {path}")
    return known[path]
