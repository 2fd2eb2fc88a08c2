"""A node with its runtime and its kubelet, under a real API server: pods are bound by writing spec.nodeName.

The kubelet runs in the machine's own network namespace, where the API server listens on loopback; the runtime is in a
node of its own and is reached by its socket, so nothing of a pod touches this machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from podwire.errors import ApiNotFound
from podwire.kube.client import Client
from podwire.kube.kinds import EVENTS, NODES, PODS
from podwire.testing.netns import Node

sys.path.insert(0, os.path.abspath(f"{os.path.dirname(__file__)}/../kernel"))

import cri_rig
from control_plane import ApiServer, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODE = "node-7"
NODE_IP = "192.0.2.7"


class Rig:
    """Everything, and the questions the tests ask."""

    def __init__(self, folder: Path, *, wired: bool = True) -> None:
        self.folder = folder
        self.api_server = ApiServer(folder)
        self.client = Client.from_kubeconfig(self.api_server.kubeconfig)
        self.node = Node()
        self.cri = cri_rig.Cri(self.node)
        if wired:
            self.cri.wire()
        self.cri.start()
        self._kubelet: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the kubelet."""
        flags = {
            "kubeconfig": self.api_server.kubeconfig,
            "hostname-override": NODE,
            "node-ip": NODE_IP,
            "container-runtime-endpoint": f"unix://{self.node.root}{cri_rig.SOCKET}",
        }
        with open(self.folder / "kubelet.log", "ab") as log:
            self._kubelet = subprocess.Popen(
                [sys.executable, "-m", "podwire", "kubelet", *(f"--{name}={value}" for name, value in flags.items())],
                stderr=log,
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        """End the kubelet; its exit status."""
        assert self._kubelet is not None
        self._kubelet.send_signal(number)
        status = self._kubelet.wait(timeout=20)
        self._kubelet = None
        return status

    @property
    def pid(self) -> int:
        """The kubelet's."""
        assert self._kubelet is not None
        return self._kubelet.pid

    def log(self) -> str:
        """What the kubelet said."""
        return (self.folder / "kubelet.log").read_text()

    def close(self) -> None:
        """End everything."""
        if self._kubelet is not None:
            self.end(signal.SIGKILL)
        self.cri.close()
        self.node.close()
        self.client.close()
        self.api_server.stop(kill=True)

    # pods

    def create(self, name: str, *containers: dict[str, Any], **spec: Any) -> None:
        """A pod bound to the node."""
        meta = {"name": name, "namespace": "default", **spec.pop("metadata", {})}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"nodeName": NODE, "containers": list(containers), **spec},
        }
        self.client.create(PODS, body)

    def pod(self, name: str) -> Any:
        """The pod, None if there is none."""
        try:
            return self.client.get(PODS, name, "default")
        except ApiNotFound:
            return None

    def ready(self, name: str) -> Any:
        """The pod, once it is ready."""
        until(lambda: self.pod(name).ready, what=f"{name} to be ready: {self.log()[-2000:]}")
        return self.pod(name)

    def phase(self, name: str, phase: str) -> Any:
        """The pod, once it is in this phase."""
        until(lambda: self.pod(name).status.phase == phase, what=f"{name} to be {phase}")
        return self.pod(name)

    def gone(self, name: str, seconds: float = 10.0) -> None:
        """Wait until there is no such pod."""
        until(lambda: self.pod(name) is None, seconds, f"{name} to be gone")

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete it and wait."""
        self.client.delete(PODS, name, "default", grace_seconds=grace)
        self.gone(name)

    def state(self, name: str, container: str = "app") -> dict[str, Any]:
        """The container's state."""
        statuses = (*self.pod(name).status.container_statuses, *self.pod(name).status.init_container_statuses)
        return next((one.state or {} for one in statuses if one.name == container), {})

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """(type, reason, message) of everything said about an object of this name."""
        found = self.client.list(EVENTS, field_selector=f"involvedObject.name={name}").items
        return [(one.type, one.reason, one.message) for one in found]

    def event(self, name: str, reason: str) -> str:
        """The message of an Event, once it is there."""
        until(lambda: [one for one in self.events(name) if one[1] == reason], what=f"the Event {reason} on {name}")
        return next(message for _, found, message in self.events(name) if found == reason)

    def output(self, name: str, container: str = "app", attempt: int = 0) -> list[str]:
        """The lines a container has printed."""
        uid = self.pod(name).metadata.uid
        text = self.node.read(f"/run/podwire/pods/default_{name}_{uid}/{container}/{attempt}.log")
        return [line.split(" ", 3)[3] for line in text.splitlines()]

    def condition(self, kind: str = "Ready") -> Any:
        """A condition of the Node."""
        try:
            found = self.client.get(NODES, NODE).status.conditions
        except ApiNotFound:
            return None
        return next((one for one in found if one.type == kind), None)

    def node_ready(self) -> None:
        """Wait until the Node is ready."""
        until(lambda: (one := self.condition()) is not None and one.status == "True", what="the node to be ready")


def host(*command: str, name: str = "app", **more: Any) -> dict[str, Any]:
    """A container that runs a command from the host's file system."""
    return {"name": name, "image": "podwire/host", "command": list(command), **more}


def shell(script: str, **more: Any) -> dict[str, Any]:
    """The same with a shell."""
    return host("sh", "-c", script, **more)


def web(port: int = 80, name: str = "app", **more: Any) -> dict[str, Any]:
    """A stand-in."""
    return {"name": name, "image": "nginx:1.25", "ports": [{"containerPort": port}], **more}


@contextlib.contextmanager
def running(folder: Path, *, wired: bool = True) -> Iterator[Rig]:
    """A rig whose kubelet runs."""
    rig = Rig(folder, wired=wired)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


def times(action: Any, condition: Any) -> float:
    """Seconds from an action to a condition."""
    started = time.monotonic()
    action()
    until(condition)
    return time.monotonic() - started
