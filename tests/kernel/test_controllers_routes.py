"""The route controller on the kernel: ensure, tick off, sweep, and touch nothing else."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from podwire.controllers.controller import Context
from podwire.controllers.routes import METRIC, Routes, marked
from podwire.kernel.namespaces import entered
from podwire.kernel.owner import ROUTE_PROTOCOL
from podwire.kernel.rtnl import Rtnl
from podwire.kube.client import Client
from podwire.kube.kinds import NODES
from podwire.testing.netns import netns, require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel


class Machine:
    """A namespace with eth0 = 172.30.0.9/24 and fc00::9/64, and the controller in it; Nodes are put into its informer."""

    def __init__(self, space: Any) -> None:
        self.space = space
        self.context = Context(Client(httpx2.Client(base_url="http://127.0.0.1:1")), threading.Event())
        self.controller = Routes(self.context)
        space.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far")
        space.run("ip", "link", "set", "far", "up")
        space.run("ip", "link", "set", "eth0", "up")
        space.run("ip", "addr", "add", "172.30.0.9/24", "dev", "eth0")
        space.run("ip", "addr", "add", "fc00::9/64", "dev", "eth0", "nodad")

    def node(self, name: str, cidrs: list[str], *ips: str) -> None:
        addresses = [{"type": "InternalIP", "address": ip} for ip in ips]
        node = NODES.convert(
            {"metadata": {"name": name}, "spec": {"podCIDRs": cidrs}, "status": {"addresses": addresses}}
        )
        self.context.informer(NODES).reflector._store.put(node)

    def sync(self) -> None:
        with entered(self.space.fd):
            self.controller.sync("routes")

    def routes(self) -> dict[str, str]:
        with Rtnl(self.space.fd) as kernel:
            return {route.dst: route.via for route in marked(kernel)}


@pytest.fixture
def machine() -> Iterator[Machine]:
    require("root", "ip", "veth")
    with contextlib.ExitStack() as stack:
        made = Machine(stack.enter_context(netns()))
        yield made
        made.context.client.close()


def test_every_pod_cidr_gets_a_route_that_carries_the_mark(machine: Machine) -> None:
    machine.node("a", ["10.244.0.0/24", "fd00:1::/64"], "172.30.0.1", "fc00::1")
    machine.node("b", ["10.244.1.0/24"], "172.30.0.2")
    machine.sync()
    assert machine.routes() == {"10.244.0.0/24": "172.30.0.1", "fd00:1::/64": "fc00::1", "10.244.1.0/24": "172.30.0.2"}
    (shown,) = json.loads(machine.space.run("ip", "-j", "route", "show", "10.244.1.0/24").stdout)
    assert (shown["gateway"], shown["dev"], shown["metric"]) == ("172.30.0.2", "eth0", METRIC)
    assert shown["protocol"] == str(ROUTE_PROTOCOL)


def test_what_was_deleted_by_hand_comes_back_and_a_new_address_moves_the_route(machine: Machine) -> None:
    machine.node("a", ["10.244.0.0/24"], "172.30.0.1")
    machine.sync()
    machine.space.run("ip", "route", "del", "10.244.0.0/24")
    machine.sync()
    assert machine.routes() == {"10.244.0.0/24": "172.30.0.1"}
    machine.node("a", ["10.244.0.0/24"], "172.30.0.7")
    machine.sync()
    assert machine.routes() == {"10.244.0.0/24": "172.30.0.7"}


def test_only_routes_with_the_mark_are_swept(machine: Machine) -> None:
    machine.node("a", ["10.244.0.0/24"], "172.30.0.1")
    machine.sync()
    protocol = str(ROUTE_PROTOCOL)
    machine.space.run("ip", "route", "add", "default", "via", "172.30.0.1", "proto", protocol)
    machine.space.run("ip", "route", "add", "10.244.9.0/24", "via", "172.30.0.3", "metric", str(METRIC))
    machine.space.run(
        "ip", "route", "add", "10.244.8.0/24", "via", "172.30.0.3", "proto", protocol, "metric", str(METRIC)
    )
    machine.sync()
    left = machine.space.run("ip", "route", "show").stdout
    assert "default via 172.30.0.1" in left
    assert "10.244.9.0/24" in left
    assert "10.244.8.0/24" not in left
    assert machine.routes() == {"10.244.0.0/24": "172.30.0.1"}


def test_a_next_hop_that_cannot_be_reached_costs_only_its_route(machine: Machine) -> None:
    machine.node("a", ["10.244.0.0/24"], "192.0.2.1")
    machine.node("b", ["10.244.1.0/24"], "172.30.0.2")
    machine.sync()
    assert machine.routes() == {"10.244.1.0/24": "172.30.0.2"}
    machine.space.run("ip", "addr", "add", "192.0.2.9/24", "dev", "eth0")
    machine.sync()
    assert machine.routes() == {"10.244.0.0/24": "192.0.2.1", "10.244.1.0/24": "172.30.0.2"}


def test_a_node_that_is_this_machine_gets_no_route(machine: Machine) -> None:
    machine.node("own", ["10.244.0.0/24"], "172.30.0.9")
    machine.sync()
    assert machine.routes() == {}


def test_without_nodes_everything_that_was_made_goes(machine: Machine) -> None:
    machine.node("a", ["10.244.0.0/24"], "172.30.0.1")
    machine.sync()
    machine.context.informer(NODES).reflector._store.remove("a")
    machine.sync()
    assert machine.routes() == {}
