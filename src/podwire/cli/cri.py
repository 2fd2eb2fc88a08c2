"""podwire cri: the container runtime of a node."""

from __future__ import annotations

import os

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cri")(cri)


def cri(
    listen: str = typer.Option("unix:///run/podwire/cri.sock", help="The unix socket to serve CRI v1 on."),
    state_dir: str = typer.Option("/run/podwire/cri", help="Where sandboxes and containers are remembered."),
    config: str | None = typer.Option(None, help="A containerd config.toml, from which the CNI settings are taken."),
    conf_dir: str | None = typer.Option(None, help="Where CNI configurations are. [default: /etc/cni/net.d]"),
    bin_dir: str | None = typer.Option(
        None, help="Where CNI plugins are, several with colons. [default: /opt/cni/bin]"
    ),
    cache_dir: str = typer.Option("/var/lib/cni", help="Where results of CNI plugins are kept."),
    node_name: str | None = typer.Option(None, help="The name stand-ins say they are on. [default: the host name]"),
    verbosity: int = typer.Option(0, "--v", help="1: log more."),
) -> None:
    """Serve the Container Runtime Interface: sandboxes wired through CNI, containers without images."""
    from podwire.cri.daemon import Options, run
    from podwire.daemon import logs
    from podwire.daemon.signals import stop_event

    logs.configure("cri", verbosity)
    options = Options(listen, state_dir, config, conf_dir, bin_dir, cache_dir, node_name or os.uname().nodename)
    raise typer.Exit(run(options, stop_event()))
