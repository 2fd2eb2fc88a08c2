"""`make bench` measures what podwire promises, and prints a table for each part: `python scripts/bench [lab] [cni] …`.

Figures of one machine say little about another's, and a machine that is busy distorts them: its name and its load before and
after are printed with each table. A table is a module beside this file with a function `main`, which returns tables.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys

from rich.console import Console

from podwire.errors import PodwireError

# The CNI table comes last: measuring it moves this process to a network and mount namespace of its own.
TABLES = ("lab", "explain", "kube_proxy", "cni")


def main(names: list[str]) -> int:
    """Measure and print the named tables, all by default."""
    unknown = set(names) - set(TABLES)
    if unknown:
        print(f"bench: no such table: {', '.join(sorted(unknown))}; there are: {', '.join(TABLES)}", file=sys.stderr)
        return 2
    console = Console(width=max(110, Console().width))
    console.print(
        f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    )
    status = 0
    for name in TABLES:
        if names and name not in names:
            continue
        before = load()
        try:
            for table in importlib.import_module(name).main():
                table.caption = f"load before and after: {before}, {load()}"
                console.print(table)
        except PodwireError as error:
            print(f"bench: {name}: {error}", file=sys.stderr)
            status = error.exit_status
    return status


def load() -> str:
    """The machine's load of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
