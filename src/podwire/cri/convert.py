"""Records as CRI shows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from podwire.cri import images, states
from podwire.criapi import api_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.cri.records import Container, Sandbox

RUNTIME_NAME = "podwire"

_CONTAINER_STATES = {
    states.Container.CREATED: api_pb2.CONTAINER_CREATED,
    states.Container.STARTING: api_pb2.CONTAINER_CREATED,
    states.Container.RUNNING: api_pb2.CONTAINER_RUNNING,
    states.Container.EXITED: api_pb2.CONTAINER_EXITED,
}


def sandbox_state(record: Sandbox) -> api_pb2.PodSandboxState:
    """READY or NOTREADY."""
    return api_pb2.SANDBOX_READY if record.state is states.Sandbox.READY else api_pb2.SANDBOX_NOTREADY


def container_state(record: Container) -> api_pb2.ContainerState:
    """CREATED, RUNNING or EXITED."""
    return _CONTAINER_STATES[record.state]


def sandbox_item(record: Sandbox) -> api_pb2.PodSandbox:
    """A line of ListPodSandbox."""
    return api_pb2.PodSandbox(
        id=record.id,
        metadata=record.config.metadata,
        state=sandbox_state(record),
        created_at=record.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
        runtime_handler=record.runtime_handler,
    )


def sandbox_status(record: Sandbox) -> api_pb2.PodSandboxStatus:
    """The whole status; a pod on the host's network has no address of its own, and a stopped one none any more."""
    status = api_pb2.PodSandboxStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=sandbox_state(record),
        created_at=record.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
        runtime_handler=record.runtime_handler,
    )
    status.linux.namespaces.options.CopyFrom(record.config.linux.security_context.namespace_options)
    if record.state is states.Sandbox.READY and record.ips:
        status.network.ip = record.ips[0]
        status.network.additional_ips.extend(api_pb2.PodIP(ip=ip) for ip in record.ips[1:])
    return status


def sandbox_info(record: Sandbox) -> dict[str, str]:
    """The verbose info, with the names crictl's users know from containerd where the things are the same."""
    info: dict[str, Any] = {
        "state": record.state.value,
        "cniResult": record.result,
        "networks": [{"name": one["name"], "file": one["source"]} for one in record.networks],
        "runtimeSpec": {"linux": {"namespaces": [{"type": "network", "path": record.netns}] if record.netns else []}},
    }
    return {"info": json.dumps(info)}


def container_item(record: Container) -> api_pb2.Container:
    """A line of ListContainers."""
    return api_pb2.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox,
        metadata=record.config.metadata,
        image=api_pb2.ImageSpec(image=images.name_of(record.config.image)),
        image_ref=images.identity(images.name_of(record.config.image)),
        image_id=images.identity(images.name_of(record.config.image)),
        state=container_state(record),
        created_at=record.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
    )


def container_status(record: Container) -> api_pb2.ContainerStatus:
    """The whole status."""
    context = record.config.linux.security_context
    status = api_pb2.ContainerStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=container_state(record),
        created_at=record.created_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        exit_code=record.exit_code,
        image=api_pb2.ImageSpec(image=images.name_of(record.config.image)),
        image_ref=images.identity(images.name_of(record.config.image)),
        image_id=images.identity(images.name_of(record.config.image)),
        reason=record.reason,
        message=record.message,
        labels=record.config.labels,
        annotations={**record.config.annotations, images.RUNS: _runs(record)},
        log_path=record.log_path,
    )
    status.user.linux.uid = context.run_as_user.value
    status.user.linux.gid = context.run_as_group.value
    status.user.linux.supplemental_groups.extend(context.supplemental_groups)
    return status


def _runs(record: Container) -> str:
    return "host" if images.is_host(images.name_of(record.config.image)) else "stand-in"


def container_info(record: Container, pid: int | None) -> dict[str, str]:
    """The verbose info: pid as the node sees it, and what really runs."""
    return {"info": json.dumps({"sandboxID": record.sandbox, "pid": pid or 0, "runs": _runs(record)})}


def selected(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether all of `selector` are among `labels`."""
    return all(labels.get(name) == value for name, value in selector.items())
