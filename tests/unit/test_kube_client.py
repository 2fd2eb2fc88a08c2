"""The client over real sockets: what it asks, what it makes of answers, how it ends."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from scripted_api import CUT, END, Request, Server, bookmark, certificate, event, failure, kubeconfig, listing, pod

from podwire import errors
from podwire.kube.client import Client
from podwire.kube.kinds import NODES, PODS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


@contextlib.contextmanager
def api(
    tmp_path: Any, answer: Any, context: ssl.SSLContext | None = None, ca: str = ""
) -> Iterator[tuple[Server, Client]]:
    server = Server(answer, context)
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(server.url, ca))
    client = Client.from_kubeconfig(str(path), environ={})
    try:
        yield server, client
    finally:
        client.close()
        server.close()


def test_a_get_sends_the_token_and_reads_the_object(tmp_path: Any) -> None:
    with api(tmp_path, lambda _: (200, pod("a", 5, podIP="10.0.0.1"))) as (server, client):
        found = client.get(PODS, "a", "ns")
    assert (found.key, found.addresses) == ("ns/a", ("10.0.0.1",))
    assert server.requests[0].path == "/api/v1/namespaces/ns/pods/a"
    assert server.requests[0].headers["Authorization"] == "Bearer t0ken-of-the-test"


def test_a_list_is_read_page_by_page(tmp_path: Any) -> None:
    def answer(request: Request) -> Any:
        assert request.query["limit"] == "500"
        if request.query.get("continue") == "next":
            return listing(7, pod("b", 2))
        return listing(7, pod("a", 1), more="next")

    with api(tmp_path, answer) as (_, client):
        found = client.list(PODS, "ns", field_selector="spec.nodeName=n")
    assert [item.key for item in found.items] == ["ns/a", "ns/b"]
    assert found.resource_version == "7"


def test_a_list_whose_next_page_expired_is_read_again_as_a_whole(tmp_path: Any) -> None:
    def answer(request: Request) -> Any:
        if "continue" in request.query:
            return failure(410, "Expired")
        if "limit" in request.query:
            return listing(7, pod("a", 1), more="next")
        return listing(9, pod("a", 1), pod("b", 8))

    with api(tmp_path, answer) as (_, client):
        found = client.list(PODS)
    assert ([item.key for item in found.items], found.resource_version) == (["ns/a", "ns/b"], "9")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (failure(404, "NotFound"), errors.ApiNotFound),
        (failure(409, "AlreadyExists"), errors.ApiAlreadyExists),
        (failure(409, "Conflict"), errors.ApiConflict),
        ((500, b"boom"), errors.ApiUnavailable),
        ((200, b"not JSON"), errors.ApiError),
    ],
)
def test_a_failure_is_an_exception_of_its_class(tmp_path: Any, answer: Any, expected: type) -> None:
    with api(tmp_path, lambda _: answer) as (_, client), pytest.raises(errors.ApiError) as caught:
        client.get(PODS, "a", "ns")
    assert type(caught.value) is expected


def test_no_connection_is_unavailable_and_says_why(tmp_path: Any) -> None:
    with api(tmp_path, lambda _: (200, {})) as (server, client):
        server.close()
        with pytest.raises(errors.ApiUnavailable, match="refused"):
            client.get(PODS, "a", "ns")


def test_requests_of_many_threads_share_a_few_connections(tmp_path: Any) -> None:
    with api(tmp_path, lambda _: (200, pod("a", 1))) as (server, client):
        for _ in range(20):
            client.get(PODS, "a", "ns")
        assert len(server.connections) == 1
        threads = [threading.Thread(target=client.get, args=(PODS, "a", "ns")) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.requests) == 30


def test_a_connection_the_server_closed_meanwhile_is_no_failure(tmp_path: Any) -> None:
    """Servers close idle connections without a word; the next request must not notice."""
    with api(tmp_path, lambda _: (200, pod("a", 1))) as (server, client):
        server.hang_up = True
        for _ in range(5):
            client.get(PODS, "a", "ns")
        assert len(server.connections) == 5


def test_writes_are_plain_json_of_the_right_kind(tmp_path: Any) -> None:
    with api(tmp_path, lambda _: (200, pod("a", 1))) as (server, client):
        body = {"metadata": {"name": "a", "namespace": "ns"}}
        client.create(PODS, body)
        client.replace(PODS, body, subresource="status")
        client.patch(PODS, "a", {"x": 1}, "ns", patch_type="strategic", subresource="status")
        client.patch(NODES, "n", [{"op": "test"}], patch_type="json")
        client.delete(PODS, "a", "ns", grace_seconds=0, uid="u", propagation="Orphan")
        client.subresource(PODS, "a", "binding", {"target": {}}, "ns")
    seen = [(r.method, r.path, r.headers.get("Content-Type")) for r in server.requests]
    assert seen == [
        ("POST", "/api/v1/namespaces/ns/pods", "application/json"),
        ("PUT", "/api/v1/namespaces/ns/pods/a/status", "application/json"),
        ("PATCH", "/api/v1/namespaces/ns/pods/a/status", "application/strategic-merge-patch+json"),
        ("PATCH", "/api/v1/nodes/n", "application/json-patch+json"),
        ("DELETE", "/api/v1/namespaces/ns/pods/a", "application/json"),
        ("POST", "/api/v1/namespaces/ns/pods/a/binding", "application/json"),
    ]
    assert server.requests[4].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u"},
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Orphan",
    }


def test_a_watch_yields_events_as_they_come_and_ends_when_the_server_ends_it(tmp_path: Any) -> None:
    lines: queue.Queue[bytes] = queue.Queue()
    with api(tmp_path, lambda _: lines) as (server, client):
        watch = client.watch(PODS, resource_version="7", timeout_seconds=60)
        lines.put(event("ADDED", pod("a", 8)))
        assert repr(next(watch)) == "WatchEvent(ADDED ns/a@8)"
        lines.put(bookmark(9))
        assert repr(next(watch)) == "WatchEvent(BOOKMARK @9)"
        lines.put(END)
        assert list(watch) == []
    query = server.requests[0].query
    assert (query["watch"], query["resourceVersion"], query["allowWatchBookmarks"]) == ("true", "7", "true")


def test_a_watch_that_breaks_off_is_unavailable(tmp_path: Any) -> None:
    lines: queue.Queue[bytes] = queue.Queue()
    lines.put(CUT)
    with api(tmp_path, lambda _: lines) as (_, client), pytest.raises(errors.ApiUnavailable):
        list(client.watch(PODS, timeout_seconds=60))


def test_a_watch_from_a_version_that_is_gone_says_so(tmp_path: Any) -> None:
    with api(tmp_path, lambda _: failure(410, "Expired")) as (_, client), pytest.raises(errors.ApiGone):
        list(client.watch(PODS, resource_version="1"))


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_a_watch_ends_at_once_when_its_stop_event_is_set(tmp_path: Any, secure: bool) -> None:
    ca, context = certificate(tmp_path) if secure else ("", None)
    lines: queue.Queue[bytes] = queue.Queue()
    with api(tmp_path, lambda _: lines, context, ca) as (_, client):
        stop = threading.Event()
        begun = threading.Event()

        def follow() -> None:
            for _ in client.watch(PODS, timeout_seconds=60, stop=stop):
                begun.set()

        thread = threading.Thread(target=follow)
        thread.start()
        lines.put(bookmark(1))
        assert begun.wait(5)
        start = time.monotonic()
        stop.set()
        thread.join(5)
        assert not thread.is_alive()
        assert time.monotonic() - start < 0.5


def test_stopping_one_watch_leaves_the_others(tmp_path: Any) -> None:
    first: queue.Queue[bytes] = queue.Queue()
    second: queue.Queue[bytes] = queue.Queue()
    with api(tmp_path, lambda request: first if "pods" in request.path else second) as (_, client):
        stop = threading.Event()
        watches = client.watch(PODS, stop=stop), client.watch(NODES, stop=threading.Event())
        for lines, watch in zip((first, second), watches, strict=True):
            lines.put(bookmark(1))
            next(watch)
        stop.set()
        assert list(watches[0]) == []
        second.put(bookmark(2))
        assert next(watches[1]).resource_version == "2"
        watches[1].close()


def test_a_certificate_of_another_authority_is_refused_with_a_reason(tmp_path: Any) -> None:
    other = tmp_path / "other"
    other.mkdir()
    _, context = certificate(tmp_path)
    foreign, _ = certificate(other)
    with (
        api(tmp_path, lambda _: (200, {}), context, foreign) as (_, client),
        pytest.raises(errors.ApiUnavailable) as caught,
    ):
        client.get(PODS, "a", "ns")
    assert "not signed by the kubeconfig's certificate authority" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "while parsing"),
        ("just text", "it is no kubeconfig"),
        ("[1, 2]", "it is no kubeconfig"),
        ("clusters: 3\ncontexts: 4\nusers: 5\n", "it is no kubeconfig"),
        ("{}", "there is no 'clusters'"),
        ("current-context: x\nclusters: []\ncontexts: []\n", "Context 'x' not found"),
    ],
)
def test_a_broken_kubeconfig_is_one_clear_line(tmp_path: Any, text: str, reason: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(errors.UsageError) as caught:
        Client.from_kubeconfig(str(path), environ={})
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads everything; the message is for others")
def test_a_missing_kubeconfig_is_one_clear_line(tmp_path: Any) -> None:
    with pytest.raises(errors.UsageError, match="no such file"):
        Client.from_kubeconfig(str(tmp_path / "none"), environ={})


def test_the_environment_names_the_kubeconfig_where_no_flag_does(tmp_path: Any) -> None:
    path = tmp_path / "config"
    path.write_text(kubeconfig("http://127.0.0.1:1"))
    client = Client.from_kubeconfig(None, environ={"KUBECONFIG": f"{tmp_path}/none:{path}"})
    assert client.server == "http://127.0.0.1:1"
    client.close()
