"""net-conf.json: what the administrator decided for the whole cluster (flannel's Documentation/configuration.md).

    {"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan", "VNI": 1, "DirectRouting": true}}

Names are matched as Go's encoding/json does it, in any case: files in the wild say `vni` and `VNI`. IPv4 is on unless
`EnableIPv4` says otherwise. What flannel itself does not know is ignored as it ignores it, but named in `ignored`, so
that a misspelled option does not vanish without a word. The keys that only divide up an etcd-leased network
(SubnetLen, SubnetMin, …) are known and mean nothing here: with Kubernetes leases node IPAM has divided it already.
"""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

N = TypeVar("N", ipaddress.IPv4Network, ipaddress.IPv6Network)

DEFAULT_VXLAN_PORT = 8472
"""What the kernel takes when no port is given (drivers/net/vxlan: udp_port). IANA's own number for VXLAN is 4789."""

_ETCD_ONLY = {"subnetlen", "subnetmin", "subnetmax", "ipv6subnetlen", "ipv6subnetmin", "ipv6subnetmax"}
_KNOWN = {"network", "ipv6network", "enableipv4", "enableipv6", "enablenftables", "backend"} | _ETCD_ONLY
_VXLAN_KNOWN = {"type", "vni", "port", "mtu", "gbp", "learning", "directrouting", "macprefix"}


@dataclass(frozen=True, slots=True)
class VxlanOptions:
    """The vxlan backend's own options. `mtu` is that of the underlay (0: as the interface says), not of the device."""

    vni: int = 1
    port: int = DEFAULT_VXLAN_PORT
    mtu: int = 0
    gbp: bool = False
    learning: bool = False
    direct_routing: bool = False


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """The whole file. A family that is off has no network."""

    network: ipaddress.IPv4Network | None
    ipv6_network: ipaddress.IPv6Network | None
    nftables: bool
    backend: str
    vxlan: VxlanOptions
    ignored: tuple[str, ...]

    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of the families that are on, IPv4 first."""
        return tuple(network for network in (self.network, self.ipv6_network) if network is not None)

    def families(self) -> list[int]:
        """The families that are on: [4], [6] or [4, 6]."""
        return [network.version for network in self.networks()]


def load(path: str) -> NetworkConfig:
    """Read and parse the file; UsageError says what is wrong with it."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise UsageError(
            "reading the network configuration", path, error.strerror or str(error), "--net-config-path names it"
        ) from error
    return parse(text, path)


def parse(text: str, source: str = "net-conf.json") -> NetworkConfig:
    """Parse the text of a net-conf.json; `source` is for the error message."""
    reader = _Reader(source)
    fields = reader.object(reader.json(text), "the file")
    ipv4 = reader.boolean(fields, "EnableIPv4", default=True)
    ipv6 = reader.boolean(fields, "EnableIPv6", default=False)
    if not ipv4 and not ipv6:
        raise reader.wrong("EnableIPv4 and EnableIPv6", "both are false: there would be nothing to connect")
    # flannel's own default for a file without a Backend is udp, a backend nobody should still have.
    options = reader.object(fields.get("backend", {"Type": "udp"}), "Backend")
    backend = options.get("type")
    if not isinstance(backend, str):
        raise reader.wrong("Backend.Type", "is missing")
    ignored = [key for key in fields if key not in _KNOWN]
    if backend == "vxlan":
        ignored += [f"backend.{key}" for key in options if key not in _VXLAN_KNOWN]
    return NetworkConfig(
        network=reader.network(fields, "Network", ipaddress.IPv4Network) if ipv4 else None,
        ipv6_network=reader.network(fields, "IPv6Network", ipaddress.IPv6Network) if ipv6 else None,
        nftables=reader.boolean(fields, "EnableNFTables", default=False),
        backend=backend,
        vxlan=_vxlan(reader, options) if backend == "vxlan" else VxlanOptions(),
        ignored=tuple(ignored),
    )


def _vxlan(reader: _Reader, options: Mapping[str, Any]) -> VxlanOptions:
    return VxlanOptions(
        # 24 bits on the wire (RFC 7348, section 5).
        vni=reader.integer(options, "VNI", default=1, low=1, high=(1 << 24) - 1),
        port=reader.integer(options, "Port", default=0, low=0, high=65535) or DEFAULT_VXLAN_PORT,
        mtu=reader.integer(options, "MTU", default=0, low=0, high=65535),
        gbp=reader.boolean(options, "GBP", default=False),
        learning=reader.boolean(options, "Learning", default=False),
        direct_routing=reader.boolean(options, "DirectRouting", default=False),
    )


class _Reader:
    """Typed access to JSON whose keys are already in lower case; complaints name the file and the key."""

    def __init__(self, source: str) -> None:
        self._source = source

    def wrong(self, key: str, what: str) -> UsageError:
        return UsageError("reading", self._source, f"{key}: {what}")

    def json(self, text: str) -> object:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self.wrong("JSON", str(error)) from error

    def object(self, value: object, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.wrong(key, "is no JSON object")
        return {name.lower(): entry for name, entry in value.items()}

    def boolean(self, fields: Mapping[str, Any], key: str, *, default: bool) -> bool:
        value = fields.get(key.lower(), default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"{value!r} is neither true nor false")
        return value

    def integer(self, fields: Mapping[str, Any], key: str, *, default: int, low: int, high: int) -> int:
        value = fields.get(key.lower(), default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(key, f"{value!r} is no number from {low} to {high}")
        return value

    def network(self, fields: Mapping[str, Any], key: str, kind: type[N]) -> N:
        value = fields.get(key.lower())
        if not isinstance(value, str):
            raise self.wrong(key, "is missing; it is the network that all podCIDRs are cut from, e.g. 10.244.0.0/16")
        try:
            # Host bits are cut off, as Go's net.ParseCIDR does.
            return kind(value, strict=False)
        except ValueError as error:
            raise self.wrong(key, str(error)) from error
