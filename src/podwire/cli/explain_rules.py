"""podwire explain rules: all rules of a node as one picture."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from podwire.cli import html_output, sources
from podwire.cli.explain_packet import Json, Rules, Table, given, pictures
from podwire.cli.html_output import Html  # noqa: TC001 - as above


def add(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("rules")(rules)


def rules(
    paths: sources.Files = None,
    node: sources.Nodes = None,
    name: sources.Lab = "lab",
    bundle: sources.Bundles = None,
    more: Rules = None,
    kubeconfig: sources.Kubeconfig = None,
    table: Table = "",
    everything: Annotated[bool, typer.Option("--all", help="Cut no long list.")] = False,
    as_json: Json = False,
    html: Html = "",
) -> int:
    """The whole ruleset: hooks, the chains each calls in the kernel's order, the Services and endpoints they lead to."""
    from podwire.explain.render_rules import lines
    from podwire.explain.rules_report import report

    html_output.check(html, as_json=as_json)
    found = pictures(paths, node, name, bundle, more, kubeconfig, given(None, None, None, None, table))
    made = report(found[0])
    if html:
        from podwire.explain.html_reports import rules_page

        html_output.write(html, rules_page(made), made.sentence)
    elif as_json:
        typer.echo(json.dumps(made.as_json(), indent=2, ensure_ascii=False))
    else:
        for line in lines(made, everything=everything):
            typer.echo(line)
    return 0
