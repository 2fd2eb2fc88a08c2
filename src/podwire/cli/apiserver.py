"""podwire apiserver: the embedded Kubernetes API, with kube-apiserver's flags where it has them."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("apiserver")(apiserver)


def apiserver(
    data_dir: str = typer.Option(..., help="Folder for the objects, certificates and the token (made, 0700)."),
    bind_address: str = typer.Option("0.0.0.0", help="Address to listen on."),
    secure_port: int = typer.Option(6443, help="Port to listen on (HTTPS)."),
    advertise_address: str = typer.Option(
        "", help="Address clients use; default: the bind address, or the machine's own."
    ),
    service_cluster_ip_range: str = typer.Option(
        "10.96.0.0/16", help="Prefix for cluster IPs; one more of the other family may follow a comma."
    ),
    service_node_port_range: str = typer.Option("30000-32767", help="Ports for NodePort Services."),
    kubeconfig_out: str = typer.Option("", help="Write an admin's kubeconfig here (0600) once the server listens."),
    event_ttl: int = typer.Option(3600, help="Seconds after which Events go; 0: never."),
    verbosity: int = typer.Option(0, "--verbosity", "-v", help="1: log refused requests."),
) -> None:
    """Serve the Kubernetes API from a folder (SQLite); no etcd, no other component needed."""
    from podwire.apiserver.server import Options, run
    from podwire.daemon.signals import stop_event

    options = Options(
        data_dir=data_dir,
        bind_address=bind_address,
        secure_port=secure_port,
        advertise_address=advertise_address,
        service_cluster_ip_range=service_cluster_ip_range,
        service_node_port_range=service_node_port_range,
        kubeconfig_out=kubeconfig_out,
        event_ttl=event_ttl,
        verbosity=verbosity,
    )
    raise typer.Exit(run(options, stop_event()))
