"""What is checked of containers (kubernetes `pkg/apis/core/validation/validation.go`, validateContainers).

Checked: names and their uniqueness, image, ports and host port clashes, environment, probes and lifecycle handlers,
resources, pull policy. Not checked: volume mounts and devices, security contexts, resize policies: nothing in podwire
acts on them.
"""

from __future__ import annotations

from typing import Any

from podwire.apiserver import formats
from podwire.apiserver.kinds import quantity
from podwire.apiserver.resource import Cause

Container = dict[str, Any]

PROTOCOLS = ("SCTP", "TCP", "UDP")
_STANDARD = {"cpu", "memory", "ephemeral-storage"}
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def one_of(path: str, value: Any, supported: tuple[str, ...]) -> list[Cause]:
    """Required when empty, unsupported when it is none of these."""
    if not value:
        return [Cause.required(path)]
    return [] if value in supported else [Cause.not_supported(path, value, supported)]


def each(path: str, value: Any, messages: list[str]) -> list[Cause]:
    """One cause for each message about a value."""
    return [Cause.invalid(path, value, message) for message in messages]


def check_containers(path: str, containers: list[Container] | None) -> list[Cause]:
    """The ordinary containers of a pod: at least one."""
    if not containers:
        return [Cause.required(path)]
    causes: list[Cause] = []
    names: set[str] = set()
    for index, container in enumerate(containers):
        at = f"{path}[{index}]"
        causes += _common(at, container)
        name = container.get("name", "")
        if name in names:
            causes.append(Cause.duplicate(f"{at}.name", name))
        names.add(name)
        causes += _hooks(at, container)
        if container.get("restartPolicy") is not None:
            causes.append(Cause.forbidden(f"{at}.restartPolicy", "may not be set for non-init containers"))
    return causes + _host_port_clashes(path, containers)


def check_init_containers(path: str, inits: list[Container] | None, ordinary: list[Container] | None) -> list[Cause]:
    """Init containers; one with restartPolicy Always (a sidecar) may have what an ordinary container has."""
    causes: list[Cause] = []
    names = {container.get("name") for container in ordinary or ()}
    for index, container in enumerate(inits or ()):
        at = f"{path}[{index}]"
        causes += _common(at, container)
        name = container.get("name", "")
        if name in names:
            causes.append(Cause.duplicate(f"{at}.name", name))
        elif name:
            names.add(name)
        causes += _host_port_clashes(path, [container])
        if container.get("restartPolicy") == "Always":
            causes += _hooks(at, container)
            continue
        for key in ("lifecycle", *_PROBES):
            if container.get(key) is not None:
                detail = "may not be set for init containers without restartPolicy=Always"
                causes.append(Cause.forbidden(f"{at}.{key}", detail))
    return causes


def _common(at: str, container: Container) -> list[Cause]:
    name = container.get("name", "")
    causes = each(f"{at}.name", name, formats.label(name)) if name else [Cause.required(f"{at}.name")]
    if not container.get("image"):
        causes.append(Cause.required(f"{at}.image"))
    policy = container.get("terminationMessagePolicy")
    causes += one_of(f"{at}.terminationMessagePolicy", policy, ("File", "FallbackToLogsOnError"))
    causes += _ports(f"{at}.ports", container.get("ports") or [])
    causes += _environment(f"{at}.env", container.get("env") or [])
    causes += one_of(f"{at}.imagePullPolicy", container.get("imagePullPolicy"), ("Always", "IfNotPresent", "Never"))
    return causes + check_resources(f"{at}.resources", container.get("resources") or {})


def _ports(path: str, ports: list[dict[str, Any]]) -> list[Cause]:
    causes: list[Cause] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        at = f"{path}[{index}]"
        if name := port.get("name"):
            wrong = formats.port_name(name)
            causes += each(f"{at}.name", name, wrong)
            if not wrong and name in names:
                causes.append(Cause.duplicate(f"{at}.name", name))
            names.add(name)
        number = port.get("containerPort") or 0
        if number:
            causes += each(f"{at}.containerPort", number, formats.port_number(number))
        else:
            causes.append(Cause.required(f"{at}.containerPort"))
        if host := port.get("hostPort"):
            causes += each(f"{at}.hostPort", host, formats.port_number(host))
        causes += one_of(f"{at}.protocol", port.get("protocol"), PROTOCOLS)
    return causes


def _host_port_clashes(path: str, containers: list[Container]) -> list[Cause]:
    causes: list[Cause] = []
    taken: set[str] = set()
    for index, container in enumerate(containers):
        for number, port in enumerate(container.get("ports") or ()):
            if not port.get("hostPort"):
                continue
            key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
            if key in taken:
                causes.append(Cause.duplicate(f"{path}[{index}].ports[{number}].hostPort", key))
            taken.add(key)
    return causes


def _environment(path: str, variables: list[dict[str, Any]]) -> list[Cause]:
    causes: list[Cause] = []
    for index, variable in enumerate(variables):
        at = f"{path}[{index}]"
        name = variable.get("name", "")
        if not name:
            causes.append(Cause.required(f"{at}.name"))
        else:
            causes += each(f"{at}.name", name, formats.environment_name(name))
        source = variable.get("valueFrom")
        if source is None:
            continue
        if variable.get("value"):
            causes.append(Cause.invalid(f"{at}.valueFrom", "", "may not be specified when `value` is not empty"))
        given = [key for key, value in source.items() if value is not None]
        if not given:
            detail = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
            causes.append(Cause.invalid(f"{at}.valueFrom", "", detail))
        elif len(given) > 1:
            causes.append(Cause.invalid(f"{at}.valueFrom", "", "may not have more than one field specified at a time"))
    return causes


def check_resources(path: str, resources: dict[str, Any]) -> list[Cause]:
    """Limits and requests: known names, not negative, requests within limits. The values are canonical quantities."""
    causes: list[Cause] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for key, quantities in (("limits", limits), ("requests", requests)):
        for name, value in quantities.items():
            at = f"{path}.{key}"
            wrong = each(at, name, formats.qualified_name(name))
            if not wrong and "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
                wrong.append(Cause.invalid(at, name, "must be a standard resource for containers"))
            causes += wrong
            if quantity.parse(value)[0] < 0:
                causes.append(Cause.invalid(f"{at}[{name}]", value, "must be greater than or equal to 0"))
    for name, value in requests.items():
        limit = limits.get(name)
        if limit is not None and quantity.parse(value)[0] > quantity.parse(limit)[0]:
            detail = f"must be less than or equal to {name} limit of {limit}"
            causes.append(Cause.invalid(f"{path}.requests", value, detail))
    return causes


def _hooks(at: str, container: Container) -> list[Cause]:
    causes: list[Cause] = []
    for key, handler in (container.get("lifecycle") or {}).items():
        if isinstance(handler, dict):
            causes += _handler(f"{at}.lifecycle.{key}", handler)
    for key in _PROBES:
        if (probe := container.get(key)) is None:
            continue
        causes += _handler(f"{at}.{key}", probe)
        for number in (
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ):
            if (value := probe.get(number) or 0) < 0:
                causes.append(Cause.invalid(f"{at}.{key}.{number}", value, "must be greater than or equal to 0"))
        if key != "readinessProbe" and probe.get("successThreshold") != 1:
            causes.append(Cause.invalid(f"{at}.{key}.successThreshold", probe.get("successThreshold"), "must be 1"))
    return causes


def _handler(at: str, handler: dict[str, Any]) -> list[Cause]:
    """A probe's or a lifecycle hook's action: exactly one kind of it."""
    given = [key for key in ("exec", "httpGet", "tcpSocket", "grpc", "sleep") if handler.get(key) is not None]
    if not given:
        return [Cause.required(at, "must specify a handler type")]
    causes = [Cause.forbidden(f"{at}.{key}", "may not specify more than 1 handler type") for key in given[1:]]
    kind, action = given[0], handler[given[0]]
    if kind == "exec" and not action.get("command"):
        causes.append(Cause.required(f"{at}.exec.command"))
    if kind == "httpGet":
        schemes = ("HTTP", "HTTPS")
        if action.get("scheme") not in schemes:
            causes.append(Cause.not_supported(f"{at}.httpGet.scheme", action.get("scheme"), schemes))
    if kind in {"httpGet", "tcpSocket", "grpc"}:
        causes += check_port(f"{at}.{kind}.port", action.get("port"))
    return causes


def check_port(path: str, port: int | str | None) -> list[Cause]:
    """A port by number or by the name of a container's port."""
    port = 0 if port is None else port
    return each(path, port, formats.port_name(port) if isinstance(port, str) else formats.port_number(port))
