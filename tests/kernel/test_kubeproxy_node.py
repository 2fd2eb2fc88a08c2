"""What the kube-proxy process does to its node besides rules, and what it takes from its Node object."""

from __future__ import annotations

import contextlib
import tempfile

import pytest

from kubeproxy_cluster import PODWIRE, Cluster, wait_until
from podwire.kernel import reserved_ports
from podwire.kube.kinds import NODES
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def cluster():
    require("root", "iptables", "iptables-restore", "ip")
    with contextlib.ExitStack() as stack:
        made = Cluster(stack, stack.enter_context(tempfile.TemporaryDirectory()))
        made.create(NODES, {"metadata": {"name": "node-1"}})
        made.service("front", 80, 30450)
        made.endpoints("front", 8080, "10.244.1.2")
        yield made


def reserved(cluster):
    return cluster.node.call(reserved_ports.read)


def test_nodeports_are_reserved_while_they_exist_and_given_back_by_cleanup_even_after_kill_9(cluster):
    cluster.node.call(lambda: reserved_ports.write([8080]))
    cluster.start_proxy()
    wait_until(lambda: reserved(cluster) == {8080, 30450})
    cluster.service("late", 80, 30451)
    wait_until(lambda: reserved(cluster) == {8080, 30450, 30451})
    cluster.remove("late")
    wait_until(lambda: reserved(cluster) == {8080, 30450})
    cluster.kill_proxy()
    assert reserved(cluster) == {8080, 30450}
    cluster.node.run(*PODWIRE, "kube-proxy", "--cleanup", f"--state-dir={cluster.folder}/run")
    assert reserved(cluster) == {8080}


def test_a_start_without_the_reservation_gives_back_an_earlier_ones(cluster):
    cluster.start_proxy("--node-port-reservation=sysctl")
    wait_until(lambda: 30450 in reserved(cluster))
    assert ":30450" not in cluster.node.run("ss", "-Hltn").stdout
    cluster.kill_proxy()
    cluster.start_proxy("--node-port-reservation=bind")
    wait_until(lambda: ":30450" in cluster.node.run("ss", "-Hltn").stdout)
    assert 30450 not in reserved(cluster)
    cluster.kill_proxy()


def test_mode_nodecidr_waits_for_the_podcidr_and_ends_when_it_is_another(cluster):
    cluster.node.run(*PODWIRE, "kube-proxy", "--cleanup", f"--state-dir={cluster.folder}/run")
    files = (f"--kubeconfig={cluster.folder}/kubeconfig", f"--state-dir={cluster.folder}/run")
    proxy = cluster.start(
        "kube-proxy", *files, "--hostname-override=node-1", "--detect-local-mode=NodeCIDR", log="nodecidr.log"
    )
    wait_until(lambda: "waiting for the node's podCIDR" in cluster.log("nodecidr.log"))
    assert "KUBE-SERVICES" not in cluster.rules()
    cluster.node.call(lambda: cluster.client.patch(NODES, "node-1", {"spec": {"podCIDR": "10.244.1.0/24"}}))
    wait_until(lambda: "! -s 10.244.1.0/24" in cluster.rules())
    assert cluster.log("nodecidr.log").count("waiting for") == 1
    cluster.node.call(lambda: cluster.client.delete(NODES, "node-1"))
    cluster.create(NODES, {"metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.244.7.0/24"}})
    assert proxy.wait(10) == 1
    assert "podCIDRs changed" in cluster.log("nodecidr.log")
    assert "! -s 10.244.1.0/24" in cluster.rules(), "rules stay"
