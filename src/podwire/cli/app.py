"""The typer application: subcommands put together, and wrong use said in one line."""

from __future__ import annotations

import importlib
import sys

import typer
from typer.exceptions import TyperException


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


def run(modules: list[str]) -> int:
    """Run the command line with the commands of these modules; the exit status. Raises PodwireError."""
    try:
        # standalone_mode would print usage errors in three lines; here every error is one.
        status = build(modules)(prog_name="podwire", standalone_mode=False)
    except TyperException as error:
        return _wrong_use(error)
    except typer.Abort:
        return 130
    return status if isinstance(status, int) else 0


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
