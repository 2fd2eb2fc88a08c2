"""flanneld's vxlan backend on real kernels: packets between pods of different nodes, and what keeps them going."""

from __future__ import annotations

import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from flanneld_lab import DUAL, PREFIX, VXLAN, Capture, Lab, answers, ipv4, mac, reaches, vxlan

from podwire.testing.netns import require

pytestmark = pytest.mark.kernel


@pytest.fixture
def lab(tmp_path):
    require("root", "vxlan", "veth", "bridge-device", "ip", "bridge")
    made = Lab(str(tmp_path), 2)
    yield made
    made.close()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "podwire.flanneld")
    return caplog


def said(log) -> list[str]:
    return [
        f"{record.getMessage()} {' '.join(f'{k}={v}' for k, v in getattr(record, 'kv', {}).items())}".strip()
        for record in log.records
    ]


def entries(node) -> list[str]:
    """Everything on a node that says something about another one."""
    found = []
    for command in ("ip route", "ip neigh", "bridge fdb", "ip -6 route", "ip -6 neigh"):
        found += [
            line.strip() for line in node.run(command).splitlines() if "flannel" in line and "proto kernel" not in line
        ]
    return [line for line in found if "33:33:" not in line and "01:00:5e" not in line]


def test_a_pod_reaches_a_pod_on_another_node_inside_a_vxlan_packet(lab):
    lab.agents(VXLAN)
    one, two = lab.nodes
    with Capture(lab) as capture:
        assert reaches(one.pod, two.pod_ip)
        frames = capture.frames()
    tunnelled = [found for frame in frames if (found := vxlan(frame)) and ipv4(found[4])]
    source, destination, port, vni, inner = tunnelled[0]
    assert (source, destination, port, vni) == (one.address, two.address, 8472, 1)
    assert (mac(inner[6:12]), mac(inner[:6])) == (one.mac(), two.mac())
    inner_source, inner_destination, protocol, _ = ipv4(inner)
    assert (inner_source, inner_destination, protocol) == (one.pod_ip, two.pod_ip, socket.IPPROTO_ICMP)
    answer = tunnelled[1]
    assert (answer[0], answer[1], ipv4(answer[4])[:2]) == (two.address, one.address, (two.pod_ip, one.pod_ip))


def test_what_the_node_itself_sends_to_a_pod_elsewhere_comes_from_the_base_address(lab):
    lab.agents(VXLAN)
    one, two = lab.nodes
    with Capture(lab) as capture:
        assert reaches(one.ns, two.pod_ip)
        inner = [packet for frame in capture.frames() if (found := vxlan(frame)) and (packet := ipv4(found[4]))]
    assert inner[0][:2] == ("10.244.0.0", two.pod_ip)


def test_the_kernel_shows_what_flannel_leaves_and_the_marks(lab):
    lab.agents(VXLAN)
    one, two = lab.nodes
    link = one.run("ip -d link show flannel.1")
    assert "vxlan id 1 local 192.168.50.11 dev eth0 srcport 0 0 dstport 8472 nolearning" in link
    assert f"link/ether {one.mac()} " in link
    assert "mtu 1450 qdisc noqueue" in link
    assert "qlen" not in link
    assert "alias podwire:flanneld" in link
    assert "inet 10.244.0.0/32 scope global flannel.1" in one.run("ip addr show dev flannel.1")
    assert entries(one) == [
        "10.244.1.0/24 via 10.244.1.0 dev flannel.1 proto 87 onlink",
        f"10.244.1.0 dev flannel.1 lladdr {two.mac()} PERMANENT proto 87",
        f"{two.mac()} dev flannel.1 dst 192.168.50.12 self permanent",
    ]
    assert one.run("sysctl -n net.ipv6.conf.flannel/1.accept_ra") == "0\n"
    assert one.subnet_env() == (
        "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
    )
    assert lab.cluster.nodes["n1"].annotations == {
        f"{PREFIX}/backend-data": json.dumps({"VNI": 1, "VtepMAC": one.mac()}, separators=(",", ":")),
        f"{PREFIX}/backend-type": "vxlan",
        f"{PREFIX}/kube-subnet-manager": "true",
        f"{PREFIX}/public-ip": "192.168.50.11",
    }
    assert lab.cluster.nodes["n1"].network_condition == "FlannelIsUp"


def test_dual_stack_pods_reach_each_other_in_both_families(tmp_path):
    require("root", "vxlan", "veth", "bridge-device", "ipv6")
    lab = Lab(str(tmp_path), 2, dual=True)
    try:
        lab.agents(DUAL)
        one, two = lab.nodes
        assert reaches(one.pod, two.pod_ip)
        assert reaches(one.pod, two.pod_ip6)
        assert "mtu 1430 " in one.run("ip link show flannel-v6.1")
        assert "dst fd50::12 self permanent" in one.run("bridge fdb show dev flannel-v6.1")
    finally:
        lab.close()


def test_ipv6_alone_needs_nothing_of_ipv4(tmp_path):
    require("root", "vxlan", "veth", "bridge-device", "ipv6")
    lab = Lab(str(tmp_path), 2, dual=True)
    try:
        lab.agents({**DUAL, "EnableIPv4": False})
        one, two = lab.nodes
        assert reaches(one.pod, two.pod_ip6)
        assert "flannel.1" not in one.run("ip -o link")
        assert one.subnet_env() == (
            "FLANNEL_IPV6_NETWORK=fd00:10:244::/56\nFLANNEL_IPV6_SUBNET=fd00:10:244::1/64\n"
            "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
        )
        assert f"{PREFIX}/public-ip" not in lab.cluster.nodes["n1"].annotations
    finally:
        lab.close()


DAMAGE = [
    "ip route del 10.244.1.0/24",
    "ip route replace 10.244.1.0/24 via 192.168.50.99",
    "ip route flush dev flannel.1",
    "bridge fdb del {mac} dev flannel.1 dst 192.168.50.12",
    "bridge fdb replace {mac} dev flannel.1 dst 192.168.50.99 self permanent",
    "ip neigh del 10.244.1.0 dev flannel.1",
    "ip neigh replace 10.244.1.0 lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent",
    "ip addr flush dev flannel.1",
    "ip link set flannel.1 down",
    "ip link set flannel.1 address 02:00:00:00:00:99",
    "ip link del flannel.1",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_was_lost_behind_its_back_is_put_back(lab, damage, log):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    before = entries(one)
    assert reaches(one.pod, two.pod_ip)
    one.run(damage.format(mac=two.mac()))
    log.clear()
    assert one.sync(agents[0])
    assert entries(one) == before
    assert reaches(one.pod, two.pod_ip)
    assert any(line.startswith("repaired") for line in said(log))


def test_a_pass_over_what_is_right_changes_nothing_and_says_nothing(lab, log):
    agents = lab.agents(VXLAN, "--ip-masq", "--iptables-forward-rules")
    writes = lab.cluster.writes
    log.clear()
    for node, agent in zip(lab.nodes, agents, strict=True):
        assert node.sync(agent)
    assert said(log) == []
    assert lab.cluster.writes == writes


STRAYS = [
    "ip route add 10.244.77.0/24 via 10.244.77.0 dev flannel.1 onlink",
    "ip neigh add 10.244.77.0 lladdr 02:00:00:00:00:77 dev flannel.1 nud permanent",
    "bridge fdb add 02:00:00:00:00:77 dev flannel.1 dst 192.168.50.77 self permanent",
    "ip addr add 10.244.77.0/32 dev flannel.1",
]


@pytest.mark.parametrize("stray", STRAYS)
def test_what_hangs_on_its_device_and_is_nobodys_is_taken_away(lab, stray):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    before = entries(one), one.run("ip addr show dev flannel.1")
    one.run(stray)
    assert one.sync(agents[0])
    assert (entries(one), one.run("ip addr show dev flannel.1")) == before
    assert reaches(one.pod, two.pod_ip)


def test_a_foreign_route_into_the_pod_network_is_reported_and_stays(lab, log):
    agents = lab.agents(VXLAN)
    one = lab.nodes[0]
    one.run("ip route add 10.244.88.0/24 via 192.168.50.88")
    for _ in range(2):
        assert one.sync(agents[0])
    assert "10.244.88.0/24 via 192.168.50.88 dev eth0" in one.run("ip route")
    assert [line for line in said(log) if line.startswith("a foreign")] == [
        "a foreign route leads into the pod network route=route 10.244.88.0/24 via 192.168.50.88 dev eth0 proto 3"
    ]


def test_of_a_node_that_left_nothing_stays(lab):
    agents = lab.agents(VXLAN)
    lab.cluster.remove("n2")
    assert lab.nodes[0].sync(agents[0])
    assert entries(lab.nodes[0]) == []


def test_of_a_node_that_left_while_flanneld_was_down_nothing_stays(lab):
    lab.agents(VXLAN)
    one = lab.nodes[0]
    lab.cluster.remove("n2")
    assert len(entries(one)) == 3
    assert one.sync(one.agent(VXLAN))
    assert entries(one) == []


def test_a_node_that_comes_back_with_other_data_is_reached_there(lab):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    two.run("ip link del flannel.1")
    lab.cluster.add("n2", two.subnet)
    assert two.sync(two.agent(VXLAN))
    assert one.sync(agents[0])
    assert two.mac() in "".join(entries(one))
    assert len(entries(one)) == 3
    assert reaches(one.pod, two.pod_ip)


def test_a_restart_finds_everything_as_it_would_make_it_and_no_packet_is_lost(lab, log):
    lab.agents(VXLAN)
    one, two = lab.nodes
    index = one.rtnl.link("flannel.1").index
    log.clear()
    with ThreadPoolExecutor() as pool:
        answered = pool.submit(answers, two.pod, one.pod_ip, 50, pause=0.01)
        for _ in range(10):
            assert one.sync(one.agent(VXLAN))
        assert answered.result() == 50
    assert one.rtnl.link("flannel.1").index == index
    assert not any(line.startswith(("kernel", "repaired", "published", "wrote")) for line in said(log))


def test_a_device_deleted_while_flanneld_was_down_comes_back_with_its_mac(lab):
    lab.agents(VXLAN)
    one, two = lab.nodes
    before = one.mac()
    one.run("ip link del flannel.1")
    assert one.sync(one.agent(VXLAN))
    assert one.rtnl.link("flannel.1").mac == one.mac() == before
    assert reaches(two.pod, one.pod_ip)


def test_flannels_own_device_is_taken_over_without_a_break_and_its_strays_go(lab):
    """What the real flanneld leaves: no alias, routes of protocol boot, and one of a node that is long gone (#2554)."""
    one, two = lab.nodes
    one.run(
        "ip link add flannel.1 mtu 1450 address 02:11:22:33:44:55 type vxlan id 1 local 192.168.50.11 dev eth0 dstport 8472 nolearning"
    )
    one.run("ip link set flannel.1 up txqueuelen 0")
    one.run("ip addr add 10.244.0.0/32 dev flannel.1")
    for third in (1, 9):
        one.run(f"ip neigh add 10.244.{third}.0 lladdr 02:11:22:33:44:0{third} dev flannel.1 nud permanent")
        one.run(f"bridge fdb add 02:11:22:33:44:0{third} dev flannel.1 dst 192.168.50.1{third + 1} self permanent")
        one.run(f"ip route add 10.244.{third}.0/24 via 10.244.{third}.0 dev flannel.1 onlink")
    lab.cluster.annotate("n1", {f"{PREFIX}/backend-data": '{"VNI":1,"VtepMAC":"02:11:22:33:44:55"}'})
    index = one.rtnl.link("flannel.1").index
    lab.agents(VXLAN)
    assert one.rtnl.link("flannel.1").index == index
    assert one.mac() == "02:11:22:33:44:55"
    assert entries(one) == [
        "10.244.1.0/24 via 10.244.1.0 dev flannel.1 proto 87 onlink",
        f"10.244.1.0 dev flannel.1 lladdr {two.mac()} PERMANENT proto 87",
        f"{two.mac()} dev flannel.1 dst 192.168.50.12 self permanent",
    ]
    assert reaches(one.pod, two.pod_ip)


@pytest.mark.parametrize(
    ("wrong", "difference"),
    [
        ("type vxlan id 2 local 192.168.50.11 dev eth0 dstport 8472 nolearning", "vni: 1 vs 2"),
        ("type vxlan id 1 local 192.168.50.11 dev eth0 dstport 4789 nolearning", "port: 8472 vs 4789"),
        (
            "type vxlan id 1 local 192.168.50.99 dev eth0 dstport 8472 nolearning",
            "local: 192.168.50.11 vs 192.168.50.99",
        ),
        ("type vxlan id 1 local 192.168.50.11 dstport 8472 nolearning", "device: eth0 vs "),
        ("type vxlan id 1 local 192.168.50.11 dev eth0 dstport 8472 learning", "learning: False vs True"),
        ("type vxlan id 1 local 192.168.50.11 dev eth0 dstport 8472 nolearning gbp", "gbp: False vs True"),
        ("type bridge", "link type: vxlan vs bridge"),
    ],
)
def test_a_device_with_other_parameters_is_made_anew(lab, log, wrong, difference):
    one, two = lab.nodes
    one.run(f"ip link add flannel.1 {wrong}")
    lab.agents(VXLAN)
    assert any(line.startswith("kernel step=remake link flannel.1") and f"({difference})" in line for line in said(log))
    assert reaches(one.pod, two.pod_ip)


def test_without_a_pod_cidr_it_waits_says_so_once_and_touches_nothing(lab, log):
    lab.cluster.add("n1")
    one = lab.nodes[0]
    agent = one.agent(VXLAN)
    links = one.run("ip -o link")
    for _ in range(3):
        one.sync(agent)
    assert said(log) == ['node "n1" pod cidr not assigned']
    assert one.run("ip -o link") == links
    assert not agent.ready
    lab.cluster.change("n1", pod_cidrs=(one.subnet,))
    assert one.sync(agent)
    assert agent.ready


def test_a_pod_cidr_outside_the_network_is_refused_with_flannels_words(lab, log):
    lab.cluster.add("n1", "10.99.0.0/24")
    lab.nodes[0].sync(lab.nodes[0].agent(VXLAN))
    assert said(log) == [
        'subnet "10.244.0.0/16" specified in the flannel net config doesn\'t contain "10.99.0.0/24" PodCIDR of the "n1" node'
    ]


def test_a_node_registered_again_under_another_pod_cidr_follows_it(lab):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    lab.cluster.remove("n1")
    assert one.sync(agents[0])
    assert "10.244.0.0/32" in one.run("ip addr show dev flannel.1"), "while the Node is gone the last lease holds"
    lab.cluster.add("n1", "10.244.40.0/24")
    assert one.sync(agents[0])
    addresses = one.run("ip addr show dev flannel.1")
    assert "10.244.40.0/32" in addresses
    assert "10.244.0.0/32" not in addresses
    assert "FLANNEL_SUBNET=10.244.40.1/24\n" in one.subnet_env()
    assert lab.cluster.nodes["n1"].annotations[f"{PREFIX}/public-ip"] == one.address
    assert two.sync(agents[1])
    assert "10.244.40.0/24 via 10.244.40.0 dev flannel.1" in two.run("ip route")
    assert "10.244.0.0" not in two.run("ip route")


def test_while_the_api_is_away_the_last_state_is_kept_and_repaired(lab):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    lab.cluster.away = True
    one.run("ip link del flannel.1")
    assert one.sync(agents[0])
    assert reaches(one.pod, two.pod_ip)


def test_a_lease_that_could_not_be_published_is_tried_again(lab, log):
    one = lab.nodes[0]
    agent = one.agent(VXLAN)
    lab.cluster.away = True
    one_view = agent._leases
    one_view._seen = dict(lab.cluster.nodes)
    assert not one.sync(agent), "so that the runner comes back soon"
    assert not agent.ready
    lab.cluster.away = False
    assert one.sync(agent)
    assert agent.ready
    assert any(line.startswith("publishing the lease failed, trying again") for line in said(log))


def test_a_public_ip_overwrite_is_published_at_once(lab):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    lab.cluster.annotate("n2", {f"{PREFIX}/public-ip-overwrite": "192.168.50.99"})
    assert two.sync(agents[1])
    assert lab.cluster.nodes["n2"].annotations[f"{PREFIX}/public-ip"] == "192.168.50.99"
    assert one.sync(agents[0])
    assert "dst 192.168.50.99 self permanent" in one.run("bridge fdb show dev flannel.1")


def test_a_node_whose_data_cannot_be_read_costs_only_itself(lab, log):
    agents = lab.agents(VXLAN)
    one, two = lab.nodes
    broken = {
        **lab.cluster.nodes["n2"].annotations,
        f"{PREFIX}/backend-data": "{",
        f"{PREFIX}/public-ip": "192.168.50.13",
    }
    lab.cluster.add("n3", "10.244.2.0/24", annotations=broken)
    lab.cluster.add("n4", "10.244.1.0/24", annotations=lab.cluster.nodes["n2"].annotations)
    assert one.sync(agents[0])
    assert reaches(one.pod, two.pod_ip)
    lines = [line for line in said(log) if line.startswith("cannot use a node's lease")]
    assert len(lines) == 2
    assert "node n3: annotation flannel.alpha.coreos.com/backend-data" in lines[0]
    assert "node n4: its podCIDR 10.244.1.0/24 is also that of n2" in lines[1]


def test_the_device_follows_the_underlays_mtu(lab):
    agents = lab.agents(VXLAN)
    one = lab.nodes[0]
    one.run("ip link set eth0 mtu 1400")
    assert one.sync(agents[0])
    assert one.rtnl.link("flannel.1").mtu == 1350
    assert "FLANNEL_MTU=1350\n" in one.subnet_env()
