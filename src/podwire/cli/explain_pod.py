"""podwire explain pod: how a pod got its address, place by place."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from podwire.cli.sources import Bundles, Files, Kubeconfig, Lab, Nodes  # noqa: TC001 - typer reads annotations
from podwire.errors import UsageError


def add(app: typer.Typer) -> None:
    """Add the subcommand."""
    app.command("pod")(pod)


def pod(
    which: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="The pod; without a namespace, of default.")],
    paths: Files = None,
    node: Nodes = None,
    name: Lab = "lab",
    bundle: Bundles = None,
    kubeconfig: Kubeconfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how a pod got its address: podCIDR, subnet.env, conflist, delegation, reservation, veth pair, routes; and where each was read."""
    from podwire.cli import sources
    from podwire.explain import pod as pods

    namespace, _, pod_name = which.rpartition("/")
    if not pod_name:
        raise UsageError(f"{which} names no pod", hint="NAMESPACE/NAME")
    way = pods.explain(sources.snapshots(paths, node, name, bundle, kubeconfig), namespace or "default", pod_name)
    print(json.dumps(pods.as_json(way), indent=2) if as_json else pods.as_text(way))
