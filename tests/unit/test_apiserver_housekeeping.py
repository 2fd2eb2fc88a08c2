"""Bootstrap objects, the end of Events, and the end of namespaces, without HTTP."""

from __future__ import annotations

import copy

import pytest
from kinds_world import NOW, Cluster, pod

from podwire.apiserver import bootstrap, deletion, janitor, namespaces
from podwire.apiserver.store import decode

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def event(name: str) -> dict:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, "reason": "R"}


def everything(cluster: Cluster, key: str) -> list[dict]:
    return cluster.run(lambda work: list(map(decode, work.transaction.all(key))))


def test_events_go_when_their_time_is_over_and_others_stay(cluster) -> None:
    cluster.create(event("old"))
    cluster.create(pod())
    events = cluster.registry.by_key("events")
    assert [resource.key for resource in cluster.registry.resources if resource.expires] == ["events"]
    cluster.run(lambda work: janitor.expire(work, events, 0))
    assert len(everything(cluster, "events")) == 1
    cluster.world.clock = lambda: NOW + 3601
    cluster.run(lambda work: janitor.expire(work, events, 3600))
    assert everything(cluster, "events") == []
    assert len(everything(cluster, "pods")) == 1


def test_bootstrap_is_written_once_and_mended_when_changed(cluster) -> None:
    def ensure() -> int:
        cluster.run(lambda work: bootstrap.ensure(work, "192.0.2.1", 6443))
        return cluster.store.revision

    first = ensure()
    assert {item["metadata"]["name"] for item in everything(cluster, "namespaces")} == set(bootstrap.NAMESPACES)
    assert ensure() == first
    (service,) = everything(cluster, "services")
    assert (service["spec"]["clusterIP"], service["spec"]["ports"][0]["targetPort"]) == ("10.96.0.1", 6443)
    cluster.delete(service)
    assert ensure() > first
    (again,) = everything(cluster, "services")
    assert again["spec"] == service["spec"]
    (slice_,) = everything(cluster, "endpointslices.discovery.k8s.io")
    changed = copy.deepcopy(slice_)
    changed["endpoints"][0]["addresses"] = ["192.0.2.9"]
    cluster.update(changed)
    ensure()
    (mended,) = everything(cluster, "endpointslices.discovery.k8s.io")
    assert mended["endpoints"][0]["addresses"] == ["192.0.2.1"]


def test_a_loopback_address_is_no_endpoint(cluster) -> None:
    cluster.run(lambda work: bootstrap.ensure(work, "127.0.0.1", 6443))
    assert everything(cluster, "endpointslices.discovery.k8s.io") == []


def test_a_namespace_with_a_finalizer_of_its_own_waits_for_it_when_it_is_empty(cluster) -> None:
    metadata = {"name": "held", "finalizers": ["example.com/mine"]}
    namespace = cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    cluster.delete(namespace)
    cluster.run(lambda work: namespaces.sweep(work, "held"))
    left = cluster.get(namespace)
    assert left["spec"]["finalizers"] == []
    left["metadata"]["finalizers"] = []
    cluster.update(left)
    assert cluster.get(namespace) is None


def test_a_namespace_that_is_not_ending_is_left_alone(cluster) -> None:
    cluster.create(pod())
    before = cluster.store.revision
    cluster.run(lambda work: namespaces.sweep(work, "default"))
    cluster.run(lambda work: namespaces.sweep(work, "nowhere"))
    assert cluster.store.revision == before


def test_what_is_waited_for_is_said_once(cluster) -> None:
    namespace = cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "busy"}})
    held = pod(nodeName="node-1")
    held["metadata"] |= {"namespace": "busy"}
    cluster.create(held)
    cluster.delete(namespace)
    cluster.run(lambda work: namespaces.sweep(work, "busy"))
    revision = cluster.store.revision
    cluster.run(lambda work: namespaces.sweep(work, "busy"))
    assert cluster.store.revision == revision
    (condition,) = cluster.get(namespace)["status"]["conditions"]
    assert condition["message"] == "Some resources are remaining: pods has 1 resource instances"
    cluster.delete(held, grace=0)
    cluster.run(lambda work: namespaces.sweep(work, "busy"))
    assert cluster.get(namespace) is None


def test_finalizers_and_grace_both_hold(cluster) -> None:
    held = pod(nodeName="node-1")
    held["metadata"]["finalizers"] = ["example.com/mine"]
    cluster.create(held)
    cluster.delete(held)
    marked = cluster.get(held)
    marked["metadata"]["finalizers"] = []
    cluster.update(marked)
    assert cluster.get(held)["metadata"]["deletionGracePeriodSeconds"] == 30
    assert not deletion.is_over(cluster.get(held))
    cluster.delete(held, grace=0)
    assert cluster.get(held) is None
