"""The kube-proxy process: which threads there are, and how they meet.

    reflector-services, reflector-endpointslices ──► Changes ──┐ wake
    reflector-nodes (this node only) ──► Health, settings ─────┴─► sync ──► iptables-restore, nft
    reflector-servicecidrs (nftables mode) ──► settings
    sockets: NodePort holders, healthCheckNodePorts            health: /healthz /livez, /metrics

Nothing here is undone at the end: the rules stay when the process is stopped or killed, traffic goes on as it was, and
the next start takes them over. `cleanup` is what takes them away.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, TypeVar

from podwire.daemon import health as pages
from podwire.daemon.runner import BoundedFrequencyRunner
from podwire.daemon.supervision import Supervisor
from podwire.errors import ApiError, MissingCapability, PodwireError
from podwire.kernel.rtnl import Rtnl
from podwire.kube.client import Client
from podwire.kube.events import EventRecorder
from podwire.kube.kinds import NODES
from podwire.kube.reflector import Reflector
from podwire.kubeproxy import modes, prepare
from podwire.kubeproxy.changes import Changes
from podwire.kubeproxy.exposure import Exposure
from podwire.kubeproxy.health import Health
from podwire.kubeproxy.lb_health import LoadBalancerHealth
from podwire.kubeproxy.metrics import Metrics
from podwire.kubeproxy.nodeports import REASON, NodePortHolder, Owner
from podwire.kubeproxy.objects import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES
from podwire.kubeproxy.ports import LABEL_SELECTOR
from podwire.kubeproxy.proxier import FamilyProxy, Proxier, World
from podwire.kubeproxy.reservation import PortReservation, undo_reservation
from podwire.kubeproxy.settings import ZONE_LABEL, Settings, resolve
from podwire.kubeproxy.sockets import SocketLoop
from podwire.kubeproxy.state import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kube.objects import Node
    from podwire.kubeproxy.config import Config
    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.modes import Mode

T = TypeVar("T")
SWITCH_SECONDS = 0.0005
POD_CIDR_SECONDS = 300.0  # pkg/proxy's cmd/kube-proxy/app/server_linux.go: waitForPodCIDR
log = logging.getLogger("podwire.kubeproxy")


def host_name(config: Config) -> str:
    """The name of this node's Node object: as configured, else the host name in lower case."""
    return config.hostname_override.strip().lower() or socket.gethostname().strip().lower()


def interface_ips() -> frozenset[str]:
    """All addresses of this network namespace."""
    with Rtnl() as rtnl:
        return frozenset(address.ip for address in rtnl.addresses())


class KubeProxy:
    """All parts of one process, put together; `run` returns when `stop` is set."""

    def __init__(self, config: Config, client: Client, mode: Mode, stop: threading.Event) -> None:
        self._config = config
        self._client = client
        self._mode = mode
        self._stop = stop
        self._name = host_name(config)
        self._changes = Changes()
        self._metrics = Metrics()
        self._events = EventRecorder(client, "kube-proxy", self._name)
        self._health = Health((family.name for family in mode.families), config.sync_period)
        self._loop = SocketLoop()
        self._forward_invalid = False
        self._pod_cidrs: tuple[str, ...] = ()  # as first seen, in mode NodeCIDR
        self._said_waiting = False
        self._status = 0
        self._other_mode_cleaned = False
        self._listed: set[str] = set()
        self._services = Reflector(
            client,
            SERVICES,
            stop=stop,
            label_selector=LABEL_SELECTOR,
            on_change=lambda key, old, new: self._changed(self._changes.service, key, old, new),
            on_sync=lambda: self._list_complete("services"),
        )
        self._slices = Reflector(
            client,
            ENDPOINT_SLICES,
            stop=stop,
            label_selector=LABEL_SELECTOR,
            on_change=lambda key, old, new: self._changed(self._changes.slice, key, old, new),
            on_sync=lambda: self._list_complete("slices"),
        )
        self._nodes = Reflector(
            client,
            NODES,
            stop=stop,
            field_selector=f"metadata.name={self._name}",
            on_change=self._node_changed,
            on_sync=lambda: self._list_complete("node"),
        )
        self._service_cidrs = Reflector(
            client, SERVICE_CIDRS, stop=stop, on_change=lambda *_: self._wake(), on_sync=self._wake
        )
        states = [State(family, self._name) for family in mode.families]
        self._families = tuple(FamilyProxy(state, mode.sync(state)) for state in states)
        reservation = config.node_port_reservation
        exposure = Exposure(
            NodePortHolder(self._loop, self._metrics, self._not_held) if reservation in ("bind", "both") else None,
            PortReservation(config.state_dir) if reservation in ("sysctl", "both") else None,
            LoadBalancerHealth(self._loop, self._health.healthy),
        )
        proxier = Proxier(
            self._families,
            self._changes,
            World(self._is_ready, self._settings, interface_ips),
            self._health,
            self._metrics,
            exposure,
        )
        self._runner = BoundedFrequencyRunner(
            lambda: self._run(proxier), config.min_sync_period, config.sync_period, config.sync_period
        )

    def run(self) -> int:
        """Serve until `stop`; the exit status."""
        supervisor = Supervisor(self._stop)
        self._prepare()
        servers = []
        if self._config.healthz_bind_address:
            servers.append(
                pages.serve(self._config.healthz_bind_address, {"/healthz": self._healthz, "/livez": self._livez})
            )
        if self._config.metrics_bind_address:
            servers.append(
                pages.serve(
                    self._config.metrics_bind_address,
                    {"/metrics": self._metrics_page, "/proxyMode": lambda: self._mode.name},
                )
            )
        self._loop.start()
        for reflector in (self._services, self._slices, self._nodes):
            reflector.start()
        if self._mode.name == "nftables":
            threading.Thread(target=self._follow_service_cidrs, name="service-cidrs", daemon=True).start()
        if self._config.detect_local_mode == "NodeCIDR":
            threading.Thread(target=self._wait_for_pod_cidrs, name="pod-cidrs", daemon=True).start()
        thread = self._runner.start()
        self._stop.wait()
        self._runner.stop()
        thread.join(1.0)  # a restore that is under way finishes by itself: the rules are whole either way
        for server in servers:
            server.close()
        supervisor.close()
        return supervisor.status or self._status

    def _prepare(self) -> None:
        wants_localhost = any(
            resolve(self._config, family.state.family, self._name, None, ()).localhost_node_ports
            for family in self._families
        )
        prepare.prepare(self._config, localhost_node_ports=wants_localhost)
        if self._config.node_port_reservation in ("bind", "none"):
            undo_reservation(self._config.state_dir)  # an earlier run may have made one
        self._forward_invalid = prepare.tracker_is_liberal()

    # What wakes the sync.

    def _changed(self, put: Callable[[str, T | None, T | None], None], key: str, old: T | None, new: T | None) -> None:
        put(key, old, new)
        self._wake()

    def _list_complete(self, what: str) -> None:
        self._listed.add(what)
        self._wake()

    def _node_changed(self, _key: str, old: Node | None, new: Node | None) -> None:
        self._health.node_changed(new)
        if self._config.detect_local_mode == "NodeCIDR":
            self._follow_pod_cidrs(new)
        if _relevant(old) != _relevant(new):
            self._wake()

    def _follow_pod_cidrs(self, node: Node | None) -> None:
        """End when the podCIDRs that rules are made with are others: what was local traffic is not any more."""
        found = node.pod_cidrs if node else ()
        if not found:
            return
        if self._pod_cidrs and found != self._pod_cidrs:
            fields = {"were": ",".join(self._pod_cidrs), "are": ",".join(found)}
            self._end("the node's podCIDRs changed, ending to start anew (detectLocalMode is NodeCIDR)", **fields)
        self._pod_cidrs = found

    def _wait_for_pod_cidrs(self) -> None:
        """End when the node has not been given a podCIDR after a while; whoever starts us then starts us again."""
        if not self._stop.wait(POD_CIDR_SECONDS) and not self._pod_cidrs:
            self._end("the node has no podCIDR (detectLocalMode is NodeCIDR)", waited=f"{POD_CIDR_SECONDS:.0f}s")

    def _end(self, why: str, **fields: str) -> None:
        log.error("%s", why, extra={"kv": fields})
        self._status = 1
        self._stop.set()

    def _wake(self) -> None:
        # A run before the lists are complete would do nothing but hold up the one that comes when they are.
        if self._is_ready():
            self._health.queued()
            for family in self._families:
                self._metrics.last_queued.labels(family.name).set(time.time())
            self._runner.run()

    # What a run asks.

    def _is_ready(self) -> bool:
        return self._listed >= {"services", "slices", "node"}

    def _node(self) -> Node | None:
        return self._nodes.store.get(self._name)

    def _settings(self, family: Family) -> Settings | None:
        node = self._node()
        if self._config.detect_local_mode == "NodeCIDR" and not self._pod_cidrs:
            if not self._said_waiting:
                log.warning("waiting for the node's podCIDR: detectLocalMode is NodeCIDR")
            self._said_waiting = True
            return None
        ips = interface_ips() if self._config.node_port_prefixes else ()
        return resolve(
            self._config,
            family,
            self._name,
            node,
            ips,
            forward_invalid=self._forward_invalid,
            service_cidrs=[prefix for one in self._service_cidrs.objects() for prefix in one.spec.cidrs],
        )

    def _run(self, proxier: Proxier) -> None:
        proxier.run()
        if not self._other_mode_cleaned and all(family.settings is not None for family in self._families):
            self._other_mode_cleaned = True
            # Only now: until our rules were in place theirs served.
            self._mode.remove_other()
            # What the first lists made stays: the garbage collector need not walk it again and again, holding up all threads.
            gc.freeze()

    def _follow_service_cidrs(self) -> None:
        """Follow the ServiceCIDRs where the API has them (from Kubernetes 1.33 on by default) and lets us see them."""
        try:
            self._client.list(SERVICE_CIDRS)
        except ApiError as error:
            if error.code in (403, 404):
                log.info(
                    "no ServiceCIDRs: addresses that no Service has are not dropped",
                    extra={"kv": {"error": str(error)}},
                )
                return
        except PodwireError:
            pass  # the reflector tries again
        self._service_cidrs.start()

    # What follows.

    def _not_held(self, owner: Owner, text: str) -> None:
        service = self._services.store.get(owner.service)
        if service is not None:
            self._events.event(service, "Warning", REASON, text)

    def _healthz(self) -> pages.Answer:
        answer = self._health.page(with_node=True)
        self._metrics.healthz.labels(str(answer.status)).inc()
        return answer

    def _livez(self) -> pages.Answer:
        answer = self._health.page(with_node=False)
        self._metrics.livez.labels(str(answer.status)).inc()
        return answer

    def _metrics_page(self) -> pages.Answer:
        services, slices = self._changes.pending()
        for family in self._families:
            self._metrics.service_pending.labels(family.name).set(services)
            self._metrics.endpoint_pending.labels(family.name).set(slices)
            for table, count in family.sync.rule_counts().items():
                self._metrics.rules.labels(family.name, table).set(count)
            for policy, count in family.sync.ports_without_local_endpoints().items():
                self._metrics.no_local.labels(family.name, policy).set(count)
        return pages.Answer(200, self._metrics.text(), "text/plain; version=0.0.4; charset=utf-8")


def _relevant(node: Node | None) -> object:
    """What rules depend on, of a Node; its heartbeats must not cause syncs."""
    if node is None:
        return None
    return node.metadata.labels.get(ZONE_LABEL), node.pod_cidrs, node.status.addresses


def cleanup(config: Config) -> int:
    """Take away all rules of kube-proxy, ours and the real one's, in both modes, and our reservation; the exit status."""
    removed = modes.cleanup()
    return 0 if undo_reservation(config.state_dir) and removed else 1


def _name_process(name: str) -> None:
    """What ps, top and lsof call this process: who looks for the holder of a port should not find "python3"."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write(name)


def run(config: Config, stop: threading.Event) -> int:
    """Run kube-proxy until `stop` is set; the exit status. Raises UsageError, MissingCapability."""
    config.check()
    if os.geteuid() != 0:
        raise MissingCapability("running kube-proxy", "", "not root", "packet filter rules are written by root only")
    _name_process("kube-proxy")
    # While a sync works through 10,000 Services, a thread that answers /healthz waits this long at each of its steps.
    sys.setswitchinterval(SWITCH_SECONDS)
    mode = modes.choose(config)
    client = Client.from_kubeconfig(config.kubeconfig or None)
    fields = {
        "node": host_name(config),
        "mode": mode.name,
        "backend": mode.backend,
        "families": ",".join(family.name for family in mode.families),
        "server": client.server,
    }
    log.info("started", extra={"kv": fields})
    try:
        return KubeProxy(config, client, mode, stop).run()
    finally:
        client.close()
