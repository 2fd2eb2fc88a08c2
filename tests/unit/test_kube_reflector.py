"""The reflector follows a server through everything a server can do."""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from scripted_api import CUT, END, Request, Server, bookmark, event, failure, kubeconfig, listing, pod

from podwire.errors import UsageError
from podwire.kube.client import Client
from podwire.kube.kinds import PODS
from podwire.kube.reflector import Backoff, Reflector

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


class Script:
    """A server of pods: lists in order (the last one again and again), one queue of lines for each watch."""

    def __init__(self) -> None:
        self.lists: list[Any] = []
        self.watches: queue.Queue[Any] = queue.Queue()
        self.watched_from: list[str] = []

    def __call__(self, request: Request) -> Any:
        if request.query.get("watch") == "true":
            self.watched_from.append(request.query["resourceVersion"])
            return self.watches.get(timeout=5)
        return self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]

    def watch(self, *lines: bytes) -> queue.Queue[bytes]:
        stream: queue.Queue[bytes] = queue.Queue()
        for line in lines:
            stream.put(line)
        self.watches.put(stream)
        return stream


class Seen:
    """What the handler was told."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str]] = []
        self.error: Exception | None = None

    def __call__(self, key: str, old: Any, new: Any) -> None:
        def version(obj: Any) -> str:
            return obj.metadata.resource_version if obj else "-"

        self.changes.append((key, version(old), version(new)))
        if self.error is not None:
            raise self.error

    def wait(self, count: int) -> list[tuple[str, str, str]]:
        until(lambda: len(self.changes) >= count)
        return self.changes


def until(true: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@contextlib.contextmanager
def reflecting(tmp_path: Any, script: Script, seen: Seen) -> Iterator[Reflector[Any]]:
    server = Server(script)
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig(server.url))
    client, stop = Client.from_kubeconfig(str(path), environ={}), threading.Event()
    reflector = Reflector(
        client, PODS, stop=stop, on_change=seen, backoff=Backoff(first=0.01, longest=0.05, rand=random.Random(1))
    )
    reflector.start()
    try:
        yield reflector
    finally:
        stop.set()
        server.closing.set()
        reflector.join(5)
        client.close()
        server.close()
        assert not reflector._thread.is_alive()


def test_it_lists_and_then_follows_the_watch(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    script.lists = [listing(5, pod("a", 3), pod("b", 4))]
    script.watch(event("MODIFIED", pod("a", 6)), event("DELETED", pod("b", 7)), event("ADDED", pod("c", 8)))
    with reflecting(tmp_path, script, seen) as reflector:
        assert seen.wait(5) == [
            ("ns/a", "-", "3"),
            ("ns/b", "-", "4"),
            ("ns/a", "3", "6"),
            ("ns/b", "4", "-"),
            ("ns/c", "-", "8"),
        ]
        assert reflector.synced.is_set()
        assert sorted(reflector.store) == ["ns/a", "ns/c"]
    assert script.watched_from[0] == "5"


def test_a_watch_that_ends_is_taken_up_from_the_last_bookmark(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    script.lists = [listing(5, pod("a", 3))]
    script.watch(bookmark(40), END)
    script.watch(event("MODIFIED", pod("a", 41)))
    with reflecting(tmp_path, script, seen):
        seen.wait(2)
    assert script.watched_from[:2] == ["5", "40"]
    assert seen.changes == [("ns/a", "-", "3"), ("ns/a", "3", "41")]


def test_history_that_is_gone_is_made_up_for_by_a_list(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    script.lists = [
        listing(5, pod("a", 3), pod("b", 4), pod("c", 5)),
        listing(90, pod("a", 3), pod("c", 80, uid="another"), pod("d", 88)),
    ]
    script.watch(event("ERROR", failure(410, "Expired")[1]))
    script.watch(bookmark(91))
    with reflecting(tmp_path, script, seen) as reflector:
        seen.wait(7)
        assert seen.changes[3:] == [
            ("ns/b", "4", "-"),
            ("ns/c", "5", "-"),
            ("ns/c", "-", "80"),
            ("ns/d", "-", "88"),
        ]
        assert sorted(reflector.store) == ["ns/a", "ns/c", "ns/d"]
        until(lambda: len(script.watched_from) > 1)
    assert script.watched_from[:2] == ["5", "90"]


def test_a_lost_connection_keeps_the_state_and_goes_on_where_it_was(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    script.lists = [listing(5, pod("a", 3))]
    script.watch(event("MODIFIED", pod("a", 6)), CUT)
    script.watches.put(failure(503, "ServiceUnavailable"))
    script.watches.put((500, b"panic"))
    script.watch(event("MODIFIED", pod("a", 9)))
    with reflecting(tmp_path, script, seen) as reflector:
        assert seen.wait(3)[1:] == [("ns/a", "3", "6"), ("ns/a", "6", "9")]
        assert "ns/a" in reflector.store
    assert script.watched_from[:4] == ["5", "6", "6", "6"]


def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    script.lists = [failure(503, "ServiceUnavailable"), failure(403, "Forbidden"), listing(5, pod("a", 3))]
    script.watch()
    with reflecting(tmp_path, script, seen) as reflector:
        assert reflector.synced.wait(5)
        assert seen.changes == [("ns/a", "-", "3")]


def test_a_malformed_object_costs_only_itself(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    broken = pod("a", 6) | {"status": {"podIPs": "none"}}
    script.lists = [listing(5, pod("a", 3), pod("b", 4) | {"status": []}, pod("c", 5))]
    script.watch(event("MODIFIED", broken), event("MODIFIED", pod("c", 7)), event("MODIFIED", pod("a", 8)))
    with reflecting(tmp_path, script, seen) as reflector:
        assert seen.wait(4) == [
            ("ns/a", "-", "3"),
            ("ns/c", "-", "5"),
            ("ns/c", "5", "7"),
            ("ns/a", "3", "8"),
        ]
        assert sorted(reflector.store) == ["ns/a", "ns/c"]


def test_a_handler_that_fails_costs_only_that_change(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    seen.error = UsageError("handling", "it")
    script.lists = [listing(5, pod("a", 3), pod("b", 4))]
    script.watch(event("ADDED", pod("c", 6)))
    with reflecting(tmp_path, script, seen) as reflector:
        assert [key for key, _, _ in seen.wait(3)] == ["ns/a", "ns/b", "ns/c"]
        assert len(reflector.store) == 3


def test_a_server_that_ends_watches_at_once_is_not_hammered(tmp_path: Any) -> None:
    script, seen = Script(), Seen()
    script.lists = [listing(5)]
    for _ in range(200):
        script.watch(END)
    with reflecting(tmp_path, script, seen):
        time.sleep(0.5)
        asked = len(script.watched_from)
    assert 2 <= asked <= 40  # without a pause it would be hundreds; delays here are 5 to 75 ms


def test_delays_grow_to_a_limit_with_jitter() -> None:
    backoff = Backoff(first=1.0, longest=8.0, rand=random.Random(7))
    delays = [backoff.next() for _ in range(8)]
    for delay, base in zip(delays, [1, 2, 4, 8, 8, 8, 8, 8], strict=True):
        assert base * 0.5 <= delay < base * 1.5
    assert len(set(delays)) == len(delays)
    backoff.reset()
    assert backoff.next() < 1.5
