"""Make the kernel equal a Plan: compare, ensure, tick off, sweep; and again, until there is nothing left to do.

flannel applies events one by one, and a deletion that was missed leaves a route for ever (flannel #2554); an entry that
somebody removed never comes back. Here no event is applied. `steps(plan, state)` is the difference between what is wanted
and what was just read from the kernel, whatever led to it: a node that came or left, a daemon that was down meanwhile, an
`ip route flush`, a deleted device, another flannel that was here before.

What is ours, and therefore swept when no plan has it any more:

* a device that has the plan's name, or podwire's mark (its alias);
* everything that hangs on such a device: addresses but link-local ones, permanent neighbours, permanent forwarding
  entries, routes but the kernel's own;
* elsewhere, routes into the pod network that carry podwire's protocol number (direct routes, host-gw).

Anything else is foreign. A foreign route to a destination that the plan has is replaced, since the destination is ours by
lease; any other one into the pod network is reported and stays.

`reconcile` reads again after each round: deleting a device's last address takes its routes along, and only the kernel
knows. A step that fails costs only itself.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from podwire.errors import PodwireError
from podwire.flanneld.plan import Address, Fdb, Item, Neighbour, Route, Vxlan
from podwire.kernel.owner import ROUTE_PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from podwire.flanneld.lease import IPNetwork
    from podwire.flanneld.plan import Plan

T = TypeVar("T")
Entry = TypeVar("Entry", Address, Neighbour, Fdb)

ROUNDS = 4

# The metric the kernel gives a route that asks for none: none for IPv4, IP6_RT_PRIO_USER for IPv6 (linux/ipv6_route.h).
_METRIC = {4: 0, 6: 1024}


@dataclass(frozen=True, slots=True)
class Device:
    """A device as it is found: `vxlan` None means that it is of another kind."""

    name: str
    kind: str
    vxlan: Vxlan | None
    up: bool
    txqlen: int
    marked: bool


@dataclass(frozen=True, slots=True)
class FoundRoute:
    """A unicast route of the main table as it is found, with what must agree to delete just this one."""

    route: Route
    protocol: int = ROUTE_PROTOCOL
    metric: int = 0
    scope: int = 0

    def __str__(self) -> str:
        return f"{self.route} proto {self.protocol}" + (f" metric {self.metric}" if self.metric else "")

    @property
    def key(self) -> tuple[IPNetwork, int]:
        """What a replacing route must share with this one."""
        return self.route.dst, self.metric


@dataclass(frozen=True, slots=True)
class State:
    """What the kernel has of what could be ours, and foreign routes into the pod network."""

    devices: frozenset[Device] = frozenset()
    addresses: frozenset[Address] = frozenset()
    neighbours: frozenset[Neighbour] = frozenset()
    fdb: frozenset[Fdb] = frozenset()
    routes: frozenset[FoundRoute] = frozenset()
    foreign: frozenset[FoundRoute] = frozenset()


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to look: the devices of the plan by name, and the networks that all podCIDRs are cut from."""

    devices: frozenset[str]
    networks: tuple[IPNetwork, ...]


class Verb(enum.Enum):
    """What a step does to its item."""

    CREATE = "create"
    REMAKE = "remake"
    ADJUST = "adjust"
    SET = "set"
    REMOVE = "remove"


Target: TypeAlias = Item | Device | FoundRoute


@dataclass(frozen=True, slots=True)
class Step:
    """One change. REMAKE deletes the device and makes it again; SET adds or replaces."""

    verb: Verb
    item: Target
    why: str = ""

    def __str__(self) -> str:
        item = f"link {self.item.name}" if isinstance(self.item, Device) else str(self.item)
        return f"{self.verb.value} {item}" + (f" ({self.why})" if self.why else "")


class Door(Protocol):
    """The kernel, as far as this module needs it."""

    def observe(self, scope: Scope) -> State:
        """What is there now."""

    def perform(self, step: Step) -> None:
        """Do it; removing what is gone already is no error. Raises PodwireError."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconciliation did, what it could not do, and which foreign routes lie in the pod network."""

    done: tuple[Step, ...] = ()
    failed: tuple[tuple[Step, str], ...] = ()
    foreign: frozenset[FoundRoute] = frozenset()


def wanted_route(route: Route) -> FoundRoute:
    """How the kernel shows a planned route once it is there."""
    return FoundRoute(route, ROUTE_PROTOCOL, _METRIC[route.dst.version])


def steps(plan: Plan, state: State) -> list[Step]:
    """All changes that turn `state` into `plan`, in an order that does not break what stays."""
    found = {device.name: device for device in state.devices}
    device_steps = [step for wanted in plan.devices if (step := _device_step(wanted, found.get(wanted.name)))]
    # What hung on a device that is made anew is gone with it.
    fresh = {step.item.name for step in device_steps if step.verb is Verb.REMAKE and isinstance(step.item, Vxlan)}
    keep = {device.name for device in plan.devices}
    strays = [
        Step(Verb.REMOVE, device, "no longer wanted") for device in _ordered(state.devices) if device.name not in keep
    ]

    # A new address before the old one goes, or with the last address the routes would go; and the old one goes before any
    # route is set: it may be the gateway of one, and the kernel takes no gateway that is an address of its own.
    set_addresses, remove_addresses = _entry_steps(plan.addresses, state.addresses, keep - fresh)
    set_neighbours, remove_neighbours = _entry_steps(plan.neighbours, state.neighbours, keep - fresh)
    set_fdb, remove_fdb = _entry_steps(plan.fdb, state.fdb, keep - fresh)
    set_routes, remove_routes = _route_steps(plan, state, fresh)
    return [
        *device_steps,
        *set_addresses,
        *remove_addresses,
        *set_neighbours,
        *set_fdb,
        *set_routes,
        *remove_routes,
        *remove_neighbours,
        *remove_fdb,
        *strays,
    ]


def _device_step(wanted: Vxlan, found: Device | None) -> Step | None:
    if found is None:
        return Step(Verb.CREATE, wanted)
    if found.vxlan is None:
        return Step(Verb.REMAKE, wanted, f"link type: vxlan vs {found.kind}")
    difference = wanted.incompatible(found.vxlan)
    if difference:
        return Step(Verb.REMAKE, wanted, difference)
    changes = [
        f"{name}: {want} vs {have}"
        for name, want, have in (
            ("mac", wanted.mac, found.vxlan.mac),
            ("mtu", wanted.mtu, found.vxlan.mtu),
            ("txqlen", 0, found.txqlen),
            ("up", True, found.up),
            ("marked", True, found.marked),
        )
        if want != have
    ]
    return Step(Verb.ADJUST, wanted, ", ".join(changes)) if changes else None


def _route_steps(plan: Plan, state: State, fresh: set[str]) -> tuple[list[Step], list[Step]]:
    there = {found for found in state.routes if found.route.device not in fresh}
    wanted = [wanted_route(route) for route in plan.routes]
    missing = [found for found in wanted if found not in there]
    # A stray that shares its key with a route being set is replaced by it. Where it is not (IPv6 keeps several routes of
    # one destination), the next round finds it alone.
    replaced = {found.key for found in missing}
    strays = [found for found in there.difference(wanted) if found.key not in replaced]
    return (
        [Step(Verb.SET, found.route) for found in missing],
        [Step(Verb.REMOVE, found) for found in _ordered(strays)],
    )


def _entry_steps(wanted: Sequence[Entry], there: Iterable[Entry], devices: set[str]) -> tuple[list[Step], list[Step]]:
    """What to set and what to remove of one kind of entry, on the devices that stay."""
    left = {item for item in there if item.device in devices}
    replaced = {_key(item) for item in wanted}
    return (
        [Step(Verb.SET, item) for item in wanted if item not in left],
        [Step(Verb.REMOVE, item) for item in _ordered(left.difference(wanted)) if _key(item) not in replaced],
    )


def _key(item: Address | Neighbour | Fdb) -> object:
    """What the kernel allows only once: setting another value of the same key replaces the old one."""
    if isinstance(item, Neighbour):
        return item.device, item.ip
    if isinstance(item, Fdb):
        return item.device, item.mac
    return item


def _ordered(items: Iterable[T]) -> list[T]:
    return sorted(items, key=str)


def reconcile(plan: Plan, scope: Scope, door: Door) -> Outcome:
    """Bring the kernel to `plan`; what still fails in the last round is in `failed`."""
    done: list[Step] = []
    failed: dict[Step, str] = {}
    state = door.observe(scope)
    for _ in range(ROUNDS):
        todo = steps(plan, state)
        failed = {}
        for step in todo:
            try:
                door.perform(step)
            except PodwireError as error:
                failed[step] = str(error)
            else:
                done.append(step)
        if len(failed) == len(todo):  # nothing to do, or nothing that could be done
            break
        state = door.observe(scope)
    # What was set and is still wanted was refused without a word, or somebody else takes it away as fast as we set it.
    left = {
        step: failed.get(step, "it does not last: the kernel or another program undoes it")
        for step in steps(plan, state)
    }
    return Outcome(tuple(done), tuple(left.items()), state.foreign)
