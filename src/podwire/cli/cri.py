"""podwire cri: the container runtime of a node. It reads its command line itself (see `arguments`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer


def register(app: typer.Typer) -> None:
    """Add the command to typer's list."""
    import typer

    def cri(arguments: list[str] = typer.Argument(None, metavar="[FLAG]...")) -> None:  # noqa: B008 - typer's way
        """Serve the Container Runtime Interface: sandboxes wired through CNI, containers without images."""
        raise typer.Exit(main(arguments or []))

    app.command("cri", context_settings={"ignore_unknown_options": True, "help_option_names": []})(cri)


def main(arguments: Sequence[str]) -> int:
    """Run the server with these arguments; its exit status. Raises PodwireError."""
    from podwire.cli.arguments import Parser

    parser = Parser("cri", "Serve the Container Runtime Interface: sandboxes wired through CNI, no images pulled.")
    add = parser.add_argument
    add("--listen", default="unix:///run/podwire/cri.sock", help="the unix socket to serve CRI v1 on")
    add("--state-dir", default="/run/podwire/cri", help="where sandboxes and containers are remembered")
    add("--config", help="a containerd config.toml, from which the CNI settings are taken")
    add("--conf-dir", help="where CNI configurations are; without it and --config /etc/cni/net.d")
    add("--bin-dir", help="where CNI plugins are, several with colons; without it and --config /opt/cni/bin")
    add("--cache-dir", default="/var/lib/cni", help="where results of CNI plugins are kept")
    add("--node-name", default=os.uname().nodename, help="the name stand-ins say they are on")
    add("--v", type=int, default=0, help="1 logs more")
    flags = parser.parse_args(arguments)

    from podwire.cri.daemon import Options, run
    from podwire.daemon import logs
    from podwire.daemon.signals import stop_event

    logs.configure("cri", flags.v)
    options = Options(
        listen=flags.listen,
        state_dir=flags.state_dir,
        config=flags.config,
        conf_dir=flags.conf_dir,
        bin_dir=flags.bin_dir,
        cache_dir=flags.cache_dir,
        node_name=flags.node_name,
    )
    return run(options, stop_event())
