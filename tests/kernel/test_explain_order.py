"""Two nat chains at one hook: the one that was registered last translates, and the listing of nf_tables tells which that is."""

from __future__ import annotations

import socket

import pytest

from podwire.explain.explain import explain
from podwire.explain.picture import Given, picture
from podwire.explain.question import Question
from podwire.explain.snapshot import RuleText, Snapshot
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

NFT = "table ip other {{\nchain c {{\ntype nat hook output priority {}; policy accept;\nudp dport 9 dnat ip to 127.0.0.1:2\n}}\n}}\n"


def load_iptables(inside):
    inside.run(
        "iptables-nft", "-t", "nat", "-A", "OUTPUT", "-p", "udp", "--dport", "9", "-j", "DNAT", "--to", "127.0.0.1:1"
    )


def arrives_at(inside):
    """The port at which the kernel delivers a datagram for port 9."""

    def send():
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
        ):
            for port, sock in ((1, one), (2, two)):
                sock.bind(("127.0.0.1", port))
                sock.setblocking(False)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.sendto(b"x", ("127.0.0.9", 9))
            for port, sock in ((1, one), (2, two)):
                try:
                    sock.recv(1)
                except BlockingIOError:
                    continue
                return port
        return None

    return inside.call(send)


@pytest.mark.parametrize("priority", [-100, -110, -90])
@pytest.mark.parametrize("iptables_first", [True, False])
def test_the_walk_translates_as_the_kernel_whichever_was_registered_last(iptables_first, priority):
    require("root", "nft", "iptables")
    with netns() as inside:
        steps = [lambda: load_iptables(inside), lambda: inside.run("nft", "-f", "-", stdin=NFT.format(priority))]
        for step in steps if iptables_first else reversed(steps):
            step()
        texts = [
            RuleText("nft", 0, "nft", inside.run("nft", "list", "ruleset").stdout, "nft"),
            RuleText("iptables-nft", 4, "save", inside.run("iptables-nft-save").stdout, "save"),
        ]
        port = arrives_at(inside)
    question, given = Question("127.0.0.1", "127.0.0.9:9/udp"), Given(["127.0.0.1/8@lo"])
    (outcome,) = explain(question, picture(Snapshot(rules=texts), given)).outcomes
    assert outcome.to == f"127.0.0.1:{port}"
    unlisted = [RuleText("nft", 0, "nft", NFT.format(-100), "nft"), texts[1]]
    either = explain(question, picture(Snapshot(rules=unlisted), given))
    assert {one.to for one in either.outcomes} == {"127.0.0.1:1", "127.0.0.1:2"}
    assert either.depends_on
