"""What a lab needs of this machine, asked before anything is made.

Each check either passes, raises MissingCapability with what is missing and what to try, or returns a warning. The
kernel is asked by doing: a throw-away network namespace gets a bridge, a veth pair and a vxlan device.
"""

from __future__ import annotations

import os
import socket
import sys
from ipaddress import IPv4Network
from typing import TYPE_CHECKING

from podwire.errors import CommandFailed, KernelError, MissingCapability, NotFound
from podwire.kernel import namespaces, spawn, sysctl
from podwire.kernel.rtnl import Rtnl

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = {
    "iptables": "iptables",
    "iptables-restore": "iptables",
    "ip6tables-restore": "iptables",
    "iptables-save": "iptables",
}


def check(state_root: str) -> None:
    """All of it. Raises MissingCapability for the first thing that is missing."""
    root()
    programs()
    interpreter(state_root)
    filesystems()
    kernel()


def root() -> None:
    """Namespaces, mounts and rules are for root only."""
    if os.geteuid() != 0:
        raise MissingCapability("podwire must be run as root for this", hint="sudo podwire …")


def programs() -> None:
    """The packet filter's own programs; which package has them on Debian is said."""
    for program, package in PROGRAMS.items():
        if spawn.find(program) is None:
            raise MissingCapability(f"the program {program} is missing", hint=f"apt-get install {package}")


def interpreter(state_root: str) -> None:
    """A machine has a /run, /proc and /sys of its own: what lies there on the host can't be started in it."""
    for path in (sys.executable, os.path.realpath(__file__)):
        if path.startswith(("/run/", "/proc/", "/sys/", "/var/run/")):
            raise MissingCapability(
                f"podwire is installed in {path}, which a lab's machines cannot see", hint="install it elsewhere"
            )
    if state_root.startswith(("/etc/", "/opt/", "/var/lib/")):
        raise MissingCapability(
            f"the state folder {state_root} lies in a folder that machines overlay", hint="use one below /run or /srv"
        )


def filesystems() -> None:
    """Overlay: listed in /proc/filesystems, or there after modprobe."""
    if "\toverlay\n" in _read("/proc/filesystems"):
        return
    try:
        spawn.run(["modprobe", "overlay"]).check()
    except (CommandFailed, MissingCapability) as error:
        raise MissingCapability("this kernel has no overlay file system", answer=str(error)) from error


def kernel() -> None:
    """Namespaces, bridge, veth, vxlan, and both address families' iptables, tried in a throw-away namespace."""
    try:
        fd = namespaces.new_netns()
    except KernelError as error:
        raise MissingCapability("making a network namespace", answer=str(error)) from error
    try:
        with Rtnl(netns_fd=fd) as rtnl:
            probes: dict[str, Callable[[], object]] = {
                "bridge": lambda: rtnl.create_bridge("probe-br"),
                "veth": lambda: rtnl.create_veth("probe-a", "probe-b"),
                "vxlan": lambda: rtnl.create_vxlan("probe-vx", 1),
            }
            for what, probe in probes.items():
                try:
                    probe()
                except KernelError as error:
                    raise MissingCapability(
                        f"this kernel has no {what} devices", answer=str(error), hint=f"modprobe {what}"
                    ) from error
        with namespaces.entered(fd):
            answer = spawn.run(["iptables", "-w", "5", "-t", "nat", "-S"])
        if answer.status != 0:
            said = answer.stderr.decode(errors="replace").strip().splitlines()
            raise MissingCapability("iptables does not work here", answer=said[-1] if said else "no output")
    finally:
        os.close(fd)


BRIDGE_SETTINGS = ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables")


def bridge_netfilter() -> tuple[bool, str]:
    """See to it that bridged packets can be shown to iptables on the nodes.

    Loading br_netfilter switches the filtering of bridged packets on for the whole host, whose own bridges (Docker's,
    libvirt's) did without it; so the host's values are written back to 0, which is what no module means.
    Returns whether the module was loaded here, and a sentence for the user ("" when nothing was done).
    """
    if os.path.isdir("/proc/sys/net/bridge"):
        return False, ""
    try:
        spawn.run(["modprobe", "br_netfilter"]).check()
    except (CommandFailed, MissingCapability) as error:
        return False, (
            f"warning: br_netfilter could not be loaded ({error}): pods cannot reach a Service whose pod is on the same node"
        )
    for name in BRIDGE_SETTINGS:
        sysctl.write(f"net/bridge/{name}", 0)
    return True, "loaded br_netfilter; the host's own bridge-nf-call-* were set back to 0, as they were without it"


def bridge_netfilter_is_idle() -> bool:
    """Whether nobody has switched the filtering of the host's bridged packets on."""
    try:
        return not any(sysctl.read(f"net/bridge/{name}") != "0" for name in BRIDGE_SETTINGS)
    except NotFound:
        return False


def host_prefixes() -> list[IPv4Network]:
    """The prefixes of all the host's routes and addresses, the default route left out."""
    with Rtnl() as rtnl:
        routes = [route.dst for route in rtnl.routes(family=socket.AF_INET) if route.dst != "0.0.0.0/0"]
        addresses = [address.cidr for address in rtnl.addresses(family=socket.AF_INET)]
    found = [IPv4Network(text, strict=False) for text in routes + addresses]
    return [prefix for prefix in found if not prefix.is_loopback and not prefix.is_multicast]


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
