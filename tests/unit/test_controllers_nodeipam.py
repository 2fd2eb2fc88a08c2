"""Node IPAM without an API: flags and the allocator's memory. The loop is tested against the API server (tests/e2e)."""

from __future__ import annotations

import pytest

from podwire.controllers.cidrset import Exhausted
from podwire.controllers.manager import Options, chosen, factories
from podwire.controllers.nodeipam import Allocator, cidr_sets
from podwire.errors import UsageError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"cluster_cidrs": ""}, "--cluster-cidr"),
        ({"cluster_cidrs": "10.244.0.0"}, "'10.244.0.0' is no CIDR"),
        ({"cluster_cidrs": "10.244.0.0/33"}, "is no CIDR"),
        ({"cluster_cidrs": "10.244.0.0/16,10.1.0.0/16"}, "one of each IP family"),
        (
            {"cluster_cidrs": "10.244.0.0/16,fd00:10:244::/56", "mask": 24},
            "usage of --node-cidr-mask-size is not allowed with dual-stack clusters",
        ),
        ({"cluster_cidrs": "fd00:10:244::/40", "mask": 64}, "New CIDR set failed; the node CIDR size is too big"),
        (
            {"cluster_cidrs": "10.244.0.0/26", "mask": 24},
            (
                "Invalid --cluster-cidr, mask size of cluster CIDR must be less than or equal to --node-cidr-mask-size "
                "configured for CIDR family"
            ),
        ),
        ({"cluster_cidrs": "10.244.0.0/16", "mask": 33}, "33 is no prefix length"),
        ({"cluster_cidrs": "10.244.0.0/16", "mask_ipv6": 64}, "--node-cidr-mask-size-ipv6 is not allowed"),
        ({"cluster_cidrs": "10.244.0.0/16", "service_ranges": "x"}, "--service-cluster-ip-range=x"),
    ],
)
def test_wrong_flags_are_refused_with_a_clear_line(flags: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        cidr_sets(**flags)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ipv4_has_no_limit_of_sixteen_bits() -> None:
    assert cidr_sets("10.0.0.0/8", mask=28)[0].size == 1 << 20


def test_dual_stack_gives_one_of_each_in_the_order_of_the_flag() -> None:
    allocator = Allocator(cidr_sets("fd00:10:244::/56,10.244.0.0/16"))
    assert allocator.give("a") == ("fd00:10:244::/64", "10.244.0.0/24")
    assert allocator.give("b") == ("fd00:10:244:1::/64", "10.244.1.0/24")


def test_masks_of_dual_stack_are_set_for_each_family() -> None:
    allocator = Allocator(cidr_sets("10.244.0.0/16,fd00:10:244::/56", mask_ipv4=26, mask_ipv6=72))
    assert allocator.give("a") == ("10.244.0.0/26", "fd00:10:244::/72")


def test_a_node_is_given_the_same_again_until_it_is_gone() -> None:
    allocator = Allocator(cidr_sets("10.244.0.0/16"))
    assert allocator.give("a") == allocator.give("a") == ("10.244.0.0/24",)
    assert allocator.give("b") == ("10.244.1.0/24",)
    assert allocator.release("a")
    assert allocator.give("a again") == ("10.244.2.0/24",)


def test_a_full_second_family_gives_the_first_back() -> None:
    allocator = Allocator(cidr_sets("10.244.0.0/16,fd00::/64"))
    allocator.give("a")
    with pytest.raises(Exhausted):
        allocator.give("b")
    allocator.release("a")
    assert allocator.give("c") == ("10.244.2.0/24", "fd00::/64")


def test_what_a_node_has_that_it_should_not_is_said() -> None:
    allocator = Allocator(cidr_sets("10.244.0.0/16"))
    assert allocator.take("a", ("10.244.3.0/24",)) == []
    assert allocator.take("b", ("10.244.3.0/24",)) == [
        ("CIDRDuplicate", "10.244.3.0/24 is also the podCIDR of another node")
    ]
    assert allocator.take("c", ("192.168.7.0/24",)) == [
        ("CIDROutOfRange", "cidr 192.168.7.0/24 is out the range of cluster cidr 10.244.0.0/16")
    ]
    assert allocator.take("d", ("10.244.4.0/24", "fd00::/64")) == [
        ("CIDROutOfRange", "fd00::/64 at index 1 does not exist in cluster cidrs configuration")
    ]


def test_a_node_that_got_other_cidrs_than_were_meant_for_it_frees_these() -> None:
    allocator = Allocator(cidr_sets("10.244.0.0/28", mask=30))
    assert allocator.give("a") == ("10.244.0.0/30",)
    assert allocator.take("a", ("10.244.0.12/30",)) == []
    assert [allocator.give(name) for name in "bcd"] == [("10.244.0.4/30",), ("10.244.0.8/30",), ("10.244.0.0/30",)]


def test_controllers_are_chosen_by_name_star_and_minus() -> None:
    assert chosen("nodeipam,gc") == ("nodeipam", "gc", "podgc")
    assert chosen("deployment") == ("deployment", "replicaset")
    assert "route" not in chosen("*,-route")
    assert chosen("*,-route")[0] == "nodeipam"
    assert chosen("node-ipam-controller,endpointslice-controller") == ("nodeipam", "endpointslice")


@pytest.mark.parametrize("text", ["", "nodeipan", "nodeipam,unknown", "gc,-gc,-podgc"])
def test_a_controller_that_there_is_not_is_one_clear_line(text: str) -> None:
    with pytest.raises(UsageError, match="known: nodeipam, scheduler"):
        chosen(text)


def test_flags_are_judged_before_anything_is_connected_to() -> None:
    with pytest.raises(UsageError, match="--cluster-cidr"):
        factories(Options(kubeconfig="/nowhere"), chosen("nodeipam"))
