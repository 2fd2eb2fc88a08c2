"""The kernel prints back what podwire spells, with both backends, and what it refuses is named."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podwire.errors import CommandFailed, MissingCapability
from podwire.rules import vocabulary as v
from podwire.rules.iptables import save
from podwire.rules.iptables.restore import Change
from podwire.rules.iptables.run import Iptables, RestoreRefused
from podwire.rules.iptables.spell import spell
from podwire.testing.iptables import FakeIptables
from podwire.testing.netns import netns, require
from rules_strategies import CHAINS, RULES

pytestmark = pytest.mark.kernel

NAT_TARGETS = [
    v.Dnat("10.0.0.1:80"),
    v.Dnat("10.0.0.1-10.0.0.9", ("random", "persistent")),
    v.Snat("10.0.0.1", ("random-fully",)),
    v.Redirect("8080"),
    v.Masquerade(flags=("random-fully",)),
    v.Masquerade("1000-2000", ("random",)),
]


@pytest.fixture(params=["nft", "legacy"])
def door(request):
    require("root", "iptables")
    with netns() as node:
        real = Iptables(4, f"-{request.param}")
        yield InNode(node, real)


class InNode:
    """An Iptables that works in a namespace."""

    def __init__(self, node, real):
        self.node, self.real = node, real

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self.node.call(lambda: getattr(self.real, name)(*args))


@given(rules=st.lists(RULES, min_size=5, max_size=25))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_prints_back_what_was_spelled(door, rules):
    change = Change("filter")
    for chain in CHAINS:
        change.declare(chain)
    change.append("CHAIN-A", [spell(rule) for rule in rules])
    door.restore(change.text())
    chain = save.read(door.save("filter")).tables["filter"].chains["CHAIN-A"]
    assert chain.lines == [spell(rule) for rule in rules]
    assert list(chain.rules) == rules


def test_nat_targets_are_printed_back_too(door):
    rules = [v.Rule((v.Protocol("tcp"), v.Ports("tcp")), target) for target in NAT_TARGETS]
    change = Change("nat")
    change.declare("CHAIN-A")
    change.append("CHAIN-A", [spell(rule) for rule in rules])
    door.restore(change.text())
    assert list(save.read(door.save("nat")).tables["nat"].chains["CHAIN-A"].rules) == rules


REFUSED = {
    "a rule in a chain that is not there": "*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n",
    "a jump to a chain that is not there": "*nat\n:X - [0:0]\n-A X -j NOWHERE\nCOMMIT\n",
    "a deletion of a rule that is not there": "*nat\n:X - [0:0]\n-D X -j ACCEPT\nCOMMIT\n",
    "a removal of a chain that has rules": "*nat\n:X - [0:0]\n-A X -j ACCEPT\n-X X\nCOMMIT\n",
    "a removal of a chain that is jumped to": "*nat\n:X - [0:0]\n-A PREROUTING -j X\n-X X\nCOMMIT\n",
    "words that mean nothing": "*nat\n:X - [0:0]\n-A X --nonsense\nCOMMIT\n",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_kernel_refuses_changes_nothing(door, what):
    before = door.save("nat").splitlines()[1:-1]
    with pytest.raises(RestoreRefused):
        door.restore(REFUSED[what])
    assert door.save("nat").splitlines()[1:-1] == before


@pytest.mark.parametrize("what", [what for what in REFUSED if what != "words that mean nothing"])
def test_the_fake_refuses_what_the_kernel_refuses(what):
    fake = FakeIptables()
    with pytest.raises(RestoreRefused):
        fake.restore(REFUSED[what])
    assert fake.tables == FakeIptables().tables


def test_a_refusal_says_what_was_refused(door):
    with pytest.raises(RestoreRefused, match="NOWHERE"):
        door.restore("*nat\n:X - [0:0]\n-A X -j ACCEPT\n-A X -j NOWHERE\nCOMMIT\n")
    with pytest.raises(RestoreRefused) as refused:
        door.restore("*nat\n:X - [0:0]\n-A X -j ACCEPT\n-A X --dport 80 -j ACCEPT\nCOMMIT\n")
    assert refused.value.line == "-A X --dport 80 -j ACCEPT"


def test_the_tables_before_a_refused_one_are_changed(door):
    good = "*filter\n:X - [0:0]\nCOMMIT\n"
    with pytest.raises(RestoreRefused):
        door.restore(good + "*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n")
    fake = FakeIptables()
    with pytest.raises(RestoreRefused):
        fake.restore(good + "*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n")
    assert ("X" in fake.tables["filter"]) == door.has_chain("filter", "X")


def test_one_chain_can_be_asked_for(door):
    door.restore('*nat\n:X - [0:0]\n-A X -m comment --comment "a b" -j ACCEPT\nCOMMIT\n')
    assert door.rules("nat", "X") == ['-m comment --comment "a b" -j ACCEPT']
    assert not door.has_chain("nat", "NOWHERE")
    with pytest.raises(CommandFailed):
        door.rules("nat", "NOWHERE")


def test_the_backend_is_the_one_that_the_program_says():
    require("iptables")
    assert Iptables(4, "-nft").backend == "nf_tables"
    assert Iptables(4, "-legacy").backend == "legacy"
    with pytest.raises(MissingCapability, match="iptables-nowhere"):
        _ = Iptables(4, "-nowhere").backend
