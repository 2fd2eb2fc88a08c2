"""Syncs of nftables mode on a fake kernel: only what differs is written, and failures lose nothing."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import settings as hypothesis_settings

from kubeproxy_changes import STEPS, batch, endpoint_slice, follow, service
from podwire.kubeproxy.changes import Batch, Changes
from podwire.kubeproxy.config import Config
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.nftables_sync import NftablesSync
from podwire.kubeproxy.settings import resolve
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import Trace
from podwire.rules.nft.run import NftRefused
from podwire.testing.nft import FakeNft

pytestmark = pytest.mark.unit

SETTINGS = resolve(Config(cluster_cidrs=("10.244.0.0/16",), mode="nftables"), IPV4, "node-1", None, ())


class Proxy:
    """One family on a fake kernel."""

    def __init__(self, kernel=None, count=lambda: 0, most_maps=1000):
        self.kernel = kernel or FakeNft()
        self.settings = SETTINGS
        self.state = State(IPV4, self.settings.node)
        self.sync = NftablesSync(self.state, self.kernel, Trace(count), most_maps)
        self.touched = set()

    def apply(self, batch):
        self.touched |= self.state.apply(batch)

    def run(self, **options):
        outcome = self.sync.sync(self.settings, self.touched, **options)
        self.touched = set()
        return outcome

    @property
    def table(self):
        return self.kernel.tables["kube-proxy"]

    def chains(self, start):
        """Chains of Services that begin so."""
        return sorted(name for name in self.table.chains if name.startswith(start) and "/" in name)


def web(*ips, **spec):
    made = service("web", node_port=30080, **{"type": "NodePort", **spec})
    return batch(made, endpoint_slice("web-1", "web", *ips))


def started(*ips, **spec):
    proxy = Proxy()
    proxy.apply(web(*ips, **spec))
    proxy.apply(batch(service("other"), endpoint_slice("other-1", "other", "10.244.1.9")))
    assert proxy.run().full
    return proxy


AFFINITY = {"sessionAffinity": "ClientIP"}


# What is written


def test_one_more_endpoint_is_one_rewritten_chain():
    proxy = started("10.244.2.5", "10.244.2.6")
    proxy.apply(batch(endpoint_slice("web-1", "web", "10.244.2.5", "10.244.2.7", "10.244.2.8")))
    outcome = proxy.run()
    lines = proxy.kernel.applied[-1].splitlines()
    assert not outcome.full
    assert [line.split(" ip kube-proxy ")[0] for line in lines] == [
        "flush chain",
        "delete element",
        "add rule",
        "add element",
    ]
    assert all("hairpin-connections" in line for line in lines if " element " in line)
    assert "other" not in proxy.kernel.applied[-1]


def test_a_change_that_means_nothing_to_kube_proxy_writes_nothing():
    proxy = started("10.244.1.5")
    proxy.apply(web("10.244.1.5", selector={"app": "x"}))
    assert proxy.touched == set()
    assert proxy.run().restores == 0


def test_a_changed_setting_writes_only_what_depends_on_it():
    proxy = started("10.244.1.5")
    proxy.settings = dataclasses.replace(SETTINGS, service_cidrs=("10.96.0.0/16",))
    assert not proxy.run().full
    lines = proxy.kernel.applied[-1].splitlines()
    assert {line.split()[4] for line in lines} == {"cluster-ips-check"}
    assert any("ip daddr 10.96.0.0/16 drop" in line for line in lines)


def test_addresses_for_node_ports_come_and_go_with_their_set():
    proxy = started("10.244.1.5")
    assert "nodeport-ips" not in proxy.table.sets
    proxy.settings = dataclasses.replace(SETTINGS, node_port_ips=("10.20.0.1",))
    proxy.run()
    assert list(proxy.table.elements["nodeport-ips"]) == ["10.20.0.1"]
    proxy.settings = SETTINGS
    assert not proxy.run().full
    assert "nodeport-ips" not in proxy.table.sets


def test_a_service_that_goes_leaves_nothing():
    proxy = started("10.244.1.5", **AFFINITY)
    proxy.apply(Batch(services={"ns/web": None}))
    assert not proxy.run().full
    left = [*proxy.table.chains, *proxy.table.sets, *map(str, proxy.table.elements.values())]
    assert not [text for text in left if "web" in text]


def test_where_there_are_many_services_choices_are_rows_of_rules():
    proxy = Proxy(most_maps=1)
    many = [service(name) for name in ("a", "b")]
    many += [endpoint_slice(f"{name}-1", name, "10.244.1.1", "10.244.1.2", "10.244.1.3") for name in ("a", "b")]
    proxy.apply(batch(*many))
    proxy.run()
    for chain in proxy.chains("service-"):
        assert proxy.table.chains[chain] == [
            "meta l4proto tcp numgen random mod 3 0 dnat to 10.244.1.1:8080",
            "meta l4proto tcp numgen random mod 2 0 dnat to 10.244.1.2:8080",
            "meta l4proto tcp dnat to 10.244.1.3:8080",
        ]


def test_a_service_of_very_many_endpoints_is_no_row_of_rules():
    proxy = Proxy(most_maps=0)
    proxy.apply(batch(service("a"), endpoint_slice("a-1", "a", *[f"10.244.1.{number}" for number in range(1, 100)])))
    proxy.run()
    [chain] = proxy.chains("service-")
    [rule] = proxy.table.chains[chain]
    assert "numgen random mod 99 map {" in rule


# Session affinity


def test_clients_are_led_to_the_same_endpoint_after_a_restart():
    proxy = started("10.244.1.5", "10.244.1.6", **AFFINITY)
    first, second = [name for name in proxy.table.sets if name.startswith("affinity-")]
    proxy.table.elements[first]["10.20.0.9"] = ("", "")
    again = Proxy(proxy.kernel)
    again.state = proxy.state
    again.sync = NftablesSync(proxy.state, proxy.kernel, Trace(lambda: 0))
    assert again.run().full
    assert list(again.table.elements[first]) == ["10.20.0.9 expires 1000ms"]
    assert not again.table.elements[second]


def test_another_timeout_makes_the_set_anew():
    proxy = started("10.244.1.5", **AFFINITY)
    proxy.apply(web("10.244.1.5", **AFFINITY, sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}}))
    assert not proxy.run().full
    assert ["timeout 60s" in block for name, block in proxy.table.sets.items() if name.startswith("affinity-")] == [
        True
    ]


# Failures


def test_a_refused_full_sync_leaves_the_table_whole_and_says_which_line():
    proxy = started("10.244.1.5")
    before = proxy.kernel.listing()
    proxy.apply(web("10.244.1.6"))
    proxy.kernel.fail = lambda command: "out of memory" if command == 9 else ""
    with pytest.raises(NftRefused, match=r"at 'add .*': out of memory"):
        proxy.run(full=True)
    assert not proxy.kernel.listing().differences(before)
    proxy.kernel.fail = lambda _command: ""
    assert proxy.run().full


def test_a_refused_partial_sync_is_made_full_at_once():
    proxy = started("10.244.1.5")
    del proxy.kernel.tables["kube-proxy"]
    proxy.apply(web("10.244.1.6"))
    outcome = proxy.run()
    assert outcome.full
    assert outcome.refused_partial
    fresh = Proxy()
    fresh.state = proxy.state
    fresh.sync = NftablesSync(fresh.state, fresh.kernel, Trace(lambda: 0))
    fresh.run()
    assert not proxy.kernel.listing().differences(fresh.kernel.listing())


def test_a_kernel_that_removes_chains_late_gets_them_one_transaction_later():
    proxy = started("10.244.1.5", "10.244.1.6", **AFFINITY)
    proxy.kernel.removes_late = True
    proxy.apply(batch(endpoint_slice("web-1", "web", "10.244.1.5")))
    assert not proxy.run().full
    [stale] = [name for name in proxy.chains("endpoint-") if not proxy.table.chains[name]]
    proxy.apply(batch(endpoint_slice("other-1", "other", "10.244.1.10")))
    assert not proxy.run().full
    assert stale not in proxy.table.chains
    assert len([name for name in proxy.table.sets if name.startswith("affinity-")]) == 1


def test_a_stale_chain_that_is_wanted_again_is_used_again():
    proxy = started("10.244.1.5", "10.244.1.6", **AFFINITY)
    proxy.kernel.removes_late = True
    for ips in (["10.244.1.5"], ["10.244.1.5", "10.244.1.6"], ["10.244.1.6"]):
        proxy.apply(batch(endpoint_slice("web-1", "web", *ips)))
        assert not proxy.run().full
    [used] = [name for name in proxy.chains("endpoint-") if proxy.table.chains[name]]
    assert used.endswith("__10.244.1.6/8080")


def test_two_services_that_want_the_same_frontend_do_not_harm_each_other_or_others(caplog):
    proxy = started("10.244.1.5")
    proxy.apply(batch(service("alike", node_port=30080, type="NodePort"), endpoint_slice("l-1", "alike", "10.244.1.7")))
    assert not proxy.run().full
    assert "another Service has this frontend already" in caplog.text
    assert "alike" in proxy.table.elements["service-nodeports"]["tcp . 30080"][1], "the first by name has it"
    proxy.apply(Batch(services={"ns/alike": None}))
    assert not proxy.run().full
    assert "web" in proxy.table.elements["service-nodeports"]["tcp . 30080"][1]


# What others took away


@pytest.mark.parametrize(
    "harm",
    [
        lambda table: table.chains["services"].clear(),
        lambda table: table.chains["filter-input"].pop(),
        lambda table: table.chains.pop("reject-chain"),
        lambda table: table.elements["service-ips"].clear(),
        lambda table: table.elements["cluster-ips"].clear(),
        lambda table: [rules.clear() for name, rules in table.chains.items() if name.startswith("service-5")],
    ],
)
def test_what_was_emptied_or_removed_is_damage_and_a_full_sync_repairs_it(harm):
    count = 0
    proxy = Proxy(count=lambda: count)
    proxy.apply(web("10.244.1.5", "10.244.1.6"))
    proxy.apply(batch(service("other"), endpoint_slice("other-1", "other", "10.244.1.9")))
    proxy.run()
    good = proxy.kernel.listing()
    harm(proxy.table)
    broken = proxy.kernel.listing().differences(good)
    assert proxy.sync.damaged() == [], "not looked at while nobody wrote anything"
    count = 1
    assert bool(proxy.sync.damaged()) == bool(broken)
    proxy.run(full=True)
    assert not proxy.kernel.listing().differences(good)
    assert proxy.sync.damaged() == []


def test_a_deleted_table_is_damage():
    count = 0
    proxy = Proxy(count=lambda: count)
    proxy.run()
    proxy.kernel.tables.clear()
    count = 1
    assert proxy.sync.damaged() == ["table kube-proxy: gone"]


# Any sequence of changes and failures


@pytest.mark.parametrize("removes_late", [False, True])
@pytest.mark.parametrize("most_maps", [0, 1000])
@given(steps=STEPS)
@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_sequence_of_changes_and_failures_ends_where_a_fresh_start_does(removes_late, most_maps, steps):
    proxy, known, changes = Proxy(most_maps=most_maps), Batch(), Changes()
    proxy.kernel.removes_late = removes_late
    for _, at in follow(steps, changes, known):
        proxy.apply(changes.drain())
        proxy.kernel.fail = lambda command, at=at: "injected" if at in (1, 2) and command == at * 3 else ""
        proxy.kernel.answers = at != 3
        try:
            proxy.run()
        except NftRefused:
            note("failed")
    proxy.apply(changes.drain())
    proxy.kernel.fail, proxy.kernel.answers = lambda _command: "", True
    proxy.run()
    fresh = Proxy(most_maps=most_maps)
    fresh.apply(known)
    fresh.run()
    assert not proxy.kernel.listing().differences(fresh.kernel.listing())
    assert proxy.table.sets.keys() >= fresh.table.sets.keys()
