"""What rtnetlink's multicast groups say about changes in a real namespace."""

from __future__ import annotations

import pytest

from podwire.kernel import links, monitor, neighbours, routes
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

ALL = monitor.LINK | monitor.NEIGHBOUR | monitor.ADDRESS | monitor.ROUTE


@pytest.fixture
def world():
    require("root", "veth")
    with netns() as ns, ns.rtnl() as rtnl:
        rtnl.create_veth("one", "two")
        for name in ("one", "two"):
            rtnl.set_link(rtnl.link(name).index, up=True)
        listener = ns.call(lambda: monitor.Monitor(ALL))
        yield ns, rtnl, listener
        listener.close()


def do(ns, command: str) -> None:
    ns.run(*command.split())


def heard(listener) -> list[monitor.Change]:
    found = []
    while changes := listener.wait(0.2):
        found += changes
    return found


def test_each_kind_of_change_is_heard_with_its_device(world):
    ns, rtnl, listener = world
    heard(listener)
    index = rtnl.link("one").index
    do(ns, "ip link set one mtu 1400")
    assert [(c.index, c.name) for c in heard(listener) if c.kind == links.RTM_NEWLINK] == [(index, "one")]
    do(ns, "ip addr add 10.0.0.1/24 dev one")
    assert (20, index) in [(c.kind, c.index) for c in heard(listener)]
    do(ns, "ip route add 10.9.0.0/16 via 10.0.0.9")
    do(ns, "ip route add 10.8.0.0/16 via 10.0.0.9 table 300")
    found = [(c.index, c.table) for c in heard(listener) if c.kind == routes.RTM_NEWROUTE]
    assert found == [(index, 254), (index, 300)]
    do(ns, "ip neigh add 10.0.0.9 lladdr 02:00:00:00:00:09 dev one nud permanent")
    assert [c.index for c in heard(listener) if c.kind == neighbours.RTM_NEWNEIGH] == [index]
    do(ns, "ip link del one")
    assert "one" in [c.name for c in heard(listener) if c.kind == links.RTM_DELLINK]


def test_forwarding_entries_of_a_vxlan_device_are_heard(world):
    require("vxlan", "bridge")
    ns, rtnl, listener = world
    rtnl.create_vxlan("vx", 1, local="10.0.0.1")
    heard(listener)
    do(ns, "bridge fdb add 02:00:00:00:00:09 dev vx dst 10.0.0.9 self permanent")
    assert [c.index for c in heard(listener) if c.kind == neighbours.RTM_NEWNEIGH] == [rtnl.link("vx").index]


def test_silence_is_an_empty_list_when_the_time_is_over(world):
    heard(world[2])
    assert world[2].wait(0.01) == []


def test_messages_that_were_lost_are_a_change_of_kind_0(world):
    _, rtnl, listener = world
    listener._sock.setsockopt(1, 8, 1)  # SOL_SOCKET, SO_RCVBUF: as small as the kernel allows
    index = rtnl.link("one").index
    for step in range(400):
        rtnl.set_link(index, mtu=1400 + step % 2)
    assert 0 in [change.kind for change in heard(listener)]


def test_nothing_is_heard_of_another_namespace(world):
    heard(world[2])
    with netns() as other, other.rtnl() as rtnl:
        rtnl.create_veth("a", "b")
    assert world[2].wait(0.1) == []
