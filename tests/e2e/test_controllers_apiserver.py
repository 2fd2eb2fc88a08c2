"""The controllers against podwire's API server, kubectl judging."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from control_plane import ControlPlane, running, until

from podwire.kube.kinds import CONFIG_MAPS, DEPLOYMENTS, ENDPOINT_SLICES, LEASES, NODES, PODS, REPLICA_SETS, SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    yield from running(tmp_path)


def cidrs(plane: ControlPlane) -> dict[str, str]:
    return {node.key: node.spec.pod_cidr for node in plane.client.list(NODES).items}


def pods(plane: ControlPlane, **labels: str) -> list[Any]:
    selector = ",".join(f"{name}={value}" for name, value in labels.items())
    return plane.client.list(PODS, "default", label_selector=selector or None).items


def endpoints(plane: ControlPlane, service: str) -> list[Any]:
    selector = f"kubernetes.io/service-name={service}"
    slices = plane.client.list(ENDPOINT_SLICES, "default", label_selector=selector).items
    return [endpoint for piece in slices for endpoint in piece.endpoints]


# node IPAM


def test_nodes_get_disjoint_pod_cidrs_and_give_them_back(plane: ControlPlane) -> None:
    for name in ("a", "b", "c"):
        plane.add_node(name)
    plane.add_node("own", pod_cidr="10.244.1.0/24")
    plane.start_manager("nodeipam")
    until(lambda: all(cidrs(plane).values()))
    assert cidrs(plane) == {"a": "10.244.0.0/24", "b": "10.244.2.0/24", "c": "10.244.3.0/24", "own": "10.244.1.0/24"}
    plane.client.delete(NODES, "b")
    plane.add_node("b")
    until(lambda: cidrs(plane)["b"])
    assert cidrs(plane)["b"] == "10.244.4.0/24", "not the one it had: another Node is another Node"


def test_two_hundred_nodes_at_once_get_two_hundred_pod_cidrs(plane: ControlPlane) -> None:
    plane.start_manager("nodeipam")
    for number in range(200):
        plane.client.create(NODES, {"metadata": {"name": f"n{number:03}"}})
    until(lambda: all(cidrs(plane).values()), 20)
    assert len(set(cidrs(plane).values())) == 200


def test_a_full_range_is_an_event_and_a_node_that_goes_lets_the_next_in(plane: ControlPlane) -> None:
    plane.start_manager("nodeipam", cluster_cidr="10.244.0.0/28", node_cidr_mask_size=30)
    for name in ("a", "b", "c", "d", "e"):
        plane.client.create(NODES, {"metadata": {"name": name}})
    (event,) = until(lambda: plane.events("CIDRNotAvailable"))
    assert (event.type, event.source.component, event.involved_object.name) == ("Normal", "cidrAllocator", "e")
    assert event.message == "Node e status is now: CIDRNotAvailable"
    freed = cidrs(plane)["b"]
    started = time.monotonic()
    plane.client.delete(NODES, "b")
    until(lambda: cidrs(plane)["e"])
    assert cidrs(plane)["e"] == freed
    assert time.monotonic() - started < 1.0


def test_a_shared_pod_cidr_is_warned_of_and_never_given_to_a_third(plane: ControlPlane) -> None:
    plane.start_manager("nodeipam", cluster_cidr="10.244.0.0/28", node_cidr_mask_size=30)
    plane.client.create(NODES, {"metadata": {"name": "a"}})
    until(lambda: cidrs(plane)["a"])
    plane.add_node("twin", pod_cidr="10.244.0.0/30")
    (event,) = until(lambda: plane.events("CIDRDuplicate"))
    assert (event.type, event.involved_object.name) == ("Warning", "twin")
    plane.client.delete(NODES, "a")
    for name in ("b", "c", "d", "e"):
        plane.client.create(NODES, {"metadata": {"name": name}})
    until(lambda: plane.events("CIDRNotAvailable"))
    held = cidrs(plane)
    assert held.pop("e") == ""
    assert len(set(held.values())) == 4


def test_another_cluster_cidr_leaves_old_nodes_alone_and_serves_new_ones(plane: ControlPlane) -> None:
    first = plane.start_manager("nodeipam")
    plane.client.create(NODES, {"metadata": {"name": "a"}})
    plane.client.create(NODES, {"metadata": {"name": "b"}})
    until(lambda: all(cidrs(plane).values()))
    first.set()
    plane.start_manager("nodeipam", cluster_cidr="10.50.0.0/16")
    until(lambda: len(plane.events("CIDROutOfRange")) == 2)
    plane.client.delete(NODES, "a")
    plane.client.create(NODES, {"metadata": {"name": "a"}})
    until(lambda: cidrs(plane)["a"])
    assert cidrs(plane) == {"a": "10.50.0.0/24", "b": "10.244.1.0/24"}


def test_an_api_that_is_killed_delays_and_nothing_more(plane: ControlPlane) -> None:
    plane.start_manager("nodeipam")
    plane.client.create(NODES, {"metadata": {"name": "a"}})
    until(lambda: cidrs(plane)["a"])
    plane.server.stop(kill=True)
    plane.server.start()
    plane.client.create(NODES, {"metadata": {"name": "b"}})
    until(lambda: cidrs(plane)["b"], 20)
    assert cidrs(plane) == {"a": "10.244.0.0/24", "b": "10.244.1.0/24"}


# Scheduler


def test_pods_of_one_owner_are_spread_over_the_ready_nodes(plane: ControlPlane) -> None:
    for name in ("a", "b", "c"):
        plane.add_node(name)
    plane.add_node("down", ready=False)
    plane.start_manager("scheduler,deployment")
    plane.kubectl("create", "deployment", "web", "--image=web", "--replicas=6")
    until(lambda: len([pod for pod in pods(plane, app="web") if pod.spec.node_name]) == 6)
    assert sorted(pod.spec.node_name for pod in pods(plane, app="web")) == ["a", "a", "b", "b", "c", "c"]
    (event,) = [e for e in plane.events("Scheduled") if e.involved_object.name == pods(plane)[0].metadata.name]
    pod = pods(plane)[0]
    assert event.message == f"Successfully assigned {pod.key} to {pod.spec.node_name}"


def test_a_pod_that_fits_nowhere_says_why_and_is_scheduled_when_it_does(plane: ControlPlane) -> None:
    plane.start_manager("scheduler")
    plane.client.create(PODS, pod_body("a"))
    until(lambda: [e for e in plane.events("FailedScheduling") if e.message == "no nodes available to schedule pods"])
    plane.add_node("n1", ready=False)
    plane.add_node("n2", ready=False)
    message = "0/2 nodes are available: 2 node(s) were not ready."
    until(lambda: [e for e in plane.events("FailedScheduling") if e.message == message])
    (condition,) = until(
        lambda: [c for c in plane.client.get(PODS, "a", "default").status.conditions if c.message == message]
    )
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")
    plane.node_status("n2", ready=True)
    until(lambda: plane.client.get(PODS, "a", "default").spec.node_name == "n2")


def test_selectors_taints_and_other_schedulers_are_respected(plane: ControlPlane) -> None:
    plane.add_node("plain")
    plane.add_node("fast", labels={"disk": "ssd"})
    plane.add_node("tainted")
    plane.kubectl("taint", "node", "tainted", "gpu=yes:NoSchedule")
    plane.kubectl("cordon", "plain")
    plane.start_manager("scheduler")
    plane.client.create(PODS, pod_body("picky", nodeSelector={"disk": "ssd"}))
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    plane.client.create(PODS, pod_body("tolerant", tolerations=tolerations, nodeSelector={"kubernetes.io/x": "y"}))
    plane.client.create(PODS, pod_body("foreign", schedulerName="mine"))
    until(lambda: plane.client.get(PODS, "picky", "default").spec.node_name == "fast")
    until(lambda: plane.events("FailedScheduling"))
    assert plane.events("FailedScheduling")[0].message == (
        "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector."
    )
    plane.kubectl("label", "node", "tainted", "kubernetes.io/x=y")
    until(lambda: plane.client.get(PODS, "tolerant", "default").spec.node_name == "tainted")
    assert plane.client.get(PODS, "foreign", "default").spec.node_name == ""


def pod_body(name: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "web", "ports": [{"containerPort": 8080, "name": "http"}]}]
    meta = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"metadata": meta, "spec": {"containers": containers, **spec}}


# Deployments


@pytest.fixture
def cluster(plane: ControlPlane) -> Any:
    """Three nodes, kubelets, all controllers but routes."""
    for name in ("a", "b", "c"):
        plane.add_node(name)
    plane.start_manager("*,-route,-nodelifecycle")
    until(lambda: all(cidrs(plane).values()))
    plane.kubelets = plane.start_kubelets()  # type: ignore[attr-defined]  # for the tests that turn its knobs
    return plane


def test_a_deployment_comes_up_and_kubectl_says_so(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=3")
    assert "successfully rolled out" in cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    line = cluster.kubectl("get", "deployment", "web", "--no-headers").split()
    assert line[:4] == ["web", "3/3", "3", "3"]
    (replica_set,) = cluster.client.list(REPLICA_SETS, "default").items
    digest = replica_set.metadata.labels["pod-template-hash"]
    assert replica_set.metadata.name == f"web-{digest}"
    for pod in pods(cluster, app="web"):
        assert pod.metadata.name.startswith(f"web-{digest}-")
        assert len(pod.metadata.name) == len(f"web-{digest}-abcde")
        assert pod.metadata.labels["pod-template-hash"] == digest
        assert (pod.metadata.controller.kind, pod.metadata.controller.name) == ("ReplicaSet", replica_set.metadata.name)
    deployment = json.loads(cluster.kubectl("get", "deployment", "web", "-o", "json"))
    reasons = {c["type"]: (c["status"], c["reason"]) for c in deployment["status"]["conditions"]}
    assert reasons == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    assert "unavailableReplicas" not in deployment["status"]
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"


def test_a_rolling_update_never_has_too_few_or_too_many_pods(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web:1", "--replicas=4")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    seen: list[tuple[int, int]] = []

    def look() -> bool:
        alive = [pod for pod in pods(cluster, app="web") if not pod.terminating]
        seen.append((len(alive), sum(pod.ready for pod in alive)))
        return {pod.spec.containers[0].image for pod in alive} == {"web:2"} and len(alive) == 4

    cluster.kubectl("set", "image", "deployment/web", "web=web:2")
    until(look, 20)
    assert "successfully rolled out" in cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert max(total for total, _ in seen) <= 5
    assert min(ready for _, ready in seen) >= 3
    assert "REVISION" in cluster.kubectl("rollout", "history", "deployment/web")
    cluster.kubectl("rollout", "undo", "deployment/web")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert {pod.spec.containers[0].image for pod in pods(cluster, app="web") if not pod.terminating} == {"web:1"}
    deployment = cluster.client.get(DEPLOYMENTS, "web", "default")
    assert deployment.metadata.annotations["deployment.kubernetes.io/revision"] == "3"
    assert len(cluster.client.list(REPLICA_SETS, "default").items) == 2


def test_recreate_ends_all_old_pods_before_the_first_new_one(cluster: ControlPlane) -> None:
    deployment = {
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    }
    cluster.client.create(DEPLOYMENTS, deployment)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    cluster.kubectl("set", "image", "deployment/web", "web=web:2")

    def look() -> bool:
        images = {pod.spec.containers[0].image for pod in pods(cluster, app="web")}
        assert len(images) < 2, "old and new at once"
        return images == {"web:2"}

    until(look, 20)
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")


def test_scaling_pausing_and_resuming_do_what_they_say(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    cluster.kubectl("scale", "deployment/web", "--replicas=5")
    until(lambda: len(pods(cluster, app="web")) == 5)
    cluster.kubectl("rollout", "pause", "deployment/web")
    cluster.kubectl("set", "image", "deployment/web", "web=web:2")
    cluster.kubectl("scale", "deployment/web", "--replicas=1")
    until(lambda: len(pods(cluster, app="web")) == 1)
    assert pods(cluster, app="web")[0].spec.containers[0].image == "web:1"
    cluster.kubectl("rollout", "resume", "deployment/web")
    until(lambda: [p.spec.containers[0].image for p in pods(cluster, app="web") if not p.terminating] == ["web:2"])


def test_fifty_pods_come_without_one_too_many(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=50")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=30s")
    assert len(cluster.events("SuccessfulDelete")) == 0
    assert len(pods(cluster, app="web")) == 50


def test_a_deleted_pod_is_replaced_and_a_relabelled_one_is_let_go(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=2")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    first, second = pods(cluster, app="web")
    cluster.kubectl("delete", "pod", first.metadata.name, "--wait=false")
    until(lambda: len([p for p in pods(cluster, app="web") if p.ready and p.metadata.uid != first.metadata.uid]) == 2)
    cluster.kubectl("label", "pod", second.metadata.name, "app=other", "--overwrite")
    until(lambda: len([p for p in pods(cluster, app="web") if p.ready]) == 2)
    free = cluster.client.get(PODS, second.metadata.name, "default")
    assert free.metadata.controller is None
    cluster.kubectl("label", "pod", second.metadata.name, "app=web", "--overwrite")
    until(lambda: len([p for p in pods(cluster, app="web") if not p.terminating]) == 2)


def test_the_history_of_a_deployment_is_limited(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web:0")
    cluster.kubectl("patch", "deployment", "web", "--type=merge", "-p", '{"spec":{"revisionHistoryLimit":1}}')
    for number in range(1, 4):
        cluster.kubectl("set", "image", "deployment/web", f"web=web:{number}")
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    until(lambda: len(cluster.client.list(REPLICA_SETS, "default").items) == 2)


# EndpointSlices


def test_endpoints_follow_pods_within_a_tenth_of_a_second(cluster: ControlPlane) -> None:
    cluster.client.create(SERVICES, service("web", {"app": "web"}, targetPort="http"))
    assert endpoints(cluster, "web") == []
    cluster.client.create(PODS, pod_body("web", nodeName="a"))
    (endpoint,) = until(lambda: endpoints(cluster, "web"))
    until(lambda: endpoints(cluster, "web")[0].conditions.ready)
    delays = []
    pod = cluster.client.get(PODS, "web", "default")
    for ready in (False, True, False, True, False, True):
        cluster.kubelets.report(pod, ready=ready)  # type: ignore[attr-defined]  # see `cluster`
        start = time.monotonic()
        until(lambda ready=ready: endpoints(cluster, "web")[0].conditions.ready is ready)
        delays.append(time.monotonic() - start)
    assert sorted(delays)[len(delays) // 2] < 0.1
    (piece,) = cluster.client.list(ENDPOINT_SLICES, "default", label_selector="kubernetes.io/service-name=web").items
    assert piece.metadata.labels["endpointslice.kubernetes.io/managed-by"] == "endpointslice-controller.k8s.io"
    assert (piece.metadata.controller.kind, piece.metadata.controller.name) == ("Service", "web")
    assert piece.metadata.name.startswith("web-")
    assert [(port.name, port.port, port.protocol) for port in piece.ports] == [("", 8080, "TCP")]
    assert (endpoint.node_name, endpoint.target_ref.name) == ("a", "web")


def test_a_terminating_pod_is_serving_but_not_ready(cluster: ControlPlane) -> None:
    cluster.client.create(SERVICES, service("web", {"app": "web"}))
    cluster.client.create(PODS, pod_body("web", nodeName="b"))
    until(lambda: [e for e in endpoints(cluster, "web") if e.conditions.ready])
    cluster.kubelets.silent.add("b")  # type: ignore[attr-defined]  # see `cluster`
    cluster.client.delete(PODS, "web", "default", grace_seconds=30)
    (endpoint,) = until(lambda: [e for e in endpoints(cluster, "web") if e.conditions.terminating])
    assert (endpoint.conditions.ready, endpoint.conditions.serving) == (False, True)
    cluster.client.delete(PODS, "web", "default", grace_seconds=0)
    until(lambda: not endpoints(cluster, "web"))


def test_slices_hold_a_hundred_and_others_are_left_alone(cluster: ControlPlane) -> None:
    foreign = {
        "metadata": {"name": "mine", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.1"]}],
        "ports": [],
    }
    cluster.client.create(ENDPOINT_SLICES, foreign)
    cluster.client.create(SERVICES, service("web", {"app": "web"}))
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=130")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    until(lambda: len([e for e in endpoints(cluster, "web") if e.conditions.ready]) == 130)
    slices = {s.metadata.name: len(s.endpoints) for s in cluster.client.list(ENDPOINT_SLICES, "default").items}
    assert slices.pop("mine") == 1
    slices.pop("kubernetes", None)
    assert sorted(slices.values()) == [30, 100]
    cluster.client.delete(SERVICES, "web", "default")
    until(lambda: not [n for n in names(cluster, ENDPOINT_SLICES) if n.startswith("web-")])
    assert "mine" in names(cluster, ENDPOINT_SLICES)


def service(name: str, selector: dict[str, str], **port: Any) -> dict[str, Any]:
    ports = [{"port": 80, **port}]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"selector": selector, "ports": ports}}


def names(plane: ControlPlane, kind: Any) -> list[str]:
    return [obj.metadata.name for obj in plane.client.list(kind, "default").items]


# Garbage collection


def test_deleting_a_deployment_empties_everything_below_it(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=3")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    cluster.kubectl("delete", "deployment", "web")
    until(lambda: not names(cluster, REPLICA_SETS) and not names(cluster, PODS))


def test_foreground_deletion_keeps_the_owner_until_its_dependents_are_gone(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=2")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    cluster.kubelets.silent.update("abc")  # type: ignore[attr-defined]  # see `cluster`
    cluster.kubectl("delete", "deployment", "web", "--cascade=foreground", "--wait=false")
    until(lambda: all(pod.terminating for pod in pods(cluster, app="web")))
    time.sleep(0.3)
    assert names(cluster, DEPLOYMENTS) == ["web"]
    assert len(names(cluster, REPLICA_SETS)) == 1
    for pod in pods(cluster, app="web"):
        cluster.client.delete(PODS, pod.metadata.name, "default", grace_seconds=0)
    until(lambda: not names(cluster, DEPLOYMENTS) and not names(cluster, REPLICA_SETS))


def test_orphaning_leaves_the_pods_behind(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "deployment", "web", "--image=web", "--replicas=2")
    cluster.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    (name,) = names(cluster, REPLICA_SETS)
    cluster.kubectl("delete", "deployment", "web", "--cascade=orphan")
    until(lambda: cluster.client.get(REPLICA_SETS, name, "default").metadata.controller is None)
    cluster.kubectl("delete", "replicaset", name, "--cascade=orphan")
    until(lambda: not names(cluster, REPLICA_SETS))
    time.sleep(0.3)
    assert [pod.metadata.controller for pod in pods(cluster, app="web")] == [None, None]


def test_a_namespace_with_everything_in_it_goes(cluster: ControlPlane) -> None:
    cluster.kubectl("create", "namespace", "shop")
    cluster.kubectl("-n", "shop", "create", "deployment", "web", "--image=web", "--replicas=5")
    cluster.kubectl("-n", "shop", "expose", "deployment", "web", "--port=80")
    cluster.kubectl("-n", "shop", "rollout", "status", "deployment/web", "--timeout=20s")
    cluster.kubectl("delete", "namespace", "shop", "--timeout=20s")
    assert cluster.client.list(PODS, "shop").items == []
    assert cluster.client.list(ENDPOINT_SLICES, "shop").items == []


def test_the_lease_of_a_node_goes_with_it(plane: ControlPlane) -> None:
    plane.add_node("a")
    node = plane.client.get(NODES, "a")
    owner = {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": node.metadata.uid}
    plane.client.patch(LEASES, "a", {"metadata": {"ownerReferences": [owner]}}, "kube-node-lease")
    plane.start_manager("gc")
    plane.client.delete(NODES, "a")
    until(lambda: plane.client.list(LEASES, "kube-node-lease").items == [])


def test_an_object_whose_owner_never_was_is_collected_and_one_of_an_unknown_kind_is_not(cluster: ControlPlane) -> None:
    def owned(name: str, api: str, kind: str, uid: str) -> dict[str, Any]:
        owner = {"apiVersion": api, "kind": kind, "name": "x", "uid": uid}
        return {"metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]}}

    lives = cluster.client.create(CONFIG_MAPS, {"metadata": {"name": "x", "namespace": "default"}})
    cluster.client.create(CONFIG_MAPS, owned("kept", "v1", "ConfigMap", lives.metadata.uid))
    cluster.client.create(CONFIG_MAPS, owned("dangling", "v1", "ConfigMap", "00000000-0000-0000-0000-000000000000"))
    cluster.client.create(
        CONFIG_MAPS, owned("foreign", "example.org/v1", "Thing", "11111111-0000-0000-0000-000000000000")
    )
    until(lambda: "dangling" not in names(cluster, CONFIG_MAPS))
    time.sleep(0.2)
    assert {"x", "kept", "foreign"} <= set(names(cluster, CONFIG_MAPS))


def test_pods_of_a_node_that_is_gone_are_deleted(plane: ControlPlane) -> None:
    from podwire.controllers import podgc

    assert podgc.QUARANTINE_SECONDS == 40.0
    plane.add_node("a")
    plane.start_manager("podgc", pod_gc_quarantine=0.5)
    plane.client.create(PODS, pod_body("lost", nodeName="a"))
    plane.client.create(PODS, pod_body("never", nodeName="nowhere"))
    until(lambda: names(plane, PODS) == ["lost"])
    plane.client.delete(NODES, "a")
    until(lambda: names(plane, PODS) == [])


# Node lifecycle


def test_a_silent_kubelet_makes_the_node_unknown_and_its_pods_unready(plane: ControlPlane) -> None:
    plane.add_node("a")
    plane.add_node("b")
    plane.start_kubelets()
    plane.start_manager("nodelifecycle,endpointslice", node_monitor_grace_period=1.0)
    plane.client.create(SERVICES, service("web", {"app": "web"}))
    plane.client.create(PODS, pod_body("web", nodeName="a"))
    until(lambda: [e for e in endpoints(plane, "web") if e.conditions.ready])

    def a_is_unknown() -> bool:
        plane.heartbeat("b")
        time.sleep(0.1)
        (condition,) = plane.client.get(NODES, "a").status.conditions
        return (condition.status, condition.reason, condition.message) == (
            "Unknown",
            "NodeStatusUnknown",
            "Kubelet stopped posting node status.",
        )

    until(a_is_unknown)
    until(lambda: not endpoints(plane, "web")[0].conditions.ready)
    assert plane.client.get(NODES, "b").ready


# Through failures


def test_rollouts_end_right_though_the_api_and_the_manager_are_killed_again_and_again(plane: ControlPlane) -> None:
    for name in ("a", "b", "c"):
        plane.add_node(name)
    stop = plane.start_manager("*,-route,-nodelifecycle")
    plane.start_kubelets()
    plane.client.create(SERVICES, service("web", {"app": "web"}))
    plane.kubectl("create", "deployment", "web", "--image=web:0", "--replicas=12")
    for number in range(1, 5):
        plane.kubectl("set", "image", "deployment/web", f"web=web:{number}")
        time.sleep(0.05 * number)
        if number % 2:
            plane.server.stop(kill=True)
            plane.server.start()
        else:
            stop.set()
            stop = plane.start_manager("*,-route,-nodelifecycle")
    until(lambda: all_new(plane, "web:4", 12), 60, "the rollout")
    assert "successfully rolled out" in plane.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    expected = sorted(pod.addresses[0] for pod in pods(plane, app="web"))
    until(lambda: sorted(e.addresses[0] for e in endpoints(plane, "web") if e.conditions.ready) == expected)
    owners = {pod.metadata.controller.name for pod in pods(plane, app="web")}
    assert len(owners) == 1
    held = [cidr for cidr in cidrs(plane).values() if cidr]
    assert len(set(held)) == 3


def all_new(plane: ControlPlane, image: str, count: int) -> bool:
    found = pods(plane, app="web")
    return len(found) == count and all(pod.ready and pod.spec.containers[0].image == image for pod in found)


# The process


def test_the_process_starts_and_ends_cleanly(plane: ControlPlane) -> None:
    command = [
        sys.executable, "-m", "podwire", "controller-manager", "--kubeconfig", plane.server.kubeconfig,
        "--controllers=*,-route", "--cluster-cidr=10.244.0.0/16", "--health-bind-address=127.0.0.1:0",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(2)]
        assert "INFO controller-manager started controllers=nodeipam,scheduler,deployment,replicaset" in lines[0]
        assert "INFO controller-manager synced seconds=" in lines[1]
        start = time.monotonic()
        process.terminate()
        rest = process.stderr.read()
        assert process.wait(5) == 0, rest
        assert time.monotonic() - start < 2.0
    assert rest.splitlines()[-1].endswith("INFO controller-manager stopped")


def test_wrong_use_is_one_line_and_status_two(tmp_path: Path) -> None:
    for arguments, word in (
        (["--controllers=nodeipan"], "nodeipan"),
        (["--controllers=gc", "--kubeconfig=/none"], "/none"),
    ):
        command = [sys.executable, "-m", "podwire", "controller-manager", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert word in done.stderr
