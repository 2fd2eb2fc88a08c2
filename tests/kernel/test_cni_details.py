"""Behaviour of the reference plugins that is easy to miss, observed on the installed executables."""

import json

import pytest
from cni_rig import ARTICLE, Host

from podwire.cni.install import install
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

BRIDGE = {"name": "net", "cniVersion": "1.1.0", "type": "bridge", "bridge": "br0", "isDefaultGateway": True}
V4 = {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}
# An IPAM plugin of somebody else: it notes what it was asked and which ports the bridge has at that moment.
SPY = """#!/bin/sh
echo "$CNI_COMMAND $(ls /sys/class/net/br0/brif | wc -l)" >> {log}
[ -e {says}.$CNI_COMMAND ] && {{ cat {says}.$CNI_COMMAND; exit 1; }}
[ "$CNI_COMMAND" != ADD ] || echo '{{"cniVersion": "1.0.0", "ips": [{{"address": "10.9.0.9/24"}}]}}'
"""


@pytest.fixture
def host(tmp_path):
    require("root", "veth", "bridge-device", "nsenter", "unshare")
    install(str(tmp_path / "bin"))
    spy = tmp_path / "bin" / "spy"
    spy.write_text(SPY.format(log=tmp_path / "log", says=tmp_path / "says"))
    spy.chmod(0o755)
    made = Host(str(tmp_path / "bin"))
    made.node.run("mount", "-t", "sysfs", "sysfs", "/sys")  # of this network namespace
    yield made
    made.close()


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_an_old_version_cannot_tell_a_result_without_address_but_its_attachment_is_made_and_removed(host, version):
    conf = {**BRIDGE, "cniVersion": version, "isDefaultGateway": False, "ipam": {}}
    status, error = host.call("ADD", conf)
    assert (status, error["msg"]) == (1, "cannot convert: no valid IP addresses")
    assert len(host.ports()) == 1
    host.delete(conf)
    assert host.ports() == []


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_an_old_version_has_one_address_a_family_for_add_and_for_del(host, version):
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "10.8.0.0/24"}]]}
    for command in ("ADD", "DEL"):
        status, error = host.call(command, {**BRIDGE, "cniVersion": version, "ipam": ipam})
        assert (status, error["msg"]) == (1, f"CNI version {version} does not support more than 1 address per family")
    assert host.ports() == []


def test_check_takes_routes_that_are_null(host):
    conf = {**BRIDGE, "isDefaultGateway": False, "ipam": V4}
    result = host.add(conf)
    assert host.call("CHECK", {**conf, "prevResult": {**result, "routes": None}}) == (0, None)


def test_check_goes_from_ipam_over_bridge_and_container_to_the_routes(host):
    conf = {**BRIDGE, "ipam": {**V4, "routes": [{"dst": "10.99.0.0/16"}]}}
    result = host.add(conf)
    node, pod = host.node, host.pod("pod")
    port = host.ports()[0].name
    reservation = node.read("/var/lib/cni/networks/net/10.9.0.2")
    # From the last thing that is looked at to the first: each makes itself heard before those broken earlier.
    steps = [
        (lambda: pod.run("ip", "route", "del", "10.99.0.0/16"), "Expected Route"),
        (lambda: pod.run("ip", "addr", "del", "10.9.0.2/24", "dev", "eth0"), "Failed to match addr 10.9.0.2/24"),
        (lambda: node.run("ip", "link", "set", port, "nomaster"), "CNI veth created for bridge br0 was not found"),
        (lambda: pod.run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:09"), "doesn't match container Mac"),
        (lambda: node.run("ip", "link", "set", "br0", "promisc", "on"), "configured Promisc Mode false"),
        (lambda: node.run("rm", "/var/lib/cni/networks/net/10.9.0.2"), "host-local: Failed to find address"),
    ]
    for step, words in steps:
        step()
        status, error = host.call("CHECK", {**conf, "prevResult": result})
        assert (status, error["code"]) == (1, 999)
        assert words in error["msg"]
    status, error = host.call("CHECK", conf)
    assert "host-local: Failed to find address" in error["msg"]
    node.write("/var/lib/cni/networks/net/10.9.0.2", reservation)
    status, error = host.call("CHECK", conf)
    assert error["msg"] == "Required prevResult missing"


def test_an_address_is_released_when_its_link_is_gone_and_not_before(host, tmp_path):
    conf = {**BRIDGE, "ipam": {"type": "spy"}}
    host.add(conf)
    host.delete(conf)
    assert (tmp_path / "log").read_text().splitlines() == ["ADD 1", "DEL 0"]


@pytest.mark.parametrize(
    ("command", "code"), [("ADD", 11), ("DEL", 102), ("CHECK", 7), ("STATUS", 50), ("STATUS", 51), ("GC", 100)]
)
@pytest.mark.parametrize("outer", ["bridge", "flannel"])
def test_the_inner_plugins_code_message_and_details_pass_through_all_others(host, tmp_path, command, code, outer):
    conf = {**BRIDGE, "ipam": {"type": "spy"}}
    if outer == "flannel":
        conf = {**ARTICLE, "cniVersion": "1.1.0", "ipam": {"type": "spy"}}
        conf["delegate"] = {"bridge": "br0", "isDefaultGateway": True}
    said = {"code": code, "msg": "inner words", "details": "and more"}
    if command != "ADD":
        host.add(conf)
    (tmp_path / f"says.{command}").write_text(json.dumps(said))
    status, error = host.call(command, {**conf, "prevResult": {"cniVersion": "1.1.0"}})
    if command == "GC":
        assert (status, error["code"]) == (1, 999)
        assert "inner words" in error["msg"]
    elif (command, outer) == ("CHECK", "flannel"):
        assert status == 0  # the reference plugin's CHECK does nothing either
    else:
        assert (status, error) == (1, said)


def test_host_and_container_may_be_the_same_namespace_when_that_is_allowed(host):
    path = f"/proc/{host.node.pid}/ns/net"
    conf = {**BRIDGE, "ipam": V4}
    result = host.add(conf, netns=path, CNI_NETNS_OVERRIDE="1")
    with host.node.rtnl() as door:
        assert [a.cidr for a in door.addresses(door.link("eth0").index, 2)] == ["10.9.0.2/24"]
    assert host.call("CHECK", {**conf, "prevResult": result}, netns=path, CNI_NETNS_OVERRIDE="1") == (0, None)
    host.delete(conf, netns=path, CNI_NETNS_OVERRIDE="1")
    assert host.ports() == []
    assert host.reserved("net") == []
    status, error = host.call("ADD", conf, netns=path)
    assert (status, error["code"]) == (1, 8)
    host.delete(conf, netns=path, CNI_NETNS_OVERRIDE="true")


def test_one_gateway_address_for_each_of_the_containers_addresses(host):
    ranges = [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}], [{"subnet": "fd00:8::/64"}]]
    result = host.add({**BRIDGE, "ipam": {"type": "host-local", "ranges": ranges}})
    gateways = {ip["gateway"] for ip in result["ips"]}
    with host.node.rtnl() as door:
        held = {a.ip for a in door.addresses(door.link("br0").index) if not a.link_local}
    assert held == gateways == {"10.9.0.1", "fd00:9::1", "fd00:8::1"}


def test_of_two_that_want_the_last_address_one_gets_it(host):
    conf = {**BRIDGE, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/30"}]]}}
    running = [host.start("ADD", conf, name) for name in ("one", "two")]
    said = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert sorted(process.returncode for process in running) == [0, 1]
    (error,) = [one["msg"] for one in said if "msg" in one]
    assert "no IP addresses available in range set: 10.9.0.1-10.9.0.2" in error
    assert len(host.ports()) == 1
    assert host.reserved("net") == ["10.9.0.2"]


def test_del_succeeds_with_nothing_but_the_configuration(host):
    for conf in ({**BRIDGE, "ipam": V4, "ipMasq": True}, {**ARTICLE, "cniVersion": "1.1.0"}):
        host.delete(conf, netns="")
        host.delete(conf, netns="/run/netns/gone")
        host.delete(conf)


def test_a_new_layer_2_bridge_has_its_link_local_address_before_anybody_is_up(host):
    host.add({**BRIDGE, "ipam": {}, "isDefaultGateway": False, "disableContainerInterface": True})
    with host.node.rtnl() as door:
        bridge = door.link("br0")
        assert any(a.link_local for a in door.addresses(bridge.index, 10))
        before = bridge.mac
        door.delete_link(host.ports()[0].index)
        assert door.link("br0").mac == before


def test_no_plugin_needs_more_than_the_cni_variables(host):
    """Neither PATH nor HOME; a working directory that is gone; nothing of podwire running."""
    conf = {**ARTICLE, "cniVersion": "1.1.0", "delegate": {**ARTICLE["delegate"], "ipMasq": True}}
    folder = "/run/gone"
    script = f'mkdir {folder}; cd {folder}; rmdir {folder}; exec "$@"'
    result = host.add(conf, under=["/bin/sh", "-c", script, "sh"])
    assert result["ips"][0]["address"] == "10.244.1.2/24"
    host.delete(conf)
