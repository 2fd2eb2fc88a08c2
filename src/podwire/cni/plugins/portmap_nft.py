"""Host ports with nftables: the reference plugin's tables `ip cni_hostport` and `ip6 cni_hostport`, one transaction an address.

    prerouting, output   [conditions] fib daddr type local jump hostports_all
    hostports_all        jump hostip_hostports (older releases' rules), jump hostports
    hostports            [ip daddr HOSTIP] tcp dport 8080 dnat to 10.1.2.3:80 comment "CONTAINERID"
    masquerading         from the container itself, and from 127.0.0.1, to the container: masquerade

Both hooks must ask whether the destination is one of the host's addresses: a rule for port 53 would else take everybody's
questions to every name server. Rules are found again by their comment, the container's ID, which says nothing of the network; so
which network a container's rules belong to is kept in files (/run/cni/portmap/NETWORK/CONTAINERID), for GC alone. They are as
short-lived as the rules, and written before them.
"""

from __future__ import annotations

import os

from podwire.cni.spec.text import decode, quoted
from podwire.errors import PodwireError
from podwire.kernel import netfilter, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from podwire.addresses import Ip, Prefix
    from podwire.cni.plugins.portmap_conf import Conf, Mapping

_TABLE = "cni_hostport"
_FAMILIES = {32: "ip", 128: "ip6"}
_RULE_CHAINS = ("hostports", "hostip_hostports", "masquerading")
_DATA_DIR = "/run/cni/portmap"
_TRIES = 3


def setup_text(conf: Conf, net: Prefix) -> list[str]:
    """The transaction that forwards to one of the container's addresses."""
    family = _FAMILIES[net.ip.bits]
    table = f"{family} {_TABLE}"
    local = " ".join([*conf.conditions[net.ip.bits], "fib daddr type local jump hostports_all"])
    lines = [
        f'add table {table} {{ comment "CNI portmap plugin" ; }}',
        f"add chain {table} hostports",
        f"add chain {table} hostip_hostports",
        f"add chain {table} hostports_all",
        f"flush chain {table} hostports_all",
        f"add rule {table} hostports_all jump hostip_hostports",
        f"add rule {table} hostports_all jump hostports",
    ]
    for hook in ("prerouting", "output"):
        lines += [
            f"add chain {table} {hook} {{ type nat hook {hook} priority -100 ; }}",
            f"flush chain {table} {hook}",
            f"add rule {table} {hook} {local}",
        ]
    if conf.snat:
        lines.append(f"add chain {table} masquerading {{ type nat hook postrouting priority 100 ; }}")
    said = f"comment {quoted(conf.container_id)}"
    lines += [
        f"add rule {table} hostports {_match(family, one)} dnat to {_where(net.ip, one.container_port)} {said}"
        for one in conf.mappings
        if one.serves(net.ip.bits)
    ]
    if conf.snat:
        lines += [
            f"add rule {table} masquerading {family} saddr {source} {family} daddr {net.ip} masquerade {said}"
            for source in _masqueraded(conf, net.ip)
        ]
    return lines


def _match(family: str, mapping: Mapping) -> str:
    ports = f"{mapping.protocol.lower()} dport {mapping.host_port}"
    return ports if mapping.destination is None else f"{family} daddr {mapping.destination} {ports}"


def _where(ip: Ip, port: int) -> str:
    return f"{ip}:{port}" if ip.bits == 32 else f"[{ip}]:{port}"


def _masqueraded(conf: Conf, ip: Ip) -> list[str]:
    """The sources for which answers must come back through the host."""
    if conf.masq_all:
        return ["0.0.0.0/0" if ip.bits == 32 else "::/0"]
    return [str(ip), "127.0.0.1"] if ip.bits == 32 else [str(ip)]


class Backend:
    """ADD, DEL and CHECK in nftables."""

    def forward(self, conf: Conf, net: Prefix) -> None:
        """Write the rules for one of the container's addresses. Raises ValueError."""
        _remember(conf)
        try:
            _nft(setup_text(conf, net))
        except PodwireError as error:
            raise ValueError(f"unable to set up nftables rules for port mappings: {error}") from error

    def check(self, conf: Conf, net: Prefix) -> None:
        """Whether at least as many rules are there as were written. Raises ValueError."""
        wanted = {"hostports": sum(one.serves(net.ip.bits) for one in conf.mappings)}
        wanted["masquerading"] = len(_masqueraded(conf, net.ip)) if conf.snat else 0
        mine = [chain for chain, _, said in _rules(net.ip.bits) if said == conf.container_id]
        for chain, count in wanted.items():
            if mine.count(chain) < count:
                raise ValueError(f"missing hostport rules in {quoted(chain)} chain")

    def unforward(self, conf: Conf) -> None:
        """Remove the container's rules of both families. Raises ValueError."""
        _remove({conf.container_id})
        _forget(conf.name, conf.container_id)


def _remove(container_ids: set[str]) -> None:
    for left in range(_TRIES, 0, -1):
        lines = [
            f"delete rule {_FAMILIES[bits]} {_TABLE} {chain} handle {handle}"
            for bits in _FAMILIES
            for chain, handle, said in _rules(bits)
            if said in container_ids
        ]
        try:
            if lines:
                _nft(lines)
        except PodwireError as error:  # another DEL of the same container may have been quicker: look again
            if left == 1:
                raise ValueError(f"error deleting nftables rules: {error}") from error
        else:
            return


def _rules(bits: int) -> list[tuple[str, int, str]]:
    """(chain, handle, comment) of the rules of containers."""
    if not netfilter.nft_has_table(_FAMILIES[bits], _TABLE):
        return []
    output = spawn.run(["nft", "-j", "-a", "list", "table", _FAMILIES[bits], _TABLE], timeout=60)
    if output.status:
        return []  # it went between two looks
    listed: list[dict[str, Any]] = decode(output.stdout)["nftables"]
    rules = [item["rule"] for item in listed if "rule" in item]
    return [(r["chain"], r["handle"], r.get("comment", "")) for r in rules if r["chain"] in _RULE_CHAINS]


def collect(network: str, valid: set[str]) -> None:
    """Remove the rules of a network's containers that are not valid. Raises ValueError."""
    try:
        known = set(os.listdir(f"{_DATA_DIR}/{network}"))
    except OSError:
        return
    stale = known - valid
    # A container may be in several networks; its rules cannot be told apart, so they stay as long as one of them has it.
    elsewhere = {name for name in stale if any(network != other and name in ids for other, ids in _remembered())}
    _remove(stale - elsewhere)
    for container_id in stale:
        _forget(network, container_id)


def _remembered() -> list[tuple[str, list[str]]]:
    return [(network, os.listdir(f"{_DATA_DIR}/{network}")) for network in os.listdir(_DATA_DIR)]


def _remember(conf: Conf) -> None:
    """Keep whose the rules will be. Raises ValueError where it cannot be written."""
    path = f"{_DATA_DIR}/{conf.name}/{conf.container_id}"
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        said = os.strerror(error.errno or 0)
        raise ValueError(f"writing {path}, which GC needs to find leaked rules: {said}") from error


def _forget(network: str, container_id: str) -> None:
    try:
        os.unlink(f"{_DATA_DIR}/{network}/{container_id}")
    except OSError:
        return


def _nft(lines: list[str]) -> None:
    output = spawn.run(["nft", "-f", "-"], "\n".join([*lines, ""]).encode(), timeout=60)
    if output.status:
        said = output.stderr.decode(errors="replace").strip().splitlines()
        raise PodwireError("writing rules with", "nft", said[0] if said else f"exit status {output.status}")
