"""A lab's processes: holders, daemons, and their end.

All are started as children of short-lived helpers and so belong to PID 1 of their machine (or of the host, for the
holders), never to the `podwire` command that started them. All carry the lab's mark in their environment. They are
ended by pid and start time through a pidfd, so that a pid that was used again in between is never hit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from podwire.errors import PodwireError
from podwire.kernel import owner
from podwire.lab.machine import environment
from podwire.lab.state import Process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.lab.state import Component, Folder
    from podwire.lab.topology import Topology

#: How long a daemon has after SIGTERM before SIGKILL.
GRACE_SECONDS = 5.0


def _slim(module: str, order: dict[str, Any], env: dict[str, str], log: str) -> dict[str, Any]:
    """Run one of the lab's slim programs (no site packages: 10 ms instead of 100) and return its answer."""
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = f"import sys; sys.path.insert(0, {source!r}); from podwire.lab.{module} import main; main()"
    with open(log, "ab", opener=_private) as stderr:
        done = subprocess.run(
            [sys.executable, "-IS", "-c", code],
            input=json.dumps(order).encode(),
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=env,
            check=False,
        )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise PodwireError("starting", module, f"exit status {done.returncode}", f"see {log}") from error
    return answer


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def start_holder(folder: Folder, topology: Topology, machine: str, furnishing: dict[str, Any]) -> Process:
    """Make a machine's namespaces and keep who holds them."""
    os.makedirs(f"{folder.machine_path(machine)}/logs", exist_ok=True)
    log = folder.log_path(machine, "holder")
    answer = _slim("holder", furnishing, environment(topology, machine, "holder"), log)
    if "error" in answer:
        raise PodwireError("making the machine", machine, answer["error"])
    holder = Process.of(answer["pid"])
    folder.write_holder(machine, holder)
    return holder


def living_holder(folder: Folder, machine: str) -> Process:
    """The holder of a machine that runs. Raises PodwireError when it does not."""
    holder = folder.holder(machine)
    if holder is None or not holder.alive:
        raise PodwireError(
            f"{machine} of lab {folder.name} is dead", answer="the process that held its namespaces is gone",
            hint=f"podwire down --name {folder.name}, then podwire up",
        )  # fmt: skip
    return holder


def start_components(folder: Folder, machine: str, components: Sequence[Component], more: Sequence[str] = ()) -> None:
    """Start daemons on a machine, in this order, and keep their pids; `more` are flags for this start alone."""
    holder = living_holder(folder, machine)
    commands = [
        {"argv": [*component.argv, *more], "env": component.env, "log": folder.log_path(machine, component.name)}
        for component in components
    ]
    answer = _slim("launch", {"holder": holder.pid, "commands": commands}, {}, folder.log_path(machine, "holder"))
    if "error" in answer:
        raise PodwireError("starting", ", ".join(c.name for c in components), answer["error"])
    for component, pid in zip(components, answer["pids"], strict=True):
        component.process = Process.of(pid)
        folder.write_component(machine, component)


def stop_component(folder: Folder, machine: str, component: Component) -> bool:
    """SIGTERM, and SIGKILL when it has not ended in time; False when it did not run anyway."""
    if component.process is None or not component.process.alive:
        return False
    if not end(component.process, signal.SIGTERM, GRACE_SECONDS):
        end(component.process, signal.SIGKILL, GRACE_SECONDS)
    component.process = None
    folder.write_component(machine, component)
    return True


def end(process: Process, number: signal.Signals, seconds: float) -> bool:
    """Send a signal to that very process and wait; whether it ended in time."""
    return end_each([process], number, seconds)


def end_each(processes: Sequence[Process], number: signal.Signals, seconds: float) -> bool:
    """Send a signal to all of them first and then wait for all; whether all ended in time.

    The end of a PID namespace's PID 1 takes the kernel a while, and several end at the same time.
    """
    waiting = []
    try:
        for process in processes:
            try:
                pidfd = os.pidfd_open(process.pid)
            except ProcessLookupError:
                continue
            waiting.append(pidfd)
            # Only now, with the pidfd in hand, does the start time prove that it is the right one.
            if process.alive:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, number)
            else:
                os.close(waiting.pop())
        return _wait_for_end(processes, time.monotonic() + seconds)
    finally:
        for pidfd in waiting:
            os.close(pidfd)


def _wait_for_end(processes: Sequence[Process], deadline: float) -> bool:
    """Whether all have ended by then; one that has ended but was not reaped yet (a zombie) counts as ended."""
    while any(process.alive for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def end_all(lab: str) -> list[owner.MarkedProcess]:
    """Kill everything that carries the lab's mark, holders first since they take the rest along; what was found.

    Repeated until nothing is left: a process may fork between being listed and being killed.
    """
    ended: dict[tuple[int, int], owner.MarkedProcess] = {}
    deadline = time.monotonic() + 20
    while marked := [process for process in owner.marked_processes(lab) if process.pid != os.getpid()]:
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in marked)
            raise PodwireError(
                "ending the processes of", f"lab {lab}", f"still there: {pids}", "they may hang in the kernel"
            )
        marked.sort(key=lambda process: process.component != "holder")
        ended.update({(process.pid, process.started): process for process in marked})
        end_each([Process(process.pid, process.started) for process in marked], signal.SIGKILL, 5.0)
    return list(ended.values())


def log_tail(path: str, lines: int = 5) -> str:
    """The last lines of a log, for an error message."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "\n".join(file.read().splitlines()[-lines:])
    except FileNotFoundError:
        return ""
