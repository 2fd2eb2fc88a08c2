"""Which node a pod goes to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.controllers.scheduling import is_ours, place, tolerates
from podwire.kube.kinds import NODES, PODS
from podwire.kube.objects import Node, Pod, Taint, Toleration

pytestmark = pytest.mark.unit


def node(name: str, *, ready: bool = True, labels: dict[str, str] | None = None, **spec: Any) -> Node:
    status = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return NODES.convert({"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status})


def pod(name: str, owner: str = "", **spec: Any) -> Pod:
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        meta["ownerReferences"] = [reference]
    return PODS.convert({"metadata": meta, "spec": spec})


def test_the_node_with_fewest_pods_of_the_same_owner_is_chosen_then_the_emptiest_then_by_name() -> None:
    nodes = [node("c"), node("b"), node("a")]
    assert place(pod("p", "rs"), nodes, []).node == "a"
    crowd = [(pod("1", "rs"), "a"), (pod("2", "other"), "b"), (pod("3", "other"), "b"), (pod("4", "other"), "c")]
    assert place(pod("p", "rs"), nodes, crowd).node == "c"
    assert place(pod("p"), nodes, crowd).node == "a"


def test_pods_that_have_ended_take_no_room() -> None:
    ended = PODS.convert({"metadata": {"name": "x", "uid": "x"}, "status": {"phase": "Succeeded"}})
    assert place(pod("p"), [node("a"), node("b")], [(ended, "a")]).node == "a"


@pytest.mark.parametrize(
    ("nodes", "spec", "message"),
    [
        ([], {}, "no nodes available to schedule pods"),
        ([node(n, ready=False) for n in "abc"], {}, "0/3 nodes are available: 3 node(s) were not ready."),
        ([node("a", unschedulable=True)], {}, "0/1 nodes are available: 1 node(s) were unschedulable."),
        (
            [node("a", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]), node("b")],
            {"nodeSelector": {"disk": "ssd"}},
            (
                "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
                "1 node(s) had untolerated taint {gpu: yes}."
            ),
        ),
    ],
)
def test_a_pod_that_fits_nowhere_gets_the_schedulers_words(nodes: list[Node], spec: dict, message: str) -> None:
    placement = place(pod("p", **spec), nodes, [])
    assert (placement.node, placement.message) == ("", message)


@pytest.mark.parametrize(
    ("taints", "tolerations", "fits"),
    [
        ([("k", "v", "NoSchedule")], [], False),
        ([("k", "v", "NoExecute")], [], False),
        ([("k", "v", "PreferNoSchedule")], [], True),
        ([("k", "v", "NoSchedule")], [{"key": "k", "value": "v"}], True),
        ([("k", "v", "NoSchedule")], [{"key": "k", "value": "w"}], False),
        ([("k", "v", "NoSchedule")], [{"key": "k", "operator": "Exists"}], True),
        ([("k", "v", "NoSchedule")], [{"operator": "Exists"}], True),
        ([("k", "v", "NoSchedule")], [{"key": "k", "operator": "Exists", "effect": "NoExecute"}], False),
        ([("k", "v", "NoSchedule"), ("l", "", "NoSchedule")], [{"key": "k", "operator": "Exists"}], False),
    ],
)
def test_taints_keep_pods_off_that_do_not_tolerate_them(taints: list, tolerations: list, fits: bool) -> None:
    tainted = node("a", taints=[{"key": key, "value": value, "effect": effect} for key, value, effect in taints])
    assert bool(place(pod("p", tolerations=tolerations), [tainted], []).node) is fits


@pytest.mark.parametrize(
    ("broken", "key"),
    [(node("a", ready=False), "not-ready"), (node("a", unschedulable=True), "unschedulable")],
)
def test_a_pod_may_tolerate_that_a_node_is_not_ready_or_closed(broken: Node, key: str) -> None:
    tolerations = [{"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoSchedule"}]
    assert place(pod("p", tolerations=tolerations), [broken], []).node == "a"


def test_two_pods_do_not_get_the_same_host_port() -> None:
    def web(name: str, ip: str = "", **more: Any) -> Pod:
        ports = [{"containerPort": 80, "hostPort": 8080, "hostIP": ip}]
        return pod(name, containers=[{"name": "c", "ports": ports}], **more)

    placement = place(web("p"), [node("a")], [(web("q"), "a")])
    assert placement.message.endswith("1 node(s) didn't have free ports for the requested pod ports.")
    assert place(web("p", "10.0.0.1"), [node("a")], [(web("q", "10.0.0.2"), "a")]).node == "a"
    assert place(web("p", "10.0.0.1"), [node("a")], [(web("q"), "a")]).node == ""
    host = pod("h", hostNetwork=True, containers=[{"name": "c", "ports": [{"containerPort": 8080}]}])
    assert place(host, [node("a")], [(web("q"), "a")]).node == ""


@pytest.mark.parametrize(
    ("change", "ours"),
    [
        ({}, True),
        ({"schedulerName": "default-scheduler"}, True),
        ({"schedulerName": "mine"}, False),
        ({"nodeName": "a"}, False),
        ({"schedulingGates": [{"name": "wait"}]}, False),
    ],
)
def test_only_pods_that_wait_for_the_default_scheduler_are_ours(change: dict, ours: bool) -> None:
    assert is_ours(pod("p", **change)) is ours


@given(st.integers(1, 6), st.integers(1, 30))
def test_pods_of_one_owner_differ_by_at_most_one_a_node(nodes: int, count: int) -> None:
    available = [node(f"n{number}") for number in range(nodes)]
    placed: list[tuple[Pod, str]] = []
    for number in range(count):
        new = pod(f"p{number}", "rs")
        placed.append((new, place(new, available, placed).node))
    per_node = [sum(where == each.key for _, where in placed) for each in available]
    assert max(per_node) - min(per_node) <= 1


def test_an_empty_operator_means_equal() -> None:
    taint = Taint(key="k", value="v", effect="NoSchedule")
    assert tolerates([Toleration(key="k", operator="", value="v")], taint)
