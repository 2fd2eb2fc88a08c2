"""The server's flags, and what they mean once checked.

Names and defaults are those of kube-apiserver where it has the flag. Wrong values are UsageError: one line that says what is
expected.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.apiserver.bootstrap import first_address
from podwire.apiserver.resource import Flags
from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Options:
    """The flags as given. `advertise_address` "": the bind address, or where that is any, the machine's own."""

    data_dir: str
    bind_address: str = "0.0.0.0"
    secure_port: int = 6443
    advertise_address: str = ""
    service_cluster_ip_range: str = "10.96.0.0/16"
    service_node_port_range: str = "30000-32767"
    kubeconfig_out: str = ""
    event_ttl: int = 3600
    verbosity: int = 0


@dataclass(frozen=True)
class Settings:
    """The flags, checked."""

    options: Options
    flags: Flags
    bind: str
    advertise: str
    port: int

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return f"https://{self.address}"

    @property
    def address(self) -> str:
        """host:port."""
        host = f"[{self.advertise}]" if ":" in self.advertise else self.advertise
        return f"{host}:{self.port}"

    def certificate_addresses(self) -> Iterable[str]:
        """Every address a client may use."""
        own = [self.advertise, "127.0.0.1", "::1", *(first_address(cidr) for cidr in self.flags.service_ranges)]
        return own if ipaddress.ip_address(self.bind).is_unspecified else [*own, self.bind]


def check(options: Options) -> Settings:
    """Settings of options. Raises UsageError."""
    if not 1 <= options.secure_port <= 65535:
        raise UsageError("--secure-port", str(options.secure_port), "it is not a port", "expected 1 to 65535")
    bind = _address("--bind-address", options.bind_address)
    advertise = options.advertise_address or (_own(bind) if ipaddress.ip_address(bind).is_unspecified else bind)
    advertise = _address("--advertise-address", advertise)
    if ipaddress.ip_address(advertise).is_unspecified:
        raise UsageError(
            "--advertise-address", advertise, "clients cannot connect to it", "expected a specific address"
        )
    if options.event_ttl < 0:
        raise UsageError("--event-ttl", str(options.event_ttl), "it is negative", "expected seconds")
    flags = Flags(_ranges(options.service_cluster_ip_range), _ports(options.service_node_port_range))
    return Settings(options, flags, bind, advertise, options.secure_port)


def _address(flag: str, text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise UsageError(flag, text, "it is not an IP address") from None


def _ranges(text: str) -> tuple[str, ...]:
    flag, found = "--service-cluster-ip-range", []
    for part in text.split(","):
        try:
            network = ipaddress.ip_network(part.strip())
        except ValueError as error:
            raise UsageError(flag, part, str(error), "expected a prefix such as 10.96.0.0/16") from None
        if network.num_addresses < 8:
            raise UsageError(flag, part, "it is too small", "at least 8 addresses are needed")
        found.append(network)
    if len(found) > 2 or len({network.version for network in found}) != len(found):
        raise UsageError(
            flag, text, "more than one prefix of a family", "expected one prefix, or one IPv4 and one IPv6"
        )
    return tuple(map(str, found))


def _ports(text: str) -> range:
    first, dash, last = text.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last) <= 65535):
        raise UsageError("--service-node-port-range", text, "it is not a range of ports", "expected as in 30000-32767")
    return range(int(first), int(last) + 1)


def _own(bind: str) -> str:
    """The address this machine would send from; nothing is sent (a UDP socket is only connected)."""
    family, probe, loopback = (
        (socket.AF_INET6, "2001:db8::1", "::1") if ":" in bind else (socket.AF_INET, "192.0.2.1", "127.0.0.1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.connect((probe, 9))
        return str(sock.getsockname()[0])
    return loopback
