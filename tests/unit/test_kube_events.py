"""Events: shaped as kubectl expects them, counted, limited, and never in the way."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from scripted_api import Request, Server, failure, kubeconfig

from podwire.kube.client import Client
from podwire.kube.events import BURST, EventRecorder
from podwire.kube.kinds import NODES, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

POD = PODS.convert({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "3"}})
NODE = NODES.convert({"metadata": {"name": "n", "uid": "un"}})


class Events:
    """A server that keeps Events."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.down = False

    def __call__(self, request: Request) -> Any:
        if self.down:
            return failure(503, "ServiceUnavailable")
        if request.method == "POST":
            self.kept[request.body["metadata"]["name"]] = request.body
            return 201, request.body
        name = request.path.rsplit("/", 1)[1]
        if name not in self.kept:
            return failure(404, "NotFound")
        self.kept[name] |= request.body
        return 200, self.kept[name]


@contextlib.contextmanager
def recording(tmp_path: Any, events: Any, clock: Any = time.time, sleep: Any = time.sleep) -> Iterator[EventRecorder]:
    server = Server(events)
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(server.url))
    client = Client.from_kubeconfig(str(path), environ={})
    try:
        yield EventRecorder(client, "kubelet", "node-1", clock, sleep)
    finally:
        client.close()
        server.close()


def test_an_event_names_the_object_and_who_speaks(tmp_path: Any) -> None:
    events = Events()
    with recording(tmp_path, events, lambda: 1_700_000_000.5) as recorder:
        recorder.event(POD, "Warning", "BackOff", "again")
        assert recorder.flush(5)
    ((name, made),) = events.kept.items()
    assert name == f"a.{int(1_700_000_000.5 * 1e9):x}"
    assert made["metadata"]["namespace"] == "ns"
    assert made["involvedObject"] == {
        "kind": "Pod",
        "namespace": "ns",
        "name": "a",
        "uid": "u",
        "apiVersion": "v1",
        "resourceVersion": "3",
    }
    assert (made["type"], made["reason"], made["message"], made["count"]) == ("Warning", "BackOff", "again", 1)
    assert made["firstTimestamp"] == made["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert made["source"] == {"component": "kubelet", "host": "node-1"}
    assert made["reportingComponent"] == "kubelet"


def test_an_event_of_a_cluster_object_lives_in_default(tmp_path: Any) -> None:
    events = Events()
    with recording(tmp_path, events) as recorder:
        recorder.event(NODE, "Normal", "Starting", "hello")
        assert recorder.flush(5)
    assert [made["metadata"]["namespace"] for made in events.kept.values()] == ["default"]


def test_a_repeated_event_is_counted_and_another_is_not(tmp_path: Any) -> None:
    events = Events()
    with recording(tmp_path, events) as recorder:
        for message in ("again", "again", "other", "again"):
            recorder.event(POD, "Warning", "BackOff", message)
        assert recorder.flush(5)
    assert sorted((made["message"], made["count"]) for made in events.kept.values()) == [("again", 3), ("other", 1)]


def test_an_event_that_expired_is_begun_anew(tmp_path: Any) -> None:
    events = Events()
    with recording(tmp_path, events) as recorder:
        recorder.event(POD, "Warning", "BackOff", "again")
        assert recorder.flush(5)
        events.kept.clear()
        recorder.event(POD, "Warning", "BackOff", "again")
        assert recorder.flush(5)
    assert [made["count"] for made in events.kept.values()] == [1]


def test_an_object_cannot_make_a_component_talk_without_end(tmp_path: Any) -> None:
    events, now = Events(), [1000.0]
    with recording(tmp_path, events, lambda: now[0]) as recorder:
        for number in range(BURST + 20):
            now[0] += 0.001
            recorder.event(POD, "Warning", "BackOff", f"message {number}")
        recorder.event(NODE, "Normal", "Starting", "others are not silenced")
        assert recorder.flush(5)
        assert len(events.kept) == BURST + 1
        now[0] += 301
        recorder.event(POD, "Warning", "BackOff", "five minutes later")
        assert recorder.flush(5)
    assert len(events.kept) == BURST + 2


def test_an_api_that_is_away_neither_blocks_nor_raises_and_gets_the_event_when_it_is_back(tmp_path: Any) -> None:
    events = Events()
    events.down = True
    with recording(tmp_path, events) as recorder:
        start = time.monotonic()
        recorder.event(POD, "Warning", "BackOff", "late")
        assert time.monotonic() - start < 0.1
        time.sleep(0.1)
        events.down = False
        assert recorder.flush(5)
    assert [made["message"] for made in events.kept.values()] == ["late"]


def test_an_event_that_cannot_be_sent_for_long_is_dropped_and_the_next_is_not(tmp_path: Any) -> None:
    events, slept = Events(), []
    events.down = True
    with recording(tmp_path, events, sleep=slept.append) as recorder:
        recorder.event(POD, "Warning", "BackOff", "lost")
        assert recorder.flush(5)
        assert 10 < sum(slept) < 20
        events.down = False
        recorder.event(POD, "Warning", "BackOff", "kept")
        assert recorder.flush(5)
    assert [made["message"] for made in events.kept.values()] == ["kept"]


def test_an_event_whose_answer_was_lost_is_not_made_twice(tmp_path: Any) -> None:
    events, lost = Events(), []

    def forgetful(request: Request) -> Any:
        if request.method == "POST" and request.body["metadata"]["name"] in events.kept:
            return failure(409, "AlreadyExists")
        answer = events(request)
        if not lost:
            lost.append(request)
            return failure(503, "ServiceUnavailable")
        return answer

    with recording(tmp_path, forgetful, sleep=lambda _: None) as recorder:
        recorder.event(POD, "Warning", "BackOff", "once")
        assert recorder.flush(5)
    assert len(events.kept) == 1
