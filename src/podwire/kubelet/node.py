"""The Node object: what a kubelet registers and reports. Pure, but for `Facts.read`, which looks at this machine.

    registered once      name, the well-known labels, addresses, capacity, conditions, nodeInfo
    afterwards           status only: when it changed, and every five minutes
    heartbeat            the Lease of the same name in kube-node-lease, every ten seconds

Ready is False with the runtime's own words until its network is ready: that text is where everybody looks first.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire import __version__
from podwire.kube.times import rfc3339, rfc3339_micro

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.kubelet.runtime import RuntimeStatus

KUBELET_VERSION = "v1.34.0+podwire"
MAX_PODS = 110
LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40

# Go's names of architectures, which the labels use.
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True)
class Facts:
    """What this machine is."""

    name: str
    ips: tuple[str, ...]
    cpus: int
    memory_kib: int
    kernel: str
    os_image: str
    architecture: str
    machine_id: str
    boot_id: str
    runtime_version: str = ""

    @classmethod
    def read(cls, name: str, ips: tuple[str, ...]) -> Facts:
        """Look at the machine we run on; what cannot be read stays empty."""
        memory = next((line for line in _text("/proc/meminfo").splitlines() if line.startswith("MemTotal:")), "")
        release = dict(line.partition("=")[::2] for line in _text("/etc/os-release").splitlines() if "=" in line)
        machine = platform.machine()
        return cls(
            name=name,
            ips=ips,
            cpus=os.cpu_count() or 1,
            memory_kib=int(memory.split()[1]) if memory else 0,
            kernel=platform.release(),
            os_image=release.get("PRETTY_NAME", "").strip('"') or "Linux",
            architecture=_ARCHITECTURES.get(machine, machine),
            machine_id=_text("/etc/machine-id").strip(),
            boot_id=_text("/proc/sys/kernel/random/boot_id").strip(),
        )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def labels(facts: Facts, extra: Mapping[str, str]) -> dict[str, str]:
    """The well-known labels, and those of --node-labels."""
    return {
        "beta.kubernetes.io/arch": facts.architecture,
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": facts.architecture,
        "kubernetes.io/hostname": facts.name,
        "kubernetes.io/os": "linux",
        **extra,
    }


def body(facts: Facts, extra_labels: Mapping[str, str], status: dict[str, Any]) -> dict[str, Any]:
    """The Node to be created."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": facts.name, "labels": labels(facts, extra_labels)},
        "status": status,
    }


def status(facts: Facts, runtime: RuntimeStatus, before: Mapping[str, tuple[str, str]], now: float) -> dict[str, Any]:
    """The whole status; `before` has (status, lastTransitionTime) of the conditions as last known."""
    problem = "; ".join(text for text in (runtime.runtime_problem, runtime.network_problem) if text)
    ready = (
        ("False", "KubeletNotReady", problem)
        if problem
        else ("True", "KubeletReady", "kubelet is posting ready status")
    )
    wanted = {
        "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        "Ready": ready,
    }
    resources = {"cpu": str(facts.cpus), "memory": f"{facts.memory_kib}Ki", "pods": str(MAX_PODS)}
    conditions = []
    for name, (state, reason, message) in wanted.items():
        old, since = before.get(name, ("", ""))
        conditions.append(
            {
                "type": name,
                "status": state,
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": rfc3339(now),
                "lastTransitionTime": since if old == state and since else rfc3339(now),
            }
        )
    return {
        "addresses": [
            *({"type": "InternalIP", "address": ip} for ip in facts.ips),
            {"type": "Hostname", "address": facts.name},
        ],
        "capacity": resources,
        "allocatable": resources,
        "conditions": conditions,
        "nodeInfo": {
            "architecture": facts.architecture,
            "bootID": facts.boot_id,
            "containerRuntimeVersion": facts.runtime_version or f"podwire://{__version__}",
            "kernelVersion": facts.kernel,
            "kubeProxyVersion": "",
            "kubeletVersion": KUBELET_VERSION,
            "machineID": facts.machine_id,
            "operatingSystem": "linux",
            "osImage": facts.os_image,
            "systemUUID": facts.machine_id,
        },
    }


def comparable(value: Mapping[str, Any]) -> dict[str, Any]:
    """A status without the heartbeats, which alone are no reason to send it."""
    return {
        **value,
        "conditions": [
            {name: text for name, text in one.items() if name != "lastHeartbeatTime"} for one in value["conditions"]
        ],
    }


def lease(name: str, uid: str, now: float) -> dict[str, Any]:
    """The Lease to be created; it goes with its Node."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
        },
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": rfc3339_micro(now)},
    }
