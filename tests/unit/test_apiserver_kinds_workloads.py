"""Deployments and ReplicaSets: defaults, checks, generation, cells."""

from __future__ import annotations

import copy

import pytest
from kinds_world import Cluster, deployment

from podwire.apiserver import label_selectors

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def replica_set(name: str = "web-1", **spec) -> dict:
    return {**deployment(name, **spec), "kind": "ReplicaSet"}


def test_a_bare_deployment_gets_the_defaults_of_a_real_api_server(cluster: Cluster) -> None:
    made = cluster.create(deployment())
    assert made["spec"] == {
        "progressDeadlineSeconds": 600,
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "selector": {"matchLabels": {"app": "web"}},
        "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}, "type": "RollingUpdate"},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [
                    {
                        "image": "nginx:1.27",
                        "imagePullPolicy": "IfNotPresent",
                        "name": "c",
                        "resources": {},
                        "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File",
                    }
                ],
                "dnsPolicy": "ClusterFirst",
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "terminationGracePeriodSeconds": 30,
            },
        },
    }
    assert made["status"] == {}
    assert made["metadata"]["generation"] == 1
    assert cluster.update(made) == made


def test_a_template_does_not_get_what_only_a_pod_gets(cluster: Cluster) -> None:
    body = deployment()
    body["spec"]["template"]["spec"]["hostNetwork"] = True
    body["spec"]["template"]["spec"]["containers"][0]["ports"] = [{"containerPort": 80}]
    spec = cluster.create(body)["spec"]["template"]["spec"]
    assert not {"enableServiceLinks", "tolerations", "serviceAccountName", "priority"} & spec.keys()
    assert spec["containers"][0]["ports"] == [{"containerPort": 80, "protocol": "TCP"}]


def test_recreate_has_no_rolling_update(cluster: Cluster) -> None:
    assert cluster.create(deployment(strategy={"type": "Recreate"}))["spec"]["strategy"] == {"type": "Recreate"}
    strategy = {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}
    assert cluster.refused(deployment("b", strategy=strategy)) == [
        "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"
    ]


def test_generation_counts_changes_of_the_spec_and_nothing_else(cluster: Cluster) -> None:
    made = cluster.create(deployment())
    made["metadata"]["labels"] = {"a": "b"}
    labelled = cluster.update(made)
    assert labelled["metadata"]["generation"] == 1
    labelled["status"] = {"observedGeneration": 1, "replicas": 1}
    reported = cluster.update(labelled, "status")
    assert reported["metadata"]["generation"] == 1
    assert cluster.change(reported, replicas=3)["metadata"]["generation"] == 2


def test_an_ordinary_update_cannot_touch_the_status(cluster: Cluster) -> None:
    made = cluster.create(deployment())
    body = {**made, "status": {"replicas": 7}}
    assert cluster.update(body)["status"] == {}


def test_the_selector_is_fixed_and_the_template_must_satisfy_it(cluster: Cluster) -> None:
    made = cluster.create(deployment())
    body = copy.deepcopy(made)
    body["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    assert cluster.refused_update(body) == [
        'spec.template.metadata.labels: Invalid value: {"app":"web"}: `selector` does not match template `labels`',
        'spec.selector: Invalid value: {"matchLabels":{"app":"other"}}: field is immutable',
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"selector": {}}, "spec.selector: Invalid value: {}: empty selector is invalid for deployment"),
        ({"replicas": -1}, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        (
            {"selector": {"matchExpressions": [{"key": "app", "operator": "Is", "values": ["web"]}]}},
            'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
        ),
        (
            {"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (
            {"minReadySeconds": 600},
            "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
        ),
        (
            {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}},
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        (
            {"strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}},
            'spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%',
        ),
        (
            {"strategy": {"rollingUpdate": {"maxSurge": "many"}}},
            (
                'spec.strategy.rollingUpdate.maxSurge: Invalid value: "many": a valid percent string must be a numeric string '
                "followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
            ),
        ),
        (
            {"strategy": {"type": "Fast"}},
            'spec.strategy: Unsupported value: {"type":"Fast"}: supported values: "Recreate", "RollingUpdate"',
        ),
    ],
)
def test_a_wrong_deployment_is_refused_with_field_and_reason(cluster: Cluster, spec: dict, said: str) -> None:
    assert said in cluster.refused(deployment(**spec))


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (
            {"restartPolicy": "Never"},
            'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"',
        ),
        (
            {"activeDeadlineSeconds": 5},
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in ReplicaSet is not Supported",
        ),
        ({"containers": []}, "spec.template.spec.containers: Required value"),
    ],
)
def test_pods_of_a_template_run_for_ever(cluster: Cluster, pod: dict, said: str) -> None:
    for body in (deployment(), replica_set()):
        body["spec"]["template"]["spec"] |= pod
        assert said in cluster.refused(body)


def test_a_deployment_without_selector_is_refused(cluster: Cluster) -> None:
    body = deployment()
    del body["spec"]["selector"]
    assert "spec.selector: Required value" in cluster.refused(body)


def test_counts_of_a_status_fit_together(cluster: Cluster) -> None:
    made = cluster.create(deployment())
    made["status"] = {"replicas": 1, "readyReplicas": 2, "availableReplicas": 3}
    assert cluster.refused_update(made, "status") == [
        "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
        "status.availableReplicas: Invalid value: 3: cannot be greater than status.replicas",
        "status.availableReplicas: Invalid value: 3: cannot be greater than readyReplicas",
    ]


def test_rows(cluster: Cluster) -> None:
    made = cluster.create(deployment(replicas=3))
    made["status"] = {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1}
    assert cluster.row(made) == ["web", "2/3", 3, 1, "0s", "c", "nginx:1.27", "app=web"]
    made = cluster.create(replica_set())
    assert made["status"] == {"replicas": 0}
    assert cluster.row(made) == ["web-1", 1, 0, 0, "0s", "c", "nginx:1.27", "app=web"]


def test_a_selector_as_text_is_sorted_by_key() -> None:
    expressions = [
        {"key": "tier", "operator": "In", "values": ["b", "a"]},
        {"key": "old", "operator": "DoesNotExist"},
        {"key": "env", "operator": "NotIn", "values": ["x"]},
        {"key": "any", "operator": "Exists"},
    ]
    selector = {"matchLabels": {"app": "web"}, "matchExpressions": expressions}
    assert label_selectors.text(selector) == "any,app=web,env notin (x),!old,tier in (a,b)"
    assert label_selectors.matches(selector, {"app": "web", "tier": "a", "any": ""})
    assert not label_selectors.matches(selector, {"app": "web", "tier": "c", "any": ""})
    assert not label_selectors.matches(selector, {"app": "web", "tier": "a", "any": "", "old": "1"})
    assert not label_selectors.matches(selector, {"app": "web", "tier": "a", "any": "", "env": "x"})
