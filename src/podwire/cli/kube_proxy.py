"""podwire kube-proxy: the flags of the real one, and podwire's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from podwire.kubeproxy.config import Config


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("kube-proxy")(kube_proxy)


def kube_proxy(
    config: Annotated[str | None, typer.Option(help="A KubeProxyConfiguration file; flags given win over it.")] = None,
    kubeconfig: Annotated[str | None, typer.Option(help="How to reach the API server.")] = None,
    hostname_override: Annotated[str | None, typer.Option(help="Name of this node's Node object.")] = None,
    cluster_cidr: Annotated[
        str | None,
        typer.Option(help="The pods' prefixes (one a family, comma-separated): what counts as local traffic."),
    ] = None,
    proxy_mode: Annotated[str | None, typer.Option(help="iptables or nftables.")] = None,
    detect_local_mode: Annotated[
        str | None, typer.Option(help="ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.")
    ] = None,
    pod_bridge_interface: Annotated[str | None, typer.Option(help="For BridgeInterface.")] = None,
    pod_interface_name_prefix: Annotated[str | None, typer.Option(help="For InterfaceNamePrefix.")] = None,
    masquerade_all: Annotated[bool | None, typer.Option(help="Masquerade all traffic to clusterIPs.")] = None,
    iptables_masquerade_bit: Annotated[int | None, typer.Option(help="Bit of the packet mark (0 to 31).")] = None,
    iptables_min_sync_period: Annotated[str | None, typer.Option(help="Shortest time between two syncs.")] = None,
    iptables_sync_period: Annotated[str | None, typer.Option(help="Longest time between two checks.")] = None,
    iptables_localhost_nodeports: Annotated[
        bool | None, typer.Option(help="NodePorts on 127.0.0.1 too (sets route_localnet).")
    ] = None,
    nodeport_addresses: Annotated[
        str | None, typer.Option(help="Prefixes of node addresses that take NodePort traffic, or `primary`.")
    ] = None,
    bind_address: Annotated[str | None, typer.Option(help="The node's own IP, if it is not 0.0.0.0.")] = None,
    healthz_bind_address: Annotated[str | None, typer.Option(help="HOST:PORT of /healthz; empty: none.")] = None,
    metrics_bind_address: Annotated[str | None, typer.Option(help="HOST:PORT of /metrics; empty: none.")] = None,
    node_port_reservation: Annotated[
        str | None,
        typer.Option(help="How NodePorts are kept from others: bind (sockets), sysctl (reserved), both or none."),
    ] = None,
    state_dir: Annotated[str | None, typer.Option(help="Where it records what to undo.")] = None,
    write_sysctl_drop_in: Annotated[
        bool,
        typer.Option("--write-sysctl-drop-in", help="Reserve the whole range at every boot: write a file, and end."),
    ] = False,
    sysctl_drop_in: Annotated[str, typer.Option(help="That file.")] = "/etc/sysctl.d/99-podwire-node-ports.conf",
    service_node_port_range: Annotated[str, typer.Option(help="That range, as the API server has it.")] = "30000-32767",
    cleanup: Annotated[bool, typer.Option("--cleanup", help="Take all rules of kube-proxy away, and end.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the rules for --objects as iptables-restore or nft reads them, and end."),
    ] = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff",
            help="Compare the kernel with what the API (or --objects) wants, and end: 0 equal, 1 different, 2 trouble.",
        ),
    ] = False,
    objects: Annotated[list[str] | None, typer.Option(help="File with API objects, for --dry-run and --diff.")] = None,
    family: Annotated[
        str | None, typer.Option(help="ipv4 or ipv6, for --dry-run; the default is ipv4, in nftables mode both.")
    ] = None,
    verbosity: Annotated[int, typer.Option("--v", "-v", help="Log level; from 1 on more is said.")] = 0,
) -> None:
    """Write the packet-filter rules that make Services work on this node."""
    from podwire.daemon import logs
    from podwire.kubeproxy import config as settings

    logs.configure("kube-proxy", verbosity)
    if write_sysctl_drop_in:
        _write_drop_in(sysctl_drop_in, service_node_port_range)
        return
    flags: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "hostname_override": hostname_override,
        "cluster_cidrs": None if cluster_cidr is None else settings.split(cluster_cidr),
        "mode": proxy_mode,
        "detect_local_mode": detect_local_mode,
        "bridge_interface": pod_bridge_interface,
        "interface_name_prefix": pod_interface_name_prefix,
        "masquerade_all": masquerade_all,
        "masquerade_bit": iptables_masquerade_bit,
        "min_sync_period": _seconds("--iptables-min-sync-period", iptables_min_sync_period),
        "sync_period": _seconds("--iptables-sync-period", iptables_sync_period),
        "localhost_node_ports": iptables_localhost_nodeports,
        "node_port_addresses": None if nodeport_addresses is None else settings.split(nodeport_addresses),
        "bind_address": bind_address,
        "healthz_bind_address": healthz_bind_address,
        "metrics_bind_address": metrics_bind_address,
        "node_port_reservation": node_port_reservation,
        "state_dir": state_dir,
    }
    merged = settings.merge(config, flags)
    if dry_run:
        _print_rules(merged, objects or [], family)
    elif diff:
        raise typer.Exit(_print_difference(merged, objects or []))
    elif cleanup:
        from podwire.kubeproxy import daemon

        raise typer.Exit(daemon.cleanup(merged))
    else:
        from podwire.daemon.signals import stop_event
        from podwire.kubeproxy import daemon

        raise typer.Exit(daemon.run(merged, stop_event()))


def _seconds(flag: str, text: str | None) -> float | None:
    from podwire.kubeproxy.config import duration

    return None if text is None else duration(flag, text)


def _write_drop_in(path: str, ports: str) -> None:
    from podwire.kubeproxy import reservation

    reservation.write_drop_in(reservation.port_range(ports), path)
    print(f"{path} reserves {ports} at every boot; sysctl -p {path} does it now")


def _print_difference(config: Config, paths: list[str]) -> int:
    from podwire.errors import PodwireError
    from podwire.kube.client import Client
    from podwire.kubeproxy import difference, dry_run
    from podwire.kubeproxy.daemon import host_name, interface_ips

    node = host_name(config)
    try:
        if paths:
            wanted = dry_run.load(paths)
            for line in wanted.skipped:
                print(f"podwire: left out {line}", file=sys.stderr)
        else:
            client = Client.from_kubeconfig(config.kubeconfig or None)
            try:
                wanted = difference.live(client, node)
            finally:
                client.close()
        lines = difference.differences(wanted, config, node, interface_ips())
    except PodwireError as error:
        print(f"podwire: {error}", file=sys.stderr)
        return 2
    for line in lines:
        print(line)
    return 1 if lines else 0


def _print_rules(config: Config, paths: list[str], family: str | None) -> None:
    from podwire.errors import UsageError
    from podwire.kubeproxy import dry_run
    from podwire.kubeproxy.daemon import host_name, interface_ips
    from podwire.kubeproxy.family import IPV4, IPV6

    by_name = {"ipv4": (IPV4,), "ipv6": (IPV6,)}
    families = (IPV4, IPV6) if config.mode == "nftables" else (IPV4,)
    if family is not None:
        if family.lower() not in by_name:
            raise UsageError("--family", repr(family), "must be ipv4 or ipv6")
        families = by_name[family.lower()]
    if not paths:
        raise UsageError(
            "--dry-run", "", "needs --objects FILE", "for example from kubectl get svc,endpointslices -o yaml"
        )
    loaded = dry_run.load(paths)
    for line in loaded.skipped:
        print(f"podwire: left out {line}", file=sys.stderr)
    node, ips = host_name(config), interface_ips()
    for one in families:
        sys.stdout.write(dry_run.render(loaded, config, one, node, ips))
