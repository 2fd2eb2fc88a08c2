"""The reconciler on a kernel in memory: from any state it comes to the plan, and to nothing but the plan."""

from __future__ import annotations

import dataclasses
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.flanneld import vxlan
from podwire.flanneld.lease import Lease
from podwire.flanneld.netconf import VxlanOptions
from podwire.flanneld.plan import Address, Fdb, Neighbour, Plan, Route, Underlay, Vxlan
from podwire.flanneld.reconcile import Device, FoundRoute, Scope, Verb, reconcile, steps, wanted_route
from podwire.testing.memory_kernel import MemoryKernel

pytestmark = pytest.mark.unit

ip, net = ipaddress.ip_address, ipaddress.ip_network
UNDERLAY = Underlay("eth0", 1500, (ip("192.168.50.10"), ip("fd50::10")), (ip("192.168.50.10"), ip("fd50::10")))
NETWORKS = (net("10.244.0.0/16"), net("fd00:10:244::/56"))
ON_LINK = {ip(f"192.168.50.{number}") for number in range(20, 25)}


def lease(number: int, version: int, mac: int = 0) -> Lease:
    subnet = f"10.244.{number}.0/24" if version == 4 else f"fd00:10:244:{number:x}::/64"
    public = f"192.168.50.{number + 10}" if version == 4 else f"fd50::{number + 10}"
    return Lease(f"n{number}", net(subnet), ip(public), "vxlan", f"02:00:00:00:{mac:02x}:{number:02x}", 1)


def plan_for(own: int, peers: frozenset[tuple[int, int]], dual: bool, direct: bool) -> Plan:
    options = VxlanOptions(direct_routing=direct)
    plan = Plan()
    for version in (4, 6) if dual else (4,):
        others = [lease(number, version, mac) for number, mac in sorted(peers) if number != own]
        plan += vxlan.plan(options, UNDERLAY, lease(own, version), others, ON_LINK)
    return plan


# A few nodes with a few MACs, so that what is drawn at different times collides. One MAC a node at a time.
PEERS = st.dictionaries(st.integers(1, 12), st.integers(0, 2), max_size=8).map(lambda some: frozenset(some.items()))
PLANS = st.builds(plan_for, st.integers(1, 3), PEERS, st.booleans(), st.booleans())
SCOPE = Scope(frozenset({"flannel.1", "flannel-v6.1"}), NETWORKS)

NUMBER = st.integers(0, 15)
JUNK = st.one_of(
    st.builds(lambda n: Neighbour("flannel.1", ip(f"10.244.{n}.0"), "02:00:00:00:99:99"), NUMBER),
    st.builds(lambda n, m: Fdb("flannel.1", f"02:00:00:00:00:{m:02x}", ip(f"192.168.50.{n}")), NUMBER, NUMBER),
    st.builds(lambda n: Address("flannel.1", ipaddress.ip_interface(f"10.244.{n}.0/32")), NUMBER),
    st.builds(
        lambda n, via, proto: FoundRoute(Route(net(f"10.244.{n}.0/24"), ip(via), "flannel.1", onlink=True), proto),
        NUMBER,
        st.sampled_from(["10.244.3.0", "10.244.4.0"]),
        st.sampled_from([3, 4, 87]),
    ),
    st.builds(lambda n: FoundRoute(Route(net(f"10.244.{n}.0/24"), ip("192.168.50.9"), "eth0"), 87), NUMBER),
)


def put(kernel: MemoryKernel, item: object) -> None:
    match item:
        case Neighbour() if item.device in kernel.devices:
            kernel.neighbours[item.device, item.ip] = item
        case Fdb() if item.device in kernel.devices:
            kernel.fdb[item.device, item.mac] = item
        case Address() if item.device in kernel.devices:
            kernel.addresses.add(item)
        case FoundRoute() if item.route.device == "eth0" or item.route.device in kernel.devices:
            kernel.routes[item.key] = item


def holds(kernel: MemoryKernel, plan: Plan) -> None:
    """The kernel has just the plan, but for what is foreign."""
    state = kernel.observe(SCOPE)
    assert {device.vxlan for device in state.devices} == set(plan.devices)
    assert all(device.up and device.marked and device.txqlen == 0 for device in state.devices)
    assert state.addresses == frozenset(plan.addresses)
    assert state.neighbours == frozenset(plan.neighbours)
    assert state.fdb == frozenset(plan.fdb)
    assert state.routes == {wanted_route(route) for route in plan.routes}


@given(PLANS, st.lists(JUNK, max_size=12), PLANS)
def test_from_any_plan_and_any_junk_it_comes_to_the_other_plan_and_rests(first, junk, second):
    kernel = MemoryKernel()
    reconcile(first, SCOPE, kernel)
    for item in junk:
        put(kernel, item)
    assert reconcile(second, SCOPE, kernel).failed == ()
    holds(kernel, second)
    assert steps(second, kernel.observe(SCOPE)) == []


BREAK = st.sampled_from(["delete", "down", "address", "mac", "mtu", "vni", "kind", "unmark"])


@given(PLANS.filter(lambda plan: plan.devices), st.lists(BREAK, max_size=4))
def test_whatever_happens_to_the_device_it_comes_back_to_the_plan(plan, breaks):
    kernel = MemoryKernel()
    reconcile(plan, SCOPE, kernel)
    for what in breaks:
        device = kernel.devices.get("flannel.1")
        if device is None or device.vxlan is None:
            continue
        if what == "delete":
            kernel.delete_device("flannel.1")
        elif what == "down":
            kernel.take_down("flannel.1")
        elif what == "address":
            for address in sorted(kernel.addresses, key=str)[:1]:
                kernel.delete_address(address)
        elif what == "kind":
            kernel.delete_device("flannel.1")
            kernel.devices["flannel.1"] = Device("flannel.1", "bridge", None, up=True, txqlen=1000, marked=False)
        elif what == "unmark":
            kernel.devices["flannel.1"] = dataclasses.replace(device, marked=False, txqlen=1000)
        else:
            value = {"mac": "02:00:00:00:77:77", "mtu": 1280, "vni": 9}[what]
            changed = dataclasses.replace(device.vxlan, **{what: value})
            kernel.devices["flannel.1"] = dataclasses.replace(device, vxlan=changed)
    assert reconcile(plan, SCOPE, kernel).failed == ()
    holds(kernel, plan)


@given(PLANS, PLANS, st.sets(st.integers(0, 40)))
def test_a_step_that_fails_costs_only_itself_and_the_next_time_it_is_done(first, second, failing):
    kernel = MemoryKernel()
    reconcile(first, SCOPE, kernel)
    count = iter(range(10_000))
    kernel.fail = lambda _: next(count) in failing
    reconcile(second, SCOPE, kernel)
    kernel.fail = lambda _: False
    assert reconcile(second, SCOPE, kernel).failed == ()
    holds(kernel, second)


@given(PLANS)
def test_a_step_that_never_succeeds_is_reported_and_the_rest_is_done(plan):
    kernel = MemoryKernel()
    victims = [item for item in plan.items() if isinstance(item, Neighbour)]
    kernel.fail = lambda step: step.item in victims[:1]
    outcome = reconcile(plan, SCOPE, kernel)
    assert [step.item for step, _ in outcome.failed] == victims[:1]
    state = kernel.observe(SCOPE)
    assert state.routes == {wanted_route(route) for route in plan.routes}


@given(PLANS, PLANS)
def test_what_both_plans_have_is_not_touched(first, second):
    kernel = MemoryKernel()
    reconcile(first, SCOPE, kernel)
    kernel.performed.clear()
    reconcile(second, SCOPE, kernel)
    common = set(first.items()) & set(second.items())
    # Unless the device under it had to be made anew or got another MAC.
    spoilt = {item.name for step in kernel.performed if isinstance(item := step.item, Vxlan)}
    touched = {step.item for step in kernel.performed if not isinstance(step.item, Vxlan)}
    assert not {item for item in common & touched if getattr(item, "device", "") not in spoilt}


FOREIGN = [
    FoundRoute(Route(net("10.244.200.0/24"), ip("192.168.50.1"), "eth0"), 3),
    FoundRoute(Route(net("10.244.201.0/24"), ip("192.168.50.1"), "eth0"), 4),
    FoundRoute(Route(net("172.17.0.0/16"), ip("192.168.50.1"), "eth0"), 87),
    FoundRoute(Route(net("0.0.0.0/0"), ip("192.168.50.1"), "eth0"), 87),
    FoundRoute(Route(net("10.0.0.0/8"), ip("192.168.50.1"), "eth0"), 87),
]


@given(PLANS, PLANS)
def test_foreign_routes_and_our_number_outside_the_pod_network_are_never_touched(first, second):
    kernel = MemoryKernel()
    for route in FOREIGN:
        kernel.routes[route.key] = route
    reconcile(first, SCOPE, kernel)
    outcome = reconcile(second, SCOPE, kernel)
    assert set(FOREIGN) <= set(kernel.routes.values())
    assert outcome.foreign == set(FOREIGN[:2])


def test_a_foreign_route_to_a_peers_prefix_is_replaced():
    kernel = MemoryKernel()
    theirs = FoundRoute(Route(net("10.244.5.0/24"), ip("192.168.50.9"), "eth0"), 3)
    kernel.routes[theirs.key] = theirs
    plan = plan_for(1, frozenset({(5, 0)}), dual=False, direct=False)
    reconcile(plan, SCOPE, kernel)
    holds(kernel, plan)


def test_a_route_is_set_after_its_neighbour_and_removed_before_it():
    kernel = MemoryKernel()
    reconcile(plan_for(1, frozenset({(5, 0)}), dual=False, direct=False), SCOPE, kernel)
    kinds = [type(step.item).__name__ for step in kernel.performed]
    assert kinds == ["Vxlan", "Address", "Neighbour", "Fdb", "Route"]
    kernel.performed.clear()
    reconcile(plan_for(1, frozenset(), dual=False, direct=False), SCOPE, kernel)
    assert [type(step.item).__name__ for step in kernel.performed] == ["FoundRoute", "Neighbour", "Fdb"]


def test_a_marked_device_that_no_plan_has_any_more_is_removed_and_one_without_the_mark_is_not():
    kernel = MemoryKernel()
    reconcile(plan_for(1, frozenset({(5, 0)}), dual=True, direct=False), SCOPE, kernel)
    stranger = Device("vxlan9", "vxlan", None, up=True, txqlen=0, marked=False)
    kernel.devices["vxlan9"] = stranger
    single = plan_for(1, frozenset({(5, 0)}), dual=False, direct=False)
    reconcile(single, Scope(frozenset({"flannel.1"}), NETWORKS[:1]), kernel)
    assert sorted(kernel.devices) == ["flannel.1", "vxlan9"]


def test_a_plan_prints_like_ip_and_bridge_do():
    plan = plan_for(1, frozenset({(5, 0)}), dual=False, direct=False)
    assert str(plan).splitlines() == [
        "link flannel.1 type vxlan id 1 local 192.168.50.10 dev eth0 dstport 8472 nolearning address 02:00:00:00:00:01 mtu 1450 up",
        "addr 10.244.1.0/32 dev flannel.1",
        "neigh 10.244.5.0 lladdr 02:00:00:00:00:05 dev flannel.1 nud permanent",
        "fdb 02:00:00:00:00:05 dev flannel.1 dst 192.168.50.15 self permanent",
        "route 10.244.5.0/24 via 10.244.5.0 dev flannel.1 onlink",
    ]


def test_a_step_says_what_it_does_and_why():
    kernel = MemoryKernel()
    plan = plan_for(1, frozenset(), dual=False, direct=False)
    reconcile(plan, SCOPE, kernel)
    device = kernel.devices["flannel.1"]
    kernel.devices["flannel.1"] = dataclasses.replace(device, vxlan=dataclasses.replace(device.vxlan, port=4789))
    (step,) = [one for one in steps(plan, kernel.observe(SCOPE)) if one.verb is Verb.REMAKE]
    assert str(step).startswith("remake link flannel.1 type vxlan id 1")
    assert str(step).endswith("(port: 8472 vs 4789)")
