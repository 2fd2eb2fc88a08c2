"""What a backend wants in the kernel, as values: devices, addresses, neighbours, FDB entries and routes.

A Plan is made by a backend out of leases alone and never looks at the kernel. It can be compared, stored, and printed:
`str(plan)` reads like the output of ip(8) and bridge(8), is the dry run, and is compared with dumps of the real flanneld
in the tests. Devices go by name, not by index: an index is only known once the device is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import ipaddress

    from podwire.flanneld.lease import IPAddress, IPNetwork, Lease


@dataclass(frozen=True, slots=True)
class Underlay:
    """The interface that reaches the other nodes (flannel's ExternalInterface).

    `local` are its own addresses, one for each family; `public` what the others send to, which behind NAT is another.
    """

    device: str
    mtu: int
    local: tuple[IPAddress, ...]
    public: tuple[IPAddress, ...]

    def local_address(self, version: int) -> IPAddress:
        """Its own address of one family."""
        return next(address for address in self.local if address.version == version)

    def public_address(self, version: int) -> IPAddress:
        """The address published for one family."""
        return next(address for address in self.public if address.version == version)


@dataclass(frozen=True, slots=True)
class Vxlan:
    """A vxlan device. `local` is the outer source address, `device` the interface the outer packets leave through."""

    name: str
    vni: int
    local: IPAddress
    device: str
    port: int
    mtu: int
    mac: str
    learning: bool = False
    gbp: bool = False

    def __str__(self) -> str:
        flags = ("learning" if self.learning else "nolearning") + (" gbp" if self.gbp else "")
        return (
            f"link {self.name} type vxlan id {self.vni} local {self.local} dev {self.device} dstport {self.port} "
            f"{flags} address {self.mac} mtu {self.mtu} up"
        )

    def incompatible(self, other: Vxlan) -> str:
        """What cannot be changed on a living device and differs, e.g. "vni: 1 vs 2"; "" if nothing does."""
        for field in ("vni", "device", "local", "port", "gbp", "learning"):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs:
                return f"{field}: {mine} vs {theirs}"
        return ""


@dataclass(frozen=True, slots=True)
class Address:
    """An address on a device."""

    device: str
    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface

    def __str__(self) -> str:
        return f"addr {self.address} dev {self.device}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent neighbour entry: this address has this MAC."""

    device: str
    ip: IPAddress
    mac: str

    def __str__(self) -> str:
        return f"neigh {self.ip} lladdr {self.mac} dev {self.device} nud permanent"


@dataclass(frozen=True, slots=True)
class Fdb:
    """A permanent forwarding entry of a vxlan device: frames for this MAC go to that host."""

    device: str
    mac: str
    dst: IPAddress

    def __str__(self) -> str:
        return f"fdb {self.mac} dev {self.device} dst {self.dst} self permanent"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the main table. `onlink`: the gateway is taken to be on the device even if no prefix there says so."""

    dst: IPNetwork
    via: IPAddress | None
    device: str
    onlink: bool = False

    def __str__(self) -> str:
        via = f" via {self.via}" if self.via else ""
        return f"route {self.dst}{via} dev {self.device}" + (" onlink" if self.onlink else "")


Item: TypeAlias = Vxlan | Address | Neighbour | Fdb | Route


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything one node needs for its leases, each part in the order it is to be made."""

    devices: tuple[Vxlan, ...] = ()
    addresses: tuple[Address, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    fdb: tuple[Fdb, ...] = ()
    routes: tuple[Route, ...] = ()
    mtu: int = 0
    """What a pod's interface may use: FLANNEL_MTU."""

    def items(self) -> tuple[Item, ...]:
        """All parts in the order they depend on each other: a route last, once its gateway has a MAC and a host."""
        return (*self.devices, *self.addresses, *self.neighbours, *self.fdb, *self.routes)

    def __str__(self) -> str:
        return "\n".join(str(item) for item in self.items())

    def __add__(self, other: Plan) -> Plan:
        """Both plans, as for the two families; the MTU of the first counts (flannel writes the one of IPv4)."""
        return Plan(
            self.devices + other.devices,
            self.addresses + other.addresses,
            self.neighbours + other.neighbours,
            self.fdb + other.fdb,
            self.routes + other.routes,
            self.mtu or other.mtu,
        )


def direct_route(lease: Lease, underlay: Underlay) -> Route:
    """A plain route to a node on the same link: host-gw always, vxlan with DirectRouting."""
    return Route(lease.subnet, lease.public_ip, underlay.device)
