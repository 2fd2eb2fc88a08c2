"""Prefix arithmetic against the standard library's."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.addresses import Ip, Prefix

pytestmark = pytest.mark.unit

ADDRESSES = st.ip_addresses()
V4 = st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(lambda p: f"{p[0]}/{p[1]}")
V6 = st.tuples(st.ip_addresses(v=6), st.integers(0, 128)).map(lambda p: f"{p[0]}/{p[1]}")
PREFIXES = st.one_of(V4, V6)


@given(ADDRESSES)
def test_an_address_is_spelled_as_the_kernel_spells_it(address):
    again = Ip.parse(str(Ip.parse(str(address))))
    assert again.value == int(address)
    assert again.bits == address.max_prefixlen


@given(PREFIXES)
def test_network_last_and_mask_agree_with_the_standard_library(text):
    ours, theirs = Prefix.parse(text), ipaddress.ip_interface(text).network
    assert ours.network.value == int(theirs.network_address)
    assert ours.last.value == int(theirs.broadcast_address)
    assert ours.host_mask == int(theirs.hostmask)
    assert ours.canonical.length == theirs.prefixlen


@given(st.one_of(st.tuples(V4, V4), st.tuples(V6, V6), st.tuples(V4, V6)))
def test_overlap_agrees_with_the_standard_library(pair):
    a, b = (Prefix.parse(text) for text in pair)
    x, y = (ipaddress.ip_interface(text).network for text in pair)
    assert a.overlaps(b) == (x.version == y.version and x.overlaps(y))
    assert a.covers(b) == (x.version == y.version and y.subnet_of(x))


def test_subnets_are_numbered_from_zero_and_end():
    whole = Prefix.parse("10.244.0.0/16")
    assert whole.count(24) == 256
    assert str(whole.subnet(24, 255)) == "10.244.255.0/24"
    assert [str(one) for one in Prefix.parse("fd00::/62").subnets(64)] == [
        "fd00::/64",
        "fd00:0:0:1::/64",
        "fd00:0:0:2::/64",
        "fd00:0:0:3::/64",
    ]
    with pytest.raises(IndexError, match="no /24 number 256"):
        whole.subnet(24, 256)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.1",
        "10.0.0.1/33",
        "10.0.0.256/8",
        "010.0.0.1/8",
        "fd00::/129",
        "1/8",
        "x/8",
        "10.0.0.1/-1",
        "10.0.0.1/+8",
        "10.0.0.1/٣",
        "",
    ],
)
def test_what_is_no_prefix_is_refused_with_its_text(text):
    with pytest.raises(ValueError, match="invalid CIDR address"):
        Prefix.parse(text)


def test_an_address_past_the_end_is_an_error_not_a_wrap():
    with pytest.raises(OverflowError):
        Ip.parse("255.255.255.255") + 1


def test_addresses_and_prefixes_sort_and_hash_by_value():
    assert min([Ip.parse("10.0.0.10"), Ip.parse("10.0.0.9")]) == Ip.parse("10.0.0.9")
    assert len({Prefix.parse("10.0.0.0/8"), Prefix.parse("10.0.0.0/8"), Prefix.parse("10.0.0.0/9")}) == 2
    assert Ip.parse("0.0.0.0") != Ip.parse("::")
