"""The command `podwire`: one subcommand a part, each in a module of its own that imports its room inside the command.

A daemon's process imports only its own command's module: the whole set would cost every one of them start-up time and
memory. Every PodwireError becomes one line on stderr and the exit status of its class; everything else is a fault
of podwire's and shows its traceback.
"""

from __future__ import annotations

import importlib
import os
import sys

import typer
from typer.exceptions import TyperException

from podwire.errors import PodwireError

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

#: Commands whose module has a `main` that reads the command line itself: flannel's flags are Go's (-iface=eth0).
RAW = frozenset({"flanneld"})


def _version(asked: bool) -> None:
    if asked:
        from podwire import __version__

        typer.echo(f"podwire {__version__}")
        raise typer.Exit


def build(modules: list[str]) -> typer.Typer:
    """The application with the commands of these modules."""
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
        # standalone_mode would print usage errors in three lines; here every error is one.
        status = _raw(asked) if asked in RAW else build(modules)(prog_name="podwire", standalone_mode=False)
    except PodwireError as error:
        print(f"podwire: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except TyperException as error:
        sys.exit(_wrong_use(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; nobody is left to tell, and nothing more may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(status if isinstance(status, int) else 0)


def _raw(command: str) -> int:
    module = importlib.import_module(f"podwire.cli.{COMMANDS[command]}")
    status: int = module.main(sys.argv[sys.argv.index(command) + 1 :])
    return status


def _wrong_use(error: TyperException) -> int:
    """Say what is wrong with the command line in one line; help instead where a command was named without anything."""
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help(), file=sys.stderr)
    else:
        path = context.command_path if context is not None else "podwire"
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        print(f"podwire: {message} ({path} --help tells more)".replace("\n", " "), file=sys.stderr)
    return int(getattr(error, "exit_code", 2))
