"""Pods and what a runtime has of them, written shortly."""

from __future__ import annotations

from typing import Any

from podwire.kube.kinds import PODS
from podwire.kubelet.translate import container_hash
from podwire.kubelet.view import Container, PodView, Sandbox

NOW = 1_800_000_000.0


def pod(*containers: dict[str, Any] | str, status: dict[str, Any] | None = None, **spec: Any):
    """A pod default/web bound to node-1; a container is its fields, or just its name."""
    meta = {"name": "web", "namespace": "default", "uid": "u1", **spec.pop("metadata", {})}
    return PODS.convert(
        {
            "metadata": meta,
            "spec": {
                "nodeName": "node-1",
                "containers": [container(one) for one in containers or ("app",)],
                **{
                    name: [container(one) for one in value] if name == "initContainers" else value
                    for name, value in spec.items()
                },
            },
            "status": status or {},
        }
    )


def container(value: dict[str, Any] | str) -> dict[str, Any]:
    return {"name": value, "image": "nginx:1"} if isinstance(value, str) else {"image": "nginx:1", **value}


def deleted(grace: int = 30, **more: Any):
    """Metadata of a pod that somebody deleted."""
    return {"deletionTimestamp": "2027-01-15T08:00:30Z", "deletionGracePeriodSeconds": grace, **more}


def seen(
    name: str = "app", state: str = "running", *, code: int = 0, attempt: int = 0, sandbox: str = "s0", **more: Any
):
    """A container the runtime has; finished_at counts back from NOW by `ago` seconds."""
    ago = more.pop("ago", 1.0)
    spec = container(name)
    made = PODS.convert({"spec": {"containers": [spec]}}).spec.containers[0]
    ended = {"finished_at": int((NOW - ago) * 1e9), "exit_code": code} if state == "exited" else {}
    return Container(
        id=more.pop("id", f"{name}-{attempt}"),
        name=name,
        attempt=attempt,
        state=state,
        sandbox=sandbox,
        started_at=int((NOW - ago - 60) * 1e9),
        image="nginx:1",
        image_id="id of nginx:1",
        hash=more.pop("hash", container_hash(made)),
        **ended,
        **more,
    )


def view(*containers: Container, ready: bool | None = True, attempt: int = 0, ips: tuple[str, ...] = ("10.1.0.2",)):
    """A view with one sandbox s0; ready None: without one."""
    boxes = () if ready is None else (Sandbox("s0", attempt, ready, 1, ips if ready else ()),)
    return PodView("u1", boxes, tuple(sorted(containers, key=lambda one: one.attempt, reverse=True)))
