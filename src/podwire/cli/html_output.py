"""--html FILE|-: where a page goes."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from podwire.errors import UsageError

Html = Annotated[str, typer.Option("--html", metavar="FILE|-", help="As one HTML page with a picture that can be clicked through; needs no network.", show_default=False)]  # fmt: skip


def check(path: str, *, as_json: bool) -> None:
    """Refuse what cannot be, before anything is read. Raises UsageError."""
    if path and as_json:
        raise UsageError("--html with --json or --batch", answer="one or the other")
    folder = os.path.dirname(path) or "."
    if path not in ("", "-") and not os.path.isdir(folder):
        raise UsageError("--html", path, f"there is no folder {folder}")


def write(path: str, page: str, answer: str) -> None:
    """Write the page; on the terminal, the answer and where the page is. Raises UsageError."""
    if path == "-":
        sys.stdout.write(page)
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise UsageError("--html", path, error.strerror or str(error)) from error
    typer.echo(answer)
    typer.echo(f"The page is in {path}.")
