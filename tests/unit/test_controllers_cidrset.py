"""CIDR sets: never two nodes one CIDR, in Kubernetes' order."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from podwire.controllers.cidrset import CidrSet, Exhausted, OutOfRange

pytestmark = pytest.mark.unit


def cidrs(cluster: str, mask: int) -> CidrSet:
    return CidrSet(ipaddress.ip_network(cluster), mask)


def test_cidrs_are_given_in_order_from_the_lowest() -> None:
    given_out = cidrs("10.244.0.0/16", 24)
    assert [given_out.allocate(f"n{i}") for i in range(3)] == ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"]


def test_a_freed_cidr_comes_back_only_after_the_pointer_has_gone_round() -> None:
    four = cidrs("10.0.0.0/28", 30)
    for name in "abc":
        four.allocate(name)
    assert four.release("b")
    assert four.allocate("b2") == "10.0.0.12/30"
    assert four.allocate("b3") == "10.0.0.4/30"


def test_a_full_range_says_so_and_recovers() -> None:
    four = cidrs("10.244.0.0/28", 30)
    for name in "abcd":
        four.allocate(name)
    with pytest.raises(Exhausted, match="no remaining CIDRs left to allocate in the accepted range"):
        four.allocate("e")
    four.release("c")
    assert four.allocate("e") == "10.244.0.8/30"


@pytest.mark.parametrize(
    ("occupied", "first_free"),
    [
        ("10.244.0.0/20", "10.244.16.0/24"),  # marks 16 of /24
        ("10.244.0.64/26", "10.244.1.0/24"),  # marks its surrounding /24
        ("10.244.1.0/24", "10.244.0.0/24"),
    ],
)
def test_a_node_that_came_with_its_own_cidr_keeps_others_off_it(occupied: str, first_free: str) -> None:
    cluster = cidrs("10.244.0.0/16", 24)
    cluster.occupy(occupied, "own")
    assert cluster.allocate("next") == first_free


def test_a_cidr_that_covers_the_whole_range_leaves_nothing() -> None:
    four = cidrs("10.244.0.0/28", 30)
    four.occupy("10.0.0.0/8", "greedy")
    with pytest.raises(Exhausted):
        four.allocate("next")


@pytest.mark.parametrize("outside", ["192.168.7.0/24", "10.245.0.0/24", "fd00::/64"])
def test_a_cidr_of_another_range_is_out_of_range(outside: str) -> None:
    with pytest.raises(OutOfRange, match=f"cidr {outside} is out the range of cluster cidr 10.244.0.0/16"):
        cidrs("10.244.0.0/16", 24).occupy(outside, "n")


def test_a_shared_cidr_is_free_only_when_its_last_holder_is_gone() -> None:
    four = cidrs("10.244.0.0/28", 30)
    assert four.occupy("10.244.0.0/30", "a") == frozenset()
    assert four.occupy("10.244.0.0/30", "y") == frozenset({"a"})
    assert not four.release("a")
    assert "10.244.0.0/30" not in {four.allocate(name) for name in "bcd"}
    with pytest.raises(Exhausted):
        four.allocate("e")
    assert four.release("y")
    assert four.allocate("e") == "10.244.0.0/30"


@pytest.mark.parametrize(
    ("cluster", "services", "first"),
    [
        ("10.96.0.0/14", "10.96.0.0/22", "10.96.4.0/24"),
        ("10.244.0.0/16", "10.96.0.0/12", "10.244.0.0/24"),
        ("10.244.0.0/16", "10.244.0.128/25", "10.244.1.0/24"),
        ("10.244.0.0/16", "fd00::/108", "10.244.0.0/24"),
    ],
)
def test_the_service_range_is_taken_out_where_it_lies_inside(cluster: str, services: str, first: str) -> None:
    pods = cidrs(cluster, 24)
    pods.reserve(ipaddress.ip_network(services))
    assert pods.allocate("n") == first


def test_ipv6_counts_as_ipv4_does() -> None:
    six = cidrs("fd00:10:244::/48", 64)
    assert [six.allocate(name) for name in "ab"] == ["fd00:10:244::/64", "fd00:10:244:1::/64"]


def test_a_large_range_costs_what_is_used_of_it() -> None:
    huge = cidrs("10.0.0.0/8", 28)
    for number in range(20_000):
        huge.allocate(str(number))
    assert huge.size == 1 << 20


class Allocation(RuleBasedStateMachine):
    """Nodes come, bring their own CIDRs, and go; nobody is ever *given* what another holds."""

    def __init__(self) -> None:
        super().__init__()
        self.set = cidrs("10.0.0.0/26", 30)
        self.set.reserve(ipaddress.ip_network("10.0.0.16/29"))
        self.model: dict[str, set[ipaddress.IPv4Network]] = {}
        self.count = 0

    def _free(self) -> list[ipaddress.IPv4Network]:
        held = [network for mine in self.model.values() for network in mine]
        held.append(ipaddress.IPv4Network("10.0.0.16/29"))
        every = ipaddress.IPv4Network("10.0.0.0/26").subnets(new_prefix=30)
        return [network for network in every if not any(network.overlaps(other) for other in held)]

    @rule()
    def register(self) -> None:
        self.count += 1
        name, free = f"n{self.count}", self._free()
        if not free:
            with pytest.raises(Exhausted):
                self.set.allocate(name)
            return
        network = ipaddress.IPv4Network(self.set.allocate(name))
        assert network in free
        self.model[name] = {network}

    @rule(offset=st.integers(0, 63), length=st.integers(24, 32))
    def register_with_its_own(self, offset: int, length: int) -> None:
        self.count += 1
        name = f"n{self.count}"
        network = ipaddress.IPv4Network((int(ipaddress.IPv4Address("10.0.0.0")) + offset, length), strict=False)
        others = self.set.occupy(str(network), name)
        cluster = ipaddress.IPv4Network("10.0.0.0/26")
        mine = network if network.subnet_of(cluster) else cluster
        around = mine if mine.prefixlen <= 30 else mine.supernet(new_prefix=30)
        assert others == {other for other, held in self.model.items() if any(one.overlaps(around) for one in held)}
        self.model[name] = {around}

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        del self.model[name]
        self.set.release(name)

    @invariant()
    def holders_are_those_of_the_model(self) -> None:
        assert set(self.set.holders()) == set(self.model)


TestAllocation = Allocation.TestCase


@given(st.integers(0, 8), st.data())
def test_every_cidr_of_the_range_is_given_once(bits: int, data: st.DataObject) -> None:
    prefix = data.draw(st.integers(0, 32 - bits))
    some = CidrSet(ipaddress.IPv4Network((0, prefix)), prefix + bits)
    names = [some.allocate(str(number)) for number in range(1 << bits)]
    networks = [ipaddress.IPv4Network(name) for name in names]
    assert len(set(networks)) == 1 << bits
    assert all(network.subnet_of(some.cluster) for network in networks)
    with pytest.raises(Exhausted):
        some.allocate("one more")
