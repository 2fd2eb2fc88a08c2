"""A walk shows commands and what came back, and checks it. It stops at the first check that fails."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

BOLD, DIM, GREEN, RED, PLAIN = ("\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[0m")


class Failed(Exception):
    """A check of the walk did not hold."""


class Walk:
    """Runs commands in a shell that finds this podwire's `podwire` and `kubectl`, prints them and what they said.

    `quiet` prints nothing (the tests' walk). Commands are written in this folder; nothing of them comes from outside
    but names and addresses that the cluster itself gave.
    """

    def __init__(self, name: str, kubeconfig: str, *, quiet: bool = False, began: float | None = None) -> None:
        self.name = name
        self.quiet = quiet
        self.began = time.monotonic() if began is None else began
        self.environ = {
            **os.environ,
            "PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
            "KUBECONFIG": kubeconfig,
            "PODWIRE_NAME": name,
        }
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._paint = (lambda code, text: f"{code}{text}{PLAIN}") if color else (lambda _code, text: text)

    def say(self, text: str = "") -> None:
        """Print a line."""
        if not self.quiet:
            print(text, flush=True)

    def title(self, text: str) -> None:
        """Begin a step."""
        self.say(self._paint(BOLD, f"\n━━ {text} ({time.monotonic() - self.began:.0f} s)"))

    def run(self, command: str, *, lines: int = 12, only: str = "", timeout: float = 60, status: int | None = 0) -> str:
        """Run a command line and return its output; `status` is what it must exit with.

        Shown are at most `lines` lines; with `only`, just those in which this regular expression is found.
        """
        self.say(f"{self._paint(DIM, '$')} {command}")
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"], env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, check=False,
        )  # fmt: skip
        output = done.stdout.decode(errors="replace").rstrip("\n")
        shown = [line.strip() if only else line for line in output.splitlines() if re.search(only, line)]
        for line in shown[:lines]:
            self.say(f"    {line}")
        if len(shown) > lines:
            self.say(f"    … {len(shown) - lines} more lines")
        if status is not None and done.returncode != status:
            self.fail(f"{command!r} ended with status {done.returncode}: {output[-500:]}")
        return output

    def value(self, command: str, **options: float) -> str:
        """Run a command that is not worth showing."""
        quiet, self.quiet = self.quiet, True
        try:
            return self.run(command, **options)  # type: ignore[arg-type]
        finally:
            self.quiet = quiet

    def background(self, argv: list[str]) -> subprocess.Popen[bytes]:
        """Start a command that goes on; the caller ends it."""
        self.say(f"{self._paint(DIM, '$')} {shlex.join(argv)} &")
        return subprocess.Popen(
            argv, env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def check(self, holds: bool, sentence: str) -> None:
        """Say what was checked; end the walk when it does not hold."""
        if not holds:
            self.fail(sentence)
        self.say(f"  {self._paint(GREEN, '✓')} {sentence}")

    def fail(self, sentence: str) -> NoReturn:
        """End the walk."""
        self.say(f"  {self._paint(RED, '✗')} {sentence}")
        raise Failed(sentence)

    def wait(self, sentence: str, holds: Callable[[], bool], timeout: float = 20) -> None:
        """Wait until something holds, and say so."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > timeout:
                self.fail(f"{sentence}: not after {timeout:.0f} s")
            time.sleep(0.1)
        self.check(True, f"{sentence} (after {time.monotonic() - began:.1f} s)")
