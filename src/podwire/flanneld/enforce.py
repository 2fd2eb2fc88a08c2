"""Keep the packet-filter rules of traffic.py in the kernel: look, compare, write only if something is missing.

iptables mode asks for two chains (`iptables -S`), not for the whole table: with kube-proxy beside us the nat table may hold
a hundred thousand rules. What is listed is compared as values, so that another spelling of the same rule is no difference.
The whole chain is written again if anything differs, in one transaction, since the order of its rules counts.

nftables mode compares with what nft itself printed after the last write.

The rules of the mode that is not in use, and a chain that a flag no longer asks for, are taken away once at the start, so
that a node changes over cleanly. The policy of FORWARD is left as it is: the accepting rules do what is needed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from podwire.daemon.logs import kv
from podwire.flanneld import traffic
from podwire.kernel import spawn
from podwire.rules import vocabulary as v
from podwire.rules.iptables.parse import RuleSyntaxError, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from podwire.flanneld.flags import Options
    from podwire.flanneld.lease import IPNetwork
    from podwire.flanneld.netconf import NetworkConfig

    Run = Callable[..., spawn.Output]

log = logging.getLogger("podwire.flanneld")

SECONDS = 30.0
"""The longest a program may take: iptables-legacy waits for the lock that another program holds."""


class Enforcer:
    """The rules of one node. `run` starts programs as spawn.run does."""

    def __init__(self, config: NetworkConfig, options: Options, run: Run = spawn.run) -> None:
        self._config = config
        self._options = options
        self._run = run
        # What was wanted and how it was printed back after the last write.
        self._chains_written: dict[tuple[int, str], tuple[traffic.Chain, str]] = {}
        self._tables_written: dict[str, tuple[str, str]] = {}

    def clean(self) -> None:
        """Take away what neither the configuration nor the flags ask for; once, at the start."""
        iptables, options = not self._config.nftables, self._options
        for version in (4, 6):
            on = iptables and any(network.version == version for network in self._config.networks())
            for chain, wanted in (
                (traffic.POSTRTG, on and options.ip_masq),
                (traffic.FWD, on and options.iptables_forward_rules),
            ):
                if not wanted and spawn.find(_program(version)) is not None:
                    self._remove(version, chain)
        if iptables and spawn.find("nft") is not None:
            for version in (4, 6):
                family, name = traffic.nft_table(version)
                if self._run(["nft", "list", "table", family, name], timeout=SECONDS).status == 0:
                    self._nft(f"delete table {family} {name}\n")
                    kv(log, logging.INFO, "removed the rules of nftables mode", table=name)

    def ensure(self, subnets: Sequence[IPNetwork]) -> bool:
        """Make the rules those of a node that owns `subnets`; whether anything had to be written. Raises PodwireError."""
        if self._config.nftables:
            return self._ensure_nft(subnets)
        changed = False
        for network, subnet in zip(self._config.networks(), subnets, strict=True):
            for chain in self._chains(network, subnet):
                changed = self._ensure_chain(network.version, chain) or changed
        return changed

    def _chains(self, network: IPNetwork, subnet: IPNetwork) -> list[traffic.Chain]:
        options = self._options
        chains = []
        if options.ip_masq:
            chains.append(traffic.masquerade(network, subnet, random_fully=not options.ip_masq_fully_random_disable))
        if options.iptables_forward_rules:
            chains.append(traffic.forward(network))
        return chains

    def _ensure_chain(self, version: int, chain: traffic.Chain) -> bool:
        listing = self._list(version, chain.table, chain.name)
        held = listing is not None and (
            _rules(listing, chain.name) == list(chain.rules)
            or self._chains_written.get((version, chain.name)) == (chain, listing)
        )
        jumps = self._list(version, chain.table, chain.hook)
        jump_missing = jumps is None or chain.jump not in _rules(jumps, chain.hook)
        if held and not jump_missing:
            return False
        self._restore(version, traffic.restore(chain, jump_missing=jump_missing))
        # Where iptables prints the rules in words we do not read back as the same values, what it prints is what holds.
        self._chains_written[version, chain.name] = (chain, self._list(version, chain.table, chain.name) or "")
        return True

    def _remove(self, version: int, chain: traffic.Chain) -> None:
        if self._list(version, chain.table, chain.name) is None:
            return
        jumps = self._list(version, chain.table, chain.hook) or ""
        own = [rule for rule in _rules(jumps, chain.hook) if rule.verdict == chain.jump.verdict]
        self._restore(version, traffic.removal(chain, own))
        kv(log, logging.INFO, "removed a chain that is not asked for", chain=chain.name, family=f"IPv{version}")

    def _list(self, version: int, table: str, chain: str) -> str | None:
        """The chain as `iptables -S` prints it; None if there is none."""
        done = self._run([_program(version), "-w", "-t", table, "-S", chain], timeout=SECONDS)
        return done.stdout.decode() if done.status == 0 else None

    def _restore(self, version: int, text: str) -> None:
        argv = [f"{_program(version)}-restore", "-w", "--noflush"]
        self._run(argv, stdin=text.encode(), timeout=SECONDS).check()

    def _ensure_nft(self, subnets: Sequence[IPNetwork]) -> bool:
        options = self._options
        masq = ""
        if options.ip_masq:
            masq = "masquerade" if options.ip_masq_fully_random_disable else "masquerade fully-random"
        networks = {network.version: network for network in self._config.networks()}
        owned = {subnet.version: subnet for subnet in subnets}
        changed = False
        for version in (4, 6):
            family, name = traffic.nft_table(version)
            text = traffic.nft(
                version, networks.get(version), owned.get(version), masq=masq, accept=options.iptables_forward_rules
            )
            if self._tables_written.get(name) == (text, self._nft_list(version)):
                continue
            # Declared, deleted and made anew in one transaction, because `delete` wants the table to be there.
            self._nft(f"add table {family} {name}\ndelete table {family} {name}\n{text}")
            self._tables_written[name] = (text, self._nft_list(version) or "")
            changed = True
        return changed

    def _nft_list(self, version: int) -> str | None:
        done = self._run(["nft", "list", "table", *traffic.nft_table(version)], timeout=SECONDS)
        return done.stdout.decode() if done.status == 0 else None

    def _nft(self, text: str) -> None:
        self._run(["nft", "-f", "-"], stdin=text.encode(), timeout=SECONDS).check()


def _program(version: int) -> str:
    return "iptables" if version == 4 else "ip6tables"


def _rules(listing: str, chain: str) -> list[v.Rule]:
    """The rules of a chain in an `iptables -S` listing; a line that cannot be read is a rule equal to none of ours."""
    prefix = f"-A {chain} "
    found = []
    for line in listing.splitlines():
        if line.startswith(prefix):
            text = line.removeprefix(prefix)
            try:
                found.append(parse(text))
            except RuleSyntaxError:
                found.append(v.Rule((v.Opaque(text),)))
    return found
