"""Signals and supervision, in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from scripted_api import certificate, kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

DAEMON = """
import sys, threading
from podwire.daemon import logs, signals
from podwire.daemon.supervision import Supervisor
logs.configure("test")
stop = signals.stop_event()
supervisor = Supervisor(stop)
{body}
print("ready", flush=True)
stop.wait()
{after}
sys.exit(supervisor.status)
"""


def start(body: str = "", after: str = "") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON.format(body=body, after=after)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_cleanly_and_soon(number: signal.Signals) -> None:
    process = start()
    begun = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 0, errors
    assert time.monotonic() - begun < 2


def test_many_signals_in_a_row_do_not_hang_it() -> None:
    for _ in range(5):
        process = start()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=5)
        assert process.returncode == 0


def test_a_signal_that_another_thread_gets_ends_it_too() -> None:
    """The kernel may hand it to any thread, and then nothing wakes the main thread, which runs Python's handlers."""
    process = start(
        "import os, signal, time\n"
        "def work():\n"
        "    time.sleep(0.2)\n"
        "    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
        "threading.Thread(target=work, daemon=True).start()"
    )
    process.communicate(timeout=5)
    assert process.returncode == 0


def test_a_second_signal_ends_a_daemon_that_does_not_end() -> None:
    process = start(after="import time; print('ending', flush=True); time.sleep(60)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert process.returncode == 128 + signal.SIGTERM


def test_a_thread_that_dies_ends_the_daemon_loudly() -> None:
    process = start(
        "def work():\n    raise RuntimeError('the reflector broke')\nthreading.Thread(target=work, name='reflector-pods').start()"
    )
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 1
    assert "CRITICAL test thread died, ending thread=reflector-pods" in errors
    assert "the reflector broke" in errors
    assert "Traceback" in errors


def test_a_thread_that_ends_by_itself_is_no_failure() -> None:
    process = start("threading.Thread(target=sys.exit, args=(3,)).start()")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert process.returncode == 0


def test_kube_and_daemon_are_light_to_import(tmp_path: Path) -> None:
    """A node runs a dozen of these processes; what each costs before it does anything is a budget."""
    code = """
import sys
from podwire.kube import client, events, kinds, objects, reflector, workqueue
from podwire.daemon import health, logs, runner, signals, supervision
client.Client.from_kubeconfig(sys.argv[1])
heavy = {"httpcore2", "h2", "anyio", "typer", "rich", "grpc", "pydantic", "lightkube"} & set(sys.modules)
rss = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(rss, sorted(heavy))
"""
    config = tmp_path / "kubeconfig"
    config.write_text(kubeconfig("https://127.0.0.1:1", certificate(tmp_path)[0]))
    command = [sys.executable, "-c", code, str(config)]
    subprocess.run(command, check=True, capture_output=True)  # the first run may compile
    environ = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environ).stdout
    rss, heavy = output.split(maxsplit=1)
    assert heavy.strip() == "[]"
    if "PYTHONDONTWRITEBYTECODE" not in environ:  # compiling every time costs memory too
        assert int(rss) < 32 * 1024
