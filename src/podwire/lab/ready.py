"""Waiting for a lab: each wait asks the part itself, names what is missing, and shows the log when it takes too long."""

from __future__ import annotations

import http.client
import os
import shutil
import time
from typing import TYPE_CHECKING

from podwire.errors import ApiError, PodwireError
from podwire.kernel import namespaces
from podwire.kube.client import Client
from podwire.kube.kinds import NODES
from podwire.lab import processes
from podwire.lab.machine import KUBECONFIG
from podwire.lab.network import netns_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kube.objects import Node
    from podwire.lab.progress import Progress
    from podwire.lab.state import Folder, Process
    from podwire.lab.topology import Topology

_PAUSE = 0.05


def wait_for(
    what: str, probe: Callable[[], str], timeout: float, folder: Folder, suspects: list[tuple[str, str]]
) -> None:
    """Call `probe` until it returns "" (nothing is missing). Raises PodwireError with what is still missing.

    `suspects` are (machine, component): when one of them has died waiting is pointless, and its log says why.
    """
    deadline = time.monotonic() + timeout
    while missing := probe():
        for machine, name in suspects:
            if not folder.component(machine, name).alive:
                tail = processes.log_tail(folder.log_path(machine, name))
                raise PodwireError(
                    f"waiting for {what}", answer=f"{name} on {machine} has ended", hint=tail or "its log is empty"
                )
        if time.monotonic() > deadline:
            logs = "; ".join(
                f"{name} on {machine}: {processes.log_tail(folder.log_path(machine, name), 1)}"
                for machine, name in suspects
            )
            raise PodwireError(f"waiting for {what}", answer=f"{missing}, after {timeout:.0f} s", hint=logs)
        time.sleep(_PAUSE)


def api_server(folder: Folder, topology: Topology, timeout: float) -> None:
    """The API server has written its kubeconfig and answers /readyz; the kubeconfig is then copied for the host."""
    name = topology.control_plane.name
    written = f"/proc/{processes.living_holder(folder, name).pid}/root{KUBECONFIG}"

    def probe() -> str:
        if not os.path.exists(written):
            return "no kubeconfig yet"
        _copy_private(written, folder.kubeconfig)
        try:
            Client.from_kubeconfig(folder.kubeconfig).list(NODES)
        except ApiError as error:
            return str(error)
        return ""

    wait_for("the API server", probe, timeout, folder, [(name, "apiserver")])


def put_kubeconfig(folder: Folder, holder: Process) -> None:
    """Give a node its kubeconfig, through the mount namespace of its holder."""
    _copy_private(folder.kubeconfig, f"/proc/{holder.pid}/root{KUBECONFIG}")


def _copy_private(source: str, target: str) -> None:
    """Copy a secret: the file is 0600 before anything is in it, and appears whole."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary = f"{target}.tmp"
    with (
        open(source, "rb") as old,
        open(temporary, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as new,
    ):
        shutil.copyfileobj(old, new)
    os.replace(temporary, target)


def nodes(folder: Folder, topology: Topology, progress: Progress, timeout: float) -> None:
    """Every Node is Ready and has a podCIDR, flanneld has written subnet.env, kube-proxy is healthy."""
    client = Client.from_kubeconfig(folder.kubeconfig)
    everywhere = [node.name for node in topology.nodes]

    def registered() -> str:
        found = {node.metadata.name: node for node in client.list(NODES).items}
        missing = [name for name in everywhere if name not in found or not found[name].spec.pod_cidr]
        return f"no podCIDR for {', '.join(missing)}" if missing else ""

    def subnet_written() -> str:
        missing = [
            name
            for name in everywhere
            if not os.path.exists(f"/proc/{processes.living_holder(folder, name).pid}/root/run/flannel/subnet.env")
        ]
        return f"no subnet.env on {', '.join(missing)}" if missing else ""

    def node_ready() -> str:
        missing = [node.metadata.name for node in client.list(NODES).items if not _is_ready(node)]
        return f"not Ready: {', '.join(missing)}" if missing else ""

    def proxies() -> str:
        missing = [name for name in everywhere if not _healthy(processes.living_holder(folder, name), 10256)]
        return f"kube-proxy has not synced on {', '.join(missing)}" if missing else ""

    def all_of(component: str) -> list[tuple[str, str]]:
        return [(name, component) for name in everywhere]

    wait_for(
        "podCIDRs",
        registered,
        timeout,
        folder,
        [*all_of("kubelet"), (topology.control_plane.name, "controller-manager")],
    )
    podcidrs = {node.metadata.name: node.spec.pod_cidr for node in client.list(NODES).items}
    progress.step("podCIDRs: " + ", ".join(f"{name} {podcidrs[name]}" for name in everywhere))
    wait_for("flanneld", subnet_written, timeout, folder, all_of("flanneld"))
    progress.step("flannel.1 and /run/flannel/subnet.env on every node")
    wait_for("the nodes", node_ready, timeout, folder, [*all_of("kubelet"), *all_of("cri")])
    wait_for("kube-proxy", proxies, timeout, folder, all_of("kube-proxy"))
    progress.step("every Node is Ready and every kube-proxy has written its rules")


def _is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def _healthy(holder: Process, port: int) -> bool:
    """Ask a health server on the loopback of another network namespace: the socket keeps the one it was made in."""
    with netns_of(holder) as fd, namespaces.entered(fd):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()
