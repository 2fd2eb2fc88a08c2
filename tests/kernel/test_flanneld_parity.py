"""The kernel in memory behaves as the real one does, for whatever flanneld and others do to it."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podwire.errors import NotFound
from podwire.flanneld import vxlan
from podwire.flanneld.door import KernelDoor
from podwire.flanneld.lease import Lease
from podwire.flanneld.netconf import VxlanOptions
from podwire.flanneld.plan import Address, Plan, Underlay
from podwire.flanneld.reconcile import Scope, reconcile
from podwire.kernel import sysctl
from podwire.kernel.owner import ROUTE_PROTOCOL
from podwire.testing.memory_kernel import MemoryKernel
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

ip, net = ipaddress.ip_address, ipaddress.ip_network
UNDERLAY = Underlay("eth0", 1500, (ip("192.168.50.10"), ip("fd50::10")), (ip("192.168.50.10"), ip("fd50::10")))
SCOPE = Scope(frozenset({"flannel.1", "flannel-v6.1"}), (net("10.244.0.0/16"), net("fd00:10:244::/56")))
ON_LINK = {ip(f"192.168.50.{number}") for number in (13, 14)}


@pytest.fixture(scope="module")
def real():
    require("root", "vxlan", "veth", "ipv6", "ip")
    with netns() as ns, ns.rtnl() as rtnl:
        ns.call(lambda: sysctl.write("net.ipv6.conf.default.accept_dad", 0))
        rtnl.create_veth("eth0", "peer0")
        for name in ("eth0", "peer0"):
            rtnl.set_link(rtnl.link(name).index, up=True)
        for cidr in ("192.168.50.10/24", "fd50::10/64"):
            rtnl.add_address(rtnl.link("eth0").index, cidr)
        yield ns, rtnl, KernelDoor(rtnl)


def clear(rtnl) -> None:
    for link in rtnl.links(kind="vxlan"):
        rtnl.delete_link(link.index)
    for route in rtnl.routes(protocol=ROUTE_PROTOCOL):
        rtnl.delete_route(route)


def lease(number: int, version: int, mac: int = 0) -> Lease:
    subnet = f"10.244.{number}.0/24" if version == 4 else f"fd00:10:244:{number:x}::/64"
    public = f"192.168.50.{number + 10}" if version == 4 else f"fd50::{number + 10}"
    return Lease(f"n{number}", net(subnet), ip(public), "vxlan", f"02:00:00:00:{mac:02x}:{number:02x}", 1)


def plan_for(own: int, peers: frozenset[tuple[int, int]], dual: bool, direct: bool, vni: int, mac: int) -> Plan:
    options = VxlanOptions(direct_routing=direct, vni=vni)
    plan = Plan()
    for version in (4, 6) if dual else (4,):
        others = [lease(number, version, peer_mac) for number, peer_mac in sorted(peers) if number != own]
        plan += vxlan.plan(options, UNDERLAY, lease(own, version, mac), others, ON_LINK)
    return plan


PEERS = st.dictionaries(st.integers(1, 5), st.integers(0, 2), max_size=4).map(lambda some: frozenset(some.items()))
PLANS = st.builds(
    plan_for, st.integers(1, 3), PEERS, st.booleans(), st.booleans(), st.just(1), st.integers(0, 1)
) | st.just(Plan())
DAMAGE = st.sampled_from(
    ["delete flannel.1", "down flannel.1", "down flannel-v6.1", "address flannel.1", "route", "none"]
)


def damage(what: str, ns, memory: MemoryKernel) -> None:
    """Do the same to both."""
    verb, _, device = what.partition(" ")
    if device and device not in memory.devices:
        return
    if verb == "delete":
        ns.run("ip", "link", "del", device)
        memory.delete_device(device)
    elif verb == "down":
        ns.run("ip", "link", "set", device, "down")
        memory.take_down(device)
        if device == "flannel-v6.1":  # the kernel takes IPv6 addresses along
            memory.addresses = {one for one in memory.addresses if one.device != device}
    elif verb == "address":
        (address,) = [one for one in memory.addresses if one.device == device]
        assert isinstance(address, Address)
        ns.run("ip", "addr", "del", str(address.address), "dev", device)
        memory.delete_address(address)
    elif verb == "route":
        for key, found in sorted(memory.routes.items(), key=str)[:1]:
            ns.run("ip", "route", "del", str(found.route.dst), check=found.route.dst.version == 4)
            if found.route.dst.version == 6:
                ns.run("ip", "-6", "route", "del", str(found.route.dst))
            del memory.routes[key]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(PLANS, DAMAGE), min_size=1, max_size=4))
def test_the_same_plans_and_the_same_damage_leave_the_same_state(real, story):
    ns, rtnl, door = real
    clear(rtnl)
    memory = MemoryKernel()
    for plan, what in story:
        outcomes = [ns.call(lambda: reconcile(plan, SCOPE, door)), reconcile(plan, SCOPE, memory)]  # noqa: B023 - called at once
        assert outcomes[0] == outcomes[1]
        assert door.observe(SCOPE) == memory.observe(SCOPE)
        damage(what, ns, memory)
        assert door.observe(SCOPE) == memory.observe(SCOPE), what


def test_on_a_device_that_is_not_there_both_say_not_found(real):
    _, rtnl, door = real
    clear(rtnl)
    plan = plan_for(1, frozenset({(5, 0)}), dual=False, direct=False, vni=1, mac=0)
    from podwire.flanneld.reconcile import Step, Verb

    for item in plan.items()[1:]:
        for kernel in (door, MemoryKernel()):
            with pytest.raises(NotFound):
                kernel.perform(Step(Verb.SET, item))
