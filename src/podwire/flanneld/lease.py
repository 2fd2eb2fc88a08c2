"""Leases: who owns which prefix, and how its owner is reached. One lease is one node's prefix of one address family.

flannel keeps them in Node annotations (flannel, pkg/subnet/kube): the prefix is the Node's podCIDR, the rest is

    flannel.alpha.coreos.com/kube-subnet-manager   "true": this Node's flanneld takes part
    …/backend-type                                 vxlan, host-gw
    …/public-ip           …/public-ipv6            where the other nodes send to
    …/backend-data        …/backend-v6-data        vxlan: {"VNI":1,"VtepMAC":"d6:c4:31:12:7e:e9"}; host-gw: null
    …/public-ip-overwrite …/public-ipv6-overwrite  set by an administrator: published instead of what flanneld found
    …/node-public-ip      …/node-public-ipv6       set by an administrator: like --public-ip, for one node

Nothing here speaks to an API or to the kernel. A Node that does not take part is no lease; one that says it does but
cannot be read is `Unusable` with the reason, costs only itself, and is not left out silently.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from podwire.flanneld.netconf import NetworkConfig

IPAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST_DATA = 1024
"""Of a backend-data annotation. Any node can write its own, and deeply nested JSON would exhaust the parser."""

_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class Lease:
    """`node` owns `subnet` and is reached at `public_ip`; `mac` is that of its VTEP ("" for host-gw)."""

    node: str
    subnet: IPNetwork
    public_ip: IPAddress
    backend: str
    mac: str = ""
    vni: int = 0

    @property
    def version(self) -> int:
        """4 or 6."""
        return self.subnet.version

    def data(self) -> str:
        """The backend-data annotation, byte for byte as flannel's Go marshals it."""
        if self.backend != "vxlan":
            return "null"
        return json.dumps({"VNI": self.vni, "VtepMAC": self.mac}, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Unusable:
    """A node whose prefix cannot be reached, and why."""

    node: str
    why: str

    def __str__(self) -> str:
        return f"node {self.node}: {self.why}"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What a lease is made of, without the rest of a Node object."""

    name: str
    uid: str
    annotations: Mapping[str, str]
    pod_cidrs: tuple[str, ...]
    network_condition: str = ""
    """The reason of its condition NetworkUnavailable=False; "" if that condition is another or not there."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The annotation names under one prefix (`--kube-annotation-prefix`)."""

    prefix: str

    @staticmethod
    def under(prefix: str) -> Annotations:
        """Complete a prefix as flannel does: `fqdn` becomes `fqdn/`, `fqdn/name` becomes `fqdn/name-`."""
        if prefix.count("/") > 1:
            raise UsageError("reading", "--kube-annotation-prefix", f"{prefix!r} has more than one slash")
        if "/" not in prefix:
            prefix += "/"
        if not prefix.endswith(("/", "-")):
            prefix += "-"
        if not re.fullmatch(r"([a-z0-9_-]+\.)+[a-z0-9_-]+/([a-z0-9_-]+-)?", prefix):
            raise UsageError("reading", "--kube-annotation-prefix", f"{prefix!r} is not of the form fqdn/[0-9a-z-_]*")
        return Annotations(prefix)

    def of(self, name: str) -> str:
        """The full name of one annotation."""
        return self.prefix + name

    def takes_part(self, node: NodeRecord) -> bool:
        """Whether a flanneld with Kubernetes leases runs on this Node."""
        return node.annotations.get(self.of("kube-subnet-manager")) == "true"

    def lease(self, node: NodeRecord, version: int) -> Lease | Unusable | None:
        """The lease a Node publishes for one family; None if it takes no part."""
        if not self.takes_part(node):
            return None
        subnet = pod_cidr(node, version)
        if subnet is None:
            return Unusable(node.name, f"it has no IPv{version} podCIDR")
        try:
            public_ip = _address(node.annotations.get(self.of(_named("public-ip", version)), ""), version)
        except ValueError as error:
            return Unusable(node.name, f"annotation {self.of(_named('public-ip', version))}: {error}")
        backend = node.annotations.get(self.of("backend-type"), "")
        if backend != "vxlan":
            return Lease(node.name, subnet, public_ip, backend)
        name = self.of(_named("backend-data", version))
        try:
            vni, mac = _vtep(node.annotations.get(name, ""))
        except ValueError as error:
            return Unusable(node.name, f"annotation {name}: {error}")
        return Lease(node.name, subnet, public_ip, backend, mac, vni)

    def stored_mac(self, node: NodeRecord, version: int) -> str:
        """The VTEP MAC this Node published before; "" if none. Keeping it lets peers go on without a change."""
        try:
            return _vtep(node.annotations.get(self.of(_named("backend-data", version)), ""))[1]
        except ValueError:
            return ""

    def chosen_public_ip(self, node: NodeRecord, version: int) -> IPAddress | None:
        """The address an administrator put on the Node in place of `--public-ip` (node-public-ip)."""
        return _optional(node.annotations.get(self.of(_named("node-public-ip", version)), ""), version)

    def published(self, node: NodeRecord, leases: Sequence[Lease]) -> dict[str, str]:
        """The annotations that make `leases` known; an overwrite annotation on the Node goes before the address found."""
        wanted = {self.of("kube-subnet-manager"): "true"}
        for lease in leases:
            overwrite = _optional(
                node.annotations.get(self.of(_named("public-ip", lease.version) + "-overwrite"), ""), lease.version
            )
            wanted[self.of("backend-type")] = lease.backend
            wanted[self.of(_named("backend-data", lease.version))] = lease.data()
            wanted[self.of(_named("public-ip", lease.version))] = str(overwrite or lease.public_ip)
        return wanted


def _named(name: str, version: int) -> str:
    if version == 4:
        return name
    return {"public-ip": "public-ipv6", "node-public-ip": "node-public-ipv6", "backend-data": "backend-v6-data"}[name]


def _address(text: str, version: int) -> IPAddress:
    if not text:
        raise ValueError("is missing")
    address = ipaddress.ip_address(text)
    # An address with a zone (fe80::1%eth0) means something on one host only.
    if address.version != version or "%" in text:
        raise ValueError(f"{text} is no IPv{version} address")
    return address


def _optional(text: str, version: int) -> IPAddress | None:
    try:
        return _address(text, version)
    except ValueError:
        return None


def _vtep(data: str) -> tuple[int, str]:
    """VNI and MAC out of a backend-data annotation; ValueError says what is wrong."""
    if not data:
        raise ValueError("is missing")
    if len(data) > LONGEST_DATA:
        raise ValueError(f"is longer than {LONGEST_DATA} characters")
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"{data} is no JSON object")  # noqa: TRY004 - what is wrong is the text, not a type of ours
    mac = str(fields.get("VtepMAC", "")).lower()
    if not _MAC.fullmatch(mac):
        raise ValueError(f"VtepMAC {mac!r} is no MAC address")
    vni = fields.get("VNI", 0)
    return (vni if isinstance(vni, int) else 0), mac


def pod_cidr(node: NodeRecord, version: int) -> IPNetwork | None:
    """The Node's podCIDR of one family; one that cannot be parsed is none (the API server refuses such)."""
    for text in node.pod_cidrs:
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            continue
        if network.version == version and "%" not in text:
            return network
    return None


def own_subnets(node: NodeRecord, config: NetworkConfig) -> tuple[tuple[IPNetwork, ...], str]:
    """This node's prefixes, one for each family that is on; and if they cannot be used yet, why ("": all is well)."""
    subnets = []
    for network in config.networks():
        subnet = pod_cidr(node, network.version)
        if subnet is None:
            return (), f'node "{node.name}" pod cidr not assigned' + ("" if network.version == 4 else " (IPv6)")
        if not _contains(network, subnet):
            return (), (
                f'subnet "{network}" specified in the flannel net config doesn\'t contain "{subnet}" PodCIDR '
                f'of the "{node.name}" node'
            )
        subnets.append(subnet)
    return tuple(subnets), ""


def _contains(network: IPNetwork, subnet: IPNetwork) -> bool:
    return network.prefixlen <= subnet.prefixlen and subnet.network_address in network


def peers(nodes: Iterable[NodeRecord], own: Lease, annotations: Annotations) -> tuple[list[Lease], list[Unusable]]:
    """All other nodes' leases of `own`'s family, by node name, without those that contradict another.

    Two nodes with one prefix cannot both be reached: the one first by name keeps it, so that every node of the
    cluster decides alike; our own prefix is never routed away.
    """
    usable: list[Lease] = []
    unusable: list[Unusable] = []
    owners: dict[IPNetwork, str] = {}
    for node in sorted(nodes, key=lambda record: record.name):
        if node.name == own.node:
            continue
        lease = annotations.lease(node, own.version)
        if isinstance(lease, Unusable):
            unusable.append(lease)
        elif lease is None:
            continue
        elif lease.backend != own.backend:
            unusable.append(
                Unusable(node.name, f"its backend is {lease.backend or 'not said'}, here it is {own.backend}")
            )
        elif lease.subnet.overlaps(own.subnet):
            unusable.append(Unusable(node.name, f"its podCIDR {lease.subnet} takes in our own, {own.subnet}"))
        elif lease.subnet in owners:
            unusable.append(Unusable(node.name, f"its podCIDR {lease.subnet} is also that of {owners[lease.subnet]}"))
        else:
            owners[lease.subnet] = node.name
            usable.append(lease)
    return usable, unusable
