"""Node, Namespace, ConfigMap, ServiceAccount, Event, EndpointSlice, Lease: defaults, checks, cells, fields."""

from __future__ import annotations

import copy

import pytest
from kinds_world import STAMP, Cluster

from podwire.apiserver import kinds, protobuf
from podwire.apiserver.kinds.endpointslice import some
from podwire.apiserver.kinds.node import roles

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def node(name: str = "node-1", status: dict | None = None, **spec) -> dict:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec, "status": status or {}}


def config_map(**fields) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, **fields}


def event(**fields) -> dict:
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    metadata = {"name": "p.1", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about, **fields}


def endpoint_slice(**fields) -> dict:
    metadata = {"name": "s", "namespace": "default"}
    body = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4"}
    return body | {"endpoints": [{"addresses": ["10.244.1.5"]}], "ports": [{"port": 80}]} | fields


def lease(**spec) -> dict:
    metadata = {"name": "node-1", "namespace": "default"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def test_every_kind_has_cells_for_its_columns_also_when_it_is_almost_empty(cluster: Cluster) -> None:
    for resource in kinds.registry().resources:
        bare = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "x"}}
        assert len(cluster.row(bare)) == len(resource.columns)
        for path in resource.selectable:
            assert isinstance(resource.strategy.field(bare, path), str)


def test_every_kind_can_be_read_from_protobuf() -> None:
    for resource in kinds.registry().resources:
        assert (resource.api_version, resource.kind) in protobuf.MESSAGES


def test_a_node_registers_with_its_status(cluster: Cluster) -> None:
    capacity = {"cpu": "2000m", "memory": "8Gi"}
    made = cluster.create(node(status={"capacity": capacity, "nodeInfo": {"kubeletVersion": "v1.34.0"}}))
    assert made["status"]["capacity"] == made["status"]["allocatable"] == {"cpu": "2", "memory": "8Gi"}
    assert made["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    assert made["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.0"
    assert made["status"]["nodeInfo"]["osImage"] == ""


def test_a_pod_cidr_is_set_once(cluster: Cluster) -> None:
    made = cluster.create(node())
    assert "podCIDRs" not in made["spec"]
    assigned = cluster.change(made, podCIDR="10.244.1.0/24")
    assert assigned["spec"]["podCIDRs"] == ["10.244.1.0/24"]
    assigned["spec"] |= {"podCIDR": "10.244.2.0/24", "podCIDRs": ["10.244.2.0/24"]}
    assert cluster.refused_update(assigned) == [
        'spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid'
    ]
    assigned["spec"] = {}
    assert cluster.refused_update(assigned) == [
        'spec.podCIDRs: Forbidden: node updates may not change podCIDR except from "" to valid'
    ]


def test_pod_cidrs_fill_pod_cidr(cluster: Cluster) -> None:
    prefixes = ["10.244.1.0/24", "fd00::/64"]
    assert cluster.create(node(podCIDRs=prefixes))["spec"]["podCIDR"] == prefixes[0]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"podCIDR": "10.244.1.0"},
            'spec.podCIDRs[0]: Invalid value: "10.244.1.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)',
        ),
        (
            {"podCIDRs": ["10.0.0.0/24", "10.0.1.0/24"]},
            (
                'spec.podCIDRs: Invalid value: ["10.0.0.0/24","10.0.1.0/24"]: may specify no more than one CIDR for each IP '
                "family"
            ),
        ),
        (
            {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.1.0/24"]},
            'spec.podCIDR: Invalid value: "10.0.0.0/24": must be equal to podCIDRs[0]',
        ),
        (
            {"taints": [{"key": "a", "effect": "Never"}]},
            (
                'metadata.taints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", '
                '"NoExecute"'
            ),
        ),
        (
            {"taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}]},
            (
                'metadata.taints[1]: Duplicate value: {"key":"a","effect":"NoSchedule"}: taints must be unique by key and effect '
                "pair"
            ),
        ),
    ],
)
def test_a_wrong_node_is_refused_with_field_and_reason(cluster: Cluster, spec: dict, said: str) -> None:
    assert cluster.refused(node(**spec)) == [said]


def test_the_row_of_a_node(cluster: Cluster) -> None:
    made = cluster.create(node())
    assert cluster.row(made) == [
        *("node-1", "Unknown", "<none>", "0s", "", "<none>", "<none>"),
        *("<unknown>", "<unknown>", "<unknown>"),
    ]
    made["spec"]["unschedulable"] = True
    made["metadata"]["labels"] = {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "worker"}
    made["status"] = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "ExternalIP", "address": "192.0.2.1"}],
        "nodeInfo": {
            "kubeletVersion": "v1.34.0",
            "osImage": "Debian",
            "kernelVersion": "6.1",
            "containerRuntimeVersion": "podwire://0.1",
        },
    }
    assert cluster.row(made) == [
        *("node-1", "NotReady,SchedulingDisabled", "control-plane,worker", "0s", "v1.34.0"),
        *("10.0.0.1", "192.0.2.1", "Debian", "6.1", "podwire://0.1"),
    ]
    made["status"]["conditions"][0]["status"] = "True"
    del made["spec"]["unschedulable"]
    assert cluster.row(made)[1] == "Ready"
    assert roles({"node-role.kubernetes.io/": "x"}) == []


def test_unschedulable_can_be_selected_also_when_it_is_absent(cluster: Cluster) -> None:
    made = cluster.create(node())
    strategy = cluster.resource(made).strategy
    assert strategy.field(made, "spec.unschedulable") == "false"
    made["spec"]["unschedulable"] = True
    assert strategy.field(made, "spec.unschedulable") == "true"


def test_a_namespace_carries_its_name_and_is_held_until_it_is_empty(cluster: Cluster) -> None:
    made = cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "demo"}
    assert made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["status"] == {"phase": "Active"}
    assert cluster.row(made) == ["demo", "Active", "0s"]
    body = copy.deepcopy(made)
    body["spec"]["finalizers"] = []
    body["metadata"]["labels"] = {"a": "b"}
    after = cluster.update(body)
    assert after["spec"] == made["spec"]
    assert after["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "demo"}


def test_a_generated_namespace_has_the_label_too(cluster: Cluster) -> None:
    made = cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "demo-"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": made["metadata"]["name"]}


def test_the_phase_of_a_namespace_goes_with_its_deletion(cluster: Cluster) -> None:
    made = cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}})
    body = {**made, "status": {"phase": "Terminating"}}
    assert cluster.refused_update(body, "status") == [
        "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
    ]
    assert cluster.delete(made)["status"]["phase"] == "Terminating"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"data": {"a b": ""}},
            (
                "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' "
                "(e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
            ),
        ),
        ({"data": {"..": ""}}, "data[..]: Invalid value: \"..\": must not be '..'"),
        (
            {"data": {"a": ""}, "binaryData": {"a": ""}},
            'data[a]: Invalid value: "a": duplicate of key present in binaryData',
        ),
        ({"data": {"a": "x" * (1024 * 1024 + 1)}}, ": Too long: may not be more than 1048576 bytes"),
    ],
)
def test_a_wrong_config_map_is_refused_with_field_and_reason(cluster: Cluster, fields: dict, said: str) -> None:
    assert said in cluster.refused(config_map(**fields))


def test_an_immutable_config_map_stays_as_it_is(cluster: Cluster) -> None:
    made = cluster.create(config_map(data={"a": "1"}, immutable=True))
    said = "Forbidden: field is immutable when `immutable` is set"
    assert cluster.refused_update({**made, "data": {"a": "2"}}) == [f"data: {said}"]
    assert cluster.refused_update({**made, "immutable": False}) == [f"immutable: {said}"]


def test_the_cells_of_config_map_service_account_and_lease(cluster: Cluster) -> None:
    assert cluster.row(cluster.create(config_map(data={"a": "1"}, binaryData={"b": "aGk="}))) == ["c", 2, "0s"]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "default"}}
    assert cluster.row(cluster.create(account)) == ["robot", 0, "0s"]
    assert cluster.row(cluster.create(lease(holderIdentity="node-1"))) == ["node-1", "node-1", "0s"]


def test_a_wrong_lease_is_refused_with_field_and_reason(cluster: Cluster) -> None:
    assert cluster.refused(lease(leaseDurationSeconds=0, leaseTransitions=-1)) == [
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
    ]


def test_an_event_lives_where_its_object_does(cluster: Cluster) -> None:
    body = event(type="Normal", reason="Started", message="x")
    made = cluster.create(body)
    assert (made["source"], made["reportingComponent"], made["reportingInstance"]) == ({}, "", "")
    body["metadata"] = {"name": "other", "namespace": "kube-system"}
    said = 'involvedObject.namespace: Invalid value: "default": does not match event.namespace'
    assert cluster.refused(body) == [said]
    about = {"kind": "Node", "name": "node-1"}
    cluster.create({**event(), "metadata": {"name": "n", "namespace": "default"}, "involvedObject": about})


def test_a_new_style_event_is_complete(cluster: Cluster) -> None:
    assert cluster.refused(event(eventTime="2027-01-15T08:00:00.000000Z")) == [
        "reportingComponent: Required value",
        "action: Required value",
        "reason: Required value",
        "reportingInstance: Required value",
    ]


@pytest.mark.parametrize(
    ("fields", "narrow", "wide"),
    [
        (
            {
                "type": "Normal",
                "reason": "Pulled",
                "message": " done ",
                "count": 3,
                "firstTimestamp": "2027-01-15T07:00:00Z",
                "lastTimestamp": "2027-01-15T07:59:00Z",
                "source": {"component": "kubelet", "host": "node-1"},
            },
            ["60s", "Normal", "Pulled", "pod/p", "done"],
            ["", "kubelet, node-1", "60m", 3],
        ),
        (
            {
                "type": "Warning",
                "reason": "Failed",
                "action": "Bind",
                "eventTime": "2027-01-15T07:58:00.000000Z",
                "reportingComponent": "scheduler",
                "reportingInstance": "s-1",
            },
            ["2m", "Warning", "Failed", "pod/p", ""],
            ["", "scheduler, s-1", "2m", 1],
        ),
        (
            {
                "series": {"count": 7, "lastObservedTime": "2027-01-15T07:59:50.000000Z"},
                "firstTimestamp": "2027-01-15T07:00:00Z",
            },
            ["10s", "", "", "pod/p", ""],
            ["", "", "60m", 7],
        ),
        ({}, ["<unknown>", "", "", "pod/p", ""], ["", "", "<unknown>", 1]),
    ],
)
def test_the_row_of_an_event(cluster: Cluster, fields: dict, narrow: list, wide: list) -> None:
    cells = cluster.row(cluster.create(event(**fields)))
    assert [*cells[:4], cells[6]] == narrow
    assert [cells[4], cells[5], cells[7], cells[8]] == wide
    assert cells[9] == "p.1"


def test_the_fields_of_an_event_that_can_be_selected(cluster: Cluster) -> None:
    made = cluster.create(event(reason="R", type="Warning", source={"component": "kubelet"}))
    field = cluster.resource(made).strategy.field
    assert field(made, "involvedObject.name") == "p"
    assert field(made, "source") == field(made, "reportingComponent") == "kubelet"
    assert (field(made, "reason"), field(made, "type"), field(made, "involvedObject.uid")) == ("R", "Warning", "")


def test_an_endpoint_slice_gets_its_port_defaults(cluster: Cluster) -> None:
    made = cluster.create(endpoint_slice())
    assert made["ports"] == [{"name": "", "port": 80, "protocol": "TCP"}]
    assert made["metadata"]["generation"] == 1
    assert cluster.update(made) == made


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"addressType": "IP"},
            'addressType: Unsupported value: "IP": supported values: "FQDN", "IPv4", "IPv6"',
        ),
        ({"endpoints": [{"addresses": []}]}, "endpoints[0].addresses: Required value: must contain at least 1 address"),
        (
            {"endpoints": [{"addresses": ["fd00::1"]}]},
            'endpoints[0].addresses[0]: Invalid value: "fd00::1": must be a valid IPv4 address',
        ),
        (
            {"endpoints": [{"addresses": ["169.254.1.1"]}]},
            (
                'endpoints[0].addresses[0]: Invalid value: "169.254.1.1": may not be in the link-local range (169.254.0.0/16, '
                "fe80::/10)"
            ),
        ),
        (
            {"endpoints": [{"addresses": ["10.0.0.1"]}] * 1001},
            "endpoints: Too many: 1001: must have at most 1000 items",
        ),
        (
            {"endpoints": [{"addresses": ["10.0.0.1"] * 101}]},
            "endpoints[0].addresses: Too many: 101: must have at most 100 items",
        ),
        ({"ports": [{"port": 1}, {"port": 2}]}, 'ports[1].name: Duplicate value: ""'),
        (
            {"ports": [{"port": 1, "protocol": "X"}]},
            'ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"',
        ),
        (
            {"addressType": "FQDN", "endpoints": [{"addresses": ["localhost"]}]},
            (
                'endpoints[0].addresses[0]: Invalid value: "localhost": should be a domain with at least two segments separated '
                "by dots"
            ),
        ),
        (
            {"endpoints": [{"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "a"}, {"name": "a"}]}}]},
            'endpoints[0].hints.forZones[1].name: Duplicate value: "a"',
        ),
    ],
)
def test_a_wrong_endpoint_slice_is_refused_with_field_and_reason(cluster: Cluster, fields: dict, said: str) -> None:
    assert said in cluster.refused(endpoint_slice(**fields))


def test_the_address_type_of_an_endpoint_slice_stays(cluster: Cluster) -> None:
    made = cluster.create(endpoint_slice())
    made |= {"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}]}
    assert cluster.refused_update(made) == ['addressType: Invalid value: "IPv6": field is immutable']


def test_the_row_of_an_endpoint_slice(cluster: Cluster) -> None:
    endpoints = [{"addresses": [f"10.0.0.{number}"]} for number in range(1, 6)]
    made = cluster.create(endpoint_slice(endpoints=endpoints, ports=[{"name": "any"}, {"name": "b", "port": 81}]))
    assert cluster.row(made) == ["s", "IPv4", "any,81", "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more...", "0s"]
    assert some([]) == "<unset>"
    assert made["metadata"]["creationTimestamp"] == STAMP
