"""Masquerading for a container's traffic that leaves its network.

The chains are the reference plugin's own, so that either can undo what the other did.

    iptables   nat POSTROUTING -s IP -j CNI-HASH; CNI-HASH: to its network ACCEPT, else (but multicast) MASQUERADE
    nftables   inet cni_plugins_masquerade, chain masq_checks: one rule an address, its comment begins with a hash

One iptables-restore or one nft transaction does what the reference plugin needs four calls and more for. Undoing looks in both,
whichever the configuration names: it may have been changed since the ADD.
"""

from __future__ import annotations

from podwire import naming
from podwire.cni.spec.text import quoted
from podwire.errors import CommandFailed, MissingCapability, PodwireError
from podwire.kernel import netfilter, spawn
from podwire.rules.iptables.run import Iptables, RestoreRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from podwire.addresses import Prefix

_TABLE = "cni_plugins_masquerade"
_CHAIN = "masq_checks"
# The reference plugin's words: nft refuses to add a table that exists with another comment.
_TABLE_COMMENT = "Masquerading for plugins from github.com/containernetworking/plugins"
_CHAIN_COMMENT = "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"
_MULTICAST = {32: "224.0.0.0/4", 128: "ff00::/8"}


class Attachment:
    """Whose traffic it is."""

    __slots__ = ("container_id", "ifname", "network")

    def __init__(self, network: str, container_id: str, ifname: str) -> None:
        self.network = network
        self.container_id = container_id
        self.ifname = ifname

    @property
    def chain(self) -> str:
        """The iptables chain (for historical reasons the interface is not part of it)."""
        return naming.cni_chain(self.network, self.container_id)

    @property
    def comment(self) -> str:
        """The comment of the iptables rules."""
        return f"name: {quoted(self.network)} id: {quoted(self.container_id)}"

    @property
    def nft_comment(self) -> str:
        """The comment of the nftables rules: what it begins with tells them apart, the rest is for people."""
        names = f"net: {self.network}, if: {self.ifname}, id: {self.container_id}"
        instance = naming.cni_hash(16, "", f"{self.ifname}:{self.container_id}")
        return f"{nft_hash(self.network)}-{instance}, {names}"[:128]


def nft_hash(network: str) -> str:
    """What the comments of a network's nftables rules begin with."""
    return naming.cni_hash(16, "", network)


def setup(owned: Attachment, ips: list[Prefix], backend: str) -> None:
    """Masquerade the traffic of these addresses. `backend`: iptables, nftables, '' (what the machine has)."""
    if not backend:
        only_nft = spawn.find("iptables") is None and spawn.find("nft") is not None
        backend = "nftables" if only_nft else "iptables"
    if backend == "iptables":
        for bits in {ip.ip.bits for ip in ips}:
            _iptables(bits).restore(setup_text(owned, [ip for ip in ips if ip.ip.bits == bits]))
    elif backend == "nftables":
        _nft(nft_setup_text(owned, ips, _nft_handles(owned.nft_comment.partition(",")[0])))
    else:
        raise ValueError(f"unknown ipmasq backend {quoted(backend)}")


def teardown(owned: Attachment, ips: list[Prefix]) -> None:
    """Undo it, whichever backend did it and whether or not the addresses are still known."""
    for bits in (32, 128):
        if netfilter.iptables_may_have(4 if bits == 32 else 6, "nat", owned.chain):
            _teardown_iptables(_iptables(bits), owned, [ip for ip in ips if ip.ip.bits == bits])
    handles = _nft_handles(owned.nft_comment.partition(",")[0])
    if handles:
        _nft(_nft_delete(handles))


def collect(network: str, valid: set[tuple[str, str]]) -> None:
    """Undo it for every attachment of a network that is not valid."""
    ids = {container_id for container_id, _ in valid}
    for bits in (32, 128):
        tables = _iptables(bits)
        for container_id in _container_ids(tables, network):
            if container_id not in ids:
                _remove_chain(tables, Attachment(network, container_id, "").chain)
    kept = {Attachment(network, *one).nft_comment for one in valid}
    stale = {handle: comment for handle, comment in _nft_handles(nft_hash(network)).items() if comment not in kept}
    if stale:
        _nft(_nft_delete(stale))


def _iptables(bits: int) -> Iptables:
    return Iptables(4 if bits == 32 else 6)


def setup_text(owned: Attachment, ips: list[Prefix]) -> str:
    """The iptables-restore input for addresses of one family; naming the chain first makes it, or empties it."""
    said = f'-m comment --comment "{_escaped(owned.comment)}"'
    lines = ["*nat", f":{owned.chain} - [0:0]"]
    lines += [f"-A {owned.chain} -d {ip.canonical} {said} -j ACCEPT" for ip in ips]
    lines.append(f"-A {owned.chain} ! -d {_MULTICAST[ips[0].ip.bits]} {said} -j MASQUERADE")
    lines += [f"-A POSTROUTING -s {ip.ip} {said} -j {owned.chain}" for ip in ips]
    return "\n".join([*lines, "COMMIT", ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _teardown_iptables(tables: Iptables, owned: Attachment, ips: list[Prefix]) -> None:
    said = f'-m comment --comment "{_escaped(owned.comment)}"'
    if ips:
        lines = [f"-D POSTROUTING -s {ip.ip} {said} -j {owned.chain}" for ip in ips]
        try:
            tables.restore("\n".join(["*nat", *lines, f"-F {owned.chain}", f"-X {owned.chain}", "COMMIT", ""]))
        except RestoreRefused:
            pass  # it is not as this ADD would have left it: look
        except MissingCapability:
            return
        else:
            return
    _remove_chain(tables, owned.chain)


def _remove_chain(tables: Iptables, chain: str) -> None:
    """Remove a chain and every rule of POSTROUTING that leads to it, however many there are."""
    try:
        if not tables.has_chain("nat", chain):
            return
        leading = [rule for rule in tables.rules("nat", "POSTROUTING") if rule.endswith(f"-j {chain}")]
    except (MissingCapability, CommandFailed):
        return  # no iptables, or no nat table: nothing of ours is in it
    lines = [f"-D POSTROUTING {rule}" for rule in leading]
    tables.restore("\n".join(["*nat", *lines, f"-F {chain}", f"-X {chain}", "COMMIT", ""]))


def _container_ids(tables: Iptables, network: str) -> set[str]:
    """The containers of a network that have a masquerade chain, by the comments of the rules that lead there."""
    try:
        found = tables.rules("nat", "POSTROUTING")
    except (MissingCapability, CommandFailed):
        return set()
    start = f"name: {_escaped(quoted(network))} id: " + '\\"'
    ids = set()
    for rule in found:
        _, there, rest = rule.partition(start)
        container_id = rest.partition('\\"')[0]
        if there and rule.endswith(f"-j {naming.cni_chain(network, container_id)}"):
            ids.add(container_id)
    return ids


def _nft_handles(start: str) -> dict[int, str]:
    """Handle and comment of the rules in our chain whose comment begins so."""
    if not netfilter.nft_has_table("inet", _TABLE):
        return {}
    output = spawn.run(["nft", "-j", "-a", "list", "chain", "inet", _TABLE, _CHAIN], timeout=60)
    if output.status:
        return {}  # no such chain (yet)
    import json

    listed: list[dict[str, Any]] = json.loads(output.stdout)["nftables"]
    rules = [item["rule"] for item in listed if "rule" in item]
    return {rule["handle"]: rule["comment"] for rule in rules if rule.get("comment", "").startswith(start)}


def _nft_delete(handles: dict[int, str]) -> list[str]:
    return [f"delete rule inet {_TABLE} {_CHAIN} handle {handle}" for handle in handles]


def nft_setup_text(owned: Attachment, ips: list[Prefix], stale: dict[int, str]) -> list[str]:
    """The nft transaction: table and chains as the reference plugin makes them, then this attachment's rules."""
    lines = [
        f'add table inet {_TABLE} {{ comment "{_TABLE_COMMENT}"; }}',
        f'add chain inet {_TABLE} {_CHAIN} {{ comment "{_CHAIN_COMMENT}"; }}',
        f"add chain inet {_TABLE} postrouting {{ type nat hook postrouting priority 100; }}",
        f"flush chain inet {_TABLE} postrouting",
        f"add rule inet {_TABLE} postrouting ip daddr == 224.0.0.0/4 return",
        f"add rule inet {_TABLE} postrouting ip6 daddr == ff00::/8 return",
        f"add rule inet {_TABLE} postrouting goto {_CHAIN}",
        *_nft_delete(stale),
    ]
    for ip in ips:
        family = "ip" if ip.ip.bits == 32 else "ip6"
        lines.append(
            f"add rule inet {_TABLE} {_CHAIN} {family} saddr == {ip.ip} {family} daddr != {ip.canonical} "
            f'masquerade comment "{owned.nft_comment}"'
        )
    return lines


def _nft(lines: list[str]) -> None:
    output = spawn.run(["nft", "-f", "-"], "\n".join([*lines, ""]).encode(), timeout=60)
    if output.status:
        said = output.stderr.decode(errors="replace").strip().splitlines()
        raise PodwireError("writing rules with", "nft", said[0] if said else f"exit status {output.status}")
