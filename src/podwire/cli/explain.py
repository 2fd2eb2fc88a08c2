"""podwire explain: one subcommand a question, each in a module of its own (`explain_packet.py`, …)."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import typer

#: The modules of the subcommands; each has `add(app)`.
MODULES = ("explain_packet", "explain_pod", "explain_service", "explain_rules")


def register(app: typer.Typer) -> None:
    """Add `explain` and its subcommands."""
    explain = typer.Typer(
        help="Follow a packet, a pod's address or a Service through what is really on a node.", no_args_is_help=True
    )
    for module in MODULES:
        if find_spec(f"podwire.cli.{module}"):
            importlib.import_module(f"podwire.cli.{module}").add(explain)
    app.add_typer(explain, name="explain")
