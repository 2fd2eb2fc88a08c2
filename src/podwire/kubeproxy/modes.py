"""The two modes: what each needs of the machine, and how each takes away what the other left.

A mode's rules are written first, and only when they stand those of the other mode are removed; meanwhile both lead to the same
pods. KUBE-FIREWALL stays: it is kubelet's too. Which mode left something is not remembered anywhere but in the kernel.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.errors import CommandFailed, MissingCapability, PodwireError
from podwire.kernel import netfilter, spawn
from podwire.kubeproxy import iptables_plan
from podwire.kubeproxy.family import IPV4, IPV6, Family
from podwire.kubeproxy.iptables_sync import IptablesSync
from podwire.kubeproxy.layout import read_layout
from podwire.kubeproxy.nftables_base import TABLE, base
from podwire.kubeproxy.nftables_plan import Claims, full, own
from podwire.kubeproxy.nftables_sync import NftablesSync
from podwire.kubeproxy.settings import Settings
from podwire.kubeproxy.trace import legacy_trace, nft_trace
from podwire.rules.iptables import save
from podwire.rules.iptables.run import Iptables, RestoreRefused
from podwire.rules.nft.run import Nft, require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from podwire.kubeproxy.config import Config
    from podwire.kubeproxy.state import State
    from podwire.kubeproxy.sync import Sync

log = logging.getLogger("podwire.kubeproxy")


@dataclass(frozen=True, slots=True)
class Mode:
    """`sync` makes the sync of one family; `remove_other` takes away the other mode's rules, and never raises."""

    name: str
    backend: str
    families: tuple[Family, ...]
    sync: Callable[[State], Sync]
    remove_other: Callable[[], None]


def choose(config: Config) -> Mode:
    """The configured mode. Raises MissingCapability where it can't be."""
    return _nftables() if config.mode == "nftables" else _iptables()


def _has_ipv6() -> bool:
    return os.path.exists("/proc/sys/net/ipv6")


def _iptables() -> Mode:
    doors = usable_doors()
    trace = nft_trace() if doors[IPV4].backend == "nf_tables" else legacy_trace()
    return Mode(
        "iptables",
        doors[IPV4].backend,
        tuple(doors),
        lambda state: IptablesSync(state, doors[state.family], trace),
        lambda: _without_raising(remove_nftables, doors),
    )


def _nftables() -> Mode:
    families = (IPV4, IPV6) if _has_ipv6() else (IPV4,)
    require(tuple(family.version for family in families), {family.version: probe(family) for family in families})
    trace = nft_trace()
    return Mode(
        "nftables",
        "nf_tables",
        families,
        lambda state: NftablesSync(state, Nft(state.family.version), trace),
        lambda: _without_raising(remove_iptables, families),
    )


def probe(family: Family) -> str:
    """A transaction that has everything ours have: whether the kernel takes it is asked before anything is written."""
    settings = Settings(family=family, node="", node_port_ips=None)
    return full(family, [own([base(settings)])], Claims(), {}).text()


def usable_doors() -> dict[Family, Iptables]:
    """The families whose iptables rules can be written here. Raises MissingCapability when IPv4's cannot."""
    ipv4, ipv6 = Iptables(4), Iptables(6)
    try:
        ipv4.rules("nat", "POSTROUTING")
    except CommandFailed as error:
        raise MissingCapability("reading the nat table", "with iptables", error.answer, error.hint) from None
    doors = {IPV4: ipv4}
    if _has_ipv6() and ipv6.usable():
        doors[IPV6] = ipv6
    else:
        log.info("IPv6 is not served: the kernel or ip6tables is missing")
    return doors


def remove_nftables(family: Family) -> None:
    """Remove the table of nftables mode, if there is one. Raises PodwireError."""
    name = "ip" if family.version == 4 else "ip6"
    if netfilter.nft_has_table(name, TABLE):
        spawn.run(["nft", "delete", "table", name, TABLE], timeout=600).check()
        log.info("rules of nftables mode removed", extra={"kv": {"family": family.name}})


def remove_iptables(family: Family) -> None:
    """Remove the chains and jumps of iptables mode but KUBE-FIREWALL, if there are any. Raises PodwireError."""
    door = Iptables(family.version)
    if spawn.find(door.name) is None or not door.usable():
        return  # who cannot read them has not written any
    if clean_iptables(door, family.version):
        log.info("rules of iptables mode removed", extra={"kv": {"family": family.name}})


def clean_iptables(door: Iptables, version: int) -> bool:
    """Take away what is kube-proxy's of one family; whether there was anything. Raises PodwireError."""
    text = iptables_plan.cleanup(read_layout(door, version))
    if not text:
        return False
    try:
        door.restore(text)
    except RestoreRefused as error:
        keep = iptables_plan.foreign_targets(save.read(door.save()))
        if not keep:
            raise
        log.warning("chains that rules of others lead to are kept", extra={"kv": {"error": str(error)}})
        # Tables before the refused one are done already.
        door.restore(iptables_plan.cleanup(read_layout(door, version), keep))
    return True


def _without_raising(remove: Callable[[Family], None], families: Iterable[Family]) -> None:
    for family in families:
        try:
            remove(family)
        except PodwireError as error:
            log.warning("rules of the other mode not removed", extra={"kv": {"error": str(error)}})


def cleanup() -> bool:
    """Take away all rules of kube-proxy, ours and the real one's, in both modes; whether that succeeded."""
    done = True
    for family in (IPV4, IPV6) if _has_ipv6() else (IPV4,):
        for remove in (remove_iptables, remove_nftables):
            try:
                remove(family)
            except PodwireError as error:
                log.error("rules not removed", extra={"kv": {"family": family.name, "error": str(error)}})  # noqa: TRY400 - it says what was refused
                done = False
    return done
