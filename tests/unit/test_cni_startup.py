"""The start-up budget: what each plugin's executable imports, as a closed list.

A plugin is started for every pod. Whoever needs a module that is not listed measures it first (docs/cni.md has the prices),
and imports it where it is used.
"""

import json
import os
import re
import subprocess
import sys

import pytest

from podwire.cni.delegate import PLUGINS, package_root, stub

pytestmark = pytest.mark.unit

# What the interpreter itself loads with -IS before it runs anything.
INTERPRETER = set(
    subprocess.run(
        [os.path.realpath(sys.executable), "-IS", "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
)
STANDARD = {
    "__future__", "_collections_abc", "_json", "_socket", "_stat", "_struct", "errno", "fcntl", "genericpath", "os",
    "os.path", "posixpath", "stat", "struct", "time",
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
    "loopback": SPEC | KERNEL | {"podwire.cni.plugins.loopback", "podwire.cni.plugins.sandbox"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_a_plugin_imports_nothing_that_is_not_on_its_list(name):
    text = stub(name).replace("main()\n", "print(*sys.modules)\n")
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-IS", "-c", text], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split()) - INTERPRETER
    assert loaded - STANDARD - OWN[name] == set()


@pytest.mark.parametrize("name", sorted(PLUGINS))
def test_the_list_has_nothing_that_is_not_imported(name):
    text = stub(name).replace("main()\n", "print(*sys.modules)\n")
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-IS", "-c", text], capture_output=True, text=True, check=True
    )
    assert OWN[name] - set(done.stdout.split()) == set()


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
