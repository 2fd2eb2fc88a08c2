"""macspoofchk: a container may send only from the MAC address it was given.

The rules are the reference plugin's, in the nftables table `bridge nat`: what comes from the container's port goes through a
chain of its own, which lets its MAC address pass and drops everything else. One transaction makes them. Table and base chain
stay when the last container goes: others may use them.
"""

from __future__ import annotations

import json

from podwire.errors import PodwireError
from podwire.kernel import netfilter, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TABLE = "bridge nat"
_BASE = "PREROUTING"


class Rules:
    """The rules of one container's interface."""

    __slots__ = ("chain", "comment", "mac_chain")

    def __init__(self, container_id: str, ifname: str) -> None:
        reference = f"{container_id}-{ifname}"
        self.chain = f"cni-br-iface-{reference}"
        self.mac_chain = f"{self.chain}-mac"
        self.comment = f"macspoofchk-{reference}"[:128]

    def install(self, port: str, mac: str) -> None:
        """Let only this MAC address come from this port. Raises PodwireError."""
        comment = f'comment "{self.comment}"'
        _nft(
            [
                f"add table {_TABLE}",
                f"add chain {_TABLE} {_BASE} {{ type filter hook prerouting priority -300; policy accept; }}",
                f"add chain {_TABLE} {self.mac_chain}",
                f"add chain {_TABLE} {self.chain}",
                f"flush chain {_TABLE} {self.chain}",
                f"flush chain {_TABLE} {self.mac_chain}",
                f"add rule {_TABLE} {_BASE} iifname {port} jump {self.chain} {comment}",
                f"add rule {_TABLE} {self.chain} jump {self.mac_chain} {comment}",
                f"add rule {_TABLE} {self.mac_chain} ether saddr {mac} return {comment}",
                f"add rule {_TABLE} {self.mac_chain} drop {comment}",
            ]
        )

    def remove(self) -> None:
        """Take them away; what is not there is no error. Raises PodwireError."""
        if not netfilter.nft_has_table("bridge", "nat"):
            return
        listed = _list()
        chains = {item["chain"]["name"] for item in listed if "chain" in item}
        rules = [item["rule"] for item in listed if "rule" in item]
        leading = [rule["handle"] for rule in rules if rule["chain"] == _BASE and rule.get("comment") == self.comment]
        lines = [f"delete rule {_TABLE} {_BASE} handle {handle}" for handle in leading]
        mine = [chain for chain in (self.chain, self.mac_chain) if chain in chains]
        lines += [f"flush chain {_TABLE} {chain}" for chain in mine]
        lines += [f"delete chain {_TABLE} {chain}" for chain in mine]
        if lines:
            _nft(lines)


def _list() -> list[dict[str, Any]]:
    output = spawn.run(["nft", "-j", "-a", "list", "table", *_TABLE.split()], timeout=60)
    if output.status:
        return []  # it went between two looks
    found: list[dict[str, Any]] = json.loads(output.stdout)["nftables"]
    return found


def _nft(lines: list[str]) -> None:
    output = spawn.run(["nft", "-f", "-"], "\n".join([*lines, ""]).encode(), timeout=60)
    if output.status:
        said = output.stderr.decode(errors="replace").strip().splitlines()
        answer = said[0] if said else f"exit status {output.status}"
        raise PodwireError("failed to setup spoof-check with", "nft", answer)
