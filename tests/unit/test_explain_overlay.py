"""A packet that leaves by a VXLAN device is followed into the peer, when the peer is in the input."""

from __future__ import annotations

import pytest

from podwire.explain.explain import explain
from podwire.explain.picture import picture
from podwire.explain.question import Question
from podwire.explain.snapshot import Address, FdbEntry, Link, Neighbour, Route, RuleText, Snapshot, Vxlan

pytestmark = pytest.mark.unit

DNAT = "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -d 10.96.0.9/32 -j DNAT --to-destination 10.244.2.8:80 -p tcp\nCOMMIT\n"
BLOCKED = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n-A INPUT -p udp -m udp --dport 8472 -j DROP\nCOMMIT\n"
FORBIDDEN = "*filter\n:INPUT ACCEPT\n:FORWARD DROP\n-A FORWARD -s 10.9.0.0/16 -j ACCEPT\nCOMMIT\n"
OPEN = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\nCOMMIT\n"


def node(number, peer, rules):
    mine, theirs = f"192.0.2.{10 + number}", f"192.0.2.{10 + peer}"
    mac = f"02:00:00:00:00:0{peer}"
    return picture(
        Snapshot(
            label=f"node-{number}",
            hostname=f"node-{number}",
            rules=[RuleText("iptables-nft", 4, "save", rules, "save")],
            links=[
                Link("eth0"),
                Link("cni0", kind="bridge"),
                Link("flannel.1", kind="vxlan", vxlan=Vxlan(1, mine, 8472, "eth0")),
            ],
            addresses=[Address("eth0", mine, 24, "global"), Address("cni0", f"10.244.{number}.1", 24, "global")],
            routes=[
                Route("0.0.0.0/0", via="192.0.2.1", dev="eth0"),
                Route("192.0.2.0/24", dev="eth0", src=mine),
                Route(f"10.244.{number}.0/24", dev="cni0"),
                Route(f"10.244.{peer}.0/24", via=f"10.244.{peer}.0", dev="flannel.1", onlink=True),
            ],
            neighbours=[Neighbour(f"10.244.{peer}.0", "flannel.1", mac, "PERMANENT")],
            fdb=[FdbEntry(mac, "flannel.1", theirs, "permanent")],
        )
    )


def ask(rules_there, *, with_peer=True):
    here = node(1, 2, DNAT)
    peers = [here, node(2, 1, rules_there)] if with_peer else [here]
    return explain(Question("10.244.1.5", "10.96.0.9:80/tcp", "cni0"), here, peers)


def test_the_outer_packet_and_the_fdb_entry_are_told():
    (outcome,) = ask(OPEN, with_peer=False).outcomes
    assert outcome.overlay["vni"] == 1
    assert outcome.overlay["fdb"] == "02:00:00:00:00:02 dev flannel.1 dst 192.0.2.12"
    assert (outcome.overlay["local"], outcome.overlay["peer"]) == ("192.0.2.11", "192.0.2.12")


def test_on_the_peer_it_comes_out_of_the_vxlan_device_and_goes_to_the_pod():
    (outcome,) = ask(OPEN).outcomes
    assert (outcome.verdict, outcome.to, outcome.node, outcome.out_interface) == (
        "dnat",
        "10.244.2.8:80",
        "node-2",
        "cni0",
    )
    assert any("arrives at node-2" in step.text for step in outcome.path)


@pytest.mark.parametrize(("rules", "said"), [(BLOCKED, "--dport 8472 -j DROP"), (FORBIDDEN, "FORWARD is DROP")])
def test_what_the_peer_does_to_the_outer_or_the_inner_packet_is_the_answer(rules, said):
    answer = ask(rules)
    assert [one.verdict for one in answer.outcomes] == ["drop"]
    assert said in answer.sentence


def test_a_missing_fdb_entry_is_warned_about():
    here = node(1, 2, DNAT)
    here.snapshot.fdb = []
    answer = explain(Question("10.244.1.5", "10.96.0.9:80/tcp", "cni0"), here)
    assert any("no FDB entry for 10.244.2.0" in text for text in answer.warnings)
