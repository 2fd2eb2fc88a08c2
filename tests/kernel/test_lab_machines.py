"""A machine's namespaces, files and wires on the real kernel, without any daemon."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from podwire.errors import PodwireError, UsageError
from podwire.kernel import owner
from podwire.lab import build, machine, network, preflight, processes
from podwire.lab.state import Component, Folder
from podwire.lab.topology import UNDERLAY, plan
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel
NAME = "t-machines"
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


@pytest.fixture(scope="module")
def lab():
    require("root")
    build.down(NAME)
    preflight.check("/run/podwire/lab")
    topology = plan(NAME, 2, taken=preflight.host_prefixes())
    folder = Folder(NAME)
    folder.create()
    try:
        folder.write_topology(topology, {})
        underlay = processes.start_holder(folder, topology, UNDERLAY, machine.underlay_furnishing())
        network.build_underlay(topology, underlay)
        for member in topology.machines:
            furnishing = machine.furnishing(topology, member, folder.machine_path(member.name))
            holder = processes.start_holder(folder, topology, member.name, furnishing)
            network.attach(topology, member, holder, underlay)
        yield folder, topology
    finally:
        build.down(NAME)


def on(lab, name, *argv):
    return build.run_on(lab[0], name, list(argv), ENV)


def test_a_machine_sees_only_its_own_processes_and_name(lab):
    assert on(lab, "node-1", "hostname") == "node-1\n"
    pids = [entry for entry in on(lab, "node-1", "ls", "/proc").split() if entry.isdigit()]
    assert len(pids) == 2  # the holder and ls


def test_a_file_written_below_etc_stays_on_that_machine(lab):
    on(lab, "node-1", "sh", "-c", "echo here >/etc/podwire-test-file")
    assert on(lab, "node-1", "cat", "/etc/podwire-test-file") == "here\n"
    assert not os.path.exists("/etc/podwire-test-file")
    with pytest.raises(PodwireError, match="No such file"):
        on(lab, "node-2", "cat", "/etc/podwire-test-file")
    with open(lab[0].upper("node-1", "/etc/podwire-test-file"), encoding="ascii") as file:
        assert file.read() == "here\n"


def test_no_cni_configuration_of_the_host_is_seen_on_a_machine(lab):
    assert on(lab, "node-1", "sh", "-c", "ls -A /etc/cni /var/lib/cni /etc/kubernetes | grep -v :; true").split() == []


def test_bridged_packets_are_shown_to_iptables_on_nodes_and_not_on_the_underlay(lab):
    assert on(lab, "node-1", "cat", "/proc/sys/net/bridge/bridge-nf-call-iptables") == "1\n"
    assert on(lab, UNDERLAY, "cat", "/proc/sys/net/bridge/bridge-nf-call-iptables") == "0\n"


def test_machines_reach_each_other_and_nothing_outside(lab):
    code = (
        "import socket, sys\n"
        "s = socket.socket(); s.settimeout(2)\n"
        "try: s.connect((sys.argv[1], 9))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    assert on(lab, "node-1", "python3", "-c", code, str(lab[1].nodes[1].address)) == "Connection refused\n"
    assert on(lab, "node-1", "python3", "-c", code, "198.51.100.1") == "No route to host\n"


def test_the_host_has_one_marked_interface_and_no_route_but_its_prefix(lab):
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    marked = [line for line in links.splitlines() if f"podwire:lab:{NAME}" in line or "pw-t-machines" in line]
    assert len(marked) == 1
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    ours = [line for line in routes.splitlines() if "pw-t-machines" in line]
    assert len(ours) == 1
    assert ours[0].startswith(str(lab[1].underlay))


def test_a_second_lab_of_the_same_name_is_refused_in_one_line(lab):
    with pytest.raises(UsageError, match=f"lab {NAME} exists already"):
        build.up(build.Options(name=NAME, nodes=1), progress=None)


def test_killing_the_holder_ends_everything_on_the_machine(lab):
    folder, topology = lab
    furnishing = machine.underlay_furnishing()
    holder = processes.start_holder(folder, topology, "extra", furnishing)
    child = subprocess.Popen(
        ["nsenter", f"--target={holder.pid}", "--pid", "--net", "--mount", "--", "sleep", "1000"],
        env={**ENV, owner.ENV_LAB: NAME},
    )
    try:
        with open(f"/proc/{holder.pid}/task/{holder.pid}/children", encoding="ascii") as file:
            file.read()
        os.kill(holder.pid, signal.SIGKILL)
        assert child.wait(timeout=10) != 0
        assert not holder.alive
    finally:
        child.kill()
        child.wait()


def test_starting_something_on_a_machine_that_dies_meanwhile_is_an_error_and_no_wait(lab):
    folder, topology = lab
    for attempt in range(5):
        name = f"dying-{attempt}"
        holder = processes.start_holder(folder, topology, name, machine.underlay_furnishing())
        components = [Component(f"c{number}", ["sleep", "100"], dict(ENV)) for number in range(40)]
        with ThreadPoolExecutor() as pool:
            started = pool.submit(processes.start_components, folder, name, components)
            time.sleep(0.02 + attempt * 0.01)
            os.kill(holder.pid, signal.SIGKILL)
            error = started.exception(timeout=20)
        assert error is None or isinstance(error, PodwireError)
