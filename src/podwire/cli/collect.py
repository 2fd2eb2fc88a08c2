"""podwire collect: one file with a node's network state, for a bug report or for podwire on another machine."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from podwire.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("collect")(collect)


def collect(
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write it; - is standard output.", show_default=False
        ),
    ] = None,
    redact: Annotated[bool, typer.Option("--redact", help="Replace public addresses and names, consistently.")] = False,
    kubeconfig: Annotated[
        str | None,
        typer.Option(
            envvar="KUBECONFIG", help="Read Nodes, Services, EndpointSlices and Pods with it.", show_default=False
        ),
    ] = None,
    runtime_endpoint: Annotated[
        str, typer.Option(help="The container runtime's socket, where there is no crictl.", show_default=False)
    ] = "",
    kernel_log: Annotated[
        bool,
        typer.Option(
            "--kernel-log/--no-kernel-log", help="Read the kernel's log (in a container it is the whole machine's)."
        ),
    ] = True,
    print_script: Annotated[
        bool, typer.Option("--print-script", help="Print a shell script that writes the same bundle without Python.")
    ] = False,
) -> None:
    """Write one bundle of this node's network state. Reads only; what cannot be read is in the bundle's manifest with the reason."""
    if print_script:
        from podwire.explain.snapshot_script import script

        print(script(), end="")
        return
    from podwire.explain import snapshot_bundle as bundle
    from podwire.explain import snapshot_live as live

    if os.geteuid() != 0:
        raise UsageError("collect reads what only root may read", hint="sudo")
    if output == "-" and sys.stdout.isatty():
        raise UsageError("a bundle is no text for a terminal", hint="-o FILE")
    found = live.collect(kubeconfig, runtime_endpoint=runtime_endpoint, kernel_log=kernel_log)
    when = time.time()
    name = found.node
    if redact:
        from podwire.explain import snapshot_redact

        snapshot_redact.apply(found, os.urandom(32))
        name = found.node
    if output == "-":
        bundle.write(found, sys.stdout.buffer, when)
        return
    path = output or f"podwire-{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(when))}.tar.gz"
    bundle.write_file(found, path, when)
    print(f"{path}: {len(found.read)} parts of {found.node} ({os.path.getsize(path) >> 10} KiB)")
    for file, why in sorted(found.unread.items()):
        print(f"  not read: {file}: {why}")
