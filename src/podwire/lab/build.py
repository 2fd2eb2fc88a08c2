"""`podwire up` and `podwire down`: a topology made real, and undone by mark.

Up, in order (each step is one line of progress):

    1  look            root, programs, kernel; the host's routes for a free underlay
    2  folder, lock    from here on a failure, Ctrl-C included, takes everything down again
                       (SIGTERM and SIGHUP are as good as Ctrl-C: the command line sees to that)
    3  machines        underlay, control plane, nodes: a holder each; then the wires
    4  control plane   apiserver → its kubeconfig → controller-manager
    5  nodes           CRI server, `cni install`, kubelet, flanneld, kube-proxy, on all nodes at once
    6  ready           every Node Ready with a podCIDR, subnet.env written, every kube-proxy healthy

Down needs no record: processes are found by the mark in their environment, the host's interface by its alias, the
folder by its name. So it works after a crash at any point, and a second time.
"""

from __future__ import annotations

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from podwire.errors import PodwireError
from podwire.kernel import spawn
from podwire.lab import machine as machines
from podwire.lab import network, preflight, processes, ready
from podwire.lab.state import ROOT, Folder, names
from podwire.lab.topology import UNDERLAY, Topology, check_label, plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ipaddress import IPv4Network

    from podwire.lab.progress import Progress
    from podwire.lab.state import Process
    from podwire.lab.topology import Machine


#: How long a program that is run on a machine while it is made may take.
RUN_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Options:
    """What `podwire up` is told."""

    name: str = "lab"
    nodes: int = 3
    cluster_cidr: str = "10.244.0.0/16"
    service_cidr: str = "10.96.0.0/16"
    underlay: str | None = None
    root: str = ROOT
    timeout: float = 60.0


def up(options: Options, progress: Progress) -> Topology:
    """Build a lab and wait until it is ready; on any failure nothing of it is left."""
    # Wrong input is told before the machine is looked at, so that it is told to everybody.
    _lay_out(options, [])
    preflight.check(options.root)
    _lay_out(options, preflight.host_prefixes())
    folder = Folder(options.name, options.root)
    folder.create()
    # The lock is held until all is undone: a `down` that waits for it must not undo the same things at the same time.
    with folder.locked():
        try:
            topology, underlay = _claim_underlay(options, folder, progress)
            _build(topology, folder, underlay, progress, options.timeout)
        except BaseException as error:
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            progress.note(f"{why}: taking it down again")
            _undo(folder)
            raise
    return topology


def interrupt_once() -> None:
    """Let SIGINT, SIGTERM and SIGHUP interrupt this process once and be ignored from then on.

    The first one has everything undone; whoever is impatient and presses Ctrl-C again must not stop that half-way. Blocking
    them in this thread would not do: Python runs its handlers here for a signal that any other thread has received.
    """
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]  # nohup's stays ignored

    def interrupted(_number: int, _frame: object) -> NoReturn:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupted)


@contextmanager
def _workers() -> Iterator[ThreadPoolExecutor]:
    """Threads to do one thing on several machines; when one fails nothing more is begun, and what was begun is waited for."""
    pool = ThreadPoolExecutor(max_workers=4)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _lay_out(options: Options, taken: list[IPv4Network]) -> Topology:
    return plan(
        options.name,
        options.nodes,
        cluster_cidr=options.cluster_cidr,
        service_cidr=options.service_cidr,
        underlay=options.underlay,
        taken=taken,
    )


def _claim_underlay(options: Options, folder: Folder, progress: Progress) -> tuple[Topology, Process]:
    """Choose the underlay and make it; one lab at a time, because only then do the host's routes show it as taken."""
    with folder.alone():
        topology = _lay_out(options, preflight.host_prefixes())
        loaded, said = preflight.bridge_netfilter()
        folder.write_topology(topology, {"loadedBrNetfilter": loaded})
        if said:
            progress.note(said)
        underlay = processes.start_holder(folder, topology, UNDERLAY, machines.underlay_furnishing())
        network.build_underlay(topology, underlay)
    progress.step(f"underlay {topology.underlay}; this host is {topology.host_address} on {topology.host_link}")
    return topology, underlay


def _build(topology: Topology, folder: Folder, underlay: Process, progress: Progress, timeout: float) -> None:
    with _workers() as pool:
        list(pool.map(lambda machine: _make_machine(topology, folder, machine), topology.machines))
        for machine in topology.machines:
            holder = processes.living_holder(folder, machine.name)
            network.attach(topology, machine, holder, underlay)
        progress.step(f"machines: {', '.join(f'{machine.name} {machine.address}' for machine in topology.machines)}")
        server, manager = machines.control_plane_components(topology)
        processes.start_components(folder, topology.control_plane.name, [server])
        prepared = [pool.submit(_prepare_node, topology, folder, node) for node in topology.nodes]
        ready.api_server(folder, topology, timeout)
        progress.step(f"apiserver answers on https://{topology.control_plane.address}:{machines.API_PORT}")
        processes.start_components(folder, topology.control_plane.name, [manager])
        for future in prepared:
            future.result()
        progress.step("cri started and CNI plugins and conflist installed on every node")
        list(pool.map(lambda node: _start_node(topology, folder, node), topology.nodes))
        progress.step("kubelet, flanneld and kube-proxy started on every node")
    ready.nodes(folder, topology, progress, timeout)


def _make_machine(topology: Topology, folder: Folder, machine: Machine) -> None:
    furnishing = machines.furnishing(topology, machine, folder.machine_path(machine.name))
    processes.start_holder(folder, topology, machine.name, furnishing)


def _prepare_node(topology: Topology, folder: Folder, node: Machine) -> None:
    """The parts of a node that need no API: CRI server, plugins, conflist."""
    cri = next(c for c in machines.node_components(topology, node) if c.name == "cri")
    processes.start_components(folder, node.name, [cri])
    run_on(folder, node.name, machines.cni_install(), machines.environment(topology, node.name, "cni-install"))


def _start_node(topology: Topology, folder: Folder, node: Machine) -> None:
    holder = processes.living_holder(folder, node.name)
    ready.put_kubeconfig(folder, holder)
    components = [c for c in machines.node_components(topology, node) if c.name != "cri"]
    processes.start_components(folder, node.name, components)


def run_on(folder: Folder, machine: str, argv: list[str], env: dict[str, str]) -> str:
    """Run a program on a machine to its end; its output. Raises PodwireError when it fails."""
    holder = processes.living_holder(folder, machine)
    # nsenter is setns(2) and a fork, in a program that every Debian has.
    entered = ["nsenter", f"--target={holder.pid}", "--mount", "--uts", "--net", "--pid", "--wd=/", "--", *argv]
    try:
        done = subprocess.run(
            entered, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False, timeout=RUN_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        late = f"it had not ended after {RUN_SECONDS} s"
        raise PodwireError(f"running on {machine}", " ".join(argv[-6:]), late) from error
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        said = output.strip().splitlines()
        raise PodwireError(
            f"running on {machine}", " ".join(argv[-6:]), f"exit status {done.returncode}: {said[-1] if said else ''}"
        )
    return output


def down(name: str, root: str = ROOT) -> list[str]:
    """Take a lab down, whatever state it is in; a sentence for each thing that was there."""
    check_label("lab name", name)
    preflight.root()
    folder = Folder(name, root)
    if not folder.exists:
        return _undo(folder)
    with folder.locked():
        return _undo(folder)


def _undo(folder: Folder) -> list[str]:
    said = []
    loaded = folder.read_record().get("host", {}).get("loadedBrNetfilter", False)
    ended = processes.end_all(folder.name)
    if ended:
        said.append(f"ended {len(ended)} processes")
    links = network.remove_host_links(folder.name)
    said += [f"deleted the interface {link}" for link in links]
    if folder.exists:
        folder.remove()
        said.append(f"deleted {folder.path}")
    if loaded:
        _give_back_br_netfilter(folder)
    return said


def _give_back_br_netfilter(folder: Folder) -> None:
    """Unload the module that this lab's `up` loaded; the duty passes on while there is another lab."""
    for name in names(folder.root):
        other = Folder(name, folder.root)
        if record := other.read_record():
            other.write_record({**record, "host": {**record["host"], "loadedBrNetfilter": True}})
            return
    # The module counts no users: that somebody (Docker, say) has come to need it meanwhile shows only in the settings,
    # which `up` had put to 0.
    if preflight.bridge_netfilter_is_idle():
        spawn.run(["modprobe", "-r", "br_netfilter"])
