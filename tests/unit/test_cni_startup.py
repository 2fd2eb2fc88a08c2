"""The start-up budget: what each plugin's executable imports, as a closed list.

A plugin is started for every pod. Whoever needs a module that is not listed measures it first (docs/cni.md has the prices),
and imports it where it is used.
"""

import json
import marshal
import os
import re
import subprocess
import sys

import pytest

from podwire.cni import bundle
from podwire.cni.delegate import FRONT_LENGTH, PLUGINS, boot, bundle_path, package_root, stub

pytestmark = pytest.mark.unit


def run(program, **options):
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-IS", "-c", program], capture_output=True, text=True, check=True, **options
    )
    return done.stdout


def imported(bundled):
    """What is imported when this has run in the front of the bundle."""
    bundle.ensure()
    return set(run(boot(f"{bundled};print(*sys.modules);raise SystemExit", "raise SystemExit('no bundle')")).split())


# What the interpreter itself loads with -IS before it runs anything.
INTERPRETER = set(run("import sys; print(*sys.modules)").split())
STANDARD = {
    "__future__", "_collections_abc", "_json", "_socket", "_stat", "_struct", "errno", "fcntl", "genericpath", "os",
    "os.path", "posixpath", "select", "stat", "struct", "time",
}  # fmt: skip
SPEC = {
    "podwire", "podwire.addresses", "podwire.errors", "podwire.cni", "podwire.cni.plugins", "podwire.cni.skel",
    "podwire.cni.spec", "podwire.cni.spec.result", "podwire.cni.spec.text", "podwire.cni.spec.versions",
}  # fmt: skip
KERNEL = {
    "podwire.kernel", "podwire.kernel.bridges", "podwire.kernel.channel", "podwire.kernel.ifaddrs", "podwire.kernel.links",
    "podwire.kernel.routes", "podwire.kernel.rtnl", "podwire.kernel.wire",
}  # fmt: skip
OWN = {
    "flannel": SPEC | {"podwire.cni.delegate", "podwire.cni.spec.attachments", "podwire.cni.plugins.flannel"},
    "bridge": SPEC
    | KERNEL
    | {
        "podwire.cni.delegate", "podwire.cni.plugins.bridge", "podwire.cni.plugins.bridge_conf",
        "podwire.cni.plugins.bridge_ports", "podwire.cni.plugins.iface", "podwire.cni.plugins.sandbox", "podwire.kernel.namespaces",
        "podwire.kernel.owner", "podwire.kernel.sysctl",
    },
    "host-local": SPEC
    | {
        "podwire.cni.plugins.host_local", "podwire.cni.plugins.ranges", "podwire.cni.plugins.store",
        "podwire.cni.spec.attachments",
    },
    "portmap": SPEC
    | {
        "podwire.cni.plugins.portmap", "podwire.cni.plugins.portmap_conf", "podwire.cni.plugins.portmap_iptables",
        "podwire.cni.plugins.portmap_nft", "podwire.cni.spec.attachments", "podwire.kernel", "podwire.kernel.channel",
        "podwire.kernel.netfilter", "podwire.kernel.spawn", "podwire.kernel.sysctl", "podwire.kernel.wire", "podwire.naming",
        "podwire.rules", "podwire.rules.iptables", "podwire.rules.iptables.run",
    },
    "static": SPEC | {"podwire.cni.plugins.static"},
    "tuning": SPEC
    | KERNEL
    | {
        "podwire.cni.plugins.sandbox", "podwire.cni.plugins.tuning", "podwire.cni.plugins.tuning_conf",
        "podwire.kernel.namespaces", "podwire.kernel.sysctl",
    },
    "loopback": SPEC | KERNEL | {"podwire.cni.plugins.loopback", "podwire.cni.plugins.sandbox"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_a_plugin_imports_what_is_on_its_list_and_nothing_else(name):
    loaded = imported(f"load(f);import podwire.cni.plugins.{PLUGINS[name]}") - INTERPRETER
    assert loaded - STANDARD == OWN[name]


def test_a_stub_that_has_a_helper_imports_nothing_but_a_socket():
    assert imported("load(f);import _socket") - INTERPRETER == {"_socket"}


def test_a_stub_that_has_no_helper_does_not_even_import_that():
    assert imported("load(f);ask('bridge',c[0],'/nowhere')") - INTERPRETER == set()


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_without_a_bundle_the_package_is_imported_and_does_the_same(name):
    text = stub(name).replace(bundle_path(), "/nowhere")
    assert json.loads(run(text, env={"CNI_COMMAND": "VERSION"}))["cniVersion"] == "1.1.0"


def test_a_bundle_of_another_python_is_passed_over(tmp_path):
    (tmp_path / "bundle").write_bytes(b"\0\0\r\n" + bytes(1 << 15))
    text = stub("bridge").replace(bundle_path(), str(tmp_path / "bundle"))
    assert json.loads(run(text, env={"CNI_COMMAND": "VERSION"}))["cniVersion"] == "1.1.0"


def test_a_bundle_is_written_again_only_when_the_sources_differ(tmp_path, monkeypatch):
    path = bundle.ensure()
    before = os.stat(path).st_mtime_ns
    assert bundle.ensure() == path
    assert os.stat(path).st_mtime_ns == before
    monkeypatch.setattr("podwire.cni.delegate.bundle_path", lambda: str(tmp_path / "inner" / "bundle"))
    assert bundle.ensure() == str(tmp_path / "inner" / "bundle")
    (tmp_path / "inner" / "bundle").write_bytes(b"cut")
    bundle.ensure()
    front = (tmp_path / "inner" / "bundle").read_bytes()[:FRONT_LENGTH]
    with open(path, "rb") as file:
        assert marshal.loads(front[4:])[0] == marshal.loads(file.read(FRONT_LENGTH)[4:])[0]


def test_code_in_the_bundle_names_the_files_and_lines_of_the_source():
    program = boot(
        "load(f);import traceback\n from podwire.addresses import Ip\n try:Ip.parse('x')\n except ValueError:"
        "traceback.print_exc(file=sys.stdout)\n raise SystemExit",
        "",
    )
    said = run(program)
    assert re.search(r'addresses.py", line \d+, in parse\n    raise ValueError\(f"invalid IP address', said)


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_the_executable_runs_with_nothing_in_its_environment(name, tmp_path):
    path = tmp_path / name
    path.write_text(stub(name))
    path.chmod(0o755)
    done = subprocess.run([path], env={"CNI_COMMAND": "VERSION"}, capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(done.stdout)["cniVersion"] == "1.1.0"
    assert done.stderr == ""


def test_the_executable_uses_neither_site_nor_the_users_environment():
    assert re.match(r"#!/\S+/python\S* -IS\n", stub("bridge"))
    assert package_root() in stub("bridge")


def test_broken_json_is_told_as_such_though_nothing_has_imported_json(tmp_path):
    path = tmp_path / "bridge"
    path.write_text(stub("bridge"))
    path.chmod(0o755)
    env = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "x", "CNI_NETNS": "/x", "CNI_IFNAME": "eth0", "CNI_PATH": "/"}
    done = subprocess.run([path], env=env, input="{", capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["code"] == 6
    assert "error unmarshall network config" in json.loads(done.stdout)["msg"]
    assert done.stderr == ""
