"""What a pod asks for and does not get here, in words for its Events. Pure.

Two things are said, once, when the pod's first sandbox is made: which of its settings have no effect (a Warning,
NotHonoured), and for which containers a stand-in runs (StandIn), because a pod that is green for another reason than the
user thinks is worse than one that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.kernel import capabilities

if TYPE_CHECKING:
    from podwire.kube.objects import Container, Pod

# The API server puts this into every pod of a real cluster; nobody asked for it.
_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 - the name of a volume
_CONTEXT_HONOURED = {"runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "supplementalGroups"}


def wants_host_ports(pod: Pod) -> bool:
    """Whether a container asks for a port of the node."""
    return any(port.host_port for one in pod.spec.containers for port in one.ports) and not pod.spec.host_network


def not_honoured(pod: Pod, stand_ins: frozenset[str], *, host_ports: bool = False) -> list[str]:
    """The settings without effect, each with the container it belongs to.

    `stand_ins` are containers by name; `host_ports` says that the network has a plugin for hostPorts.
    """
    spec = pod.spec
    found = []
    volumes = [str(one.get("name")) for one in spec.volumes if not str(one.get("name")).startswith(_TOKEN_VOLUME)]
    if volumes:
        found.append(f"volumes ({', '.join(volumes)})")
    for name, asked in (
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
        ("shareProcessNamespace", spec.share_process_namespace),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("hostAliases", spec.host_aliases),
    ):
        if asked:
            found.append(name)
    if wants_host_ports(pod) and not host_ports:
        found.append("hostPort (the node's CNI configuration has no plugin with the capability portMappings)")
    extra = _context(spec.security_context)
    if extra:
        found.append(f"securityContext ({', '.join(extra)})")
    for container in (*spec.init_containers, *spec.containers):
        settings = _of(container, stand_in=container.name in stand_ins)
        if settings:
            found.append(f"{', '.join(settings)} of container {container.name}")
    return found


def _of(container: Container, *, stand_in: bool) -> list[str]:
    found = [
        name
        for name, asked in (
            ("livenessProbe", container.liveness_probe),
            ("readinessProbe", container.readiness_probe),
            ("startupProbe", container.startup_probe),
            ("lifecycle", container.lifecycle),
            ("resources", _any_resources(container.resources)),
        )
        if asked
    ]
    if stand_in:
        found += [name for name, asked in (("command", container.command), ("args", container.args)) if asked]
    extra = _context(container.security_context)
    if extra:
        found.append(f"securityContext ({', '.join(extra)})")
    return found


def _any_resources(resources: dict[str, Any] | None) -> bool:
    return bool(resources and (resources.get("limits") or resources.get("requests")))


def _context(context: dict[str, Any] | None) -> list[str]:
    found = []
    for name, value in (context or {}).items():
        if name in _CONTEXT_HONOURED or value in (None, False, [], {}):
            continue
        if name == "capabilities":
            extra = [
                one for one in value.get("add") or () if one.upper().removeprefix("CAP_") not in capabilities.NUMBERS
            ]
            if extra:
                found.append(f"capabilities.add ({', '.join(extra)})")
        elif name != "allowPrivilegeEscalation":  # true is what the kernel would allow; here it never is
            found.append(name)
    return sorted(found)


def stand_in_message(container: Container) -> str:
    """What the Event says about a container in whose place a stand-in runs."""
    ports = ", ".join(f"{port.container_port}/{port.protocol or 'TCP'}" for port in container.ports)
    answers = (
        f"a stand-in answers on its declared ports: {ports}"
        if ports
        else "a stand-in runs, which declares no port and so listens on none"
    )
    return f'image "{container.image}" is not pulled: {answers}'
