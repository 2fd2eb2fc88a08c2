"""podwire explain packet, and explain check: where a packet goes, and whether packets go where a file says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from podwire.cli import html_output, sources
from podwire.cli.html_output import Html  # noqa: TC001 - typer reads annotations

if TYPE_CHECKING:
    from podwire.explain.picture import Picture

Strings = list[str] | None
NodeAddress = Annotated[Strings, typer.Option("--node-address", metavar="ADDRESS[/LENGTH][@DEV]", help="An address of the node that the input does not tell.", show_default=False)]  # fmt: skip
LocalCidr = Annotated[Strings, typer.Option("--local-cidr", metavar="CIDR", help="Pods of this node are in it.", show_default=False)]  # fmt: skip
Routes = Annotated[Strings, typer.Option("--route", metavar="ROUTE", help="A route as `ip route` prints it: '10.244.2.0/24 via 10.0.0.2 dev eth0'.", show_default=False)]  # fmt: skip
Rules = Annotated[Strings, typer.Option("--rules", metavar="FILE", help="The same as naming the file.", show_default=False)]  # fmt: skip
Table = Annotated[str, typer.Option("--table", "-t", help="Which table an `iptables -S` or `-L` text without its name shows.", show_default=False)]  # fmt: skip
Recent = Annotated[Strings, typer.Option("--recent", metavar="LIST=ADDRESS", help="The address is in this list of the `recent` match; lists that are not named are empty then.", show_default=False)]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="As JSON (docs/explain.md tells the schema).")]


def add(app: typer.Typer) -> None:
    """Add the subcommands."""
    app.command("packet")(packet)
    app.command("check")(check)


def packet(
    paths: sources.Files = None,
    source: Annotated[str, typer.Option("--from", metavar="SRC", help="external, ADDRESS[:PORT], node, node/NAME or pod/NS/NAME.", show_default=False)] = "",
    to: Annotated[str, typer.Option("--to", metavar="DST", help="DST:PORT/PROTOCOL; DST may be node/NAME, pod/NS/NAME or svc/NS/NAME too.", show_default=False)] = "",
    node: sources.Nodes = None,
    name: sources.Lab = "lab",
    bundle: sources.Bundles = None,
    rules: Rules = None,
    kubeconfig: sources.Kubeconfig = None,
    in_interface: Annotated[str, typer.Option("--in-interface", "-i", help="Where it comes in ('local': the node makes it).", show_default=False)] = "",
    node_address: NodeAddress = None,
    local_cidr: LocalCidr = None,
    route: Routes = None,
    ctstate: Annotated[str, typer.Option(help="What conntrack calls it: NEW, ESTABLISHED, RELATED, INVALID, UNTRACKED.", show_default="NEW")] = "",
    mark: Annotated[str, typer.Option(help="The packet's mark where it starts.")] = "0",
    tcp_flags: Annotated[str, typer.Option(help="TCP flags that are set, as SYN,ACK.", show_default=False)] = "",
    uid: Annotated[int | None, typer.Option(help="User of the process that sends, on this node.", show_default=False)] = None,
    gid: Annotated[int | None, typer.Option(help="Its group.", show_default=False)] = None,
    recent: Recent = None,
    table: Table = "",
    as_json: Json = False,
    batch: Annotated[str, typer.Option("--batch", metavar="FILE|-", help="One JSON question a line, one JSON answer a line.", show_default=False)] = "",
    html: Html = "",
) -> int:  # fmt: skip
    """Where a packet goes: every rule it meets, every end it may come to.

    The first line is the answer in one sentence. What the input does not tell is said, and both ways are followed.
    """
    from podwire.errors import UsageError
    from podwire.explain.batch import answers, number, opened
    from podwire.explain.question import Question

    html_output.check(html, as_json=as_json or bool(batch))
    found = pictures(
        paths, node, name, bundle, rules, kubeconfig, given(node_address, local_cidr, route, recent, table)
    )
    if batch:
        with opened(batch) as questions:
            return answers(questions, found, sys.stdout, in_interface)
    if not source or not to:
        raise UsageError(
            "explain packet", answer="--from and --to are needed", hint="--from external --to 10.0.0.1:30450/tcp"
        )
    question = Question(source, to, in_interface, number("--mark", mark), ctstate, tcp_flags, uid, gid)
    return show(question, found, as_json=as_json, html=html)


def show(question: object, found: list[Picture], *, as_json: bool, html: str = "") -> int:
    """Answer one question on the terminal."""
    import json

    from podwire.explain.batch import starting_at
    from podwire.explain.explain import explain
    from podwire.explain.report import lines

    here = starting_at(question, found)  # type: ignore[arg-type]  # a Question; imported late
    answer = explain(question, here, found)  # type: ignore[arg-type]  # as above
    if html:
        from podwire.explain.html_reports import packet_page

        html_output.write(html, packet_page(answer), answer.sentence)
    elif as_json:
        typer.echo(json.dumps(answer.as_json(), indent=2, ensure_ascii=False))
    else:
        for line in lines(answer):
            typer.echo(line)
    return 0


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Questions with what is expected, one JSON object a line ('-': stdin).")],
    paths: sources.Files = None,
    node: sources.Nodes = None,
    name: sources.Lab = "lab",
    bundle: sources.Bundles = None,
    rules: Rules = None,
    kubeconfig: sources.Kubeconfig = None,
    in_interface: Annotated[str, typer.Option("--in-interface", "-i", help="Where packets come in whose line does not say.", show_default=False)] = "",
    node_address: NodeAddress = None,
    local_cidr: LocalCidr = None,
    route: Routes = None,
    recent: Recent = None,
    table: Table = "",
) -> int:  # fmt: skip
    """Whether packets go where a file says: a report, and exit status 0 (all do), 1 (some do not) or 2 (wrong input)."""
    from podwire.explain.batch import checked, opened

    found = pictures(
        paths, node, name, bundle, rules, kubeconfig, given(node_address, local_cidr, route, recent, table)
    )
    with opened(file) as questions:
        return checked(questions, found, sys.stdout, in_interface)


def given(addresses: Strings, cidrs: Strings, routes: Strings, recent: Strings = None, table: str = "") -> object:
    """What the command line supplies, as a Given."""
    from podwire.errors import UsageError
    from podwire.explain.picture import Given

    lists: dict[str, set[str]] = {}
    for text in recent or ():
        name, equals, address = text.partition("=")
        if not equals:
            raise UsageError("--recent", text, "a list and an address are needed", "--recent KUBE-SEP-X=10.0.0.1")
        lists.setdefault(name, set()).add(address)
    return Given(list(addresses or ()), list(cidrs or ()), list(routes or ()), lists, table)


def pictures(
    paths: Strings, nodes: Strings, lab: str, bundles: Strings, rules: Strings, kubeconfig: str | None, supplied: object
) -> list[Picture]:
    """The nodes to walk on, the one to begin with first."""
    from podwire.explain.picture import picture

    read = sources.snapshots([*(paths or ()), *(rules or ())], nodes, lab, bundles, kubeconfig)
    return [picture(one, supplied if at == 0 else None) for at, one in enumerate(read)]  # type: ignore[arg-type]  # a Given
