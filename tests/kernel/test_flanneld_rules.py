"""flanneld's packet-filter rules in the kernel: as the real one leaves them, kept, and taken away when not asked for."""

from __future__ import annotations

import ipaddress
import json
import pathlib

import pytest

from podwire.flanneld import flags, netconf
from podwire.flanneld.enforce import Enforcer
from podwire.kernel import spawn
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

DATA = pathlib.Path(__file__).parents[1] / "data" / "flannel"
NODE = [ipaddress.ip_network("10.244.0.0/24")]
OTHER = [ipaddress.ip_network("10.244.7.0/24")]
BOTH = [*NODE, ipaddress.ip_network("fd00:10:244::/64")]


class Machine:
    """A namespace with rules, and what is written to it."""

    def __init__(self, ns) -> None:
        self.ns = ns
        self.written: list[str] = []

    def enforcer(self, case: str, *arguments: str) -> Enforcer:
        record = json.loads((DATA / f"{case}.json").read_text())
        options = flags.parse([*record["flags"], *arguments], {})
        return Enforcer(netconf.parse(json.dumps(record["net_conf"])), options, self._run)

    def _run(self, argv, stdin=b"", timeout=None):
        if stdin:
            self.written.append(f"{argv[0]} {stdin.decode()}")
        return spawn.run(argv, stdin, timeout=timeout)

    def call(self, function, *arguments):
        return self.ns.call(lambda: function(*arguments))

    def run(self, command: str) -> None:
        self.ns.run(*command.split())

    def iptables(self, program: str = "iptables") -> list[str]:
        return [line for line in self.ns.run(f"{program}-save").stdout.splitlines() if "FLANNEL" in line]

    def nft(self) -> list[str]:
        lines = [line.strip() for line in self.ns.run("nft", "list", "ruleset").stdout.splitlines()]
        return [line for line in lines if line]


@pytest.fixture
def machine():
    require("root", "iptables", "ip6tables", "nft")
    with netns() as ns:
        yield Machine(ns)


def truth(case: str, part: str) -> list[str]:
    return json.loads((DATA / f"{case}.json").read_text())["nodes"]["n1"][part]


IPTABLES = ["vxlan-ipmasq", "vxlan-nomasq", "vxlan-norandomfully", "vxlan-opts", "hostgw-nomasq"]


@pytest.mark.parametrize("case", IPTABLES)
def test_iptables_save_prints_what_it_prints_for_the_real_one(machine, case):
    assert machine.call(machine.enforcer(case).ensure, NODE)
    # The order of chains and tables is iptables-save's; the order of rules within a chain is ours.
    assert sorted(machine.iptables()) == sorted(truth(case, "iptables"))
    chains = [line for line in machine.iptables() if line.startswith("-A FLANNEL-POSTRTG")]
    assert chains == [line for line in truth(case, "iptables") if line.startswith("-A FLANNEL-POSTRTG")]


def test_dual_stack_has_the_rules_of_both_families(machine):
    machine.call(machine.enforcer("dual-vxlan").ensure, BOTH)
    assert sorted(machine.iptables()) == sorted(truth("dual-vxlan", "iptables"))
    assert sorted(machine.iptables("ip6tables")) == sorted(truth("dual-vxlan", "ip6tables"))


@pytest.mark.parametrize("case", ["vxlan-nft", "vxlan-nft-nomasq", "dual-vxlan-nft"])
def test_nft_prints_what_it_prints_for_the_real_one(machine, case):
    assert machine.call(machine.enforcer(case).ensure, BOTH if case.startswith("dual") else NODE)
    assert machine.nft() == truth(case, "nft")


@pytest.mark.parametrize("case", [*IPTABLES, "vxlan-nft"])
def test_rules_that_are_right_are_only_looked_at(machine, case):
    machine.call(machine.enforcer(case).ensure, NODE)
    enforcer = machine.enforcer(case)
    if case.startswith("vxlan-nft"):  # what nft prints is known after the first write only
        machine.call(enforcer.ensure, NODE)
    machine.written.clear()
    assert not machine.call(enforcer.ensure, NODE)
    assert machine.written == []


@pytest.mark.parametrize(
    "damage",
    [
        "iptables -t nat -F FLANNEL-POSTRTG",
        "iptables -t nat -F",
        "iptables -t nat -F POSTROUTING",
        "iptables -t nat -D FLANNEL-POSTRTG 3",
        "iptables -t nat -I FLANNEL-POSTRTG -j ACCEPT",
        "iptables -t nat -A FLANNEL-POSTRTG -m connbytes --connbytes 10: --connbytes-dir both --connbytes-mode bytes -j ACCEPT",
        "iptables -F FLANNEL-FWD",
        "iptables -F FORWARD",
        "nft flush ruleset",
    ],
)
def test_whatever_is_lost_or_put_in_is_mended(machine, damage):
    enforcer = machine.enforcer("vxlan-ipmasq")
    machine.call(enforcer.ensure, NODE)
    machine.run(damage)
    assert machine.call(enforcer.ensure, NODE)
    assert sorted(machine.iptables()) == sorted(truth("vxlan-ipmasq", "iptables"))
    assert not machine.call(enforcer.ensure, NODE)


@pytest.mark.parametrize(
    "damage", ["nft flush ruleset", "nft flush chain ip flannel-ipv4 forward", "nft delete table ip6 flannel-ipv6"]
)
def test_nft_tables_are_mended(machine, damage):
    enforcer = machine.enforcer("vxlan-nft")
    machine.call(enforcer.ensure, NODE)
    machine.run(damage)
    assert machine.call(enforcer.ensure, NODE)
    assert sorted(machine.nft()) == sorted(truth("vxlan-nft", "nft"))  # the table that was made anew is listed last


def test_another_pod_cidr_makes_other_rules_and_leaves_none_of_the_old(machine):
    for case in ("vxlan-ipmasq", "vxlan-nft"):
        enforcer = machine.enforcer(case)
        machine.call(enforcer.ensure, NODE)
        assert machine.call(enforcer.ensure, OTHER)
    lines = "\n".join(machine.iptables() + machine.nft())
    assert "10.244.7.0/24" in lines
    assert "10.244.0.0/24" not in lines


def test_the_rules_of_others_in_the_same_chains_stay(machine):
    machine.run("iptables -t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE")
    machine.run("iptables -P FORWARD DROP")
    machine.call(machine.enforcer("vxlan-ipmasq").ensure, NODE)
    enforcer = machine.enforcer("vxlan-nft")
    machine.call(enforcer.clean)
    assert machine.iptables() == []
    assert "-A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE" in machine.ns.run("iptables-save").stdout
    assert "-P FORWARD DROP" in machine.ns.run("iptables", "-S", "FORWARD").stdout


def test_changing_to_nftables_takes_the_chains_away_and_back_again_the_tables(machine):
    machine.call(machine.enforcer("dual-vxlan").ensure, BOTH)
    nft = machine.enforcer("dual-vxlan-nft")
    machine.call(nft.clean)
    machine.call(nft.ensure, BOTH)
    assert machine.iptables() == machine.iptables("ip6tables") == []
    iptables = machine.enforcer("dual-vxlan")
    machine.call(iptables.clean)
    machine.call(iptables.ensure, BOTH)
    assert not any("table" in line and "flannel" in line for line in machine.nft())
    assert sorted(machine.iptables()) == sorted(truth("dual-vxlan", "iptables"))


def test_a_masquerade_that_is_no_longer_asked_for_goes_with_all_its_jumps(machine):
    machine.call(machine.enforcer("vxlan-ipmasq").ensure, NODE)
    # flannel's own teardown leaves a second jump if two daemons ran at once.
    machine.run("iptables -t nat -A POSTROUTING -j FLANNEL-POSTRTG")
    machine.call(machine.enforcer("vxlan-nomasq").clean)
    assert not any("FLANNEL-POSTRTG" in line for line in machine.iptables())


def test_on_a_node_with_nothing_to_clean_nothing_is_written(machine):
    machine.call(machine.enforcer("vxlan-nomasq").clean)
    assert machine.written == []
    assert machine.ns.run("nft", "list", "ruleset").stdout.count("FLANNEL") == 0


def test_what_iptables_refuses_is_an_error_with_its_words(machine):
    enforcer = machine.enforcer("vxlan-ipmasq")
    with pytest.raises(Exception, match="iptables-restore") as caught:
        machine.call(enforcer.ensure, [ipaddress.ip_network("fd00::/64")])
    assert caught.value.status != 0
