"""podwire controller-manager: the control loops of the cluster."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("controller-manager")(controller_manager)


def controller_manager(
    kubeconfig: Annotated[str | None, typer.Option(help="Default: in-cluster, $KUBECONFIG, ~/.kube/config.")] = None,
    controllers: Annotated[str, typer.Option(help="Names separated by commas; * is all, -NAME is without.")] = "*",
    cluster_cidr: Annotated[str, typer.Option(help="Where podCIDRs come from; two for dual stack.")] = "",
    service_cluster_ip_range: Annotated[str, typer.Option(help="Kept out of the podCIDRs.")] = "",
    node_cidr_mask_size: Annotated[int, typer.Option(help="Prefix length of a podCIDR; 24, IPv6 64.")] = 0,
    node_cidr_mask_size_ipv4: Annotated[int, typer.Option(help="The same for IPv4 of a dual-stack cluster.")] = 0,
    node_cidr_mask_size_ipv6: Annotated[int, typer.Option(help="The same for IPv6 of a dual-stack cluster.")] = 0,
    node_monitor_grace_period: Annotated[
        float, typer.Option(help="Seconds without a kubelet's Lease until its Node is Unknown.")
    ] = 40.0,
    health_bind_address: Annotated[str, typer.Option(help="HOST:PORT for /healthz, /readyz, /metrics.")] = "",
    verbosity: Annotated[int, typer.Option("--v", "-v", help="0 or 1.")] = 0,
) -> None:
    """Run node IPAM, scheduler, Deployments, EndpointSlices, garbage collection and routes."""
    from podwire.controllers import manager
    from podwire.daemon import logs, signals
    from podwire.daemon.supervision import Supervisor

    options = manager.Options(
        kubeconfig=kubeconfig,
        controllers=controllers,
        cluster_cidr=cluster_cidr,
        service_cluster_ip_range=service_cluster_ip_range,
        node_cidr_mask_size=node_cidr_mask_size,
        node_cidr_mask_size_ipv4=node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6=node_cidr_mask_size_ipv6,
        node_monitor_grace_period=node_monitor_grace_period,
        health_bind_address=health_bind_address,
    )
    logs.configure("controller-manager", verbosity)
    stop = signals.stop_event()
    supervisor = Supervisor(stop)
    status = manager.run(options, stop)
    raise typer.Exit(status or supervisor.status)
