"""The pages of explain, made of reported situations, for the tests of their text and of their looks."""

from __future__ import annotations

from case_inputs import unpack
from podwire.explain import port, rules_report, service
from podwire.explain.explain import explain
from podwire.explain.html_reports import packet_page, port_page, rules_page, service_page
from podwire.explain.picture import Given, picture
from podwire.explain.question import Question
from podwire.explain.rule_graph import Graph
from podwire.explain.snapshot_load import load

NODE = Given(["192.0.2.11/24@eth0", "10.244.1.1/24@cni0"], [], ["default via 192.0.2.1 dev eth0"])


def node_of(folder, number):
    return picture(load(unpack(number, folder))[0], NODE)


def packet(folder):
    return packet_page(explain(Question("external", "192.0.2.11:30450/tcp"), node_of(folder, "01")))


def pages(folder):
    """Kind → HTML."""
    nft = node_of(folder / "nft", "26")
    return {
        "packet": packet(folder / "packet"),
        "port": port_page(port.reports("30450", node_of(folder / "port", "01"))),
        "service": service_page(service.report("shop/cart", nft), Graph(nft.ruleset)),
        "rules": rules_page(rules_report.report(nft)),
    }
