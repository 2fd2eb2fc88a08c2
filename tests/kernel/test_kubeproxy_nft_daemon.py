"""The whole kube-proxy process in nftables mode, with everything that can happen to its table, and its changes of mode."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import tempfile
import threading
import time

import pytest

from kubeproxy_cluster import PERIOD, PODWIRE, Cluster, serving, wait_until
from kubeproxy_golden import cases
from podwire.kube.kinds import NODES, SERVICES
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

NFTABLES = "--proxy-mode=nftables"
FRONT = "azure-vote-front"


@pytest.fixture(scope="module")
def cluster():
    require("root", "nft", "iptables", "iptables-restore", "ip")
    with contextlib.ExitStack() as stack:
        made = Cluster(stack, stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = [{"type": "InternalIP", "address": "10.20.0.1"}]
        made.create(NODES, {"metadata": {"name": "node-1"}, "status": {"addresses": addresses}})
        stack.enter_context(serving(made.pods[0], 8080, b"pod-1"))
        stack.enter_context(serving(made.pods[1], 8080, b"pod-2"))
        made.start_proxy(NFTABLES)
        yield made


@pytest.fixture
def vote(cluster):
    """The Service of the article: NodePort 30450, one pod."""
    cluster.service(FRONT, 80, 30450)
    cluster.endpoints(FRONT, 8080, "10.244.1.2")
    wait_until(lambda: cluster.ask(cluster.outside, "10.20.0.1", 30450) == "pod-1")
    yield cluster
    if cluster.proxy.poll() is not None:
        cluster.start_proxy(NFTABLES)
    cluster.remove(FRONT, "other")
    wait_until(lambda: FRONT not in table(cluster))


def table(cluster, family="ip"):
    return cluster.node.run("nft", "list", "table", family, "kube-proxy", check=False).stdout


def cluster_ip(cluster):
    return cluster.node.call(lambda: cluster.client.get(SERVICES, FRONT, "default")).spec.cluster_ip


@contextlib.contextmanager
def asking(cluster):
    """Ask without a pause meanwhile, and fail if a request was not answered."""
    failed, stop, count = [], threading.Event(), 0

    def keep_asking():
        nonlocal count
        while not stop.is_set():
            answer = cluster.ask(cluster.outside, "10.20.0.1", 30450)
            count += 1
            if answer != "pod-1":
                failed.append(answer)

    thread = threading.Thread(target=keep_asking)
    thread.start()
    yield
    stop.set()
    thread.join()
    assert count > 10
    assert failed == []


def test_a_service_is_reached_by_clusterip_and_nodeport_but_not_on_loopback(vote):
    ip = cluster_ip(vote)
    assert vote.ask(vote.node, ip, 80) == "pod-1"
    assert vote.ask(vote.pods[1], ip, 80) == "pod-1"
    assert vote.ask(vote.pods[0], ip, 80) == "pod-1", "a pod reaches itself"
    assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1"
    assert vote.ask(vote.node, "10.20.0.1", 30450) == "pod-1"
    assert vote.ask(vote.node, "127.0.0.1", 30450, timeout=0.5) != "pod-1"


def test_a_port_that_a_clusterip_has_not_and_a_service_without_endpoints_refuse_at_once(vote):
    began = time.monotonic()
    assert vote.ask(vote.pods[1], cluster_ip(vote), 81) == "ConnectionRefusedError"
    vote.endpoints(FRONT, 8080)
    wait_until(lambda: "reject-chain" in re.search(r"map no-endpoint-nodeports.*?\t}", table(vote), re.DOTALL)[0])
    assert vote.ask(vote.outside, "10.20.0.1", 30450) == "ConnectionRefusedError"
    assert time.monotonic() - began < 2


def test_a_change_after_a_pause_is_in_the_kernel_at_once(vote):
    time.sleep(0.5)  # longer than the shortest time between syncs
    began = time.monotonic()
    vote.endpoints(FRONT, 8080, "10.244.1.2", "10.244.1.3")
    wait_until(lambda: "10.244.1.3 . 8080" in table(vote), 1)
    assert time.monotonic() - began < 0.7


def test_a_restart_and_changes_of_others_lose_neither_a_connection_nor_a_request(vote):
    with vote.outside.call(lambda: socket.create_connection(("10.20.0.1", 30450), timeout=2)) as established:
        assert established.recv(100) == b"pod-1"
        with asking(vote):
            vote.kill_proxy()
            vote.service("other", 80)
            vote.start_proxy(NFTABLES)
            for ips in (["10.244.1.3"], ["10.244.1.2", "10.244.1.3"], [], ["10.244.1.3"]):
                vote.endpoints("other", 8080, *ips)
                time.sleep(0.2)
        established.sendall(b"still there?")
        assert established.recv(100) == b"still there?"


def test_a_client_stays_with_its_pod_over_a_restart(vote):
    vote.remove(FRONT)
    vote.service(FRONT, 80, 30450, sessionAffinity="ClientIP")
    vote.endpoints(FRONT, 8080, "10.244.1.2", "10.244.1.3")
    wait_until(lambda: table(vote).count("goto endpoint-") >= 4 and "30450" in table(vote))
    [pod] = {vote.ask(vote.outside, "10.20.0.1", 30450) for _ in range(10)}
    vote.kill_proxy()
    started = vote.log().count("synced")
    vote.start_proxy(NFTABLES)
    wait_until(lambda: vote.log().count("synced") > started)
    assert {vote.ask(vote.outside, "10.20.0.1", 30450) for _ in range(20)} == {pod}


def test_other_programs_tables_are_kept_and_cause_no_work(vote):
    vote.node.run("nft", "add table ip filter-of-mine { chain c { type filter hook input priority 5; accept; }; }")
    time.sleep(PERIOD + 1)
    syncs = vote.log().count("synced")
    for number in range(3):
        vote.node.run("nft", "add", "rule", "ip", "filter-of-mine", "c", "tcp", "dport", str(number + 1), "accept")
    time.sleep(PERIOD + 1)
    assert vote.log().count("synced") == syncs
    assert "tcp dport 3 accept" in vote.node.run("nft", "list", "ruleset").stdout
    vote.node.run("nft", "delete", "table", "ip", "filter-of-mine")


def test_an_api_without_servicecidrs_is_told_and_no_address_is_dropped(vote):
    assert "no ServiceCIDRs" in vote.log()
    assert "Drop traffic to unallocated" not in table(vote)


def test_the_modes_take_over_from_each_other_without_losing_a_request(vote):
    with vote.outside.call(lambda: socket.create_connection(("10.20.0.1", 30450), timeout=2)) as established:
        assert established.recv(100) == b"pod-1"
        with asking(vote):
            vote.kill_proxy(signal.SIGTERM)
            vote.start_proxy("--proxy-mode=iptables")
            wait_until(lambda: table(vote) == "")
            assert "30450" in vote.rules()
            vote.kill_proxy(signal.SIGTERM)
            vote.start_proxy(NFTABLES)
            wait_until(lambda: "KUBE-SERVICES" not in vote.rules())
            assert "30450" in table(vote)
        established.sendall(b"still there?")
        assert established.recv(100) == b"still there?"
    left = [line for line in vote.rules("filter").splitlines() if "KUBE" in line]
    assert left
    assert all("KUBE-FIREWALL" in line for line in left)
    assert "rules of iptables mode removed" in vote.log()


def test_a_table_left_by_the_real_one_of_any_age_is_taken_over(vote):
    vote.kill_proxy(signal.SIGTERM)
    recorded = cases()["15-session-affinity"]["states"][0]["nft"]
    older = "add table ip kube-proxy\nadd set ip kube-proxy cluster-ips { type ipv4_addr . inet_service; }\n"
    older += (
        "add map ip kube-proxy service-nodeports { type inet_service : verdict; }\nadd chain ip kube-proxy services\n"
    )
    older += "add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -90; }\n"
    for text in (recorded, older):
        vote.node.run("nft", "flush", "ruleset")
        with open(f"{vote.folder}/old.nft", "w") as file:
            file.write(text)
        vote.node.run("nft", "-f", f"{vote.folder}/old.nft")
        vote.start_proxy(NFTABLES)
        wait_until(lambda: vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1")
        assert "default/st/" not in table(vote)
        vote.kill_proxy(signal.SIGTERM)


def test_cleanup_takes_the_rules_of_both_modes_away(vote):
    vote.kill_proxy(signal.SIGTERM)
    with open(f"{vote.folder}/old.rules", "w") as file:
        # The administrator's policy in it would stop all that is forwarded.
        file.write(
            cases()["39-leftovers-and-mode-switch"]["texts"]["before.txt"].replace("FORWARD DROP", "FORWARD ACCEPT")
        )
    vote.node.run("sh", "-c", f"iptables-restore --noflush < {vote.folder}/old.rules")
    vote.node.run(*PODWIRE, "kube-proxy", "--cleanup", f"--state-dir={vote.folder}/run")
    assert table(vote) == table(vote, "ip6") == ""
    assert "KUBE-SVC" not in vote.rules()
    assert "KUBE-SERVICES" not in vote.rules("filter")
    vote.start_proxy(NFTABLES)


def test_without_nft_it_says_so_in_one_line(cluster):
    hidden = "for nft in /usr/sbin/nft /sbin/nft; do [ ! -e $nft ] || mount --bind /dev/null $nft; done; exec "
    command = f"{PODWIRE[0]} kube-proxy {NFTABLES} --kubeconfig={cluster.folder}/kubeconfig"
    done = cluster.node.run("unshare", "-m", "sh", "-c", hidden + command, check=False)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "nft: there is no such program" in done.stderr


# Last: while a table is away, connections are tracked without DNAT, and for two minutes a client may meet such an entry again.


@pytest.mark.parametrize(
    "harm",
    [
        "flush table ip kube-proxy",
        "delete table ip kube-proxy",
        "flush chain ip kube-proxy services",
        "flush map ip kube-proxy service-nodeports",
        "flush set ip kube-proxy cluster-ips",
        "flush ruleset",
    ],
)
def test_what_somebody_took_away_is_back_within_a_sync_period(vote, harm):
    time.sleep(0.3)
    before = [line for line in table(vote).splitlines() if "elements" not in line]
    vote.node.run("nft", *harm.split())
    wait_until(lambda: vote.ask(vote.outside, "10.20.0.1", 30450, timeout=0.3) == "pod-1", PERIOD + 2)
    wait_until(lambda: "elements" in table(vote) and "reject comment" in table(vote))
    assert len([line for line in table(vote).splitlines() if "elements" not in line]) == len(before)
