"""The installed executables on the real kernel: what an attachment can do, and what is left when something goes wrong."""

import json
import os
import random
import socket
import threading
import time

import pytest
from cni_rig import ARTICLE, Host, exchange

from podwire.cni.install import install
from podwire.kernel import owner
from podwire.testing.netns import lacks, require

pytestmark = pytest.mark.kernel

BRIDGE = {"name": "net", "cniVersion": "1.1.0", "type": "bridge", "bridge": "br0", "isDefaultGateway": True}
V4 = {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}
V6 = {"type": "host-local", "ranges": [[{"subnet": "fd00:9::/64"}]]}


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    require("root", "veth", "bridge-device", "nsenter", "unshare")
    folder = tmp_path_factory.mktemp("bin")
    install(str(folder))
    return str(folder)


@pytest.fixture
def host(binaries):
    made = Host(binaries)
    yield made
    made.close()


def test_the_articles_pod_has_address_bridge_and_files(host):
    result = host.add(ARTICLE)
    assert result["cniVersion"] == "0.1.0"
    assert result["ip4"]["ip"] == "10.244.1.2/24"
    assert host.node.read("/var/lib/cni/networks/cni0/10.244.1.2") == "pod\r\neth0"
    assert json.loads(host.node.read("/var/lib/cni/flannel/pod"))["type"] == "bridge"
    with host.node.rtnl() as door, host.pod("pod").rtnl() as inside:
        bridge = door.link("cni0")
        assert (bridge.kind, bridge.mtu, bridge.up) == ("bridge", 1450, True)
        assert [a.cidr for a in door.addresses(bridge.index, 2)] == ["10.244.1.1/24"]
        (port,) = door.links(kind="veth")
        assert (port.master, port.mtu, port.operstate, port.port.hairpin) == (bridge.index, 1450, "up", True)
        assert owner.alias_parts(port.alias) == ["cni", "cni0", "pod", "eth0"]
        eth0 = inside.link("eth0")
        assert (eth0.mtu, eth0.up) == (1450, True)
        routes = {(route.dst, route.via) for route in inside.routes(table=254, family=2)}
        assert routes == {("0.0.0.0/0", "10.244.1.1"), ("10.244.0.0/16", "10.244.1.1"), ("10.244.1.0/24", "")}
    host.delete(ARTICLE)
    assert host.reserved("cni0") == []
    assert host.ports() == []
    assert host.node.listdir("/var/lib/cni/flannel") == []


def test_two_pods_talk_through_the_bridge_from_the_moment_add_returns(host):
    for family, ipam in ((socket.AF_INET, V4), (socket.AF_INET6, V6)):
        conf = {**BRIDGE, "name": f"net{int(family)}", "ipam": ipam}
        one, two = (host.add(conf, name, ifname=f"eth{int(family)}") for name in ("one", "two"))
        server, client = (r["ips"][0]["address"].partition("/")[0] for r in (one, two))
        assert exchange(host.pod("one"), host.pod("two"), server, family) == client


def test_the_bridges_mac_stays_when_pods_come_and_go(host):
    conf = {**BRIDGE, "ipam": V4}
    macs = set()
    for name in ("one", "two", "three"):
        macs.add(host.add(conf, name)["interfaces"][0]["mac"])
    for name in ("one", "two", "three"):
        host.delete(conf, name)
        with host.node.rtnl() as door:
            macs.add(door.link("br0").mac)
    assert len(macs) == 1


def test_the_result_tells_what_is_there(host):
    conf = {**BRIDGE, "ipam": V4}
    result = host.add(conf)
    with host.node.rtnl() as door, host.pod("pod").rtnl() as inside:
        bridge, port, eth0 = result["interfaces"]
        assert door.link("br0").mac == bridge["mac"]
        assert door.link(port["name"]).mac == port["mac"]
        assert inside.link("eth0").mac == eth0["mac"]
    assert [i.get("sandbox") for i in result["interfaces"]] == [None, None, host.pod("pod").path]
    assert host.call("CHECK", {**conf, "prevResult": result}) == (0, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.pod("pod").run("ip", "addr", "del", "10.9.0.2/24", "dev", "eth0"), "Failed to match addr"),
        (lambda h: h.pod("pod").run("ip", "route", "del", "10.99.0.0/16"), "not found in routing table"),
        (lambda h: h.pod("pod").run("ip", "link", "del", "eth0"), "Interface name eth0 not found"),
        (lambda h: h.node.run("ip", "link", "del", "br0"), "Interface name br0 not found"),
        (lambda h: h.node.run("ip", "link", "set", h.ports()[0].name, "nomaster"), "CNI veth created for bridge br0 was not found"),
        (lambda h: h.node.run("ip", "link", "set", "br0", "promisc", "on"), "Promisc Mode false doesn't match current state: true"),
        (lambda h: h.node.run("rm", "/var/lib/cni/networks/net/10.9.0.2"), "host-local: Failed to find address added by container pod"),
        (lambda h: h.pod("pod").run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:09"), "doesn't match container Mac: 02:00:00:00:00:09"),
    ],
)  # fmt: skip
def test_check_says_what_is_no_longer_as_add_left_it(host, change, words):
    conf = {**BRIDGE, "ipam": {**V4, "routes": [{"dst": "10.99.0.0/16"}]}}
    result = host.add(conf)
    change(host)
    status, error = host.call("CHECK", {**conf, "prevResult": result})
    assert status == 1
    assert words in error["msg"]


@pytest.mark.parametrize(
    ("env", "args", "runtime", "expected"),
    [
        ("MAC=02:00:00:00:00:01", None, None, "02:00:00:00:00:01"),
        ("MAC=02:00:00:00:00:01", "02:00:00:00:00:02", None, "02:00:00:00:00:02"),
        ("MAC=02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03", "02:00:00:00:00:03"),
    ],
)
def test_the_nearest_of_three_mac_addresses_wins(host, env, args, runtime, expected):
    conf = {**BRIDGE, "ipam": V4}
    if args:
        conf["args"] = {"cni": {"mac": args}}
    if runtime:
        conf["runtimeConfig"] = {"mac": runtime}
    assert host.add(conf, CNI_ARGS=f"IgnoreUnknown=1;{env}")["interfaces"][2]["mac"] == expected


def test_isolated_pods_reach_the_gateway_but_not_each_other(host):
    conf = {**BRIDGE, "portIsolation": True, "ipam": V4}
    first = host.add(conf, "one")["ips"][0]
    host.add(conf, "two")
    address = first["address"].partition("/")[0]
    with pytest.raises((TimeoutError, OSError)):
        host.pod("two").call(lambda: socket.create_connection((address, 1), timeout=1))
    assert exchange(host.node.netns, host.pod("two"), first["gateway"]) == "10.9.0.3"


def test_ipv6_addresses_are_settled_when_add_returns(host):
    for dad in (False, True):
        conf = {**BRIDGE, "enabledad": dad, "ipam": V6}
        host.add(conf, f"pod{dad}")
        with host.pod(f"pod{dad}").rtnl() as inside:
            assert not any(a.tentative or a.dad_failed for a in inside.addresses(family=10) if not a.link_local)


def test_an_address_that_somebody_else_has_fails_the_add(host):
    for network in ("one", "two"):
        conf = {**BRIDGE, "enabledad": True, "name": network, "ipam": V6}
        status, error = host.call("ADD", conf, network)
    assert status == 1
    assert error["msg"] == ('failed to settle addresses for "eth0": link eth0 has address fd00:9::2 in DADFAILED state')


def test_ipv6_is_switched_on_where_an_address_needs_it(host):
    host.pod("pod").run("sysctl", "-w", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
    assert host.add({**BRIDGE, "ipam": V6})["ips"][0]["address"] == "fd00:9::2/64"


def test_layer_2_brings_the_interface_up_and_disabling_it_leaves_it_down(host):
    host.add({**BRIDGE, "ipam": {}}, "up")
    host.add({**BRIDGE, "disableContainerInterface": True}, "down")
    for name, up in (("up", True), ("down", False)):
        with host.pod(name).rtnl() as inside:
            assert inside.link("eth0").up is up


def test_masquerade_hides_a_pod_from_outside_in_either_backend(host):
    require("iptables", "nft")
    for backend in ("iptables", "nftables"):
        conf = {**BRIDGE, "ipMasq": True, "ipMasqBackend": backend, "ipam": V4}
        host.add(conf, backend)
        outside = host.pod(f"outside-{backend}")
        with host.node.rtnl() as door, outside.rtnl() as far:
            door.create_veth("wan", "wan", outside.fd, up=True)
            door.add_address(door.link("wan").index, "192.0.2.1/24")
            far.set_link(far.link("wan").index, up=True)
            far.add_address(far.link("wan").index, "192.0.2.2/24")
        assert exchange(outside, host.pod(backend), "192.0.2.2") == "192.0.2.1"
        with host.node.rtnl() as door:
            door.delete_link(door.link("wan").index)
        host.delete(conf, backend)
    assert "CNI-" not in host.node.run("iptables-save", "-t", "nat").stdout
    assert "saddr" not in host.node.run("nft", "list", "table", "inet", "cni_plugins_masquerade").stdout


def test_masquerade_is_undone_whichever_backend_made_it_and_without_the_link(host):
    require("iptables", "nft")
    for made, undone in (("iptables", "nftables"), ("nftables", "iptables")):
        conf = {**BRIDGE, "ipMasq": True, "ipam": {"type": "host-local", "ranges": [*V4["ranges"], *V6["ranges"]]}}
        host.add({**conf, "ipMasqBackend": made})
        host.pod("pod").run("ip", "link", "del", "eth0")
        host.delete({**conf, "ipMasqBackend": undone})
        assert "CNI-" not in host.node.run("iptables-save").stdout + host.node.run("ip6tables-save").stdout
        assert "saddr" not in host.node.run("nft", "list", "ruleset").stdout


def test_a_pod_that_lies_about_its_mac_is_not_heard(host):
    require("nft")
    conf = {**BRIDGE, "macspoofchk": True, "ipam": V4}
    host.add(conf, "honest")
    gateway = host.add(conf, "liar")["ips"][0]["gateway"]
    assert exchange(host.node.netns, host.pod("liar"), gateway) == "10.9.0.3"
    host.pod("liar").run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:66")
    with pytest.raises((TimeoutError, OSError)):
        host.pod("liar").call(lambda: socket.create_connection((gateway, 1), timeout=1))
    for name in ("liar", "honest", "honest"):
        host.delete(conf, name)
    assert "cni-br-iface" not in host.node.run("nft", "list", "ruleset").stdout


def test_vlans_need_a_kernel_that_filters_them(host):
    conf = {**BRIDGE, "vlan": 100, "ipam": V4}
    if lacks("vlan-filtering"):
        status, error = host.call("ADD", conf)
        assert status == 1
        assert error["msg"] == 'failed to create bridge "br0": could not add "br0": operation not supported'
        return
    result = host.add(conf)
    assert result["interfaces"][3]["name"] == "br0.100"
    with host.node.rtnl() as door:
        assert door.vlans(door.link(result["interfaces"][1]["name"]).index) == [100]
        assert [a.cidr for a in door.addresses(door.link("br0.100").index, 2)] == ["10.9.0.1/24"]
    host.delete(conf)


def test_a_failed_add_takes_back_everything_but_the_bridge(host):
    conf = {**BRIDGE, "ipam": {**V4, "routes": [{"dst": "10.77.0.0/16", "gw": "198.51.100.1"}]}}
    status, error = host.call("ADD", conf)
    assert status == 1
    assert "failed to add route" in error["msg"]
    assert host.ports() == []
    assert host.reserved("net") == []
    host.delete(conf)


def test_gc_frees_links_addresses_and_rules_of_what_is_not_valid_and_reports_what_is_not_marked(host):
    require("iptables")
    conf = {**BRIDGE, "ipMasq": True, "ipam": V4}
    for name in ("keep", "leak"):
        host.add(conf, name)
    with host.node.rtnl() as door:
        door.create_veth("foreign", "foreign2", master=door.link("br0").index)
    valid = [{"containerID": "keep", "ifname": "eth0"}]
    process = host.start("GC", {**conf, "cni.dev/valid-attachments": valid})
    said, notes = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")
    assert "foreign on br0 has no mark of podwire and is left alone" in notes
    assert host.reserved("net") == ["10.9.0.2"]
    marks = [owner.alias_parts(link.alias) for link in host.ports() if link.alias]
    assert marks == [["cni", "net", "keep", "eth0"]]
    rules = host.node.run("iptables-save", "-t", "nat").stdout
    assert "leak" not in rules
    assert "keep" in rules
    assert exchange(host.node.netns, host.pod("keep"), "10.9.0.1") == "10.9.0.2"


def test_loopback_is_brought_up(host):
    pod = host.pod("pod")
    pod.run("ip", "link", "set", "lo", "down")
    host.add({"name": "lo", "cniVersion": "1.0.0", "type": "loopback"}, ifname="lo")
    assert exchange(pod, pod, "127.0.0.1") == "127.0.0.1"


def test_two_hundred_at_once_never_share_an_address_and_leave_nothing(host):
    conf = {**ARTICLE, "cniVersion": "1.0.0"}
    names = [f"pod{number}" for number in range(100)]
    for name in names:
        host.pod(name)

    def wave(command, chosen):
        answers = {}
        gate = threading.Semaphore(25)

        def one(name):
            with gate:
                answers[name] = host.call(command, conf, name)

        threads = [threading.Thread(target=one, args=(name,)) for name in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(answer[0] == 0 for answer in answers.values()), answers
        return answers

    added = wave("ADD", names)
    addresses = [answer[1]["ips"][0]["address"] for answer in added.values()]
    assert len(set(addresses)) == 100
    assert len(host.reserved("cni0")) == 100
    wave("DEL", names)
    assert host.reserved("cni0") == []
    assert host.ports() == []
    assert host.node.listdir("/var/lib/cni/flannel") == []


def test_whenever_an_add_is_killed_del_cleans_up(host):
    """Killed after a random time, in all parts of an ADD; its DEL then succeeds, and nothing of it is left."""
    conf = {**ARTICLE, "cniVersion": "1.0.0"}
    host.add(conf, "warm")
    dice = random.Random(1)
    finished = 0
    for _ in range(60):
        process = host.start("ADD", conf)
        time.sleep(dice.uniform(0.004, 0.045))
        process.kill()
        process.communicate()
        finished += process.returncode == 0
        host.delete(conf)
        assert host.reserved("cni0") == ["10.244.1.2"]
        assert len(host.ports()) == 1
        assert host.node.listdir("/var/lib/cni/flannel") == ["warm"]
    assert finished < 60
    host.add(conf)


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_every_system_call_in_turn_nothing_is_left_after_del(host, command):
    """strace kills the plugin at its first, second, … call of those that change or hold anything."""
    require("strace")
    calls = "write,rename,mkdir,unlink,fsync,flock,sendto,setns,close"
    conf = {**ARTICLE, "cniVersion": "1.0.0"}
    host.add(conf, "warm")
    for number in range(1, 1000):
        if command == "DEL":
            host.add(conf)
        inject = f"inject={calls}:signal=KILL:when={number}"
        process = host.start(
            command, conf, under=["strace", "-f", "-o", "/dev/null", "-e", f"trace={calls}", "-e", inject]
        )
        process.communicate(timeout=60)
        host.delete(conf)
        assert host.reserved("cni0") == ["10.244.1.2"], number
        assert len(host.ports()) == 1, number
        assert host.node.listdir("/var/lib/cni/flannel") == ["warm"], number
        if process.returncode == 0:
            break
    assert number > 20


def test_two_adds_of_one_attachment_at_once_make_one(host):
    conf = {**BRIDGE, "ipam": V4}
    processes = [host.start("ADD", conf) for _ in range(8)]
    for process in processes:
        process.communicate(timeout=60)
    assert sorted(process.returncode for process in processes) == [0] + [1] * 7
    assert len(host.reserved("net")) == 1
    assert len(host.ports()) == 1
    host.delete(conf)
    assert host.reserved("net") == []


def test_a_full_disk_is_named_and_nothing_is_left(host):
    host.node.run(
        "sh", "-c", "mkdir -p /var/lib/cni/networks && mount -t tmpfs -o size=4096 tmpfs /var/lib/cni/networks"
    )
    host.node.run(
        "sh", "-c", "mkdir /var/lib/cni/networks/net; head -c 8192 /dev/zero > /var/lib/cni/networks/fill || true"
    )
    status, error = host.call("ADD", {**BRIDGE, "ipam": V4})
    assert status == 1
    assert "/var/lib/cni/networks/net/10.9.0.2: no space left on device" in error["msg"]
    assert "free space" in error["details"]
    assert host.ports() == []
    assert host.reserved("net") == []
    host.node.run("rm", "/var/lib/cni/networks/fill")
    host.delete({**BRIDGE, "ipam": V4})
    host.add({**BRIDGE, "ipam": V4})


def test_a_read_only_disk_is_named_and_an_address_on_it_is_not_lost(host):
    conf = {**BRIDGE, "ipam": V4}
    host.add(conf, "before")
    host.node.run("mount", "-o", "remount,ro", "/var/lib/cni")
    status, error = host.call("ADD", conf)
    assert status == 1
    assert "10.9.0.3: read-only file system" in error["msg"]
    assert "remount" in error["details"]
    status, error = host.call("DEL", conf, "before")
    assert status == 1
    assert error["msg"] == "remove /var/lib/cni/networks/net/10.9.0.2: read-only file system"
    host.node.run("mount", "-o", "remount,rw", "/var/lib/cni")
    host.delete(conf, "before")
    assert host.reserved("net") == []


def test_a_namespace_that_vanished_does_not_keep_its_address(host):
    conf = {**ARTICLE, "cniVersion": "1.0.0"}
    host.add(conf, "gone")
    path = host.pod("gone").path
    host.pods.pop("gone").close()
    assert not os.path.exists(path)
    host.delete(conf, "gone", netns=path)
    assert host.reserved("cni0") == []
    deadline = time.monotonic() + 10
    while host.ports() and time.monotonic() < deadline:  # the kernel takes a namespace apart some time later
        time.sleep(0.05)
    assert host.ports() == []
