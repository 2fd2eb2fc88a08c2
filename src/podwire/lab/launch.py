"""Enter a machine and start programs in it.

Entering is setns(2) into the holder's mount, UTS, network and PID namespaces, in that order of need: descriptors of
all four are opened first, because /proc is another one after the mount namespace is entered. A PID namespace takes
only children, so whoever enters must fork. `ip netns exec` is not used: it remounts /sys and knows no PID namespace.

Run as a program (`main`), it reads from stdin which commands to start, starts each as a session of its own, whose
output goes to a log, prints the pids as the host sees them, and exits. The machine's PID 1 must become their parent, or the
machine could not end before the host's PID 1 has reaped them (pid_namespaces(7)); an orphan goes to the PID 1 of its
*parent's* namespace, so each is the child of a process inside that exits at once.
"""

from __future__ import annotations

import json
import os
import struct
import sys

from podwire.errors import KernelError, NotFound
from podwire.kernel import namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

KINDS = (
    ("mnt", namespaces.CLONE_NEWNS),
    ("uts", namespaces.CLONE_NEWUTS),
    ("net", namespaces.CLONE_NEWNET),
    ("pid", namespaces.CLONE_NEWPID),
)


def enter(pid: int) -> None:
    """Move this process (and for the PID namespace: its children) into the machine that process `pid` holds."""
    opened: list[tuple[int, int]] = []
    try:
        for kind, flag in KINDS:
            opened.append((namespaces.open_namespace(f"/proc/{pid}/ns/{kind}"), flag))
        for fd, flag in opened:
            namespaces.setns(fd, flag)
    finally:
        for fd, _ in opened:
            os.close(fd)
    os.chdir("/")


def run_inside(pid: int, argv: list[str], env: dict[str, str]) -> int:
    """Run a program in the machine with our own terminal and wait for it; its exit status as a shell counts it."""
    enter(pid)
    child = os.fork()
    if child == 0:
        _exec(argv, env)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if status >= 0 else 128 - status


def main() -> None:
    """Start what standard input lists: {"holder": pid, "commands": [{"argv", "env", "log"}]}; prints a list of pids."""
    order = json.load(sys.stdin)
    logs = [os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for command in order["commands"]]
    try:
        enter(order["holder"])
    except NotFound as error:
        print(json.dumps({"error": f"the machine is gone ({error})"}))
        return
    except KernelError as error:
        print(json.dumps({"error": str(error)}))
        return
    try:
        pids = [_start(command, log) for command, log in zip(order["commands"], logs, strict=True)]
    except (KernelError, OSError) as error:  # ENOMEM: fork(2) into a PID namespace whose PID 1 has gone
        print(json.dumps({"error": str(error)}))
        return
    print(json.dumps({"pids": pids}))


def _start(command: dict[str, Any], log: int) -> int:
    """Fork twice; the grandchild's pid as the host sees it.

    The grandchild knows only its pid inside. It says anything through a socket: the kernel puts the sender's pid on the
    message, in the receiver's terms (unix(7), SCM_CREDENTIALS).
    """
    import _socket

    # SEQPACKET, because it ends when the last writer has gone: a machine may die between the forks.
    receiver, sender = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    receiver.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            sender.send(b"started")
            os.setsid()
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _exec(command["argv"], command["env"])
        os._exit(0)
    sender.close()
    os.waitpid(middle, 0)
    said, ancillary, _, _ = receiver.recvmsg(16, _socket.CMSG_SPACE(struct.calcsize("iII")))
    receiver.close()
    if not said:
        raise NotFound("starting", command["argv"][0], "the machine died meanwhile")
    return int(struct.unpack("iII", ancillary[0][2])[0])


def _exec(argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is meant
    except OSError as error:
        print(f"podwire: {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(127)
