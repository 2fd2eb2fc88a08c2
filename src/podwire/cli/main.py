"""The command `podwire`: one subcommand a part, each in a module of its own that imports its room inside the command.

A daemon's process imports only its own command's module: the whole set would cost every one of them start-up time and
memory. Every PodwireError becomes one line on stderr and the exit status of its class; everything else is a fault
of podwire's and shows its traceback.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from podwire.errors import PodwireError

if TYPE_CHECKING:
    import typer

#: Subcommand → the module of podwire.cli that registers it.
COMMANDS = {
    "up": "lab",
    "down": "lab",
    "status": "lab",
    "node": "lab",
    "apiserver": "apiserver",
    "controller-manager": "controller_manager",
    "kubelet": "kubelet",
    "cri": "cri",
    "flanneld": "flanneld",
    "kube-proxy": "kube_proxy",
    "cni": "cni",
}

#: Commands whose module has a `main` that reads the command line itself: they do without typer, which is 7 MiB.
RAW = frozenset({"flanneld"})


def _version(asked: bool) -> None:
    if asked:
        import typer

        from podwire import __version__

        typer.echo(f"podwire {__version__}")
        raise typer.Exit


def build(modules: list[str]) -> typer.Typer:
    """The application with the commands of these modules."""
    import typer

    app = typer.Typer(
        name="podwire",
        help="Kubernetes pod and service networking: run its parts, or a whole cluster network on this machine.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def _root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        pass

    for module in modules:
        importlib.import_module(f"podwire.cli.{module}").register(app)
    return app


def main() -> None:
    """Run the command line of this process."""
    asked = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
    modules = [COMMANDS[asked]] if asked in COMMANDS else list(dict.fromkeys(COMMANDS.values()))
    try:
        if asked in RAW and sys.argv[1] == asked:
            sys.exit(importlib.import_module(f"podwire.cli.{COMMANDS[asked]}").main(sys.argv[2:]))
        build(modules)()
    except PodwireError as error:
        print(f"podwire: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; nobody is left to tell.
        sys.exit(141)
