"""explain service: what the API wants and what the rules do, read apart and held against each other."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from test_explain_golden import snapshot

from case_inputs import unpack
from kubeproxy_golden import cases, with_rules
from podwire.errors import UsageError
from podwire.explain.frontends import frontends
from podwire.explain.picture import Given, picture
from podwire.explain.render_text import service_lines
from podwire.explain.rule_graph import Graph
from podwire.explain.service import report
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit

NODE = ["192.0.2.11/24@eth0"]


def podwire(*arguments):
    return subprocess.run([sys.executable, "-m", "podwire", *arguments], capture_output=True, text=True, check=True)


def node_of(tmp_path, number, *only):
    return picture(load(unpack(number, tmp_path, *only))[0], Given(NODE))


def golden(name, mode, state=0):
    return picture(snapshot(cases()[name], cases()[name]["states"][state], mode))


def offers(graph):
    """{(service, port name, address:port/protocol): targets} of what the rules do not refuse."""
    return {
        (one.service, one.port_name, one.shown): set(graph.targets(one.place))
        for one in frontends(graph)
        if not one.refused and one.place is not None and one.service
    }


@pytest.mark.parametrize("name", with_rules())
def test_both_dialects_of_kube_proxy_tell_the_same_services(name):
    case = cases()[name]
    for state in range(len(case["states"])):
        one, two = (offers(Graph(golden(name, mode, state).ruleset)) for mode in ("iptables", "nftables"))
        assert one == two


@pytest.mark.parametrize("mode", ["iptables", "nftables"])
def test_a_nodeport_service_has_its_frontends_endpoints_and_chains(mode):
    made = report("default/np", golden("07-nodeport", mode))
    assert {(one.kind, one.shown) for one in made.offers} == {
        ("clusterIP", "10.96.3.1:80/tcp"), ("clusterIP", "10.96.3.1:53/udp"), ("nodePort", ":30080/tcp"), ("nodePort", ":30053/udp"),
    }  # fmt: skip
    assert {one.shown for one in made.backends} == {
        "10.244.1.60:8080",
        "10.244.2.60:8080",
        "10.244.1.60:5353",
        "10.244.2.60:5353",
    }
    assert all(one.chains and one.in_api is None for one in made.backends)
    nodeport = next(one for one in made.offers if one.shown == ":30080/tcp")
    assert [client.who for client in nodeport.clients] == ["external", "node", "loopback"]
    assert set(nodeport.clients[0].targets) == {"10.244.1.60:8080", "10.244.2.60:8080"}
    assert made.in_api is None
    assert made.differences == []


@pytest.mark.parametrize("mode", ["iptables", "nftables"])
def test_policies_and_affinity_are_read_from_the_rules_where_the_api_is_not_there(mode):
    assert report("default/edge", golden("09-etp-local-with-local", mode)).policies["externalTrafficPolicy"] == "Local"
    assert report("default/agent", golden("11-itp-local", mode)).policies["internalTrafficPolicy"] == "Local"
    assert report("default/st", golden("15-session-affinity", mode)).policies["sessionAffinity"].startswith("ClientIP")
    assert report("default/np", golden("07-nodeport", mode)).policies["sessionAffinity"] == "None"


def test_api_and_rules_that_agree_have_no_differences(tmp_path):
    made = report("shop/cart", node_of(tmp_path, "26"))
    assert made.type == "NodePort"
    assert made.differences == []
    assert made.sentence.startswith(
        "shop/cart (NodePort) is served on the node by nft: 10.96.88.12:8000/tcp and NodePort 30450/tcp lead to 2"
    )
    assert all(one.in_api and one.ready and one.in_rules for one in made.backends)


def test_what_only_the_api_or_only_the_rules_have_is_told(tmp_path):
    node = node_of(tmp_path, "26")
    cart = next(one for one in node.snapshot.services if one["metadata"]["name"] == "cart")
    cart["spec"]["externalIPs"] = ["203.0.113.9"]
    cart["spec"]["ports"][0]["nodePort"] = 31111
    for one in node.snapshot.slices:
        one["endpoints"] = [end for end in one["endpoints"] if end["addresses"] != ["10.244.2.9"]]
    said = report("shop/cart", node).differences
    assert "no rule takes externalIP 203.0.113.9:8000/tcp" in said
    assert "no rule takes nodePort :31111/tcp" in said
    assert "the rules take :30450/tcp, which is not in the API" in said
    assert "the rules send to 10.244.2.9:8080, which no EndpointSlice has" in said


def test_a_service_without_endpoints_is_refused_and_named_by_the_api_where_nft_has_no_name(tmp_path):
    made = report("default/empty", node_of(tmp_path, "12"))
    assert "has nothing that the node could send to" in made.sentence
    assert all(rule.refused == "reject" for offer in made.offers for rule in offer.rules)


def test_a_service_that_nobody_knows_is_a_clear_error(tmp_path):
    with pytest.raises(UsageError, match="neither the API nor the rules have it"):
        report("default/nothing", node_of(tmp_path, "26"))
    with pytest.raises(UsageError, match="no rule names it"):
        report("default/nothing", node_of(tmp_path, "01", "iptables-save.txt"))


def test_text_and_json_hold_the_same_report(tmp_path):
    made = report("shop/cart", node_of(tmp_path, "26"))
    text = "\n".join(service_lines(made))
    value = made.as_json()
    assert text.startswith(value["answer"])
    for chain in value["chains"]:
        assert chain["chain"] in text
    assert json.loads(json.dumps(value)) == value


def test_the_command_answers_first(tmp_path):
    paths = unpack("26", tmp_path)
    done = podwire("explain", "service", "shop/cart", *paths)
    assert done.returncode == 0
    assert done.stdout.startswith("shop/cart (NodePort) is served on the node by nft")
