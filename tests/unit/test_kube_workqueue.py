"""The work queue keeps client-go's promises."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kube.workqueue import WorkQueue

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def drained(queue: WorkQueue[str]) -> list[str]:
    keys = []
    while (key := queue.get(timeout=0)) is not None:
        keys.append(key)
        queue.done(key)
    return keys


def test_a_key_that_waits_is_not_added_twice() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in "abab":
        queue.add(key)
    assert drained(queue) == ["a", "b"]


def test_a_key_added_while_it_is_worked_on_comes_again_after_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.get(timeout=0) == "a"
    queue.add("a")
    queue.add("a")
    assert queue.get(timeout=0) is None
    queue.done("a")
    assert drained(queue) == ["a"]


def test_a_key_comes_back_when_its_time_is_over_and_not_before() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add_after("a", 5)
    clock.now += 4.9
    assert queue.get(timeout=0) is None
    clock.now += 0.1
    assert drained(queue) == ["a"]


def test_of_two_times_for_one_key_the_sooner_counts() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    for delay in (5, 1, 3):
        queue.add_after("a", delay)
    clock.now += 1
    assert drained(queue) == ["a"]
    clock.now += 10
    assert drained(queue) == []


def test_an_immediate_addition_makes_the_later_one_needless() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    queue.add_after("a", 5)
    queue.add("a")
    assert drained(queue) == ["a"]
    clock.now += 5
    assert drained(queue) == []


def test_a_retry_doubles_its_delay_until_it_is_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue(first_retry=0.005, longest_retry=1.0, clock=Clock())
    assert [queue.retry("a") for _ in range(9)] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0]
    assert queue.retry("b") == 0.005
    queue.forget("a")
    assert queue.retry("a") == 0.005


def test_shutting_down_wakes_whoever_waits() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    threads = [threading.Thread(target=lambda: got.append(queue.get())) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.shut_down()
    for thread in threads:
        thread.join(2)
    assert got == [None, None, None]


def test_a_waiting_worker_wakes_when_a_sooner_key_is_added() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("late", 60)
    got: list[str | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.get()))
    thread.start()
    queue.add_after("soon", 0.02)
    thread.join(2)
    queue.shut_down()
    assert got == ["soon"]


def test_no_two_workers_have_one_key_and_none_is_lost() -> None:
    queue: WorkQueue[int] = WorkQueue()
    lock, held, worked, clashes = threading.Lock(), set(), [0] * 5, []

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                if key in held:
                    clashes.append(key)
                held.add(key)
            time.sleep(0.0005)
            with lock:
                held.discard(key)
                worked[key] += 1
            queue.done(key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(200):
        queue.add(number % 5)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not all(worked):
        time.sleep(0.01)
    queue.shut_down()
    for thread in threads:
        thread.join(2)
    assert clashes == []
    assert all(worked)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 10)), max_size=20))
def test_every_key_comes_out_once_at_its_earliest_time(additions: list[tuple[str, int]]) -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    start = clock.now
    for key, delay in additions:
        queue.add_after(key, delay)
    due = {key: min(delay for other, delay in additions if other == key) for key, _ in additions}
    for moment in sorted(set(due.values())):
        clock.now = start + moment
        assert sorted(drained(queue)) == sorted(key for key, when in due.items() if when == moment)
    clock.now += 100
    assert drained(queue) == []
