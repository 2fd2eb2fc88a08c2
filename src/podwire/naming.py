"""Every derived name and its inverse.

What is derived from something else (a chain name from a Service, an interface name from a container) is derived on this
page and nowhere else, so that whoever reads a node can go back. Where no inverse exists the section says so. Slim.
"""

from __future__ import annotations

# --- kube-proxy, iptables mode --------------------------------------------------------------------------------------
#
# Chain names are a prefix and the first 16 characters of base32(sha256(text)): 80 bits, and iptables allows 28
# characters. For service chains the text is the port's name and the protocol, for endpoint chains also `ip:port`.
# Before Kubernetes 1.19 an unnamed port left its colon in the text (`default/web:` + `tcp`), so names in older listings
# differ from today's for unnamed ports. A hash has no inverse: comments say whose chain it is.

SERVICE_CHAIN_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-")

OLD_CHAIN_PREFIX = "KUBE-XLB-"  # until Kubernetes 1.23: external traffic under policy Local; KUBE-EXT- today


def service_port_name(namespace: str, service: str, port: str) -> str:
    """`namespace/service:port`, without the colon when the port has no name: what comments and hashes are made of."""
    return f"{namespace}/{service}:{port}" if port else f"{namespace}/{service}"


def chain_hash(text: str) -> str:
    """The first 16 characters of base32(sha256(text))."""
    from hashlib import sha256

    bits = int.from_bytes(sha256(text.encode()).digest()[:10], "big")
    pairs = _base32_pairs or _fill_base32_pairs()
    return "".join([pairs[bits >> shift & 0x3FF] for shift in (70, 60, 50, 40, 30, 20, 10, 0)])


# All two-character groups of base32 by their ten bits: a node with 10,000 Services makes 110,000 names. Filled at first use,
# and not by functools.cache, because a CNI plugin, which needs none of them, would pay 2 ms for importing functools.
_base32_pairs: list[str] = []


def _fill_base32_pairs() -> list[str]:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"  # RFC 4648
    _base32_pairs[:] = [high + low for high in alphabet for low in alphabet]
    return _base32_pairs


def service_chain(prefix: str, port_name: str, protocol: str) -> str:
    """A chain of a service port: prefix KUBE-SVC- (cluster policy), KUBE-SVL- (local), KUBE-EXT- or KUBE-FW-."""
    return prefix + chain_hash(port_name + protocol)


def endpoint_chain(port_name: str, protocol: str, endpoint: str) -> str:
    """The chain of one endpoint (`ip:port`, `[v6]:port`) of a service port."""
    return "KUBE-SEP-" + chain_hash(port_name + protocol + endpoint)


# --- kube-proxy, nftables mode --------------------------------------------------------------------------------------
#
# `H-namespace/service/protocol/port` behind what the chain is for (service-, local-, external-, firewall-); H is the first 8
# characters of base32(sha256(what follows it)), which keeps names apart that look alike. A port without a name leaves the slash.
# Endpoints, which have chains and sets (affinity-) only with session affinity, add `__ip/port`; an IPv6 address has dots
# for colons, which nft's names do not allow. The name is its own inverse.


def nft_service_name(namespace: str, service: str, protocol: str, port: str) -> str:
    """What the chains of a service port have in common, with its hash."""
    text = f"{namespace}/{service}/{protocol}/{port}"
    return f"{chain_hash(text)[:8]}-{text}"


def nft_endpoint_name(service_name: str, ip: str, port: int) -> str:
    """The same for one endpoint of a service port; `service_name` is from `nft_service_name`."""
    text = f"{service_name[9:]}__{ip.replace(':', '.')}/{port}"
    return f"{chain_hash(text)[:8]}-{text}"


# --- CNI plugins ----------------------------------------------------------------------------------------------------
#
# containernetworking/plugins, pkg/utils: hexadecimal sha512, cut. A chain is the network's and the container's; portmap
# has two, with "DN-" and "SN-" after the common prefix. No inverse: the rules' comments name both.


def cni_hash(length: int, prefix: str, text: str) -> str:
    """`prefix` and as much of the hexadecimal sha512 of `text` as gives `length` characters in all."""
    from hashlib import sha512

    return (prefix + sha512(text.encode()).hexdigest())[:length]


def cni_chain(network: str, container_id: str, prefix: str = "") -> str:
    """A CNI plugin's iptables chain for one container in one network."""
    return cni_hash(28, f"CNI-{prefix}", network + container_id)
