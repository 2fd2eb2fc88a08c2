"""A body of the right shape is stored or refused, whatever is missing or empty in it: no strategy falls over."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds_world import Cluster

from podwire.apiserver.status import StatusError

pytestmark = pytest.mark.unit

CONTAINER = {
    "name": "c",
    "image": "nginx:1",
    "command": ["a"],
    "ports": [{"name": "web", "containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
    "env": [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}},
    "livenessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5},
    "readinessProbe": {"grpc": {"port": 80}},
    "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
}
POD_SPEC = {
    "containers": [CONTAINER],
    "initContainers": [{"name": "i", "image": "x", "restartPolicy": "Always", "ports": [{"containerPort": 1}]}],
    "hostNetwork": True,
    "nodeSelector": {"a": "b"},
    "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}],
    "volumes": [
        {"name": "a", "configMap": {"name": "x"}},
        {
            "name": "b",
            "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"downwardAPI": {"items": []}}]},
        },
    ],
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    "readinessGates": [{"conditionType": "a.b/c"}],
    "overhead": {"cpu": "1m"},
    "nodeName": "node-1",
}
STATE = {"name": "c", "ready": True, "restartCount": 1, "image": "x", "imageID": "y", "state": {"running": {}}}
LABELS = {"labels": {"app": "x"}, "annotations": {"a": "b"}}
OBJECTS = [
    {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": POD_SPEC,
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [{**STATE, "lastState": {"terminated": {"exitCode": 1, "signal": 9}}}],
            "initContainerStatuses": [{**STATE, "name": "i", "started": True}],
        },
    },
    {
        "apiVersion": "v1",
        "kind": "Service",
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": "x"},
            "ports": [
                {
                    "name": "a",
                    "port": 53,
                    "protocol": "UDP",
                    "targetPort": "dns",
                    "nodePort": 30053,
                    "appProtocol": "x",
                },
                {"name": "b", "port": 53, "nodePort": 30053},
            ],
            "clusterIP": "10.96.0.77",
            "clusterIPs": ["10.96.0.77"],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30100,
            "externalIPs": ["192.0.2.1"],
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}},
            "externalName": "a.b",
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9", "ipMode": "VIP"}, {"hostname": "a.b"}]}},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            "replicas": 2,
            "selector": {
                "matchLabels": {"app": "x"},
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["x"]}],
            },
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "10%"}},
            "template": {"metadata": LABELS, "spec": POD_SPEC},
            "progressDeadlineSeconds": 60,
        },
        "status": {"replicas": 2, "readyReplicas": 1, "conditions": [{"type": "Available", "status": "True"}]},
    },
    {
        "apiVersion": "v1",
        "kind": "Node",
        "spec": {"podCIDR": "10.244.1.0/24", "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"cpu": "2"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        },
    },
    {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": ["10.244.1.5"],
                "conditions": {"ready": True},
                "hostname": "a",
                "nodeName": "node-1",
                "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]},
                "targetRef": {"kind": "Pod", "name": "p"},
            }
        ],
        "ports": [{"name": "a", "port": 80, "protocol": "TCP", "appProtocol": "x/y"}],
    },
    {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "action": "a",
        "reason": "r",
        "reportingComponent": "x",
        "reportingInstance": "y",
        "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
    },
    {"apiVersion": "v1", "kind": "Namespace", "spec": {"finalizers": ["a/b"]}, "status": {"phase": "Active"}},
    {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}, "binaryData": {"c": "aGk="}},
    {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 1, "leaseTransitions": 1},
    },
]


def places(value, path: tuple = ()):
    """Every place in a body, outermost first."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def empty(value):
    return type(value)()


@st.composite
def spoiled(draw) -> dict:
    """One of the objects with a few of its parts gone or empty."""
    obj = copy.deepcopy(draw(st.sampled_from(OBJECTS)))
    for _ in range(draw(st.integers(1, 4))):
        candidates = [path for path in places(obj) if path[0] not in {"apiVersion", "kind"}]
        if not candidates:
            break
        path = draw(st.sampled_from(candidates))
        holder = obj
        for key in path[:-1]:
            holder = holder[key]
        if draw(st.booleans()):
            del holder[path[-1]]
        else:
            holder[path[-1]] = empty(holder[path[-1]])
    return obj


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoiled(), st.booleans())
def test_an_object_is_stored_or_refused(body: dict, changes_status: bool) -> None:
    cluster = Cluster()
    whole = copy.deepcopy(next(obj for obj in OBJECTS if obj["kind"] == body["kind"]))
    resource = cluster.resource(body)
    metadata = {"name": "x", **LABELS, **({"namespace": "default"} if resource.namespaced else {})}
    try:
        made = cluster.create({**copy.deepcopy(body), "metadata": dict(metadata)})
    except StatusError:
        made = cluster.create({**whole, "metadata": dict(metadata)})
    assert len(cluster.row(made)) == len(resource.columns)
    assert cluster.update(copy.deepcopy(made)) == made
    subresource = "status" if changes_status and "status" in resource.subresources else ""
    try:
        made = cluster.update({**copy.deepcopy(body), "metadata": dict(metadata)}, subresource)
    except StatusError:
        return
    assert len(cluster.row(made)) == len(resource.columns)
    assert cluster.update(copy.deepcopy(made)) == made
