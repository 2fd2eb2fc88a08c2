"""Label and field selectors."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.apiserver.resource import Resource
from podwire.apiserver.selectors import Selector, parse_fields, parse_labels
from podwire.apiserver.status import StatusError

pytestmark = pytest.mark.unit

PODS = Resource("", "v1", "Pod", "pods", selectable=("spec.nodeName", "spec.hostNetwork"))


def labelled(**labels: str) -> dict:
    return {"metadata": {"name": "x", "namespace": "n", "labels": labels}}


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b", {"a": "b"}, True),
        ("a=b", {"a": "c"}, False),
        ("a=b", {}, False),
        ("a!=b", {"a": "c"}, True),
        ("a!=b", {"a": "b"}, False),
        ("a!=b", {}, True),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,c)", {}, False),
        ("a notin (b,c)", {"a": "c"}, False),
        ("a notin (b,c)", {}, True),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": "b"}, False),
        ("a>5", {"a": "6"}, True),
        ("a>5", {"a": "5"}, False),
        ("a<5", {"a": "x"}, False),
        ("a=", {"a": ""}, True),
        ("a in ()", {"a": ""}, True),
        ("a=b,c!=d", {"a": "b", "c": "d"}, False),
        ("kubernetes.io/service-name=web,!service.kubernetes.io/headless", {"kubernetes.io/service-name": "web"}, True),
        ("in in (in)", {"in": "in"}, True),
    ],
)
def test_a_label_selector_selects(selector: str, labels: dict, selected: bool) -> None:
    assert Selector(PODS, selector).matches(labelled(**labels)) is selected


@pytest.mark.parametrize(
    "text", ["a b", "a=b,", "=x", "a in x", "a in (x", "a>b", ",", "a=(", "a/b/c=d", "-a", "a=-", "a!"]
)
def test_a_bad_label_selector_is_refused_with_400(text: str) -> None:
    with pytest.raises(StatusError, match="unable to parse requirement") as refusal:
        parse_labels(text)
    assert refusal.value.code == 400


KEYS = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,8}[A-Za-z0-9])?", fullmatch=True)
TERMS = st.one_of(
    st.tuples(KEYS, st.sampled_from(["=", "==", "!="]), st.lists(VALUES, min_size=1, max_size=1)),
    st.tuples(KEYS, st.sampled_from(["in", "notin"]), st.lists(VALUES, min_size=1, max_size=3)),
    st.tuples(KEYS, st.sampled_from(["exists", "!"]), st.just([])),
)


def spelled(term: tuple, blank: str) -> str:
    key, operator, values = term
    if operator in {"in", "notin"}:
        return f"{key} {operator}{blank}({(',' + blank).join(values)})"
    if not values:
        return f"!{key}" if operator == "!" else key
    return f"{key}{blank}{operator}{blank}{values[0]}"


def meant(term: tuple, labels: dict) -> bool:
    key, operator, values = term
    if operator in {"!=", "notin"}:
        return labels.get(key) not in values
    if operator == "!":
        return key not in labels
    return key in labels and (operator == "exists" or labels[key] in values)


@given(st.lists(TERMS, max_size=4), st.dictionaries(KEYS, VALUES, max_size=4), st.sampled_from(["", " "]))
def test_any_selector_means_what_its_terms_mean(terms: list, labels: dict, blank: str) -> None:
    text = ("," + blank).join(spelled(term, blank) for term in terms)
    assert Selector(PODS, text).matches(labelled(**labels)) is all(meant(term, labels) for term in terms)


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused_with_a_status(text: str) -> None:
    for parse in (parse_labels, parse_fields):
        try:
            parse(text)
        except StatusError as refusal:
            assert refusal.code == 400  # noqa: PT017 - most texts are no selectors, some are


def test_field_selectors_compare_fields_as_text() -> None:
    pod = {"metadata": {"name": "x", "namespace": "n"}, "spec": {"nodeName": "node-1", "hostNetwork": True}}
    assert Selector(PODS, "", "spec.nodeName=node-1,metadata.namespace!=m").matches(pod)
    assert Selector(PODS, "", "spec.hostNetwork==true").matches(pod)
    assert not Selector(PODS, "", "spec.nodeName=").matches(pod)
    assert Selector(PODS, "", "spec.nodeName=").matches({"metadata": {"name": "x"}, "spec": {}})


@given(st.text(alphabet="ab,=\\", max_size=8))
def test_escaped_field_values_come_back(value: str) -> None:
    escaped = re.sub(r"([\\,=])", r"\\\1", value)
    assert parse_fields(f"metadata.name={escaped},spec.nodeName!={escaped}") == [
        ("metadata.name", True, value),
        ("spec.nodeName", False, value),
    ]


def test_a_field_that_the_kind_does_not_have_is_refused() -> None:
    with pytest.raises(StatusError, match=re.escape("field label not supported: spec.foo")):
        Selector(PODS, "", "spec.foo=1")
