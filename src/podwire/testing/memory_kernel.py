"""A kernel in memory, as far as flanneld needs one: reconcile.Door with the kernel's own habits.

It does what the kernel does and a dictionary would not: deleting a device takes all that hangs on it; taking a device down
takes its routes and neighbours; another MAC empties the neighbour table; the last IPv4 address takes the IPv4 routes along;
setting a route, neighbour or forwarding entry replaces the one of the same key; on a device that is not there nothing can
be set (NotFound). `fail` makes chosen steps fail. tests/kernel/test_flanneld_parity.py holds it against the real one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from podwire.errors import KernelError, NotFound
from podwire.flanneld.plan import Address, Fdb, Neighbour, Route, Vxlan
from podwire.flanneld.reconcile import Device, FoundRoute, State, Verb, wanted_route
from podwire.kernel.owner import ROUTE_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.flanneld.reconcile import Scope, Step


class MemoryKernel:
    """Devices, addresses, neighbours, forwarding entries and routes of one namespace."""

    def __init__(self, underlay: str = "eth0") -> None:
        self.underlay = underlay
        self.devices: dict[str, Device] = {}
        self.addresses: set[Address] = set()
        self.neighbours: dict[tuple[str, object], Neighbour] = {}
        self.fdb: dict[tuple[str, str], Fdb] = {}
        self.routes: dict[tuple[object, int], FoundRoute] = {}
        self.fail: Callable[[Step], bool] = lambda _: False
        self.performed: list[Step] = []

    def observe(self, scope: Scope) -> State:
        """What is there of the scope."""
        ours = {name for name, device in self.devices.items() if name in scope.devices or device.marked}
        found, foreign = set(), set()
        for route in self.routes.values():
            within = any(
                route.route.dst.version == network.version and network.supernet_of(route.route.dst)  # type: ignore[arg-type]  # the versions are equal
                for network in scope.networks
            )
            if route.route.device in ours or (within and route.protocol == ROUTE_PROTOCOL):
                found.add(route)
            elif within:
                foreign.add(route)
        return State(
            devices=frozenset(self.devices[name] for name in ours),
            addresses=frozenset(one for one in self.addresses if one.device in ours),
            neighbours=frozenset(one for one in self.neighbours.values() if one.device in ours),
            fdb=frozenset(one for one in self.fdb.values() if one.device in ours),
            routes=frozenset(found),
            foreign=frozenset(foreign),
        )

    def perform(self, step: Step) -> None:
        """Do one step."""
        if self.fail(step):
            raise KernelError.of(12, str(step))
        self.performed.append(step)
        item = step.item
        if step.verb is Verb.REMOVE:
            self._remove(item)
        elif isinstance(item, Vxlan):
            self._make(step.verb, item)
        else:
            self._set(item)

    def _make(self, verb: Verb, wanted: Vxlan) -> None:
        if verb is Verb.REMAKE:
            self.delete_device(wanted.name)
        if verb is Verb.CREATE and wanted.name in self.devices:
            raise KernelError.of(17, "creating the vxlan", wanted.name)
        if wanted.device != self.underlay:
            raise NotFound("looking up the link", wanted.device)
        before = self.devices.get(wanted.name)
        if before is not None and before.vxlan is not None and before.vxlan.mac != wanted.mac:
            self.neighbours = {key: one for key, one in self.neighbours.items() if one.device != wanted.name}
        settings = wanted
        if before is not None and before.vxlan is not None:  # what cannot be changed on a living device stays
            settings = dataclasses.replace(before.vxlan, mac=wanted.mac, mtu=wanted.mtu)
        self.devices[wanted.name] = Device(wanted.name, "vxlan", settings, up=True, txqlen=0, marked=True)

    def _set(self, item: object) -> None:
        match item:
            case Address():
                self._device(item.device)
                self.addresses.add(item)
            case Neighbour():
                self._device(item.device)
                self.neighbours[item.device, item.ip] = item
            case Fdb():
                self._device(item.device)
                self.fdb[item.device, item.mac] = item
            case Route():
                self._device(item.device)
                found = wanted_route(item)
                self.routes[found.key] = found
            case _:
                raise TypeError(f"cannot set {item!r}")

    def _remove(self, item: object) -> None:
        match item:
            case Device():
                self.delete_device(item.name)
            case Address():
                self.delete_address(item)
            case Neighbour():
                self.neighbours.pop((item.device, item.ip), None)
            case Fdb():
                self.fdb.pop((item.device, item.mac), None)
            case FoundRoute():
                if self.routes.get(item.key) == item:
                    del self.routes[item.key]
            case _:
                raise TypeError(f"cannot remove {item!r}")

    def _device(self, name: str) -> None:
        if name == self.underlay:
            return
        device = self.devices.get(name)
        if device is None:
            raise NotFound("looking up the link", name)
        if not device.up:
            raise KernelError.of(100, "using the link", name)

    # What others do behind flanneld's back.

    def delete_device(self, name: str) -> None:
        """As `ip link del`: all that hangs on it goes too."""
        self.devices.pop(name, None)
        self.addresses = {one for one in self.addresses if one.device != name}
        self.neighbours = {key: one for key, one in self.neighbours.items() if one.device != name}
        self.fdb = {key: one for key, one in self.fdb.items() if one.device != name}
        self.routes = {key: one for key, one in self.routes.items() if one.route.device != name}

    def take_down(self, name: str) -> None:
        """As `ip link set down`: routes and neighbours go, addresses and forwarding entries stay."""
        self.devices[name] = dataclasses.replace(self.devices[name], up=False)
        self.neighbours = {key: one for key, one in self.neighbours.items() if one.device != name}
        self.routes = {key: one for key, one in self.routes.items() if one.route.device != name}

    def delete_address(self, address: Address) -> None:
        """As `ip addr del`: with its last IPv4 address a device loses its IPv4 routes and neighbours."""
        self.addresses.discard(address)
        left = any(one.device == address.device and one.address.version == 4 for one in self.addresses)
        if address.address.version == 4 and not left:
            self.routes = {
                key: one
                for key, one in self.routes.items()
                if one.route.device != address.device or one.route.dst.version != 4
            }
            self.neighbours = {
                key: one for key, one in self.neighbours.items() if one.device != address.device or one.ip.version != 4
            }
