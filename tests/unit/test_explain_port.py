"""explain port: who has a port of this node, the rules or a process; with and without sockets, in both dialects."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from case_inputs import unpack
from podwire.errors import UsageError
from podwire.explain.picture import Given, picture
from podwire.explain.port import parse, reports
from podwire.explain.render_text import port_lines
from podwire.explain.snapshot import Socket
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit

NODE = ["192.0.2.11/24@eth0"]


def podwire(*arguments):
    return subprocess.run([sys.executable, "-m", "podwire", *arguments], capture_output=True, text=True, check=True)


def node_of(tmp_path, number, *addresses):
    return picture(load(unpack(number, tmp_path))[0], Given(list(addresses)))


def report(tmp_path, number, port, *addresses):
    (made,) = reports(port, node_of(tmp_path, number, *addresses))
    return made


@pytest.mark.parametrize(
    ("number", "port", "service", "targets"),
    [
        ("01", "30450", "default/web", ["10.244.1.5:8080", "10.244.2.8:8080", "10.244.3.4:8080"]),
        ("26", "30450", "shop/cart:http", ["10.244.1.5:8080", "10.244.2.9:8080"]),
        ("29", "30501", "lab/api:http", ["10.244.1.8:9898", "10.244.1.10:9898"]),
    ],
)
def test_bare_rules_in_any_dialect_answer_and_say_that_sockets_are_not_known(tmp_path, number, port, service, targets):
    made = report(tmp_path, number, port)
    assert made.services == [service]
    assert [client.who for client in made.clients] == ["external", "node", "loopback"]
    assert made.clients[0].targets == targets
    assert made.clients[0].translated
    assert made.listeners is None
    assert made.sentence.startswith(f"The rules of {service} take port {port}/tcp of the node: external and node-local")
    assert "who listens on it is not in this input" in made.sentence


def test_a_dump_without_addresses_says_what_stands_for_the_node(tmp_path):
    assert any("192.0.2.1 is an address of this node" in text for text in report(tmp_path, "01", "30450").assumed)
    assert any("the rules name it for NodePorts" in text for text in report(tmp_path, "26", "30450").assumed)
    assert report(tmp_path, "01", "30450", *NODE).address == "192.0.2.11"


def test_a_process_that_took_the_port_gets_nothing_where_rules_take_it(tmp_path):
    node = node_of(tmp_path, "01", *NODE)
    node.snapshot.sockets = [Socket("tcp", "LISTEN", "0.0.0.0", 30450, process="python3", pid=42)]
    node.facts.settings["net/ipv4/conf/all/route_localnet"] = "1"
    (made,) = reports("30450", node)
    assert "python3 (pid 42) listens on it and gets none of them" in made.sentence
    assert {client.who for client in made.clients if client.translated} == {"external", "node", "loopback"}


def test_a_process_has_the_port_where_no_rule_takes_it(tmp_path):
    made = report(tmp_path, "16", "30450", *NODE)
    assert made.services == []
    assert made.sentence == (
        "No rule takes port 30450/tcp of the node: external, node-local and loopback clients reach java (pid 3977), not translated."
    )


def test_kube_proxy_that_holds_a_port_is_called_so(tmp_path):
    assert (
        "kube-proxy (pid 1201) holds the port so that nobody else takes it"
        in report(tmp_path, "16", "30451", *NODE).sentence
    )


def test_a_connection_that_uses_the_port_is_told_and_changes_nothing(tmp_path):
    made = report(tmp_path, "49", "31080", *NODE)
    assert [one.process for one in made.connections] == ["containerd"]
    assert made.clients[0].translated
    assert "containerd (pid 900) has it as the port of a connection with 203.0.113.9:443" in made.sentence


def test_each_protocol_that_has_the_port_is_reported_and_tcp_where_none_has(tmp_path):
    assert [one.protocol for one in reports("31053", node_of(tmp_path, "49"))] == ["udp"]
    assert [one.protocol for one in reports("1", node_of(tmp_path, "49"))] == ["tcp"]
    assert [one.protocol for one in reports("31053/tcp", node_of(tmp_path, "49"))] == ["tcp"]


def test_the_text_names_the_deciding_rules(tmp_path):
    text = "\n".join(port_lines(report(tmp_path, "01", "30450", *NODE)))
    assert "nat KUBE-NODEPORTS" in text
    assert "sockets are not in this input" in text


@pytest.mark.parametrize("text", ["", "x", "0", "65536", "30450/icmp", "³", "9" * 5000])
def test_what_is_no_port_is_refused(text):
    with pytest.raises(UsageError):
        parse(text)


def test_the_command_writes_json(tmp_path):
    (path,) = unpack("01", tmp_path, "iptables-save.txt")
    done = podwire("explain", "port", "30450", path, "--node-address", NODE[0], "--json")
    (made,) = json.loads(done.stdout)
    assert made["answer"].startswith("The rules of default/web")
    assert {"port", "protocol", "node", "services", "listeners", "connections", "rules", "clients", "assumed"} <= set(
        made
    )
    assert made["clients"][0]["outcomes"][0]["verdict"] == "dnat"


@pytest.mark.parametrize(
    "form", ["L-n-v-line-numbers-1.8.7.txt", "L-n-v-line-numbers-1.8.9.txt", "L-no-n.txt", "L-n-column-t.txt"]
)
def test_listings_of_blog_posts_answer_too(tmp_path, form):
    (made,) = reports("30450", picture(load(unpack("53", tmp_path, form))[0], Given(NODE)))
    assert made.services == ["default/frontend:http"]
    how = "probably reach" if "column" in form else "reach"
    targets = "10.244.1.5:8080 or 10.244.2.8:8080 or 10.244.3.4:8080"
    assert made.sentence.startswith("The rules of default/frontend:http take port 30450/tcp of the node: external")
    assert f"clients {how} {targets}" in made.sentence
