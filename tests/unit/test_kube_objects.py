"""Structs: the API's spelling, nulls, selectors; kinds: where they live."""

from __future__ import annotations

import msgspec
import pytest

from podwire.kube import kinds
from podwire.kube.meta import LabelSelector, json_name, reference
from podwire.kube.objects import ObjectReference
from podwire.kube.times import epoch, rfc3339, rfc3339_micro

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("python", "wire"),
    [
        ("cluster_ips", "clusterIPs"),
        ("pod_cidr", "podCIDR"),
        ("pod_cidrs", "podCIDRs"),
        ("host_ip", "hostIP"),
        ("api_version", "apiVersion"),
        ("ip_families", "ipFamilies"),
        ("uid", "uid"),
        ("provider_id", "providerID"),
        ("load_balancer_ip", "loadBalancerIP"),
        ("external_ips", "externalIPs"),
    ],
)
def test_a_field_is_spelled_as_the_api_spells_it(python: str, wire: str) -> None:
    assert json_name(python) == wire


def test_null_where_a_list_is_expected_is_an_empty_list() -> None:
    piece = kinds.ENDPOINT_SLICES.decode(
        b'{"metadata":{"name":"a","labels":null},"addressType":"IPv4","endpoints":null,"ports":null}'
    )
    assert (piece.endpoints, piece.ports, piece.metadata.labels) == ((), (), {})


def test_null_conditions_of_an_endpoint_are_unknown_conditions() -> None:
    piece = kinds.ENDPOINT_SLICES.decode(
        b'{"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"],"conditions":null}]}'
    )
    assert piece.endpoints[0].conditions.ready is None


def test_two_objects_do_not_share_a_default_mapping() -> None:
    first, second = (kinds.SERVICES.decode(b'{"metadata":{"name":"a","labels":null}}') for _ in range(2))
    assert first.metadata.labels is not second.metadata.labels


def test_a_target_port_is_a_number_or_a_name() -> None:
    service = kinds.SERVICES.convert(
        {"spec": {"ports": [{"port": 80, "targetPort": "web"}, {"port": 81, "targetPort": 8}]}}
    )
    assert [port.target_port for port in service.spec.ports] == ["web", 8]


def test_a_field_of_the_wrong_type_is_an_error() -> None:
    with pytest.raises(msgspec.MsgspecError):
        kinds.SERVICES.decode(b'{"metadata":{"name":"a"},"spec":{"ports":"none"}}')


def test_paths_are_those_of_the_api() -> None:
    assert kinds.PODS.path() == "/api/v1/pods"
    assert kinds.PODS.path("ns", "a", "status") == "/api/v1/namespaces/ns/pods/a/status"
    assert kinds.NODES.path(None, "n") == "/api/v1/nodes/n"
    assert kinds.NODES.path("ignored", "n") == "/api/v1/nodes/n"
    assert kinds.DEPLOYMENTS.path("ns", "a") == "/apis/apps/v1/namespaces/ns/deployments/a"


def test_a_reference_names_the_object_and_its_kind() -> None:
    pod = kinds.PODS.convert({"metadata": {"name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7"}})
    assert reference(pod) == ObjectReference("Pod", "ns", "a", "u", "v1", "7")


def test_the_old_single_pod_cidr_counts_where_there_is_no_list() -> None:
    assert kinds.NODES.convert({"spec": {"podCIDR": "10.0.0.0/24"}}).pod_cidrs == ("10.0.0.0/24",)


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "z", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "z", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Nonsense"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
    ],
)
def test_a_label_selector_selects(selector: dict, selected: bool) -> None:
    assert msgspec.convert(selector, LabelSelector).matches({"a": "1"}) is selected


def test_times_are_read_as_they_were_written() -> None:
    assert epoch(rfc3339(1_700_000_000)) == 1_700_000_000
    assert epoch(rfc3339_micro(1_700_000_000.25)) == 1_700_000_000.25
    assert epoch(None) is None
    assert epoch("yesterday") is None
