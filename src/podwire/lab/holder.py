"""The process that is a machine: it makes the namespaces, furnishes them, and then only lies there.

A machine is one network, mount, UTS and PID namespace. They live as long as this process does, which is PID 1 of the
PID namespace: when it is killed the kernel kills everything inside, unmounts, and takes the interfaces away. So
there is nothing of a machine that could outlive it.

    outer (started by `podwire up`)              inner (PID 1 of the new PID namespace)
      reads the Furnishing from stdin
      unshare(net, mount, UTS, PID); fork  ──►     /proc, /sys, /run, overlays, host name, sysctls, lo
      reads one line from it               ◄──     "" or the error
      prints {"pid": …} or {"error": …}            SIGCHLD ignored, exec sleep infinity
      exits

The last step is a plain `sleep` because a resting Python would cost eight times the memory. An ignored SIGCHLD stays
ignored across exec, and the kernel then reaps every orphan of the namespace by itself (sigaction(2), SA_NOCLDWAIT).

Mounts are made in a mount namespace whose root is a slave of the host's: what the host unmounts goes away here too,
and nothing made here is ever seen on the host. The overlays are mounted before /run is covered, since their upper
layers lie below it.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from podwire.errors import KernelError, NotFound
from podwire.kernel import namespaces, sysctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Make the machine that standard input describes (see `podwire.lab.machine.furnishing`)."""
    furnishing = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"pid": _make(furnishing)}
    except (KernelError, OSError, RuntimeError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


def _make(furnishing: dict[str, Any]) -> int:
    """Fork the inner process and wait until it is ready; its pid as the host sees it."""
    namespaces.unshare(
        namespaces.CLONE_NEWNS | namespaces.CLONE_NEWUTS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWNET
    )
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _inner(furnishing, write_end)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as pipe:
        said = pipe.read()
    if said != "ready":
        os.waitpid(pid, 0)
        raise RuntimeError(said or "the holder died while it furnished the machine; see its log")
    return pid


def _inner(furnishing: dict[str, Any], write_end: int) -> None:
    try:
        os.setsid()
        _furnish(furnishing)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.chdir("/")
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # The mark must be in the environment that exec leaves in /proc/PID/environ.
        os.write(write_end, b"ready")
        os.execvpe("sleep", ["sleep", "infinity"], os.environ)  # noqa: S606 - no shell is meant
    except BaseException as error:  # noqa: BLE001 - whatever it is, the outer process must hear of it
        os.write(write_end, str(error).encode())
    os._exit(1)


def _furnish(furnishing: dict[str, Any]) -> None:
    namespaces.mount("", "/", flags=namespaces.MS_REC | namespaces.MS_SLAVE)
    for target, layer in furnishing["overlays"].items():
        _overlay(target, layer)
    for path in furnishing["emptied"]:
        _empty(path)
    for path, text in furnishing["files"].items():
        _write(path, text)
    nosuid = namespaces.MS_NOSUID | namespaces.MS_NODEV
    namespaces.mount("proc", "/proc", "proc", nosuid | namespaces.MS_NOEXEC)
    # A new sysfs shows the interfaces of the network namespace it is mounted in.
    namespaces.mount("sysfs", "/sys", "sysfs", nosuid | namespaces.MS_NOEXEC)
    if furnishing["run"]:
        namespaces.mount("tmpfs", "/run", "tmpfs", nosuid, "mode=755,size=64m")
        os.mkdir("/run/lock", 0o1777)
    namespaces.sethostname(furnishing["hostname"])
    for name, value in furnishing["sysctls"]:
        try:
            sysctl.ensure(name, value)
        except NotFound:
            # A kernel without IPv6 or bridge netfilter lacks those settings; `up` has warned about what matters.
            continue


def _overlay(target: str, layer: str) -> None:
    upper, work = f"{layer}/upper", f"{layer}/work"
    os.makedirs(upper)
    os.makedirs(work)
    # volatile: nothing here has to survive a power cut, so unmounting need not wait until all is on the disk.
    options = f"lowerdir={target},upperdir={upper},workdir={work},volatile"
    namespaces.mount("overlay", target, "overlay", data=options)


def _empty(path: str) -> None:
    """Empty a folder (the overlay keeps the host's as it is) and make it if it is not there."""
    os.makedirs(path, exist_ok=True)
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            os.unlink(f"{folder}/{name}")
        for name in folders:
            inner = f"{folder}/{name}"
            if os.path.islink(inner):
                os.unlink(inner)
            else:
                os.rmdir(inner)


def _write(path: str, text: str) -> None:
    """Write a file in place of what was there, be it a link into a /run that this machine does not have."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.unlink(path)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
