"""kube-proxy --diff tells what is different in the kernel, and nothing where nothing is, in every recorded state."""

from __future__ import annotations

import os
import re
import sys

import pytest
import yaml

from kubeproxy_golden import cases
from podwire.kubeproxy.difference import compare
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

PODWIRE = [os.path.join(os.path.dirname(sys.executable), "podwire"), "kube-proxy"]
NAMES = ("12-lb-source-ranges", "15-session-affinity", "21-dual-stack")
MODES = ("iptables", "nftables")


class Node:
    """A namespace, a file with the objects of a recorded case, and podwire kube-proxy on them."""

    def __init__(self, node, folder, case, mode):
        self.node, self.mode = node, mode
        self.objects = folder / "objects.yaml"
        self.objects.write_text(yaml.safe_dump_all(case["states"][0]["objects"]))
        config = {**case["config"], "mode": mode}
        self.config = folder / "config.yaml"
        head = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
        self.config.write_text(yaml.safe_dump({**head, **config}))
        self.name = f"--hostname-override={case['node']}"

    def podwire(self, *argv):
        files = (f"--objects={self.objects}", f"--config={self.config}")
        return self.node.run(*PODWIRE, *argv, *files, self.name, check=False)

    def load(self):
        for family, program in (("ipv4", "iptables-restore"), ("ipv6", "ip6tables-restore")):
            text = self.podwire("--dry-run", f"--family={family}").stdout
            argv = ("nft", "-f", "-") if self.mode == "nftables" else (program, "--noflush")
            self.node.run(*argv, stdin=text)


@pytest.fixture(params=[(name, mode) for name in NAMES for mode in MODES], ids=" ".join)
def made(request, tmp_path):
    require("root", "iptables", "nft")
    name, mode = request.param
    with netns() as node:
        yield Node(node, tmp_path, cases()[name], mode)


def test_the_rules_of_a_dry_run_are_no_difference_and_none_at_all_are_one(made):
    empty = made.podwire("--diff")
    assert empty.returncode == 1
    assert "# IPv4\n" in empty.stdout
    assert "(the chain is missing)" in empty.stdout
    made.load()
    done = made.podwire("--diff")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_somebody_did_is_told_by_chain_and_rule(tmp_path):
    require("root", "iptables")
    with netns() as node:
        made = Node(node, tmp_path, cases()["12-lb-source-ranges"], "iptables")
        made.load()
        node.run("iptables", "-t", "nat", "-F", "KUBE-NODEPORTS")
        node.run("iptables", "-t", "nat", "-D", "PREROUTING", "1")
        node.run("iptables", "-t", "nat", "-N", "KUBE-SVC-AAAAAAAAAAAAAAAA")
        node.run("iptables", "-t", "nat", "-A", "POSTROUTING", "-j", "ACCEPT")  # somebody else's business
        lines = made.podwire("--diff").stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "# IPv4",
        "nat KUBE-NODEPORTS",
        "nat KUBE-SVC-AAAAAAAAAAAAAAAA",
        "nat PREROUTING",
    ]
    assert lines.count("    - (nothing needs this chain)") == 1
    assert sum(bool(re.match(r"    \+ .*--dport 301\d\d ", line)) for line in lines) == 3
    assert lines[-1].startswith("    + ")
    assert lines[-1].endswith("-j KUBE-SERVICES")


def test_a_taken_element_and_a_flushed_chain_are_told_in_nftables_mode(tmp_path):
    require("root", "nft")
    with netns() as node:
        made = Node(node, tmp_path, cases()["12-lb-source-ranges"], "nftables")
        made.load()
        node.run("nft", "flush", "chain", "ip", "kube-proxy", "services")
        node.run("nft", "delete", "element", "ip", "kube-proxy", "cluster-ips", "{ 10.96.5.1 }")
        lines = made.podwire("--diff").stdout.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == ["# IPv4", "chain services", "set cluster-ips"]
    assert "    + 10.96.5.1" in lines


def test_trouble_is_status_2_and_one_line():
    require("root")
    with netns() as node:
        done = node.run(*PODWIRE, "--diff", "--objects=/nowhere", check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_order_counts_and_comments_do_not():
    assert compare({"c": ["-j A", "-j B"]}, {"c": ["-j B", "-j A"]}) == ["c", "    ! the same rules in another order"]
    assert compare({"c": ['-m comment --comment "x y" -j A']}, {"c": ["-j A"]}) == []
