"""What the API answers: classes of errors, lists and watches in which something is broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire import errors
from podwire.kube.answers import LineSplitter, error_of, read_event, read_page
from podwire.kube.kinds import SERVICES

pytestmark = pytest.mark.unit


def status(code: int, reason: str, message: str = "m") -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message}).encode()


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (404, status(404, "NotFound"), errors.ApiNotFound),
        (409, status(409, "Conflict"), errors.ApiConflict),
        (409, status(409, "AlreadyExists"), errors.ApiAlreadyExists),
        (410, status(410, "Expired"), errors.ApiGone),
        (410, b"", errors.ApiGone),
        (429, status(429, "TooManyRequests"), errors.ApiUnavailable),
        (503, b"upstream connect error", errors.ApiUnavailable),
        (502, b"\xff\xfe<html>", errors.ApiUnavailable),
        (422, status(422, "Invalid"), errors.ApiError),
        (401, status(401, "Unauthorized"), errors.ApiError),
    ],
)
def test_an_answer_is_classified_by_code_and_reason(code: int, body: bytes, expected: type) -> None:
    assert type(error_of("getting", "pods/a", code, body)) is expected


def test_an_error_says_what_was_done_to_what_and_what_the_server_said() -> None:
    text = str(error_of("creating", "pods/ns/a", 422, status(422, "Invalid", 'Pod "a" is invalid')))
    assert text == 'creating pods/ns/a: Pod "a" is invalid [422 Invalid]'


def test_a_namespace_that_is_being_emptied_is_told_from_what_else_is_forbidden() -> None:
    body = json.loads(status(403, "Forbidden"))
    assert error_of("creating", "pods", 403, json.dumps(body).encode()).reason == "Forbidden"
    body["details"] = {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]}
    assert error_of("creating", "pods", 403, json.dumps(body).encode()).reason == "NamespaceTerminating"


def test_one_malformed_item_costs_only_itself() -> None:
    good = {"metadata": {"name": "good", "namespace": "ns"}, "spec": {"ports": [{"port": 80}]}}
    bad = {"metadata": {"name": "bad", "namespace": "ns"}, "spec": {"ports": [{"port": "eighty"}]}}
    body = json.dumps({"metadata": {"resourceVersion": "9"}, "items": [bad, good]}).encode()
    items, unreadable, meta = read_page(SERVICES, body)
    assert [item.key for item in items] == ["ns/good"]
    assert unreadable == ["ns/bad"]
    assert meta.resource_version == "9"


def test_a_list_without_items_is_empty() -> None:
    assert read_page(SERVICES, b'{"metadata":{"resourceVersion":"9"},"items":null}')[0] == []


def test_a_list_that_is_no_list_is_unavailable() -> None:
    with pytest.raises(errors.ApiUnavailable):
        read_page(SERVICES, b"<html>")


def test_a_malformed_object_in_a_watch_still_moves_the_version_on() -> None:
    line = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","namespace":"ns","resourceVersion":"12"},"spec":[]}}'
    event = read_event(SERVICES, line)
    assert event is not None
    assert (event.type, event.key, event.resource_version, event.object) == ("MALFORMED", "ns/a", "12", None)


def test_a_malformed_object_that_is_deleted_is_deleted() -> None:
    line = b'{"type":"DELETED","object":{"metadata":{"name":"a","namespace":"ns","resourceVersion":"12"},"spec":[]}}'
    event = read_event(SERVICES, line)
    assert event is not None
    assert (event.type, event.key) == ("DELETED", "ns/a")


def test_an_error_event_is_raised_as_what_it_says() -> None:
    with pytest.raises(errors.ApiGone):
        read_event(SERVICES, b'{"type":"ERROR","object":' + status(410, "Expired") + b"}")


def test_a_line_that_is_no_event_is_skipped() -> None:
    assert read_event(SERVICES, b"{") is None


@given(st.lists(st.binary(max_size=20).map(lambda raw: raw.replace(b"\n", b"").strip())), st.data())
def test_lines_come_out_the_same_however_the_bytes_arrive(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter, found = LineSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == [line for line in lines if line]


def test_an_unfinished_line_is_not_a_line() -> None:
    assert LineSplitter().feed(b'{"type"') == []
