"""podwire's iptables rules are those that the real kube-proxy left in the kernel, chain by chain, through all steps."""

from __future__ import annotations

import pytest

from kubeproxy_golden import cases, change, config, differences, interface_ips, objects, rules, settings, with_rules
from podwire.kubeproxy import dry_run
from podwire.kubeproxy.family import IPV4, IPV6
from podwire.kubeproxy.iptables_sync import IptablesSync
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import Trace
from podwire.testing.iptables import FakeIptables

pytestmark = pytest.mark.unit

FAMILIES = {"iptables": IPV4, "ip6tables": IPV6}


@pytest.mark.parametrize("dump", FAMILIES)
@pytest.mark.parametrize("name", with_rules())
def test_rules_equal_the_real_ones_after_the_start_and_after_every_change(name, dump):
    case, family = cases()[name], FAMILIES[dump]
    kernel = FakeIptables()
    state = State(family, case["node"])
    sync = IptablesSync(state, kernel, Trace(lambda: 0))
    known = dry_run.Objects()
    for number, recorded in enumerate(case["states"]):
        newer = objects(recorded)
        touched = state.apply(change(known, newer))
        outcome = sync.sync(settings(case, recorded, family), touched)
        assert outcome.full == (number == 0)
        known = newer
        got = {(table, chain): lines for table, chains in kernel.tables.items() for chain, lines in chains.items()}
        found = differences(got, rules(recorded[dump]))
        assert not found, f"step {number}:\n" + "\n".join(found[:5])


@pytest.mark.parametrize("dump", FAMILIES)
@pytest.mark.parametrize("name", with_rules())
def test_a_dry_run_prints_the_rules_of_the_first_state(name, dump):
    case, family = cases()[name], FAMILIES[dump]
    recorded = case["states"][0]
    text = dry_run.render(objects(recorded), config(case), family, case["node"], interface_ips(case))
    kernel = FakeIptables()
    kernel.restore(text)
    got = {(table, chain): lines for table, chains in kernel.tables.items() for chain, lines in chains.items()}
    assert not differences(got, rules(recorded[dump]))


def test_a_dry_run_away_from_the_node_lets_the_kernel_find_its_nodeport_addresses():
    case = cases()["26-nodeport-addresses"]
    text = dry_run.render(objects(case["states"][0]), config(case), IPV4, case["node"], frozenset({"192.0.2.7"}))
    last = [line for line in text.splitlines() if "nodeports; NOTE" in line]
    assert [line.split(" -m comment")[0] for line in last] == [
        "-A KUBE-SERVICES -d 10.20.0.1/32",
        "-A KUBE-SERVICES -d 10.21.0.0/24",
    ]
    assert "-m addrtype --dst-type LOCAL" in last[1]
