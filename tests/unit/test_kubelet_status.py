"""The status a kubelet reports: phase, conditions, containers, addresses."""

import pytest
from kubelet_world import NOW, deleted, pod, seen, view

from podwire.kubelet import podstatus
from podwire.kubelet.podstatus import Node
from podwire.kubelet.view import PodView

pytestmark = pytest.mark.unit

NODE = Node(("192.168.1.7",))
THEN, AT_NOW = "2026-01-01T00:00:00Z", "2027-01-15T08:00:00Z"


def status(the_pod, the_view, waiting=None, before=None):
    return podstatus.status(the_pod, the_view, NODE, waiting or {}, NOW, before)


def conditions(found):
    return {one["type"]: one["status"] for one in found["conditions"]}


PHASES = [
    ("nothing yet", pod(), PodView("u1"), "Pending"),
    ("sandbox only", pod(), view(), "Pending"),
    ("one of two", pod("a", "b"), view(seen("a")), "Pending"),
    ("running", pod(), view(seen()), "Running"),
    ("crashing", pod(), view(seen(state="exited", code=1)), "Running"),
    ("OnFailure, done", pod(restartPolicy="OnFailure"), view(seen(state="exited")), "Succeeded"),
    ("OnFailure, failed once", pod(restartPolicy="OnFailure"), view(seen(state="exited", code=1)), "Running"),
    ("Never, done", pod(restartPolicy="Never"), view(seen(state="exited")), "Succeeded"),
    ("Never, failed", pod(restartPolicy="Never"), view(seen(state="exited", code=2)), "Failed"),
    ("Never, half done", pod("a", "b", restartPolicy="Never"), view(seen("a", "exited"), seen("b")), "Running"),
    ("init runs", pod(initContainers=("i",)), view(seen("i")), "Pending"),
    ("init failed for good", pod(initContainers=("i",), restartPolicy="Never"), view(seen("i", "exited", code=1)), "Failed"),
    ("deleted and ended well", pod(metadata=deleted()), view(seen(state="exited")), "Succeeded"),
    ("deleted and killed", pod(metadata=deleted()), view(seen(state="exited", code=137)), "Failed"),
    ("deleted and still running", pod(metadata=deleted()), view(seen()), "Running"),
    ("ended long ago", pod(status={"phase": "Failed"}), PodView("u1"), "Failed"),
]  # fmt: skip


@pytest.mark.parametrize(("the_pod", "the_view", "phase"), [row[1:] for row in PHASES], ids=[row[0] for row in PHASES])
def test_the_phase(the_pod, the_view, phase):
    assert status(the_pod, the_view)["phase"] == phase


def test_a_running_pod_has_everything_kubectl_shows():
    found = status(pod(), view(seen(), ips=("10.1.0.2", "fd00::2")))
    assert (found["podIP"], found["podIPs"]) == ("10.1.0.2", [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}])
    assert (found["hostIP"], found["hostIPs"]) == ("192.168.1.7", [{"ip": "192.168.1.7"}])
    assert found["startTime"] == AT_NOW
    assert conditions(found) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
    }
    (one,) = found["containerStatuses"]
    assert one == {
        "name": "app",
        "image": "nginx:1",
        "imageID": "id of nginx:1",
        "containerID": "podwire://app-0",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2027-01-15T07:58:59Z"}},
    }


def test_a_waiting_container_says_why():
    crash = {"app": ("CrashLoopBackOff", "back-off 20s restarting failed container=app")}
    (one,) = status(pod(), view(seen(state="exited", code=1, attempt=2)), crash)["containerStatuses"]
    assert one["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": crash["app"][1]}}
    assert one["lastState"]["terminated"]["exitCode"] == 1
    assert (one["restartCount"], one["ready"]) == (2, False)
    (one,) = status(pod(), view())["containerStatuses"]
    assert one["state"] == {"waiting": {"reason": "ContainerCreating"}}
    (one,) = status(pod(initContainers=("i",)), view(seen("i")))["containerStatuses"]
    assert one["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_restarted_container_keeps_how_the_last_one_ended():
    (one,) = status(pod(), view(seen(attempt=1), seen(state="exited", code=3)))["containerStatuses"]
    assert one["state"]["running"]
    assert one["lastState"]["terminated"]["exitCode"] == 3
    assert one["lastState"]["terminated"]["containerID"] == "podwire://app-0"


def test_an_init_container_is_ready_when_it_is_done():
    found = status(pod(initContainers=("i",)), view(seen("i", "exited"), seen()))
    assert found["initContainerStatuses"][0]["ready"]
    assert found["initContainerStatuses"][0]["state"]["terminated"]["reason"] == "Completed"


def test_conditions_keep_the_time_of_their_last_change():
    before = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": THEN}]}
    same = {one["type"]: one for one in status(pod(status=before), view(seen()))["conditions"]}
    assert same["Ready"]["lastTransitionTime"] == THEN
    assert same["Initialized"]["lastTransitionTime"] == AT_NOW
    changed = {one["type"]: one for one in status(pod(status=before), view())["conditions"]}
    assert changed["Ready"]["lastTransitionTime"] == AT_NOW
    assert changed["Ready"]["message"] == "containers with unready status: [app]"


def test_what_was_sent_last_counts_before_the_api_shows_it():
    first = status(pod(), view(seen()))
    first["conditions"][1]["lastTransitionTime"] = THEN
    first["startTime"] = THEN
    again = status(pod(), view(seen()), before=first)
    assert podstatus.same(first, again)
    assert again["startTime"] == THEN


def test_conditions_of_others_are_passed_through():
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": THEN}
    found = status(pod(status={"conditions": [scheduled]}), view(seen()))
    assert scheduled in found["conditions"]


def test_a_readiness_gate_holds_readiness_back():
    gated = pod(readinessGates=[{"conditionType": "example.com/lb"}])
    found = {one["type"]: one for one in status(gated, view(seen()))["conditions"]}
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "ReadinessGatesNotReady")
    assert found["ContainersReady"]["status"] == "True"
    opened = pod(
        readinessGates=[{"conditionType": "example.com/lb"}],
        status={"conditions": [{"type": "example.com/lb", "status": "True"}]},
    )
    assert conditions(status(opened, view(seen())))["Ready"] == "True"


def test_a_pod_on_the_hosts_network_has_the_nodes_address():
    found = status(pod(hostNetwork=True), view(seen(), ips=()))
    assert found["podIP"] == "192.168.1.7"
    assert status(pod(hostNetwork=True), PodView("u1"))["podIP"] is None


def test_an_ended_pod_keeps_the_address_it_had():
    ended = pod(restartPolicy="Never", status={"podIP": "10.1.0.9"})
    assert status(ended, view(seen(state="exited"), ready=False))["podIP"] == "10.1.0.9"
    assert status(pod(), PodView("u1"))["podIP"] is None


def test_a_completed_pod_is_not_ready_because_it_is_completed():
    found = {one["type"]: one for one in status(pod(restartPolicy="Never"), view(seen(state="exited")))["conditions"]}
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("False", "PodCompleted")
