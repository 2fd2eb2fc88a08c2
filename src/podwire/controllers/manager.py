"""The controller manager: one process, one set of informers, one work queue and thread a controller.

    informers ──changes──► work queues ──keys──► sync (compare, then write) ──► API ──► informers …

Controllers are chosen by --controllers as in kube-controller-manager: a list of names, `*` for all, `-name` without one; the
names Kubernetes 1.28 and later use are understood too. One instance runs at a time by arrangement of whoever starts it;
there is no leader election. A second instance would do no lasting harm (every write is conditional or repeatable) but nodeipam
could give one CIDR twice, as two of the real one could.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from podwire.controllers.controller import Context, Controller
from podwire.daemon import health
from podwire.errors import UsageError
from podwire.kube.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("podwire.controllers")

NAMES = ("nodeipam", "scheduler", "deployment", "replicaset", "endpointslice", "gc", "podgc", "route", "nodelifecycle")
ALIASES = {
    "node-ipam-controller": "nodeipam",
    "deployment-controller": "deployment",
    "replicaset-controller": "replicaset",
    "endpointslice-controller": "endpointslice",
    "endpointslices": "endpointslice",
    "garbage-collector-controller": "gc",
    "garbagecollector": "gc",
    "pod-garbage-collector-controller": "podgc",
    "node-route-controller": "route",
    "node-lifecycle-controller": "nodelifecycle",
}
#: What a name brings along: a Deployment without ReplicaSets does nothing, and both collectors collect garbage.
BRINGS = {"deployment": ("replicaset",), "gc": ("podgc",)}


@dataclasses.dataclass(frozen=True)
class Options:
    """The flags, named and defaulting as kube-controller-manager's where it has them."""

    kubeconfig: str | None = None
    """None: in-cluster, then $KUBECONFIG, then ~/.kube/config."""
    controllers: str = "*"
    cluster_cidr: str = ""
    """The range podCIDRs come from; one, or one of each family separated by a comma."""
    service_cluster_ip_range: str = ""
    """Taken out of the cluster range where they overlap."""
    node_cidr_mask_size: int = 0
    """0: 24 for IPv4, 64 for IPv6."""
    node_cidr_mask_size_ipv4: int = 0
    node_cidr_mask_size_ipv6: int = 0
    node_monitor_grace_period: float = 40.0
    """Seconds without a renewed Lease after which a Node is Unknown."""
    pod_gc_quarantine: float = 40.0
    """Seconds a Node must be gone before its pods are deleted (fixed in the real one)."""
    health_bind_address: str = ""
    """HOST:PORT of /healthz, /readyz and /metrics; empty: none."""


def chosen(controllers: str) -> tuple[str, ...]:
    """The controllers to run, in start order; raises UsageError for a name there is not."""
    wanted: set[str] = set()
    without: set[str] = set()
    for word in filter(None, (part.strip() for part in controllers.split(","))):
        if word == "*":
            wanted |= set(NAMES)
            continue
        name = ALIASES.get(word.removeprefix("-"), word.removeprefix("-"))
        if name not in NAMES:
            raise UsageError(
                "reading", f"--controllers={controllers}", f"{word!r} is no controller", f"known: {', '.join(NAMES)}"
            )
        if word.startswith("-"):
            without.add(name)
        else:
            wanted |= {name, *BRINGS.get(name, ())}
    names = tuple(name for name in NAMES if name in wanted - without)
    if not names:
        raise UsageError(
            "reading", f"--controllers={controllers}", "no controller is left", f"known: {', '.join(NAMES)}"
        )
    return names


def factories(options: Options, names: tuple[str, ...]) -> list[Callable[[Context], Controller]]:
    """How to make each controller. Flags are judged here, before anything is connected to."""
    made: dict[str, Callable[[Context], Controller]] = {}
    if "nodeipam" in names:
        from podwire.controllers.nodeipam import NodeIpam, cidr_sets

        sets = cidr_sets(
            options.cluster_cidr,
            options.service_cluster_ip_range,
            options.node_cidr_mask_size,
            options.node_cidr_mask_size_ipv4,
            options.node_cidr_mask_size_ipv6,
        )
        made["nodeipam"] = lambda context: NodeIpam(context, sets)
    if "nodelifecycle" in names:
        from podwire.controllers.nodelifecycle import NodeLifecycle

        made["nodelifecycle"] = lambda context: NodeLifecycle(context, options.node_monitor_grace_period)
    if "podgc" in names:
        from podwire.controllers.podgc import PodGarbageCollector

        made["podgc"] = lambda context: PodGarbageCollector(context, options.pod_gc_quarantine)
    for name in names:
        if name not in made:
            made[name] = _plain(name)
    return [made[name] for name in names]


def _plain(name: str) -> Callable[[Context], Controller]:
    """A controller that needs no flags; only what was chosen is imported."""
    if name == "scheduler":
        from podwire.controllers.scheduler import Scheduler

        return Scheduler
    if name == "deployment":
        from podwire.controllers.deployment import Deployments

        return Deployments
    if name == "replicaset":
        from podwire.controllers.replicaset import ReplicaSets

        return ReplicaSets
    if name == "endpointslice":
        from podwire.controllers.endpointslice import EndpointSlices

        return EndpointSlices
    if name == "gc":
        from podwire.controllers.gc import GarbageCollector

        return GarbageCollector
    from podwire.controllers.routes import Routes

    return Routes


def run(options: Options, stop: threading.Event) -> int:
    """Run until `stop`; raises UsageError for wrong flags and an unreadable kubeconfig."""
    names = chosen(options.controllers)
    makers = factories(options, names)
    client = Client.from_kubeconfig(options.kubeconfig)
    context = Context(client, stop, socket.gethostname())
    controllers = [make(context) for make in makers]
    server = _serve_health(options, context)
    try:
        started = time.monotonic()
        context.start()
        log.info("started", extra={"kv": {"controllers": ",".join(names), "server": client.server}})
        if not context.wait_synced():
            return 0
        log.info("synced", extra={"kv": {"seconds": f"{time.monotonic() - started:.2f}"}})
        _work(controllers, stop)
        log.info("stopped")
    finally:
        stop.set()
        if server is not None:
            server.close()
        client.close()
    return 0


def _work(controllers: list[Controller], stop: threading.Event) -> None:
    threads = []
    for controller in controllers:
        controller.prepare()
        threads.append(threading.Thread(target=controller.run, name=controller.name, daemon=True))
    for thread in threads:
        thread.start()
    stop.wait()
    for controller in controllers:
        controller.queue.shut_down()
    until = time.monotonic() + 1.0
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _serve_health(options: Options, context: Context) -> health.HealthServer | None:
    if not options.health_bind_address:
        return None
    routes: dict[str, health.Route] = {
        "/healthz": lambda: True,
        "/livez": lambda: True,
        "/readyz": health.checks({"informer-sync": context.synced}),
        "/metrics": health.metrics,
    }
    return health.serve(options.health_bind_address, routes)
