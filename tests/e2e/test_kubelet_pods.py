"""Pods under a real API server, through a real runtime: they run, restart, end, and are reported."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from control_plane import until
from kubelet_rig import NODE, NODE_IP, Rig, host, running, shell, web

from podwire.errors import ApiNotFound
from podwire.kube.kinds import CONFIG_MAPS, PODS, SERVICES
from podwire.testing.netns import require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require("root", "bridge-device", "veth", "nsenter", "unshare", "curl")
    with running(tmp_path_factory.mktemp("kubelet")) as made:
        made.node_ready()
        yield made


@pytest.fixture(autouse=True)
def nothing_left_behind(rig: Rig) -> Iterator[None]:
    """What a failing test leaves would fail others."""
    yield
    for pod in rig.client.list(PODS, "default").items:
        rig.client.delete(PODS, pod.metadata.name, "default", grace_seconds=1)
        rig.gone(pod.metadata.name)


def held(rig: Rig) -> list[str]:
    return [name for name in rig.node.listdir("/var/lib/cni/networks/cni0") if name[0].isdigit()]


def test_a_pod_runs_and_is_reported_as_kubectl_shows_it(rig: Rig) -> None:
    rig.create("web", web(80))
    pod = rig.ready("web")
    assert pod.status.phase == "Running"
    assert pod.status.pod_ip.startswith("10.244.1.")
    assert pod.addresses == (pod.status.pod_ip,)
    assert pod.status.host_ip == NODE_IP
    assert {one.type: one.status for one in pod.status.conditions if one.type != "PodScheduled"} == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    (status,) = pod.status.container_statuses
    assert status.container_id.startswith("podwire://")
    assert status.image_id == "podwire/stand-in for nginx:1.25"
    answer = json.loads(rig.node.run("curl", "-s", "-m", "5", pod.status.pod_ip).stdout)
    assert (answer["pod"], answer["namespace"], answer["podIP"]) == ("web", "default", pod.status.pod_ip)
    assert rig.event("web", "StandIn").startswith('image "nginx:1.25" is not pulled')
    assert rig.event("web", "Created") == "Created container: app"
    assert rig.event("web", "Started") == "Started container app"
    rig.delete("web")
    assert rig.event("web", "Killing") == "Stopping container app"


def test_from_bound_to_an_address_takes_less_than_300_ms(rig: Rig) -> None:
    took = []
    for number in range(3):
        name = f"quick-{number}"
        started = time.monotonic()
        rig.create(name, web(80))
        until(lambda name=name: rig.pod(name).status.pod_ip, what="an address")
        took.append(time.monotonic() - started)
        rig.delete(name, grace=1)
    assert min(took) < 0.3, took


def test_a_deleted_pod_gives_everything_back_before_it_is_gone_from_the_api(rig: Rig) -> None:
    rig.create("brief", host("sleep", "1000"), terminationGracePeriodSeconds=5)
    ip = rig.ready("brief").status.pod_ip
    assert ip in held(rig)
    rig.client.delete(PODS, "brief", "default")
    assert rig.pod("brief").terminating
    rig.gone("brief")
    assert ip not in held(rig)
    assert "uid-brief" not in str(os.listdir(f"{rig.cri.state}/sandboxes"))


def test_a_stubborn_container_is_killed_after_its_grace_period_and_holds_nobody_up(rig: Rig) -> None:
    for number in range(5):
        rig.create(
            f"stubborn-{number}", shell("trap '' TERM; while :; do sleep 0.1; done"), terminationGracePeriodSeconds=3
        )
    for number in range(5):
        rig.ready(f"stubborn-{number}")
    started = time.monotonic()
    for number in range(5):
        rig.client.delete(PODS, f"stubborn-{number}", "default")
    rig.create("meanwhile", web(80))
    rig.ready("meanwhile")
    assert time.monotonic() - started < 2.5
    for number in range(5):
        rig.gone(f"stubborn-{number}")
    assert time.monotonic() - started >= 2.5
    rig.delete("meanwhile")


def test_the_environment_holds_services_fields_and_config_maps(rig: Rig) -> None:
    rig.client.create(
        SERVICES,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "vote-back", "namespace": "default"},
            "spec": {"ports": [{"port": 6379, "name": "redis"}], "selector": {"app": "back"}},
        },
    )
    ip = rig.client.get(SERVICES, "vote-back", "default").spec.cluster_ip
    rig.client.create(
        CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "cfg", "namespace": "default"},
            "data": {"k": "v"},
        },
    )
    env = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "cfg", "key": "k"}}},
        {"name": "BOTH", "value": "$(NODE)/$(VOTE_BACK_SERVICE_PORT)"},
    ]
    time.sleep(0.3)  # the Service has to have reached the kubelet
    rig.create("env", host("env", env=env, envFrom=[{"configMapRef": {"name": "cfg"}}]), restartPolicy="Never")
    pod = rig.phase("env", "Succeeded")
    found = dict(line.split("=", 1) for line in rig.output("env"))
    assert found["VOTE_BACK_SERVICE_HOST"] == ip
    assert found["VOTE_BACK_SERVICE_PORT_REDIS"] == "6379"
    assert found["VOTE_BACK_PORT"] == f"tcp://{ip}:6379"
    assert found["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert (found["NODE"], found["HOST_IP"], found["KEY"], found["k"]) == (NODE, NODE_IP, "v", "v")
    assert found["BOTH"] == f"{NODE}/6379"
    assert found["HOSTNAME"] == "env"
    assert found["POD_IP"].startswith("10.244.1.")
    assert pod.status.pod_ip == found["POD_IP"]
    rig.delete("env")


def test_init_containers_run_one_after_the_other_before_the_others(rig: Rig) -> None:
    inits = [shell(f"date +%s%N; sleep 0.2; echo {name}", name=name) for name in ("one", "two")]
    rig.create("init", shell("date +%s%N; sleep 1000"), initContainers=inits)
    rig.ready("init")
    starts = [int(rig.output("init", name)[0]) for name in ("one", "two", "app")]
    assert starts[1] - starts[0] > 200_000_000
    assert starts[2] - starts[1] > 200_000_000
    pod = rig.pod("init")
    assert [one.state["terminated"]["reason"] for one in pod.status.init_container_statuses] == ["Completed"] * 2
    rig.delete("init", grace=1)


def test_a_failing_init_container_keeps_the_pod_pending(rig: Rig) -> None:
    rig.create("stuck", web(), initContainers=[shell("exit 1", name="first")])
    until(lambda: rig.state("stuck", "first").get("waiting", {}).get("reason") == "CrashLoopBackOff", what="back-off")
    pod = rig.pod("stuck")
    assert pod.status.phase == "Pending"
    assert pod.status.container_statuses[0].state["waiting"]["reason"] == "PodInitializing"
    rig.delete("stuck")


def test_a_container_that_keeps_ending_is_restarted_and_then_waits(rig: Rig) -> None:
    rig.create("crash", shell("echo run; exit 3"))
    until(lambda: rig.state("crash").get("waiting", {}).get("reason") == "CrashLoopBackOff", what="back-off")
    (status,) = rig.pod("crash").status.container_statuses
    assert status.restart_count in (1, 2)  # on a busy machine ten seconds are soon over
    wanted = f"back-off {status.restart_count * 10}s restarting failed container=app pod=crash_default("
    assert status.state["waiting"]["message"].startswith(wanted)
    assert status.last_state["terminated"]["exitCode"] == 3
    assert rig.pod("crash").status.phase == "Running"
    assert not rig.pod("crash").ready
    assert "Back-off restarting failed container app" in rig.event("crash", "BackOff")
    rig.delete("crash")


@pytest.mark.parametrize(
    ("policy", "script", "phase"),
    [("Never", "exit 0", "Succeeded"), ("Never", "exit 4", "Failed"), ("OnFailure", "exit 0", "Succeeded")],
)
def test_a_pod_that_ends_keeps_its_log_and_gives_its_address_back(
    rig: Rig, policy: str, script: str, phase: str
) -> None:
    name = f"{policy}-{phase}".lower()
    rig.create(name, shell(f"echo done; {script}"), restartPolicy=policy)
    pod = rig.phase(name, phase)
    assert rig.output(name) == ["done"]
    until(lambda: pod.status.pod_ip not in held(rig), what="the address to be free")
    assert rig.pod(name).status.phase == phase
    assert not rig.pod(name).ready
    rig.delete(name)


def test_what_is_not_honoured_is_said_once_on_the_pod(rig: Rig) -> None:
    probe = {"httpGet": {"path": "/", "port": 80}}
    rig.create(
        "asks-much",
        web(livenessProbe=probe, resources={"limits": {"cpu": "1"}}),
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    rig.ready("asks-much")
    message = rig.event("asks-much", "NotHonoured")
    assert message == "podwire does not honour: volumes (data); livenessProbe, resources of container app"
    assert [kind for kind, reason, _ in rig.events("asks-much") if reason == "NotHonoured"] == ["Warning"]
    rig.delete("asks-much")


def test_a_configuration_that_cannot_be_resolved_is_the_reason_it_waits(rig: Rig) -> None:
    env = [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "k"}}}]
    rig.create("waits", host("sleep", "1000", env=env))
    until(
        lambda: rig.state("waits").get("waiting", {}).get("reason") == "CreateContainerConfigError", what="the reason"
    )
    assert rig.state("waits")["waiting"]["message"] == 'configmap "later" not found'
    assert rig.event("waits", "Failed") == 'Error: configmap "later" not found'
    rig.client.create(
        CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "later", "namespace": "default"},
            "data": {"k": "v"},
        },
    )
    rig.ready("waits")
    rig.delete("waits", grace=1)


def test_a_command_that_does_not_exist_is_said(rig: Rig) -> None:
    rig.create("nope", host("no-such-program"))
    until(lambda: rig.state("nope").get("waiting", {}).get("reason") == "CrashLoopBackOff", what="back-off")
    last = rig.pod("nope").status.container_statuses[0].last_state["terminated"]
    assert (last["reason"], last["exitCode"]) == ("StartError", 128)
    assert 'exec: "no-such-program": executable file not found in $PATH' in rig.event("nope", "Failed")
    rig.delete("nope")


def test_a_failing_network_is_an_event_with_the_plugins_message_and_heals(rig: Rig) -> None:
    path = f"{rig.node.root}/run/flannel/subnet.env"
    os.rename(path, f"{path}.away")
    rig.create("unwired", web())
    message = rig.event("unwired", "FailedCreatePodSandBox")
    assert message.startswith(
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for"
    )
    assert "/run/flannel/subnet.env" in message
    assert rig.pod("unwired").status.phase == "Pending"
    until(lambda: len([one for one in rig.events("unwired") if one[1] == "FailedCreatePodSandBox"]) > 1, what="a retry")
    assert len([one for one in rig.events("unwired") if one[1] == "StandIn"]) == 1
    os.rename(f"{path}.away", path)
    rig.ready("unwired")
    rig.delete("unwired")


def test_a_changed_image_restarts_the_container(rig: Rig) -> None:
    rig.create("patched", web())
    rig.ready("patched")
    body = {"spec": {"containers": [{"name": "app", "image": "nginx:1.27"}]}}
    rig.client.patch(PODS, "patched", body, "default", patch_type="strategic")
    until(lambda: rig.pod("patched").status.container_statuses[0].image_id.endswith("nginx:1.27"), what="the new image")
    assert rig.pod("patched").status.container_statuses[0].restart_count == 1
    assert "definition changed" in rig.event("patched", "Killing")
    rig.delete("patched")


def test_a_pod_on_the_hosts_network_has_the_nodes_address(rig: Rig) -> None:
    rig.create("on-host", web(8088), hostNetwork=True)
    assert rig.ready("on-host").status.pod_ip == NODE_IP
    assert json.loads(rig.node.run("curl", "-s", "-m", "5", "127.0.0.1:8088").stdout)["pod"] == "on-host"
    rig.delete("on-host")


def test_a_lost_sandbox_is_replaced(rig: Rig) -> None:
    rig.create("robbed", web())
    first = rig.ready("robbed")
    (box,) = (one.id for one in rig.cri.call("ListPodSandbox").items if one.metadata.name == "robbed")
    rig.node.run("umount", f"/run/podwire/cri/netns/{box}")
    # Nobody tells: it is seen at the next look, which any change brings about.
    rig.client.patch(PODS, "robbed", {"metadata": {"labels": {"look": "again"}}}, "default")
    until(
        lambda: rig.pod("robbed").status.container_statuses[0].restart_count == 1 and rig.pod("robbed").ready, what="it"
    )
    assert rig.event("robbed", "SandboxChanged").startswith("Pod sandbox changed")
    assert rig.pod("robbed").metadata.uid == first.metadata.uid
    rig.delete("robbed")


def test_a_pod_deleted_by_force_is_ended_too(rig: Rig) -> None:
    rig.create("forced", host("sleep", "1000"), terminationGracePeriodSeconds=2)
    ip = rig.ready("forced").status.pod_ip
    rig.client.delete(PODS, "forced", "default", grace_seconds=0)
    assert rig.pod("forced") is None
    until(lambda: ip not in held(rig), what="its address to be free")
    # The name can be used again at once, by a pod with another uid.
    rig.create("forced", web())
    rig.ready("forced")
    rig.delete("forced")


def test_nothing_is_left_when_all_pods_are_gone(rig: Rig) -> None:
    assert held(rig) == []
    for folder in ("netns", "sandboxes", "containers"):
        assert os.listdir(f"{rig.cri.state}/{folder}") == []
    with rig.node.rtnl() as rtnl:
        assert {link.name for link in rtnl.links()} <= {"lo", "cni0", "bond0", "sit0", "tunl0"}
    with pytest.raises(ApiNotFound):
        rig.client.get(PODS, "web", "default")
