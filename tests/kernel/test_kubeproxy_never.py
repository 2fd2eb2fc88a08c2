"""Whatever changes come and whatever fails: rules end as after a fresh start, and a Service that did not change loses no packet.

pod 10.244.9.9 ──veth── node, which sends a new flow to 10.96.0.250:80 every few milliseconds
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time

import pytest
from hypothesis import HealthCheck, given, note
from hypothesis import settings as hypothesis_settings

import case_inputs
from kubeproxy_changes import STEPS, batch, endpoint_slice, follow, service
from kubeproxy_golden import differences, rules
from podwire.errors import CommandFailed, PodwireError
from podwire.kubeproxy.changes import Batch, Changes
from podwire.kubeproxy.config import Config
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.iptables_sync import IptablesSync
from podwire.kubeproxy.modes import clean_iptables
from podwire.kubeproxy.settings import resolve
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import legacy_trace, nft_trace
from podwire.rules.iptables.run import Iptables
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

SETTINGS = resolve(Config(cluster_cidrs=("10.244.0.0/16",)), IPV4, "node-1", None, ())
BACKENDS = ("nft", "legacy")
SERVICE_IP, POD_IP = "10.96.0.250", "10.244.9.9"


def unchanged():
    """A Service that no random change touches."""
    made = service("zz", protocol="UDP", clusterIP=SERVICE_IP, clusterIPs=[SERVICE_IP])
    return batch(made, endpoint_slice("zz-1", "zz", POD_IP, protocol="UDP"))


class Failing:
    """iptables that fails on demand: `before`, `halfway` (the last table is refused), `after` (it was done, unseen)."""

    def __init__(self, node, backend):
        self.node, self.real, self.fail = node, Iptables(4, f"-{backend}"), ""
        self.backend = self.real.backend

    def save(self, table=""):
        return self.node.call(lambda: self.real.save(table))

    def rules(self, table, chain):
        return self.node.call(lambda: self.real.rules(table, chain))

    def restore(self, text):
        fail, self.fail = self.fail, ""
        if fail == "before":
            raise CommandFailed(["iptables-restore"], 1, "injected")
        if fail == "halfway":
            text = text.removesuffix("COMMIT\n") + "-A NOWHERE -j ACCEPT\nCOMMIT\n"
        self.node.call(lambda: self.real.restore(text))
        if fail == "after":
            raise CommandFailed(["iptables-restore"], -9, "injected")


class Proxy:
    """One family in a namespace."""

    def __init__(self, node, backend):
        self.node = node
        self.state = State(IPV4, "node-1")
        self.door = Failing(node, backend)
        self.sync = IptablesSync(self.state, self.door, nft_trace() if backend == "nft" else legacy_trace())
        self.touched = set()

    def apply(self, changes):
        self.touched |= self.state.apply(changes)

    def run(self):
        self.node.call(lambda: self.sync.sync(SETTINGS, self.touched))
        self.touched = set()

    def shown(self):
        return rules(self.door.save())


class Probe:
    """Sends a new UDP flow to the unchanged Service again and again; `lost` says what did not come back."""

    def __init__(self, stack):
        self.node, self.pod = (stack.enter_context(netns()) for _ in range(2))
        self.node.run("ip", "link", "add", "veth0", "type", "veth", "peer", "eth0", "netns", self.pod.path)
        self.node.run("ip", "addr", "add", "10.244.9.1/24", "dev", "veth0")
        self.node.run("ip", "link", "set", "veth0", "up")
        self.node.run("ip", "route", "add", "default", "dev", "veth0")
        self.pod.run("ip", "addr", "add", f"{POD_IP}/24", "dev", "eth0")
        self.pod.run("ip", "link", "set", "eth0", "up")
        self.server = self.pod.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.server.bind((POD_IP, 8080))
        self.server.settimeout(0.2)
        self.sent, self.lost, self.ended = 0, [], threading.Event()
        self.threads = [threading.Thread(target=self._echo), threading.Thread(target=self._ask)]
        stack.callback(self.close)

    def start(self):
        for thread in self.threads:
            thread.start()

    def close(self):
        self.ended.set()
        for thread in self.threads:
            if thread.is_alive():
                thread.join()
        self.server.close()

    def _echo(self):
        while not self.ended.is_set():
            with contextlib.suppress(TimeoutError):
                _, peer = self.server.recvfrom(100)
                self.server.sendto(b"pod", peer)

    def _ask(self):
        while not self.ended.is_set():
            with self.node.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
                sock.settimeout(5)
                try:
                    sock.connect((SERVICE_IP, 80))
                    sock.send(b"?")
                    sock.recv(100)
                except OSError as error:
                    self.lost.append(f"{self.sent}: {error!r}")
            self.sent += 1
            time.sleep(0.003)


FAILURES = {0: "", 1: "before", 2: "halfway", 3: "after"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_changes_and_failures_end_as_a_fresh_start_and_lose_no_packet_to_an_unchanged_service(backend):
    require("root", "iptables", "ip")
    with contextlib.ExitStack() as stack:
        probe = Probe(stack)
        first = Proxy(probe.node, backend)
        first.apply(unchanged())
        first.run()
        probe.start()

        @given(steps=STEPS)
        @hypothesis_settings(
            max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
        )
        def scenario(steps):
            proxy, known, changes = Proxy(probe.node, backend), unchanged(), Changes()
            proxy.apply(known)
            for _, at in follow(steps, changes, known):
                proxy.apply(changes.drain())
                proxy.door.fail = FAILURES[at]
                try:
                    proxy.run()
                except PodwireError as error:
                    note(str(error))
            proxy.apply(changes.drain())
            proxy.door.fail = ""
            proxy.run()
            assert proxy.node.call(proxy.sync.damaged) == []
            with netns() as empty:
                fresh = Proxy(empty, backend)
                fresh.apply(known)
                fresh.run()
                assert not differences(proxy.shown(), fresh.shown())
            assert probe.lost == []

        scenario()
        assert probe.sent > 50
        assert probe.lost == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_restore_loses_no_packet_and_the_next_start_ends_as_a_fresh_one(backend):
    require("root", "iptables", "ip")
    many = Batch()
    for number in range(300):
        name = f"s{number}"
        more = batch(service(name), endpoint_slice(f"{name}-1", name, *[f"10.244.1.{at}" for at in range(1, 6)]))
        many.services |= more.services
        many.slices |= more.slices
    with contextlib.ExitStack() as stack:
        probe = Probe(stack)
        first = Proxy(probe.node, backend)
        first.apply(unchanged())
        first.run()
        probe.start()
        for delay in (0.01, 0.05, 0.1, 0.2):
            child = os.fork()
            if child == 0:
                # A process of its own that dies with its restore half done.
                with contextlib.suppress(BaseException):
                    proxy = Proxy(probe.node, backend)
                    proxy.apply(many)
                    proxy.apply(unchanged())
                    threading.Timer(delay, lambda: os._exit(0)).start()
                    proxy.run()
                os._exit(0)
            os.waitpid(child, 0)
        proxy = Proxy(probe.node, backend)
        proxy.apply(many)
        proxy.apply(unchanged())
        wait_for_lock(proxy)
        with netns() as empty:
            fresh = Proxy(empty, backend)
            fresh.apply(many)
            fresh.apply(unchanged())
            fresh.run()
            assert not differences(proxy.shown(), fresh.shown())
        assert probe.lost == []


def wait_for_lock(proxy):
    """Sync, while an orphaned restore may still be at it."""
    for _ in range(10):
        with contextlib.suppress(PodwireError):
            proxy.run()
            time.sleep(0.5)
            if proxy.node.call(proxy.sync.damaged) == []:
                return
    raise AssertionError("never whole")


MALFORMED = [
    service("bad", clusterIP="10.96.0.999", clusterIPs=["10.96.0.999"]),
    service("bad", clusterIP="10.96.0.9; DROP", clusterIPs=["x"], externalIPs=["nonsense", "300.1.1.1", ""]),
    service("bad", protocol="ICMP"),
    service("bad", port=0),
    service("bad", port=99999, node_port=-5, type="NodePort"),
    service("bad", type="LoadBalancer", loadBalancerSourceRanges=["10.0.0.0/99", "x"], sessionAffinity="ClientIP"),
    service("bad", sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": "soon"}}),
    service('b"ad\n-A X', node_port=30001, type="NodePort"),
    endpoint_slice("bad-1", "good", "10.244.1.999", "", "::1", "10.244.1.9 -j DROP"),
    endpoint_slice("bad-1", "good", "10.244.1.7", port=0),
    endpoint_slice("bad-1", "good", "10.244.1.7", port=99999),
    endpoint_slice("bad-1", "good", "10.244.1.7", protocol="tcp\n-F"),
]


@pytest.mark.parametrize("bad", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_service_or_slice_costs_only_itself(bad):
    require("root", "iptables")
    good = batch(service("good"), endpoint_slice("good-1", "good", "10.244.1.5"))
    with netns() as node, netns() as other:
        proxy, fresh = Proxy(node, "nft"), Proxy(other, "nft")
        for one in (proxy, fresh):
            one.apply(good)
        proxy.apply(batch(bad))
        proxy.run()
        fresh.run()
        left = {where: lines for where, lines in proxy.shown().items() if "good" in str(lines)}
        want = {where: lines for where, lines in fresh.shown().items() if "good" in str(lines)}
        for where, lines in want.items():
            assert set(lines) <= set(left[where])


# Rules that a real kube-proxy of any age left.


OLD = ("01", "02", "04", "16", "51", "52")  # Kubernetes 1.14 to 1.32


def old_dump(number):
    text = case_inputs.cases()[case_inputs.name_of(number)]["iptables-save.txt"]
    text = re.sub(r"-m nfacct --nfacct-name +\S+ ", "", text)
    return re.sub(r"(?m)^\[\d+:\d+\] ", "", text)


def foreign(proxy):
    """What is not kube-proxy's: other chains with their rules, and rules of the built-in chains that lead elsewhere."""
    found = {}
    for (table, chain), lines in proxy.shown().items():
        if not chain.startswith("KUBE-") or chain.startswith(("KUBE-HP-", "KUBE-HOSTPORTS")):
            found[table, chain] = [line for line in lines if not re.search(r"-[jg] KUBE-(?!HP|HOST|FIREWALL)", line)]
    # The kernel's own chains are there as soon as somebody looks.
    return {where: lines for where, lines in found.items() if lines}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", OLD)
def test_rules_of_a_kube_proxy_of_any_age_are_taken_over_and_cleaned_up_and_nobody_elses(number, backend):
    require("root", "iptables")
    with netns() as node, netns() as empty:
        node.run(f"iptables-{backend}-restore", stdin=old_dump(number))
        node.run(f"iptables-{backend}", "-t", "nat", "-N", "ADMINS")
        node.run(f"iptables-{backend}", "-t", "nat", "-A", "ADMINS", "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
        node.run(f"iptables-{backend}", "-t", "nat", "-I", "PREROUTING", "-j", "ADMINS")
        proxy, fresh = Proxy(node, backend), Proxy(empty, backend)
        others = foreign(proxy)
        for one in (proxy, fresh):
            one.apply(unchanged())
            one.run()
        found, want = proxy.shown(), fresh.shown()
        ours = {where for where in found if where[1].startswith(("KUBE-S", "KUBE-E", "KUBE-FW-", "KUBE-XLB-"))}
        assert ours == {where for where in want if where[1].startswith(("KUBE-S", "KUBE-E", "KUBE-FW-", "KUBE-XLB-"))}
        for where in ours:
            assert found[where] == want[where]
        assert foreign(proxy) == others
        assert node.call(lambda: clean_iptables(proxy.door.real, 4))
        assert not node.call(lambda: clean_iptables(proxy.door.real, 4)) or number == "51"
        assert foreign(proxy) == others
        left = {chain for _, chain in proxy.shown() if chain.startswith("KUBE-")}
        allowed = {"KUBE-FIREWALL", "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "KUBE-HOSTPORTS"}
        if number == "51":
            allowed.add("KUBE-MARK-MASQ")  # the rules of hostPorts lead to it
        assert {chain for chain in left if not chain.startswith("KUBE-HP-")} <= allowed


def test_a_chain_that_somebody_elses_rule_leads_to_stays_empty_and_holds_nothing_up():
    require("root", "iptables")
    stale = "KUBE-SVC-AAAAAAAAAAAAAAAA"
    with netns() as node:
        node.run(
            "iptables-restore",
            stdin=f"*nat\n:{stale} - [0:0]\n:X - [0:0]\n-A X -j {stale}\n-A {stale} -j RETURN\nCOMMIT\n",
        )
        proxy = Proxy(node, "nft")
        proxy.apply(unchanged())
        proxy.run()
        shown = proxy.shown()
    assert shown["nat", stale] == []
    assert shown["nat", "X"] == [f"-j {stale}"]
    assert any(SERVICE_IP in line for line in shown["nat", "KUBE-SERVICES"])
