"""The plugin tuning on a real interface, and the chain bridge, static, tuning."""

import json

import pytest
from cni_rig import Host

from podwire.cni.install import install
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

BRIDGE = {
    "name": "net",
    "cniVersion": "1.1.0",
    "type": "bridge",
    "bridge": "br0",
    "isGateway": True,
    "ipam": {"type": "static", "addresses": [{"address": "10.9.0.7/24", "gateway": "10.9.0.1"}, {"address": "fd00:9::7/64"}]},
}  # fmt: skip
MAC = "02:00:00:00:00:77"


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


def tuning(**options):
    previous = {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/x"}]}
    return {"name": "net", "cniVersion": "1.1.0", "type": "tuning", "prevResult": previous, **options}


def eth0(host):
    with host.pod("pod").rtnl() as inside:
        return inside.link("eth0")


def test_static_addresses_are_configured_by_bridge(host):
    result = host.add(BRIDGE)
    assert [ip["address"] for ip in result["ips"]] == ["10.9.0.7/24", "fd00:9::7/64"]
    with host.pod("pod").rtnl() as inside:
        held = {a.cidr for a in inside.addresses(inside.link("eth0").index) if not a.link_local}
    assert held == {"10.9.0.7/24", "fd00:9::7/64"}
    assert host.call("CHECK", {**BRIDGE, "prevResult": result}) == (0, None)
    assert host.call("STATUS", BRIDGE) == (0, None)
    host.delete(BRIDGE)


def test_settings_are_changed_told_checked_and_restored(host):
    result = host.add(BRIDGE)
    before = eth0(host)
    conf = tuning(
        prevResult=result, mac=MAC, mtu=1400, promisc=True, allmulti=True, txQLen=5,
        sysctl={"net.ipv4.conf.IFNAME.arp_filter": "1", "net/core/somaxconn": "99"},
    )  # fmt: skip
    told = host.add(conf)
    assert [i["mac"] for i in told["interfaces"]] == [*(i["mac"] for i in result["interfaces"][:2]), MAC]
    changed = eth0(host)
    assert (changed.mac, changed.mtu, changed.promisc, changed.allmulti, changed.txqlen) == (MAC, 1400, True, True, 5)
    said = host.pod("pod").run("sysctl", "-n", "net.ipv4.conf.eth0.arp_filter", "net.core.somaxconn").stdout
    assert said.split() == ["1", "99"]
    kept = json.loads(host.node.read("/run/cni/tuning/pod_eth0.json"))
    assert kept == {"mac": before.mac, "promisc": False, "mtu": 1500, "allmulti": False, "txQLen": before.txqlen}
    assert host.call("CHECK", {**conf, "prevResult": told}) == (0, None)
    for _ in range(2):
        host.delete(conf)
        after = eth0(host)
        assert (after.mac, after.mtu, after.promisc, after.allmulti, after.txqlen) == (
            before.mac, 1500, False, False, before.txqlen,
        )  # fmt: skip
        assert host.node.listdir("/run/cni/tuning") == []


@pytest.mark.parametrize(
    ("setting", "change", "words"),
    [
        ({"mtu": 1400}, ["mtu", "1300"], "configured MTU of eth0 is 1400, current value is 1300"),
        ({"mac": MAC}, ["address", "02:00:00:00:00:01"], f"Ethernet of eth0 is {MAC}, current value is 02:00:00:00:00:01"),
        ({"promisc": True}, ["promisc", "off"], "link eth0 configured promisc is true, current value is 0"),
        ({}, ["promisc", "on"], "link eth0 configured promisc is false, current value is 1"),
        ({"allmulti": False}, ["allmulticast", "on"], "all-multicast mode of eth0 is false, current value is true"),
        ({"txQLen": 5}, ["txqueuelen", "6"], "Transmit Queue Length of eth0 is 5, current value is 6"),
    ],
)  # fmt: skip
def test_check_says_what_somebody_changed(host, setting, change, words):
    host.add(BRIDGE)
    conf = tuning(**setting)
    host.add(conf)
    assert host.call("CHECK", conf) == (0, None)
    host.pod("pod").run("ip", "link", "set", "eth0", *change)
    status, error = host.call("CHECK", conf)
    assert status == 1
    assert error["msg"].endswith(words)


def test_check_says_which_sysctl_is_another(host):
    host.add(BRIDGE)
    conf = tuning(sysctl={"net.core.somaxconn": "99"})
    host.add(conf)
    host.pod("pod").run("sysctl", "-w", "net.core.somaxconn=98")
    status, error = host.call("CHECK", conf)
    assert (status, error["msg"]) == (
        1, "Error: Tuning configured value of /proc/sys/net/core/somaxconn is 99, current value is 98",
    )  # fmt: skip


def test_only_sysctls_that_the_administrator_allows_are_written(host):
    host.add(BRIDGE)
    host.node.write("/etc/cni/tuning/allowlist.conf", "^net.core.*$\n\n  ^net.ipv4.conf.[a-zA-Z0-9]+.arp_.*$ \n")
    for name in ("net.core.somaxconn", "net.ipv4.conf.IFNAME.arp_filter"):
        host.add(tuning(sysctl={name: "1"}))
    status, error = host.call("ADD", tuning(sysctl={"net.ipv4.ip_forward": "1"}))
    assert status == 1
    assert error["msg"] == (
        "Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: "
        "[^net.core.*$ ^net.ipv4.conf.[a-zA-Z0-9]+.arp_.*$]"
    )


def test_a_namespace_that_vanished_leaves_no_file(host):
    host.add(BRIDGE)
    conf = tuning(mtu=1400)
    host.add(conf)
    host.delete(conf, netns="/run/netns/gone")
    assert host.node.listdir("/run/cni/tuning") == []


def test_a_folder_that_cannot_be_written_is_named_and_nothing_is_changed(host):
    host.add(BRIDGE)
    host.node.write("/run/cni/tuning", "a file")
    status, error = host.call("ADD", tuning(mtu=1400))
    assert status == 1
    assert error["msg"].startswith("failed to save file /run/cni/tuning/pod_eth0.json: ")
    assert eth0(host).mtu == 1500
    host.delete(tuning(mtu=1400))
