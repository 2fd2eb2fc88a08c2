"""The environment of containers: Services, the pod's own fields, ConfigMaps, references."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubelet_world import pod

from podwire.kube.kinds import SERVICES
from podwire.kubelet import environment
from podwire.kubelet.environment import ConfigError, Downward, container_environment, expand, service_variables

pytestmark = pytest.mark.unit

DOWNWARD = Downward("node-1", ("192.168.1.7", "fd00::7"), ("10.1.0.2",))


def service(name, ip="10.96.0.9", namespace="default", ports=({"port": 80},)):
    return SERVICES.convert(
        {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterIP": ip, "ports": list(ports)}}
    )


def test_the_variables_of_a_service_are_the_kubelets():
    """The example of the Kubernetes documentation (concepts/services-networking/service, "Environment variables")."""
    found = service_variables([service("redis-primary", "10.0.0.11", ports=[{"port": 6379}])], "default", links=True)
    assert found == {
        "REDIS_PRIMARY_SERVICE_HOST": "10.0.0.11",
        "REDIS_PRIMARY_SERVICE_PORT": "6379",
        "REDIS_PRIMARY_PORT": "tcp://10.0.0.11:6379",
        "REDIS_PRIMARY_PORT_6379_TCP": "tcp://10.0.0.11:6379",
        "REDIS_PRIMARY_PORT_6379_TCP_PROTO": "tcp",
        "REDIS_PRIMARY_PORT_6379_TCP_PORT": "6379",
        "REDIS_PRIMARY_PORT_6379_TCP_ADDR": "10.0.0.11",
    }


def test_named_ports_udp_and_ipv6_have_their_own_forms():
    ports = [{"name": "dns-tcp", "port": 53}, {"name": "dns", "port": 54, "protocol": "UDP"}]
    found = service_variables([service("dns", "fd00::a", ports=ports)], "default", links=True)
    assert found["DNS_SERVICE_HOST"] == "fd00::a"
    assert (found["DNS_SERVICE_PORT"], found["DNS_SERVICE_PORT_DNS_TCP"], found["DNS_SERVICE_PORT_DNS"]) == (
        "53",
        "53",
        "54",
    )
    assert found["DNS_PORT"] == "tcp://[fd00::a]:53"
    assert found["DNS_PORT_54_UDP"] == "udp://[fd00::a]:54"
    assert found["DNS_PORT_54_UDP_PROTO"] == "udp"


def test_a_pod_sees_the_services_of_its_namespace_and_kubernetes():
    services = [
        service("kubernetes", "10.96.0.1", ports=[{"name": "https", "port": 443}]),
        service("back", namespace="shop"),
        service("front"),
        service("headless", "None", "shop"),
        service("external", "", "shop"),
    ]

    def hosts(namespace, links):
        found = service_variables(services, namespace, links=links)
        return sorted(name for name in found if name.endswith("_SERVICE_HOST"))

    assert hosts("shop", links=True) == ["BACK_SERVICE_HOST", "KUBERNETES_SERVICE_HOST"]
    assert hosts("default", links=True) == ["FRONT_SERVICE_HOST", "KUBERNETES_SERVICE_HOST"]
    assert hosts("shop", links=False) == ["KUBERNETES_SERVICE_HOST"]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)-$(B)", "1-2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("", ""),
    ],
)
def test_references_are_replaced_as_kubernetes_does(text, result):
    assert expand(text, {"A": "1", "B": "2"}) == result


@given(st.text(max_size=50))
def test_text_without_a_dollar_sign_stays_as_it_is(text):
    assert expand(text.replace("$", ""), {"A": "1"}) == text.replace("$", "")


def made(container, config_maps=None, services=None, **spec):
    the_pod = pod({"name": "app", **container}, **spec)
    return container_environment(the_pod, the_pod.spec.containers[0], DOWNWARD, services or {}, (config_maps or {}).get)


def test_later_sources_override_earlier_ones_and_services_come_last():
    env = [
        {"name": "ONE", "value": "own"},
        {"name": "TWO", "value": "$(ONE) $(FROM) $(BACK_SERVICE_HOST) $(LATER)"},
        {"name": "LATER", "value": "x"},
        {"name": "FRONT_SERVICE_HOST", "value": "mine"},
    ]
    found = made(
        {"env": env, "envFrom": [{"configMapRef": {"name": "c"}}, {"prefix": "P_", "configMapRef": {"name": "c"}}]},
        {"c": {"FROM": "map", "ONE": "map"}},
        {"BACK_SERVICE_HOST": "10.0.0.1", "FRONT_SERVICE_HOST": "10.0.0.2"},
    )
    assert found == {
        "FROM": "map",
        "ONE": "own",
        "P_FROM": "map",
        "P_ONE": "map",
        "TWO": "own map 10.0.0.1 $(LATER)",
        "LATER": "x",
        "FRONT_SERVICE_HOST": "mine",
        "BACK_SERVICE_HOST": "10.0.0.1",
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "shop"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "192.168.1.7"),
        ("status.hostIPs", "192.168.1.7,fd00::7"),
        ("status.podIP", "10.1.0.2"),
        ("status.podIPs", "10.1.0.2"),
    ],
)
def test_fields_of_the_pod_can_be_referred_to(path, value):
    env = [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    assert made({"env": env}, metadata={"labels": {"app": "shop"}}, serviceAccountName="robot") == {"X": value}


def reference(kind, **fields):
    return {"env": [{"name": "X", "valueFrom": {kind: fields}}]}


def test_config_map_keys_are_read():
    assert made(reference("configMapKeyRef", name="c", key="k"), {"c": {"k": "v"}}) == {"X": "v"}
    assert made(reference("configMapKeyRef", name="c", key="k", optional=True)) == {}
    assert made({"envFrom": [{"configMapRef": {"name": "c", "optional": True}}]}) == {}


@pytest.mark.parametrize(
    ("container", "part"),
    [
        (reference("configMapKeyRef", name="c", key="k"), 'configmap "c" not found'),
        (reference("configMapKeyRef", name="there", key="k"), "couldn't find key k in ConfigMap default/there"),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, 'configmap "c" not found'),
        (reference("secretKeyRef", name="s", key="k"), 'secret "s" not found'),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, 'secret "s" not found'),
        (reference("fieldRef", fieldPath="spec.nope"), "unsupported fieldPath: spec.nope"),
    ],
)
def test_what_cannot_be_resolved_is_said(container, part):
    with pytest.raises(ConfigError) as caught:
        made(container, {"there": {}})
    assert part in caught.value.answer


def test_optional_secrets_are_passed_over():
    assert made(reference("secretKeyRef", name="s", key="k", optional=True)) == {}
    assert environment.service_variables([], "default", links=True) == {}
