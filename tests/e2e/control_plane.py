"""A real control plane on loopback: podwire's API server as a process, the controller manager in a thread or process, and
kubelets that only say what a kubelet says.

`Kubelets` follows pods with a reflector like everybody else: a pod with a node becomes Running and Ready with an address of that
node's podCIDR; one that is deleted is ended. It stands in for the network, not for a part that is tested here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from podwire.controllers import manager
from podwire.errors import ApiConflict, ApiError, ApiNotFound
from podwire.kube.client import Client
from podwire.kube.kinds import LEASES, NODES, PODS
from podwire.kube.reflector import Reflector
from podwire.kube.times import rfc3339, rfc3339_micro
from podwire.kube.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from podwire.kube.objects import Pod


def until(true: Callable[[], Any], seconds: float = 10.0, what: str = "it") -> Any:
    """Wait until `true()` is; returns what it said."""
    deadline = time.monotonic() + seconds
    while not (value := true()):
        assert time.monotonic() < deadline, f"{what} did not happen in {seconds} s"
        time.sleep(0.01)
    return value


class ApiServer:
    """The process; can be stopped, killed and started again on the same data."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = str(folder / "kubeconfig")
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with open(self._folder / "apiserver.log", "ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "podwire", "apiserver", "--data-dir", str(self._folder / "data"),
                    "--bind-address", "127.0.0.1", "--secure-port", str(self._port), "--advertise-address", "127.0.0.1",
                    "--service-cluster-ip-range", "10.96.0.0/16", "--service-node-port-range", "30000-32767",
                    "--kubeconfig-out", self.kubeconfig,
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        until(self._answers, 20, "the API server")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self._folder / "apiserver.log").read_text()
        if not os.path.exists(self.kubeconfig):
            return False
        with contextlib.suppress(Exception), contextlib.closing(Client.from_kubeconfig(self.kubeconfig)) as client:
            client.get_path("/version")
            return True
        return False

    def stop(self, *, kill: bool = False) -> None:
        assert self.process is not None
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(10)


class Kubelets:
    """All nodes' kubelets in one."""

    def __init__(self, client: Client, stop: threading.Event) -> None:
        self.client = client
        self.silent: set[str] = set()  # nodes whose kubelet does nothing
        self.unready: set[str] = set()  # pods by name that run and are not ready
        self._used: dict[str, int] = {}
        self._queue: WorkQueue[str] = WorkQueue(longest_retry=0.5)
        self._pods = Reflector(client, PODS, stop=stop, on_change=lambda key, _old, _new: self._queue.add(key))
        self._nodes = Reflector(client, NODES, stop=stop)
        self._nodes.start()
        self._nodes.synced.wait(10)
        self._pods.start()
        threading.Thread(target=self._work, daemon=True).start()
        threading.Thread(target=lambda: (stop.wait(), self._queue.shut_down()), daemon=True).start()

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            try:
                self._sync(self._pods.store.get(key))
                self._queue.forget(key)
            except ApiError:
                self._queue.retry(key)
            finally:
                self._queue.done(key)

    def _sync(self, pod: Pod | None) -> None:
        if pod is None or not pod.spec.node_name or pod.spec.node_name in self.silent:
            return
        with contextlib.suppress(ApiNotFound, ApiConflict):
            if pod.terminating:
                meta = pod.metadata
                self.client.delete(PODS, meta.name, meta.namespace, grace_seconds=0, uid=meta.uid)
            elif pod.status.phase == "Pending":
                self.report(pod, ready=pod.metadata.name not in self.unready)

    def report(self, pod: Pod, *, ready: bool) -> None:
        node = self._nodes.store.get(pod.spec.node_name)
        number = self._used[pod.spec.node_name] = self._used.get(pod.spec.node_name, 1) + 1
        cidrs = (node.pod_cidrs if node else ()) or ("10.244.250.0/24",)
        addresses = list(pod.addresses) or [f"{cidr.rpartition('0/')[0]}{number}" for cidr in cidrs]
        now = rfc3339(time.time())
        conditions = [
            {"type": kind, "status": "True" if ready or kind == "Initialized" else "False", "lastTransitionTime": now}
            for kind in ("Initialized", "Ready", "ContainersReady")
        ]
        status = {
            "phase": "Running",
            "podIP": addresses[0],
            "podIPs": [{"ip": address} for address in addresses],
            "conditions": conditions,
        }
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        self.client.patch(PODS, meta.name, body, meta.namespace, patch_type="strategic", subresource="status")


class ControlPlane:
    """API server, a client, and what a test starts of the rest."""

    def __init__(self, folder: Path) -> None:
        self.server = ApiServer(folder)
        self.client = Client.from_kubeconfig(self.server.kubeconfig)
        self._stops: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def start_manager(self, controllers: str, **flags: Any) -> threading.Event:
        """Run the controller manager in a thread; returns its stop event."""
        options = dataclasses.replace(
            manager.Options(kubeconfig=self.server.kubeconfig, cluster_cidr="10.244.0.0/16"),
            controllers=controllers,
            **flags,
        )
        stop = threading.Event()
        thread = threading.Thread(target=manager.run, args=(options, stop), daemon=True)
        thread.start()
        self._stops.append(stop)
        self._threads.append(thread)
        return stop

    def start_kubelets(self) -> Kubelets:
        stop = threading.Event()
        self._stops.append(stop)
        return Kubelets(self.client, stop)

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={self.server.kubeconfig}", *arguments],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout + done.stderr

    def add_node(
        self, name: str, *, ready: bool = True, pod_cidr: str = "", labels: dict[str, str] | None = None
    ) -> None:
        body: dict[str, Any] = {"metadata": {"name": name, "labels": labels or {}}}
        if pod_cidr:
            body["spec"] = {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]}
        self.client.create(NODES, body)
        self.heartbeat(name)
        self.node_status(name, ready=ready)

    def node_status(self, name: str, *, ready: bool) -> None:
        now = rfc3339(time.time())
        condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "KubeletReady", "message": "m"}
        condition |= {"lastTransitionTime": now, "lastHeartbeatTime": now}
        address = {"type": "InternalIP", "address": f"172.30.0.{sum(name.encode()) % 250 + 1}"}
        body = {"status": {"conditions": [condition], "addresses": [address]}}
        self.client.patch(NODES, name, body, patch_type="strategic", subresource="status")

    def heartbeat(self, name: str) -> None:
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": rfc3339_micro(time.time())}
        try:
            self.client.patch(LEASES, name, {"spec": spec}, "kube-node-lease")
        except ApiNotFound:
            self.client.create(LEASES, {"metadata": {"name": name, "namespace": "kube-node-lease"}, "spec": spec})

    def events(self, reason: str) -> list[Any]:
        from podwire.kube.kinds import EVENTS

        return [event for event in self.client.list(EVENTS).items if event.reason == reason]

    def close(self) -> None:
        for stop in self._stops:
            stop.set()
        for thread in self._threads:
            thread.join(5)
        self.client.close()
        self.server.stop()
        assert not any(thread.is_alive() for thread in self._threads)


def running(folder: Path) -> Iterator[ControlPlane]:
    """For fixtures."""
    plane = ControlPlane(folder)
    try:
        yield plane
    finally:
        plane.close()
