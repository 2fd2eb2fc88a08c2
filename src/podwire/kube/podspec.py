"""The pod: its spec as the kubelet and the scheduler read it, its status as everybody does.

The template of a Deployment is not decoded here: it is copied into the pods as it was written (see `objects.Deployment`).
What podwire passes on without looking inside (probes, volumes, security contexts) stays plain JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from podwire.kube.meta import Condition, Lenient, Object, OrNull, Part


class ContainerPort(Part, frozen=True):
    """A port a container says it listens on; protocol TCP, UDP or SCTP."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"
    host_port: int = 0
    host_ip: str = ""


class EnvVar(Part, frozen=True):
    """An environment variable; `value_from` as it was written."""

    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class Container(Lenient, frozen=True):
    """A container of a pod."""

    name: str
    image: str = ""
    image_pull_policy: str = ""
    command: OrNull[tuple[str, ...]] = ()
    args: OrNull[tuple[str, ...]] = ()
    working_dir: str = ""
    ports: OrNull[tuple[ContainerPort, ...]] = ()
    env: OrNull[tuple[EnvVar, ...]] = ()
    env_from: OrNull[tuple[dict[str, Any], ...]] = ()
    volume_mounts: OrNull[tuple[dict[str, Any], ...]] = ()
    restart_policy: str = ""
    liveness_probe: dict[str, Any] | None = None
    readiness_probe: dict[str, Any] | None = None
    startup_probe: dict[str, Any] | None = None
    lifecycle: dict[str, Any] | None = None
    security_context: dict[str, Any] | None = None
    resources: dict[str, Any] | None = None

    _or_null = ("command", "args", "ports", "env", "env_from", "volume_mounts")


class Toleration(Part, frozen=True):
    """A taint the pod puts up with; an empty key with operator Exists tolerates all, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class PodSpec(Lenient, frozen=True):
    """What the pod should be."""

    containers: OrNull[tuple[Container, ...]] = ()
    init_containers: OrNull[tuple[Container, ...]] = ()
    node_name: str = ""
    node_selector: OrNull[dict[str, str]] = msgspec.field(default_factory=dict)
    tolerations: OrNull[tuple[Toleration, ...]] = ()
    scheduler_name: str = ""
    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    hostname: str = ""
    subdomain: str = ""
    dns_policy: str = "ClusterFirst"
    dns_config: dict[str, Any] | None = None
    host_aliases: OrNull[tuple[dict[str, Any], ...]] = ()
    enable_service_links: bool = True
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    share_process_namespace: bool = False
    security_context: dict[str, Any] | None = None
    service_account_name: str = ""
    volumes: OrNull[tuple[dict[str, Any], ...]] = ()
    readiness_gates: OrNull[tuple[dict[str, Any], ...]] = ()
    scheduling_gates: OrNull[tuple[dict[str, Any], ...]] = ()

    _or_null = (
        "containers",
        "init_containers",
        "node_selector",
        "tolerations",
        "host_aliases",
        "volumes",
        "readiness_gates",
        "scheduling_gates",
    )


class PodIP(Part, frozen=True):
    """One of the pod's addresses."""

    ip: str = ""


class ContainerStatus(Part, frozen=True):
    """What a container does; `state` and `last_state` hold one of waiting, running, terminated."""

    name: str
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = ""
    container_id: str = ""
    started: bool | None = None
    state: dict[str, Any] | None = None
    last_state: dict[str, Any] | None = None


class PodStatus(Lenient, frozen=True):
    """What the pod is; phase is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = "Pending"
    pod_ip: str = ""
    pod_ips: OrNull[tuple[PodIP, ...]] = ()
    host_ip: str = ""
    conditions: OrNull[tuple[Condition, ...]] = ()
    container_statuses: OrNull[tuple[ContainerStatus, ...]] = ()
    init_container_statuses: OrNull[tuple[ContainerStatus, ...]] = ()
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    qos_class: str = ""

    _or_null = ("pod_ips", "conditions", "container_statuses", "init_container_statuses")


class Pod(Object, frozen=True):
    """v1 Pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    api_version = "v1"
    kind = "Pod"

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, the primary one first."""
        ips = tuple(entry.ip for entry in self.status.pod_ips if entry.ip)
        return ips or ((self.status.pod_ip,) if self.status.pod_ip else ())

    @property
    def ready(self) -> bool:
        """Whether the condition Ready is True."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)

    @property
    def finished(self) -> bool:
        """Whether the pod has ended and will not run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def terminating(self) -> bool:
        """Whether somebody deleted it; the kubelet is still stopping it."""
        return self.metadata.deletion_timestamp is not None
