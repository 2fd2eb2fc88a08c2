"""One picture of a node's network: values, and from where each was read.

A `Snapshot` is what `explain` and `doctor` look at. It never looks back at the node: what is not in it is not known.
Three rules hold:

* `None` means "was not read" and an empty tuple "was read, there is nothing". A check that needs what was not read says nothing.
* Rule texts are kept as they came. Whoever needs them parses them, once: a dump may have 400,000 lines.
* Every value can say where it was read: `where` is a file, a command, or both ("iptables-save.txt", "ip -j route").
  What could not be read is in `unread`, with the reason.

Kubernetes objects are the API's own JSON as dicts: a bundle may come from any version, and what podwire does not know may be
evidence. The values are made in three ways that meet in snapshot_files.py: from the live node (snapshot_live.py), from a bundle or
an archive (snapshot_archive.py), from bare files and folders (snapshot_load.py).

This page is longer than others: it is the whole vocabulary of what a node can show, and nothing else.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network

    Address_ = IPv4Address | IPv6Address
    Interface_ = IPv4Interface | IPv6Interface
    Network_ = IPv4Network | IPv6Network

#: Which program's view a rule text is. "iptables" is iptables-save output that does not tell its back end.
RuleSource = Literal["iptables-nft", "iptables-legacy", "iptables", "nft", "nft-json"]
#: How an iptables text is written: iptables-save, iptables -S, iptables -L; nft has one form each.
RuleForm = Literal["save", "S", "L", "nft", "json"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RuleText:
    """Rules as text, unparsed. `family` is 4 or 6 (0: both, nft names the family of each table itself)."""

    source: RuleSource
    family: int
    form: RuleForm
    text: str
    where: str

    @property
    def iptables(self) -> bool:
        """Whether iptables or one of its twins printed it."""
        return self.source not in ("nft", "nft-json")


@dataclass(frozen=True, slots=True)
class Vxlan:
    """A vxlan device: `dev` is the device below, '' where unknown."""

    vni: int
    local: str = ""
    port: int = 0
    dev: str = ""
    learning: bool | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A network device. `kind` is '' where the input does not tell; `hairpin` None for what is no (known) bridge port."""

    name: str
    mtu: int = 0
    kind: str = ""
    index: int = 0
    mac: str = ""
    flags: frozenset[str] = frozenset()
    state: str = ""
    master: str = ""
    peer: int = 0
    vxlan: Vxlan | None = None
    hairpin: bool | None = None
    alias: str = ""
    where: str = ""

    @property
    def up(self) -> bool:
        """Administratively up."""
        return "UP" in self.flags

    @property
    def veth(self) -> bool:
        """Whether it is a veth, by kind, or by name where the kind was not printed."""
        return self.kind == "veth" or (not self.kind and self.name.startswith(("veth", "cali", "lxc")))

    @property
    def overlay(self) -> bool:
        """Whether it is flannel's vxlan device (any vxlan, or by name where the kind was not printed)."""
        return self.kind == "vxlan" or (not self.kind and self.name.startswith("flannel"))


@dataclass(frozen=True, slots=True)
class Address:
    """An address of a device."""

    dev: str
    ip: str
    length: int
    scope: str = ""
    where: str = ""

    @property
    def interface(self) -> Interface_:
        """Address and network in one."""
        return ip_interface(f"{self.ip}/{self.length}")

    @property
    def text(self) -> str:
        """10.0.0.1/24."""
        return f"{self.ip}/{self.length}"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of any table. `dst` is always a prefix ("0.0.0.0/0" is the default); `dev` '' where the kernel needs none."""

    dst: str
    via: str = ""
    dev: str = ""
    src: str = ""
    table: str = "main"
    protocol: str = ""
    scope: str = ""
    metric: int = 0
    onlink: bool = False
    kind: str = "unicast"
    hops: tuple[tuple[str, str], ...] = ()
    text: str = ""
    where: str = ""

    @property
    def network(self) -> Network_:
        """The destination as a network."""
        return ip_network(self.dst, strict=False)

    @property
    def default(self) -> bool:
        """Whether it matches every destination."""
        return self.dst in ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A line of `ip rule`. '' matches everything; `mark` and `mask` are numbers; `action` is '' for a plain table lookup."""

    priority: int
    table: str = ""
    src: str = ""
    dst: str = ""
    iif: str = ""
    oif: str = ""
    mark: int | None = None
    mask: int = 0xFFFFFFFF
    inverted: bool = False
    action: str = ""
    rest: str = ""
    family: int = 4
    where: str = ""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An ARP or ND entry."""

    ip: str
    dev: str = ""
    mac: str = ""
    state: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class FdbEntry:
    """A forwarding entry: on a vxlan device `dst` is the peer's outer address."""

    mac: str
    dev: str = ""
    dst: str = ""
    state: str = ""
    master: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class Socket:
    """A socket of `ss` or /proc/net: `process` '' where it could not be told."""

    protocol: str
    state: str
    ip: str
    port: int
    peer_ip: str = ""
    peer_port: int = 0
    process: str = ""
    pid: int = 0
    where: str = ""

    @property
    def listening(self) -> bool:
        """Whether it waits for peers (an unconnected UDP socket does)."""
        return self.state in ("LISTEN", "UNCONN")

    @property
    def owner(self) -> str:
        """Who has it, e.g. java (pid 3977)."""
        if self.process:
            return f"{self.process} (pid {self.pid})" if self.pid else self.process
        return f"pid {self.pid}" if self.pid else "an unknown process"


@dataclass(frozen=True, slots=True)
class Flow:
    """A conntrack entry: the original direction as the client sent it, the reply as answers come."""

    protocol: str
    src: str
    dst: str
    sport: int
    dport: int
    reply_src: str
    reply_dst: str
    reply_sport: int
    reply_dport: int
    state: str = ""
    marks: frozenset[str] = frozenset()
    text: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file or output that is kept as text. `name` is its name on the node as far as it is known."""

    name: str
    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Program:
    """A file of /opt/cni/bin. `size` -1 and `dangling` None: not known."""

    name: str
    size: int = -1
    executable: bool = True
    regular: bool = True
    target: str = ""
    dangling: bool | None = None
    where: str = ""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A pod sandbox of the runtime (`crictl pods`)."""

    id: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    ready: bool = True
    where: str = ""


@dataclass(frozen=True, slots=True)
class InnerLink:
    """A device of another network namespace: `peer` is the index of its other end (of a veth: on the node)."""

    name: str
    index: int
    peer: int = 0
    mtu: int = 0
    mac: str = ""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """Another network namespace of the node: of a pod, as a rule. `id` is its inode, `process` a program in it."""

    id: str
    process: str = ""
    links: tuple[InnerLink, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, and why."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sysctl:
    """A kernel setting by its path below /proc/sys ("net/ipv4/conf/flannel.1/rp_filter"); value None: there is no such file."""

    name: str
    value: str | None
    where: str = ""


#: The fields of a Snapshot that are None while they were not read.
_PARTS = (
    "links", "addresses", "routes", "policy_rules", "neighbours", "fdb", "modules", "namespaces", "sockets", "flows", "cni_files", "cni_programs",
    "reservations", "scratch", "results", "subnet_env", "net_conf", "sandboxes", "nodes", "services", "slices", "pods", "daemonsets",
)  # fmt: skip


@dataclass(slots=True)
class Snapshot:
    """One picture of a node. See the module's text for None and ()."""

    label: str = ""
    origin: str = ""
    hostname: str = ""
    live: bool = False
    rules: list[RuleText] = field(default_factory=list)
    links: list[Link] | None = None
    addresses: list[Address] | None = None
    routes: list[Route] | None = None
    policy_rules: list[PolicyRule] | None = None
    neighbours: list[Neighbour] | None = None
    fdb: list[FdbEntry] | None = None
    sysctls: list[Sysctl] = field(default_factory=list)
    modules: dict[str, str] | None = None  # name → where it was read
    namespaces: list[Namespace] | None = None
    sockets: list[Socket] | None = None
    flows: list[Flow] | None = None
    cni_files: list[TextFile] | None = None
    cni_programs: list[Program] | None = None
    reservations: list[TextFile] | None = None  # name: NETWORK/ADDRESS (also lock, last_reserved_ip.0)
    scratch: list[TextFile] | None = None  # /var/lib/cni/flannel; name: container ID
    results: list[TextFile] | None = None  # /var/lib/cni/results
    subnet_env: TextFile | None = None
    net_conf: TextFile | None = None
    sandboxes: list[Sandbox] | None = None
    runtime_info: list[tuple[Object, str]] = field(default_factory=list)  # crictl info
    nodes: list[Object] | None = None
    services: list[Object] | None = None
    slices: list[Object] | None = None
    pods: list[Object] | None = None
    daemonsets: list[tuple[str, str]] | None = None  # namespace, name
    objects: list[tuple[Object, str]] = field(default_factory=list)  # anything else that is YAML or JSON of Kubernetes
    where: dict[str, str] = field(default_factory=dict)  # "nodes", "services", … → where it was read
    outputs: dict[str, list[TextFile]] = field(default_factory=dict)  # kernel-log, log, events, flags, stat, …
    unread: list[Unread] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    # -- what is asked often -------------------------------------------------------------------------------------

    def link(self, name: str) -> Link | None:
        """The device of this name."""
        return next((link for link in self.links or () if link.name == name), None)

    def addresses_of(self, dev: str) -> list[Address]:
        """The addresses of a device."""
        return [address for address in self.addresses or () if address.dev == dev]

    def sysctl(self, name: str) -> Sysctl | None:
        """A setting by its path with slashes; None when it was not read."""
        return next((one for one in self.sysctls if one.name == name), None)

    def output(self, kind: str) -> list[TextFile]:
        """The texts of a kind: kernel-log, log, events, flags, conntrack-stats, stat, unit-start, fdinfo, kernel-config."""
        return self.outputs.get(kind, [])

    @property
    def empty(self) -> bool:
        """Whether nothing at all was recognised in the input."""
        parts = [getattr(self, one) for one in _PARTS]
        return not (self.rules or self.sysctls or self.outputs or self.objects or self.runtime_info) and all(
            part is None for part in parts
        )

    def environment(self) -> dict[str, str]:
        """The assignments of subnet.env."""
        return assignments(self.subnet_env.text) if self.subnet_env else {}

    @property
    def node(self) -> Object | None:
        """This node's own Node object: by host name, by its addresses, or the only one there is."""
        nodes = self.nodes or []
        for name in (self.hostname, self.label):
            found = [node for node in nodes if name and name_of(node) == name]
            if found:
                return found[0]
        own = {address.ip for address in self.addresses or () if not ip_address(address.ip).is_loopback}
        matching = [node for node in nodes if own & set(node_addresses(node))]
        if len(matching) == 1:
            return matching[0]
        ranges = self._pod_ranges()
        matching = [node for node in nodes if ranges & set(pod_cidrs(node))]
        if len(matching) == 1:
            return matching[0]
        return nodes[0] if len(nodes) == 1 else None

    def _pod_ranges(self) -> set[str]:
        """The ranges that this node takes for its own pods': of subnet.env, and of the route by the pods' bridge."""
        found = {route.dst for route in self.routes or () if route.dev in ("cni0", "cbr0") and not route.via}
        with suppress(ValueError):
            found.add(str(ip_interface(self.environment().get("FLANNEL_SUBNET", "")).network))
        return found

    @property
    def title(self) -> str:
        """How to call this node in a sentence."""
        return (
            self.hostname
            or self.label
            or (name_of(self.node) if self.node else "")
            or ("this node" if self.live else "the node")
        )


def name_of(item: Object) -> str:
    """metadata.name, '' where there is none."""
    metadata = item.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def namespace_of(item: Object) -> str:
    """metadata.namespace, '' where there is none."""
    metadata = item.get("metadata")
    name = metadata.get("namespace") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""


def node_addresses(node: Object) -> list[str]:
    """The InternalIP and ExternalIP addresses of a Node."""
    status = node.get("status")
    listed = status.get("addresses") if isinstance(status, dict) else None
    found = [one for one in listed or () if isinstance(one, dict)] if isinstance(listed, list) else []
    return [str(one.get("address")) for one in found if one.get("type") in ("InternalIP", "ExternalIP")]


def pod_cidrs(node: Object) -> list[str]:
    """spec.podCIDRs, else spec.podCIDR as a list."""
    spec = node.get("spec")
    if not isinstance(spec, dict):
        return []
    several = spec.get("podCIDRs")
    if isinstance(several, list) and several:
        return [str(one) for one in several]
    return [str(spec["podCIDR"])] if spec.get("podCIDR") else []


def assignments(text: str) -> dict[str, str]:
    """The NAME=VALUE lines of a text."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            found[name.removeprefix("export ").strip()] = value.strip().strip("\"'")
    return found
