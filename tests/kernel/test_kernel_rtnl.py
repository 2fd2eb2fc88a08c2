"""The rtnetlink door on the real kernel, in namespaces of its own."""

import os
import threading
import time

import pytest

from podwire.errors import AlreadyExists, KernelError, NotFound
from podwire.kernel import ifaddrs, links, owner, routes
from podwire.kernel.namespaces import open_netns, same
from podwire.kernel.rtnl import Rtnl
from podwire.testing.netns import Netns, Node, netns, require

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def _needs():
    require("root", "veth", "bridge-device")


@pytest.fixture
def node():
    with netns() as made:
        yield made


@pytest.fixture
def host(node):
    with node.rtnl() as door:
        yield door


@pytest.fixture
def pod():
    with netns() as made:
        yield made


def test_a_door_stays_in_the_namespace_it_was_opened_in(pod):
    with pod.rtnl() as inside, Rtnl() as outside:
        inside.create_bridge("only-here")
        assert outside.find_link("only-here") is None
        assert inside.link("only-here").kind == "bridge"


def test_opening_a_door_elsewhere_leaves_the_thread_where_it_was(pod):
    before, after = open_netns(), -1
    try:
        with pod.rtnl():
            after = open_netns()
        assert same(before, after)
        assert not same(after, pod.fd)
    finally:
        os.close(before)
        os.close(after)


def test_a_veth_pair_is_born_in_two_namespaces_with_all_its_settings(host, pod):
    host.create_bridge("cni0", mtu=1450, mac="0a:58:0a:f4:01:01", up=True)
    bridge = host.link("cni0")
    host.create_veth(
        "veth1", "eth0", pod.fd, mtu=1450, peer_mac="0a:58:0a:f4:01:05", master=bridge.index, alias="podwire:x", up=True
    )
    port = host.link("veth1")
    assert (port.kind, port.mtu, port.master, port.alias, port.up) == ("veth", 1450, bridge.index, "podwire:x", True)
    assert host.find_link("eth0") is None
    with pod.rtnl() as inside:
        end = inside.link("eth0")
        assert (end.mac, end.mtu, end.link) == ("0a:58:0a:f4:01:05", 1450, port.index)
        inside.set_link(end.index, up=True)
    assert host.links(master=bridge.index)[0].name == "veth1"


def test_a_bridge_port_has_hairpin_isolation_and_learning(host):
    host.create_bridge("br0")
    host.create_veth("a", "b", master=host.link("br0").index)
    index = host.link("a").index
    fresh = host.link("a").port
    assert fresh is not None
    assert (fresh.hairpin, fresh.isolated, fresh.learning) == (False, False, True)
    host.set_port(index, hairpin=True, isolated=True, learning=False)
    changed = host.link("a").port
    assert changed is not None
    assert (changed.hairpin, changed.isolated, changed.learning) == (True, True, False)
    host.set_link(index, master=0)
    assert host.link("a").port is None


def test_a_link_takes_name_alias_group_queue_length_and_promiscuity(host):
    host.create_veth("a", "b")
    index = host.link("a").index
    host.set_link(index, name="eth9", alias=owner.alias("cni", "net", "id", "eth0"), group=77, txqlen=123, promisc=True)
    link = host.link(index=index)
    assert (link.name, link.group, link.txqlen, link.promisc) == ("eth9", 77, 123, True)
    assert owner.alias_parts(link.alias) == ["cni", "net", "id", "eth0"]
    host.set_link(index, promisc=False, alias="")
    assert (host.link(index=index).promisc, host.link(index=index).alias) == (False, "")


def test_a_link_moves_to_another_namespace(host, pod):
    host.create_veth("a", "b")
    host.set_link(host.link("b").index, netns_fd=pod.fd, name="eth0")
    assert host.find_link("b") is None
    with pod.rtnl() as inside:
        assert inside.link("eth0").kind == "veth"


def test_a_vxlan_has_exactly_flannels_settings(host):
    require("vxlan")
    host.create_veth("eth0", "far", up=True)
    under = host.link("eth0").index
    host.add_address(under, "192.0.2.1/24")
    host.create_vxlan("flannel.1", 1, local="192.0.2.1", port=8472, dev_index=under, mtu=1400, mac="0a:00:00:00:00:01")
    link = host.link("flannel.1")
    assert link.vxlan == links.Vxlan(1, "192.0.2.1", under, 8472, learning=False)
    assert (link.mtu, link.mac) == (1400, "0a:00:00:00:00:01")
    assert host.links(kind="vxlan")[0].index == link.index


def test_a_vtep_is_known_by_neighbour_and_forwarding_entry(host):
    require("vxlan")
    host.create_vxlan("flannel.1", 1, local="192.0.2.1", up=True)
    index = host.link("flannel.1").index
    mac = "0a:00:00:00:00:02"
    host.add_neighbour(index, "10.244.2.0", mac, protocol=owner.ROUTE_PROTOCOL)
    host.add_fdb(index, mac, "192.0.2.2")
    (entry,) = [n for n in host.neighbours(index) if n.permanent]
    assert (entry.ip, entry.mac, entry.protocol) == ("10.244.2.0", mac, owner.ROUTE_PROTOCOL)
    assert [(f.mac, f.ip) for f in host.fdb(index)] == [(mac, "192.0.2.2")]
    with pytest.raises(AlreadyExists):
        host.add_fdb(index, mac, "192.0.2.3")
    host.add_fdb(index, mac, "192.0.2.3", replace=True)
    assert [f.ip for f in host.fdb(index)] == ["192.0.2.3"]
    host.delete_fdb(index, mac)
    host.delete_neighbour(entry)
    assert host.fdb(index) == []
    assert [n for n in host.neighbours(index) if n.permanent] == []


def test_addresses_keep_their_flags_and_are_listed_by_family(host):
    host.create_veth("a", "b", up=True)
    index = host.link("a").index
    host.add_address(index, "10.0.0.1/24")
    host.add_address(index, "fd00::1/64", flags=ifaddrs.IFA_F_NODAD | ifaddrs.IFA_F_NOPREFIXROUTE)
    (v4,) = host.addresses(index, 2)
    assert (v4.cidr, v4.broadcast) == ("10.0.0.1/24", "10.0.0.255")
    v6 = next(a for a in host.addresses(index, 10) if a.ip == "fd00::1")
    assert v6.flags & ifaddrs.IFA_F_NODAD
    assert not v6.tentative
    assert [r for r in host.routes(oif=index, family=10) if r.dst == "fd00::/64"] == []
    with pytest.raises(AlreadyExists):
        host.add_address(index, "10.0.0.1/24")
    host.add_address(index, "10.0.0.1/24", replace=True)
    host.delete_address(index, "10.0.0.1/24")
    with pytest.raises(NotFound):
        host.delete_address(index, "10.0.0.1/24")


def test_routes_keep_gateway_source_metric_mtu_and_owner(host):
    host.create_veth("a", "b", up=True)
    index = host.link("a").index
    host.add_address(index, "10.0.0.1/24")
    host.add_route(
        "10.244.2.0/24", via="10.99.0.2", oif=index, onlink=True, src="10.0.0.1", metric=5, mtu=1400, protocol=87
    )
    (route,) = host.routes(protocol=87)
    assert (route.dst, route.via, route.onlink, route.src) == ("10.244.2.0/24", "10.99.0.2", True, "10.0.0.1")
    assert (route.metric, route.mtu, route.table) == (5, 1400, routes.RT_TABLE_MAIN)
    with pytest.raises(AlreadyExists):
        host.add_route("10.244.2.0/24", via="10.99.0.2", oif=index, onlink=True, metric=5)
    host.add_route("10.244.2.0/24", via="10.0.0.9", oif=index, metric=5, protocol=87, replace=True)
    assert [r.via for r in host.routes(protocol=87)] == ["10.0.0.9"]
    assert host.route_to("10.244.2.77").via == "10.0.0.9"
    host.delete_route(host.routes(protocol=87)[0])
    assert host.routes(protocol=87) == []


def test_tables_are_filtered_and_one_that_nobody_made_is_empty(host):
    host.create_veth("a", "b", up=True)
    index = host.link("a").index
    host.add_route("10.1.0.0/16", oif=index, table=1000)
    assert [r.dst for r in host.routes(table=1000, family=2)] == ["10.1.0.0/16"]
    assert host.routes(table=4711, family=2) == []


def test_ipv6_routes_and_the_local_table_are_read(host):
    host.create_veth("a", "b", up=True)
    index = host.link("a").index
    host.add_address(index, "fd00::1/64", flags=ifaddrs.IFA_F_NODAD)
    host.add_route("fd01::/64", via="fd00::2", oif=index, protocol=87)
    assert [(r.dst, r.via) for r in host.routes(protocol=87)] == [("fd01::/64", "fd00::2")]
    deadline = time.monotonic() + 5
    while not any(r.dst == "fd00::1/128" for r in host.routes(table=routes.RT_TABLE_LOCAL, family=10)):
        assert time.monotonic() < deadline  # the kernel adds it from a work queue
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [
        (lambda h: h.link("nope"), NotFound, "looking up the link nope: .*ENODEV"),
        (lambda h: h.link("a-name-with-16-ch"), NotFound, "at most 15 bytes"),
        (lambda h: h.delete_link(999), NotFound, "index 999"),
        (lambda h: h.add_route("10.0.0.0/8", via="9.9.9.9"), KernelError, "Nexthop has invalid gateway"),
        (lambda h: h.create_bridge("br0", mtu=1), KernelError, "mtu less than device minimum"),
        (lambda h: h.route_to("192.0.2.1"), KernelError, "ENETUNREACH"),
    ],
)
def test_a_refusal_names_object_and_the_kernels_own_reason(host, work, kind, words):
    with pytest.raises(kind, match=words):
        work(host)


def test_a_dump_that_others_disturb_is_whole(host, node):
    """Links come and go all the time while they are listed; the ones that stay are in every listing."""
    for number in range(40):
        host.create_veth(f"stay{number}", f"peer{number}")
    stop = threading.Event()

    def disturb():
        with node.rtnl() as door:
            while not stop.is_set():
                door.create_veth("come", "go")
                door.delete_link(door.link("come").index)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(100):
            names = {link.name for link in host.links()}
            assert len([name for name in names if name.startswith("stay")]) == 40
    finally:
        stop.set()
        thread.join()


def test_a_node_has_private_folders_and_leaves_nothing_behind():
    require("nsenter", "unshare")
    with Node() as node:
        node.write("/var/lib/cni/networks/x/10.0.0.1", "id")
        assert node.run("cat", "/var/lib/cni/networks/x/10.0.0.1").stdout == "id"
        assert node.listdir("/etc/cni") == []
    assert not os.path.exists("/var/lib/cni/networks/x")


def test_a_namespace_of_a_test_is_reachable_by_its_path(pod):
    with pod.rtnl() as inside:
        inside.create_bridge("br0")
    again = Netns(open_netns(pod.path))
    try:
        with again.rtnl() as door:
            assert door.link("br0").name == "br0"
    finally:
        again.close()


def test_a_link_deleted_ahead_is_gone_on_both_sides_when_the_call_returns():
    with netns() as one, netns() as other:
        for _ in range(20):
            with one.rtnl() as near, other.rtnl() as far:
                near.create_veth("near", "far", other.fd, up=True)
                index = far.link("far").index
                far.set_link(index, up=True)
                far.add_address(index, "10.0.0.1/24")
                far.delete_link_ahead(index)
            with one.rtnl() as near, other.rtnl() as far:
                assert near.find_link("near") is None
                assert far.find_link("far") is None
                assert [a for a in far.addresses(family=2) if a.ip == "10.0.0.1"] == []


def test_a_link_that_cannot_be_deleted_ahead_is_an_error_at_once():
    with netns() as one:
        with one.rtnl() as door, pytest.raises(NotFound):
            door.delete_link_ahead(4711)
        with one.rtnl() as door, pytest.raises(KernelError, match="deleting the link index 1: "):
            door.delete_link_ahead(1)  # loopback
