"""The runtime over chains: podwire's own plugins, anybody's plugins, the cache on disk, and the command line."""

import base64
import json
import os
import subprocess
import sys

import pytest

from podwire.cni.install import install
from podwire.cni.runtime import Attachment, Runtime, bring_up_loopback
from podwire.cni.spec import conf
from podwire.errors import CniError
from podwire.testing.netns import Netns, Node, require

pytestmark = pytest.mark.kernel

BRIDGE = {"type": "bridge", "bridge": "br0", "isDefaultGateway": True}
RECORDER = """#!/bin/sh
cat > {folder}/{name}.$CNI_COMMAND
env | grep ^CNI_ | sort > {folder}/{name}.$CNI_COMMAND.env
[ -e {folder}/{name}.fails ] && {{ cat {folder}/{name}.fails; exit 1; }}
case $CNI_COMMAND in
ADD) echo '{{"cniVersion":"1.0.0","ips":[{{"address":"10.0.0.{number}/24"}}]}}' ;;
VERSION) echo '{{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}}' ;;
esac
"""


@pytest.fixture
def bin_dir(tmp_path):
    require("root")
    folder = tmp_path / "bin"
    install(str(folder))
    for number, name in enumerate(("first", "second"), 1):
        (folder / name).write_text(RECORDER.format(folder=tmp_path, name=name, number=number))
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.fixture
def runtime(bin_dir, tmp_path):
    return Runtime([bin_dir], str(tmp_path / "cache"))


def network(*plugins, name="net", version="1.0.0", **more):
    raw = {"name": name, "cniVersion": version, "plugins": list(plugins), **more}
    return conf.parse_list(json.dumps(raw).encode())


def got(tmp_path, name):
    return json.loads((tmp_path / name).read_text())


ONE = Attachment(
    "abc", "/netns", "eth0", {"IgnoreUnknown": "1", "K8S_POD_NAME": "p"}, {"portMappings": [1], "mac": "x"}
)
CHAIN = ({"type": "first", "capabilities": {"portMappings": True, "mac": False}}, {"type": "second"})


def test_a_chain_runs_in_order_and_each_gets_the_result_so_far(runtime, tmp_path):
    result = runtime.add(network(*CHAIN), ONE)
    assert result == {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}
    first, second = got(tmp_path, "first.ADD"), got(tmp_path, "second.ADD")
    assert "prevResult" not in first
    assert second["prevResult"] == {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/24"}]}
    assert (first["name"], first["cniVersion"]) == ("net", "1.0.0")


def test_a_plugin_gets_only_the_capabilities_it_declares(runtime, tmp_path):
    runtime.add(network(*CHAIN), ONE)
    assert got(tmp_path, "first.ADD")["runtimeConfig"] == {"portMappings": [1]}
    assert "runtimeConfig" not in got(tmp_path, "second.ADD")


def test_the_environment_says_everything(runtime, bin_dir, tmp_path):
    runtime.add(network(*CHAIN), ONE)
    assert (tmp_path / "first.ADD.env").read_text().splitlines() == [
        "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=p",
        "CNI_COMMAND=ADD",
        "CNI_CONTAINERID=abc",
        "CNI_IFNAME=eth0",
        "CNI_NETNS=/netns",
        f"CNI_PATH={bin_dir}",
    ]


def test_the_cache_is_libcnis(runtime, tmp_path):
    chain = network(*CHAIN)
    runtime.add(chain, ONE)
    kept = got(tmp_path, "cache/results/net-abc-eth0")
    assert base64.b64decode(kept.pop("config")) == chain.text
    assert kept == {
        "kind": "cniCacheV1",
        "containerId": "abc",
        "ifName": "eth0",
        "networkName": "net",
        "netns": "/netns",
        "cniArgs": [["IgnoreUnknown", "1"], ["K8S_POD_NAME", "p"]],
        "capabilityArgs": {"portMappings": [1], "mac": "x"},
        "result": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]},
    }
    assert os.stat(tmp_path / "cache/results/net-abc-eth0").st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "cache") == ["results"]
    (one,) = runtime.cached("net")
    assert one.attachment == ONE


def test_del_and_check_get_what_add_ended_with_and_del_runs_backwards(runtime, tmp_path):
    chain = network(*CHAIN)
    runtime.add(chain, ONE)
    runtime.check(chain, ONE)
    (tmp_path / "first.fails").write_text('{"code": 11, "msg": "busy"}')
    with pytest.raises(CniError) as caught:
        runtime.delete(chain, ONE)
    assert (caught.value.code, caught.value.msg) == (11, 'plugin type="first" failed (delete): busy')
    for name in ("first.CHECK", "second.CHECK", "second.DEL", "first.DEL"):
        assert got(tmp_path, name)["prevResult"]["ips"] == [{"address": "10.0.0.2/24"}]
    assert (tmp_path / "cache/results/net-abc-eth0").exists()
    (tmp_path / "first.fails").unlink()
    runtime.delete(chain, ONE)
    assert os.listdir(tmp_path / "cache/results") == []
    runtime.delete(chain, ONE)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"kind": "cniCacheV1", "result": {"cniVersion": "1.0.0", "ips": 1}}']
)
def test_a_broken_cache_does_not_keep_a_container_from_being_deleted(runtime, tmp_path, content):
    (tmp_path / "cache/results").mkdir(parents=True)
    (tmp_path / "cache/results/net-abc-eth0").write_text(content)
    with pytest.raises(CniError, match='failed to get network "net" cached result'):
        runtime.check(network(*CHAIN), ONE)
    runtime.delete(network(*CHAIN), ONE)
    assert "prevResult" not in got(tmp_path, "first.DEL")
    assert runtime.cached() == []


def test_old_networks_get_no_previous_result_on_del_and_have_no_check(runtime, tmp_path):
    chain = network(*CHAIN, version="0.3.1")
    (tmp_path / "bin" / "first").write_text(
        RECORDER.format(folder=tmp_path, name="first", number=1).replace('"cniVersion":"1.0.0","ips"', '"ips"')
    )
    runtime.add(network(CHAIN[0], version="0.3.1"), ONE)
    runtime.delete(chain, ONE)
    assert "prevResult" not in got(tmp_path, "first.DEL")
    with pytest.raises(CniError, match=r'configuration version "0\.3\.1" does not support the CHECK command'):
        runtime.check(chain, ONE)


def test_a_failing_plugin_is_named_with_its_own_code(runtime, tmp_path):
    (tmp_path / "second.fails").write_text('{"code": 7, "msg": "bad", "details": "why"}')
    with pytest.raises(CniError) as caught:
        runtime.add(network(*CHAIN), ONE)
    assert (caught.value.code, caught.value.msg, caught.value.details) == (
        7,
        'plugin type="second" failed (add): bad',
        "why",
    )
    assert runtime.cached() == []


def test_a_plugin_that_is_not_there_is_named_with_the_path(runtime, bin_dir):
    with pytest.raises(CniError, match=rf'failed to find plugin "nope" in path \[{bin_dir}\]'):
        runtime.add(network({"type": "nope"}), ONE)


def test_a_plugin_that_hangs_is_ended(bin_dir, tmp_path):
    (tmp_path / "bin" / "first").write_text("#!/bin/sh\nexec sleep 60\n")
    slow = Runtime([bin_dir], str(tmp_path / "cache"), timeout=0.3)
    with pytest.raises(CniError, match=r'type="first" failed \(add\): .* had not ended after'):
        slow.add(network({"type": "first"}), ONE)


def test_gc_deletes_stale_attachments_and_tells_newer_plugins_which_stay(runtime, tmp_path):
    other = Attachment("def", "/netns2")
    for version, told in (("1.0.0", False), ("1.1.0", True)):
        chain = network(*CHAIN, version=version)
        for one in (ONE, other):
            runtime.add(network(*CHAIN), one)
        runtime.gc(chain, [ONE])
        assert [cached.attachment.container_id for cached in runtime.cached()] == ["abc"]
        assert (tmp_path / "first.GC").exists() is told
    assert got(tmp_path, "first.GC")["cni.dev/valid-attachments"] == [{"containerID": "abc", "ifname": "eth0"}]
    runtime.gc(network(*CHAIN, version="1.1.0", disableGC=True), [])
    assert len(runtime.cached()) == 1


def test_status_asks_every_plugin_and_the_first_that_cannot_serve_is_the_answer(runtime, tmp_path):
    runtime.status(network(*CHAIN))
    assert not (tmp_path / "first.STATUS").exists()
    (tmp_path / "first.fails").write_text('{"code": 50, "msg": "no lease"}')
    with pytest.raises(CniError) as caught:
        runtime.status(network(*CHAIN, version="1.1.0"))
    assert caught.value.code == 50


def test_versions_are_asked_of_the_plugin(runtime):
    assert runtime.supported_versions("first") == ["0.4.0", "1.0.0"]
    assert runtime.supported_versions("bridge")[-1] == "1.1.0"


@pytest.mark.parametrize(
    ("attachment", "code"),
    [(Attachment("", "/n"), 3), (Attachment("a/b", "/n"), 4), (Attachment("a", "/n", "x" * 16), 4)],
)
def test_what_cannot_be_attached_is_refused_before_any_plugin_runs(runtime, tmp_path, attachment, code):
    with pytest.raises(CniError) as caught:
        runtime.add(network(*CHAIN), attachment)
    assert caught.value.code == code
    assert not (tmp_path / "first.ADD").exists()


def test_podwires_plugins_run_in_the_runtimes_own_process(bin_dir, tmp_path):
    """From a namespace of its own, with threads; nothing is started but what is not podwire's."""
    require("veth", "bridge-device", "unshare")
    script = f"""
import json, os, threading
from podwire.cni.runtime import Attachment, Runtime
from podwire.cni.spec import conf
from podwire.kernel import spawn
from podwire.testing.netns import Netns
def forbidden(*a, **k): raise AssertionError("a program was started")
spawn.run = forbidden
chain = conf.parse_list(json.dumps({{"name": "net", "cniVersion": "1.0.0", "plugins": [{{
    "type": "bridge", "bridge": "br0", "isDefaultGateway": True,
    "ipam": {{"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": "{tmp_path}/ipam"}}}}]}}).encode())
runtime = Runtime(["{bin_dir}"], "{tmp_path}/cache")
pods = [Netns.new() for _ in range(20)]
results = []
def one(number):
    results.append(runtime.add(chain, Attachment(f"pod{{number}}", pods[number].path))["ips"][0]["address"])
threads = [threading.Thread(target=one, args=(n,)) for n in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
for number, pod in enumerate(pods):
    runtime.check(chain, Attachment(f"pod{{number}}", pod.path))
    runtime.delete(chain, Attachment(f"pod{{number}}", pod.path))
print(len(set(results)), os.listdir("{tmp_path}/ipam/net"))
"""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20 ")
    assert "10.9" not in done.stdout


def test_loopback_can_be_brought_up_without_a_plugin():
    require("root")
    pod = Netns.new()
    try:
        pod.run("ip", "link", "set", "lo", "down")
        bring_up_loopback(pod.path)
        with pod.rtnl() as door:
            assert door.link("lo").up
    finally:
        pod.close()
    with pytest.raises(CniError, match="failed to Statfs"):
        bring_up_loopback("/nowhere")


@pytest.fixture
def node():
    require("root", "veth", "bridge-device", "nsenter", "unshare")
    with Node() as made:
        yield made


def podwire(node, *argv, check=True):
    return node.run(sys.executable, "-m", "podwire", "cni", *argv, check=check)


def test_the_command_line_attaches_shows_and_detaches(node):
    conflist = {"name": "cni0", "plugins": [{**BRIDGE, "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}]}
    node.write("/run/given.conflist", json.dumps(conflist))
    node.run("ip", "netns", "add", "test")
    wrote = podwire(
        node,
        "install",
        "--bin-dir",
        "/opt/cni/bin",
        "--conf-dir",
        "/etc/cni/net.d",
        "--conflist",
        "/run/given.conflist",
    ).stdout
    assert "wrote /etc/cni/net.d/10-flannel.conflist" in wrote
    assert podwire(node, "list").stdout.splitlines()[1].split() == [
        "cni0", "0.1.0", "bridge", "/etc/cni/net.d/10-flannel.conflist",
    ]  # fmt: skip
    shown = podwire(node, "add", "cni0", "test").stdout
    assert shown.splitlines()[1].split() == ["10.9.0.2/24", "10.9.0.1", "-"]
    assert "10.9.0.2/24" in podwire(node, "list").stdout
    again = podwire(node, "add", "cni0", "test", check=False)
    assert again.returncode == 1
    assert len(again.stderr.splitlines()) == 1
    assert again.stderr.rstrip().endswith("[CNI error 999]")
    podwire(node, "del", "cni0", "/run/netns/test")
    podwire(node, "del", "cni0", "test")
    assert node.listdir("/var/lib/cni/results") == []
    result = json.loads(podwire(node, "add", "cni0", "test", "--json", "--container-id", "mine").stdout)
    assert result["ip4"]["ip"] == "10.9.0.3/24"
    assert podwire(node, "gc", "cni0", check=False).returncode == 2
    podwire(node, "gc", "cni0", "--all")
    assert node.listdir("/var/lib/cni/networks/cni0") == ["last_reserved_ip.0", "lock"]
    podwire(node, "uninstall", "--bin-dir", "/opt/cni/bin", "--conf-dir", "/etc/cni/net.d")
    assert node.listdir("/opt/cni/bin") == []
    missing = podwire(node, "add", "cni0", "test", check=False)
    assert missing.stderr == ("podwire: cni add: no net configurations found in /etc/cni/net.d [CNI error 7]\n")
