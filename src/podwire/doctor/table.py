"""The table of checks, and running it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.doctor import (
    checks_conf,
    checks_conntrack,
    checks_flannel,
    checks_forward,
    checks_hostport,
    checks_ipam,
    checks_kernel,
    checks_logs,
    checks_mtu,
    checks_nodes,
    checks_overlay,
    checks_rules,
    checks_runtime,
    checks_services,
)
from podwire.doctor.finding import LEVELS, Check, Finding
from podwire.doctor.view import Node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.snapshot import Snapshot

CHECKS: tuple[Check, ...] = (
    *checks_conf.CHECKS,
    *checks_runtime.CHECKS,
    *checks_flannel.CHECKS,
    *checks_ipam.CHECKS,
    *checks_nodes.CHECKS,
    *checks_mtu.CHECKS,
    *checks_overlay.CHECKS,
    *checks_forward.CHECKS,
    *checks_rules.CHECKS,
    *checks_services.CHECKS,
    *checks_hostport.CHECKS,
    *checks_kernel.CHECKS,
    *checks_conntrack.CHECKS,
    *checks_logs.CHECKS,
)


def examine(snapshots: Sequence[Snapshot]) -> list[Finding]:
    """All findings, the worst first; what is the same on several nodes is said once."""
    nodes = [Node(snapshot) for snapshot in snapshots]
    found: dict[tuple[object, ...], Finding] = {}
    for check in CHECKS:
        for finding in check.run(nodes, {one.id for one in found.values()}):
            first = found.setdefault(finding.key, finding)
            if first is not finding:
                first.nodes += [name for name in finding.nodes if name not in first.nodes]
    return sorted(found.values(), key=lambda finding: LEVELS.index(finding.level))
