"""What a lab consists of: machines and addresses, worked out from names and prefixes alone (no root, no kernel).

    host ──(pw-NAME)── underlay bridge ──┬── control-plane
                         (own netns)     ├── node-1
                                         ├── node-2
                                         └── …

The underlay is one prefix. Its first address is the host's, the second the bridge's own (the machines' default
gateway: it answers "unreachable", so that a lab reaches nothing outside), then come the control plane and the nodes.
Every prefix of a lab must be disjoint from the others and the underlay from the host's routes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from podwire.errors import UsageError

CONTROL_PLANE = "control-plane"
UNDERLAY = "underlay"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: Where an underlay is looked for when none is asked for: the first /24 here that collides with nothing.
UNDERLAY_POOL = IPv4Network("10.20.0.0/14")
UNDERLAY_LENGTH = 24
MAX_NODES = 100
#: A node's share of the cluster CIDR (--node-cidr-mask-size).
POD_CIDR_LENGTH = 24


@dataclass(frozen=True, slots=True)
class Machine:
    """A control plane or a node: its name (a DNS label) and its address on the underlay."""

    name: str
    address: IPv4Address


@dataclass(frozen=True, slots=True)
class Topology:
    """A whole lab."""

    name: str
    underlay: IPv4Network
    cluster_cidr: IPv4Network
    service_cidr: IPv4Network
    control_plane: Machine
    nodes: tuple[Machine, ...]

    @property
    def host_address(self) -> IPv4Address:
        """The host's address on the underlay."""
        return self.underlay[1]

    @property
    def gateway(self) -> IPv4Address:
        """The underlay bridge's address."""
        return self.underlay[2]

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The control plane and the nodes."""
        return (self.control_plane, *self.nodes)

    @property
    def host_link(self) -> str:
        """The one interface in the host's network namespace (at most 15 characters, as the kernel wants)."""
        return host_link(self.name)

    def machine(self, name: str) -> Machine:
        """Look a machine up. Raises UsageError that names those there are."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        raise UsageError(
            "there is no node", name, f"lab {self.name} has {', '.join(machine.name for machine in self.machines)}"
        )


def host_link(name: str) -> str:
    """The name of a lab's interface on the host: pw-NAME, or pw- and a hash where that is too long."""
    plain = f"pw-{name}"
    return plain if len(plain) <= 15 else f"pw-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def check_label(what: str, name: str) -> str:
    """The name itself if it is a DNS label (RFC 1123), else UsageError."""
    if not _LABEL.fullmatch(name):
        raise UsageError(
            f"{what} {name!r} is no DNS label",
            hint="lower case letters, digits and '-', at most 63, beginning and ending with a letter or digit",
        )
    return name


def parse_prefix(flag: str, text: str) -> IPv4Network:
    """A prefix given on the command line. Raises UsageError."""
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text}", answer=str(error), hint="an IPv4 prefix such as 10.244.0.0/16") from error


def plan(
    name: str,
    nodes: int,
    *,
    cluster_cidr: str = "10.244.0.0/16",
    service_cidr: str = "10.96.0.0/16",
    underlay: str | None = None,
    taken: list[IPv4Network],
) -> Topology:
    """Lay a lab out. `taken` are the prefixes of the host's routes (no default route among them)."""
    check_label("lab name", name)
    if not 1 <= nodes <= MAX_NODES:
        raise UsageError("--nodes", str(nodes), f"a lab has 1 to {MAX_NODES} nodes")
    cluster = parse_prefix("--cluster-cidr", cluster_cidr)
    service = parse_prefix("--service-cluster-ip-range", service_cidr)
    if cluster.overlaps(service):
        raise UsageError(f"--cluster-cidr {cluster} and --service-cluster-ip-range {service} overlap")
    if cluster.prefixlen > POD_CIDR_LENGTH or 2 ** (POD_CIDR_LENGTH - cluster.prefixlen) < nodes:
        raise UsageError(f"--cluster-cidr {cluster} has no /{POD_CIDR_LENGTH} for each of {nodes} nodes")
    own = [cluster, service]
    if underlay is None:
        prefix = _free_underlay(taken + own)
    else:
        prefix = parse_prefix("--underlay", underlay)
        clash = next((other for other in taken + own if prefix.overlaps(other)), None)
        if clash is not None:
            raise UsageError(f"--underlay {prefix} collides with {clash}", hint="leave it out to have one chosen")
        if prefix.num_addresses < nodes + 16:
            raise UsageError(f"--underlay {prefix} is too small for {nodes} nodes")
    members = tuple(Machine(f"node-{number}", prefix[10 + number]) for number in range(1, nodes + 1))
    return Topology(name, prefix, cluster, service, Machine(CONTROL_PLANE, prefix[10]), members)


def _free_underlay(taken: list[IPv4Network]) -> IPv4Network:
    for candidate in UNDERLAY_POOL.subnets(new_prefix=UNDERLAY_LENGTH):
        if not any(candidate.overlaps(other) for other in taken):
            return candidate
    raise UsageError(
        f"every /{UNDERLAY_LENGTH} of {UNDERLAY_POOL} collides with a route of this host", hint="use --underlay"
    )
