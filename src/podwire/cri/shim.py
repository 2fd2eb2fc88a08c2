"""The process of a container: what stands between the server and the program that runs.

It outlives the server, so a restarted server finds its containers running. Two kinds, one file:

    stand-in         one process: enters the network and a UTS namespace and becomes the stand-in
    podwire/host     the process makes mount, PID, IPC and UTS namespaces, forks their first process, and ends;
                     that first process (`init`) starts the command, copies its output to the log, passes signals on,
                     reaps orphans, and writes how the command ended

What the server and this process have between them, all inherited or in the container's folder:

    descriptor 3, file `pid`      locked (flock) from before the start to the end of the last process that holds it: a
                                  lock that can be taken means that nothing of the container lives. Its text is the pid
                                  as the server sees it
    descriptor 4, a pipe          "ready" and then end of file: it runs; anything else: why it does not
    file `exit`                   one line of JSON, written when the command has ended. Killed processes write none
    SIGTERM, SIGUSR1              stop; reopen the log

Slim, because it is loaded for every container: see the test that compares its imports and memory with a budget.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from podwire.cri import logs
from podwire.errors import KernelError, PodwireError
from podwire.kernel import capabilities, namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PID_FD = 3
STATUS_FD = 4

READY = b"ready\n"

# What the server may send; for the first process of a PID namespace a signal without a handler does not exist.
_FORWARDED = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR2", "SIGWINCH", "SIGCONT")
)


def main(path: str) -> None:
    """Run the container that the file `path` describes (see `launch.Spec`)."""
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(STATUS_FD + 1, 1 << 16)  # what the server itself may have inherited is none of our business
    os.set_inheritable(PID_FD, False)
    os.set_inheritable(STATUS_FD, False)
    try:
        with open(path, encoding="utf-8") as file:
            spec: dict[str, Any] = json.load(file)
        _start(spec)
    except (PodwireError, OSError) as error:
        _fail(str(error))


def _start(spec: dict[str, Any]) -> None:
    log = logs.Writer(spec["log"])
    exit_fd = os.open(spec["exit"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if spec["netns"]:
        fd = namespaces.open_netns(spec["netns"])
        namespaces.setns(fd, namespaces.CLONE_NEWNET)
        os.close(fd)
    if spec["kind"] == "stand-in":
        namespaces.unshare(namespaces.CLONE_NEWUTS)
        namespaces.sethostname(spec["hostname"])
        write_pid(os.getpid())
        from podwire.cri import standin

        standin.run(spec["standin"], log, exit_fd)
    namespaces.unshare(
        namespaces.CLONE_NEWNS | namespaces.CLONE_NEWPID | namespaces.CLONE_NEWIPC | namespaces.CLONE_NEWUTS
    )
    pid = os.fork()
    if pid == 0:
        try:
            Init(spec, log, exit_fd).run()
        except BaseException as error:  # noqa: BLE001 - the first process has nobody else to tell
            _fail(str(error) or repr(error))
    write_pid(pid)
    os._exit(0)


def write_pid(pid: int) -> None:
    """Say who the container is; the file was made and locked by the server."""
    os.pwrite(PID_FD, f"{pid}\n".encode(), 0)


def ready() -> None:
    """Tell the server that the container runs."""
    os.write(STATUS_FD, READY)
    os.close(STATUS_FD)


def _fail(text: str) -> NoReturn:
    """Tell the server why it does not run."""
    try:
        os.write(STATUS_FD, text.encode(errors="replace"))
    except OSError:  # it was told that it runs already; what happened since is in shim.log
        print(text, file=sys.stderr, flush=True)
    os._exit(128)


def write_exit(fd: int, code: int) -> None:
    """Write down how the container ended."""
    os.pwrite(fd, json.dumps({"code": code, "at": time.time_ns()}).encode() + b"\n", 0)


def exit_code(status: int) -> int:
    """The exit code of a wait status as a shell and every runtime counts it: 128 + signal for a killed one."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


class Init:
    """The first process of a container's PID namespace."""

    def __init__(self, spec: dict[str, Any], log: logs.Writer, exit_fd: int) -> None:
        self._spec = spec
        self._log = log
        self._exit_fd = exit_fd
        self._streams: dict[int, str] = {}
        self._main = 0
        self._code: int | None = None
        self._wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)

    def run(self) -> NoReturn:
        """Furnish the namespaces, start the command, and see it through."""
        from podwire.cri import rootfs

        spec = self._spec
        os.setsid()
        namespaces.sethostname(spec["hostname"])
        rootfs.enter(spec["rootfs"], spec["etc"], spec["hidden"])
        # Root in the container must not reach this process's descriptors through /proc/1 (ptrace(2), access checks).
        capabilities.prctl(capabilities.PR_SET_DUMPABLE, 0)
        for number in (*_FORWARDED, signal.SIGCHLD, signal.SIGUSR1):
            signal.signal(number, _handled)
        self._main = self._spawn()
        os.close(STATUS_FD)
        while self._code is None:
            self._step(None)
        self._finish(self._code)

    def _spawn(self) -> int:
        pipes = {name: os.pipe2(os.O_CLOEXEC) for name in ("stdout", "stderr")}
        pid = os.fork()
        if pid == 0:
            for fd, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(pipes[name][1], fd)
            Command(self._spec["command"]).execute()
        for name, (read_end, write_end) in pipes.items():
            os.close(write_end)
            os.set_blocking(read_end, False)
            self._streams[read_end] = name
        return pid

    def _step(self, timeout: float | None) -> bool:
        """Wait for output, signals and ended children; whether anything came."""
        readable, _, _ = select.select([self._wake_read, *self._streams], [], [], timeout)
        for fd in readable:
            if fd == self._wake_read:
                for number in os.read(fd, 512):
                    self._signalled(number)
            else:
                self._copy(fd)
        return bool(readable)

    def _copy(self, fd: int) -> None:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        if data:
            self._log.feed(self._streams[fd], data)
        else:
            os.close(fd)
            del self._streams[fd]

    def _signalled(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
        elif number == signal.SIGUSR1:
            self._log.reopen()
        elif self._code is None:
            try:
                os.kill(self._main, number)
            except ProcessLookupError:
                return

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main:
                self._code = exit_code(status)

    def _finish(self, code: int) -> NoReturn:
        """The command has ended, and with it the container: end what it left behind, write the last lines."""
        _kill(-1)
        while self._streams and self._step(0):
            pass
        self._log.end()
        write_exit(self._exit_fd, code)
        os._exit(code)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _handled(_number: int, _frame: object) -> None:
    """A Python-level handler, so that the signal is seen at all; the work is done by the wakeup descriptor's reader."""


class Command:
    """The user's program, from the fork to the exec."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec

    def execute(self) -> NoReturn:
        """Become the program; what goes wrong is said through the status pipe."""
        try:
            self._prepare()
            os.write(STATUS_FD, READY)  # followed by end of file, because exec closes the descriptor
            self._exec()
        except (OSError, KernelError) as error:
            _fail(f"\n{error}")
        os._exit(127)

    def _prepare(self) -> None:
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                try:
                    signal.signal(number, signal.SIG_DFL)  # Python ignores SIGPIPE; a program must not inherit that
                except (OSError, ValueError):
                    continue
        signal.set_wakeup_fd(-1)
        os.setsid()
        os.umask(0o022)
        spec = self._spec
        os.chdir(spec["cwd"] or "/")
        keep = capabilities.kept(spec["drop"])
        capabilities.limit_bounding(keep)
        os.setgroups(spec["groups"])
        os.setgid(spec["gid"])
        if spec["uid"] != 0:
            os.setuid(spec["uid"])
            keep = []
        capabilities.prctl(capabilities.PR_SET_NO_NEW_PRIVS, 1)
        capabilities.limit(keep)

    def _exec(self) -> None:
        argv, env = self._spec["argv"], self._spec["env"]
        if "/" in argv[0]:
            candidates = [argv[0]]
        else:
            candidates = [f"{folder}/{argv[0]}" for folder in env.get("PATH", "").split(":") if folder]
        refused: OSError | None = None
        for path in candidates:
            try:
                os.execve(path, argv, env)  # noqa: S606 - no shell is meant
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                refused = error
        if refused is not None:
            raise OSError(f'exec: "{argv[0]}": {(refused.strerror or "failed").lower()}')
        where = "no such file or directory" if "/" in argv[0] else "executable file not found in $PATH"
        raise OSError(f'exec: "{argv[0]}": {where}')
