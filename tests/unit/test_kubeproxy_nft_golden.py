"""podwire's table of nftables mode is the one that the real kube-proxy left in the kernel, through all steps."""

from __future__ import annotations

import pytest

from kubeproxy_golden import cases, change, config, interface_ips, objects, settings, with_rules
from podwire.kubeproxy import dry_run
from podwire.kubeproxy.family import IPV4, IPV6
from podwire.kubeproxy.nftables_sync import NftablesSync
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import Trace
from podwire.testing.nft import FakeNft, Listing

pytestmark = pytest.mark.unit

FAMILIES = {"ip": IPV4, "ip6": IPV6}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", with_rules())
def test_the_table_equals_the_real_one_after_the_start_and_after_every_change(name, family):
    case = cases()[name]
    kernel = FakeNft()
    state = State(FAMILIES[family], case["node"])
    sync = NftablesSync(state, kernel, Trace(lambda: 0))
    known = dry_run.Objects()
    for number, recorded in enumerate(case["states"]):
        newer = objects(recorded)
        touched = state.apply(change(known, newer))
        outcome = sync.sync(settings(case, recorded, FAMILIES[family], "nftables"), touched)
        assert outcome.full == (number == 0)
        known = newer
        found = kernel.listing().differences(Listing.read(recorded["nft"], family))
        assert not found, f"step {number}:\n" + "\n".join(found[:5])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", with_rules())
def test_a_dry_run_prints_the_table_of_the_first_state(name, family):
    case, recorded = cases()[name], cases()[name]["states"][0]
    wanted = config(case, "nftables")
    text = dry_run.render(objects(recorded), wanted, FAMILIES[family], case["node"], interface_ips(case))
    kernel = FakeNft()
    kernel.apply(text)
    assert not kernel.listing().differences(Listing.read(recorded["nft"], family))
