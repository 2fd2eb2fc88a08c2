"""The table "CNI": podwire's plugins against the distribution's (containernetworking-plugins), on a node made for it.

The reference has no flannel plugin there, so it is bridge, given the configuration that flannel generates, and host-local: two
processes. podwire runs its whole chain, flannel, bridge and host-local, alone and with the resident helper. All take turns,
each an ADD and then a DEL, so that whatever else the machine does falls on all of them.

Wall time is from the start of the plugin's process to its end. CPU time is that of the process and its children; with the helper,
also what the helper's processes and their children used until 30 ms after the answer, from the cpu.stat of a cgroup made for
it. Medians; on a machine that does other things too, compare the minima.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.table import Table

from podwire.cni import stub
from podwire.cni.install import install
from podwire.cni.runtime import Attachment, Runtime
from podwire.cni.spec import conf as confs
from podwire.errors import MissingCapability
from podwire.kernel.namespaces import CLONE_NEWNET, CLONE_NEWNS, setns
from podwire.testing.netns import REFERENCE_CNI, Netns, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TURNS, MASQUERADED, AT_ONCE, BURSTS = 40, 15, 16, 5
BIN = "/opt/cni/bin"
SOCKET = f"{stub.FOLDER}/{stub.SOCKET}"
LEASE = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
DELEGATE = {"hairpinMode": True, "isDefaultGateway": True}
AFTERWARDS = 0.03  # seconds that the helper is watched behind its answer
# Aims against bridge + host-local, wall and CPU.
AIMS = {
    ("ADD", "helper"): 1.0, ("ADD", "alone"): 2.2, ("DEL", "helper"): 1.0, ("DEL", "alone"): 1.6,
    ("ADD ipMasq", "helper"): 0.5, ("DEL ipMasq", "helper"): 0.5,
}  # fmt: skip


class Sample:
    """Times of one kind of call, in milliseconds."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []


class Chain:
    """One way of attaching: a plugin's executable and its configuration.

    `used` gives the CPU seconds of the helper, and None hides the helper's socket from the plugin.
    """

    def __init__(self, path: str, conf: dict[str, object], used: Callable[[], float] | None = None) -> None:
        self.path = path
        self.text = json.dumps({"cniVersion": "1.0.0", "name": f"bench-{conf['bridge']}", **conf}).encode()
        self.used = used

    def start(self, command: str, name: str, netns: str) -> tuple[int, int]:
        """(process, descriptor of its output)."""
        env = {
            "CNI_COMMAND": command, "CNI_CONTAINERID": name, "CNI_NETNS": netns, "CNI_IFNAME": "eth0",
            "CNI_PATH": os.path.dirname(self.path), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }  # fmt: skip
        stdin, feed = os.pipe2(os.O_CLOEXEC)
        output, stdout = os.pipe2(os.O_CLOEXEC)
        os.write(feed, self.text)
        os.close(feed)
        streams = [(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, stdout, 1)]
        pid = os.posix_spawn(self.path, [self.path], env, file_actions=streams)
        os.close(stdin)
        os.close(stdout)
        return pid, output

    def call(self, command: str, name: str, netns: str, sample: Sample) -> None:
        """One call, measured."""
        before = self.used() if self.used else 0.0
        with self.surroundings():
            began = time.perf_counter()
            pid, output = self.start(command, name, netns)
            _, status, usage = os.wait4(pid, 0)
            sample.wall.append((time.perf_counter() - began) * 1e3)
        printed = os.read(output, 1 << 16)
        os.close(output)
        if status:
            raise SystemExit(f"bench: {self.path} {command}: {printed.decode()}")
        time.sleep(AFTERWARDS)
        helped = self.used() - before if self.used else 0.0
        sample.cpu.append((usage.ru_utime + usage.ru_stime + helped) * 1e3)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """The helper's socket is at its place, or out of sight."""
        if self.used:
            yield
            return
        os.rename(SOCKET, f"{SOCKET}.hidden")
        try:
            yield
        finally:
            os.rename(f"{SOCKET}.hidden", SOCKET)

    def many(self, command: str, pods: list[Netns]) -> float:
        """Seconds for one call a pod, all started at once."""
        began = time.perf_counter()
        started = [self.start(command, f"many{number}", pod.path) for number, pod in enumerate(pods)]
        for pid, output in started:
            if os.waitpid(pid, 0)[1]:
                raise SystemExit(f"bench: {self.path} {command}: {os.read(output, 1 << 16).decode()}")
            os.close(output)
        return time.perf_counter() - began


def turns(chains: dict[str, Chain], count: int) -> dict[tuple[str, str], Sample]:
    """(verb, chain) → times; two more turns are made first, to warm up."""
    found = {(verb, name): Sample() for verb in ("ADD", "DEL") for name in chains}
    for turn in range(-2, count):
        for name, chain in chains.items():
            pod = Netns.new()
            for verb in ("ADD", "DEL"):
                chain.call(verb, f"pod{turn}", pod.path, found[verb, name] if turn >= 0 else Sample())
            pod.close()
    return found


def bursts(chains: dict[str, Chain]) -> dict[str, float]:
    """ADDs a second with many at once: the median of several bursts, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in chains}
    for _ in range(BURSTS):
        for name, chain in chains.items():
            pods = [Netns.new() for _ in range(AT_ONCE)]
            with chain.surroundings():
                rates[name].append(AT_ONCE / chain.many("ADD", pods))
                chain.many("DEL", pods)
            for pod in pods:
                pod.close()
    return {name: statistics.median(found) for name, found in rates.items()}


def in_process(count: int) -> tuple[Sample, Sample]:
    """ADD and DEL inside a runtime that is running, as podwire's CRI server calls it, with its cache of results."""
    plugin = {"type": "flannel", "delegate": {**DELEGATE, "bridge": "cri0", "ipMasq": False}}
    text = json.dumps({"name": "bench-cri", "cniVersion": "1.0.0", "plugins": [plugin]})
    network = confs.parse_list(text.encode(), "bench")
    runtime = Runtime([BIN], lasting=True)
    add, delete = Sample(), Sample()
    for turn in range(-2, count):
        pod = Netns.new()
        one = Attachment(f"cri{turn}", pod.path)
        for sample, work in ((add, runtime.add), (delete, runtime.delete)):
            began, spent = time.perf_counter(), time.process_time()
            work(network, one)
            wall = time.perf_counter() - began
            time.sleep(AFTERWARDS)
            if turn >= 0:
                sample.wall.append(wall * 1e3)
                sample.cpu.append((time.process_time() - spent) * 1e3)
        pod.close()
    return add, delete


class Group:
    """A cgroup (version 2), for its exact count of the CPU time of everything in it, children that have ended included."""

    def __init__(self) -> None:
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
        if not mounts:
            raise MissingCapability("measuring the helper", answer="no cgroup2 is mounted", hint="mount one")
        self.path = f"{mounts[0]}/podwire-bench-{os.getpid()}"
        os.mkdir(self.path)

    def enter(self) -> None:
        """Move this process in."""
        with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as file:
            file.write("0")

    def used(self) -> float:
        """Seconds of CPU."""
        with open(f"{self.path}/cpu.stat", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("usage_usec")) / 1e6


@contextlib.contextmanager
def helper() -> Iterator[Callable[[], float]]:
    """The resident helper, running; gives the CPU time used by it."""
    group = Group()
    argv = [sys.executable, "-P", "-m", "podwire", "cni", "helper"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, preexec_fn=group.enter)  # noqa: PLW1509 - no threads yet
    assert process.stderr is not None
    ready = process.stderr.readline()
    if b"ready" not in ready:
        raise SystemExit(f"bench: {ready.decode()}")
    drain = threading.Thread(target=process.stderr.read, daemon=True)
    drain.start()
    try:
        yield group.used
    finally:
        process.terminate()
        process.wait()
        drain.join()
        process.stderr.close()
        os.rmdir(group.path)


class Measured:
    """Everything that the table shows."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], Sample] = {}
        self.rates: dict[str, float] = {}
        self.inside: tuple[Sample, Sample] = (Sample(), Sample())


def measure() -> Measured:
    """Measure on a node made for it; moves this process there for good."""
    if not os.path.exists(f"{REFERENCE_CNI}/bridge"):
        raise MissingCapability(
            "measuring CNI", answer="no reference plugins", hint="apt-get install containernetworking-plugins"
        )
    found = Measured()
    with Node() as node:
        for kind, clone in (("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS)):
            setns(os.open(f"/proc/{node.pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC), clone)
        os.makedirs("/run/flannel")
        with open("/run/flannel/subnet.env", "w", encoding="ascii") as file:
            file.write(LEASE)
        install(BIN)
        for label, masquerade in (("", False), (" ipMasq", True)):
            _measure_chains(found, label, masquerade=masquerade)
        found.inside = in_process(TURNS)
    return found


def _measure_chains(found: Measured, label: str, *, masquerade: bool) -> None:
    own: dict[str, object] = {
        "type": "flannel",
        "delegate": {**DELEGATE, "ipMasq": masquerade, "bridge": "own0"},
        "bridge": "own0",
    }
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}]}
    theirs: dict[str, object] = {
        "type": "bridge",
        "mtu": 1450,
        "isGateway": True,
        "ipMasq": masquerade,
        "ipam": ipam,
        **DELEGATE,
    }
    with helper() as used:
        chains = {
            "reference": Chain(f"{REFERENCE_CNI}/bridge", {**theirs, "bridge": "ref0"}),
            "helper": Chain(f"{BIN}/flannel", own, used),
            "alone": Chain(f"{BIN}/flannel", own),
        }
        samples = turns(chains, MASQUERADED if masquerade else TURNS)
        found.calls |= {(verb + label, name): sample for (verb, name), sample in samples.items()}
        if not masquerade:
            found.rates |= bursts(chains)


def table(found: Measured) -> Table:
    """The figures, with the ratios to the reference and the aims beside them."""
    shown = Table(title="CNI: milliseconds, median (minimum)")
    for column in ("", "by", "wall", "CPU", "wall ratio", "CPU ratio", "aim"):
        shown.add_column(column, justify="left" if column in ("", "by") else "right")
    for (verb, name), sample in found.calls.items():
        base = found.calls[verb, "reference"]
        aim = AIMS.get((verb, name))
        ratios = [
            f"{statistics.median(mine) / statistics.median(theirs):.2f} ({min(mine) / min(theirs):.2f})"
            for mine, theirs in ((sample.wall, base.wall), (sample.cpu, base.cpu))
        ]
        shown.add_row(
            verb, name, figure(sample.wall), figure(sample.cpu), *(ratios if name != "reference" else ("", "")),
            f"≤ {aim}" if aim else "",
        )  # fmt: skip
    for name, rate in found.rates.items():
        ratio = "" if name == "reference" else f"{rate / found.rates['reference']:.2f}"
        wanted = "≥ 1.0" if name == "helper" else ""
        shown.add_row(f"{AT_ONCE} at once, ADD/s", name, f"{rate:.0f}", "", ratio, "", wanted)
    for verb, sample in zip(("ADD", "DEL"), found.inside, strict=True):
        shown.add_row(
            f"{verb} in podwire's CRI", "", figure(sample.wall), figure(sample.cpu), "", "", "≤ 3 ms" * (verb == "ADD")
        )
    return shown


def figure(values: list[float]) -> str:
    """Median and minimum."""
    return f"{statistics.median(values):.1f} ({min(values):.1f})"


def main() -> list[Table]:
    """Measure in a process of its own, since measuring moves it to another network and mount namespace."""
    return [table(measure())]
