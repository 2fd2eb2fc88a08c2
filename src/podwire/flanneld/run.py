"""flanneld as a process: what must be right before it begins, the threads it has, and its end.

    main        waits for SIGTERM
    reflector   follows the Nodes, asks for a pass
    monitor     hears of changes in the kernel, asks for a pass
    sync        runs the passes: at once when asked, every few seconds in any case

What cannot get better by waiting (a flag, the configuration, no iptables, no br_netfilter) ends the process at the start
with one line. Everything after that is tried again. SIGTERM takes nothing away: device, routes, rules and subnet.env stay,
pods go on, and the next flanneld finds them as it would have made them.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import TYPE_CHECKING

from podwire.daemon import logs
from podwire.daemon.logs import kv
from podwire.daemon.runner import BoundedFrequencyRunner
from podwire.daemon.supervision import Supervisor
from podwire.errors import MissingCapability, UsageError
from podwire.flanneld import hostgw, netconf, underlay
from podwire.flanneld.agent import Agent
from podwire.flanneld.door import KernelDoor
from podwire.flanneld.enforce import Enforcer
from podwire.flanneld.kubemgr import KubeLeases, node_name
from podwire.flanneld.lease import Annotations
from podwire.kernel import spawn
from podwire.kernel.monitor import ADDRESS, LINK, NEIGHBOUR, ROUTE, Monitor
from podwire.kernel.rtnl import Rtnl
from podwire.kube.client import Client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.daemon.health import HealthServer
    from podwire.flanneld.flags import Options
    from podwire.flanneld.netconf import NetworkConfig

log = logging.getLogger("podwire.flanneld")

BACKENDS = ("vxlan", "host-gw")

GAP_SECONDS = 0.5
RETRY_SECONDS = 2.0
RECHECK_SECONDS = 10.0

_CAP_NET_ADMIN = 12  # linux/capability.h


def run(options: Options, stop: threading.Event, environ: Mapping[str, str] | None = None) -> int:
    """Run until `stop` is set; the exit status. Raises PodwireError for what is wrong at the start."""
    environ = os.environ if environ is None else environ
    logs.configure("flanneld", options.v)
    config = _configuration(options)
    annotations = Annotations.under(options.kube_annotation_prefix)
    _capable(config)
    client = Client.from_kubeconfig(options.kubeconfig_file or None, environ)
    supervisor = Supervisor(stop)
    try:
        leases = KubeLeases(client, node_name(client, environ), stop)
        with Rtnl() as rtnl:
            way = underlay.choose(underlay.look(rtnl, options.iface_can_reach), options, config.families(), {})
            if config.backend == "host-gw":
                hostgw.check(way)
            kv(
                log,
                logging.INFO,
                "starting",
                node=leases.node,
                backend=config.backend,
                interface=way.device,
                mtu=way.mtu,
            )
            enforcer = Enforcer(config, options)
            enforcer.clean()
            look = functools.partial(underlay.look, rtnl, options.iface_can_reach)
            _work(Agent(config, options, annotations, leases, KernelDoor(rtnl), enforcer, look), leases, options, stop)
    finally:
        client.close()
        supervisor.close()
    log.info("stopped; device, routes and rules stay")
    return supervisor.status


def _work(agent: Agent, leases: KubeLeases, options: Options, stop: threading.Event) -> None:
    """Run the passes until `stop`."""
    monitor = Monitor(LINK | NEIGHBOUR | ADDRESS | ROUTE)
    runner = BoundedFrequencyRunner(
        agent.sync, GAP_SECONDS, RETRY_SECONDS, min(RECHECK_SECONDS, float(options.iptables_resync))
    )

    def listen() -> None:
        while not stop.is_set():
            if any(agent.concerns(change) for change in monitor.wait()):
                runner.run()

    health = _health(options, agent)
    passes = runner.start()
    leases.start(runner.run)
    # A daemon thread that sleeps in the kernel until something changes; it ends with the process.
    threading.Thread(target=listen, name="monitor", daemon=True).start()
    stop.wait()
    runner.stop()
    passes.join(5)
    if health is not None:
        health.close()


def _configuration(options: Options) -> NetworkConfig:
    if not options.kube_subnet_mgr:
        raise UsageError(
            "flag",
            "--kube-subnet-mgr",
            "is not given, and leases in etcd are not supported yet",
            "give --kube-subnet-mgr",
        )
    config = netconf.load(options.net_config_path)
    if config.backend not in BACKENDS:
        raise UsageError(
            "reading",
            options.net_config_path,
            f'backend "{config.backend}" is not supported yet',
            f"supported are {' and '.join(BACKENDS)}",
        )
    for key in config.ignored:
        kv(log, logging.WARNING, "unknown key in the network configuration", key=key, path=options.net_config_path)
    return config


def _capable(config: NetworkConfig) -> None:
    """Raise MissingCapability for what this machine lacks."""
    if not _has_net_admin():
        raise MissingCapability("running flanneld", answer="CAP_NET_ADMIN is missing", hint="run it as root")
    for program in ("nft",) if config.nftables else ("iptables", "iptables-restore"):
        if spawn.find(program) is None:
            raise MissingCapability("running flanneld", answer=f"there is no {program}", hint=f"install {program}")
    if config.nftables:
        return
    # Without it the packets of two pods on one bridge pass by the rules of iptables, and Services fail between them.
    for network in config.networks():
        setting = f"/proc/sys/net/bridge/bridge-nf-call-{'iptables' if network.version == 4 else 'ip6tables'}"
        if not os.path.exists(setting):
            raise MissingCapability(
                "running flanneld", answer="the kernel module br_netfilter is not loaded", hint="modprobe br_netfilter"
            )


def _has_net_admin() -> bool:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    return False


def _health(options: Options, agent: Agent) -> HealthServer | None:
    if not options.healthz_port:
        return None
    from podwire.daemon import health

    host = f"[{options.healthz_ip}]" if ":" in options.healthz_ip else options.healthz_ip
    return health.serve(
        f"{host}:{options.healthz_port}",
        {
            "/healthz": lambda: "flanneld is running",
            "/readyz": lambda: "flanneld is ready" if agent.ready else (503, "flanneld is not ready yet"),
        },
    )
