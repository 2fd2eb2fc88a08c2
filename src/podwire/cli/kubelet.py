"""podwire kubelet: runs the pods that are bound to a node."""

from __future__ import annotations

import os
import socket

import typer

from podwire.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("kubelet")(kubelet)


def kubelet(
    kubeconfig: str | None = typer.Option(None, help="How to reach the API. [default: in-cluster, then $KUBECONFIG]"),
    hostname_override: str | None = typer.Option(None, help="The node's name. [default: the host name]"),
    node_ip: str = typer.Option(..., help="The node's address; two, with a comma, for both families."),
    container_runtime_endpoint: str = typer.Option("unix:///run/podwire/cri.sock", help="The runtime's CRI socket."),
    node_labels: str = typer.Option("", help="More labels for the Node: key=value,key=value."),
    cluster_dns: str = typer.Option("", help="Addresses of the cluster's DNS, with commas."),
    cluster_domain: str = typer.Option("", help="The cluster's domain, for search lists."),
    pod_logs_dir: str = typer.Option("/run/podwire/pods", help="Where containers write their logs."),
    verbosity: int = typer.Option(0, "--v", help="1: log more."),
) -> None:
    """Register the node and run the pods bound to it, through a CRI runtime."""
    from podwire.daemon import logs
    from podwire.daemon.signals import stop_event
    from podwire.kubelet.daemon import Options, run

    logs.configure("kubelet", verbosity)
    options = Options(
        kubeconfig=kubeconfig,
        hostname_override=node_name(hostname_override or os.uname().nodename.lower()),
        node_ip=_addresses("--node-ip", node_ip),
        container_runtime_endpoint=container_runtime_endpoint,
        node_labels=_labels(node_labels),
        cluster_dns=_addresses("--cluster-dns", cluster_dns),
        cluster_domain=cluster_domain.strip("."),
        pod_logs_dir=pod_logs_dir.rstrip("/"),
    )
    raise typer.Exit(run(options, stop_event()))


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
