"""Who belongs to whom, what is collected, and reading one's own writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from podwire.controllers import ownership, pods
from podwire.controllers.dependents import Fate, judge
from podwire.controllers.expectations import PATIENCE, Expectations
from podwire.controllers.gc import Graph
from podwire.controllers.nodelifecycle import unknown_conditions
from podwire.controllers.replicaset import pod_body, status_of
from podwire.controllers.routes import wanted_routes
from podwire.kube.kinds import NODES, PODS, REPLICA_SETS
from podwire.kube.meta import LabelSelector, OwnerReference
from podwire.kube.times import rfc3339

if TYPE_CHECKING:
    from podwire.kube.objects import Pod, ReplicaSet

pytestmark = pytest.mark.unit

NOW = 1_700_000_000.0


def pod(name: str, owner: str = "", *, deleted: bool = False, since: float | None = None, **more: Any) -> Pod:
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "labels": {"app": "web"}}
    if owner:
        meta["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        ]
    if deleted:
        meta["deletionTimestamp"] = rfc3339(NOW)
    meta |= more.pop("metadata", {})
    status = {"phase": "Running", **more.pop("status", {})}
    if since is not None:
        status["conditions"] = [{"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(since)}]
    return PODS.convert({"metadata": meta, "spec": more, "status": status})


def replica_set(replicas: int = 2, **spec: Any) -> ReplicaSet:
    template = {"metadata": {"labels": {"app": "web"}, "name": "ignored"}, "spec": {"containers": []}}
    return REPLICA_SETS.convert(
        {
            "metadata": {"name": "web-1", "namespace": "ns", "uid": "web-1", "generation": 4},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec},
        }
    )


# Claiming


def test_objects_are_owned_adopted_released_or_none_of_our_business() -> None:
    owned, orphan, foreign = pod("owned", "web-1"), pod("orphan"), pod("foreign", "other")
    lost = pod("lost", "web-1", metadata={"labels": {"app": "db"}})
    leaving = pod("leaving", deleted=True)
    found = ownership.claim(replica_set(), replica_set().spec.selector, [owned, orphan, foreign, lost, leaving])
    assert (found.owned, found.adopt, found.release) == ([owned], [orphan], [lost])


def test_an_owner_that_is_being_deleted_adopts_nothing() -> None:
    leaving = REPLICA_SETS.convert({"metadata": {"uid": "web-1", "deletionTimestamp": rfc3339(NOW)}})
    found = ownership.claim(leaving, msgspec.convert({"matchLabels": {"app": "web"}}, LabelSelector), [pod("orphan")])
    assert found.adopt == []


def test_a_pod_is_made_from_the_template_with_an_owner_and_a_name_of_the_servers_choice() -> None:
    body = pod_body(replica_set())
    assert body["metadata"]["generateName"] == "web-1-"
    assert "name" not in body["metadata"]
    assert body["metadata"]["labels"] == {"app": "web"}
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("ReplicaSet", "web-1", True)


def test_a_replica_set_counts_ready_and_available_pods() -> None:
    active = [pod("a", since=NOW - 100), pod("b", since=NOW - 4), pod("c")]
    status, changes_in = status_of(replica_set(minReadySeconds=10), active, "", NOW)
    counts = {name: status[name] for name in ("replicas", "readyReplicas", "availableReplicas", "observedGeneration")}
    assert counts == {"replicas": 3, "readyReplicas": 2, "availableReplicas": 1, "observedGeneration": 4}
    assert changes_in == 6.0
    _, changes_in = status_of(replica_set(), active, "", NOW)
    assert changes_in is None


# Which pods go first


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        (pod("a"), pod("b", nodeName="n")),
        (pod("a", nodeName="n", status={"phase": "Pending"}), pod("b", nodeName="n")),
        (pod("a", nodeName="n"), pod("b", nodeName="n", since=NOW)),
        (pod("a", nodeName="n", since=NOW), pod("b", nodeName="n", since=NOW - 50)),
        (
            pod("a", nodeName="n", status={"containerStatuses": [{"name": "c", "restartCount": 3}]}),
            pod("b", nodeName="n", status={"containerStatuses": [{"name": "c", "restartCount": 1}]}),
        ),
        (
            pod("b", nodeName="n", metadata={"creationTimestamp": rfc3339(NOW)}),
            pod("a", nodeName="n", metadata={"creationTimestamp": rfc3339(NOW - 60)}),
        ),
    ],
    ids=["not on a node", "pending", "not ready", "ready for a shorter time", "restarted more", "younger"],
)
def test_the_pod_that_is_missed_least_goes_first(goes: Pod, stays: Pod) -> None:
    assert pods.to_delete([stays, goes], 1, []) == [goes]
    assert pods.to_delete([goes, stays], 1, []) == [goes]


def test_the_fuller_node_loses_a_pod_first() -> None:
    ours = [pod("a", nodeName="full", since=NOW - 500), pod("b", nodeName="empty", since=NOW)]
    related = [*ours, pod("c", nodeName="full")]
    assert pods.to_delete(ours, 1, related) == [ours[0]]


# Garbage


def fates(*states: str) -> list[Fate]:
    return [Fate(OwnerReference("v1", "X", f"o{n}", f"u{n}"), state) for n, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "has_dependents", "action", "propagation"),
    [
        ([], False, "keep", "Background"),
        (["lives"], False, "keep", "Background"),
        (["gone"], False, "delete", "Background"),
        (["gone", "gone"], True, "delete", "Background"),
        (["gone", "lives"], False, "strike", "Background"),
        (["waits", "lives"], False, "strike", "Background"),
        (["waits"], False, "delete", "Background"),
        (["waits"], True, "delete", "Foreground"),
        (["unknown"], False, "keep", "Background"),
        (["gone", "unknown"], False, "keep", "Background"),
        (["gone", "unknown", "lives"], False, "keep", "Background"),
    ],
)
def test_a_dependent_is_judged_by_what_became_of_its_owners(
    states: list[str], has_dependents: bool, action: str, propagation: str
) -> None:
    verdict = judge(pod("a"), fates(*states), has_dependents=has_dependents)
    assert (verdict.action, verdict.propagation) == (action, propagation)


def test_only_the_dead_owners_are_struck_out() -> None:
    assert judge(pod("a"), fates("lives", "gone", "waits"), has_dependents=False).strike == ("u1", "u2")


def test_what_is_being_deleted_already_is_left_alone() -> None:
    assert judge(pod("a", deleted=True), fates("gone"), has_dependents=False).action == "keep"


def test_the_graph_knows_who_exists_and_who_depends() -> None:
    graph, owner, dependent = Graph(), replica_set(), pod("a", "web-1")
    graph.change(PODS, None, dependent)
    assert not graph.exists("web-1")
    graph.change(REPLICA_SETS, None, owner)
    assert graph.exists("web-1")
    assert [str(node) for node in graph.dependents("web-1")] == ["pods|ns/a"]
    freed = pod("a")
    graph.change(PODS, dependent, freed)
    assert graph.dependents("web-1") == []
    graph.change(PODS, freed, None)
    graph.change(REPLICA_SETS, owner, None)
    assert not graph.exists("web-1")
    assert (graph._nodes, graph._dependents) == ({}, {}), "nothing is kept of what is gone"


# Reading one's own writes


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def test_what_was_created_is_seen_before_the_informer_shows_it() -> None:
    written: Expectations[Pod] = Expectations(Clock())
    new = pod("new")
    written.created(new)
    assert written.view([], "ns") == [new]
    assert written.view([], "other") == []
    assert written.view([new], "ns") == [new]
    written.observed(None, new)
    assert written.view([], "ns") == [], "shown and gone again since"


def test_what_was_deleted_is_not_seen_even_if_the_informer_still_shows_it() -> None:
    written: Expectations[Pod] = Expectations(Clock())
    old, marked = pod("old"), pod("old", deleted=True)
    written.deleted(old)
    assert written.view([old], "ns") == []
    written.observed(old, marked)
    assert written.view([marked], "ns") == [marked]


def test_a_deletion_that_never_shows_is_believed_only_for_a_while() -> None:
    clock = Clock()
    written: Expectations[Pod] = Expectations(clock)
    written.deleted(pod("old"))
    clock.now += PATIENCE
    assert written.view([pod("old")], "ns") == [pod("old")]


def test_a_creation_that_never_shows_is_asked_about() -> None:
    clock = Clock()
    written: Expectations[Pod] = Expectations(clock)
    new = pod("new")
    written.created(new)
    assert written.overdue() == []
    clock.now += PATIENCE
    assert written.overdue() == [new]
    written.forget(new)
    assert written.view([], "ns") == []


# Nodes


def test_a_silent_nodes_conditions_become_unknown_once() -> None:
    node = NODES.convert(
        {
            "metadata": {"name": "n"},
            "status": {
                "conditions": [
                    {"type": "Ready", "status": "True", "lastHeartbeatTime": rfc3339(NOW - 60)},
                    {"type": "NetworkUnavailable", "status": "False"},
                    {"type": "DiskPressure", "status": "False"},
                ]
            },
        }
    )
    conditions = unknown_conditions(node, NOW)
    assert [(c["type"], c["status"], c["reason"], c["message"]) for c in conditions] == [
        (kind, "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        for kind in ("Ready", "DiskPressure")
    ]
    assert conditions[0]["lastHeartbeatTime"] == rfc3339(NOW - 60)
    unknown = NODES.convert({"metadata": {"name": "n"}, "status": {"conditions": conditions}})
    assert unknown_conditions(unknown, NOW) == []


def test_a_node_whose_kubelet_never_came_is_unknown_too() -> None:
    (condition,) = unknown_conditions(NODES.convert({"metadata": {"name": "n"}}), NOW)
    assert (condition["type"], condition["reason"]) == ("Ready", "NodeStatusNeverUpdated")


def test_routes_lead_to_every_pod_cidr_over_the_address_of_its_family() -> None:
    def node(name: str, cidrs: list[str], ips: list[str]) -> Any:
        addresses = [{"type": "InternalIP", "address": ip} for ip in ips] + [{"type": "Hostname", "address": name}]
        return NODES.convert(
            {"metadata": {"name": name}, "spec": {"podCIDRs": cidrs}, "status": {"addresses": addresses}}
        )

    nodes = [
        node("a", ["10.244.0.0/24", "fd00::/64"], ["172.30.0.1", "fc00::1"]),
        node("b", ["10.244.1.0/24"], ["172.30.0.2"]),
        node("own", ["10.244.2.0/24"], ["172.30.0.9"]),
        node("new", [], ["172.30.0.4"]),
        node("mute", ["10.244.4.0/24"], []),
        node("odd", ["nonsense"], ["172.30.0.5"]),
    ]
    assert wanted_routes(nodes, frozenset({"172.30.0.9"})) == {
        "10.244.0.0/24": "172.30.0.1",
        "fd00::/64": "fc00::1",
        "10.244.1.0/24": "172.30.0.2",
    }
