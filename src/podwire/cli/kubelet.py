"""podwire kubelet: runs the pods that are bound to a node. It reads its command line itself (see `arguments`)."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import typer


def register(app: typer.Typer) -> None:
    """Add the command to typer's list."""
    import typer

    def kubelet(arguments: list[str] = typer.Argument(None, metavar="[FLAG]...")) -> None:  # noqa: B008 - typer's way
        """Register the node and run the pods bound to it, through a CRI runtime."""
        raise typer.Exit(main(arguments or []))

    app.command("kubelet", context_settings={"ignore_unknown_options": True, "help_option_names": []})(kubelet)


def main(arguments: Sequence[str]) -> int:
    """Run the kubelet with these arguments; its exit status. Raises PodwireError."""
    from podwire.cli.arguments import Parser

    parser = Parser("kubelet", "Register the node and run the pods bound to it, through a CRI runtime.")
    add = parser.add_argument
    add("--kubeconfig", help="how to reach the API; without it in-cluster, $KUBECONFIG, ~/.kube/config")
    add("--hostname-override", default=os.uname().nodename.lower(), help="the node's name")
    add("--node-ip", required=True, help="the node's address; two, with a comma, for both families")
    add("--container-runtime-endpoint", default="unix:///run/podwire/cri.sock", help="the runtime's CRI socket")
    add("--node-labels", default="", help="more labels for the Node: key=value,key=value")
    add("--cluster-dns", default="", help="addresses of the cluster's DNS, with commas")
    add("--cluster-domain", default="", help="the cluster's domain, for search lists")
    add("--pod-logs-dir", default="/run/podwire/pods", help="where containers write their logs")
    add("--v", type=int, default=0, help="1 logs more")
    flags = parser.parse_args(arguments)
    settings = {
        "kubeconfig": flags.kubeconfig,
        "hostname_override": node_name(flags.hostname_override),
        "node_ip": _addresses("--node-ip", flags.node_ip),
        "container_runtime_endpoint": flags.container_runtime_endpoint,
        "node_labels": _labels(flags.node_labels),
        "cluster_dns": _addresses("--cluster-dns", flags.cluster_dns),
        "cluster_domain": flags.cluster_domain.strip("."),
        "pod_logs_dir": flags.pod_logs_dir.rstrip("/"),
    }

    from podwire.daemon import logs
    from podwire.daemon.signals import stop_event
    from podwire.kubelet.daemon import Options, run

    logs.configure("kubelet", flags.v)
    return run(Options(**settings), stop_event())


def node_name(name: str) -> str:
    """A node's name is a DNS name: small letters, digits, dashes and dots. UsageError."""
    parts = name.split(".")
    good = all(
        0 < len(part) <= 63
        and part.isascii()
        and part.replace("-", "").isalnum()
        and part == part.lower()
        and part[0] != "-" != part[-1]
        for part in parts
    )
    if not good or len(name) > 253:
        raise UsageError("reading", f"--hostname-override {name}", "a node's name is a DNS name, like node-1")
    return name


def _addresses(flag: str, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for one in found:
        try:
            socket.inet_pton(socket.AF_INET6 if ":" in one else socket.AF_INET, one)
        except OSError:
            raise UsageError("reading", f"{flag} {text}", f"{one} is not an IP address") from None
    return found


def _labels(text: str) -> dict[str, str]:
    found = {}
    for part in (part.strip() for part in text.split(",")):
        name, equals, value = part.partition("=")
        if part and not (name and equals):
            raise UsageError("reading", f"--node-labels {text}", "expected key=value,key=value")
        if part:
            found[name] = value
    return found
