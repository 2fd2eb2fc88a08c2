"""What the kubelet does next, as a table of situations."""

import pytest
from kubelet_world import NOW, deleted, pod, seen, view

from podwire.kubelet import decide
from podwire.kubelet.backoff import CrashLoop
from podwire.kubelet.view import PodView, Sandbox

pytestmark = pytest.mark.unit

INIT = ("first", "second")
SIDECAR = {"name": "side", "restartPolicy": "Always"}


def plan(the_pod, the_view, ending=(), left=0.0):
    return decide.decide(the_pod, the_view, ending, lambda _: left, lambda _: 20.0)


def starts(found):
    return [(start.container.name, start.attempt) for start in found.start]


def stops(found):
    return [(stop.name, stop.grace) for stop in found.stop]


# situation, pod, view → what is started, whether a sandbox is run (its attempt)
TABLE = [
    ("nothing is there", pod(), view(ready=None), [], 0),
    ("a sandbox is there", pod("a", "b"), view(), [("a", 0), ("b", 0)], None),
    ("one of two runs", pod("a", "b"), view(seen("a")), [("b", 0)], None),
    ("all run", pod("a", "b"), view(seen("a"), seen("b")), [], None),
    ("one failed, policy Always", pod(), view(seen(state="exited", code=1)), [("app", 1)], None),
    ("one ended well, policy Always", pod(), view(seen(state="exited")), [("app", 1)], None),
    ("one failed, policy OnFailure", pod(restartPolicy="OnFailure"), view(seen(state="exited", code=1)), [("app", 1)], None),
    ("one ended well, policy OnFailure", pod(restartPolicy="OnFailure"), view(seen(state="exited")), [], None),
    ("one failed, policy Never", pod(restartPolicy="Never"), view(seen(state="exited", code=1)), [], None),
    ("half ended, policy Never", pod("a", "b", restartPolicy="Never"), view(seen("a", "exited"), seen("b")), [], None),
    ("the second restart", pod(), view(seen(state="exited", code=1, attempt=1), seen(state="exited", code=1)), [("app", 2)], None),
    ("made but never started", pod(), view(seen(state="created", attempt=3)), [("app", 3)], None),
    ("the sandbox is lost", pod(), view(seen(state="exited", code=137), ready=False), [], 1),
    ("the sandbox is lost, attempt 4", pod(), view(ready=False, attempt=4), [], 5),
    ("init: nothing yet", pod(initContainers=INIT), view(), [("first", 0)], None),
    ("init: the first runs", pod(initContainers=INIT), view(seen("first")), [], None),
    ("init: the first is done", pod(initContainers=INIT), view(seen("first", "exited")), [("second", 0)], None),
    ("init: the first failed", pod(initContainers=INIT), view(seen("first", "exited", code=1)), [("first", 1)], None),
    ("init: the first failed, policy Never", pod(initContainers=INIT, restartPolicy="Never"), view(seen("first", "exited", code=1)), [], None),
    ("init: all done", pod(initContainers=INIT), view(seen("first", "exited"), seen("second", "exited")), [("app", 0)], None),
    ("init: its records are gone but the pod runs", pod(initContainers=INIT), view(seen()), [], None),
    ("init: a new sandbox begins anew", pod(initContainers=("first",)), view(seen("first", "exited", sandbox="old"), seen(state="exited", sandbox="old")), [("first", 1)], None),
    ("sidecar: comes first", pod(initContainers=(SIDECAR, "first")), view(), [("side", 0)], None),
    ("sidecar: runs, then the next", pod(initContainers=(SIDECAR, "first")), view(seen("side")), [("first", 0)], None),
    ("sidecar: the pod beside it", pod(initContainers=(SIDECAR,)), view(seen("side")), [("app", 0)], None),
    ("sidecar: ended, is run again", pod(initContainers=(SIDECAR,)), view(seen("side", "exited"), seen()), [("side", 1)], None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("the_pod", "the_view", "started", "sandbox"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_what_is_started(the_pod, the_view, started, sandbox):
    found = plan(the_pod, the_view)
    assert starts(found) == started
    assert found.run_sandbox == sandbox
    assert found.stop == ()
    assert not found.gone


def test_a_container_in_back_off_waits_and_says_how_long():
    found = plan(pod(), view(seen(state="exited", code=1)), left=7.0)
    assert found.start == ()
    assert found.again_in == 7.0
    assert found.backing_off == {"app": 20.0}


def test_only_the_last_ended_container_is_kept_when_a_new_one_is_made():
    ended = [seen(state="exited", code=1, attempt=number) for number in range(3)]
    found = plan(pod(), view(*ended))
    assert starts(found) == [("app", 3)]
    assert set(found.remove_containers) == {"app-0", "app-1"}


def test_a_container_whose_image_changed_is_ended_and_then_made_anew():
    changed = pod({"name": "app", "image": "nginx:2"}, terminationGracePeriodSeconds=9)
    found = plan(changed, view(seen()))
    assert stops(found) == [("app", 9)]
    assert "definition changed" in found.stop[0].why
    assert plan(changed, view(seen()), ending={"app-0"}).idle
    assert starts(plan(changed, view(seen(state="exited", code=143)))) == [("app", 1)]


def test_a_deleted_pod_is_stopped_then_given_back_then_gone():
    the_pod = pod("a", "b", metadata=deleted(5))
    found = plan(the_pod, view(seen("a"), seen("b")))
    assert stops(found) == [("a", 5), ("b", 5)]
    assert not found.gone
    assert plan(the_pod, view(seen("a"), seen("b")), ending={"a-0", "b-0"}).idle
    found = plan(the_pod, view(seen("a", "exited"), seen("b", "exited")))
    assert found.gone
    assert found.stop_sandboxes == found.remove_sandboxes == ("s0",)
    assert plan(the_pod, PodView("u1")).gone
    assert starts(plan(the_pod, view())) == []


def test_a_pod_at_its_end_gives_its_network_back_and_keeps_its_containers():
    the_pod = pod(restartPolicy="Never", initContainers=(SIDECAR,))
    found = plan(the_pod, view(seen(state="exited"), seen("side")))
    assert stops(found) == [("side", 30)]
    found = plan(the_pod, view(seen(state="exited"), seen("side", "exited")))
    assert (found.stop_sandboxes, found.remove_sandboxes, found.start) == (("s0",), (), ())
    assert plan(the_pod, view(seen(state="exited"), seen("side", "exited"), ready=False)).idle


def test_what_still_runs_in_a_lost_sandbox_is_ended_before_a_new_one():
    found = plan(pod(), view(seen(grace=4), ready=False))
    assert stops(found) == [("app", 4)]
    assert found.run_sandbox is None


def test_sandboxes_of_earlier_attempts_are_removed():
    boxes = (Sandbox("new", 1, True), Sandbox("old", 0, False))
    found = plan(pod(), PodView("u1", boxes, (seen(sandbox="new"),)))
    assert found.remove_sandboxes == found.stop_sandboxes == ("old",)


def test_an_orphan_is_ended_with_the_grace_period_it_was_started_with():
    assert stops(decide.teardown(view(seen(grace=3), seen("b")), None, ())) == [("app", 3), ("b", 30)]
    assert decide.teardown(view(seen(state="exited")), None, ()).remove_sandboxes == ("s0",)
    stray = PodView("u1", (), (seen(state="exited", sandbox="gone"),))
    assert decide.teardown(stray, None, ()).remove_containers == ("app-0",)


def lost(**more):
    known = {"name": "app", "restartCount": 4, "containerID": "podwire://old", "image": "nginx:1", "imageID": "i"}
    return pod(status={"containerStatuses": [known]}, **more)


def test_a_container_that_a_reboot_has_taken_counts_as_killed():
    found = decide.with_lost(lost(), PodView("u1")).latest("app")
    assert (found.state, found.exit_code, found.attempt, found.reason) == ("exited", 137, 4, "ContainerStatusUnknown")
    again = decide.with_lost(lost(), view())
    assert starts(plan(lost(), again)) == [("app", 5)]
    never = lost(restartPolicy="Never")
    assert decide.finished(never, decide.with_lost(never, PodView("u1")))
    assert decide.with_lost(lost(), view(seen())) == view(seen())


def test_the_delay_doubles_up_to_five_minutes_and_is_forgiven_after_ten():
    loop = CrashLoop()
    ended = NOW
    waits = []
    for _ in range(8):
        waits.append(loop.left("u", "app", ended, ended))
        loop.restarted("u", "app", ended, ended + waits[-1])
        ended += waits[-1] + 1
    assert waits == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert loop.left("u", "app", ended, ended + 299) == 1.0
    assert loop.left("u", "other", ended, ended) == 0.0
    assert loop.left("u", "app", ended + 601, ended + 601) == 0.0
    loop.forget("u")
    assert loop.left("u", "app", ended, ended) == 0.0
