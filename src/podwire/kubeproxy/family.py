"""An address family as an argument: everything that differs between IPv4 and IPv6 in what kube-proxy does.

kube-proxy serves both families of a dual-stack cluster with the same code and two sets of state. Nothing else in this
room asks which family it is working for.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """`name` is the API's word (IPv4, IPv6), `version` the number, `bits` the length of an address."""

    name: str
    version: int
    bits: int
    loopback: str  # the prefix of loopback addresses
    reject_with: str  # the ICMP answer "port unreachable" in iptables' words
    full_mask: str  # the mask of one address as xt_recent prints it
    socket_family: int

    def ip(self, text: str) -> str | None:
        """The address in its canonical spelling; None when it is no address of this family."""
        try:
            return socket.inet_ntop(self.socket_family, socket.inet_pton(self.socket_family, text))
        except (OSError, ValueError):
            return None

    def prefix(self, text: str) -> str | None:
        """A prefix with its host bits cleared (10.0.0.7/8 is 10.0.0.0/8); None when it is none of this family."""
        try:
            network = ipaddress.ip_network(text.strip(), strict=False)
        except ValueError:
            return None
        return str(network) if network.version == self.version else None

    def host(self, ip: str) -> str:
        """The address as a prefix."""
        return f"{ip}/{self.bits}"

    def endpoint(self, ip: str, port: int) -> str:
        """`ip:port`, `[v6]:port`."""
        return f"{ip}:{port}" if self.version == 4 else f"[{ip}]:{port}"


IPV4 = Family("IPv4", 4, 32, "127.0.0.0/8", "icmp-port-unreachable", "255.255.255.255", socket.AF_INET)
IPV6 = Family(
    "IPv6", 6, 128, "::1/128", "icmp6-port-unreachable", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", socket.AF_INET6
)


def contains(prefix: str, ip: str) -> bool:
    """Whether the address lies in the prefix; False across families."""
    return ipaddress.ip_address(ip) in ipaddress.ip_network(prefix)
