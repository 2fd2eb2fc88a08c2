"""The nft program of this machine: apply a transaction, and tell a refusal by what stood in the refused line.

nft reads as much of the kernel's tables as the commands need to be understood: names of chains and sets, never rules or
elements, so a small transaction costs some hundredths of a second in a table of 10,000 Services.
"""

from __future__ import annotations

import _socket
import os
import re

from podwire.errors import KernelError, MissingCapability, NotFound, PodwireError
from podwire.kernel import netfilter, spawn
from podwire.kernel.nft_sets import nft_elements, nft_sets

# kube-proxy's own minimum: comments of chains, and `dnat ip to … map` with a port, are understood from here on.
MINIMUM_NFT = (1, 0, 1)
MINIMUM_KERNEL = (5, 13)

_VERSION = re.compile(rb"v(\d+)\.(\d+)\.(\d+)")
_REFUSAL = re.compile(r":(\d+):(\d+)[-:\d]*: Error: (.*)")
_SHOWN = 120


class NftRefused(PodwireError):
    """nft did not take the transaction; nothing of it was applied. `line` is the refused one ("" if nft did not say)."""

    def __init__(self, line: str, said: str) -> None:
        at = f" at {line!r}" if line else ""
        super().__init__("writing rules with", "nft", f"refused{at}: {said}")
        self.line = line


class Nft:
    """The program, for the tables of one family (IP version 4 or 6)."""

    __slots__ = ("version",)

    def __init__(self, version: int) -> None:
        self.version = version

    @property
    def family(self) -> str:
        """What nft calls the family: ip or ip6."""
        return "ip" if self.version == 4 else "ip6"

    def apply(self, text: str) -> None:
        """Apply a transaction. Raises NftRefused, MissingCapability."""
        self._run(["nft", "-f", "-"], text)

    def check(self, text: str) -> None:
        """Ask the kernel whether it would take a transaction, without doing it. Raises as `apply`."""
        self._run(["nft", "-c", "-f", "-"], text)

    def _run(self, argv: list[str], text: str) -> None:
        output = spawn.run(argv, stdin=text.encode())
        if output.status != 0:
            raise _refused(text, output.stderr.decode(errors="replace"), output.status)

    def chain_uses(self, table: str) -> dict[str, int] | None:
        """How many rules and references each chain of a table has; None without the table. Raises KernelError."""
        if not netfilter.nft_has_table(self.family, table):
            return None
        return netfilter.nft_chains(self.version).get(table, {})

    def element_count(self, table: str, name: str) -> int:
        """How many elements a set has; 0 if there is none. Raises KernelError."""
        try:
            return len(nft_elements(self.version, table, name))
        except NotFound:
            return 0

    def timed_elements(self, table: str, prefix: str) -> dict[str, list[tuple[str, int]]]:
        """The elements of all sets of addresses whose names begin so, as (address, milliseconds left). Raises KernelError."""
        kind = _socket.AF_INET if self.version == 4 else _socket.AF_INET6
        found = {}
        for name in nft_sets(self.version, table):
            if name.startswith(prefix):
                elements = nft_elements(self.version, table, name)
                found[name] = [(_socket.inet_ntop(kind, key), left) for key, left in elements if left]
        return found


def _refused(text: str, said: str, status: int) -> NftRefused:
    found = _REFUSAL.search(said)
    if found is None:
        return NftRefused("", " ".join(said.split())[:_SHOWN] or f"exit status {status}")
    number, column, why = int(found[1]), int(found[2]), found[3]
    lines = text.splitlines()
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    if len(line) > _SHOWN:  # a line of a hundred elements: what is told, with where it stands
        start = max(0, column - 1)
        line = " ".join(line.split(" ", 5)[:5]) + " … " + line[start : start + _SHOWN]
    return NftRefused(line, why)


def require(families: tuple[int, ...], probe: dict[int, str]) -> None:
    """Make sure that nft and the kernel can do it: versions first, then a transaction for each IP version, tried only.

    Raises MissingCapability with what is missing.
    """
    doing = "nftables mode"
    output = spawn.run(["nft", "--version"], timeout=30)
    found = _VERSION.search(output.stdout)
    if found is not None and tuple(map(int, found.groups())) < MINIMUM_NFT:
        said = f"nft {found[0].decode()} is older than v{'.'.join(map(str, MINIMUM_NFT))}"
        raise MissingCapability(doing, "", said, "install a newer nftables, or use --proxy-mode=iptables")
    release = os.uname().release
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is not None and tuple(map(int, numbers.groups())) < MINIMUM_KERNEL:
        said = f"kernel {release} is older than {'.'.join(map(str, MINIMUM_KERNEL))}"
        raise MissingCapability(doing, "", said, "use --proxy-mode=iptables")
    try:
        netfilter.nft_generation()
    except KernelError as error:
        raise MissingCapability(
            doing, "", f"the kernel has no nf_tables ({error.answer})", "modprobe nf_tables"
        ) from None
    for version in families:
        try:
            Nft(version).check(probe[version])
        except NftRefused as error:
            raise MissingCapability(doing, "", str(error), "use --proxy-mode=iptables") from None
