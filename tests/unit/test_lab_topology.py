"""What a lab consists of is worked out from names and prefixes."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import UsageError
from podwire.lab import topology
from podwire.lab.machine import control_plane_components, furnishing, node_components

pytestmark = pytest.mark.unit


def test_the_default_lab_has_three_nodes_on_the_first_free_underlay():
    lab = topology.plan("lab", 3, taken=[])
    assert str(lab.underlay) == "10.20.0.0/24"
    assert [(machine.name, str(machine.address)) for machine in lab.machines] == [
        ("control-plane", "10.20.0.10"),
        ("node-1", "10.20.0.11"),
        ("node-2", "10.20.0.12"),
        ("node-3", "10.20.0.13"),
    ]
    assert str(lab.host_address) == "10.20.0.1"
    assert lab.host_link == "pw-lab"


def test_an_underlay_that_collides_with_a_route_of_the_host_is_passed_over():
    lab = topology.plan("lab", 1, taken=[IPv4Network("10.20.0.0/23"), IPv4Network("10.20.2.128/25")])
    assert str(lab.underlay) == "10.20.3.0/24"


def test_a_host_that_routes_the_whole_pool_is_told_to_name_an_underlay():
    with pytest.raises(UsageError, match="use --underlay"):
        topology.plan("lab", 1, taken=[IPv4Network("10.0.0.0/8")])


@pytest.mark.parametrize("name", ["", "Lab", "a_b", "-a", "a-", "a" * 64, "a.b", "../x", "a b"])
def test_a_lab_name_that_is_no_dns_label_is_refused(name):
    with pytest.raises(UsageError, match="no DNS label"):
        topology.plan(name, 1, taken=[])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cluster_cidr": "10.244.0.0/33"}, "--cluster-cidr 10.244.0.0/33"),
        ({"cluster_cidr": "10.244.0.1/16"}, "has host bits set"),
        ({"cluster_cidr": "10.244.0.0/28"}, "--cluster-cidr 10.244.0.0/28 has no /24 for each of 3 nodes"),
        ({"cluster_cidr": "10.244.0.0/23"}, "--cluster-cidr 10.244.0.0/23 has no /24 for each of 3 nodes"),
        ({"service_cidr": "banana"}, "--service-cluster-ip-range banana"),
        ({"service_cidr": "10.244.8.0/24"}, "overlap"),
        ({"underlay": "10.244.1.0/24"}, "collides with 10.244.0.0/16"),
        ({"underlay": "192.0.2.0/28"}, "too small"),
    ],
)
def test_prefixes_that_cannot_work_are_refused_with_the_flag(settings, said):
    with pytest.raises(UsageError) as caught:
        topology.plan("lab", 3, taken=[], **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    nodes=st.integers(1, topology.MAX_NODES),
    taken=st.lists(
        st.builds(
            lambda net, length: IPv4Network((net, length), strict=False), st.integers(0, 2**32 - 1), st.integers(12, 32)
        ),
        max_size=20,
    ),
)
def test_no_two_machines_share_an_address_and_the_underlay_is_free(nodes, taken):
    try:
        lab = topology.plan("lab", nodes, taken=taken)
    except UsageError:
        return
    addresses = [lab.host_address, lab.gateway, *(machine.address for machine in lab.machines)]
    assert len(set(addresses)) == len(addresses)
    assert all(address in lab.underlay for address in addresses)
    assert not any(lab.underlay.overlaps(other) for other in [*taken, lab.cluster_cidr, lab.service_cidr])


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
def test_the_hosts_interface_always_has_a_name_the_kernel_takes(name):
    assert len(topology.host_link(name)) <= 15


def test_labs_with_long_names_do_not_share_an_interface_name():
    assert topology.host_link("a-rather-long-name-1") != topology.host_link("a-rather-long-name-2")


def test_a_token_is_in_no_command_line_and_every_component_is_marked():
    lab = topology.plan("lab", 2, taken=[])
    for component in [*control_plane_components(lab), *node_components(lab, lab.nodes[0])]:
        assert not any("token" in word for word in component.argv)
        assert component.env["PODWIRE_LAB"] == "lab"


def test_only_nodes_get_flannels_files():
    lab = topology.plan("lab", 1, taken=[])
    assert "/etc/kube-flannel/net-conf.json" in furnishing(lab, lab.nodes[0], "/x")["files"]
    assert "/etc/kube-flannel/net-conf.json" not in furnishing(lab, lab.control_plane, "/x")["files"]
