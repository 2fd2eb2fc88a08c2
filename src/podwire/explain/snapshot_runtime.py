"""The container runtime over CRI, for nodes without crictl, printed as crictl prints it."""

from __future__ import annotations

import json
from typing import Any

from podwire.errors import CriError

ENDPOINTS = (
    "/run/podwire/cri.sock",
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/var/run/cri-dockerd.sock",
)
_SECONDS = 5.0


def _ask(socket: str, method: str, **fields: Any) -> Any:
    import grpc

    from podwire.criapi import api_pb2
    from podwire.criapi.service import Stub

    channel = grpc.insecure_channel(f"unix:{socket.removeprefix('unix://')}")
    try:
        request = getattr(api_pb2, f"{method}Request")(**fields)
        return Stub(channel).method(method)(request, timeout=_SECONDS)
    except grpc.RpcError as error:
        raise CriError(f"calling {method} of", socket, error.code().name, str(error.details())) from None
    finally:
        channel.close()


def sandboxes(socket: str) -> str:
    """As `crictl pods -o json`. Raises CriError."""
    from podwire.criapi import api_pb2

    found = _ask(socket, "ListPodSandbox").items
    items = [
        {
            "id": one.id,
            "metadata": {"name": one.metadata.name, "namespace": one.metadata.namespace, "uid": one.metadata.uid},
            "state": api_pb2.PodSandboxState.Name(one.state),
            "createdAt": str(one.created_at),
        }
        for one in found
    ]
    return json.dumps({"items": items}, indent=1)


def info(socket: str) -> str:
    """As `crictl info`, as far as the CRI tells it. Raises CriError."""
    answer = _ask(socket, "Status", verbose=True)
    conditions = [
        {"type": one.type, "status": one.status, "reason": one.reason, "message": one.message}
        for one in answer.status.conditions
    ]
    shown: dict[str, Any] = {"status": {"conditions": conditions}}
    for key, text in answer.info.items():
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if key == "config" and isinstance(value, dict):
            # Runtimes put registry credentials here; only the part about CNI is wanted.
            value = {"cni": value.get("cni", {})}
        shown[key] = value
    shown.setdefault("lastCNILoadStatus", "")
    return json.dumps(shown, indent=1)
