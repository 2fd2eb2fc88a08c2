"""Make a bundle fit for a public issue: public addresses and names are replaced, consistently within the bundle.

Addresses. Private, cluster, link-local, loopback, multicast and documentation ranges stay. Every other address is mapped so that two
addresses share exactly as many leading bits after as before, so a route, a rule or a set that contained an address still does. The
mapping is made of a random key that is thrown away, and it never leads into a range that stays: a bit is only flipped where no such
range lies on either side.

Names. Nodes, namespaces, pods, Services, endpoints' owners and label values become node-1, ns-1, pod-1, svc-1, …; well-known ones
(default, kube-system, kubernetes, kube-dns, …) and words of the formats stay. Chain hashes stay: after the names are gone they cannot be worked
out again from the text, but they still tell which rule leads where.
"""

from __future__ import annotations

import hmac
import json
import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from podwire.explain.snapshot_live import Collected

    Network = IPv4Network | IPv6Network

_KEPT = [
    ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        "::/8", "64:ff9b::/96", "2001:db8::/32", "fc00::/7", "fe80::/10", "ff00::/8",
    )
]  # fmt: skip
_V4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)(?!\.\d)(?:/\d{1,2}(?!\d))?")
_V6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:)[0-9A-Fa-f:]{3,39}(?![\w:])(?:/\d{1,3}(?!\d))?")
_WELL_KNOWN = frozenset(
    [
        "default",
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "kube-flannel",
        "kubernetes",
        "kube-dns",
        "coredns",
        "kube-proxy",
        "flannel",
        "localhost",
        "lo",
        "http",
        "https",
        "dns",
        "dns-tcp",
        "metrics",
        "tcp",
        "udp",
        "sctp",
        "web",
        "api",
        "host",
        "node",
        "pod",
        "nat",
        "filter",
        "mangle",
        "raw",
        "accept",
        "drop",
        "reject",
        "return",
        "true",
        "false",
        "eth0",
        "cni0",
        "cbr0",
        "flannel.1",
        "input",
        "output",
        "forward",
        "prerouting",
        "postrouting",
        "local",
        "main",
        "all",
        "any",
        "ip",
        "inet",
        "table",
        "chain",
        "rule",
    ]
)


class Redactor:
    """The replacements of one bundle. `key` is random; `keep` are ranges of the cluster that stay although they are public."""

    def __init__(self, key: bytes, keep: Iterable[str] = (), names: Mapping[str, str] | None = None) -> None:
        self._key = key
        own = [network for text in keep if (network := _network(text)) is not None and network.prefixlen > 0]
        self._kept: list[Network] = [*_KEPT, *own]
        self._addresses: dict[str, str] = {}
        self._names = dict(names or {})
        ordered = sorted(self._names, key=len, reverse=True)
        self._pattern = (
            re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(map(re.escape, ordered)) + r")(?![A-Za-z0-9])")
            if ordered
            else None
        )

    def text(self, text: str) -> str:
        """A text with the replacements made."""
        text = _V4.sub(lambda found: self.address(found.group()), text)
        text = _V6.sub(lambda found: self.address(found.group()), text)
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._names[found.group()], text)
        return text

    def address(self, shown: str) -> str:
        """An address with or without a prefix length, or what only looks like one, replaced where it must be."""
        if shown not in self._addresses:
            text, slash, length = shown.partition("/")
            try:
                address = ip_address(text)
                network = ip_network(shown) if slash else None
            except ValueError:
                # An address with host bits (10.0.0.1/24) is one of an interface and keeps them.
                network = None
                try:
                    address = ip_address(text)
                except ValueError:
                    return shown
            mapped = self._map(address)
            if network is not None:
                mapped = ip_network(f"{mapped}/{length}", strict=False).network_address
            self._addresses[shown] = f"{mapped}{slash}{length}"
        return self._addresses[shown]

    def _map(self, address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
        kept = [network for network in self._kept if network.version == address.version]
        if any(address in network for network in kept):
            return address
        bits, value, mapped = address.max_prefixlen, int(address), 0
        for position in range(bits):
            rest = bits - position
            prefix = value >> rest
            bit = value >> (rest - 1) & 1
            # Below this prefix both halves may be swapped only when no range that stays lies in either.
            lies = [one for one in kept if one.prefixlen > position and int(one.network_address) >> rest == prefix]
            if not lies:
                seed = f"{address.version}/{position}/{prefix:x}".encode()
                bit ^= hmac.digest(self._key, seed, "sha256")[0] & 1
            mapped = mapped << 1 | bit
        return type(address)(mapped)


def _network(text: str) -> Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def apply(found: Collected, key: bytes) -> None:
    """Redact a collected bundle: its files, their names, what the manifest says, and the node's name."""
    objects = {
        name: _json(data)
        for name, data in found.files.items()
        if name.startswith("kube/") or name.endswith("crictl-pods.json")
    }
    worker = Redactor(key, _cluster_ranges(found.files, objects), _names(objects, found.node))
    found.files = {
        worker.text(name): worker.text(data.decode(errors="replace")).encode() for name, data in found.files.items()
    }
    found.read = {worker.text(name): worker.text(how) for name, how in found.read.items()}
    found.unread = {worker.text(name): worker.text(why) for name, why in found.unread.items()}
    found.node = worker.text(found.node)
    found.notes.append("redacted: public addresses and names were replaced; chain hashes are those of the real names")


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _items(value: Any) -> list[dict[str, Any]]:
    items = value.get("items") if isinstance(value, dict) else None
    return [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []


def _cluster_ranges(files: Mapping[str, bytes], objects: Mapping[str, Any]) -> list[str]:
    ranges = []
    for value in objects.values():
        for one in _items(value):
            spec = one.get("spec") if isinstance(one.get("spec"), dict) else {}
            assert isinstance(spec, dict)
            ranges += [str(text) for text in spec.get("podCIDRs") or []]
            ranges += [str(text) for text in spec.get("clusterIPs") or [] if text != "None"]
    for name in ("flannel/subnet.env", "flannel/net-conf.json"):
        ranges += re.findall(r"[\d.]{7,15}/\d+|[0-9a-f:]{3,39}/\d+", files.get(name, b"").decode(errors="replace"))
    return ranges


def _names(objects: Mapping[str, Any], node: str) -> dict[str, str]:
    found: dict[str, str] = {}
    counts: dict[str, int] = {}

    def give(name: Any, prefix: str) -> None:
        if not isinstance(name, str) or len(name) < 2 or name.lower() in _WELL_KNOWN or name in found or name.isdigit():
            return
        counts[prefix] = counts.get(prefix, 0) + 1
        found[name] = f"{prefix}-{counts[prefix]}"

    kinds = {
        "kube/nodes.json": "node",
        "kube/services.json": "svc",
        "kube/pods.json": "pod",
        "kube/endpointslices.json": "slice",
    }
    for file in [*kinds, "runtime/crictl-pods.json", "kube/daemonsets.json"]:
        for one in _items(objects.get(file)):
            metadata = one.get("metadata") if isinstance(one.get("metadata"), dict) else {}
            assert isinstance(metadata, dict)
            give(metadata.get("namespace"), "ns")
            give(metadata.get("name"), kinds.get(file, "pod"))
            for owner in metadata.get("ownerReferences") or ():
                give(owner.get("name") if isinstance(owner, dict) else None, "owner")
            for label, value in (
                (metadata.get("labels") or {}).items() if isinstance(metadata.get("labels"), dict) else ()
            ):
                if not str(label).startswith(("kubernetes.io/", "beta.kubernetes.io/", "node-role")):
                    give(value, "label")
    give(node, "node")
    return found
