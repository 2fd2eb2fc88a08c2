"""Kernel settings that kube-proxy makes once, before its first rule.

    net.ipv4.conf.all.route_localnet          1 where NodePorts work on 127.0.0.1 (KUBE-FIREWALL guards what that opens)
    net.netfilter.nf_conntrack_max            max(min, maxPerCore × CPUs), never lowered
    net.netfilter.nf_conntrack_buckets        a quarter of that, never lowered: flows share a bucket of the hash table
    net.netfilter.nf_conntrack_tcp_timeout_…  as configured
    net.netfilter.nf_conntrack_tcp_be_liberal 1 if configured

Some are read-only where kube-proxy runs (the table's size belongs to the first network namespace), some do not exist
until the module is in. Neither keeps Services from working, so each is a warning that says what could not be set.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from podwire.errors import KernelError
from podwire.kernel import sysctl

if TYPE_CHECKING:
    from podwire.kubeproxy.config import Config, Conntrack

log = logging.getLogger("podwire.kubeproxy")

_BE_LIBERAL = "net.netfilter.nf_conntrack_tcp_be_liberal"
_MAX = "net.netfilter.nf_conntrack_max"
_BUCKETS = "net.netfilter.nf_conntrack_buckets"


def wanted(conntrack: Conntrack, cpus: int) -> dict[str, int]:
    """The conntrack settings to make; what is configured as 0 is left alone."""
    most = max(conntrack.min, conntrack.max_per_core * cpus) if conntrack.max_per_core > 0 else 0
    values = {
        _MAX: most,
        _BUCKETS: most // 4,
        "net.netfilter.nf_conntrack_tcp_timeout_established": int(conntrack.tcp_established_timeout),
        "net.netfilter.nf_conntrack_tcp_timeout_close_wait": int(conntrack.tcp_close_wait_timeout),
        _BE_LIBERAL: int(conntrack.tcp_be_liberal),
        "net.netfilter.nf_conntrack_udp_timeout": int(conntrack.udp_timeout),
        "net.netfilter.nf_conntrack_udp_timeout_stream": int(conntrack.udp_stream_timeout),
    }
    return {name: value for name, value in values.items() if value > 0}


def prepare(config: Config, *, localhost_node_ports: bool) -> None:
    """Make the settings. Never raises."""
    for name, value in wanted(config.conntrack, os.cpu_count() or 1).items():
        _ensure(name, value, never_lower=name in (_MAX, _BUCKETS))
    if config.oom_score_adj is not None:
        _set_oom_score(config.oom_score_adj)
    if localhost_node_ports:
        _ensure("net.ipv4.conf.all.route_localnet", 1)


def _ensure(name: str, value: int, *, never_lower: bool = False) -> None:
    try:
        if never_lower and int(sysctl.read(name)) >= value:
            return
        if sysctl.ensure(name, value):
            log.info("kernel setting made", extra={"kv": {"sysctl": name, "value": value}})
    except (KernelError, ValueError) as error:
        log.warning("kernel setting not made", extra={"kv": {"sysctl": name, "value": value, "error": str(error)}})


def _set_oom_score(value: int) -> None:
    """How soon the kernel kills this process when memory runs out (proc(5))."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(value))
    except OSError as error:
        log.warning("oomScoreAdj not set", extra={"kv": {"value": value, "error": error.strerror or str(error)}})


def tracker_is_liberal() -> bool:
    """Whether the tracker takes out-of-window segments for valid; then INVALID packets are not worth dropping."""
    with contextlib.suppress(KernelError):
        return sysctl.read(_BE_LIBERAL) not in ("", "0")
    return False
