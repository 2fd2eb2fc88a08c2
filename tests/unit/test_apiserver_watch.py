"""Lists and watches over HTTP: revisions, selections, bookmarks, order."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest
from apiserver_process import CONFIG_MAPS, MERGE, Server, config_map

pytestmark = pytest.mark.unit


@pytest.fixture
def path(server, name):
    """The config maps of a namespace of the test's own."""
    server.ok("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}/configmaps"


def revision_of(listing: dict) -> int:
    return int(listing["metadata"]["resourceVersion"])


def names_of(listing: dict) -> list[str]:
    return [item["metadata"]["name"] for item in listing["items"]]


def test_a_watch_without_a_revision_begins_with_what_is_there(server, path) -> None:
    server.ok("POST", path, config_map("a"))
    for query in ("", "&resourceVersion=0"):
        with server.watch(f"{path}?watch=true{query}") as watch:
            assert watch.names(1) == [("ADDED", "a")]
            server.ok("PATCH", f"{path}/a", {"data": {"x": f"1{query}"}}, MERGE)
            event = watch.next()
            assert (event["type"], event["object"]["kind"]) == ("MODIFIED", "ConfigMap")


def test_a_watch_from_a_revision_gets_every_change_after_it_and_only_those(server, path) -> None:
    revision = revision_of(server.ok("GET", path))
    server.ok("POST", path, config_map("a", x="1"))
    server.ok("PUT", f"{path}/a", config_map("a", x="2"))
    server.ok("DELETE", f"{path}/a")
    with server.watch(f"{path}?watch=true&resourceVersion={revision}") as watch:
        events = [watch.next() for _ in range(3)]
        assert [event["type"] for event in events] == ["ADDED", "MODIFIED", "DELETED"]
        revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert revision < revisions[0] < revisions[1] < revisions[2]
        server.ok("POST", path, config_map("b"))
        assert watch.names(1) == [("ADDED", "b")]
    with server.watch(f"{path}?watch=true&resourceVersion={revisions[1]}") as watch:
        assert watch.names(1) == [("DELETED", "a")]


def test_an_object_that_moves_in_or_out_of_a_selection_is_added_or_deleted(server, path) -> None:
    server.ok("POST", path, config_map("a", {"app": "x"}, v="1"))
    revision = revision_of(server.ok("GET", path))
    with server.watch(f"{path}?watch=true&labelSelector=app%3Dx&resourceVersion={revision}") as watch:
        server.ok("PUT", f"{path}/a", config_map("a", {"app": "y"}, v="2"))
        moved_out = watch.next()
        assert moved_out["type"] == "DELETED"
        assert moved_out["object"]["data"] == {"v": "1"}
        assert int(moved_out["object"]["metadata"]["resourceVersion"]) > revision
        server.ok("PUT", f"{path}/a", config_map("a", {"app": "y"}, v="3"))
        server.ok("PUT", f"{path}/a", config_map("a", {"app": "x"}, v="4"))
        server.ok("PUT", f"{path}/a", config_map("a", {"app": "x"}, v="5"))
        server.ok("DELETE", f"{path}/a")
        assert watch.names(3) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_a_field_selector_watches_one_object(server, path) -> None:
    with server.watch(f"{path}?watch=true&fieldSelector=metadata.name%3Db") as watch:
        server.ok("POST", path, config_map("a"))
        server.ok("POST", path, config_map("b"))
        assert watch.names(1) == [("ADDED", "b")]


def test_other_namespaces_and_kinds_are_not_seen(server, path) -> None:
    revision = revision_of(server.ok("GET", path))
    with server.watch(f"{path}?watch=true&resourceVersion={revision}") as watch:
        server.ok("POST", CONFIG_MAPS, config_map("elsewhere"))
        server.ok("POST", path, config_map("here"))
        assert watch.names(1) == [("ADDED", "here")]
    server.ok("DELETE", f"{CONFIG_MAPS}/elsewhere")


def test_a_watch_ends_when_its_time_is_over_with_a_bookmark_for_those_who_take_them(server, path) -> None:
    server.ok("POST", path, config_map("a"))
    with server.watch(f"{path}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true") as watch:
        events = list(watch)
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    bookmark = events[2]["object"]
    assert "annotations" not in bookmark["metadata"]
    assert (bookmark["kind"], bookmark["apiVersion"]) == ("ConfigMap", "v1")
    assert int(bookmark["metadata"]["resourceVersion"]) >= int(events[0]["object"]["metadata"]["resourceVersion"])
    with server.watch(f"{path}?watch=true&timeoutSeconds=1") as watch:
        assert [event["type"] for event in watch] == ["ADDED"]


def test_send_initial_events_ends_the_state_with_an_annotated_bookmark(server, path) -> None:
    server.ok("POST", path, config_map("a"))
    query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    for version in ("", "0", str(revision_of(server.ok("GET", path)))):
        with server.watch(f"{path}?{query}&resourceVersion={version}") as watch:
            assert watch.names(1) == [("ADDED", "a")]
            end = watch.next()
            assert end["type"] == "BOOKMARK"
            assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
            assert int(end["object"]["metadata"]["resourceVersion"]) == revision_of(server.ok("GET", path))
            server.ok("PUT", f"{path}/a", config_map("a", x=version))
            assert watch.names(1) == [("MODIFIED", "a")]


def test_send_initial_events_false_begins_now(server, path) -> None:
    server.ok("POST", path, config_map("old"))
    query = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
    with server.watch(f"{path}?{query}") as watch:
        server.ok("POST", path, config_map("new"))
        assert watch.names(1) == [("ADDED", "new")]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "watch=true&sendInitialEvents=true",
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            "watch=true&resourceVersionMatch=NotOlderThan&resourceVersion=1",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        ("sendInitialEvents=true", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        (
            "resourceVersionMatch=Exact",
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            'resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
        (
            "resourceVersionMatch=Nearly&resourceVersion=1",
            'resourceVersionMatch: Unsupported value: "Nearly": supported values: "Exact", "NotOlderThan", ""',
        ),
    ],
)
def test_options_that_make_no_sense_are_refused_and_never_ignored(server, query: str, message: str) -> None:
    answer = server("GET", f"{CONFIG_MAPS}?{query}")
    assert answer.code == 422
    assert answer.body["message"] == f'ListOptions.meta.k8s.io "" is invalid: {message}'


@pytest.mark.parametrize(
    "query", ["resourceVersion=x", "limit=x", "continue=x", "labelSelector=a%20b", "watch=1&timeoutSeconds=x"]
)
def test_options_that_cannot_be_read_are_400(server, query: str) -> None:
    assert server("GET", f"{CONFIG_MAPS}?{query}").code == 400


def test_a_revision_that_does_not_exist_yet_is_a_timeout_with_its_cause(server) -> None:
    for path in (f"{CONFIG_MAPS}?resourceVersion=99999999", "/api/v1/namespaces/default?resourceVersion=99999999"):
        answer = server("GET", path)
        assert (answer.code, answer.body["reason"]) == (504, "Timeout")
        assert answer.body["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
        assert answer.headers["Retry-After"] == "1"
    with server.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion=99999999") as watch:
        assert watch.next()["object"]["code"] == 410


def test_a_list_in_pages_shows_one_revision(server, path) -> None:
    for name in "abcde":
        server.ok("POST", path, config_map(name))
    first = server.ok("GET", f"{path}?limit=2")
    server.ok("DELETE", f"{path}/c")
    server.ok("PUT", f"{path}/d", config_map("d", new="1"))
    server.ok("POST", path, config_map("bb"))
    second = server.ok("GET", f"{path}?limit=2&continue={first['metadata']['continue']}")
    third = server.ok("GET", f"{path}?limit=2&continue={second['metadata']['continue']}")
    assert [names_of(page) for page in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert "data" in second["items"][0]  # the deleted one, as it was
    assert len({revision_of(page) for page in (first, second, third)}) == 1
    assert "continue" not in third["metadata"]
    assert names_of(server.ok("GET", path)) == ["a", "b", "bb", "d", "e"]


def test_pages_and_selectors_go_together(server, path) -> None:
    for number in range(6):
        server.ok("POST", path, config_map(f"c{number}", {"even": str(number % 2 == 0).lower()}))
    first = server.ok("GET", f"{path}?limit=2&labelSelector=even%3Dtrue")
    rest = server.ok("GET", f"{path}?labelSelector=even%3Dtrue&continue={first['metadata']['continue']}")
    assert names_of(first) + names_of(rest) == ["c0", "c2", "c4"]


def test_an_exact_revision_shows_the_past_and_not_older_than_the_present(server, path) -> None:
    server.ok("POST", path, config_map("a"))
    revision = revision_of(server.ok("GET", path))
    server.ok("POST", path, config_map("b"))
    exact = server.ok("GET", f"{path}?resourceVersion={revision}&resourceVersionMatch=Exact")
    assert (names_of(exact), revision_of(exact)) == (["a"], revision)
    assert names_of(server.ok("GET", f"{path}?resourceVersion={revision}&limit=5")) == ["a"]
    for query in (f"resourceVersion={revision}", f"resourceVersion={revision}&resourceVersionMatch=NotOlderThan"):
        assert names_of(server.ok("GET", f"{path}?{query}")) == ["a", "b"]


def test_all_watchers_see_concurrent_writes_in_the_same_order_without_gaps(server, path) -> None:
    writers, each, watchers = 4, 25, 3
    start = revision_of(server.ok("GET", path))
    seen: list[list[tuple[str, str]]] = [[] for _ in range(watchers)]

    def observe(number: int) -> None:
        with server.watch(f"{path}?watch=true&resourceVersion={start}") as watch:
            for event in watch:
                metadata = event["object"]["metadata"]
                seen[number].append((metadata["resourceVersion"], event["type"] + metadata["name"]))
                if len(seen[number]) == writers * each * 3:
                    return

    def churn(number: int) -> None:
        with contextlib.closing(server.connect()) as connection:
            for index in range(each):
                name = f"w{number}-{index}"
                for method, where, body in (
                    ("POST", path, config_map(name)),
                    ("PUT", f"{path}/{name}", config_map(name, x="1")),
                    ("DELETE", f"{path}/{name}", None),
                ):
                    response = server.send(connection, method, where, body)
                    response.read()
                    assert response.status < 300

    threads = [threading.Thread(target=observe, args=(n,)) for n in range(watchers)]
    threads += [threading.Thread(target=churn, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen[0] == seen[1] == seen[2]
    revisions = [int(revision) for revision, _ in seen[0]]
    assert revisions == sorted(set(revisions))
    assert len(revisions) == writers * each * 3
    for number in range(writers):
        for index in range(each):
            mine = [what for _, what in seen[0] if what.endswith(f"Dw{number}-{index}")]
            assert mine == [f"{kind}w{number}-{index}" for kind in ("ADDED", "MODIFIED", "DELETED")]


def test_an_answered_write_is_in_the_next_read_and_was_offered_to_watchers_before(server, path) -> None:
    with server.watch(f"{path}?watch=true") as watch:
        made = server.ok("POST", path, config_map("a"))
        assert server.ok("GET", f"{path}/a") == made
        assert watch.next()["object"] == made


TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def test_a_watched_table_sends_its_columns_once(server, path) -> None:
    server.ok("POST", path, config_map("a", x="1"))
    with server.watch(f"{path}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true", TABLE) as watch:
        server.ok("PUT", f"{path}/a", config_map("a", x="1", y="2"))
        first, end, second, bookmark = list(watch)
    assert {event["object"]["kind"] for event in (first, end, second, bookmark)} == {"Table"}
    assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert first["object"]["rows"][0]["cells"][:2] == ["a", 1]
    assert first["object"]["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert not second["object"]["columnDefinitions"]
    assert second["object"]["rows"][0]["cells"][:2] == ["a", 2]
    assert bookmark["object"]["metadata"]["resourceVersion"]


def test_a_watch_of_metadata_sends_metadata(server, path) -> None:
    server.ok("POST", path, config_map("a", x="1"))
    accept = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}
    with server.watch(f"{path}?watch=true", accept) as watch:
        event = watch.next()
    assert event["object"]["kind"] == "PartialObjectMetadata"
    assert set(event["object"]) == {"kind", "apiVersion", "metadata"}


def test_the_old_watch_path_still_works(server, path) -> None:
    server.ok("POST", path, config_map("a"))
    server.ok("POST", path, config_map("b"))
    with server.watch(path.replace("/api/v1/", "/api/v1/watch/") + "/b") as watch:
        assert watch.names(1) == [("ADDED", "b")]


def test_watches_end_properly_when_the_server_does(tmp_path) -> None:
    server = Server(tmp_path).start()
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(server.watch(f"{CONFIG_MAPS}?watch=true")) for _ in range(50)]
        server.ok("POST", CONFIG_MAPS, config_map("last"))
        assert server.stop() < 2
        for watch in watches:
            assert [event["object"]["metadata"]["name"] for event in watch] == ["last"]
    assert "Traceback" not in server.log.read_text()
    assert json.dumps(server.log.read_text()).count("ended") == 1
