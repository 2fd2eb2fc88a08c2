"""The whole kube-proxy process against an API server, with pods, a client outside, and everything that can happen to it."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import struct
import tempfile
import threading
import time

import pytest

from kubeproxy_cluster import PERIOD, PODWIRE, Cluster, serving, wait_until
from podwire.kube.kinds import EVENTS, NODES, SERVICES
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def cluster():
    require("root", "iptables", "iptables-restore", "ip")
    with contextlib.ExitStack() as stack:
        made = Cluster(stack, stack.enter_context(tempfile.TemporaryDirectory()))
        made.create(NODES, {"metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.244.1.0/24"}})
        stack.enter_context(serving(made.pods[0], 8080, b"pod-1"))
        stack.enter_context(serving(made.pods[1], 8080, b"pod-2"))
        made.start_proxy()
        yield made


@pytest.fixture
def vote(cluster):
    """The Service of the article: NodePort 30450, one pod."""
    cluster.service("azure-vote-front", 80, 30450)
    cluster.endpoints("azure-vote-front", 8080, "10.244.1.2")
    wait_until(lambda: cluster.ask(cluster.outside, "10.20.0.1", 30450) == "pod-1")
    yield cluster
    if cluster.proxy.poll() is not None:
        cluster.start_proxy()
    cluster.remove("azure-vote-front", "late")
    wait_until(lambda: "30450" not in cluster.rules())


def test_a_service_is_reached_by_clusterip_and_nodeport_from_everywhere(vote):
    cluster_ip = vote.node.call(lambda: vote.client.get(SERVICES, "azure-vote-front", "default")).spec.cluster_ip
    assert vote.ask(vote.node, cluster_ip, 80) == "pod-1"
    assert vote.ask(vote.pods[1], cluster_ip, 80) == "pod-1"
    assert vote.ask(vote.pods[0], cluster_ip, 80) == "pod-1", "a pod reaches itself"
    assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1"
    assert vote.ask(vote.node, "127.0.0.1", 30450) == "pod-1"
    assert vote.ask(vote.node, "10.20.0.1", 30450) == "pod-1"


def test_every_endpoint_gets_its_share_and_a_removed_one_none(vote):
    vote.endpoints("azure-vote-front", 8080, "10.244.1.2", "10.244.1.3")
    answers = set()
    wait_until(lambda: answers.add(vote.ask(vote.outside, "10.20.0.1", 30450)) or len(answers) == 2)
    vote.endpoints("azure-vote-front", 8080, "10.244.1.3")
    wait_until(lambda: "10.244.1.2" not in vote.rules())
    assert {vote.ask(vote.outside, "10.20.0.1", 30450) for _ in range(20)} == {"pod-2"}
    vote.endpoints("azure-vote-front", 8080, "10.244.1.2")
    wait_until(lambda: vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1")


def test_a_change_after_a_pause_is_in_the_kernel_at_once(vote):
    time.sleep(0.5)  # longer than the shortest time between syncs
    began = time.monotonic()
    vote.endpoints("azure-vote-front", 8080, "10.244.1.2", "10.244.1.3")
    wait_until(lambda: "10.244.1.3:8080" in vote.rules(), 1)
    assert time.monotonic() - began < 0.7


def test_without_endpoints_a_client_is_refused_at_once(vote):
    vote.endpoints("azure-vote-front", 8080)
    wait_until(lambda: "azure-vote-front has no endpoints" in vote.rules("filter"))
    began = time.monotonic()
    assert vote.ask(vote.outside, "10.20.0.1", 30450) == "ConnectionRefusedError"
    assert time.monotonic() - began < 1


def test_a_nodeport_is_held_and_shown_by_lsof(vote):
    wait_until(lambda: "*:30450" in vote.node.run("ss", "-Hltnp", "sport", "=", ":30450").stdout)
    assert "kube-proxy" in vote.node.run("ss", "-Hltnp", "sport", "=", ":30450").stdout


def test_after_kill_9_the_nodeport_answers_and_a_new_service_waits_for_the_next_start(vote):
    with vote.outside.call(lambda: socket.create_connection(("10.20.0.1", 30450), timeout=2)) as established:
        assert established.recv(100) == b"pod-1"
        vote.kill_proxy()
        assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1"
        assert vote.ask(vote.node, "127.0.0.1", 30450) == "pod-1"
        late = vote.service("late", 80)
        vote.endpoints("late", 8080, "10.244.1.3")
        assert vote.ask(vote.pods[0], late, 80, timeout=0.5) != "pod-2"
        vote.start_proxy()
        wait_until(lambda: vote.ask(vote.pods[0], late, 80, timeout=0.5) == "pod-2")
        established.sendall(b"still there?")
        assert established.recv(100) == b"still there?"
    assert vote.rules().count("-A PREROUTING") == 1


def test_a_restart_does_not_lose_one_connection(vote):
    failed = []
    stop = threading.Event()

    def keep_asking():
        while not stop.is_set():
            answer = vote.ask(vote.outside, "10.20.0.1", 30450)
            if answer != "pod-1":
                failed.append(answer)

    asking = threading.Thread(target=keep_asking)
    asking.start()
    for _ in range(2):
        assert vote.kill_proxy(signal.SIGTERM) == 0
        vote.start_proxy()
    stop.set()
    asking.join()
    assert failed == []


ERROR = (
    'can\'t open "nodePort for default/azure-vote-front:" (:30450/tcp), skipping this nodePort: '
    "listen tcp :30450: bind: address already in use"
)


def test_a_port_that_a_listening_process_took_is_told_and_still_leads_to_the_pod(vote):
    vote.kill_proxy()
    with vote.node.call(lambda: socket.create_server(("0.0.0.0", 30450))):
        assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1", "the rules win"
        vote.start_proxy()
        wait_until(lambda: f"ERROR kube-proxy {ERROR}" in vote.log())
        wait_until(lambda: event(vote) is not None)
        assert (event(vote).type, event(vote).message) == ("Warning", ERROR)
        assert event(vote).involved_object.name == "azure-vote-front"
        assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1"
    wait_until(lambda: "nodePort is held after all" in vote.log(), 2 * PERIOD + 2)


def event(cluster):
    listed = cluster.node.call(lambda: cluster.client.list(EVENTS, "default")).items
    return next((item for item in listed if item.reason == "FailedToHoldNodePort"), None)


def test_an_outgoing_connection_with_the_nodeport_as_its_source_never_gets_a_request(vote):
    vote.kill_proxy()

    def steal():
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Reset at the end: TIME_WAIT would keep the port from being held for another minute.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.bind(("10.20.0.1", 30450))
        sock.settimeout(2)
        sock.connect(("10.244.1.3", 8080))
        return sock

    with vote.node.call(steal) as thief:
        assert thief.recv(100) == b"pod-2"
        assert {vote.ask(vote.outside, "10.20.0.1", 30450) for _ in range(10)} == {"pod-1"}
        before = vote.log().count(ERROR)
        vote.start_proxy()
        wait_until(lambda: vote.log().count(ERROR) > before)
        assert {vote.ask(vote.outside, "10.20.0.1", 30450) for _ in range(10)} == {"pod-1"}
        thief.sendall(b"mine")
        assert thief.recv(100) == b"mine", "its own connection goes on"


def test_a_udp_client_is_not_left_with_a_pod_that_is_gone(cluster):
    cluster_ip = cluster.service("dns", 53, 30053, protocol="UDP")
    cluster.endpoints("dns", 8080, "10.244.1.2", protocol="UDP")
    wait_until(lambda: "10.244.1.2:8080" in cluster.rules())

    def client():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(0.5)
        sock.connect((cluster_ip, 53))
        return sock

    def ask(sock):
        try:
            sock.send(b"?")
            return sock.recv(100).decode()
        except OSError as error:
            return type(error).__name__

    with cluster.pods[0].call(client) as sock:
        wait_until(lambda: ask(sock) == "pod-1")
        cluster.endpoints("dns", 8080, "10.244.1.3", protocol="UDP")
        wait_until(lambda: ask(sock) == "pod-2", 5)
        cluster.endpoints("dns", 8080, protocol="UDP")
        wait_until(lambda: ask(sock) == "ConnectionRefusedError", 5)
    assert "stale UDP flows deleted" in cluster.log()
    cluster.remove("dns")


@pytest.mark.parametrize(
    "harm",
    [
        ("iptables", "-t", "nat", "-F", "KUBE-NODEPORTS"),
        ("iptables", "-t", "nat", "-F", "PREROUTING"),
        ("iptables", "-t", "nat", "-F"),
        ("iptables", "-F"),
        ("iptables", "-t", "mangle", "-X", "KUBE-PROXY-CANARY"),
    ],
)
def test_rules_that_somebody_took_away_are_back_within_a_sync_period(vote, harm):
    time.sleep(PERIOD + 0.5)  # the last sync is settled
    good = sorted(line for line in vote.node.run("iptables-save").stdout.splitlines() if "KUBE" in line)
    vote.node.run(*harm)

    def repaired():
        found = sorted(line for line in vote.node.run("iptables-save").stdout.splitlines() if "KUBE" in line)
        return found == good

    assert not repaired()
    wait_until(repaired, PERIOD + 2)
    assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1"


def test_foreign_rules_in_the_same_tables_are_kept_and_cause_no_work(vote):
    vote.node.run("iptables", "-t", "nat", "-I", "PREROUTING", "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
    vote.node.run("iptables", "-t", "nat", "-N", "SOMEBODYS")
    syncs = vote.log().count("synced family=IPv4 kind=full")
    time.sleep(PERIOD + 1)
    assert vote.log().count("synced family=IPv4 kind=full") == syncs
    vote.kill_proxy()
    vote.start_proxy()
    lines = [line for line in vote.rules().splitlines() if line.startswith("-A PREROUTING")]
    assert "--dport 9 " in lines[0], "a jump that was there stays where it was"
    assert "KUBE-SERVICES" in lines[1]
    assert ":SOMEBODYS" in vote.rules()
    vote.node.run("iptables", "-t", "nat", "-D", "PREROUTING", "-p", "tcp", "--dport", "9", "-j", "ACCEPT")
    vote.node.run("iptables", "-t", "nat", "-X", "SOMEBODYS")


def test_a_lost_api_server_costs_nothing_but_news(vote):
    vote.api.kill()
    vote.api.wait()
    time.sleep(1)
    assert vote.proxy.poll() is None
    assert vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-1"
    assert vote.get("/healthz").startswith("HTTP/1.0 200")
    vote.api = vote.start_api()
    vote.endpoints("azure-vote-front", 8080, "10.244.1.3")
    wait_until(lambda: vote.ask(vote.outside, "10.20.0.1", 30450) == "pod-2", 20)


def test_it_says_what_it_did_and_how_long_it_took(vote):
    wait_until(lambda: 'podwire_node_ports_held{protocol="tcp"} 1.0' in vote.get("/metrics", 10249))
    page = vote.get("/metrics", 10249)
    assert 'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}' in page
    assert 'kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"}' in page
    assert vote.get("/proxyMode", 10249).endswith("iptables")
    assert " INFO kube-proxy synced family=IPv4 kind=partial services=1 took=" in vote.log()
    assert re.search(r"kind=partial services=1 took=\d+ms changed=default/azure-vote-front$", vote.log(), re.MULTILINE)
    assert re.search(r"kind=full .* changed=start$", vote.log(), re.MULTILINE)


def test_sigterm_ends_it_cleanly_and_cleanup_takes_its_rules_away(vote):
    began = time.monotonic()
    assert vote.kill_proxy(signal.SIGTERM) == 0
    assert time.monotonic() - began < 2
    assert "KUBE-SERVICES" in vote.rules()
    vote.node.run(*PODWIRE, "kube-proxy", "--cleanup", f"--state-dir={vote.folder}/run")
    for program in ("iptables-save", "ip6tables-save"):
        left = [line for line in vote.node.run(program).stdout.splitlines() if "KUBE-" in line]
        assert all("KUBE-FIREWALL" in line for line in left), left
    vote.start_proxy()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--cluster-cidr=10.244.0.0/33"], "clusterCIDR '10.244.0.0/33': is no prefix"),
        (["--proxy-mode=ipvs"], "mode 'ipvs': must be one of iptables, nftables"),
        (["--kubeconfig=/nowhere"], "/nowhere"),
        (["--iptables-sync-period=soon"], "--iptables-sync-period 'soon': is no duration"),
        (["--config=/nowhere"], "/nowhere"),
    ],
)
def test_wrong_use_is_one_clear_line_and_status_2(cluster, flags, says):
    done = cluster.node.run(*PODWIRE, "kube-proxy", *flags, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
