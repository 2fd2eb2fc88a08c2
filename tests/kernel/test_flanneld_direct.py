"""host-gw and DirectRouting on real kernels: plain routes where all nodes share a link, and changing between backends."""

from __future__ import annotations

import pytest
from flanneld_lab import DUAL, VXLAN, Capture, Lab, ipv4, reaches, vxlan

from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

HOSTGW = {**VXLAN, "Backend": {"Type": "host-gw"}}
DIRECT = {**VXLAN, "Backend": {"Type": "vxlan", "DirectRouting": True}}


@pytest.fixture
def lab(tmp_path):
    require("root", "vxlan", "veth", "bridge-device", "ip", "bridge")
    made = Lab(str(tmp_path), 2)
    yield made
    made.close()


@pytest.mark.parametrize("config", [HOSTGW, DIRECT], ids=["host-gw", "DirectRouting"])
def test_on_one_link_the_packet_crosses_the_underlay_as_it_is(lab, config):
    lab.agents(config)
    one, two = lab.nodes
    assert "10.244.1.0/24 via 192.168.50.12 dev eth0 proto 87" in one.run("ip route")
    with Capture(lab) as capture:
        assert reaches(one.pod, two.pod_ip)
        frames = capture.frames()
    assert not [frame for frame in frames if vxlan(frame)]
    assert (one.pod_ip, two.pod_ip) in [packet[:2] for frame in frames if (packet := ipv4(frame))]


def test_host_gw_needs_no_device_and_gives_pods_the_underlays_mtu(lab):
    lab.agents(HOSTGW)
    one = lab.nodes[0]
    assert "flannel" not in one.run("ip link")
    assert "FLANNEL_MTU=1500\n" in one.subnet_env()
    annotations = lab.cluster.nodes["n1"].annotations
    assert annotations["flannel.alpha.coreos.com/backend-type"] == "host-gw"
    assert annotations["flannel.alpha.coreos.com/backend-data"] == "null"


def test_with_direct_routing_a_node_behind_a_router_still_gets_a_tunnel(lab):
    agents = lab.agents(DIRECT)
    one, two = lab.nodes
    assert "flannel.1" not in one.run("ip route")
    one.run("ip route add 192.168.50.12/32 via 192.168.50.1")
    assert one.sync(agents[0])
    assert "10.244.1.0/24 via 10.244.1.0 dev flannel.1 proto 87 onlink" in one.run("ip route")
    assert f"{two.mac()} dst 192.168.50.12 self permanent" in one.run("bridge fdb show dev flannel.1")
    one.run("ip route del 192.168.50.12/32")
    assert one.sync(agents[0])
    assert "10.244.1.0/24 via 192.168.50.12 dev eth0 proto 87" in one.run("ip route")
    assert " dst " not in one.run("bridge fdb show dev flannel.1")


def test_a_direct_route_lost_or_bent_is_put_back_and_one_of_a_node_that_left_goes(lab):
    agents = lab.agents(HOSTGW)
    one = lab.nodes[0]
    for damage in ("ip route del 10.244.1.0/24", "ip route replace 10.244.1.0/24 via 192.168.50.99"):
        one.run(damage)
        assert one.sync(agents[0])
        assert "10.244.1.0/24 via 192.168.50.12 dev eth0 proto 87" in one.run("ip route")
    lab.cluster.remove("n2")
    assert one.sync(one.agent(HOSTGW)), "it left while flanneld was down"
    assert "10.244.1.0/24" not in one.run("ip route")


def test_our_protocol_number_outside_the_pod_network_is_not_ours_to_sweep(lab):
    agents = lab.agents(HOSTGW)
    one = lab.nodes[0]
    one.run("ip route add 172.20.0.0/16 via 192.168.50.1 proto 87")
    assert one.sync(agents[0])
    assert "172.20.0.0/16 via 192.168.50.1" in one.run("ip route")


def test_changing_from_vxlan_to_host_gw_and_back_leaves_nothing_of_the_other(lab):
    lab.agents(VXLAN)
    one, two = lab.nodes
    lab.agents(HOSTGW)
    assert "flannel" not in one.run("ip link")
    assert reaches(one.pod, two.pod_ip)
    lab.agents(VXLAN)
    assert "via 192.168.50.12" not in one.run("ip route")
    assert reaches(one.pod, two.pod_ip)
    assert "FLANNEL_MTU=1450\n" in one.subnet_env()


def test_a_node_with_another_backend_is_left_out_and_named(lab, caplog):
    lab.agents(VXLAN)
    one = lab.nodes[0]
    one.sync(one.agent(HOSTGW))
    assert "10.244.1.0/24" not in one.run("ip route")
    whys = [record.kv["why"] for record in caplog.records if hasattr(record, "kv") and "why" in record.kv]
    assert whys == ["node n2: its backend is vxlan, here it is host-gw"]


def test_host_gw_in_both_families(tmp_path):
    require("root", "veth", "bridge-device", "ipv6")
    lab = Lab(str(tmp_path), 2, dual=True)
    try:
        lab.agents({**DUAL, "Backend": {"Type": "host-gw"}})
        one, two = lab.nodes
        assert reaches(one.pod, two.pod_ip)
        assert reaches(one.pod, two.pod_ip6)
        assert "fd00:10:244:1::/64 via fd50::12 dev eth0 proto 87 metric 1024" in one.run("ip -6 route")
    finally:
        lab.close()
