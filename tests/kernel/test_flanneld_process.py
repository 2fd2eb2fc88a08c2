"""`podwire flanneld` as a process, against the embedded API: flags, waiting, healing by itself, SIGTERM, restart, memory."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from flanneld_lab import VXLAN, Lab, reaches

from podwire.errors import PodwireError
from podwire.kube.client import Client
from podwire.kube.kinds import NODES
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

API = "192.168.50.1"


def wait(what: str, check, timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.05)


class Daemon:
    """A podwire process in a namespace; its log is a file."""

    def __init__(self, ns, log: str, *arguments: str, **environ: str) -> None:
        self.log = log
        self._file = open(log, "w")  # noqa: SIM115 - closed by end
        self.process = ns.popen(
            sys.executable, "-m", "podwire", *arguments, stderr=self._file, env={**os.environ, **environ}
        )

    def said(self) -> str:
        with open(self.log) as file:
            return file.read()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal; exit status and how long it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self._file.close()
        return status, time.monotonic() - began


class World(Lab):
    """The lab, with an API server on the underlay and a flanneld process for each node that is started."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, 2)
        with self.bridge_ns.rtnl() as bridge:
            bridge.add_address(bridge.link("br0").index, f"{API}/24")
        self.kubeconfig = f"{folder}/kubeconfig"
        self.net_conf = f"{folder}/net-conf.json"
        with open(self.net_conf, "w") as file:
            json.dump(VXLAN, file)
        self.daemons: list[Daemon] = []
        self.start_api()
        self.client = Client.from_kubeconfig(self.kubeconfig)

    def start_api(self) -> None:
        arguments = ("--data-dir", f"{self.folder}/api", "--bind-address", API, "--kubeconfig-out", self.kubeconfig)
        self.api = Daemon(self.bridge_ns, f"{self.folder}/apiserver.log", "apiserver", *arguments)
        wait("the API server listens", lambda: os.path.exists(self.kubeconfig) and self._answers())

    def _answers(self) -> bool:
        try:
            client = Client.from_kubeconfig(self.kubeconfig)
            self.bridge_ns.call(lambda: client.list(NODES))
        except PodwireError:
            return False
        client.close()
        return True

    def api_call(self, function):
        return self.bridge_ns.call(lambda: function(self.client))

    def register(self, node, pod_cidr: str | None = None) -> None:
        spec = {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]} if pod_cidr else {}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}, "spec": spec}
        self.api_call(lambda client: client.create(NODES, body))

    def node(self, node):
        return self.api_call(lambda client: client.get(NODES, node.name))

    def flanneld(self, node, *arguments: str) -> Daemon:
        daemon = Daemon(
            node.ns,
            f"{self.folder}/{node.name}.{len(self.daemons)}.log",
            "flanneld",
            "--kube-subnet-mgr",
            f"--kubeconfig-file={self.kubeconfig}",
            "--iface=eth0",
            f"--public-ip={node.address}",
            f"--net-config-path={self.net_conf}",
            f"--subnet-file={node.subnet_file}",
            *arguments,
            NODE_NAME=node.name,
        )
        self.daemons.append(daemon)
        return daemon

    def close(self) -> None:
        for daemon in [*self.daemons, self.api]:
            if daemon.process.poll() is None:
                daemon.end()
        self.client.close()
        super().close()


@pytest.fixture
def world(tmp_path):
    require("root", "vxlan", "veth", "bridge-device", "iptables", "ip", "bridge")
    made = World(str(tmp_path))
    yield made
    made.close()


@pytest.fixture
def running(world):
    daemons = [world.flanneld(node) for node in world.nodes]
    for node in world.nodes:
        world.register(node, node.subnet)
    one, two = world.nodes
    wait("a pod of n1 reaches one of n2", lambda: "flannel.1" in two.run("ip route") and reaches(one.pod, two.pod_ip))
    return world, daemons


def test_from_nothing_to_a_network_and_a_repair_without_being_asked(running):
    world, daemons = running
    one, two = world.nodes
    wait("the node says it is connected", lambda: conditions(world, one) == {("False", "FlannelIsUp")})
    assert world.node(one).metadata.annotations["flannel.alpha.coreos.com/public-ip"] == one.address
    assert "FLANNEL_SUBNET=10.244.0.1/24\n" in one.subnet_env()
    assert '-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD' in one.run("iptables -S")
    began = time.monotonic()
    one.run("ip route del 10.244.1.0/24")
    wait("the route is back", lambda: "10.244.1.0/24 via 10.244.1.0" in one.run("ip route"))
    assert time.monotonic() - began < 3, "the kernel told it; it did not wait for the next look"
    one.run("ip link del flannel.1")
    wait("the device is back", lambda: "10.244.1.0/24 via 10.244.1.0" in one.run("ip route"))
    wait("and it works", lambda: reaches(one.pod, two.pod_ip))
    assert "WARNING flanneld repaired" in daemons[0].said()


def conditions(world, node) -> set[tuple[str, str]]:
    found = world.node(node).status.conditions
    return {(one.status, one.reason) for one in found if one.type == "NetworkUnavailable"}


def test_a_node_that_is_deleted_is_forgotten_at_once(running):
    world, _ = running
    one = world.nodes[0]
    world.api_call(lambda client: client.delete(NODES, "n2"))
    for trace, look in (
        ("10.244.1.0/24", "ip route"),
        ("10.244.1.0 ", "ip neigh show dev flannel.1"),
        (" dst ", "bridge fdb show dev flannel.1"),
    ):
        wait(f"no {trace} in {look}", lambda: trace not in one.run(look), 5)  # noqa: B023 - called at once


def test_sigterm_leaves_everything_and_a_restart_changes_nothing(running):
    world, daemons = running
    one, two = world.nodes
    looks = ("ip -o link show flannel.1", "ip route", "ip -o addr show dev flannel.1", "bridge fdb show dev flannel.1")
    before = [one.run(look) for look in (*looks, "iptables-save -t filter")]
    status, seconds = daemons[0].end()
    assert status == 0
    assert seconds < 2
    assert [one.run(look) for look in looks] == before[:-1]
    assert reaches(one.pod, two.pod_ip)
    again = world.flanneld(one)
    wait("it is ready", lambda: "flannel is ready" in again.said())
    assert [one.run(look) for look in looks] == before[:-1]
    for word in ("step=", "published", "wrote"):
        assert word not in again.said()


def test_a_killed_daemon_and_a_lost_api_break_no_traffic(running):
    world, daemons = running
    one, two = world.nodes
    daemons[0].end(signal.SIGKILL)
    world.api.end(signal.SIGKILL)
    assert reaches(one.pod, two.pod_ip)
    two.run("ip link del flannel.1")
    wait("the other repairs without an API", lambda: reaches(one.pod, two.pod_ip))
    world.start_api()
    world.api_call(lambda client: client.delete(NODES, "n1"))
    wait("it follows again", lambda: "flannel.1" not in two.run("ip route"), 30)


def test_it_waits_for_the_pod_cidr_and_says_so(world):
    one = world.nodes[0]
    daemon = world.flanneld(one, "--healthz-ip=127.0.0.1", "--healthz-port=10999")
    wait("it has seen no Node", lambda: 'node "n1" not found' in daemon.said())
    world.register(one)
    wait("it has seen no podCIDR", lambda: 'node "n1" pod cidr not assigned' in daemon.said())
    assert not os.path.exists(one.subnet_file)
    assert ask(one, "/healthz") == (200, "flanneld is running")
    assert ask(one, "/readyz") == (503, "flanneld is not ready yet")
    patch = {"spec": {"podCIDR": one.subnet, "podCIDRs": [one.subnet]}}
    world.api_call(lambda client: client.patch(NODES, "n1", patch))
    wait("subnet.env is there", lambda: os.path.exists(one.subnet_file), 3)
    wait("it is ready", lambda: ask(one, "/readyz") == (200, "flanneld is ready"), 3)


def ask(node, path: str) -> tuple[int, str]:
    def get() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", 10999, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    return node.ns.call(get)


def test_what_is_wrong_from_the_start_is_one_line_and_a_status(world):
    one = world.nodes[0]
    for arguments, status, line in (
        (
            ["--iface=eth7"],
            2,
            "podwire: finding the interface eth7: none fits (there are: lo (), eth0 (192.168.50.11 fd50::11 ",
        ),
        (
            ["--public-ip=nonsense", "--iface=eth0"],
            2,
            "podwire: flag --public-ip: 'nonsense' does not appear to be an IPv4",
        ),
        (["--net-config-path=/nowhere"], 2, "podwire: reading the network configuration /nowhere: No such file"),
        (["--etcd-endpoints=x"], 2, "podwire: flag --etcd-endpoints: is not supported"),
        (["--kubeconfig-file=/nowhere"], 2, "podwire: reading kubeconfig /nowhere: "),
    ):
        usual = ["--kube-subnet-mgr", f"--kubeconfig-file={world.kubeconfig}", f"--net-config-path={world.net_conf}"]
        command = [sys.executable, "-m", "podwire", "flanneld", *usual, *arguments]
        done = one.ns.run(*command, env={**os.environ, "NODE_NAME": "n1"}, check=False)
        assert done.returncode == status, done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith(line), last


def test_at_rest_it_is_small_and_asleep(running):
    _, daemons = running
    time.sleep(1)

    def cpu() -> int:
        with open(f"/proc/{daemons[0].process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))  # utime, stime and those of ended children, in clock ticks

    with open(f"/proc/{daemons[0].process.pid}/status") as file:
        rss = int(next(line for line in file if line.startswith("VmRSS")).split()[1]) / 1024
    before = cpu()
    time.sleep(6)
    used = (cpu() - before) / os.sysconf("SC_CLK_TCK") / 6
    print(f"RSS {rss:.1f} MiB, {used:.2%} of a core")
    assert rss <= 37
    assert used < 0.02
