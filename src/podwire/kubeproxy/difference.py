"""--diff: what the kernel holds against what the API wants, chain by chain, as text a person can read.

What is wanted is not compared as podwire spells it: it is loaded into an empty network namespace and read back from
there, so that both sides come from the same kernel by the same program, whatever version either is.

Only kube-proxy's own chains and the rules that lead to them are compared; everything else is somebody else's. Not a
difference: the order of Services in a chain they share, counters, what sessions were remembered, and comments of
endpoint rules, which a big cluster loses bit by bit.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from typing import TYPE_CHECKING

from podwire import naming
from podwire.errors import ApiNotFound
from podwire.kernel import netfilter, spawn
from podwire.kernel.namespaces import entered, new_netns
from podwire.kube.kinds import NODES
from podwire.kubeproxy import dry_run, iptables_plan, modes, prepare
from podwire.kubeproxy.iptables import SHARED_CHAINS
from podwire.kubeproxy.iptables_base import BASE_CHAINS, CANARY, FIREWALL_CHAIN, JUMPS, TABLES
from podwire.kubeproxy.nftables_base import TABLE
from podwire.kubeproxy.objects import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES
from podwire.kubeproxy.ports import LABEL_SELECTOR
from podwire.rules.iptables import save
from podwire.rules.iptables.run import Iptables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from podwire.kube.client import Client
    from podwire.kubeproxy.config import Config
    from podwire.kubeproxy.dry_run import Objects
    from podwire.kubeproxy.family import Family

Chains = dict[str, list[str]]
"""Rules by "table chain" (iptables) or by the name of a chain or set (nftables)."""

_COMMENT = re.compile(r'-m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+) ?')
_BLOCK = re.compile(r"^\t(chain|set|map) (\S+) \{\n(.*?)^\t\}", re.MULTILINE | re.DOTALL)
_OWN = {*SHARED_CHAINS, *BASE_CHAINS, *[(table, CANARY) for table in TABLES], ("filter", FIREWALL_CHAIN)}
_TARGETS = {(jump.table, jump.target) for jump in JUMPS}


def compare(have: Chains, want: Chains) -> list[str]:
    """Lines of a diff, `-` for what only the kernel has and `+` for what it lacks, below the name of each chain."""
    lines: list[str] = []
    for name in sorted(have.keys() | want.keys()):
        ours, theirs = have.get(name), want.get(name)
        if ours == theirs:
            continue
        found = [] if ours is None or theirs is None else list(_rules(ours, theirs))
        if ours is None:
            found = ["+ (the chain is missing)", *[f"+ {rule}" for rule in theirs or ()]]
        elif theirs is None:
            found = ["- (nothing needs this chain)", *[f"- {rule}" for rule in ours]]
        if found:
            lines += [name, *["    " + line for line in found]]
    return lines


def _rules(have: list[str], want: list[str]) -> Iterator[str]:
    plain = [[_COMMENT.sub("", rule) for rule in rules] for rules in (have, want)]
    if plain[0] == plain[1]:
        return
    surplus, missing = Counter(have) - Counter(want), Counter(want) - Counter(have)
    yield from [f"- {rule}" for rule in surplus.elements()]
    yield from [f"+ {rule}" for rule in missing.elements()]
    if not surplus and not missing:
        yield "! the same rules in another order"


def iptables_chains(dump: str) -> Chains:
    """kube-proxy's chains of an iptables-save output, and the rules of the built-in chains that lead to them."""
    found: Chains = {f"{jump.table} {jump.chain}": [] for jump in JUMPS}
    for table in save.read(dump).tables.values():
        for chain in table.chains.values():
            where = (table.name, chain.name)
            if where in _OWN or (table.name == "nat" and chain.name.startswith(naming.SERVICE_CHAIN_PREFIXES)):
                # Services may stand in any order, only the way to the NodePorts comes last.
                found[" ".join(where)] = _sorted(chain.lines) if where in SHARED_CHAINS else list(chain.lines)
            elif " ".join(where) in found:
                jumps = [line for line in chain.lines if (table.name, line.rpartition(" ")[2]) in _TARGETS]
                found[" ".join(where)] = sorted(jumps)
    return found


def _sorted(lines: list[str]) -> list[str]:
    services = sorted(line for line in lines if not line.endswith("-j KUBE-NODEPORTS"))
    return services + [line for line in lines if line.endswith("-j KUBE-NODEPORTS")]


def nftables_chains(listed: str) -> Chains:
    """The chains, sets and maps of a table as `nft --stateless list table` prints it."""
    found: Chains = {}
    for kind, name, body in _BLOCK.findall(listed):
        lines = [line.strip() for line in body.splitlines()]
        if kind == "chain":
            found[f"chain {name}"] = [line for line in lines if line]
        elif not any(line.startswith("flags") and "dynamic" in line for line in lines):
            _, _, elements = " ".join(lines).partition("elements = {")
            found[f"{kind} {name}"] = sorted(filter(None, [part.strip(" }") for part in elements.split(", ")]))
    # What no rule leads to any more is emptied at once and removed later.
    return {name: rules for name, rules in found.items() if rules or not name.startswith("chain ")}


def iptables_difference(door: Iptables, wanted: Iterable[str]) -> list[str]:
    """The differences of one family in iptables mode; `wanted` are texts of dry_run. Raises PodwireError."""
    have = iptables_chains(door.save())
    with _scratch():
        for text in wanted:
            door.restore(text)
        want = iptables_chains(door.save())
    return compare(have, want)


def nftables_difference(family: Family, wanted: Iterable[str]) -> list[str]:
    """The differences of one family in nftables mode. Raises PodwireError."""
    have = nftables_chains(_list_table(family))
    with _scratch():
        for text in wanted:
            spawn.run(["nft", "-f", "-"], stdin=text.encode()).check()
        want = nftables_chains(_list_table(family))
    return compare(have, want)


def differences(objects: Objects, config: Config, node: str, ips: frozenset[str]) -> list[str]:
    """The whole of it, each family below its name; empty if there is none. Raises PodwireError."""
    liberal = prepare.tracker_is_liberal()
    mode = modes.choose(config)
    lines: list[str] = []
    for family in mode.families:
        texts = dry_run.texts(objects, config, family, node, ips, batch=iptables_plan.BATCH, forward_invalid=liberal)
        if config.mode == "nftables":
            found = nftables_difference(family, texts)
        else:
            found = iptables_difference(Iptables(family.version), texts)
        lines += [f"# {family.name}", *found] if found else []
    return lines


def live(client: Client, node: str) -> Objects:
    """The objects that kube-proxy reads, from the API. Raises ApiError."""
    objects = dry_run.Objects()
    for service in client.list(SERVICES, label_selector=LABEL_SELECTOR).items:
        objects.batch.services[service.key] = service
    for piece in client.list(ENDPOINT_SLICES, label_selector=LABEL_SELECTOR).items:
        objects.batch.slices[piece.key] = piece
    for found in client.list(NODES, field_selector=f"metadata.name={node}").items:
        objects.nodes[found.key] = found
    with contextlib.suppress(ApiNotFound):  # before Kubernetes 1.33
        for cidr in client.list(SERVICE_CIDRS).items:
            objects.service_cidrs += cidr.spec.cidrs
    return objects


def _list_table(family: Family) -> str:
    name = "ip" if family.version == 4 else "ip6"
    if not netfilter.nft_has_table(name, TABLE):
        return ""
    return spawn.run(["nft", "--stateless", "list", "table", name, TABLE]).check().stdout.decode(errors="replace")


@contextlib.contextmanager
def _scratch() -> Iterator[None]:
    """An empty network namespace for this thread while the block runs."""
    fd = new_netns()
    try:
        with entered(fd):
            yield
    finally:
        os.close(fd)
