"""podwire explain service, explain port: a Service on this node, and who has a port of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from podwire.cli import html_output, sources
from podwire.cli.explain_packet import Json, LocalCidr, NodeAddress, Routes, Rules, Table, given, pictures
from podwire.cli.html_output import Html  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Iterable


def add(app: typer.Typer) -> None:
    """Add the subcommands."""
    app.command("service")(service)
    app.command("port")(port)


def service(
    which: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The Service; without a namespace, of default.")],
    paths: sources.Files = None,
    node: sources.Nodes = None,
    name: sources.Lab = "lab",
    bundle: sources.Bundles = None,
    rules: Rules = None,
    kubeconfig: sources.Kubeconfig = None,
    node_address: NodeAddress = None,
    local_cidr: LocalCidr = None,
    route: Routes = None,
    table: Table = "",
    as_json: Json = False,
    html: Html = "",
) -> int:  # fmt: skip
    """A Service on this node: its frontends, endpoints, policies, the chains that implement it, and what becomes of its clients."""
    from podwire.explain.render_text import service_lines
    from podwire.explain.service import report

    html_output.check(html, as_json=as_json)
    found = pictures(paths, node, name, bundle, rules, kubeconfig, given(node_address, local_cidr, route, None, table))
    made = report(which, found[0], found)
    if html:
        from podwire.explain.html_reports import service_page
        from podwire.explain.rule_graph import Graph

        html_output.write(html, service_page(made, Graph(found[0].ruleset)), made.sentence)
        return 0
    _print(json.dumps(made.as_json(), indent=2, ensure_ascii=False).splitlines() if as_json else service_lines(made))
    return 0


def port(
    which: Annotated[str, typer.Argument(metavar="PORT[/PROTOCOL]", help="A port of this node; without a protocol, each that something has it in.")],
    paths: sources.Files = None,
    node: sources.Nodes = None,
    name: sources.Lab = "lab",
    bundle: sources.Bundles = None,
    rules: Rules = None,
    kubeconfig: sources.Kubeconfig = None,
    node_address: NodeAddress = None,
    local_cidr: LocalCidr = None,
    route: Routes = None,
    table: Table = "",
    as_json: Json = False,
    html: Html = "",
) -> int:  # fmt: skip
    """Who has a port of this node: a process that listens, or the rules; and what becomes of external, local and loopback clients."""
    from podwire.explain.port import parse, reports
    from podwire.explain.render_text import port_lines

    parse(which)  # a wrong one is told before anything is read
    html_output.check(html, as_json=as_json)
    found = pictures(paths, node, name, bundle, rules, kubeconfig, given(node_address, local_cidr, route, None, table))
    made = reports(which, found[0], found)
    if html:
        from podwire.explain.html_reports import port_page

        html_output.write(html, port_page(made), "\n".join([one.sentence for one in made]))
        return 0
    if as_json:
        _print(json.dumps([one.as_json() for one in made], indent=2, ensure_ascii=False).splitlines())
        return 0
    for at, one in enumerate(made):
        _print(["", *port_lines(one)] if at else port_lines(one))
    return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
