"""What a batch of changes touches, and that one bad object costs only itself."""

from __future__ import annotations

import threading

import pytest

from podwire.kube.kinds import ENDPOINT_SLICES, SERVICES
from podwire.kubeproxy.changes import Batch, Changes
from podwire.kubeproxy.family import IPV4, IPV6
from podwire.kubeproxy.state import State

pytestmark = pytest.mark.unit


def service(name="web", ip="10.96.0.1", labels=None, **spec):
    ports = spec.pop("ports", [{"name": "http", "port": 80}])
    metadata = {"name": name, "namespace": "ns", "labels": labels or {}, "resourceVersion": str(id(spec))}
    return SERVICES.convert({"metadata": metadata, "spec": {"clusterIP": ip, "ports": ports, **spec}})


def piece(*ips, name="web-1", of="web", labels=None, family="IPv4", **extra):
    return ENDPOINT_SLICES.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "labels": {"kubernetes.io/service-name": of, **(labels or {})},
            },
            "addressType": family,
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [ip], **extra} for ip in ips],
        }
    )


def batch(services=(), slices=()):
    return Batch({item.key: item for item in services}, {item.key: item for item in slices})


@pytest.fixture
def state():
    made = State(IPV4, "node-1")
    made.apply(batch([service()], [piece("10.1.0.1")]))
    return made


def addresses(state, key="ns/web"):
    return [endpoint.address for port in state.ports_of(key) for endpoint in state.endpoints(port)]


def test_what_changes_nothing_that_is_read_touches_nothing(state):
    assert state.apply(batch([service(selector={"app": "x"})], [piece("10.1.0.1", zone="z")])) == set()


def test_a_service_and_its_endpoints_touch_the_service(state):
    assert state.apply(batch([service(ports=[{"name": "http", "port": 81}])])) == {"ns/web"}
    assert state.apply(batch(slices=[piece("10.1.0.2")])) == {"ns/web"}
    assert addresses(state) == ["10.1.0.2:8080"]
    assert state.apply(Batch(slices={"ns/web-1": None})) == {"ns/web"}
    assert addresses(state) == []
    assert state.apply(Batch(slices={"ns/web-1": None})) == set()


def test_a_slice_that_changes_hands_touches_both_services(state):
    assert state.apply(batch(slices=[piece("10.1.0.1", of="other")])) == {"ns/web", "ns/other"}
    assert addresses(state) == []


@pytest.mark.parametrize(
    "hidden",
    [
        {"labels": {"service.kubernetes.io/headless": ""}},
        {"labels": {"service.kubernetes.io/service-proxy-name": "mine"}},
        {"family": "IPv6"},
        {"family": "FQDN"},
    ],
)
def test_a_slice_that_is_no_longer_for_us_is_gone(state, hidden):
    assert state.apply(batch(slices=[piece("10.1.0.1", **hidden)])) == {"ns/web"}
    assert addresses(state) == []


@pytest.mark.parametrize(
    "skipped",
    [
        {"ip": "None"},
        {"type": "ExternalName"},
        {"labels": {"service.kubernetes.io/service-proxy-name": ""}},
        {"ip": "fd00::1"},
        {"clusterIPs": ["fd00::1"], "ipFamilies": ["IPv6"]},
        {"ip": "10.96.0.999"},
    ],
)
def test_a_service_that_is_not_ours_has_no_ports(state, skipped):
    assert state.apply(batch([service(**skipped)])) == {"ns/web"}
    assert state.services() == []


def test_each_family_has_its_own_address_and_endpoints():
    dual = service(
        clusterIPs=["fd00::0001", "10.96.0.7"], ipFamilies=["IPv6", "IPv4"], externalIPs=["192.0.2.1", "2001:db8::1"]
    )
    slices = [piece("10.1.0.1"), piece("fd00:1:0::1", name="web-2", family="IPv6")]
    found = {}
    for family in (IPV4, IPV6):
        state = State(family, "node-1")
        state.apply(batch([dual], slices))
        (port,) = state.ports_of("ns/web")
        found[family.name] = (port.cluster_ip, port.external_ips, addresses(state))
    assert found == {
        "IPv4": ("10.96.0.7", ("192.0.2.1",), ["10.1.0.1:8080"]),
        "IPv6": ("fd00::1", ("2001:db8::1",), ["[fd00:1::1]:8080"]),
    }


def test_a_malformed_object_costs_only_itself(state, caplog):
    bad = service("bad", sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": "soon"}})
    assert state.apply(batch([bad, service("good", "10.96.0.2")])) == {"ns/good"}
    assert state.services() == ["ns/good", "ns/web"]
    assert "Service left out" in caplog.text
    state.apply(batch(slices=[piece("10.1.0.1", "not an address", "10.1.0.3")]))
    assert addresses(state) == ["10.1.0.1:8080", "10.1.0.3:8080"]


def test_changes_fold_to_the_newest_of_each_object():
    changes = Changes()
    for ip in ("10.1.0.1", "10.1.0.2", "10.1.0.3"):
        changes.slice("ns/web-1", None, piece(ip))
    changes.service("ns/gone", None, service("gone"))
    changes.service("ns/gone", service("gone"), None)
    assert changes.pending() == (1, 1)
    drained = changes.drain()
    assert drained.slices["ns/web-1"].endpoints[0].addresses == ("10.1.0.3",)
    assert drained.services == {"ns/gone": None}
    assert not changes.drain()


def test_nothing_is_lost_between_writers_and_the_reader():
    changes, seen = Changes(), {}

    def write(number):
        for count in range(500):
            changes.service(f"ns/s{number}", None, service(f"s{number}", ports=[{"port": count + 1}]))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen.update(changes.drain().services)
    seen.update(changes.drain().services)
    assert {key: item.spec.ports[0].port for key, item in seen.items()} == {f"ns/s{number}": 500 for number in range(4)}
