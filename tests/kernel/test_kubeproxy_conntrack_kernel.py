"""UDP flows in the kernel's tracking table: those to endpoints that are gone go, those of others stay."""

from __future__ import annotations

import socket

import pytest

from kubeproxy_changes import batch, endpoint_slice, service
from podwire.kernel.conntrack import UDP, Conntrack
from podwire.kubeproxy import conntrack
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.nodeports import NodePort, open_socket
from podwire.kubeproxy.state import State
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

NODE, CLUSTER_IP, GONE, THERE, ELSEWHERE = "10.20.0.1", "10.96.0.250", "10.244.1.2", "10.244.1.3", "203.0.113.9"
# (sent to, port) → where the rules sent it
FLOWS = {
    (CLUSTER_IP, 53): GONE,
    (CLUSTER_IP, 54): GONE,  # another port of the address
    (NODE, 30053): GONE,
    (ELSEWHERE, 30053): None,  # merely passes: another host's port of the same number
    ("198.51.100.1", 53): THERE,
}


@pytest.fixture
def node():
    """A node with flows to a Service whose pod 10.244.1.2 has just gone."""
    require("root", "iptables", "ip")
    with netns() as made:
        made.run("ip", "link", "add", "eth0", "type", "bridge")
        made.run("ip", "addr", "add", f"{NODE}/24", "dev", "eth0")
        made.run("ip", "link", "set", "eth0", "up")
        made.run("ip", "route", "add", "default", "dev", "eth0")
        for (ip, port), to in FLOWS.items():
            match = ("-d", ip, "-p", "udp", "--dport", str(port))
            if to:
                made.run(
                    "iptables", "-t", "nat", "-A", "OUTPUT", *match, "-j", "DNAT", "--to-destination", f"{to}:5353"
                )

        def send():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for where in FLOWS:
                    sock.sendto(b"?", where)

        # The first nat rule switches tracking on.
        made.run("iptables", "-t", "nat", "-A", "OUTPUT", "-p", "udp", "-j", "ACCEPT")
        made.call(send)
        assert tracked(made) == set(FLOWS)
        yield made


def tracked(node):
    def read():
        with Conntrack() as table:
            return {(flow.original.destination, flow.original.destination_port) for flow in table.flows(4, UDP)}

    return node.call(read)


def state(*ips):
    made = State(IPV4, "node-1")
    dns = service("dns", 53, 30053, "UDP", type="NodePort", clusterIP=CLUSTER_IP, clusterIPs=[CLUSTER_IP],
                  externalIPs=["198.51.100.1"])  # fmt: skip
    made.apply(batch(dns, service("other", 80), endpoint_slice("dns-1", "dns", *ips, protocol="UDP", port=5353)))
    return made


def reconcile(node, known, services=None, ips=(NODE,)):
    return node.call(lambda: conntrack.reconcile(known, frozenset(ips), services))


def test_only_flows_to_the_services_own_frontends_and_gone_endpoints_are_deleted(node):
    assert reconcile(node, state(THERE)) == 2
    assert tracked(node) == {(CLUSTER_IP, 54), (ELSEWHERE, 30053), ("198.51.100.1", 53)}


def test_with_no_endpoint_left_all_flows_to_the_service_are_deleted_and_no_other(node):
    assert reconcile(node, state()) == 3
    assert tracked(node) == {(CLUSTER_IP, 54), (ELSEWHERE, 30053)}


def test_flows_of_services_that_were_not_touched_are_not_looked_at(node):
    assert reconcile(node, state(THERE), ["ns/other"]) == 0
    assert reconcile(node, state(THERE), ["ns/dns"]) == 2


def test_an_address_that_takes_no_nodeport_traffic_keeps_its_flows(node):
    assert reconcile(node, state(THERE), ips=["10.20.0.7"]) == 1
    assert (NODE, 30053) in tracked(node)


def test_an_sctp_nodeport_is_held_by_a_listening_socket():
    require("root")
    with netns() as node:
        try:
            sock = node.call(lambda: open_socket(NodePort("sctp", 30132)))
        except OSError as error:
            pytest.skip(f"the kernel has no SCTP sockets (module sctp): {error.strerror}")
        with sock, pytest.raises(OSError, match="in use"):
            node.call(lambda: open_socket(NodePort("sctp", 30132)))
