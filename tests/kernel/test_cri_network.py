"""Whether the network is ready: the configuration folder, also when it comes late, goes, and comes again."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import cri_rig
import grpc
import pytest

from podwire.testing.netns import require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

FOLDER = "/etc/cni/net.d"
FILE = f"{FOLDER}/10-flannel.conflist"


@pytest.fixture
def cri() -> Iterator[cri_rig.Cri]:
    require("root", "bridge-device", "veth", "nsenter", "unshare")
    with cri_rig.running(wired=False) as made:
        made.node.write("/run/flannel/subnet.env", cri_rig.SUBNET_ENV)
        yield made


def network(cri: cri_rig.Cri) -> Any:
    conditions = {one.type: one for one in cri.call("Status").status.conditions}
    assert conditions["RuntimeReady"].status
    return conditions["NetworkReady"]


def loaded(cri: cri_rig.Cri) -> int:
    """How often the log says that a network was taken into use: nobody asks for the status meanwhile."""
    return cri.node.read("/run/cri.log").count("network ready")


def test_without_a_configuration_it_is_not_ready_in_containerds_words(cri: cri_rig.Cri) -> None:
    condition = network(cri)
    assert not condition.status
    assert condition.reason == "NetworkPluginNotReady"
    assert condition.message == "Network plugin returns error: cni plugin not initialized"
    info = cri.call("Status", verbose=True).info
    assert "no network config found in /etc/cni/net.d" in json.loads(info["lastCNILoadStatus"])
    with pytest.raises(grpc.RpcError) as caught:
        cri.sandbox()
    assert "cni plugin not initialized" in caught.value.details()


def test_a_folder_that_comes_later_goes_and_comes_again_is_noticed_at_once(cri: cri_rig.Cri) -> None:
    text = json.dumps(cri_rig.FLANNEL)
    assert not os.path.exists(cri.node.root + FOLDER)
    for times in (1, 2, 3):
        cri.node.write(FILE, text)
        cri_rig.wait_for(lambda times=times: loaded(cri) == times, "the watch", seconds=2)
        assert network(cri).status
        shutil.rmtree(cri.node.root + (FOLDER if times < 2 else "/etc/cni"), ignore_errors=times >= 2)
        cri_rig.wait_for(lambda: not network(cri).status, "the loss", seconds=2)


def test_the_first_file_by_name_counts_and_a_better_one_takes_over(cri: cri_rig.Cri) -> None:
    cri.node.write(FILE, json.dumps(cri_rig.FLANNEL))
    cri.node.write(f"{FOLDER}/05-broken.conflist.bak", "not json")
    cri_rig.wait_for(lambda: network(cri).status, "the network")
    one = cri.sandbox("before")
    assert cri.call("PodSandboxStatus", pod_sandbox_id=one).status.network.ip.startswith("10.244.1.")
    other = {
        "cniVersion": "1.0.0",
        "name": "other",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "br-other",
                "isGateway": True,
                "ipam": {"type": "host-local", "subnet": "10.77.0.0/24"},
            }
        ],
    }
    cri.node.write(f"{FOLDER}/01-other.conflist", json.dumps(other))
    two = cri.sandbox("after")
    assert cri.call("PodSandboxStatus", pod_sandbox_id=two).status.network.ip.startswith("10.77.0.")
    for key in (one, two):
        cri.call("RemovePodSandbox", pod_sandbox_id=key)
    assert cri.node.listdir("/var/lib/cni/networks/cni0")[:1] != ["10.244.1.2"]


def test_a_file_that_is_no_configuration_is_the_reason_given(cri: cri_rig.Cri) -> None:
    cri.node.write(FILE, "{")
    cri_rig.wait_for(lambda: not network(cri).status, "the network to be gone")
    assert FILE in json.loads(cri.call("Status", verbose=True).info["lastCNILoadStatus"])
    cri.node.write(FILE, json.dumps(cri_rig.FLANNEL))
    assert network(cri).status


def test_paths_come_from_containerds_own_configuration_file() -> None:
    require("root", "bridge-device", "veth", "nsenter", "unshare")
    toml = """
version = 2
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/run/plugins"
  conf_dir = "/run/net.d"
"""
    with cri_rig.Node() as node:
        node.write("/run/config.toml", toml)
        node.write("/run/net.d/10.conflist", json.dumps(cri_rig.FLANNEL))
        node.write("/run/flannel/subnet.env", cri_rig.SUBNET_ENV)
        cri = cri_rig.Cri(node, "--config", "/run/config.toml")
        os.rename(f"{node.root}/opt/cni/bin", f"{node.root}/opt/cni/away")
        shutil.copytree(f"{node.root}/opt/cni/away", f"{node.root}/run/plugins")
        try:
            cri.start()
            assert network(cri).status
            config = json.loads(cri.call("Status", verbose=True).info["config"])
            assert config["cni"] == {"confDir": "/run/net.d", "binDirs": ["/run/plugins"], "maxConfNum": 1}
            box = cri.sandbox()
            assert cri.call("PodSandboxStatus", pod_sandbox_id=box).status.network.ip.startswith("10.244.1.")
            cri.call("RemovePodSandbox", pod_sandbox_id=box)
        finally:
            cri.close()
