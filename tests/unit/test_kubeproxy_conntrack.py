"""Which UDP flows are stale, as the real kube-proxy showed over time, and the two differences that are on purpose."""

from __future__ import annotations

import pytest

from kubeproxy_golden import cases, objects
from podwire.kernel.conntrack import UDP, Flow, Tuple
from podwire.kube.kinds import ENDPOINT_SLICES
from podwire.kubeproxy.changes import Batch
from podwire.kubeproxy.conntrack import backends, stale
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.state import State

pytestmark = pytest.mark.unit

CASE = "38-udp-conntrack"
NODE_IPS = frozenset({"172.20.5.2", "127.0.0.1"})


def flow(entry):
    source, destination = entry["orig"].split("->")
    source, source_port = source.split(":")
    destination, port = destination.split(":")
    reply, reply_port = entry["reply_from"].split(":")
    original = Tuple(source, int(source_port), destination, int(port))
    return Flow(4, UDP, original, Tuple(reply, int(reply_port), source, int(source_port)), b"")


def udp(entries):
    return [flow(entry) for entry in entries if entry["proto"] == "udp"]


def state_with(*endpoints):
    """The recorded Service, with these (address, conditions)."""
    state = State(IPV4, "worker-b")
    batch = objects(cases()[CASE]).batch
    (key,) = batch.slices
    recorded = batch.slices[key]
    batch.slices[key] = ENDPOINT_SLICES.convert(
        {
            "metadata": {"name": "dns-a", "namespace": "default", "labels": recorded.metadata.labels},
            "addressType": "IPv4",
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
            "endpoints": [{"addresses": [ip], "conditions": conditions} for ip, conditions in endpoints],
        }
    )
    state.apply(batch)
    return state


READY = {"ready": True}
TERMINATING = {"ready": False, "serving": True, "terminating": True}
GONE = {"ready": False, "serving": False, "terminating": True}
STEPS = [
    # (what the real one did from step n to n+1, endpoints at that time)
    (0, [("10.130.6.160", READY)]),
    (1, [("10.130.6.160", TERMINATING), ("10.130.8.160", READY)]),
    (2, [("10.130.6.160", GONE), ("10.130.8.160", READY)]),
    (5, [("10.130.4.160", READY)]),
]


@pytest.mark.parametrize(("number", "endpoints"), STEPS)
def test_flows_are_deleted_as_the_real_one_does_but_for_those_to_other_hosts(number, endpoints):
    steps = cases()[CASE]["conntrack"]["modes"]["iptables"]
    steps = steps["steps"] if isinstance(steps, dict) else steps
    before, after = udp(steps[number]["conntrack"]), {repr(flow) for flow in udp(steps[number + 1]["conntrack"])}
    real = {repr(flow) for flow in before} - after
    ours = {repr(flow) for flow in stale(before, backends(state_with(*endpoints)), NODE_IPS)}
    passing = {repr(flow) for flow in before if flow.original.destination == "203.0.113.99"}
    assert ours == real - passing
    assert not ours & passing


def test_with_no_endpoint_left_every_flow_to_the_service_is_stale():
    steps = cases()[CASE]["conntrack"]["modes"]["iptables"]
    steps = steps["steps"] if isinstance(steps, dict) else steps
    flows = udp(steps[4]["conntrack"])
    ours = stale(flows, backends(state_with()), NODE_IPS)
    assert {flow.original.destination for flow in ours} == {"10.96.60.1", "172.20.5.2", "198.51.100.120"}


def test_flows_of_a_service_that_is_gone_are_left_alone():
    state = state_with(("10.130.4.160", READY))
    state.apply(Batch(services={"default/dns": None}))
    flows = udp([{"proto": "udp", "orig": "10.130.7.77:40000->10.96.60.1:53", "reply_from": "10.130.6.160:53"}])
    assert stale(flows, backends(state), NODE_IPS) == []


def test_the_same_port_of_another_protocol_is_no_service():
    state = state_with(("10.130.4.160", READY))
    assert ("10.96.60.1", 53) in backends(state).by_address
    assert set(backends(state).by_node_port) == {30953}
