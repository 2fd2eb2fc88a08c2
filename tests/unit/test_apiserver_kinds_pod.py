"""Pods: defaults, what admission adds, checks, what may change, deletion, the STATUS column."""

from __future__ import annotations

import copy

import pytest
from kinds_world import STAMP, Cluster, pod

from podwire.apiserver.kinds.podspec import image_tag

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_bare_pod_gets_the_defaults_of_a_real_api_server(cluster: Cluster) -> None:
    made = cluster.create(pod())
    assert made["spec"] == {
        "containers": [
            {
                "image": "nginx",
                "imagePullPolicy": "Always",
                "name": "c",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {"effect": "NoExecute", "key": f"node.kubernetes.io/{word}", "operator": "Exists", "tolerationSeconds": 300}
            for word in ("not-ready", "unreachable")
        ],
    }
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["metadata"]["generation"] == 1
    assert cluster.update(made) == made


def test_what_is_said_stays_as_it_is_said(cluster: Cluster) -> None:
    tolerations = [{"operator": "Exists"}]
    said = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "dnsPolicy": "Default",
        "enableServiceLinks": False,
        "tolerations": tolerations,
    }
    spec = cluster.create(pod(**copy.deepcopy(said)))["spec"]
    assert {key: spec[key] for key in said} == said


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("nginx", "latest"),
        ("nginx:latest", "latest"),
        ("nginx:1.27", "1.27"),
        ("host:5000/nginx", "latest"),
        ("host:5000/nginx:1", "1"),
        ("nginx@sha256:00", ""),
        ("podwire/host", "latest"),
    ],
)
def test_the_tag_of_an_image_decides_its_pull_policy(image: str, tag: str) -> None:
    assert image_tag(image) == tag


def test_ports_probes_and_volumes_get_their_defaults(cluster: Cluster) -> None:
    container = {
        "name": "c",
        "image": "nginx:1",
        "ports": [{"containerPort": 80}],
        "livenessProbe": {"httpGet": {"port": 80}},
        "lifecycle": {"preStop": {"httpGet": {"port": "web"}}},
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    volumes = [{"name": "a"}, {"name": "b", "configMap": {"name": "x"}}, {"name": "c", "hostPath": {"path": "/"}}]
    spec = cluster.create(pod(containers=[container], volumes=volumes, hostNetwork=True))["spec"]
    made = spec["containers"][0]
    assert made["ports"] == [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]
    assert made["livenessProbe"] == {
        "failureThreshold": 3,
        "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
        "periodSeconds": 10,
        "successThreshold": 1,
        "timeoutSeconds": 1,
    }
    assert made["lifecycle"]["preStop"]["httpGet"] == {"path": "/", "port": "web", "scheme": "HTTP"}
    assert made["env"][0]["valueFrom"]["fieldRef"]["apiVersion"] == "v1"
    assert made["imagePullPolicy"] == "IfNotPresent"
    assert spec["volumes"] == [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "configMap": {"name": "x", "defaultMode": 420}},
        {"name": "c", "hostPath": {"path": "/", "type": ""}},
    ]


@pytest.mark.parametrize(
    ("resources", "requests", "qos"),
    [
        ({"limits": {"cpu": "1000m", "memory": "0.5Gi"}}, {"cpu": "1", "memory": "512Mi"}, "Guaranteed"),
        ({"limits": {"cpu": 1}}, {"cpu": "1"}, "Burstable"),
        ({"requests": {"memory": "1024Ki"}}, {"memory": "1Mi"}, "Burstable"),
    ],
)
def test_quantities_are_canonical_and_decide_the_quality_of_service(
    cluster: Cluster, resources: dict, requests: dict, qos: str
) -> None:
    made = cluster.create(pod(containers=[{"name": "c", "image": "x", "resources": resources}]))
    assert made["spec"]["containers"][0]["resources"]["requests"] == requests
    assert made["status"]["qosClass"] == qos


def test_a_service_account_that_does_not_exist_is_refused(cluster: Cluster) -> None:
    assert cluster.refused(pod(serviceAccountName="robot"), 403) == [
        'pods "p" is forbidden: error looking up service account default/robot: serviceaccount "robot" not found'
    ]
    metadata = {"name": "robot", "namespace": "default"}
    cluster.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    assert cluster.create(pod(serviceAccountName="robot"))["spec"]["serviceAccount"] == "robot"


def one(**container) -> dict:
    return {"containers": [{"name": "c", "image": "x", **container}]}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"containers": []}, "spec.containers: Required value"),
        ({"containers": [{"name": "c"}]}, "spec.containers[0].image: Required value"),
        ({"containers": [{"image": "x"}]}, "spec.containers[0].name: Required value"),
        (
            {"containers": [{"name": "c", "image": "x"}, {"name": "c", "image": "y"}]},
            'spec.containers[1].name: Duplicate value: "c"',
        ),
        (
            one(image=" x"),
            'spec.containers[0].image: Invalid value: " x": must not have leading or trailing whitespace',
        ),
        (one(ports=[{}]), "spec.containers[0].ports[0].containerPort: Required value"),
        (
            one(ports=[{"containerPort": 70000}]),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            one(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]),
            'spec.containers[0].ports[1].name: Duplicate value: "a"',
        ),
        (
            one(ports=[{"containerPort": 1, "protocol": "tcp"}]),
            'spec.containers[0].ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP"',
        ),
        (
            one(ports=[{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]),
            'spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//9"',
        ),
        (
            one(imagePullPolicy="Sometimes"),
            (
                'spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", '
                '"IfNotPresent", "Never"'
            ),
        ),
        (
            one(resources={"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
            'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            one(resources={"limits": {"disk": "1"}}),
            'spec.containers[0].resources.limits: Invalid value: "disk": must be a standard resource for containers',
        ),
        (one(livenessProbe={}), "spec.containers[0].livenessProbe: Required value: must specify a handler type"),
        (
            one(livenessProbe={"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}}),
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (one(env=[{"name": "a=b"}]), None),
        (
            {"restartPolicy": "Sometimes"},
            'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"',
        ),
        (
            {"initContainers": [{"name": "c", "image": "x"}]},
            'spec.initContainers[0].name: Duplicate value: "c"',
        ),
        (
            {"initContainers": [{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["x"]}}}]},
            (
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without "
                "restartPolicy=Always"
            ),
        ),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
        ),
        ({"volumes": [{"name": "a"}, {"name": "a"}]}, 'spec.volumes[1].name: Duplicate value: "a"'),
        (
            {"activeDeadlineSeconds": 0},
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        ({"nodeName": "Node_1"}, None),
    ],
)
def test_a_wrong_pod_is_refused_with_field_and_reason(cluster: Cluster, spec: dict, said: str | None) -> None:
    found = cluster.refused(pod(**spec))
    assert said is None or said in found


def test_only_images_deadlines_and_tolerations_of_a_pod_change(cluster: Cluster) -> None:
    made = cluster.create(pod())
    made["spec"]["containers"][0]["image"] = "nginx:2"
    made["spec"]["tolerations"].append({"key": "a", "operator": "Exists"})
    changed = cluster.update(made)
    assert changed["metadata"]["generation"] == 2
    for key, value in (("nodeName", "node-1"), ("hostNetwork", True), ("restartPolicy", "Never")):
        body = copy.deepcopy(changed)
        body["spec"][key] = value
        (said,) = cluster.refused_update(body)
        assert said.startswith(
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
            "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
        )
        assert key in said
    body = copy.deepcopy(changed)
    body["spec"]["containers"].append({"name": "d", "image": "x"})
    assert cluster.refused_update(body) == ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    body = copy.deepcopy(changed)
    body["spec"]["tolerations"].pop(0)
    assert cluster.refused_update(body) == [
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    ]


def test_a_status_update_keeps_addresses_in_step_and_the_spec_as_it_was(cluster: Cluster) -> None:
    made = cluster.create(pod())
    body = copy.deepcopy(made)
    body["spec"]["nodeName"] = "node-1"
    body["status"] = {"phase": "Running", "podIP": "10.244.1.5", "hostIP": "10.0.0.1"}
    after = cluster.update(body, "status")
    assert after["spec"] == made["spec"]
    assert after["metadata"]["generation"] == 1
    assert after["status"]["podIPs"] == [{"ip": "10.244.1.5"}]
    assert after["status"]["hostIPs"] == [{"ip": "10.0.0.1"}]
    assert after["status"]["qosClass"] == "BestEffort"
    body = {**after, "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.6"}, {"ip": "10.244.1.7"}]}}
    assert cluster.refused_update(body, "status") == [
        (
            'status.podIPs: Invalid value: [{"ip":"10.244.1.6"},{"ip":"10.244.1.7"}]: may specify no more than one IP for '
            "each IP family"
        )
    ]


def test_a_pod_that_a_node_has_is_only_marked_and_any_other_goes_at_once(cluster: Cluster) -> None:
    pending = cluster.create(pod("pending"))
    assert cluster.delete(pending)["status"] == "Success"
    running = cluster.create(pod("running", nodeName="node-1", terminationGracePeriodSeconds=7))
    marked = cluster.delete(running)
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 7
    assert marked["metadata"]["deletionTimestamp"] == "2027-01-15T08:00:07Z"
    assert cluster.delete(running, grace=0)["status"] == "Success"
    ended = cluster.create(pod("ended", nodeName="node-1"))
    cluster.update({**ended, "status": {"phase": "Succeeded"}}, "status")
    assert cluster.delete(ended)["status"] == "Success"


def container(name: str = "c", **state) -> dict:
    ready = state.pop("ready", False)
    return {"name": name, "ready": ready, "restartCount": state.pop("restarts", 0), "state": state}


RUNNING = {"startedAt": STAMP}


@pytest.mark.parametrize(
    ("status", "spec", "ready", "word"),
    [
        ({"phase": "Pending"}, {}, "0/1", "Pending"),
        (
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ContainerCreating"})]},
            {},
            "0/1",
            "ContainerCreating",
        ),
        ({"phase": "Running", "containerStatuses": [container(running=RUNNING, ready=True)]}, {}, "1/1", "Running"),
        ({"phase": "Running", "containerStatuses": [container(running=RUNNING)]}, {}, "0/1", "Running"),
        (
            {"phase": "Running", "containerStatuses": [container(waiting={"reason": "CrashLoopBackOff"})]},
            {},
            "0/1",
            "CrashLoopBackOff",
        ),
        (
            {"phase": "Succeeded", "containerStatuses": [container(terminated={"exitCode": 0, "reason": "Completed"})]},
            {},
            "0/1",
            "Completed",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]},
            {},
            "0/1",
            "ExitCode:3",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 137, "signal": 9})]},
            {},
            "0/1",
            "Signal:9",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, {}, "0/1", "Evicted"),
        (
            {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    container("c", terminated={"exitCode": 0, "reason": "Completed"}),
                    container("d", running=RUNNING, ready=True),
                ],
            },
            {"containers": [{"name": "c", "image": "x"}, {"name": "d", "image": "x"}]},
            "1/2",
            "Running",
        ),
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
            },
            {},
            "0/1",
            "SchedulingGated",
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [container("i", running=RUNNING)]},
            {"initContainers": [{"name": "i", "image": "x"}]},
            "0/1",
            "Init:0/1",
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [container("i", terminated={"exitCode": 1, "reason": "Error"})],
            },
            {"initContainers": [{"name": "i", "image": "x"}]},
            "0/1",
            "Init:Error",
        ),
        (
            {"phase": "Pending", "initContainerStatuses": [container("i", waiting={"reason": "ImagePullBackOff"})]},
            {"initContainers": [{"name": "i", "image": "x"}]},
            "0/1",
            "Init:ImagePullBackOff",
        ),
        (
            {
                "phase": "Running",
                "initContainerStatuses": [{**container("s", running=RUNNING, ready=True), "started": True}],
                "containerStatuses": [container(running=RUNNING, ready=True)],
            },
            {"initContainers": [{"name": "s", "image": "x", "restartPolicy": "Always"}]},
            "2/2",
            "Running",
        ),
    ],
)
def test_the_status_column(cluster: Cluster, status: dict, spec: dict, ready: str, word: str) -> None:
    made = cluster.create(pod(**spec))
    made["status"] = status
    assert cluster.row(made)[1:3] == [ready, word]
    made["metadata"]["deletionTimestamp"] = STAMP
    ended = status["phase"] in {"Failed", "Succeeded"}
    assert cluster.row(made)[2] == (word if ended else "Terminating")


def test_a_pod_of_a_lost_node_is_unknown(cluster: Cluster) -> None:
    made = cluster.create(pod())
    made["status"] = {"phase": "Running", "reason": "NodeLost"}
    made["metadata"]["deletionTimestamp"] = STAMP
    assert cluster.row(made)[2] == "Unknown"


def test_restarts_say_when_the_last_one_was(cluster: Cluster) -> None:
    made = cluster.create(pod())
    ended = {**container(running=RUNNING, ready=True, restarts=3)}
    made["status"] = {"phase": "Running", "containerStatuses": [ended]}
    assert cluster.row(made)[3] == "3"
    ended["lastState"] = {"terminated": {"exitCode": 1, "finishedAt": "2027-01-15T07:55:00Z"}}
    assert cluster.row(made)[3] == "3 (5m ago)"


def test_the_wide_cells_of_a_pod(cluster: Cluster) -> None:
    made = cluster.create(pod(readinessGates=[{"conditionType": "a.b/c"}, {"conditionType": "d"}]))
    assert cluster.row(made) == ["p", "0/1", "Pending", "0", "0s", "<none>", "<none>", "<none>", "0/2"]
    made["spec"]["nodeName"] = "node-1"
    made["status"] |= {"podIPs": [{"ip": "10.244.0.11"}], "conditions": [{"type": "d", "status": "True"}]}
    assert cluster.row(made)[5:] == ["10.244.0.11", "node-1", "<none>", "1/2"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.nodeName", "node-1"),
        ("spec.restartPolicy", "Always"),
        ("spec.hostNetwork", "false"),
        ("status.phase", "Pending"),
        ("status.podIP", ""),
        ("metadata.name", "p"),
    ],
)
def test_fields_that_can_be_selected(cluster: Cluster, path: str, value: str) -> None:
    made = cluster.create(pod(nodeName="node-1"))
    assert cluster.resource(made).strategy.field(made, path) == value
