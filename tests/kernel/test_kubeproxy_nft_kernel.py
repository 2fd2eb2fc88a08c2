"""nftables mode against the kernel itself: random changes and failures, the fake that tests use, and what is read back."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from kubeproxy_changes import STEPS, batch, endpoint_slice, follow, service
from kubeproxy_golden import cases, objects, settings
from packet_probe import Arrival, Probe
from podwire.errors import MissingCapability
from podwire.kubeproxy import modes
from podwire.kubeproxy.changes import Batch, Changes
from podwire.kubeproxy.config import Config
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.nftables_sync import NftablesSync
from podwire.kubeproxy.settings import resolve
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import nft_trace
from podwire.rules.nft.run import Nft, NftRefused, require
from podwire.testing import netns as testing
from podwire.testing.nft import FakeNft, Listing

pytestmark = pytest.mark.kernel

SETTINGS = resolve(Config(cluster_cidrs=("10.244.0.0/16",), mode="nftables"), IPV4, "node-1", None, ())


class FailingNft(Nft):
    """The real one; with `at` 1 or 2 the kernel refuses the transaction at its end or its start, with 3 its answer is lost."""

    __slots__ = ("at",)

    def apply(self, text):
        bad = "add rule ip kube-proxy no-such-chain drop\n"
        super().apply({1: text + bad, 2: bad + text}.get(self.at, text))
        if self.at == 3:
            raise NftRefused("", "killed")


class Proxy:
    """One family in a namespace."""

    def __init__(self, node, door, most_maps=1000, wanted=SETTINGS):
        self.node, self.door, self.wanted, self.touched = node, door, wanted, set()
        self.state = State(IPV4, "node-1")
        self.sync = NftablesSync(self.state, door, nft_trace(), most_maps)

    def apply(self, batch):
        self.touched |= self.state.apply(batch)

    def run(self):
        outcome = self.node.call(lambda: self.sync.sync(self.wanted, self.touched))
        self.touched = set()
        return outcome

    def listing(self):
        return Listing.read(self.node.run("nft", "list", "ruleset").stdout, "ip")


@pytest.fixture(scope="module")
def nodes():
    testing.require("root", "nft")
    with testing.netns() as one, testing.netns() as other:
        yield one, other


@pytest.mark.parametrize("most_maps", [0, 1000])
@given(steps=STEPS)
@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_sequence_of_changes_and_failures_ends_in_the_kernel_where_a_fresh_start_does(nodes, most_maps, steps):
    door, fake = FailingNft(4), FakeNft()
    for node in nodes:
        node.run("nft", "flush", "ruleset")
    proxy, known, changes = Proxy(nodes[0], door, most_maps), Batch(), Changes()
    for _, at in follow(steps, changes, known):
        proxy.apply(changes.drain())
        door.at = at
        with contextlib.suppress(NftRefused):
            proxy.run()
    proxy.apply(changes.drain())
    door.at = 0
    proxy.run()
    assert proxy.node.call(proxy.sync.damaged) == []
    fresh = Proxy(nodes[1], Nft(4), most_maps)
    pretended = Proxy(nodes[1], fake, most_maps)
    for one in (fresh, pretended):
        one.apply(known)
        one.run()
    assert not proxy.listing().differences(fresh.listing())
    assert not fresh.listing().differences(fake.listing()), "the fake behaves like the kernel"


def test_no_packet_to_an_unchanged_service_is_lost_while_others_change_and_syncs_fail():
    testing.require("root", "nft", "ip")
    case = cases()["07-nodeport"]
    recorded = case["states"][0]
    packets = [packet for packet in recorded["packets"] if packet["via"] == "eth0" and "expect_nftables" not in packet]
    packets = [packet for packet in packets if packet["expect"]["verdict"] == "dnat"]
    assert len({packet["dst"] for packet in packets}) > 1, "by clusterIP and by NodePort"
    with Probe(case["interfaces"], case["routes"], localnet=False) as probe:
        door, stop, outcomes = FailingNft(4), threading.Event(), Counter()
        door.at = 0
        proxy = Proxy(probe.node, door, wanted=settings(case, recorded, IPV4, "nftables"))
        proxy.apply(objects(recorded).batch)
        proxy.run()

        def change():
            for number in itertools.count():
                if stop.is_set():
                    return
                ips = [f"10.244.3.{one + 1}" for one in range(number % 3)]
                proxy.apply(
                    batch(service("other", node_port=31999, type="NodePort"), endpoint_slice("o-1", "other", *ips))
                )
                door.at = number % 4
                try:
                    proxy.run()
                    outcomes["done"] += 1
                except NftRefused:
                    outcomes["failed"] += 1

        thread = threading.Thread(target=change)
        thread.start()
        sent = {}
        for number in range(4000):
            packet = packets[number % len(packets)]
            sent[probe.send(packet)] = packet
        stop.set()
        thread.join()
        found = probe.outcomes(sent)
    assert outcomes["failed"] > 5
    assert outcomes["done"] > 5
    lost = [
        port for port, end in found.items() if not isinstance(end, Arrival) or end.to not in sent[port]["expect"]["to"]
    ]
    assert lost == []


def started(node, *items):
    node.run("nft", "flush", "ruleset")
    proxy = Proxy(node, Nft(4))
    proxy.apply(batch(*items))
    proxy.run()
    return proxy


def test_this_kernel_removes_chains_and_sets_in_the_transaction_that_frees_them(nodes):
    proxy = started(
        nodes[0], service("a", sessionAffinity="ClientIP"), endpoint_slice("a-1", "a", "10.244.1.1", "10.244.1.2")
    )
    proxy.apply(batch(endpoint_slice("a-1", "a", "10.244.1.1")))
    assert not proxy.run().full
    text = proxy.node.run("nft", "list", "ruleset").stdout
    assert "10.244.1.2" not in text
    assert text.count("set affinity-") == 1


def test_clients_of_session_affinity_are_taken_over_with_the_time_they_have_left(nodes):
    items = service("a", sessionAffinity="ClientIP"), endpoint_slice("a-1", "a", "10.244.1.1")
    proxy = started(nodes[0], *items)
    [name] = [
        line.split()[1] for line in proxy.node.run("nft", "list", "sets").stdout.splitlines() if "affinity-" in line
    ]
    proxy.node.run("nft", "add", "element", "ip", "kube-proxy", name, "{ 10.20.0.9 expires 90m }")
    again = Proxy(proxy.node, Nft(4))
    again.apply(batch(*items))
    assert again.run().full
    assert "10.20.0.9 expires 1h29m" in proxy.node.run("nft", "list", "set", "ip", "kube-proxy", name).stdout


def test_a_refusal_names_the_line_and_what_the_kernel_said(nodes):
    with pytest.raises(NftRefused, match=r"at 'add chain ip nowhere c': .*No such file or directory"):
        nodes[0].call(lambda: Nft(4).apply("add table ip x\nadd chain ip nowhere c\n"))
    assert "table ip x" not in nodes[0].run("nft", "list", "tables").stdout


def test_what_the_kernel_cannot_do_is_told_before_anything_is_written(nodes):
    nodes[0].run("nft", "flush", "ruleset")
    probe = modes.probe(IPV4)
    nodes[0].call(lambda: require((4,), {4: probe}))
    with pytest.raises(MissingCapability, match="nftables mode"):
        nodes[0].call(lambda: require((4,), {4: probe + "add rule ip kube-proxy services fib frobnicate type local\n"}))
    assert nodes[0].run("nft", "list", "ruleset").stdout == ""
