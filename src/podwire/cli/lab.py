"""podwire up, down, status, node: a whole cluster network on this machine."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

Name = Annotated[str, typer.Option("--name", envvar="PODWIRE_NAME", help="Which lab.")]


def register(app: typer.Typer) -> None:
    """Add the lab's commands."""
    app.command("up")(up)
    app.command("down")(down)
    app.command("status")(status)
    node = typer.Typer(help="Run a command on a node; stop, start or read one of its components.", no_args_is_help=True)
    node.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(node_exec)
    node.command("stop")(node_stop)
    node.command("start")(node_start)
    node.command("logs")(node_logs)
    app.add_typer(node, name="node")


def up(
    nodes: Annotated[int, typer.Option(help="How many nodes.")] = 3,
    name: Name = "lab",
    cluster_cidr: Annotated[str, typer.Option(help="Where the nodes' podCIDRs come from.")] = "10.244.0.0/16",
    service_cluster_ip_range: Annotated[str, typer.Option(help="Where clusterIPs come from.")] = "10.96.0.0/16",
    underlay: Annotated[
        str | None, typer.Option(help="The nodes' own network; chosen free of the host's routes.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds each wait may take.")] = 60.0,
) -> None:
    """Start a cluster on this machine and leave it running."""
    from podwire.lab import build
    from podwire.lab.progress import Progress
    from podwire.lab.state import Folder

    options = build.Options(
        name=name,
        nodes=nodes,
        cluster_cidr=cluster_cidr,
        service_cidr=service_cluster_ip_range,
        underlay=underlay,
        timeout=timeout,
    )
    progress = Progress()
    build.interrupt_once()
    topology = build.up(options, progress)
    kubeconfig = Folder(name).kubeconfig
    which = "" if name == "lab" else f" --name {name}"
    print(f"""
Lab {name} is ready after {progress.seconds:.1f} s. Its kubeconfig is {kubeconfig}

Try next:
  export KUBECONFIG={kubeconfig}
  kubectl get nodes -o wide
  kubectl create deployment web --image=web --port=80 --replicas=3
  kubectl expose deployment web --type=NodePort && kubectl get pods,svc -o wide
  curl {topology.nodes[0].address}:$(kubectl get svc web -o jsonpath='{{.spec.ports[0].nodePort}}')
  podwire node exec{which} node-1 -- iptables -t nat -L KUBE-NODEPORTS -n
  podwire status{which}
  podwire down{which}""")


def down(name: Name = "lab") -> None:
    """Take a lab down: every namespace, interface, rule, process, mount and file that `up` made."""
    from podwire.lab import build

    said = build.down(name)
    for sentence in said:
        print(sentence)
    print(f"lab {name} is down" if said else f"there is no lab {name}: nothing to do")


def status(
    name: Annotated[
        str | None, typer.Option("--name", envvar="PODWIRE_NAME", help="Which lab; all without it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what runs: machines, components, nodes."""
    from podwire.lab import status as lab_status
    from podwire.lab.state import names

    found = [lab_status.of(lab) for lab in ([name] if name else names())]
    if as_json:
        print(json.dumps(found, indent=2))
    elif found:
        print("\n\n".join(lab_status.text(lab) for lab in found))
    else:
        print("no lab is up")
    if any(not lab["healthy"] for lab in found):
        raise typer.Exit(1)


Machine = Annotated[str, typer.Argument(metavar="NODE", help="node-1, …, control-plane; for exec also underlay.")]
ComponentName = Annotated[str, typer.Argument(metavar="COMPONENT", help="cri, kubelet, flanneld, kube-proxy, …")]


def node_exec(
    node: Machine,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="The command and its arguments.")],
    name: Name = "lab",
) -> None:
    """Run a command on a node, with this terminal; its exit status is ours."""
    from podwire.lab import launch, processes
    from podwire.lab.machine import KUBECONFIG, environment
    from podwire.lab.preflight import root
    from podwire.lab.state import Folder
    from podwire.lab.topology import UNDERLAY

    root()
    folder = Folder(name)
    topology = folder.topology()
    machine = UNDERLAY if node == UNDERLAY else topology.machine(node).name
    holder = processes.living_holder(folder, machine)
    inside = environment(topology, machine, "exec")
    inside["KUBECONFIG"] = KUBECONFIG
    inside["TERM"] = os.environ.get("TERM", "dumb")
    sys.stdout.flush()
    argv = command[1:] if command[0] == "--" else command
    raise typer.Exit(launch.run_inside(holder.pid, argv, inside))


def node_stop(node: Machine, component: ComponentName, name: Name = "lab") -> None:
    """Stop one component; it stays stopped until it is started."""
    from podwire.lab import processes
    from podwire.lab.state import Folder

    folder = Folder(name)
    machine = folder.topology().machine(node).name
    with folder.locked():
        found = folder.component(machine, component)
        stopped = processes.stop_component(folder, machine, found)
    print(f"{component} on {machine} {'stopped' if stopped else 'was not running'}")


def node_start(
    node: Machine,
    component: ComponentName,
    more: Annotated[list[str] | None, typer.Argument(metavar="-- FLAGS...", help="More flags, for this start.")] = None,
    name: Name = "lab",
) -> None:
    """Start one component that does not run, as `up` did; a flag given here again takes the place of the first."""
    from podwire.lab import processes
    from podwire.lab.state import Folder

    folder = Folder(name)
    machine = folder.topology().machine(node).name
    with folder.locked():
        found = folder.component(machine, component)
        if found.alive:
            print(f"{component} on {machine} is running already")
            return
        processes.start_components(folder, machine, [found], more or [])
    assert found.process is not None
    print(f"{component} on {machine} started (pid {found.process.pid})")


def node_logs(
    node: Machine,
    component: ComponentName,
    name: Name = "lab",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is written.")] = False,
    tail: Annotated[int, typer.Option(help="Only the last lines; -1 for all.")] = -1,
) -> None:
    """Print what one component has logged."""
    from podwire.lab import logs
    from podwire.lab.state import Folder

    folder = Folder(name)
    machine = folder.topology().machine(node).name
    folder.component(machine, component)
    for line in logs.read(folder.log_path(machine, component), tail=tail, follow=follow):
        print(line, end="", flush=True)
