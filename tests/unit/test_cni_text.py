"""JSON without `json`: it must read what json reads, and be read by json."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cni.spec.text import Fields, TextError, decode, encode, quoted

pytestmark = pytest.mark.unit

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_json_writes_is_read_as_json_reads_it(value):
    text = json.dumps(value)
    assert decode(text.encode()) == json.loads(text)


@given(VALUES, st.sampled_from([0, 4]), st.booleans())
def test_what_is_written_is_read_back_by_json(value, indent, ordered):
    assert json.loads(encode(value, indent=indent, ordered=ordered)) == value


def test_a_result_is_indented_as_go_indents_it():
    assert encode({"a": [1, {}], "b": []}, indent=4) == '{\n    "a": [\n        1,\n        {}\n    ],\n    "b": []\n}'


def test_numbers_and_angle_brackets_are_written_as_go_writes_them():
    assert encode({"mtu": 1450.0, "x": "<&>", "half": 0.5}) == '{"mtu":1450,"x":"\\u003c\\u0026\\u003e","half":0.5}'


def test_maps_are_written_in_alphabetical_order_when_asked():
    assert encode({"b": 1, "a": {"d": 1, "c": 2}}, ordered=True) == '{"a":{"c":2,"d":1},"b":1}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "unexpected end of JSON input"),
        (b" \n", "unexpected end of JSON input"),
        (b'{"a": ', "unexpected end"),
        (b"{} {}", "after top-level value"),
        (b"x", "looking for beginning of value"),
        (b"[NaN]", "looking for beginning of value"),
        (b'{"a" 1}', "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
    ],
)
def test_what_is_no_json_is_a_text_error(text, message):
    with pytest.raises(TextError, match=message):
        decode(text)


def test_bytes_that_are_no_utf8_do_not_stop_a_plugin():
    assert decode(b'{"a": "\xff"}') == {"a": "�"}


def test_fields_are_found_whatever_their_case_and_null_is_absent():
    fields = Fields({"CNIVersion": "1.0.0", "IsGateway": True, "mtu": None}, "NetConf")
    assert fields.text("cniVersion") == "1.0.0"
    assert fields.flag("isgateway")
    assert fields.integer("mtu", 7) == 7


@pytest.mark.parametrize(
    ("value", "read", "message"),
    [
        (
            {"mtu": "1450"},
            lambda f: f.integer("mtu"),
            "cannot unmarshal string into Go struct field NetConf.mtu of type int",
        ),
        ({"mtu": True}, lambda f: f.integer("mtu"), "cannot unmarshal bool"),
        ({"mtu": 1.5}, lambda f: f.integer("mtu"), "cannot unmarshal number"),
        ({"mtu": 1 << 70}, lambda f: f.integer("mtu"), "cannot unmarshal number"),
        (
            {"ipMasq": "true"},
            lambda f: f.flag("ipMasq"),
            "cannot unmarshal string into Go struct field NetConf.ipMasq of type bool",
        ),
        ({"ipam": []}, lambda f: f.inner("ipam"), "cannot unmarshal array"),
        ({"ips": [1]}, lambda f: f.texts("ips"), "cannot unmarshal number"),
        ({"name": {}}, lambda f: f.text("name"), "cannot unmarshal object"),
    ],
)
def test_a_value_of_the_wrong_kind_is_said_in_gos_words(value, read, message):
    with pytest.raises(TextError, match=message):
        read(Fields(value, "NetConf"))


def test_an_array_is_no_configuration():
    with pytest.raises(TextError, match="cannot unmarshal array into Go value"):
        Fields([], "NetConf")


def test_strings_are_quoted_as_in_gos_messages():
    assert quoted('a"b\\c\n\x00é😀') == '"a\\"b\\\\c\\n\\x00é😀"'
