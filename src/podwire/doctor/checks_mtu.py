"""Checks of MTUs: the overlay's against the uplink's, the pods' against the overlay's, and all nodes' against each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.doctor.view import Node
    from podwire.explain.snapshot import Link

#: What a backend adds to each packet, IPv4 outside / IPv6 outside.
_OVERHEAD = {"vxlan": (50, 70), "wireguard": (60, 80), "ipip": (20, 40)}
_INNER = re.compile(
    r"^(?:lo|cni\d|cbr0|flannel|veth|cali|docker|br-|tunl|vxlan|kube|nodelocal|lxc|cilium|virbr|weave|dummy|ip6tnl|sit|gre|ifb|bond_slave)"
)


def _uplink(node: Node) -> Link | None:
    """The device that outer packets leave by: the vxlan device's own, else the default route's, else the only one."""
    links = node.snapshot.links or ()
    below = next((link.vxlan.dev for link in links if link.vxlan and link.vxlan.dev), "")
    default = next((route.dev for route in node.snapshot.routes or () if route.default), "")
    for name in (below, default):
        found = node.snapshot.link(name) if name else None
        if found:
            return found
    outer = [link for link in links if not _INNER.match(link.name) and link.mtu]
    return outer[0] if len(outer) == 1 else None


def _overlay(node: Node) -> Link | None:
    return next((link for link in node.snapshot.links or () if link.name.startswith("flannel") and link.mtu), None)


def look_mtu(node: Node) -> Iterator[Said]:
    """Inner devices may not be larger than the overlay, nor the overlay larger than the uplink allows."""
    overlay, uplink = _overlay(node), _uplink(node)
    if overlay is None:
        return
    kind = "wireguard" if "wg" in overlay.name else "vxlan"
    six = bool(overlay.vxlan and ":" in overlay.vxlan.local)
    overhead = _OVERHEAD[kind][1 if six or kind == "wireguard" else 0]
    most = uplink.mtu - overhead if uplink else 0
    if uplink and overlay.mtu > most:
        yield Said(
            [
                Evidence(
                    f"{overlay.name} has mtu {overlay.mtu}; {uplink.name} has {uplink.mtu}, and {kind} needs {overhead}: at most {most}",
                    overlay.where,
                )
            ],
            [
                f"ip link set {overlay.name} mtu {most}",
                "restart flanneld (it takes the uplink's MTU at start), then recreate the bridge and the pods",
            ],
            title=f"{node.title}: {overlay.name} is larger than its uplink carries",
            why="Outer packets of full size do not fit on the wire. This node fragments its own, but what others send to it is lost on the way: connections"
            " open and large transfers hang, in one direction only. Lowering an uplink's MTU later does not lower the overlay's.",
        )
    inner = [
        link
        for link in node.snapshot.links or ()
        if (node.bridge in (link.name, link.master) or link.name == "cni0") and link.mtu > overlay.mtu
    ]
    bridge = node.snapshot.link(node.bridge)
    # An empty bridge has the MTU it was born with (1500); it takes that of its ports with the first pod.
    if inner and not (bridge and inner == [bridge] and not node.ports(node.bridge) and node.snapshot.live):
        yield Said(
            [Evidence(", ".join(f"{link.name} {link.mtu}" for link in inner[:6]) + f"; {overlay.name} {overlay.mtu}", inner[0].where)],
            [f"\"mtu\": {overlay.mtu} in the bridge's configuration (flannel's delegate gets FLANNEL_MTU by itself), then recreate {node.bridge} and the pods"],
            title=f"{node.title}: pods' devices are larger than {overlay.name}", level="warning",
            why='It works only by ICMP: the node tells each pod "fragmentation needed" per destination, for ten minutes. Where ICMP is filtered, large transfers hang.',
        )  # fmt: skip
    yield from _said_mtu(node, overlay)


def _said_mtu(node: Node, overlay: Link) -> Iterator[Said]:
    env = node.snapshot.environment().get("FLANNEL_MTU", "")
    assert_where = node.snapshot.subnet_env.where if node.snapshot.subnet_env else ""
    if env.isdigit() and int(env) != overlay.mtu:
        yield Said(
            [Evidence(f"FLANNEL_MTU={env}", assert_where), Evidence(f"{overlay.name} has mtu {overlay.mtu}", overlay.where)],
            ["restart flanneld on this node, then recreate the bridge and the pods"],
            title=f"{node.title}: FLANNEL_MTU is not the overlay's MTU", level="warning",
        )  # fmt: skip
    backend = node.net_conf.get("Backend")
    wanted = backend.get("MTU") if isinstance(backend, dict) else None
    if (
        isinstance(wanted, int)
        and not isinstance(wanted, bool)
        and wanted
        and env.isdigit()
        and int(env) not in (wanted, wanted - 50, wanted - 70)
    ):
        assert node.snapshot.net_conf is not None
        yield Said(
            [Evidence(f'"MTU": {wanted}', node.snapshot.net_conf.where), Evidence(f"FLANNEL_MTU={env}", assert_where)],
            ["restart flanneld on this node; existing bridges, veths and pods keep the old value: recreate them"],
            title="net-conf's MTU is newer than subnet.env: flanneld was not restarted", level="warning",
        )  # fmt: skip


def look_mtus(nodes: Sequence[Node]) -> Iterator[Said]:
    """All nodes' overlays must have the same MTU."""
    sizes: dict[int, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    for node in nodes:
        overlay = _overlay(node)
        if overlay and node.title not in seen:
            seen.add(node.title)
            sizes.setdefault(overlay.mtu, []).append((node.title, overlay.where))
    if len(sizes) > 1:
        smallest = min(sizes)
        odd = [
            name
            for size, names in sizes.items()
            if size != max(sizes, key=lambda one: len(sizes[one]))
            for name, _ in names
        ]
        yield Said(
            [Evidence(f"{size}: {', '.join(name for name, _ in names)}", names[0][1]) for size, names in sorted(sizes.items())],
            [f"\"MTU\" in net-conf's Backend for all nodes: what the smallest uplink carries (here an overlay of {smallest}); restart flanneld, recreate bridges and pods"],
            nodes=odd,
        )  # fmt: skip


CHECKS = (
    Check(
        "mtu",
        "MTUs that do not fit",
        "Small packets pass, large transfers and TLS handshakes hang.",
        "Each layer must leave room for the one around it.",
        look_mtu,
    ),
    Check(
        "mtu-differs",
        "The overlay's MTU differs between nodes",
        "Large transfers hang between some pairs of nodes, in one direction.",
        "A node sends packets as large as its own overlay allows; the smallest uplink on the way decides what arrives.",
        look_at_all=look_mtus,
    ),
)
