"""Start a program, feed it, and collect what it says: posix_spawn(3) and poll(2), no `subprocess` (5 ms to import).

`run` is for programs that end by themselves: iptables-restore, nft, ip, foreign CNI plugins. The arguments are a list;
no shell ever sees them. The program inherits nothing but the three pipes (every descriptor Python opens is
close-on-exec).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # the C half of `signal`, whose other half takes 3 ms for enum classes
import os
import select
import time

from podwire.errors import CommandFailed, KernelError, MissingCapability

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Output:
    """What a program left: exit `status` (negative: minus the signal), `stdout` and `stderr` as bytes."""

    __slots__ = ("argv", "status", "stderr", "stdout")

    def __init__(self, argv: list[str], status: int, stdout: bytes, stderr: bytes) -> None:
        self.argv = argv
        self.status = status
        self.stdout = stdout
        self.stderr = stderr

    def check(self, hint: str = "") -> Output:
        """Itself when the status is 0, else CommandFailed with the last line of stderr."""
        if self.status != 0:
            raise CommandFailed(self.argv, self.status, self.stderr.decode(errors="replace"), hint)
        return self


def find(program: str, path: str | None = None) -> str | None:
    """The file that `program` names on PATH (the sbin directories are searched too: cron's PATH lacks them)."""
    if "/" in program:
        return program if os.access(program, os.X_OK) else None
    search = path if path is not None else os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"
    for folder in search.split(":"):
        candidate = f"{folder}/{program}"
        if folder and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    return None


def run(
    argv: Sequence[str],
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Output:
    """Run a program to its end.

    `timeout` is in seconds; when it is over the program is killed and CommandFailed raised. A program that is not
    there is MissingCapability. `env` None means our own environment.
    """
    arguments = list(argv)
    file = find(arguments[0])
    if file is None:
        raise MissingCapability(
            "running", arguments[0], "there is no such program on PATH", "install the package that has it"
        )
    ends = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = ends
    try:
        pid = os.posix_spawn(
            file,
            arguments,
            dict(os.environ if env is None else env),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, in_read, 0),
                (os.POSIX_SPAWN_DUP2, out_write, 1),
                (os.POSIX_SPAWN_DUP2, err_write, 2),
            ],
            # A daemon's ignored SIGPIPE and blocked signals are not the program's.
            setsigdef=[_signal.SIGPIPE],
            setsigmask=[],
        )
    except OSError as error:
        for pair in ends:
            os.close(pair[0])
            os.close(pair[1])
        raise KernelError.of(error.errno or 0, "starting", file) from error
    os.close(in_read)
    os.close(out_write)
    os.close(err_write)
    deadline = None if timeout is None else time.monotonic() + timeout
    try:
        stdout, stderr, in_time = _exchange(in_write, stdin, out_read, err_read, deadline)
    except BaseException:
        os.kill(pid, _signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    if not in_time:
        os.kill(pid, _signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not in_time:
        raise CommandFailed(arguments, status, f"killed: it had not ended after {timeout} s")
    return Output(arguments, status, stdout, stderr)


def _exchange(
    in_write: int, stdin: bytes, out_read: int, err_read: int, deadline: float | None
) -> tuple[bytes, bytes, bool]:
    """Feed stdin and gather both outputs at once, so that no full pipe can block; closes all three descriptors."""
    gathered: dict[int, list[bytes]] = {out_read: [], err_read: []}
    left = memoryview(stdin)
    poller = select.poll()
    for fd in gathered:
        poller.register(fd, select.POLLIN)
    waiting = {out_read, err_read}
    if stdin:
        os.set_blocking(in_write, False)
        poller.register(in_write, select.POLLOUT)
        waiting.add(in_write)
    else:
        os.close(in_write)
    in_time = True
    try:
        while waiting:
            pause = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
            events = poller.poll(pause)
            if not events and deadline is not None and time.monotonic() >= deadline:
                in_time = False
                break
            for fd, _ in events:
                if fd == in_write:
                    left = _feed(fd, left)
                    finished = not left
                else:
                    chunk = os.read(fd, 1 << 16)
                    gathered[fd].append(chunk)
                    finished = not chunk
                if finished:
                    poller.unregister(fd)
                    waiting.discard(fd)
                    if fd == in_write:
                        os.close(fd)
    finally:
        if in_write in waiting:
            os.close(in_write)
        os.close(out_read)
        os.close(err_read)
    return b"".join(gathered[out_read]), b"".join(gathered[err_read]), in_time


def _feed(fd: int, left: memoryview) -> memoryview:
    """Write what fits; nothing is left when the reader has closed its end (its exit status tells why)."""
    try:
        return left[os.write(fd, left[: 1 << 16]) :]
    except BrokenPipeError:
        return left[:0]
    except BlockingIOError:
        return left
