"""Syncs on a fake kernel: leftovers are taken over, failures lose nothing, partial syncs end where a full one would."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import settings as hypothesis_settings

from kubeproxy_changes import STEPS, batch, endpoint_slice, follow, service
from kubeproxy_golden import cases, differences, objects, rules
from podwire.kube.kinds import SERVICES
from podwire.kubeproxy import iptables_plan
from podwire.kubeproxy.changes import Batch, Changes
from podwire.kubeproxy.config import Config
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.iptables import SHARED_CHAINS, translate
from podwire.kubeproxy.iptables_sync import IptablesSync
from podwire.kubeproxy.layout import read_layout
from podwire.kubeproxy.settings import resolve
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import Trace
from podwire.rules.iptables.run import RestoreRefused
from podwire.testing.iptables import BUILTIN, FakeIptables

pytestmark = pytest.mark.unit

SETTINGS = resolve(Config(cluster_cidrs=("10.244.0.0/16",)), IPV4, "node-1", None, ())


class Proxy:
    """One family on a fake kernel."""

    def __init__(self, kernel=None, settings=SETTINGS):
        self.kernel = kernel or FakeIptables()
        self.settings = settings
        self.state = State(IPV4, settings.node)
        self.sync = IptablesSync(self.state, self.kernel, Trace(lambda: 0))
        self.touched = set()

    def apply(self, batch):
        self.touched |= self.state.apply(batch)

    def run(self, **options):
        outcome = self.sync.sync(self.settings, self.touched, **options)
        self.touched = set()
        return outcome

    def rules(self):
        tables = self.kernel.tables.items()
        return {(table, chain): list(lines) for table, chains in tables for chain, lines in chains.items()}


# What is found at the start


def leftovers():
    case = cases()["39-leftovers-and-mode-switch"]
    settings = resolve(Config(cluster_cidrs=("10.128.0.0/14",)), IPV4, case["node"], None, ())
    proxy = Proxy(FakeIptables(case["texts"]["before.txt"]), settings)
    proxy.apply(objects(case).batch)
    # The API server has it whatever else there is; the recording's objects leave it out.
    kubernetes = {"metadata": {"name": "kubernetes", "namespace": "default"}, "spec": {"clusterIP": "10.96.0.1"}}
    kubernetes["spec"]["ports"] = [{"name": "https", "port": 443}]
    proxy.apply(batch(SERVICES.convert(kubernetes)))
    return case, proxy


def test_a_start_removes_stale_chains_and_leaves_foreign_rules_and_existing_jumps_where_they_are():
    case, proxy = leftovers()
    proxy.run()
    assert not differences(proxy.rules(), rules(case["texts"]["after.txt"]))


def test_cleanup_takes_away_what_is_ours_but_kubelets_firewall_chain():
    _, proxy = leftovers()
    proxy.run()
    proxy.kernel.restore(iptables_plan.cleanup(read_layout(proxy.kernel, 4)))
    left = proxy.rules()
    ours = [chain for _, chain in left if chain.startswith("KUBE-")]
    assert sorted(ours) == ["KUBE-FIREWALL", "KUBE-NOT-OURS", "KUBE-XLB-CCCCCCCCCCCCCCCC"]
    assert left["filter", "FORWARD"] == ["-s 192.168.0.0/16 -j ACCEPT"]
    assert left["nat", "PREROUTING"] == ["-p tcp -m tcp --dport 9 -j ACCEPT"]


def test_a_second_start_writes_the_same_rules_again():
    _, proxy = leftovers()
    proxy.run()
    before = proxy.rules()
    again = Proxy(proxy.kernel, proxy.settings)
    again.state = proxy.state
    again.sync = IptablesSync(proxy.state, proxy.kernel, Trace(lambda: 0))
    assert again.run().full
    assert again.rules() == before


# Failures


def web(*ips):
    return batch(service("web", node_port=30080, type="NodePort"), endpoint_slice("web-1", "web", *ips))


def test_a_partial_sync_writes_only_the_chains_that_differ():
    proxy = Proxy()
    proxy.apply(web("10.244.1.5", "10.244.1.6"))
    proxy.apply(batch(service("other"), endpoint_slice("other-1", "other", "10.244.1.9")))
    proxy.run()
    proxy.apply(batch(endpoint_slice("web-1", "web", "10.244.1.5", "10.244.1.7")))
    outcome = proxy.run()
    text = proxy.kernel.restores[-1]
    assert (outcome.full, outcome.services, outcome.restores) == (False, 1, 1)
    # One policy chain, one endpoint chain more, one less; nothing of the endpoint that stayed or of shared chains.
    assert text.count("\n:") == 3
    assert text.count("\n-X ") == 1
    assert "10.244.1.5:8080\n" not in text
    assert "KUBE-SERVICES" not in text
    assert "other" not in text


def test_a_change_that_means_nothing_to_kube_proxy_writes_nothing():
    proxy = Proxy()
    proxy.apply(web("10.244.1.5"))
    proxy.run()
    proxy.apply(batch(service("web", node_port=30080, type="NodePort", selector={"app": "x"})))
    assert proxy.touched == set()
    assert proxy.run().restores == 0


def test_a_refused_full_sync_leaves_the_rules_whole_and_the_next_is_full():
    proxy = Proxy()
    proxy.apply(web("10.244.1.5"))
    proxy.run()
    before = proxy.rules()
    proxy.apply(web("10.244.1.6"))
    proxy.kernel.fail = lambda commit: "out of memory" if commit == 3 else ""
    with pytest.raises(RestoreRefused, match="out of memory"):
        proxy.run(full=True)
    assert proxy.rules() == before
    proxy.kernel.fail = lambda _commit: ""
    assert proxy.run().full
    fresh = Proxy()
    fresh.apply(web("10.244.1.6"))
    fresh.run()
    assert not differences(proxy.rules(), fresh.rules())


def test_a_refused_partial_sync_is_made_full_at_once():
    proxy = Proxy()
    proxy.apply(web("10.244.1.5"))
    proxy.run()
    del proxy.kernel.tables["nat"]["KUBE-NODEPORTS"]
    proxy.kernel.tables["nat"]["KUBE-SERVICES"] = []
    proxy.apply(batch(service("web", node_port=30081, type="NodePort")))
    outcome = proxy.run()
    assert outcome.full
    assert outcome.refused_partial
    assert any("--dport 30081" in line for line in proxy.rules()["nat", "KUBE-NODEPORTS"])


def test_a_changed_setting_makes_a_full_sync():
    proxy = Proxy()
    proxy.apply(web("10.244.1.5"))
    proxy.run()
    proxy.settings = resolve(Config(cluster_cidrs=("10.128.0.0/14",)), IPV4, "node-1", None, ())
    assert proxy.run().full
    assert "! -s 10.128.0.0/14" in str(proxy.rules())


def test_a_big_first_sync_in_parts_ends_in_the_same_rules_as_one_in_one():
    many = [service(f"s{number}") for number in range(40)]
    many += [endpoint_slice(f"s{number}-1", f"s{number}", "10.244.1.5", "10.244.1.6") for number in range(40)]
    state = State(IPV4, "node-1")
    state.apply(batch(*many))

    def ports():
        for name in state.services():
            for view in state.views(name, ""):
                yield iptables_plan.record(translate(view, SETTINGS))

    parts, whole = FakeIptables(), FakeIptables()
    texts = list(iptables_plan.full(ports(), SETTINGS, read_layout(parts, 4), 30))
    assert len(texts) > 3
    for number, text in enumerate(texts):
        assert ("KUBE-SERVICES" in text) == (number == len(texts) - 1), "Services are switched at once, last"
        parts.restore(text)
    for text in iptables_plan.full(ports(), SETTINGS, read_layout(whole, 4), None):
        whole.restore(text)
    assert parts.tables == whole.tables


# What others took away is noticed by counting


@pytest.mark.parametrize(
    "harm",
    [
        lambda tables: tables["nat"]["KUBE-SERVICES"].clear(),
        lambda tables: tables["nat"]["PREROUTING"].clear(),
        lambda tables: tables["filter"].pop("KUBE-FORWARD"),
        lambda tables: tables["mangle"].pop("KUBE-PROXY-CANARY"),
        lambda tables: tables["nat"].clear(),
        lambda tables: [rules.clear() for chain, rules in tables["nat"].items() if chain.startswith("KUBE-SEP-")],
        # The fake is a legacy kernel: what is replaced by as much is noticed too.
        lambda tables: tables["nat"]["KUBE-POSTROUTING"].__setitem__(0, "-j RETURN"),
        lambda tables: [
            rules.__setitem__(1, "-p tcp -m tcp -j DNAT --to-destination 10.9.9.9:9")
            for chain, rules in tables["nat"].items()
            if chain.startswith("KUBE-SEP-")
        ],
    ],
)
def test_a_flush_of_a_chain_or_a_table_is_damage_and_a_full_sync_repairs_it(harm):
    count = 0
    proxy = Proxy()
    proxy.sync = IptablesSync(proxy.state, proxy.kernel, Trace(lambda: count))
    proxy.apply(web("10.244.1.5", "10.244.1.6"))
    proxy.run()
    good = proxy.rules()
    assert proxy.sync.damaged() == []
    harm(proxy.kernel.tables)
    assert proxy.sync.damaged() == [], "not looked at while the counter stands still"
    count = 1
    assert proxy.sync.damaged()
    for table, chains in BUILTIN.items():  # the kernel's own chains cannot be removed
        for chain in chains:
            proxy.kernel.tables[table].setdefault(chain, [])
    proxy.run(full=True)
    assert proxy.rules() == good
    assert proxy.sync.damaged() == []


def test_a_kernel_that_prints_rules_in_other_words_is_not_written_over_and_over():
    count = 0
    proxy = Proxy()
    proxy.sync = IptablesSync(proxy.state, proxy.kernel, Trace(lambda: count))
    proxy.apply(web("10.244.1.5"))
    printed = proxy.kernel.save
    proxy.kernel.save = lambda table="": printed(table).replace("--set-xmark", "--set-mark")
    proxy.run()
    count = 1
    assert proxy.sync.damaged()
    proxy.run(full=True)
    count = 2
    assert proxy.sync.damaged() == []


def test_what_the_administrator_adds_is_no_damage():
    count = 0
    proxy = Proxy()
    proxy.sync = IptablesSync(proxy.state, proxy.kernel, Trace(lambda: count))
    proxy.apply(web("10.244.1.5"))
    proxy.run()
    proxy.kernel.tables["nat"]["PREROUTING"].insert(0, "-i eth7 -j KUBE-SERVICES")
    count = 1
    assert proxy.sync.damaged() == []


# Any sequence of changes and failures


@given(steps=STEPS)
@hypothesis_settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_sequence_of_changes_and_failures_ends_where_a_fresh_start_does(steps):
    proxy, known = Proxy(), Batch()
    changes = Changes()
    for _, at in follow(steps, changes, known):
        proxy.apply(changes.drain())
        proxy.kernel.fail = lambda commit, at=at: "injected" if commit == at else ""
        try:
            proxy.run()
        except RestoreRefused:
            note("failed")
        assert_no_service_is_cut_off(proxy.rules())
    proxy.apply(changes.drain())
    proxy.kernel.fail = lambda _commit: ""
    proxy.run()
    fresh = Proxy()
    fresh.apply(known)
    fresh.run()
    assert not differences(proxy.rules(), fresh.rules())


def assert_no_service_is_cut_off(found):
    """Every chain that a shared chain leads to has rules, whatever failed."""
    for where in SHARED_CHAINS:
        for line in found.get(where, ()):
            target = line.split(" -j ")[-1]
            assert not target.startswith("KUBE-S") or found["nat", target], line
