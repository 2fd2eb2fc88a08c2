"""argparse for the daemons of a node, which do without typer: 2 MB and 60 ms in each of them."""

from __future__ import annotations

import argparse
from typing import NoReturn

from podwire.errors import UsageError


class _Formatter(argparse.HelpFormatter):
    """Shows defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.option_strings and action.default not in (None, "", argparse.SUPPRESS)
        return f"{action.help} (default: %(default)s)" if shown else action.help


class Parser(argparse.ArgumentParser):
    """Flags in full only, `--flag value` or `--flag=value`; wrong use is a UsageError, so one line."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"podwire {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )

    def error(self, message: str) -> NoReturn:
        """What argparse has to say, in the form of everything else."""
        raise UsageError("reading the command line of", self.prog, message, f"{self.prog} --help tells more")
