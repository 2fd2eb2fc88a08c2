"""EndpointSlices: what a Service's endpoints are, and the fewest writes that make it so."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.controllers import endpoints
from podwire.kube.kinds import ENDPOINT_SLICES, NODES, PODS, SERVICES

if TYPE_CHECKING:
    from podwire.kube.objects import EndpointSlice, Pod, Service

pytestmark = pytest.mark.unit


def service(**spec: Any) -> Service:
    spec = {"clusterIP": "10.96.0.7", "selector": {"app": "web"}, "ports": [{"port": 80}], **spec}
    return SERVICES.convert(
        {"metadata": {"name": "web", "namespace": "ns", "uid": "s", "labels": {"team": "x"}}, "spec": spec}
    )


def pod(name: str, *ips: str, ready: bool = True, deleted: bool = False, phase: str = "Running", **spec: Any) -> Pod:
    meta: dict[str, Any] = {"name": name, "namespace": "ns", "uid": f"uid-{name}"}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {
        "phase": phase,
        "podIPs": [{"ip": ip} for ip in ips],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    return PODS.convert({"metadata": meta, "spec": {"nodeName": "n1", **spec}, "status": status})


def nowhere(_name: str) -> None:
    return None


def bodies(svc: Service, *pods: Pod) -> list[dict[str, Any]]:
    return [wish.body for wish in endpoints.wishes(svc, pods, nowhere)]


@pytest.mark.parametrize(
    ("state", "conditions"),
    [
        ({}, (True, True, False)),
        ({"ready": False}, (False, False, False)),
        ({"deleted": True}, (False, True, True)),
        ({"deleted": True, "ready": False}, (False, False, True)),
    ],
)
def test_conditions_follow_the_pod(state: dict, conditions: tuple) -> None:
    (body,) = bodies(service(), pod("a", "10.0.0.1", **state))
    assert tuple(body["conditions"].values()) == conditions
    assert list(body["conditions"]) == ["ready", "serving", "terminating"]


def test_publishing_not_ready_addresses_makes_ready_true_and_leaves_serving_true_to_the_pod() -> None:
    (body,) = bodies(service(publishNotReadyAddresses=True), pod("a", "10.0.0.1", ready=False, deleted=True))
    assert body["conditions"] == {"ready": True, "serving": False, "terminating": True}


def test_pods_without_address_or_that_have_ended_take_no_part() -> None:
    assert (
        bodies(service(), pod("a"), pod("b", "10.0.0.1", phase="Succeeded"), pod("c", "10.0.0.2", phase="Failed")) == []
    )


def test_an_endpoint_names_node_zone_and_pod() -> None:
    node = NODES.convert({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z1"}}})
    (wish,) = endpoints.wishes(service(), [pod("a", "10.0.0.1")], lambda _: node)
    assert wish.body == {
        "addresses": ["10.0.0.1"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a"},
        "nodeName": "n1",
        "zone": "z1",
    }


def test_a_hostname_counts_only_below_the_services_own_name() -> None:
    (body,) = bodies(service(), pod("a", "10.0.0.1", hostname="h", subdomain="web"))
    assert body["hostname"] == "h"
    (body,) = bodies(service(), pod("a", "10.0.0.1", hostname="h", subdomain="other"))
    assert "hostname" not in body


def test_a_dual_stack_service_gets_an_endpoint_of_each_family_the_pod_has() -> None:
    dual = service(ipFamilies=["IPv4", "IPv6"])
    wanted = endpoints.wishes(dual, [pod("a", "10.0.0.1", "fd00::1"), pod("b", "10.0.0.2")], nowhere)
    assert [(wish.family, wish.body["addresses"]) for wish in wanted] == [
        ("IPv4", ["10.0.0.1"]),
        ("IPv6", ["fd00::1"]),
        ("IPv4", ["10.0.0.2"]),
    ]


@pytest.mark.parametrize(
    ("port", "number"),
    [
        ({"port": 80}, 80),
        ({"port": 80, "targetPort": 8080}, 8080),
        ({"port": 80, "targetPort": "http"}, 8000),
        ({"port": 53, "targetPort": "dns", "protocol": "UDP"}, 5353),
        ({"port": 80, "targetPort": "dns"}, None),
        ({"port": 80, "targetPort": "none"}, None),
    ],
)
def test_a_target_port_is_found_in_the_pod(port: dict, number: int | None) -> None:
    ports = [
        {"name": "http", "containerPort": 8000},
        {"name": "dns", "containerPort": 5353, "protocol": "UDP"},
    ]
    it = pod("a", "10.0.0.1", containers=[{"name": "c", "ports": ports}])
    assert endpoints.target_number(service(ports=[port]).spec.ports[0], it) == number


def test_pods_that_serve_a_named_port_at_different_numbers_are_in_different_slices() -> None:
    def named(name: str, ip: str, number: int) -> Pod:
        return pod(name, ip, containers=[{"name": "c", "ports": [{"name": "http", "containerPort": number}]}])

    svc = service(ports=[{"port": 80, "targetPort": "http"}])
    wanted = endpoints.wishes(
        svc, [named("a", "10.0.0.1", 1), named("b", "10.0.0.2", 2), named("c", "10.0.0.3", 1)], nowhere
    )
    changes = endpoints.reconcile(svc, [], wanted)
    found = {change.body["ports"][0]["port"]: len(change.body["endpoints"]) for change in changes if change.body}
    assert found == {1: 2, 2: 1}


class Slices:
    """The slices of one Service, as an API server would keep them."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Any]] = {}
        self.numbers = itertools.count(1)

    def typed(self) -> list[EndpointSlice]:
        return [ENDPOINT_SLICES.decode(msgspec.json.encode(body)) for body in self.kept.values()]

    def apply(self, changes: list[endpoints.Change]) -> None:
        for old, body in changes:
            if body is None:
                assert old is not None
                del self.kept[old.metadata.name]
                continue
            number = next(self.numbers)
            meta = {**body["metadata"], "resourceVersion": str(number)}
            if old is None:
                meta |= {"name": f"{meta['generateName']}{number}", "uid": f"u{number}"}
            else:
                assert meta["name"] == old.metadata.name
                assert body["addressType"] == old.address_type, "the address type of a slice never changes"
                assert meta["resourceVersion"] != old.metadata.resource_version
            self.kept[meta["name"]] = {**body, "metadata": meta}

    def addresses(self) -> list[str]:
        return sorted(e["addresses"][0] for body in self.kept.values() for e in body["endpoints"])


def test_a_new_service_has_an_empty_slice_with_the_labels_and_the_owner_of_the_real_one() -> None:
    slices = Slices()
    slices.apply(endpoints.reconcile(service(), [], []))
    ((name, body),) = slices.kept.items()
    assert name.startswith("web-")
    assert body["metadata"]["labels"] == {
        "team": "x",
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert body["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "name": "web",
            "uid": "s",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert (body["addressType"], body["endpoints"], body["ports"]) == ("IPv4", [], [])


def test_a_headless_service_is_labelled_so() -> None:
    assert endpoints.slice_labels(service(clusterIP="None"))["service.kubernetes.io/headless"] == ""
    assert "service.kubernetes.io/headless" not in endpoints.slice_labels(service())


def test_the_first_endpoint_comes_into_the_slice_that_was_empty() -> None:
    slices, svc = Slices(), service()
    slices.apply(endpoints.reconcile(svc, [], []))
    before = set(slices.kept)
    changes = endpoints.reconcile(svc, slices.typed(), endpoints.wishes(svc, [pod("a", "10.0.0.1")], nowhere))
    assert len(changes) == 1
    slices.apply(changes)
    assert set(slices.kept) == before
    slices.apply(endpoints.reconcile(svc, slices.typed(), []))
    assert (set(slices.kept), slices.addresses()) == (before, [])


def test_a_change_of_one_endpoint_is_one_write_of_its_slice() -> None:
    slices, svc = Slices(), service()
    pods = [pod(f"p{number:03}", f"10.0.{number // 250}.{number % 250 + 1}") for number in range(250)]
    slices.apply(endpoints.reconcile(svc, [], endpoints.wishes(svc, pods, nowhere)))
    assert sorted(len(body["endpoints"]) for body in slices.kept.values()) == [50, 100, 100]
    pods[7] = pod("p007", *pods[7].addresses, ready=False)
    changes = endpoints.reconcile(svc, slices.typed(), endpoints.wishes(svc, pods, nowhere))
    assert len(changes) == 1
    slices.apply(changes)
    assert endpoints.reconcile(svc, slices.typed(), endpoints.wishes(svc, pods, nowhere)) == []


def test_labels_of_the_service_that_change_are_written_to_its_slices() -> None:
    slices, svc = Slices(), service()
    slices.apply(endpoints.reconcile(svc, [], []))
    relabelled = SERVICES.convert(
        {"metadata": {"name": "web", "namespace": "ns", "uid": "s"}, "spec": {"clusterIP": "10.96.0.7"}}
    )
    slices.apply(endpoints.reconcile(relabelled, slices.typed(), []))
    (body,) = slices.kept.values()
    assert "team" not in body["metadata"]["labels"]


def test_a_service_that_drops_a_family_drops_its_slices() -> None:
    slices, both = Slices(), service(ipFamilies=["IPv4", "IPv6"])
    it = pod("a", "10.0.0.1", "fd00::1")
    slices.apply(endpoints.reconcile(both, [], endpoints.wishes(both, [it], nowhere)))
    assert sorted(body["addressType"] for body in slices.kept.values()) == ["IPv4", "IPv6"]
    one = service(ipFamilies=["IPv4"])
    slices.apply(endpoints.reconcile(one, slices.typed(), endpoints.wishes(one, [it], nowhere)))
    assert [body["addressType"] for body in slices.kept.values()] == ["IPv4"]


podstates = st.dictionaries(
    st.integers(0, 260),
    st.tuples(st.booleans(), st.booleans(), st.sampled_from([8080, 9090])),
    max_size=260,
)


@settings(deadline=None, max_examples=40)
@given(st.lists(podstates, min_size=1, max_size=4))
def test_slices_hold_exactly_the_endpoints_whatever_changed(history: list[dict]) -> None:
    slices, svc = Slices(), service(ipFamilies=["IPv4", "IPv6"], ports=[{"port": 80, "targetPort": "http"}])
    for state in history:
        pods = [
            pod(
                f"p{number}",
                f"10.0.{number // 200}.{number % 200 + 1}",
                *([f"fd00::{number + 1:x}"] if number % 2 else []),
                ready=ready,
                deleted=deleted,
                containers=[{"name": "c", "ports": [{"name": "http", "containerPort": port}]}],
            )
            for number, (ready, deleted, port) in state.items()
        ]
        wanted = endpoints.wishes(svc, pods, nowhere)
        slices.apply(endpoints.reconcile(svc, slices.typed(), wanted))
        held = [
            (body["addressType"], port["port"], entry)
            for body in slices.kept.values()
            for entry in body["endpoints"]
            for port in body["ports"]
        ]
        expected = [(wish.family, wish.ports[0][2], wish.body) for wish in wanted]
        by_address = sorted(held, key=lambda item: item[2]["addresses"])
        assert by_address == sorted(expected, key=lambda item: item[2]["addresses"])
        assert all(len(body["endpoints"]) <= 100 for body in slices.kept.values())
        assert {body["addressType"] for body in slices.kept.values()} == {"IPv4", "IPv6"}
        assert endpoints.reconcile(svc, slices.typed(), wanted) == [], "a second look finds nothing to do"
