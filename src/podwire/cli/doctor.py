"""podwire doctor: what is wrong with a node's network, and how to mend it. Reads only."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Annotated

import typer

from podwire.cli.sources import Bundles, Files, Kubeconfig, Lab, Nodes  # noqa: TC001 - typer reads annotations
from podwire.errors import PodwireError, UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    paths: Files = None,
    node: Nodes = None,
    name: Lab = "lab",
    bundle: Bundles = None,
    kubeconfig: Kubeconfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for what is wrong: on this node, on nodes of a lab, in bundles or in files that somebody sent.

    The exit status is 0 when nothing was found, 1 with findings, 2 when it was not possible to look.
    """
    from podwire.cli import sources
    from podwire.doctor import render, table

    try:
        snapshots = sources.snapshots(paths, node, name, bundle, kubeconfig)
        if all(one.empty for one in snapshots):
            raise UsageError(
                "there is nothing in the input that podwire recognises", hint="podwire collect says what it reads"
            )
    except PodwireError as error:
        print(f"podwire: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    findings = table.examine(snapshots)
    if as_json:
        print(json.dumps(render.as_json(findings, snapshots, len(table.CHECKS)), indent=2))
    else:
        width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        print(render.text(findings, snapshots, len(table.CHECKS), width))
    # A note is no finding: it says what works as designed.
    raise typer.Exit(1 if any(finding.level != "note" for finding in findings) else 0)
