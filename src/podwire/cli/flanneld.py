"""podwire flanneld: pod network between nodes, with flannel's flags.

The arguments go to flanneld's own parser untouched: flannel's flags are Go's (`-iface=eth0`, `--ip-masq=true`), which
no Python command-line library reads.
"""

from __future__ import annotations

import os

import typer

RAW = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("flanneld", context_settings=RAW)(flanneld)


def flanneld(context: typer.Context) -> None:
    """Connect this node's pods to those of the other nodes (flannel's daemon; --help lists its flags)."""
    from podwire.flanneld import flags

    options = flags.parse(context.args, os.environ)
    if options.help:
        typer.echo(flags.usage())
        return
    if options.version:
        from podwire import __version__

        typer.echo(f"podwire {__version__}")
        return
    from podwire.daemon.signals import stop_event
    from podwire.flanneld.run import run

    raise typer.Exit(run(options, stop_event()))
