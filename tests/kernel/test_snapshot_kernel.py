"""What the kernel is asked itself agrees with what iproute2, ss and conntrack print, so a node without them is read as well."""

import json
import os
import subprocess
import threading

import pytest

from podwire.explain import snapshot_kernel as kernel
from podwire.explain import snapshot_live as live
from podwire.explain import snapshot_proc as proc
from podwire.explain.snapshot import Snapshot
from podwire.explain.snapshot_files import File, add
from podwire.kernel import namespaces
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

SET_UP = """
ip link set lo up
ip link add cni0 type bridge
ip link set cni0 up
ip addr add 10.244.1.1/24 dev cni0
ip link add veth0 type veth peer name far0
ip link set veth0 master cni0 up
ip link set far0 up
ip link set veth0 type bridge_slave hairpin on
ip link add flannel.1 type vxlan id 1 local 10.244.1.1 dev cni0 dstport 8472 nolearning
ip link set flannel.1 address 02:00:00:00:00:01 up
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
ip route add default via 10.244.1.9 dev cni0 table 101
ip route add blackhole 10.9.0.0/16
ip rule add from 10.244.0.0/16 fwmark 0x10/0xff iif cni0 lookup 101 priority 100
ip rule add not from 10.1.0.0/16 to 10.2.0.0/16 priority 200 unreachable
ip neigh add 10.244.2.0 dev flannel.1 lladdr 02:00:00:00:00:02 nud permanent
bridge fdb add 02:00:00:00:00:02 dev flannel.1 dst 192.0.2.2
"""


@pytest.fixture(scope="module")
def inside():
    """A function that runs another in a namespace like a node's."""
    require("root", "ip", "bridge", "bridge-device", "veth", "vxlan")
    fd = namespaces.new_netns()

    def call(function):
        found = []

        def work():
            namespaces.setns(fd)
            found.append(function())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0]

    call(lambda: subprocess.run(["sh", "-e"], input=SET_UP.encode(), check=True))
    yield call
    os.close(fd)


def run(*argv):
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout


def picture(**files):
    snapshot = Snapshot()
    for name, text in files.items():
        add(snapshot, File(f"{name}.json", text.encode(), ""))
    return snapshot


def test_links_and_addresses_are_what_ip_says(inside):
    ours = inside(lambda: picture(links=kernel.links(), addr=kernel.addresses()))
    theirs = inside(lambda: picture(links=run("ip", "-d", "-j", "link"), addr=run("ip", "-j", "addr")))
    assert ours.addresses == theirs.addresses
    for mine in ours.links:
        other = theirs.link(mine.name)
        same = ("mtu", "kind", "index", "mac", "state", "master", "peer", "vxlan", "up", "alias")
        assert [getattr(mine, field) for field in same] == [getattr(other, field) for field in same]
    assert ours.link("veth0").hairpin is True


@pytest.mark.parametrize("version", [4, 6])
def test_routes_and_rules_are_what_ip_says(inside, version):
    family = ["-6"] if version == 6 else ["-4"]
    ours = inside(
        lambda: picture(
            **{f"ip-route{version}": kernel.routes(version), f"ip-rule{version}": kernel.policy_rules(version)}
        )
    )
    theirs = inside(
        lambda: picture(
            **{
                f"ip-route{version}": run("ip", *family, "-j", "route", "show", "table", "all"),
                f"ip-rule{version}": run("ip", *family, "-j", "rule"),
            }
        )
    )

    def key(route):
        return (route.dst, route.via, route.dev, route.src, route.table, route.kind, route.onlink, route.metric)

    assert sorted(map(key, ours.routes or [])) == sorted(map(key, theirs.routes or []))

    def rule_key(rule):
        return (
            rule.priority,
            rule.table,
            rule.src,
            rule.dst,
            rule.mark,
            rule.mask,
            rule.iif,
            rule.inverted,
            rule.action,
        )

    assert list(map(rule_key, ours.policy_rules)) == list(map(rule_key, theirs.policy_rules))


def test_neighbours_and_forwarding_entries_are_what_iproute2_says(inside):
    ours = inside(lambda: picture(neigh=kernel.neighbours(), fdb=kernel.fdb()))
    theirs = inside(lambda: picture(neigh=run("ip", "-j", "neigh"), fdb=run("bridge", "-j", "fdb")))
    assert {(one.ip, one.dev, one.mac, one.state) for one in ours.neighbours} == {
        (one.ip, one.dev, one.mac, one.state) for one in theirs.neighbours
    }
    assert {(one.mac, one.dev, one.dst) for one in ours.fdb} == {(one.mac, one.dev, one.dst) for one in theirs.fdb}


def test_sockets_are_what_ss_says(inside):
    import socket

    def listen():
        with socket.create_server(("127.0.0.1", 4711)), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("::1", 4712))
            ours, theirs = Snapshot(), Snapshot()
            add(ours, File("ss.txt", proc.sockets().encode(), ""))
            add(theirs, File("ss.txt", run("ss", "-H", "-tuanp").encode(), ""))
            return ours.sockets, theirs.sockets

    ours, theirs = inside(listen)
    assert {(one.protocol, one.state, one.ip, one.port, one.pid) for one in ours} == {
        (one.protocol, one.state, one.ip, one.port, one.pid) for one in theirs
    }
    # The kernel's own socket of the vxlan device has no process.
    assert {(one.ip, one.port, one.pid) for one in ours} == {
        ("127.0.0.1", 4711, os.getpid()),
        ("::1", 4712, os.getpid()),
        ("0.0.0.0", 8472, 0),
    }


def test_a_node_with_nothing_but_python_is_read_all_the_same(inside, monkeypatch, tmp_path):
    # No program is found: spawn looks in the sbin folders too, so its search itself is what an empty node has not got.
    monkeypatch.setattr("podwire.kernel.spawn.find", lambda *_: None)
    found = inside(lambda: live.collect(kernel_log=False))
    snapshot = found.snapshot(0, "here", live=True)
    assert snapshot.link("flannel.1").vxlan.vni == 1
    assert any(route.dst == "10.244.2.0/24" for route in snapshot.routes)
    assert any(rule.priority == 100 for rule in snapshot.policy_rules)
    assert snapshot.sockets is not None
    assert found.unread["rules/nft.json"] == "nft is not installed"
    assert json.loads(found.files["net/ip-link.json"])


def test_other_namespaces_show_the_pods_ends(inside):
    space = inside(lambda: json.loads(kernel.namespaces()))
    assert all({"netns", "links"} <= set(one) for one in space)
    assert any(link["ifname"] == "lo" for one in space for link in one["links"])
