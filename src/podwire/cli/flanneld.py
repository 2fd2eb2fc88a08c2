"""podwire flanneld: pod network between nodes, with flannel's flags.

flannel's flags are Go's (`-iface=eth0`, `--ip-masq=true`), which no Python command-line library reads, so flanneld reads
its command line itself. `main` is the whole command; what `register` adds to typer's application only shows it in
the list of commands and hands its arguments on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    import typer

    def flanneld(arguments: list[str] = typer.Argument(None, metavar="[FLAG]...")) -> None:  # noqa: B008 - typer's way
        """Connect this node's pods to those of the other nodes (flannel's daemon; --help lists its flags)."""
        raise typer.Exit(main(arguments or []))

    app.command("flanneld", context_settings={"ignore_unknown_options": True, "help_option_names": []})(flanneld)


def main(arguments: Sequence[str]) -> int:
    """Run flanneld with these arguments; its exit status. Raises PodwireError."""
    from podwire.flanneld import flags

    options = flags.parse(arguments, os.environ)
    if options.help:
        print(flags.usage())
        return 0
    if options.version:
        from podwire import __version__

        print(f"podwire {__version__}")
        return 0
    from podwire.daemon.signals import stop_event
    from podwire.flanneld.run import run

    return run(options, stop_event())
