"""The netfilter and conntrack doors against the programs that show the same."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from podwire.kernel import netfilter
from podwire.kernel.conntrack import UDP, Conntrack
from podwire.kubeproxy.trace import legacy_trace, nft_trace
from podwire.rules.iptables.run import Iptables
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel


@pytest.fixture
def node():
    require("root", "iptables", "nft", "ip")
    with netns() as made:
        yield made


def test_each_committed_transaction_moves_the_generation_by_one(node):
    before = netfilter.nft_generation(node.fd)
    node.run("iptables-nft-restore", "--noflush", stdin="*nat\n:A - [0:0]\nCOMMIT\n*filter\n:B - [0:0]\nCOMMIT\n")
    assert netfilter.nft_generation(node.fd) == before + 2
    node.run("iptables-nft-save")
    node.run("iptables-nft", "-t", "nat", "-S", "A")
    assert netfilter.nft_generation(node.fd) == before + 2, "reading is no change"


def test_chains_are_those_that_nft_lists_and_uses_count_rules_and_references(node):
    node.run(
        "iptables-nft-restore", stdin="*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A A -j B\n-A B -j ACCEPT\nCOMMIT\n"
    )
    node.run("ip6tables-nft", "-N", "SIX")
    found = netfilter.nft_chains(4, node.fd)
    listed = json.loads(node.run("nft", "-j", "list", "chains", "ip").stdout)["nftables"]
    assert {(table, chain) for table, chains in found.items() for chain in chains} == {
        (item["chain"]["table"], item["chain"]["name"]) for item in listed if "chain" in item
    }
    assert (found["nat"]["A"], found["nat"]["B"]) == (2, 3)
    assert "SIX" in netfilter.nft_chains(6, node.fd)["filter"]
    node.run("iptables-nft", "-t", "nat", "-F", "A")
    assert netfilter.nft_chains(4, node.fd)["nat"] == found["nat"] | {"A": 0, "B": 1}


def test_the_size_of_a_legacy_table_shows_a_flush(node):
    node.run("iptables-legacy-restore", stdin="*nat\n:A - [0:0]\n-A A -j ACCEPT\n-A A -j RETURN\nCOMMIT\n")
    before = node.call(lambda: netfilter.legacy_entries(4, "nat"))
    node.run("iptables-legacy", "-t", "nat", "-F", "A")
    after = node.call(lambda: netfilter.legacy_entries(4, "nat"))
    assert before[0] - after[0] == 2
    assert before[1] > after[1]
    assert node.call(lambda: netfilter.legacy_entries(4, "no-such-table")) is None


@pytest.mark.parametrize("version", [4, 6])
def test_the_digest_of_a_legacy_table_shows_a_rule_replaced_by_one_of_its_size_and_no_traffic(node, version):
    program, address = ("iptables-legacy", "127.0.0.1") if version == 4 else ("ip6tables-legacy", "::1")

    def digest():
        return node.call(lambda: netfilter.legacy_digest(version, "filter"))

    def replace(port):
        match = ("-m", "statistic", "--mode", "nth", "--every", "2", "--packet", "0")
        node.run(program, "-R", "OUTPUT", "1", "-p", "udp", "--dport", str(port), *match, "-j", "DROP")

    node.run(program, "-A", "OUTPUT", "-j", "DROP")
    replace(80)
    before = digest()

    def send():
        with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            for _ in range(5):
                with contextlib.suppress(PermissionError):  # every second one
                    sock.sendto(b"x", (address, 80))

    node.call(send)
    assert digest() == before
    replace(81)
    assert digest() != before
    replace(80)
    assert digest() == before
    assert node.call(lambda: netfilter.legacy_digest(version, "no-such-table")) is None


@pytest.mark.parametrize("backend", ["nft", "legacy"])
def test_the_trace_explains_our_own_writes_and_doubts_those_of_others(node, backend):
    door = Iptables(4, f"-{backend}")
    trace = nft_trace() if backend == "nft" else legacy_trace()

    def write(text):
        trace.begin("IPv4")
        door.restore(text)
        trace.end(text.count("\nCOMMIT\n"))

    def scenario():
        write("*nat\n:A - [0:0]\n-A A -j ACCEPT\nCOMMIT\n")
        trace.settled("IPv4")
        write("*nat\n:A - [0:0]\n-A A -j RETURN\n-A A -j RETURN\nCOMMIT\n*filter\n:B - [0:0]\nCOMMIT\n")
        assert not trace.doubted("IPv4")
        # Somebody else, and as many rules and bytes as there were.
        door.restore("*nat\n:A - [0:0]\n-A A -j RETURN\n-A A -j ACCEPT\nCOMMIT\n")
        assert trace.doubted("IPv4")
        assert trace.doubted("IPv4"), "until somebody looked"
        trace.settled("IPv4")
        assert not trace.doubted("IPv4")

    node.call(scenario)


def track(node):
    """Make the kernel track flows in the namespace: it does only where a rule asks for it."""
    node.run("iptables", "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")
    node.run("ip6tables", "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW", "-j", "ACCEPT")


def send(node, family, host, port):
    def once():
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", (host, port))
            return sock.getsockname()[1]

    return node.call(once)


def connect():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()


def test_flows_of_one_protocol_and_family_are_listed_with_both_directions(node):
    track(node)
    source = send(node, socket.AF_INET, "127.0.0.1", 5353)
    source6 = send(node, socket.AF_INET6, "::1", 5354)
    node.call(connect)
    with Conntrack(node.fd) as table:
        (flow,) = table.flows(4, UDP)
        (flow6,) = table.flows(6, UDP)
        assert len(table.flows(4, socket.IPPROTO_TCP)) == 1
    assert repr(flow.original) == f"127.0.0.1:{source}->127.0.0.1:5353"
    assert repr(flow.reply) == f"127.0.0.1:5353->127.0.0.1:{source}"
    assert (flow6.original.destination, flow6.original.destination_port, flow6.reply.destination_port) == (
        "::1",
        5354,
        source6,
    )


def test_a_flow_is_deleted_once_and_only_itself(node):
    track(node)
    for port in (1001, 1002):
        send(node, socket.AF_INET, "127.0.0.1", port)
    with Conntrack(node.fd) as table:
        doomed = next(flow for flow in table.flows(4, UDP) if flow.original.destination_port == 1001)
        assert table.delete(doomed)
        assert not table.delete(doomed)
        assert [flow.original.destination_port for flow in table.flows(4, UDP)] == [1002]
