"""What the walk knows about a node besides its rules: addresses, routes, settings, sets, flows, sockets.

Everything is asked through questions whose answer may be None: "the input does not tell". Where the user supplied what an
input lacks (an address, a route), `assumed` says so, and every answer of `explain` repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from podwire.addresses import Ip, Prefix
from podwire.explain.packet import UNKNOWN

if TYPE_CHECKING:
    from podwire.explain.ipsets import IpSets
    from podwire.explain.packet import Packet
    from podwire.explain.routing import Routing
    from podwire.explain.snapshot import Address, Flow, Link, Snapshot, Socket

#: recent's list → address → how many seconds ago it was seen, newest first
Recent = dict[str, dict[str, tuple[float, ...]]]


@dataclass(slots=True)
class Facts:
    """See the module's text. `settings` are sysctls by their path with slashes; a value None means there is no such file."""

    routing: Routing
    snapshot: Snapshot
    settings: dict[str, str | None] = field(default_factory=dict)
    ipsets: IpSets | None = None
    recent: Recent | None = None
    addresses: list[Address] | None = None  # with those that the user supplied
    asked: Ip | None = None  # where the node's addresses are not known: the destination that may be one
    asked_is_local: bool = False
    assumed: list[str] = field(default_factory=list)

    # -- addresses ---------------------------------------------------------------------------------------------------

    def address_type(self, ip: Ip, dev: str | None = None) -> str | None:
        """LOCAL, UNICAST, BROADCAST or MULTICAST; None when it cannot be told."""
        kind = self.routing.address_type(ip, dev)
        if kind is not None or self.asked is None:
            return kind
        if ip == self.asked:
            return "LOCAL" if self.asked_is_local else None
        text = f"{ip} is not an address of this node (--node-address tells what is)"
        if text not in self.assumed:
            self.assumed.append(text)
        return "UNICAST"

    def first_address(self, dev: str | None, family: int, towards: Ip | None = None) -> Ip | None:
        """The address the kernel takes on a device for MASQUERADE (inet_select_addr) or REDIRECT; None: not known.

        The device's first address whose network has the next hop, else its first; where it has none, another device's.
        """
        if dev is None or not self.addresses:
            return None
        found: list[tuple[Prefix, str, str]] = []
        for address in self.addresses:
            try:
                prefix = Prefix.parse(f"{address.ip}/{address.length}")
            except ValueError:
                continue
            scope = address.scope or ("host" if address.dev == "lo" else "global")
            if prefix.ip.bits == (32 if family == 4 else 128) and scope == "global":
                found.append((prefix, address.dev, scope))
        own = [prefix for prefix, owner, _ in found if owner == dev]
        if dev == UNKNOWN:
            return None
        near = [prefix for prefix in own if towards is not None and prefix.contains(towards)]
        chosen = (
            near
            or own
            or ([prefix for prefix, _, _ in found] if self.snapshot.links is not None or dev == "lo" else [])
        )
        return chosen[0].ip if chosen else None

    def only_address(self, family: int) -> Ip | None:
        """The node's address, where it has just one besides lo's."""
        own = {
            prefix.ip
            for prefix, dev in self.routing.subnets
            if dev != "lo" and prefix.ip.bits == (32 if family == 4 else 128)
        }
        return next(iter(own)) if len(own) == 1 else None

    # -- settings ----------------------------------------------------------------------------------------------------

    def setting(self, name: str) -> str | None:
        """A sysctl's value; None when it was not read or is not there."""
        return self.settings.get(name)

    def largest(self, kind: str, dev: str | None) -> int | None:
        """max(conf.all, conf.DEV) of an IPv4 setting, as rp_filter, route_localnet and accept_local work; None: not known."""
        values = [self.settings.get(f"net/ipv4/conf/{where}/{kind}") for where in ("all", dev or "")]
        numbers = [int(value) for value in values if value is not None and value.isdigit()]
        return (
            max(numbers)
            if len(numbers) == 2 or (numbers and max(numbers) > 0 and kind != "rp_filter")
            else (numbers[0] if len(numbers) == 1 and kind == "rp_filter" and values[1] is not None else None)
        )

    def bridge_netfilter(self, family: int) -> bool | None:
        """Whether frames that a bridge switches go through iptables."""
        name = f"net/bridge/bridge-nf-call-ip{'6' if family == 6 else ''}tables"
        if name in self.settings:
            return self.settings[name] == "1"
        modules = self.snapshot.modules
        return False if modules is not None and "br_netfilter" not in modules else None

    # -- devices -----------------------------------------------------------------------------------------------------

    def link(self, name: str | None) -> Link | None:
        """A device."""
        return self.snapshot.link(name) if name else None

    def port_of(self, ip: Ip, bridge: str) -> Link | None:
        """The bridge port behind which an address lives, by neighbour entry and FDB; None: not known."""
        macs = [
            one.mac.lower() for one in self.snapshot.neighbours or () if one.ip == str(ip) and one.dev in (bridge, "")
        ]
        ports = [one.dev for one in self.snapshot.fdb or () if one.mac.lower() in macs and one.master in (bridge, "")]
        found = self.link(ports[0]) if ports else None
        members = [link for link in self.snapshot.links or () if link.master == bridge]
        return found or (members[0] if len(members) == 1 else None)

    def hairpin(self, ip: Ip, bridge: str) -> bool | None:
        """Hairpin mode of the port behind which an address lives; where that is not known, of all ports if they agree."""
        port = self.port_of(ip, bridge)
        if port is not None and port.hairpin is not None:
            return port.hairpin
        modes = {link.hairpin for link in self.snapshot.links or () if link.master == bridge}
        return modes.pop() if len(modes) == 1 else None

    # -- sets --------------------------------------------------------------------------------------------------------

    def recently(self, name: str, ip: Ip, seconds: int, hits: int) -> bool | None:
        """Whether xt_recent's list holds an address, seen `hits` times in the last `seconds` (0: ever)."""
        if self.recent is None:
            return None
        seen = self.recent.get(name, {}).get(str(ip), ())
        return len([age for age in seen if not seconds or age <= seconds]) >= max(1, hits)

    def in_ipset(self, name: str, sides: tuple[str, ...], packet: Packet) -> bool | None:
        """Whether a packet is in an ipset."""
        return None if self.ipsets is None else self.ipsets.holds(name, sides, packet)

    # -- flows and sockets -------------------------------------------------------------------------------------------

    def flows_of(self, packet: Packet) -> list[tuple[Flow, bool]]:
        """Conntrack entries that the packet belongs to, and whether in the reply direction; an unknown port fits any."""
        found = []
        src, dst = str(packet.src), str(packet.dst)
        for flow in self.snapshot.flows or ():
            if flow.protocol != packet.protocol or not (_readable(flow.reply_src) and _readable(flow.reply_dst)):
                continue
            if (flow.src, flow.dst) == (src, dst) and _same(flow.sport, flow.dport, packet):
                found.append((flow, False))
            elif (flow.reply_src, flow.reply_dst) == (src, dst) and _same(flow.reply_sport, flow.reply_dport, packet):
                found.append((flow, True))
        return found

    def listener(self, packet: Packet) -> Socket | None:
        """The socket that gets a packet for this node; None when there is none (or sockets were not read)."""
        any_address = {"*", "0.0.0.0", "::", "[::]", ""}
        best: Socket | None = None
        for one in self.snapshot.sockets or ():
            if (one.port, one.ip, one.peer_ip, one.peer_port) == (
                packet.dport,
                str(packet.dst),
                str(packet.src),
                packet.sport,
            ):
                return one
            if one.listening and one.port == packet.dport and one.protocol.rstrip("6") == packet.protocol:
                if one.ip == str(packet.dst):
                    return one
                if one.ip in any_address or one.ip == "::ffff:" + str(packet.dst):
                    best = one
        return best


def _readable(address: str) -> bool:
    try:
        Ip.parse(address)
    except ValueError:
        return False
    return True


def _same(sport: int, dport: int, packet: Packet) -> bool:
    return packet.sport in (None, sport) and packet.dport in (None, dport)
