"""The iptables programs of this machine: which there are, which backend they drive, and their refusals told apart.

`Iptables(family)` stands for iptables-save, iptables-restore and iptables of one address family. The backend (legacy x_tables
or nf_tables) is the one that plain `iptables` is on this machine, since rules written into the other one would run beside
those of everybody else. `-w 5` waits for the lock that the legacy programs share.

iptables-restore tells where it stopped in one of two ways ("line 7 failed", "Error occurred at line: 7"), never what
stood there. `RestoreRefused` does.
"""

from __future__ import annotations

from podwire.errors import CommandFailed, MissingCapability, PodwireError
from podwire.kernel import spawn

_HINT = "install iptables, and run as root in the node's network namespace"
LOCK_WAIT_SECONDS = 5


class RestoreRefused(PodwireError):
    """iptables-restore did not take the change; nothing of the refused table was applied.

    `line` is the line of the input it stopped at ("" if it did not say).
    """

    def __init__(self, program: str, line: str, said: str) -> None:
        at = f" at {line!r}" if line else ""
        super().__init__("writing rules with", program, f"refused{at}: {said}")
        self.line = line


class Iptables:
    """The programs of one family (4 or 6). `suffix` "-nft" or "-legacy" asks for one backend, "" takes the default."""

    __slots__ = ("_backend", "name", "suffix")

    def __init__(self, family: int, suffix: str = "") -> None:
        self.name = "ip6tables" if family == 6 else "iptables"
        self.suffix = suffix
        self._backend = ""

    def __repr__(self) -> str:
        return f"Iptables({self.name}{self.suffix})"

    @property
    def backend(self) -> str:
        """`nf_tables` or `legacy`. Raises MissingCapability without the program."""
        if not self._backend:
            output = spawn.run([self.name + self.suffix, "-V"], timeout=30).check(_HINT)
            # "iptables v1.8.9 (nf_tables)"; before 1.8 there was one backend and no name for it.
            self._backend = "nf_tables" if b"(nf_tables)" in output.stdout else "legacy"
        return self._backend

    def usable(self) -> bool:
        """Whether the programs are there and the kernel lets us read the nat table with them."""
        try:
            self.rules("nat", "POSTROUTING")
        except (MissingCapability, CommandFailed):
            return False
        return True

    def save(self, table: str = "") -> str:
        """What iptables-save prints, of one table or of all. Raises CommandFailed, MissingCapability."""
        argv = [f"{self.name}{self.suffix}-save", *(["-t", table] if table else [])]
        return spawn.run(argv, timeout=600).check(_HINT).stdout.decode(errors="replace")

    def rules(self, table: str, chain: str) -> list[str]:
        """The rules of one chain as texts without `-A CHAIN`. Raises CommandFailed if there is no such chain."""
        argv = [self.name + self.suffix, "-w", str(LOCK_WAIT_SECONDS), "-t", table, "-S", chain]
        output = spawn.run(argv, timeout=600).check(_HINT)
        start = f"-A {chain} "
        lines = output.stdout.decode(errors="replace").splitlines()
        return [line.removeprefix(start) for line in lines if line.startswith(start)]

    def has_chain(self, table: str, chain: str) -> bool:
        """Whether the table has such a chain; False also when there is no such table."""
        argv = [self.name + self.suffix, "-w", str(LOCK_WAIT_SECONDS), "-t", table, "-S", chain]
        return spawn.run(argv, timeout=600).status == 0

    def restore(self, text: str) -> None:
        """Apply one or more changes. Raises RestoreRefused, MissingCapability."""
        argv = [f"{self.name}{self.suffix}-restore", "-w", str(LOCK_WAIT_SECONDS), "--noflush", "--counters"]
        output = spawn.run(argv, stdin=text.encode())
        if output.status == 0:
            return
        said = output.stderr.decode(errors="replace").strip()
        import re  # a CNI plugin that is not refused must not pay for it

        found = re.search(r"line:? (\d+)", said)
        number = int(found[1]) if found else 0
        lines = text.splitlines()
        line = lines[number - 1] if 0 < number <= len(lines) else ""
        told = [part for part in said.splitlines() if part.strip() and not part.startswith("Try `")]
        # What nf_tables refuses only at the end it tells by names, not by a line.
        raise RestoreRefused(
            argv[0], "" if line == "COMMIT" else line, " | ".join(told) or f"exit status {output.status}"
        )
