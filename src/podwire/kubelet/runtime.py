"""The container runtime as the kubelet uses it: CRI over gRPC, values in and out.

Nothing here is particular to podwire's own server: a real containerd is spoken to in the same way. Where podwire's server
saves a call (PodSandboxStatus with the containers' statuses in it) that is used when it is there and replaced by
calls when not. gRPC statuses become CriError here, and nowhere above is a status looked at again.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from podwire.criapi import api_pb2
from podwire.criapi.service import Stub
from podwire.errors import CriError
from podwire.kubelet import view

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("podwire.kubelet")

TIMEOUT = 120.0  # seconds; the real kubelet's --runtime-request-timeout
QUICK = 10.0

_STATES = {
    api_pb2.CONTAINER_CREATED: "created",
    api_pb2.CONTAINER_RUNNING: "running",
    api_pb2.CONTAINER_EXITED: "exited",
}

# The server may be restarted at any time; the default of growing pauses up to two minutes would leave us blind.
_CHANNEL: list[tuple[str, Any]] = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
]


@dataclass(frozen=True)
class RuntimeStatus:
    """The CRI's conditions; the texts are empty when all is well."""

    runtime_problem: str = ""
    network_problem: str = ""
    answered: bool = True

    @property
    def ready(self) -> bool:
        """Whether pods with a network of their own can be run."""
        return not self.runtime_problem and not self.network_problem


@dataclass(frozen=True)
class Image:
    """An image by its id; `runs` is what podwire's own runtime runs in its place (host, stand-in), else ''."""

    id: str
    runs: str = ""


class Runtime:
    """A connection to the runtime's socket; made lazily, kept for ever."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(f"unix:{endpoint.removeprefix('unix://')}", options=_CHANNEL)
        self._stub = Stub(self._channel)
        self._name = ""

    @property
    def name(self) -> str:
        """What stands before a container's id: podwire, containerd."""
        if not self._name:
            self._name = self.version().partition("://")[0]
        return self._name

    def close(self) -> None:
        """End it, and with it the events' stream."""
        self._channel.close()

    def _call(self, name: str, request: Any, target: str = "", timeout: float = TIMEOUT) -> Any:
        try:
            return self._stub.method(name)(request, timeout=timeout)
        except grpc.RpcError as error:
            raise _cri_error(name, target, error) from None

    # the runtime itself

    def version(self) -> str:
        """As `containerRuntimeVersion` shows it: podwire://0.1.0."""
        answer = self._call("Version", api_pb2.VersionRequest(version="0.1.0"), timeout=QUICK)
        return f"{answer.runtime_name}://{answer.runtime_version}"

    def status(self) -> RuntimeStatus:
        """Its conditions; a server that does not answer is a runtime problem, not an exception."""
        try:
            answer = self._call("Status", api_pb2.StatusRequest(), timeout=QUICK)
        except CriError as error:
            return RuntimeStatus(f"container runtime is down: {error}", answered=False)
        runtime = network = ""
        for condition in answer.status.conditions:
            if condition.status:
                continue
            said = f"{condition.type}=false reason:{condition.reason} message:{condition.message}"
            if condition.type == "NetworkReady":
                network = f"container runtime network not ready: {said}"
            elif condition.type == "RuntimeReady":
                runtime = f"container runtime not ready: {said}"
        return RuntimeStatus(runtime, network)

    def maps_ports(self) -> bool:
        """Whether a plugin of the network in force takes hostPorts, as far as the runtime's verbose status tells."""
        info = self._call("Status", api_pb2.StatusRequest(verbose=True), timeout=QUICK).info
        return '"portMappings":true' in info.get("cniconfig", "").replace(" ", "")

    def set_pod_cidr(self, pod_cidr: str) -> None:
        """Tell it the node's podCIDR."""
        config = api_pb2.RuntimeConfig(network_config=api_pb2.NetworkConfig(pod_cidr=pod_cidr))
        self._call("UpdateRuntimeConfig", api_pb2.UpdateRuntimeConfigRequest(runtime_config=config), timeout=QUICK)

    # looking

    def snapshot(self) -> dict[tuple[str, str], frozenset[tuple[str, int]]]:
        """All pods that have a sandbox or a container, by (namespace, name), with the ids and states of these."""
        sandboxes = self._call("ListPodSandbox", api_pb2.ListPodSandboxRequest()).items
        containers = self._call("ListContainers", api_pb2.ListContainersRequest()).containers
        found: dict[tuple[str, str], set[tuple[str, int]]] = {}
        for item in (*sandboxes, *containers):
            namespace, name = item.labels.get(view.LABEL_NAMESPACE), item.labels.get(view.LABEL_NAME)
            if namespace and name:
                found.setdefault((namespace, name), set()).add((item.id, item.state))
        return {key: frozenset(states) for key, states in found.items()}

    def views(self, namespace: str, name: str) -> dict[str, view.PodView]:
        """What there is of the pods of this name, by uid: usually one, two while an old one is ending."""
        selector = {view.LABEL_NAMESPACE: namespace, view.LABEL_NAME: name}
        sandboxes = self._call(
            "ListPodSandbox",
            api_pb2.ListPodSandboxRequest(filter=api_pb2.PodSandboxFilter(label_selector=selector)),
            name,
        ).items
        containers = self._call(
            "ListContainers",
            api_pb2.ListContainersRequest(filter=api_pb2.ContainerFilter(label_selector=selector)),
            name,
        ).containers
        known: dict[str, Any] = {}
        found: dict[str, tuple[list[view.Sandbox], list[view.Container]]] = {}
        for item in sandboxes:
            uid = item.labels.get(view.LABEL_UID, "")
            with self._gone():
                answer = self._call(
                    "PodSandboxStatus", api_pb2.PodSandboxStatusRequest(pod_sandbox_id=item.id), item.id
                )
                known |= {status.id: status for status in answer.containers_statuses}
                found.setdefault(uid, ([], []))[0].append(_sandbox(answer.status))
        for item in containers:
            uid = item.labels.get(view.LABEL_UID, "")
            with self._gone():
                status = known.get(item.id) or self._container_status(item.id)
                found.setdefault(uid, ([], []))[1].append(_container(status, item.pod_sandbox_id))
        return {
            uid: view.PodView(
                uid,
                tuple(sorted(boxes, key=lambda one: (one.attempt, one.created_at), reverse=True)),
                tuple(sorted(inside, key=lambda one: (one.attempt, one.created_at), reverse=True)),
            )
            for uid, (boxes, inside) in found.items()
        }

    def _container_status(self, key: str) -> Any:
        return self._call("ContainerStatus", api_pb2.ContainerStatusRequest(container_id=key), key).status

    @staticmethod
    @contextlib.contextmanager
    def _gone() -> Iterator[None]:
        """What was listed may be gone before we look closer."""
        try:
            yield
        except CriError as error:
            if error.code != "NOT_FOUND":
                raise

    def events(self) -> Iterator[tuple[str, str]]:
        """(namespace, name) of a pod something happened to, for as long as the stream lasts; CriError when it breaks."""
        try:
            for event in self._stub.method("GetContainerEvents")(api_pb2.GetEventsRequest(), wait_for_ready=True):
                labels = event.pod_sandbox_status.labels
                if labels.get(view.LABEL_NAME):
                    yield labels[view.LABEL_NAMESPACE], labels[view.LABEL_NAME]
        except grpc.RpcError as error:
            raise _cri_error("GetContainerEvents", "", error) from None

    # doing

    def run_sandbox(self, config: api_pb2.PodSandboxConfig) -> str:
        """The new sandbox's id."""
        request = api_pb2.RunPodSandboxRequest(config=config)
        answer = self._call("RunPodSandbox", request, config.metadata.name, timeout=2 * TIMEOUT)
        return str(answer.pod_sandbox_id)

    def stop_sandbox(self, key: str) -> None:
        """Kill what is in it, give its network back."""
        self._call("StopPodSandbox", api_pb2.StopPodSandboxRequest(pod_sandbox_id=key), key)

    def remove_sandbox(self, key: str) -> None:
        """Forget it and its containers."""
        self._call("RemovePodSandbox", api_pb2.RemovePodSandboxRequest(pod_sandbox_id=key), key)

    def create_container(
        self, sandbox: str, config: api_pb2.ContainerConfig, sandbox_config: api_pb2.PodSandboxConfig
    ) -> str:
        """The new container's id."""
        request = api_pb2.CreateContainerRequest(pod_sandbox_id=sandbox, config=config, sandbox_config=sandbox_config)
        return str(self._call("CreateContainer", request, config.metadata.name).container_id)

    def start_container(self, key: str) -> None:
        """Run it."""
        self._call("StartContainer", api_pb2.StartContainerRequest(container_id=key), key)

    def remove_container(self, key: str) -> None:
        """Forget it."""
        self._call("RemoveContainer", api_pb2.RemoveContainerRequest(container_id=key), key)

    def stop_container(self, key: str, grace: int, then: Callable[[CriError | None], None]) -> None:
        """Ask for its end and return at once; `then` is called from another thread when it has ended or that failed."""
        request = api_pb2.StopContainerRequest(container_id=key, timeout=grace)
        future = self._stub.method("StopContainer").future(request, timeout=grace + TIMEOUT)

        def finished(done: Any) -> None:
            error = done.exception()
            then(_cri_error("StopContainer", key, error) if error is not None else None)

        future.add_done_callback(finished)

    def image(self, name: str) -> Image:
        """What the runtime knows of an image; its id is '' when it is not there."""
        request = api_pb2.ImageStatusRequest(image=api_pb2.ImageSpec(image=name))
        image = self._call("ImageStatus", request, name).image
        return Image(image.id, image.spec.annotations.get("io.podwire.runs", ""))

    def pull(self, name: str) -> Image:
        """Pull it."""
        request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=name))
        return Image(self._call("PullImage", request, name, timeout=10 * TIMEOUT).image_ref)


def _cri_error(method: str, target: str, error: Any) -> CriError:
    code = error.code()
    name = code.name if code is not None else "UNKNOWN"
    details = str(error.details() or "")
    return CriError(method, target, name, details)


def _sandbox(status: Any) -> view.Sandbox:
    ips = [status.network.ip, *(extra.ip for extra in status.network.additional_ips)]
    return view.Sandbox(
        status.id,
        status.metadata.attempt,
        status.state == api_pb2.SANDBOX_READY,
        status.created_at,
        tuple(ip for ip in ips if ip),
    )


def _container(status: Any, sandbox: str) -> view.Container:
    grace = status.annotations.get(view.GRACE_PERIOD, "")
    return view.Container(
        id=status.id,
        name=status.labels.get(view.LABEL_CONTAINER) or status.metadata.name,
        attempt=status.metadata.attempt,
        state=_STATES.get(status.state, "unknown"),
        sandbox=sandbox,
        created_at=status.created_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message,
        image=status.image.image,
        image_id=status.image_id or status.image_ref,
        hash=status.annotations.get(view.HASH, ""),
        grace=int(grace) if grace.isdigit() else None,
    )
