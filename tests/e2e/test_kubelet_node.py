"""The Node and its Lease, and what happens when kubelet, runtime or API go away and come back."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest
from control_plane import until
from kubelet_rig import NODE, NODE_IP, Rig, cri_rig, host, running, shell, web

from podwire.kube.kinds import LEASES, NODES, PODS
from podwire.kubelet import node
from podwire.testing.netns import require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture
def rig(tmp_path: object) -> Iterator[Rig]:
    require("root", "bridge-device", "veth", "nsenter", "unshare", "curl")
    with running(tmp_path) as made:
        made.node_ready()
        yield made


@pytest.fixture
def unwired(tmp_path: object) -> Iterator[Rig]:
    require("root", "bridge-device", "veth", "nsenter", "unshare")
    with running(tmp_path, wired=False) as made:
        yield made


def test_a_node_registers_is_not_ready_with_the_runtimes_reason_and_becomes_ready_at_once(unwired: Rig) -> None:
    until(lambda: unwired.condition() is not None, what="the node")
    ready = unwired.condition()
    assert (ready.status, ready.reason) == ("False", "KubeletNotReady")
    assert ready.message == (
        "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady "
        "message:Network plugin returns error: cni plugin not initialized"
    )
    found = unwired.client.get_raw(NODES, NODE)
    assert found["status"]["nodeInfo"]["kubeletVersion"] == node.KUBELET_VERSION
    assert found["status"]["nodeInfo"]["containerRuntimeVersion"].startswith("podwire://")
    assert {"type": "InternalIP", "address": NODE_IP} in found["status"]["addresses"]
    assert found["metadata"]["labels"]["kubernetes.io/hostname"] == NODE
    (lease,) = until(lambda: unwired.client.list(LEASES, node.LEASE_NAMESPACE).items, what="the Lease")
    assert lease.spec.holder_identity == NODE
    assert lease.metadata.owner_references[0].uid == found["metadata"]["uid"]
    # A pod that is bound to it meanwhile waits and says why; one on the host's network runs.
    unwired.create("early", web())
    unwired.create("host-early", web(8089), hostNetwork=True)
    unwired.ready("host-early")
    assert "network is not ready" in unwired.event("early", "NetworkNotReady")
    unwired.node.write("/run/flannel/subnet.env", cri_rig.SUBNET_ENV)
    unwired.node.write("/etc/cni/net.d/10-flannel.conflist", json.dumps(cri_rig.FLANNEL))
    started = time.monotonic()
    unwired.node_ready()
    assert time.monotonic() - started < 0.5
    unwired.ready("early")
    shutil.rmtree(f"{unwired.node.root}/etc/cni/net.d")
    until(lambda: unwired.condition().status == "False", 8, "the node to be unready")


def test_a_killed_kubelet_finds_its_pods_again(rig: Rig) -> None:
    rig.create("stays", shell("while :; do sleep 0.1; done"))
    rig.create("leaves", web())
    rig.create("forced", web())
    ids = {name: rig.ready(name).status.container_statuses[0].container_id for name in ("stays", "leaves", "forced")}
    rig.end(signal.SIGKILL)
    rig.client.delete(PODS, "leaves", "default")
    rig.client.delete(PODS, "forced", "default", grace_seconds=0)
    rig.create("new", web())
    rig.start()
    rig.ready("new")
    rig.gone("leaves")
    until(lambda: len(os.listdir(f"{rig.cri.state}/sandboxes")) == 2, what="the orphan to be removed")
    pod = rig.pod("stays")
    (status,) = pod.status.container_statuses
    assert (status.container_id, status.restart_count) == (ids["stays"], 0)
    assert len([one for one in rig.events("stays") if one[1] == "Created"]) == 1


def test_sigterm_ends_the_kubelet_quickly_and_leaves_the_pods_running(rig: Rig) -> None:
    rig.create("stays", host("sleep", "1000"))
    rig.ready("stays")
    started = time.monotonic()
    assert rig.end() == 0
    assert time.monotonic() - started < 2
    (key,) = os.listdir(f"{rig.cri.state}/containers")
    assert os.path.exists(f"/proc/{rig.cri.pid_of(key)}")
    assert rig.pod("stays").ready


def test_a_killed_runtime_leaves_the_pods_and_is_found_again(rig: Rig) -> None:
    rig.create("before", web())
    before = rig.ready("before")
    rig.cri.kill()
    assert json.loads(rig.node.run("curl", "-s", "-m", "5", before.status.pod_ip).stdout)["pod"] == "before"
    rig.create("after", web())
    time.sleep(1)
    assert rig.condition().status == "True"  # it may only be restarting
    rig.cri.start()
    rig.ready("after")
    assert rig.pod("before").status.container_statuses[0].restart_count == 0
    os.kill(rig.cri.pid_of(container_of(rig, "before")), signal.SIGKILL)
    until(lambda: rig.pod("before").status.container_statuses[0].restart_count == 1, what="the restart to be seen")


def container_of(rig: Rig, name: str) -> str:
    return rig.pod(name).status.container_statuses[0].container_id.removeprefix("podwire://")


def test_the_api_may_be_away(rig: Rig) -> None:
    rig.create("stays", shell("echo run; sleep 1000"))
    rig.ready("stays")
    rig.api_server.stop(kill=True)
    os.kill(rig.cri.pid_of(container_of_state(rig)), signal.SIGKILL)
    time.sleep(0.5)
    rig.api_server.start()
    until(lambda: rig.pod("stays").status.container_statuses[0].restart_count == 1 and rig.pod("stays").ready, 20, "it")


def container_of_state(rig: Rig) -> str:
    (key,) = os.listdir(f"{rig.cri.state}/containers")
    return key


def test_a_deleted_node_comes_back_only_with_a_new_kubelet_and_an_existing_one_is_adopted(rig: Rig) -> None:
    uid = rig.client.get(NODES, NODE).metadata.uid
    rig.end()
    rig.start()
    until(lambda: "node adopted" in rig.log(), what="the node to be adopted")
    assert rig.client.get(NODES, NODE).metadata.uid == uid
    rig.client.delete(NODES, NODE)
    time.sleep(1.5)
    assert rig.condition() is None
    rig.end()
    rig.start()
    rig.node_ready()
    assert rig.client.get(NODES, NODE).metadata.uid != uid


def test_a_rebooted_node_runs_its_pods_again_and_counts_the_restart(rig: Rig) -> None:
    rig.create("survivor", web())
    rig.create("once", shell("sleep 1000"), restartPolicy="Never")
    for name in ("survivor", "once"):
        rig.ready(name)
    rig.end()
    rig.cri.close()
    for name in os.listdir(f"{rig.cri.state}/netns"):
        rig.node.run("umount", f"/run/podwire/cri/netns/{name}")
    shutil.rmtree(rig.cri.state)
    rig.cri.start()
    rig.start()
    until(
        lambda: rig.pod("survivor").status.container_statuses[0].restart_count == 1 and rig.pod("survivor").ready,
        20,
        "it",
    )
    pod = rig.phase("once", "Failed")
    assert pod.status.container_statuses[0].state["terminated"]["reason"] == "ContainerStatusUnknown"


def test_a_kubelet_at_rest_costs_little(rig: Rig) -> None:
    rig.create("idle", web())
    rig.ready("idle")
    time.sleep(1)

    def ticks(pid: int) -> int:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks(rig.pid), ticks(rig.cri.pid)
    time.sleep(5)
    after = ticks(rig.pid), ticks(rig.cri.pid)
    hertz = os.sysconf("SC_CLK_TCK")
    for used in (after[0] - before[0], after[1] - before[1]):
        assert used / hertz / 5 < 0.02


def test_a_runtime_killed_again_and_again_loses_and_leaks_nothing(rig: Rig) -> None:
    names = [f"many-{number}" for number in range(12)]

    def kill_often(seconds: float) -> None:
        dice = random.Random(seconds)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(dice.uniform(0.02, 0.5))
            rig.cri.kill()
            rig.cri.start()

    for number, name in enumerate(names):
        rig.create(name, host("sleep", "1000") if number % 3 == 0 else web(), terminationGracePeriodSeconds=1)
    kill_often(5)
    for name in names:
        until(lambda name=name: rig.pod(name).ready, 40, f"{name} to be ready: {rig.log()[-3000:]}")
    addresses = {rig.pod(name).status.pod_ip for name in names}
    assert len(addresses) == len(names)
    assert {name for name in rig.node.listdir("/var/lib/cni/networks/cni0") if name[0].isdigit()} == addresses
    for name in names:
        rig.client.delete(PODS, name, "default")
    kill_often(5)
    for name in names:
        rig.gone(name, 40)
    for folder in ("netns", "sandboxes", "containers"):
        until(lambda folder=folder: os.listdir(f"{rig.cri.state}/{folder}") == [], 40, f"{folder} to be empty")
    assert [name for name in rig.node.listdir("/var/lib/cni/networks/cni0") if name[0].isdigit()] == []
    with rig.node.rtnl() as rtnl:
        assert [link.name for link in rtnl.links(kind="veth")] == []
    assert rig.cri.state not in cri_rig.process_list()
    assert f"{cri_rig.STATE}/containers" not in "".join(
        line for line in cri_rig.process_list().splitlines() if "default/many-" in line
    )
