"""The packet-filter rules of flanneld, as values and as text for iptables-restore(8) and nft(8).

Two chains of its own for each family, in the order in which the real flanneld has their rules:

    nat     POSTROUTING → FLANNEL-POSTRTG   with --ip-masq: what leaves the pod network gets the node's address
    filter  FORWARD     → FLANNEL-FWD       traffic from and to the pod network is accepted, whatever Docker's policy is

The masquerade chain leaves alone what kube-proxy has marked (it masquerades that itself), what stays inside the pod
network, and what comes from outside to this node's own pods, whose source must stay visible.

In nftables mode the tables flannel-ipv4 and flannel-ipv6 hold base chains instead. flannel's fourth rule there is not that
of iptables mode (it compares with the podCIDR where the other has the whole network); it is kept as flannel has it, and so
the last rule can match only there where iptables mode has it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire.rules import vocabulary as v
from podwire.rules.iptables.spell import spell

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from podwire.flanneld.lease import IPNetwork

KUBE_PROXY_MARK = 0x4000

MULTICAST = {4: "224.0.0.0/4", 6: "ff00::/8"}


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of ours in one table, and the built-in chain that jumps to it."""

    table: str
    hook: str
    name: str
    comment: str
    rules: tuple[v.Rule, ...] = ()

    @property
    def jump(self) -> v.Rule:
        """The rule in the built-in chain."""
        return v.Rule((v.Comment(self.comment),), v.Jump(self.name))


POSTRTG = Chain("nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq")
FWD = Chain("filter", "FORWARD", "FLANNEL-FWD", "flanneld forward")


def masquerade(network: IPNetwork, subnet: IPNetwork, *, random_fully: bool) -> Chain:
    """The masquerade chain of a node that owns `subnet` of `network`."""
    everything, own = str(network), str(subnet)
    comment = v.Comment(POSTRTG.comment)
    masq = v.Masquerade(flags=("random-fully",) if random_fully else ())
    return Chain(
        POSTRTG.table,
        POSTRTG.hook,
        POSTRTG.name,
        POSTRTG.comment,
        (
            v.Rule((v.Mark(KUBE_PROXY_MARK, KUBE_PROXY_MARK), comment), v.Return()),
            v.Rule((v.Source(own), v.Destination(everything), comment), v.Return()),
            v.Rule((v.Source(everything), v.Destination(own), comment), v.Return()),
            v.Rule((v.Source(everything, inverted=True), v.Destination(own), comment), v.Return()),
            v.Rule((v.Source(everything), v.Destination(MULTICAST[network.version], inverted=True), comment), masq),
            v.Rule((v.Source(everything, inverted=True), v.Destination(everything), comment), masq),
        ),
    )


def forward(network: IPNetwork) -> Chain:
    """The chain that accepts forwarded traffic of the pod network."""
    comment = v.Comment(FWD.comment)
    return Chain(
        FWD.table,
        FWD.hook,
        FWD.name,
        FWD.comment,
        (
            v.Rule((v.Source(str(network)), comment), v.Accept()),
            v.Rule((v.Destination(str(network)), comment), v.Accept()),
        ),
    )


def restore(chain: Chain, *, jump_missing: bool) -> str:
    """Input for `iptables-restore --noflush` that makes the chain hold just its rules, in one transaction."""
    lines = [f"*{chain.table}", f":{chain.name} - [0:0]"]
    lines += [f"-A {chain.name} {spell(rule)}" for rule in chain.rules]
    if jump_missing:
        lines.append(f"-A {chain.hook} {spell(chain.jump)}")
    return "".join(f"{line}\n" for line in [*lines, "COMMIT"])


def removal(chain: Chain, jumps: Iterable[v.Rule]) -> str:
    """Input for `iptables-restore --noflush` that removes the chain and these jumps to it."""
    lines = [f"*{chain.table}", f":{chain.name} - [0:0]"]
    lines += [f"-D {chain.hook} {spell(rule)}" for rule in jumps]
    return "".join(f"{line}\n" for line in [*lines, f"-X {chain.name}", "COMMIT"])


def nft_table(version: int) -> tuple[str, str]:
    """Family and name of the nft table: ("ip", "flannel-ipv4")."""
    return ("ip", "flannel-ipv4") if version == 4 else ("ip6", "flannel-ipv6")


def nft(version: int, network: IPNetwork | None, subnet: IPNetwork | None, *, masq: str, accept: bool) -> str:
    """The table of one family as nft prints it. `masq` is the masquerade statement, "" for none.

    A family that is off has an empty table, as flannel leaves it.
    """
    family, name = nft_table(version)
    lines = [f"table {family} {name} {{", f'comment "rules for {name}"']
    if network is not None and subnet is not None and masq:
        pairs = _nft_masquerade(str(network), str(subnet), MULTICAST[version])
        lines += [
            "chain postrtg {",
            'comment "chain to manage traffic masquerading by flannel"',
            "type nat hook postrouting priority srcnat; policy accept;",
            f"meta mark {KUBE_PROXY_MARK:#010x} return",
            *(f"{family} saddr {source} {family} daddr {destination} return" for source, destination in pairs[:3]),
            *(f"{family} saddr {source} {family} daddr {destination} {masq}" for source, destination in pairs[3:]),
            "}",
        ]
    if network is not None and accept:
        lines += [
            "chain forward {",
            'comment "chain to accept flannel traffic"',
            "type filter hook forward priority filter; policy accept;",
            f"{family} saddr {network} accept",
            f"{family} daddr {network} accept",
            "}",
        ]
    return "".join(f"{line}\n" for line in [*lines, "}"])


def _nft_masquerade(network: str, subnet: str, multicast: str) -> Sequence[tuple[str, str]]:
    return (
        (subnet, network),
        (network, subnet),
        (f"!= {subnet}", network),
        (network, f"!= {multicast}"),
        (f"!= {network}", network),
    )
