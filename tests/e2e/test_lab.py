"""A lab comes and goes, and the host is as it was, whatever happened in between."""

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import host
import pytest
import steps
from labs import Lab, podwire
from walk import Walk

from podwire.testing.netns import require

pytestmark = pytest.mark.e2e


@pytest.fixture
def before():
    require("root", "kubectl", "iptables", "vxlan", "bridge-device")
    return host.picture()


def assert_nothing_is_left(before):
    # Names of a lab that another test holds are in both pictures; what this test made must not be in the second.
    assert host.difference(before, host.picture()) == {}


def test_down_leaves_the_host_as_it_was_and_can_be_run_twice(before):
    lab = Lab("t-clean")
    done = lab.podwire("up", "--nodes", "2")
    assert re.search(r"^ *\d+\.\d\d s  underlay", done.stderr, re.MULTILINE)
    assert lab.kubeconfig in done.stdout
    lab.kubectl("create", "deployment", "web", "--image=web", "--port=80", "--replicas=3")
    lab.kubectl("expose", "deployment", "web", "--type=NodePort")
    lab.kubectl("rollout", "status", "deployment", "web", "--timeout=30s")
    assert "lab t-clean is down" in lab.podwire("down").stdout
    assert_nothing_is_left(before)
    assert "nothing to do" in lab.podwire("down").stdout
    assert_nothing_is_left(before)


@pytest.mark.parametrize("component", ["holder", "apiserver", "cri", "underlay"])
def test_down_leaves_nothing_after_a_part_was_killed(before, component):
    lab = Lab("t-crash")
    lab.podwire("up", "--nodes", "1")
    lab.kubectl("run", "one", "--image=web", "--port=80")
    lab.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=20s")
    if component == "underlay":
        os.kill(lab.status()["underlayHolder"]["pid"], signal.SIGKILL)
    elif component == "holder":
        machine = next(machine for machine in lab.status()["machines"] if machine["name"] == "node-1")
        os.kill(machine["holder"]["pid"], signal.SIGKILL)
    else:
        os.kill(lab.pid("control-plane" if component == "apiserver" else "node-1", component), signal.SIGKILL)
    status = lab.podwire("status", check=False)
    assert status.returncode == 1
    assert "NOT healthy" in status.stdout
    lab.podwire("down")
    assert_nothing_is_left(before)


@pytest.mark.parametrize("seconds", [0.3, 0.8, 1.5, 2.5])
def test_an_up_that_is_killed_half_way_is_cleaned_up_by_down(before, seconds):
    lab = Lab("t-half")
    up = subprocess.Popen(
        [sys.executable, "-P", "-m", "podwire", "up", "--name", lab.name, "--nodes", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(seconds)
    up.kill()
    up.wait()
    lab.podwire("down")
    assert_nothing_is_left(before)


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_an_up_that_is_interrupted_takes_itself_down(before, signals):
    lab = Lab("t-stopped")
    up = subprocess.Popen(
        [sys.executable, "-P", "-m", "podwire", "up", "--name", lab.name],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    time.sleep(1.2)
    for number in signals:
        up.send_signal(number)
        time.sleep(0.05)
    said = up.communicate(timeout=30)[0]
    # -SIGINT: the second one was heard only while the interpreter was about to exit.
    assert up.returncode in (130, -signal.SIGINT)
    assert "interrupted: taking it down again" in said
    assert_nothing_is_left(before)


def test_two_labs_that_are_started_at_the_same_moment_get_underlays_of_their_own(before):
    labs = [Lab("t-left"), Lab("t-right")]
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda lab: lab.podwire("up", "--nodes", "1"), labs))
        assert len({lab.status()["underlay"] for lab in labs}) == 2
    finally:
        for lab in labs:
            lab.podwire("down")
    assert_nothing_is_left(before)


def test_two_labs_run_side_by_side(before):
    one, two = Lab("t-one"), Lab("t-two")
    try:
        one.podwire("up", "--nodes", "1")
        two.podwire("up", "--nodes", "1")
        assert one.status()["underlay"] != two.status()["underlay"]
        for lab in (one, two):
            lab.kubectl("run", "web", "--image=web", "--port=80")
            lab.kubectl("expose", "pod", "web", "--type=NodePort", "--port=80")
            lab.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=20s")
            port = lab.kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
            address = next(m["address"] for m in lab.status()["machines"] if m["name"] == "node-1")
            steps_walk = Walk(lab.name, lab.kubeconfig, quiet=True)
            url = f"http://{address}:{port}/"
            steps_walk.wait(
                url, lambda w=steps_walk, u=url: "web" in w.value(f"curl -sS --max-time 2 {u}", status=None)
            )
        one.podwire("down")
        assert two.status()["healthy"]
    finally:
        one.podwire("down")
        two.podwire("down")
    assert_nothing_is_left(before)


def test_a_node_that_registers_again_gets_a_pod_cidr_of_the_new_range(before):
    lab = Lab("t-cidr")
    lab.podwire("up", "--nodes", "1")
    try:
        steps.new_cidr_after_reregistration(Walk(lab.name, lab.kubeconfig, quiet=True))
    finally:
        lab.podwire("down")
    assert_nothing_is_left(before)


def test_a_component_that_was_stopped_stays_stopped_until_it_is_started(lab):
    assert "stopped" in lab.podwire("node", "stop", "node-2", "kube-proxy").stdout
    time.sleep(2)
    assert lab.pid("node-2", "kube-proxy") is None
    assert "was not running" in lab.podwire("node", "stop", "node-2", "kube-proxy").stdout
    assert "started" in lab.podwire("node", "start", "node-2", "kube-proxy").stdout
    assert "running already" in lab.podwire("node", "start", "node-2", "kube-proxy").stdout
    assert lab.pid("node-2", "kube-proxy") is not None


def test_a_commands_exit_status_on_a_node_is_ours(lab):
    assert lab.podwire("node", "exec", "node-1", "--", "sh", "-c", "exit 7", check=False).returncode == 7
    assert lab.on("node-1", "iptables-save").startswith("# Generated by")


def test_a_resting_lab_is_small(lab):
    """Under 600 MiB of resident memory in all and 5 % of a core, after it has settled."""
    from podwire.kernel import owner

    marked = [process.pid for process in owner.marked_processes(lab.name)]

    def ticks():
        total = 0
        for pid in marked:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            total += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
        return total

    def resident(pid):
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("VmRSS:")), 0)

    assert sum(map(resident, marked)) < 600 * 1024
    began, first = time.monotonic(), ticks()
    time.sleep(20)
    share = (ticks() - first) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
    assert share < 0.05


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["up", "--name", "Bad_Name"], 2, "no DNS label"),
        (["up", "--cluster-cidr", "10.244.0.0/99"], 2, "--cluster-cidr 10.244.0.0/99"),
        (["up", "--nodes", "0"], 2, "1 to 100 nodes"),
        (["node", "exec", "--name", "nowhere", "node-1", "--", "true"], 2, "there is no lab nowhere"),
        (["status", "--name", "nowhere"], 2, "there is no lab nowhere"),
        (["kubelet", "--kubeconfig", "/nonexistent", "--node-ip", "127.0.0.1"], 2, "/nonexistent"),
        (["kubelet"], 2, "required: --node-ip"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, status, said):
    done = podwire(*arguments, check=False)
    assert done.returncode == status
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_nobody_but_root_can_make_a_lab():
    require("root")
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-P", "-m", "podwire", "up"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    if "Permission denied" in done.stderr and "podwire must" not in done.stderr:
        pytest.skip("this Python is in a folder that only root can read")
    assert "must be run as root" in done.stderr


def test_nobody_but_root_is_told_of_a_lab(lab):
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", sys.executable, "-P", "-m", "podwire", "status", f"--name={lab.name}"],
        capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    if "Permission denied" in done.stderr and "podwire must" not in done.stderr:
        pytest.skip("this Python is in a folder that only root can read")
    assert done.stderr == "podwire: podwire must be run as root for this (sudo podwire …)\n"
