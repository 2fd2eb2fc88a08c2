"""Held NodePorts: nobody else gets them, nothing that reaches them hangs, and a taken one is said and tried again."""

from __future__ import annotations

import socket
import time

import pytest

from podwire.kernel import sysctl
from podwire.kubeproxy.lb_health import Check, LoadBalancerHealth
from podwire.kubeproxy.metrics import Metrics
from podwire.kubeproxy.nodeports import NodePort, NodePortHolder, Owner
from podwire.kubeproxy.sockets import SocketLoop
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

VOTE = Owner("default/azure-vote-front", "")
DNS = Owner("kube-system/dns", "dns")


class Held:
    """A holder in a namespace of its own; `call` runs something there."""

    def __init__(self, node):
        self.call = node.call
        self.node = node
        self.metrics = Metrics()
        self.reports = []
        self.loop = SocketLoop()
        # The loop's thread opens the sockets: it must be born inside.
        self.call(self.loop.start)
        self.holder = NodePortHolder(self.loop, self.metrics, lambda owner, text: self.reports.append((owner, text)))

    def sync(self, *wanted):
        self.holder.sync(dict(wanted))

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, labels)

    def connect(self, host, port):
        return self.call(lambda: socket.create_connection((host, port), timeout=2))

    def bind(self, port, kind=socket.SOCK_STREAM, host="0.0.0.0", reuse=False):
        def made():
            sock = socket.socket(socket.AF_INET, kind)
            if reuse:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError:
                sock.close()
                raise
            return sock

        return self.call(made)


@pytest.fixture
def held():
    require("root")
    with netns() as node:
        made = Held(node)
        yield made
        made.holder.close()
        made.loop.stop()


TCP = NodePort("tcp", 30450)
UDP = NodePort("udp", 30053)


def test_lsof_shows_who_holds_a_nodeport(held):
    held.sync((TCP, VOTE))
    listed = held.node.run("ss", "-Hltn", "sport", "=", ":30450").stdout
    assert "*:30450" in listed


def test_nobody_else_gets_a_held_port_and_it_is_free_again_afterwards(held):
    held.sync((TCP, VOTE), (UDP, DNS))
    for port, kind in ((30450, socket.SOCK_STREAM), (30053, socket.SOCK_DGRAM)):
        with pytest.raises(OSError, match="in use"):
            held.bind(port, kind)
    assert held.value("podwire_node_ports_held", protocol="tcp") == 1
    held.sync((UDP, DNS))
    held.bind(30450).close()
    assert held.value("podwire_node_ports_held", protocol="tcp") == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_that_no_rule_took_is_reset_at_once_and_counted(held, host):
    held.sync((TCP, VOTE))
    began = time.monotonic()
    with pytest.raises(ConnectionResetError), held.connect(host, 30450) as client:
        client.recv(1)
    assert time.monotonic() - began < 1
    assert held.value("podwire_node_port_strays_total", protocol="tcp") == 1


def test_many_connections_at_once_are_all_reset(held):
    held.sync((TCP, VOTE))
    for _ in range(200):
        # The reset may be there before connect has looked.
        with pytest.raises(ConnectionResetError), held.connect("127.0.0.1", 30450) as client:
            client.recv(1)
    assert held.value("podwire_node_port_strays_total", protocol="tcp") == 200


def test_datagrams_that_no_rule_took_are_thrown_away_and_counted(held):
    held.sync((UDP, DNS))

    def send():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(50):  # fewer than what a receive buffer holds: the rest would be dropped uncounted
                sock.sendto(b"x" * 900, ("127.0.0.1", 30053))

    held.call(send)
    deadline = time.monotonic() + 2
    while held.value("podwire_node_port_strays_total", protocol="udp") != 50 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert held.value("podwire_node_port_strays_total", protocol="udp") == 50


ERROR = (
    'can\'t open "nodePort for default/azure-vote-front:" (:30450/tcp), skipping this nodePort: '
    "listen tcp :30450: bind: address already in use"
)


def test_a_taken_port_is_said_once_in_the_words_of_the_real_one_and_held_when_it_is_free(held, caplog):
    thief = held.bind(30450, reuse=True)
    thief.listen()
    for _ in range(3):
        held.sync((TCP, VOTE))
    assert held.reports == [(VOTE, ERROR)]
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [ERROR]
    assert held.value("podwire_node_ports_not_held") == 1
    thief.close()
    held.sync((TCP, VOTE))
    assert held.value("podwire_node_ports_held", protocol="tcp") == 1
    assert held.value("podwire_node_ports_not_held") == 0


def test_a_client_whose_source_port_is_the_nodeport_is_a_thief_too(held):
    """The article's incident: after a reboot an outgoing connection had the number."""
    server = held.call(lambda: socket.create_server(("127.0.0.1", 0)))
    client = held.bind(30450, host="127.0.0.1", reuse=True)
    held.call(lambda: client.connect(server.getsockname()))
    held.sync((TCP, VOTE))
    assert held.reports == [(VOTE, ERROR)]
    client.close()
    server.close()


def test_one_taken_port_does_not_keep_the_others_from_being_held(held):
    thief = held.bind(30450)
    thief.listen()
    held.sync((TCP, VOTE), (UDP, DNS), (NodePort("tcp", 30451), VOTE))
    assert held.value("podwire_node_ports_held", protocol="tcp") == 1
    assert held.value("podwire_node_ports_held", protocol="udp") == 1
    thief.close()


def test_with_nodeport_addresses_the_port_stays_free_on_others(held):
    held.node.run("ip", "addr", "add", "127.0.0.9/8", "dev", "lo")
    held.sync((NodePort("tcp", 30450, "127.0.0.1"), VOTE))
    held.bind(30450, host="127.0.0.9").close()
    with pytest.raises(OSError, match="in use"):
        held.bind(30450, host="127.0.0.1")


def test_without_ipv6_the_wildcard_of_ipv4_is_held(held):
    held.call(lambda: sysctl.write("net.ipv6.conf.all.disable_ipv6", 1))
    held.sync((TCP, VOTE))
    assert held.reports == []
    with pytest.raises(ConnectionResetError), held.connect("127.0.0.1", 30450) as client:
        client.recv(1)


def test_a_healthchecknodeport_answers_whoever_asks_and_outlasts_who_does_not(held):
    healthy = True
    health = LoadBalancerHealth(held.loop, lambda: healthy)
    port = NodePort("tcp", 32180)
    health.sync({port: Check("default/hc", 2)})
    silent = held.connect("127.0.0.1", 32180)
    with held.connect("127.0.0.1", 32180) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        client.sendall(b"\r\n")
        text = read_all(client)
    assert text.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"X-Load-Balancing-Endpoint-Weight: 2" in text
    health.sync({port: Check("default/hc", 0)})
    with held.connect("127.0.0.1", 32180) as client:
        client.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert read_all(client).startswith(b"HTTP/1.1 503 ")
    silent.close()
    health.sync({})
    with pytest.raises(ConnectionRefusedError):
        held.connect("127.0.0.1", 32180)


def read_all(sock):
    parts = []
    while part := sock.recv(4096):
        parts.append(part)
    return b"".join(parts)
