"""The text formats, quantities and the two allocation ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.apiserver import formats
from podwire.apiserver.allocators import AddressRange, PortRange, Refused
from podwire.apiserver.kinds.quantity import canonical, parse

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (formats.label, ["a", "1-a", "a" * 63], ["", "-a", "a-", "A", "a.b", "a" * 64]),
        (formats.subdomain, ["a", "a.b-c.d", "1"], ["", "a..b", ".a", "A", "a_b", "a" * 254]),
        (formats.label_1035, ["a", "a-1"], ["1a", "", "a.b"]),
        (formats.qualified_name, ["a", "A_b.c", "x.y/z", "a" * 63], ["", "/a", "a/", "a/b/c", "-a", "X/y", "a" * 64]),
        (formats.label_value, ["", "a", "A_b.c-d"], ["-", "a b", "a/b", "a" * 64]),
        (formats.port_name, ["http", "a-1"], ["", "1", "a--b", "-a", "a-", "Aa", "a" * 16]),
        (formats.config_key, ["a.b", "A_-", ".x"], ["", "a b", ".", "..", "..a", "a" * 254]),
        (formats.environment_name, ["A", "a.b", "1", "a b"], ["", "a=b", "ä"]),
        (formats.address, ["10.0.0.1", "fd00::1"], ["", "10.0.0", "10.0.0.01", "::ffff:10.0.0.1", "10.0.0.1/8"]),
        (
            formats.ordinary_address,
            ["10.0.0.1", "fd00::1"],
            ["127.0.0.1", "0.0.0.0", "::1", "fe80::1", "224.0.0.1", "x"],
        ),
        (formats.prefix, ["10.0.0.0/8", "fd00::/64", "10.0.0.1/8"], ["10.0.0.0", "x/8", "10.0.0.0/33"]),
    ],
)
def test_a_format_takes_the_good_and_says_what_is_wrong_with_the_bad(rule, good: list, bad: list) -> None:
    assert [text for text in good if rule(text)] == []
    assert [text for text in bad if not rule(text)] == []


def test_a_dotted_label_is_told_about_its_dots() -> None:
    assert formats.label("a.b") == ["must not contain dots"]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        *(("1000m", "1"), ("0.5", "500m"), ("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("1e3", "1e3"), ("0", "0")),
        *(("0.1Ki", "102400m"), ("-1500m", "-1500m"), (".5", "500m"), ("5.", "5"), ("+2", "2"), ("0Mi", "0")),
        *(("1.0001Ki", "1025"), ("100Mi", "100Mi"), ("1E", "1E"), ("2E3", "2e3"), ("0.0000000001", "1n"), (2, "2")),
    ],
)
def test_a_quantity_is_written_in_canonical_form(text: str | int, written: str) -> None:
    assert canonical(text) == written
    assert canonical(written) == written


@pytest.mark.parametrize("text", ["", "a", "1.2.3", "1Q", "1 Mi", ".", "--1", "1ei"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantit|numeric"):
        canonical(text)


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "Gi", "e2"]))
def test_the_canonical_form_means_the_same(number: int, suffix: str) -> None:
    text = f"{number}{suffix}"
    assert parse(canonical(text))[0] == parse(text)[0]


class Held:
    def __init__(self, *claims: tuple[str, str]) -> None:
        self.claims = dict.fromkeys(claims, "default/somebody")

    def holder(self, claim: tuple[str, str]) -> str | None:
        return self.claims.get(claim)


def test_the_band_of_a_range_is_the_one_of_the_real_allocators() -> None:
    assert [AddressRange(prefix).band for prefix in ("10.0.0.0/16", "10.0.0.0/24", "10.0.0.0/28")] == [256, 16, 0]
    assert PortRange(range(30000, 32768)).band == 86
    assert AddressRange("fd00::/112").size == 65535


@given(st.integers(0, 2**128 - 1), st.sets(st.integers(0, 13)))
def test_a_free_value_is_found_whenever_there_is_one(seed: int, taken: set[int]) -> None:
    pool = AddressRange("10.0.0.0/28")
    held = Held(*(("clusterIP", pool.text(offset)) for offset in taken))
    if len(taken) == 14:
        with pytest.raises(Refused, match="range is full"):
            pool.next(held, seed)
    else:
        found = pool.next(held, seed)
        assert pool.offset(found) not in taken


def test_what_the_same_request_has_taken_is_not_given_again() -> None:
    pool = PortRange(range(30000, 30002))
    assert pool.next(Held(), 0, frozenset({"30000"})) == "30001"
    with pytest.raises(Refused, match="range is full"):
        pool.next(Held(), 0, frozenset({"30000", "30001"}))


def test_a_value_may_be_taken_again_by_who_has_it() -> None:
    pool = PortRange(range(30000, 32768))
    held = Held(("nodePort", "30080"))
    pool.take(held, "30080", "default/somebody")
    with pytest.raises(Refused, match="provided port is already allocated"):
        pool.take(held, "30080", "default/other")
