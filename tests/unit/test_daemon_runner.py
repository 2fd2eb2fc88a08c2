"""The bounded-frequency runner: never too often, never too seldom, nothing forgotten."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.daemon.runner import BoundedFrequencyRunner, Schedule
from podwire.errors import UsageError

pytestmark = pytest.mark.unit

MIN, RETRY, MAX = 1.0, 3.0, 30.0


def test_the_first_request_is_due_at_once_and_nothing_before_it() -> None:
    schedule = Schedule(MIN, RETRY, MAX)
    assert schedule.due() is None
    schedule.request()
    assert schedule.due() == 0.0


def test_a_request_waits_for_the_minimum_gap_after_the_end_of_the_last_run() -> None:
    schedule = Schedule(MIN, RETRY, MAX)
    schedule.request()
    schedule.started()
    schedule.request()
    schedule.ended(100.0, succeeded=True)
    assert schedule.due() == 101.0


def test_silence_leads_to_a_run_after_the_maximum_gap() -> None:
    schedule = Schedule(MIN, RETRY, MAX)
    schedule.started()
    schedule.ended(100.0, succeeded=True)
    assert schedule.due() == 130.0


def test_a_failure_is_tried_again_after_the_retry_gap_unless_asked_sooner() -> None:
    schedule = Schedule(MIN, RETRY, MAX)
    schedule.started()
    schedule.ended(100.0, succeeded=False)
    assert schedule.due() == 103.0
    schedule.request()
    assert schedule.due() == 101.0


def test_a_retry_is_never_sooner_than_the_minimum_gap() -> None:
    schedule = Schedule(5.0, 1.0, 30.0)
    schedule.started()
    schedule.ended(100.0, succeeded=False)
    assert schedule.due() == 105.0
    schedule.retry_in(100.0, 0.5)
    assert schedule.due() == 105.0


def test_gaps_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="min_interval"):
        Schedule(10.0, 1.0, 5.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 20), st.floats(0, 5), st.booleans(), st.booleans(), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_gaps_hold_whatever_happens(steps: list[tuple[float, float, bool, bool, bool]]) -> None:
    """Each step: time passes, maybe a request; then runs happen as they are due, take a while, maybe fail."""
    schedule, now = Schedule(MIN, RETRY, MAX), 0.0
    ended: float | None = None
    failed = pending = False
    for passing, takes, asked, asked_meanwhile, succeeds in steps:
        now += passing
        if asked:
            schedule.request()
            pending = True
        due = schedule.due()
        if ended is not None:
            assert due is not None
            assert due >= ended + MIN
            assert due <= ended + MAX
            assert not pending or due == ended + MIN
            assert not failed or due <= ended + RETRY
        elif due is None:
            assert not pending
        if due is None or due > now:
            continue
        schedule.started()
        pending = asked_meanwhile
        if asked_meanwhile:
            schedule.request()
        now += takes
        schedule.ended(now, succeeds)
        ended, failed = now, not succeeds


def test_requests_coalesce_and_one_made_during_a_run_leads_to_another() -> None:
    running, go_on, runs = threading.Event(), threading.Event(), []

    def sync() -> None:
        runs.append(time.monotonic())
        running.set()
        go_on.wait(5)

    runner = BoundedFrequencyRunner(sync, 0.05, 1.0, 60.0)
    thread = runner.start()
    for _ in range(10):
        runner.run()
    assert running.wait(5)
    for _ in range(10):
        runner.run()
    go_on.set()
    deadline = time.monotonic() + 5
    while len(runs) < 2 and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.2)
    runner.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert len(runs) == 2


def test_a_run_that_fails_is_tried_again_and_the_loop_lives() -> None:
    done, tries = threading.Event(), []

    def sync() -> bool:
        tries.append(1)
        if len(tries) == 1:
            raise UsageError("syncing", "it", "no")
        if len(tries) == 2:
            return False
        done.set()
        return True

    runner = BoundedFrequencyRunner(sync, 0.0, 0.01, 60.0)
    thread = runner.start()
    runner.run()
    assert done.wait(5)
    runner.stop()
    thread.join(5)
    assert len(tries) == 3


def test_silence_is_broken_by_the_maximum_gap() -> None:
    runs: list[int] = []
    runner = BoundedFrequencyRunner(lambda: runs.append(1), 0.0, 0.01, 0.05)
    thread = runner.start()
    runner.run()
    deadline = time.monotonic() + 5
    while len(runs) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    runner.stop()
    thread.join(5)
    assert len(runs) >= 3
