"""A pod in CRI's words: the configurations of its sandbox and of its containers. Pure.

Labels and annotations are the real kubelet's (see view), so what this kubelet started is recognised by a real one and by
crictl. What CRI has no field for, a container's declared ports, goes along as the real kubelet sends it: as JSON in an
annotation.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.criapi import api_pb2
from podwire.kubelet import view
from podwire.kubelet.environment import ConfigError, expand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.kube.objects import Container, Pod

DEFAULT_GRACE = 30
_PROTOCOLS = {"TCP": api_pb2.TCP, "UDP": api_pb2.UDP, "SCTP": api_pb2.SCTP}


class NodeSettings(NamedTuple):
    """What the node adds to its pods: where logs go, and cluster DNS ('' and () where there is none)."""

    pod_logs_dir: str
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = ""


def grace_period(pod: Pod) -> int:
    """Seconds between SIGTERM and SIGKILL: as the deletion asked, else as the pod says."""
    asked = pod.metadata.deletion_grace_period_seconds
    if asked is not None:
        return max(asked, 0)
    wanted = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE if wanted is None else max(wanted, 0)


def container_hash(container: Container) -> str:
    """Changes when the container has to be made anew: its name or image did (the only fields a pod can change)."""
    return f"{zlib.crc32(json.dumps([container.name, container.image]).encode()):x}"


def pod_labels(pod: Pod) -> dict[str, str]:
    """By which the pod is found again."""
    return {
        view.LABEL_NAME: pod.metadata.name,
        view.LABEL_NAMESPACE: pod.metadata.namespace,
        view.LABEL_UID: pod.metadata.uid,
    }


def log_directory(node: NodeSettings, namespace: str, name: str, uid: str) -> str:
    """Where the logs of a pod's containers are."""
    return f"{node.pod_logs_dir}/{namespace}_{name}_{uid}"


def hostname(pod: Pod) -> str:
    """The pod's host name: at most 63 characters, and none of its own on the host's network."""
    if pod.spec.host_network:
        return ""
    return (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")


def sandbox_config(pod: Pod, attempt: int, node: NodeSettings) -> api_pb2.PodSandboxConfig:
    """For RunPodSandbox."""
    config = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(
            name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid, attempt=attempt
        ),
        hostname=hostname(pod),
        log_directory=log_directory(node, pod.metadata.namespace, pod.metadata.name, pod.metadata.uid),
        labels={**pod.metadata.labels, **pod_labels(pod)},
        annotations=pod.metadata.annotations,
        port_mappings=[
            api_pb2.PortMapping(
                protocol=_PROTOCOLS.get(port.protocol, api_pb2.TCP),
                container_port=port.container_port,
                host_port=port.host_port,
                host_ip=port.host_ip,
            )
            for container in pod.spec.containers
            for port in container.ports
            if port.host_port and not pod.spec.host_network
        ],
    )
    dns = dns_config(pod, node)
    if dns is not None:
        config.dns_config.CopyFrom(dns)
    options = config.linux.security_context.namespace_options
    options.network = api_pb2.NODE if pod.spec.host_network else api_pb2.POD
    options.pid = api_pb2.CONTAINER
    return config


def dns_config(pod: Pod, node: NodeSettings) -> api_pb2.DNSConfig | None:
    """What its resolv.conf shall say; None leaves the node's."""
    policy = pod.spec.dns_policy or "ClusterFirst"
    cluster = policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not pod.spec.host_network)
    config = api_pb2.DNSConfig()
    if cluster and node.cluster_dns:
        domain = node.cluster_domain
        config.servers.extend(node.cluster_dns)
        if domain:
            config.searches.extend([f"{pod.metadata.namespace}.svc.{domain}", f"svc.{domain}", domain])
        config.options.append("ndots:5")
    elif policy != "None":
        return None
    extra = pod.spec.dns_config or {}
    config.servers.extend(one for one in extra.get("nameservers") or () if one not in config.servers)
    config.searches.extend(one for one in extra.get("searches") or () if one not in config.searches)
    for option in extra.get("options") or ():
        value = option.get("value")
        config.options.append(f"{option['name']}:{value}" if value else option["name"])
    return config


def container_config(
    pod: Pod, container: Container, attempt: int, image_ref: str, env: Mapping[str, str]
) -> api_pb2.ContainerConfig:
    """For CreateContainer."""
    annotations = {
        view.HASH: container_hash(container),
        view.RESTART_COUNT: str(attempt),
        view.GRACE_PERIOD: str(grace_period(pod)),
    }
    if container.ports:
        annotations[view.PORTS] = json.dumps(
            [
                {"name": port.name, "containerPort": port.container_port, "protocol": port.protocol or "TCP"}
                for port in container.ports
            ]
        )
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=container.name, attempt=attempt),
        image=api_pb2.ImageSpec(image=image_ref, user_specified_image=container.image),
        command=[expand(word, env) for word in container.command],
        args=[expand(word, env) for word in container.args],
        working_dir=container.working_dir,
        envs=[api_pb2.KeyValue(key=name, value=value.encode()) for name, value in env.items()],
        labels={**pod_labels(pod), view.LABEL_CONTAINER: container.name},
        annotations=annotations,
        log_path=f"{container.name}/{attempt}.log",
    )
    _secure(config.linux.security_context, pod, container)
    return config


def check_user(pod: Pod, container: Container) -> None:
    """Raise ConfigError when the container must not be root and would be: podwire/host runs as root unless told otherwise."""
    whole: dict[str, Any] = pod.spec.security_context or {}
    own: dict[str, Any] = container.security_context or {}
    user = own.get("runAsUser", whole.get("runAsUser"))
    if own.get("runAsNonRoot", whole.get("runAsNonRoot")) and not user:
        why = (
            "container has runAsNonRoot and image will run as root"
            if user is None
            else "container's runAsUser breaks non-root policy"
        )
        raise ConfigError("", answer=why)


def _secure(context: api_pb2.LinuxContainerSecurityContext, pod: Pod, container: Container) -> None:
    """User, groups and capabilities: the container's own settings before the pod's."""
    whole: dict[str, Any] = pod.spec.security_context or {}
    own: dict[str, Any] = container.security_context or {}
    user, group = (own.get(key, whole.get(key)) for key in ("runAsUser", "runAsGroup"))
    if user is not None:
        context.run_as_user.value = user
    if group is not None:
        context.run_as_group.value = group
    context.supplemental_groups.extend(whole.get("supplementalGroups") or ())
    context.readonly_rootfs = bool(own.get("readOnlyRootFilesystem"))
    context.no_new_privs = own.get("allowPrivilegeEscalation") is False
    capabilities = own.get("capabilities") or {}
    context.capabilities.add_capabilities.extend(capabilities.get("add") or ())
    context.capabilities.drop_capabilities.extend(capabilities.get("drop") or ())
    options = context.namespace_options
    options.network = api_pb2.NODE if pod.spec.host_network else api_pb2.POD
    options.pid = api_pb2.CONTAINER
