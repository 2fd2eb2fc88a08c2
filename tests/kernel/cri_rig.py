"""A node of its own with `podwire cri` on it, and the calls the tests make."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import grpc

from podwire.cri import launch
from podwire.criapi import api_pb2
from podwire.criapi.service import IMAGE, RUNTIME, Stub, methods
from podwire.testing.netns import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOCKET = "/run/podwire/cri.sock"
STATE = "/run/podwire/cri"
LOGS = "/run/pods"
REQUESTS = {method.name: method.request for service in (RUNTIME, IMAGE) for method in methods(service)}

FLANNEL = {
    "name": "cni0",
    "plugins": [
        {"type": "flannel", "delegate": {"ipMasq": False, "hairpinMode": True, "isDefaultGateway": True}},
    ],
}
SUBNET_ENV = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"


class Cri:
    """The server and a client for it."""

    def __init__(self, node: Node, *flags: str) -> None:
        self.node = node
        self.flags = flags
        self.state = f"{node.root}{STATE}"
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None
        self._stub: Stub | None = None
        node.run(sys.executable, "-m", "podwire", "cni", "install", "--bin-dir", "/opt/cni/bin")

    def wire(self) -> None:
        """What flannel would have put in place."""
        self.node.write("/run/flannel/subnet.env", SUBNET_ENV)
        self.node.write("/etc/cni/net.d/10-flannel.conflist", json.dumps(FLANNEL))

    def start(self) -> None:
        """Start the server and wait until it answers."""
        argv = [sys.executable, "-m", "podwire", "cri", "--node-name", "node-7", *self.flags]
        self._log = f"{self.node.root}/run/cri.log"
        with open(self._log, "a", encoding="utf-8") as log:
            self._process = subprocess.Popen(self.node.command(*argv), stderr=log)
        self._channel = grpc.insecure_channel(
            f"unix:{self.node.root}{SOCKET}", options=[("grpc.max_reconnect_backoff_ms", 200)]
        )
        self._stub = Stub(self._channel)
        self._stub.method("Version")(api_pb2.VersionRequest(), wait_for_ready=True, timeout=20)

    @property
    def pid(self) -> int:
        """The server's, which nsenter has become."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> tuple[int, str]:
        """SIGTERM; the exit status and what it logged."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> tuple[int, str]:
        assert self._process is not None
        assert self._channel is not None
        self._channel.close()
        self._process.send_signal(number)
        status = self._process.wait(timeout=20)
        self._process = None
        with open(self._log, encoding="utf-8") as log:
            return status, log.read()

    def close(self) -> None:
        """End everything, whatever the test left."""
        if self._process is not None:
            self.kill()
        containers = f"{self.state}/containers"
        for name in os.listdir(containers) if os.path.isdir(containers) else ():
            with contextlib.suppress(OSError):
                launch.kill(f"{containers}/{name}")

    def call(self, name: str, **fields: Any) -> Any:
        """An RPC by name; grpc.RpcError if it fails."""
        assert self._stub is not None
        return self._stub.method(name)(REQUESTS[name](**fields), timeout=30)

    def stream(self, name: str, **fields: Any) -> Any:
        """A streaming RPC."""
        assert self._stub is not None
        return self._stub.method(name)(REQUESTS[name](**fields))

    # shorthands

    def sandbox(self, name: str = "web-0", *, host_network: bool = False, attempt: int = 0) -> str:
        """A sandbox of the pod `default/NAME`."""
        config = sandbox_config(name, attempt)
        if host_network:
            config.linux.security_context.namespace_options.network = api_pb2.NODE
            config.hostname = ""
        return str(self.call("RunPodSandbox", config=config).pod_sandbox_id)

    def create(
        self,
        sandbox: str,
        *command: str,
        name: str = "app",
        image: str = "podwire/host",
        attempt: int = 0,
        **config: Any,
    ) -> str:
        """A container that is not started yet."""
        made = api_pb2.ContainerConfig(
            metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
            image=api_pb2.ImageSpec(image=image),
            command=command,
            log_path=f"{name}/{attempt}.log",
            **config,
        )
        return str(self.call("CreateContainer", pod_sandbox_id=sandbox, config=made).container_id)

    def run(self, sandbox: str, *command: str, **config: Any) -> str:
        """A running container."""
        key = self.create(sandbox, *command, **config)
        self.call("StartContainer", container_id=key)
        return key

    def stand_in(self, sandbox: str, *ports: tuple[int, str], name: str = "web", **config: Any) -> str:
        """A running stand-in that declares these ports."""
        declared = json.dumps([{"containerPort": number, "protocol": protocol} for number, protocol in ports])
        annotations = {launch.PORTS_ANNOTATION: declared}
        return self.run(sandbox, name=name, image="nginx:1.25", annotations=annotations, **config)

    def status(self, container: str) -> Any:
        """ContainerStatus."""
        return self.call("ContainerStatus", container_id=container).status

    def ended(self, container: str) -> Any:
        """ContainerStatus, once it has ended."""
        wait_for(lambda: self.status(container).state == api_pb2.CONTAINER_EXITED, "the container to end")
        return self.status(container)

    def log(self, name: str = "app", attempt: int = 0, pod: str = "web-0") -> list[str]:
        """The log's lines without their times: `stdout F text`."""
        text = self.node.read(f"{LOGS}/{pod}/{name}/{attempt}.log")
        return [line.partition(" ")[2] for line in text.splitlines()]

    def output(self, sandbox: str, *command: str, **config: Any) -> str:
        """What a command says on stdout, run to its end in a container of its own."""
        name = f"run-{time.monotonic_ns()}"
        self.ended(self.run(sandbox, *command, name=name, **config))
        prefix = "stdout F "
        return "\n".join(line.removeprefix(prefix) for line in self.log(name) if line.startswith(prefix))

    def pod_netns(self, sandbox: str) -> str:
        """The path of a sandbox's namespace as the node sees it."""
        return f"{STATE}/netns/{sandbox}"

    def in_pod(self, sandbox: str, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in a sandbox's network namespace."""
        return self.node.run("nsenter", f"--net={self.pod_netns(sandbox)}", "--", *argv, check=check)

    def pid_of(self, container: str) -> int:
        """The pid of a container's process, as the test sees it (the rig has no PID namespace)."""
        with open(f"{self.state}/containers/{container}/pid", encoding="ascii") as file:
            return int(file.read())


def sandbox_config(name: str, attempt: int = 0) -> api_pb2.PodSandboxConfig:
    """As a kubelet would send it."""
    return api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name=name, namespace="default", uid=f"uid-{name}", attempt=attempt),
        hostname=name,
        log_directory=f"{LOGS}/{name}",
        labels={
            "io.kubernetes.pod.name": name,
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": f"uid-{name}",
        },
    )


def process_list() -> str:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True, check=True).stdout


def wait_for(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def running(*flags: str, wired: bool = True) -> Iterator[Cri]:
    """A node with a server on it."""
    with Node() as node:
        cri = Cri(node, *flags)
        try:
            if wired:
                cri.wire()
            cri.start()
            yield cri
        finally:
            cri.close()
