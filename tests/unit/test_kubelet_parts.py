"""A pod in CRI's words, what is not honoured, and the Node object."""

import json

import pytest
from kubelet_world import NOW, deleted, pod

from podwire.cli.kubelet import node_name
from podwire.criapi import api_pb2
from podwire.errors import UsageError
from podwire.kubelet import honour, node, translate
from podwire.kubelet.daemon import changed
from podwire.kubelet.environment import ConfigError
from podwire.kubelet.heartbeat import settled
from podwire.kubelet.runtime import RuntimeStatus

pytestmark = pytest.mark.unit

SETTINGS = translate.NodeSettings("/logs")


def test_the_sandbox_has_the_labels_by_which_kubelets_find_it_again():
    config = translate.sandbox_config(pod(metadata={"labels": {"app": "x"}}), 2, SETTINGS)
    assert dict(config.labels) == {
        "app": "x",
        "io.kubernetes.pod.name": "web",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u1",
    }
    assert (config.metadata.name, config.metadata.uid, config.metadata.attempt) == ("web", "u1", 2)
    assert (config.hostname, config.log_directory) == ("web", "/logs/default_web_u1")
    assert config.linux.security_context.namespace_options.network == api_pb2.POD
    assert not config.HasField("dns_config")


def test_a_pod_on_the_hosts_network_says_so_and_has_no_name_of_its_own():
    config = translate.sandbox_config(pod(hostNetwork=True), 0, SETTINGS)
    assert config.linux.security_context.namespace_options.network == api_pb2.NODE
    assert config.hostname == ""


def test_host_names_have_at_most_63_characters():
    long = pod(metadata={"name": "x" * 62 + "-yyyy"})
    assert translate.hostname(long) == "x" * 62
    assert translate.hostname(pod(hostname="other")) == "other"


def test_only_host_ports_are_mapped():
    ports = [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP", "hostPort": 5353, "hostIP": "127.0.0.1"}]
    (mapping,) = translate.sandbox_config(pod({"name": "app", "ports": ports}), 0, SETTINGS).port_mappings
    assert (mapping.host_port, mapping.container_port, mapping.protocol, mapping.host_ip) == (
        5353,
        53,
        api_pb2.UDP,
        "127.0.0.1",
    )


@pytest.mark.parametrize(
    ("spec", "servers", "searches"),
    [
        ({}, ["10.96.0.10"], ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"]),
        ({"dnsPolicy": "Default"}, None, None),
        ({"hostNetwork": True}, None, None),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, ["10.96.0.10"], None),
        ({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["x"]}}, ["1.1.1.1"], ["x"]),
    ],
)
def test_dns_follows_the_pods_policy(spec, servers, searches):
    found = translate.dns_config(pod(**spec), translate.NodeSettings("", ("10.96.0.10",), "cluster.local"))
    if servers is None:
        assert found is None
    else:
        assert list(found.servers) == servers
        if searches is not None:
            assert list(found.searches) == searches


def config(container, **spec):
    the_pod = pod({"name": "app", **container}, **spec)
    return translate.container_config(the_pod, the_pod.spec.containers[0], 3, "image id", {"A": "1"})


def test_a_container_carries_what_the_real_kubelet_sends():
    found = config({"command": ["run", "$(A)"], "args": ["$(B)"], "workingDir": "/w", "ports": [{"containerPort": 80}]})
    assert (list(found.command), list(found.args), found.working_dir) == (["run", "1"], ["$(B)"], "/w")
    assert (found.metadata.name, found.metadata.attempt, found.log_path) == ("app", 3, "app/3.log")
    assert (found.image.image, found.image.user_specified_image) == ("image id", "nginx:1")
    assert found.labels["io.kubernetes.container.name"] == "app"
    assert found.annotations["io.kubernetes.container.restartCount"] == "3"
    assert found.annotations["io.kubernetes.pod.terminationGracePeriod"] == "30"
    assert json.loads(found.annotations["io.kubernetes.container.ports"])[0]["containerPort"] == 80
    assert [(pair.key, pair.value) for pair in found.envs] == [("A", b"1")]


def test_the_containers_user_comes_before_the_pods():
    whole = {"securityContext": {"runAsUser": 1, "runAsGroup": 2, "supplementalGroups": [3]}}
    own = {"runAsUser": 9, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False}
    found = config({"securityContext": own}, **whole).linux.security_context
    assert (found.run_as_user.value, found.run_as_group.value, list(found.supplemental_groups)) == (9, 2, [3])
    assert list(found.capabilities.drop_capabilities) == ["ALL"]
    assert found.no_new_privs


def test_a_container_that_must_not_be_root_and_would_be_is_refused():
    refused = pod({"name": "app", "securityContext": {"runAsNonRoot": True}})
    with pytest.raises(ConfigError, match="runAsNonRoot"):
        translate.check_user(refused, refused.spec.containers[0])
    fine = pod({"name": "app", "securityContext": {"runAsUser": 5}}, securityContext={"runAsNonRoot": True})
    translate.check_user(fine, fine.spec.containers[0])


def test_the_hash_changes_with_the_image_and_nothing_else():
    def of(**fields):
        return translate.container_hash(pod({"name": "app", **fields}).spec.containers[0])

    assert of(image="a") != of(image="b")
    assert of(image="a") == of(image="a", env=[{"name": "X"}])


def test_the_grace_period_is_that_of_the_deletion_then_of_the_pod_then_30():
    assert translate.grace_period(pod()) == 30
    assert translate.grace_period(pod(terminationGracePeriodSeconds=7)) == 7
    assert translate.grace_period(pod(terminationGracePeriodSeconds=7, metadata=deleted(0))) == 0


def test_what_is_not_honoured_is_listed_with_its_container():
    the_pod = pod(
        {
            "name": "app",
            "livenessProbe": {"tcpSocket": {}},
            "resources": {"limits": {"cpu": "1"}},
            "command": ["x"],
            "securityContext": {"privileged": True, "runAsUser": 5, "capabilities": {"add": ["NET_ADMIN", "CHOWN"]}},
        },
        "plain",
        volumes=[{"name": "data"}, {"name": "kube-api-access-x"}],
        hostPID=True,
    )
    assert honour.not_honoured(the_pod, frozenset({"app"})) == [
        "volumes (data)",
        "hostPID",
        "livenessProbe, resources, command, securityContext (capabilities.add (NET_ADMIN), privileged) of container app",
    ]
    assert honour.not_honoured(pod({"name": "app", "command": ["x"]}), frozenset()) == []
    mapped = pod({"name": "app", "ports": [{"containerPort": 80, "hostPort": 8080}]})
    (one,) = honour.not_honoured(mapped, frozenset())
    assert one.startswith("hostPort (")
    assert honour.not_honoured(mapped, frozenset(), host_ports=True) == []


def test_the_event_about_a_stand_in_names_the_ports():
    def message(**fields):
        return honour.stand_in_message(pod({"name": "app", "image": "nginx:1.25", **fields}).spec.containers[0])

    assert message(ports=[{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}]) == (
        'image "nginx:1.25" is not pulled: a stand-in answers on its declared ports: 80/TCP, 53/UDP'
    )
    assert "declares no port" in message()


FACTS = node.Facts("node-1", ("192.168.1.7", "fd00::7"), 2, 1024, "6.1", "Debian", "amd64", "m", "b", "podwire://0.1.0")


def test_a_node_is_not_ready_with_the_runtimes_own_words():
    problem = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:x"
    found = {
        one["type"]: one for one in node.status(FACTS, RuntimeStatus(network_problem=problem), {}, NOW)["conditions"]
    }
    ready = found["Ready"]
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "KubeletNotReady", problem)
    assert found["MemoryPressure"]["status"] == "False"


def test_a_ready_node_keeps_the_time_of_the_change():
    then = "2026-01-01T00:00:00Z"
    found = node.status(FACTS, RuntimeStatus(), {"Ready": ("True", then)}, NOW)
    ready = {one["type"]: one for one in found["conditions"]}["Ready"]
    assert (ready["status"], ready["lastTransitionTime"]) == ("True", then)
    later = node.status(FACTS, RuntimeStatus(), {"Ready": ("True", then)}, NOW + 60)
    assert node.comparable(later)["conditions"][3] == node.comparable(found)["conditions"][3]
    assert later != found


def test_the_node_object_has_the_well_known_labels_and_addresses():
    body = node.body(FACTS, {"zone": "a"}, node.status(FACTS, RuntimeStatus(), {}, NOW))
    labels = body["metadata"]["labels"]
    assert (
        labels["kubernetes.io/hostname"],
        labels["kubernetes.io/os"],
        labels["kubernetes.io/arch"],
        labels["zone"],
    ) == (
        "node-1",
        "linux",
        "amd64",
        "a",
    )
    assert body["status"]["addresses"] == [
        {"type": "InternalIP", "address": "192.168.1.7"},
        {"type": "InternalIP", "address": "fd00::7"},
        {"type": "Hostname", "address": "node-1"},
    ]
    assert body["status"]["capacity"] == {"cpu": "2", "memory": "1024Ki", "pods": "110"}
    assert body["status"]["nodeInfo"]["containerRuntimeVersion"] == "podwire://0.1.0"
    assert node.lease("node-1", "u", NOW)["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_a_runtime_that_falls_silent_is_given_half_a_minute():
    good, silent = RuntimeStatus(), RuntimeStatus("container runtime is down: x", answered=False)
    unready = RuntimeStatus(network_problem="x")
    assert settled(silent, silent, None, NOW) is silent
    assert settled(good, silent, NOW - 29, NOW) is good
    assert settled(good, silent, NOW - 31, NOW) is silent
    assert settled(good, unready, NOW, NOW) is unready
    assert settled(silent, good, NOW, NOW) is good


def test_changes_between_two_lists_are_found():
    assert changed({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "d": 4}) == {"b", "c", "d"}
    assert changed({}, {}) == set()


def test_a_node_name_is_a_dns_name():
    assert node_name("node-1.example") == "node-1.example"
    for name in ("", "Node", "-a", "a-", "a..b", "a_b", "x" * 64, "ä"):
        with pytest.raises(UsageError, match="DNS name"):
            node_name(name)
