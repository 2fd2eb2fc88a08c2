"""What `podwire status` says of a lab: asked of the processes and of the API, not of what was once written down."""

from __future__ import annotations

import time
from typing import Any

from podwire.errors import ApiError, PodwireError
from podwire.kube.client import Client
from podwire.kube.kinds import NODES
from podwire.lab.state import Component, Folder, Process
from podwire.lab.topology import UNDERLAY

_TICKS = 100  # USER_HZ, which the kernel shows to user space as 100 on every architecture podwire knows


def of(name: str) -> dict[str, Any]:
    """The state of a lab as plain values (the JSON of --json). Raises UsageError when there is none."""
    folder = Folder(name)
    topology = folder.topology()
    api: dict[str, Any] = {}
    problem = ""
    try:
        api = {node.metadata.name: node for node in Client.from_kubeconfig(folder.kubeconfig).list(NODES).items}
    except (ApiError, PodwireError) as error:
        problem = str(error)
    machines: list[dict[str, Any]] = []
    for machine in topology.machines:
        holder = folder.holder(machine.name)
        node = api.get(machine.name)
        machines.append(
            {
                "name": machine.name,
                "address": str(machine.address),
                "holder": _process(holder),
                "podCIDR": node.spec.pod_cidr if node else None,
                "ready": _ready(node) if node else None,
                "components": [_component(component) for component in folder.components(machine.name)],
            }
        )
    wires = _process(folder.holder(UNDERLAY))
    healthy = (
        not problem
        and wires["alive"]
        and all(
            machine["holder"]["alive"]
            and machine["ready"] is not False
            and all(c["alive"] for c in machine["components"])
            for machine in machines
        )
    )
    return {
        "name": name,
        "healthy": healthy,
        "api": problem or "answers",
        "kubeconfig": folder.kubeconfig,
        "underlay": str(topology.underlay),
        "underlayHolder": wires,
        "hostInterface": topology.host_link,
        "clusterCIDR": str(topology.cluster_cidr),
        "serviceClusterIPRange": str(topology.service_cidr),
        "machines": machines,
    }


def _ready(node: Any) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def _process(process: Process | None) -> dict[str, Any]:
    if process is None or not process.alive:
        return {"alive": False, "pid": None}
    return {"alive": True, "pid": process.pid}


def _component(component: Component) -> dict[str, Any]:
    state = _process(component.process)
    state["name"] = component.name
    if component.process is not None and component.process.alive:
        state["uptimeSeconds"] = round(_uptime() - component.process.started / _TICKS, 1)
        state["rssKiB"] = _rss(component.process.pid)
    else:
        state["stopped"] = "stopped" if component.process is None else "ended by itself or was killed"
    return state


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _rss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("VmRSS:")), 0)
    except OSError:
        return 0


def text(lab: dict[str, Any]) -> str:
    """The same for a person."""
    lines = [
        f"lab {lab['name']}: {'healthy' if lab['healthy'] else 'NOT healthy'}; API {lab['api']}",
        f"  kubeconfig {lab['kubeconfig']}",
        f"  underlay {lab['underlay']} ({_wires(lab)})",
        f"  pods {lab['clusterCIDR']}, services {lab['serviceClusterIPRange']}",
        "",
        f"  {'MACHINE':<14} {'ADDRESS':<15} {'PODCIDR':<18} {'STATUS':<9} COMPONENTS",
    ]
    return "\n".join([*lines, *(_machine_text(machine) for machine in lab["machines"])])


def _wires(lab: dict[str, Any]) -> str:
    if lab["underlayHolder"]["alive"]:
        return f"host interface {lab['hostInterface']}"
    return "dead: nothing connects the machines any more"


def _machine_text(machine: dict[str, Any]) -> str:
    components = ", ".join(_component_text(component) for component in machine["components"])
    where = f"{machine['name']:<14} {machine['address']:<15} {machine['podCIDR'] or '-':<18}"
    return f"  {where} {_word(machine):<9} {components}"


def _word(machine: dict[str, Any]) -> str:
    if not machine["holder"]["alive"]:
        return "dead"
    return {True: "Ready", False: "NotReady", None: "-"}[machine["ready"]]


def _component_text(component: dict[str, Any]) -> str:
    if component["alive"]:
        return f"{component['name']} ({component['pid']})"
    return f"{component['name']} ({component['stopped']})"
