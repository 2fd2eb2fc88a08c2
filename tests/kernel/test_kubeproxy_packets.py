"""Packets in the kernel, with podwire's rules, come out as they did with the real kube-proxy's."""

from __future__ import annotations

import pytest

from kubeproxy_golden import cases, change, differences, objects, rules, settings, with_rules
from packet_probe import Probe, check
from podwire.kubeproxy.dry_run import Objects
from podwire.kubeproxy.family import IPV4, IPV6
from podwire.kubeproxy.iptables_sync import IptablesSync
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import legacy_trace, nft_trace
from podwire.rules.iptables.run import Iptables
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

BACKENDS = ("nft", "legacy")


class Proxies:
    """Both families' rules in a probe's node."""

    def __init__(self, probe, case, backend):
        self.probe, self.case, self.known = probe, case, Objects()
        trace = nft_trace() if backend == "nft" else legacy_trace()
        self.families = []
        for family in (IPV4, IPV6):
            state = State(family, case["node"])
            door = Iptables(family.version, f"-{backend}")
            self.families.append((family, state, door, IptablesSync(state, door, trace)))

    def sync(self, recorded):
        newer = objects(recorded)
        batch = change(self.known, newer)
        self.known = newer
        for family, state, _, sync in self.families:
            wanted = settings(self.case, recorded, family)
            touched = state.apply(batch)
            self.probe.node.call(lambda sync=sync, wanted=wanted, touched=touched: sync.sync(wanted, touched))

    def differences(self, recorded):
        found = []
        for family, dump in ((0, "iptables"), (1, "ip6tables")):
            door = self.families[family][2]
            found += differences(rules(self.probe.node.call(door.save)), rules(recorded[dump]))
        return found

    def damaged(self):
        return [line for *_, sync in self.families for line in self.probe.node.call(sync.damaged)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", with_rules())
def test_every_packet_comes_out_as_recorded_and_the_kernel_shows_the_recorded_rules(name, backend):
    require("root", "nft", "ip", "iptables")
    case = cases()[name]
    localnet = settings(case, case["states"][0], IPV4).localhost_node_ports
    with Probe(case["interfaces"], case["routes"], localnet=localnet) as probe:
        proxies = Proxies(probe, case, backend)
        for number, recorded in enumerate(case["states"]):
            proxies.sync(recorded)
            found = proxies.differences(recorded)
            assert not found, f"step {number}:\n" + "\n".join(found[:5])
            assert proxies.damaged() == []
            wrong = check(probe, recorded["packets"])
            assert not wrong, f"step {number}:\n" + "\n".join(wrong[:10])
