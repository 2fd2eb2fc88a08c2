"""Checks of kernel settings: bridge netfilter, forwarding, rp_filter, port ranges, hairpin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.doctor import services
from podwire.doctor.finding import Check, Evidence, Said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Node

_BRIDGE_NF = "net/bridge/bridge-nf-call-iptables"
_PERSIST = "persist: /etc/modules-load.d and /etc/sysctl.d"
_NODE_PORTS = (30000, 32767)


def _bridge_cni(node: Node) -> str:
    """Where it was seen that pods hang on a bridge; '' where nothing says so."""
    for link in node.snapshot.links or ():
        if link.name in ("cni0", "cbr0", "kube-bridge") or (
            link.kind == "bridge" and not link.name.startswith(("docker", "br-", "virbr"))
        ):
            return f"bridge {link.name} ({link.where})"
    winner = node.confdir.winner if node.confdir else None
    if winner and {"bridge", "flannel"} & set(winner.types):
        return f"{winner.name} ({winner.file.where})"
    if node.snapshot.modules and "bridge" in node.snapshot.modules and node.kube_rules and not node.any_chain("cali-"):
        return f"module bridge ({node.snapshot.modules['bridge']}) and kube-proxy's rules"
    return node.flannel


def look_bridge_nf(node: Node) -> Iterator[Said]:
    """Bridged packets do not pass iptables."""
    setting, modules = node.snapshot.sysctl(_BRIDGE_NF), node.snapshot.modules
    evidence = []
    if setting is not None and setting.value is None:
        evidence.append(Evidence(f"/proc/sys/{_BRIDGE_NF} is not there: br_netfilter is not loaded", setting.where))
    elif setting is not None and setting.value is not None and setting.value.strip() == "0":
        evidence.append(Evidence(f"{_BRIDGE_NF} = 0", setting.where))
    if modules is not None and "br_netfilter" not in modules and (setting is None or setting.value is None):
        evidence.append(Evidence("br_netfilter is not among the loaded modules", next(iter(modules.values()), "lsmod")))
    bridge = _bridge_cni(node)
    # A module that is built in is in no list: the list alone proves nothing where the setting was not read.
    if not evidence or not bridge or (setting is None and modules is not None and "bridge" not in modules):
        return
    evidence.append(Evidence(f"pods hang on a bridge: {bridge}", ""))
    yield Said(
        evidence,
        [
            "modprobe br_netfilter && sysctl -w net.bridge.bridge-nf-call-iptables=1",
            f"{_PERSIST} (CentOS 7's own sysctl.d sets it to 0)",
        ],
    )


def look_forwarding(node: Node) -> Iterator[Said]:
    """The node does not forward."""
    setting = node.snapshot.sysctl("net/ipv4/ip_forward")
    if setting and setting.value == "0" and (node.kube_rules or node.flannel):
        yield Said([Evidence("net.ipv4.ip_forward = 0", setting.where)], ["sysctl -w net.ipv4.ip_forward=1", _PERSIST])


def look_localnet(node: Node) -> Iterator[Said]:
    """127.0.0.1:nodePort cannot work."""
    setting = node.snapshot.sysctl("net/ipv4/conf/all/route_localnet")
    ports = [one for one in services.of_rules(node) if one.node_port]
    jump = [
        line
        for chain, _ in node.chains("nat", "KUBE-SERVICES")
        for line in chain.lines
        if line.endswith("-j KUBE-NODEPORTS")
    ]
    if (
        setting is None
        or setting.value != "0"
        or not ports
        or not any(re.search(r"-d \S", line) is None for line in jump)
    ):
        return
    yield Said(
        [Evidence("net.ipv4.conf.all.route_localnet = 0", setting.where), Evidence(f"NodePort {ports[0].node_port} of {ports[0].name} has rules for local destinations", ports[0].where)],
        ["use the node's own address instead of 127.0.0.1; or sysctl -w net.ipv4.conf.all.route_localnet=1 (kube-proxy sets it with --iptables-localhost-nodeports)"],
        level="warning",
    )  # fmt: skip


def _effective(node: Node) -> dict[str, tuple[int, str]]:
    """rp_filter in force by device: the larger of conf.all and the device's own."""
    values: dict[str, tuple[int, str]] = {}
    whole = 0
    for one in node.snapshot.sysctls:
        found = re.match(r"net/ipv4/conf/(.+)/rp_filter$", one.name)
        if found and one.value and one.value.isdigit():
            if found.group(1) == "all":
                whole = int(one.value)
            else:
                values.setdefault(found.group(1), (int(one.value), one.where))
    return {name: (max(whole, value), where) for name, (value, where) in values.items() if name != "default"}


def look_rp_filter(node: Node) -> Iterator[Said]:
    """Strict reverse path filtering where packets may come in by another way than they would leave."""
    effective = _effective(node)
    strict = {name for name, (value, _) in effective.items() if value == 1}
    routes = [
        route
        for route in node.snapshot.routes or ()
        if (route.dev and ":" not in route.dst and route.table in ("main", "default", "")) or route.default
    ]
    inner = re.compile(
        r"^(?:lo|cni\d|cbr0|flannel|veth|cali|docker|br-|tunl|vxlan|kube|nodelocal|lxc|cilium|virbr|weave|dummy)"
    )
    uplinks = {route.dev for route in routes if route.dev and not inner.match(route.dev)}
    default = {route.dev for route in routes if route.default}
    martians = [
        (line.strip(), log.where, found.group(1))
        for log in node.snapshot.output("kernel-log")
        for line in log.text.splitlines()
        if (found := re.search(r"martian source .*on dev (\S+)", line))
    ]
    for device in sorted(strict & uplinks):
        said = [Evidence(line, where) for line, where, name in martians if name == device]
        if not said and (len(uplinks) < 2 or device in default or not default):
            continue
        value_where = effective[device][1]
        evidence = [
            Evidence(f"rp_filter in force on {device} is 1 (the larger of conf.all and conf.{device})", value_where)
        ]
        evidence += [
            Evidence(f"the default route leaves by {', '.join(sorted(default))}: {route.text}", route.where)
            for route in routes
            if route.default
        ][:1]
        evidence += said[:3]
        if node.snapshot.policy_rules:
            own = [
                rule
                for rule in node.snapshot.policy_rules
                if rule.src and rule.table not in ("local", "main", "default")
            ]
            evidence += [
                Evidence(
                    f"ip rule {rule.priority}: from {rule.src} lookup {rule.table} does not help: after DNAT the question is asked for the pod's address",
                    rule.where,
                )
                for rule in own[:1]
            ]
        yield Said(
            evidence,
            [
                f"sysctl -w net.ipv4.conf.{device.replace('.', '/')}.rp_filter=2",
                "persist: systemd's 50-default.conf sets it again on each new device",
            ],
            title=f"Strict reverse path filter on {device}, and another way out",
            level="error" if said else "warning",
        )


def look_port_range(node: Node) -> Iterator[Said]:
    """The range of outgoing connections' ports holds NodePorts that nobody reserved."""
    low, high = _NODE_PORTS
    for text, _ in node.flag("service-node-port-range")[:1]:
        found = re.match(r"^(\d+)-(\d+)$", text)
        low, high = (int(found.group(1)), int(found.group(2))) if found else (low, high)
    for one in node.snapshot.sysctls:
        words = (one.value or "").split()
        if one.name != "net/ipv4/ip_local_port_range" or len(words) != 2 or not all(word.isdigit() for word in words):
            continue
        first, last = int(words[0]), int(words[1])
        # Several captures may be in the input: what is reserved counts from the same one.
        listed = [other for other in node.snapshot.sysctls if other.name == "net/ipv4/ip_local_reserved_ports"]
        same = [other for other in listed if other.where == one.where] or listed
        reserved = _ports(same[0].value or "") if same else []
        clash = [
            port for port in range(max(first, low), min(last, high) + 1) if not any(a <= port <= b for a, b in reserved)
        ]
        if not clash:
            continue
        evidence = [
            Evidence(
                f"ip_local_port_range = {first} {last}, NodePorts {low}-{high}: {len(clash)} ports in both", one.where
            ),
            Evidence(f"ip_local_reserved_ports = {', '.join(f'{a}-{b}' for a, b in reserved) or 'nothing'}", one.where),
        ]
        taken = {
            port.node_port: port.name for port in [*services.of_api(node), *services.of_rules(node)] if port.node_port
        }
        evidence += [
            Evidence(
                f"{socket.owner} has a connection from port {socket.port}, which is the NodePort of {taken[socket.port]}",
                socket.where,
            )
            for socket in node.snapshot.sockets or ()
            if not socket.listening and socket.port in taken and socket.peer_port
        ]
        yield Said(
            evidence,
            [f"sysctl -w net.ipv4.ip_local_reserved_ports={low}-{high}   # keeps the large range", _PERSIST],
            level="warning",
        )
        return


def _ports(text: str) -> list[tuple[int, int]]:
    found = []
    for part in text.split(","):
        match = re.match(r"^\s*(\d+)(?:-(\d+))?\s*$", part)
        if match:
            found.append((int(match.group(1)), int(match.group(2) or match.group(1))))
    return found


def look_hairpin(node: Node) -> Iterator[Said]:
    """Ports of the pods' bridge that do not send a frame back where it came from."""
    bridge = node.bridge
    if any(link.name == bridge and "PROMISC" in link.flags for link in node.snapshot.links or ()):
        return
    ports = [
        link
        for link in node.snapshot.links or ()
        if link.hairpin is False and link.veth and (link.master == bridge or not link.master)
    ]
    if not ports:
        return
    names = ", ".join(link.name for link in ports[:5]) + (f" and {len(ports) - 5} more" if ports[5:] else "")
    evidence = [Evidence(f"hairpin is off on {names}, port{'s' if ports[1:] else ''} of {bridge}", ports[0].where)]
    winner = node.confdir.winner if node.confdir else None
    for plugin in winner.plugins if winner else ():
        inner = plugin.get("delegate", {}) if plugin.get("type") == "flannel" else plugin
        if (
            plugin.get("type") in ("flannel", "bridge")
            and isinstance(inner, dict)
            and not inner.get("hairpinMode")
            and winner
        ):
            evidence.append(Evidence('no "hairpinMode": true in the bridge\'s configuration', winner.file.where))
    off = node.snapshot.sysctl(_BRIDGE_NF)
    if off and off.value == "0":
        return  # without bridge netfilter the packet is routed back, not bridged: hairpin does not matter, see bridge-nf-call
    yield Said(
        evidence,
        [
            f'"hairpinMode": true in {winner.name if winner else "the .conflist"} (for new pods)',
            f"ip link set {ports[0].name} type bridge_slave hairpin on   # for each running pod",
        ],
        level="warning",
    )


CHECKS = (
    Check(
        "bridge-nf-call",
        "Bridged packets do not pass iptables",
        'A Service works when its pod is on another node and fails when it is on the same; "reply from unexpected source".',
        "The request is routed and translated. The reply goes from port to port of the same bridge; only br_netfilter shows it to conntrack, which"
        " translates it back. Without that the client gets an answer from an address that it never asked.",
        look_bridge_nf,
    ),
    Check(
        "ip-forward",
        "The node does not forward packets",
        "No pod reaches anything outside of its node.",
        "Packets between a pod and the outside are forwarded, not delivered.",
        look_forwarding,
    ),
    Check(
        "localhost-nodeport",
        "NodePorts do not work on 127.0.0.1",
        "curl 127.0.0.1:NODEPORT on the node fails, curl to the node's address works.",
        "The rules translate the packet, but a packet from 127.0.0.1 may not leave by a real device unless route_localnet is on.",
        look_localnet,
    ),
    Check(
        "rp-filter",
        "Strict reverse path filter and two uplinks",
        "NodePorts answer on one interface and not on the other; no rule drops anything.",
        "After DNAT the kernel asks how it would reach the client. If that is by another device, a strict filter (the larger of all and the"
        " device's value is 1) drops the packet as a martian.",
        look_rp_filter,
    ),
    Check(
        "ephemeral-nodeport-overlap",
        "Outgoing connections may take NodePorts",
        "Rare hangs of outgoing connections; before 1.24 a Service without a rule.",
        "A connection of the node's own from a port that is a NodePort works until its conntrack entry is lost; the next packet from the other side"
        " is then a new flow to the NodePort and goes to a pod.",
        look_port_range,
    ),
    Check(
        "hairpin",
        "The bridge does not send a pod's packet back to it",
        "A pod cannot reach itself through its Service; other pods can.",
        "The packet comes in by the pod's own port of the bridge and must leave by the same one, which a bridge does only in hairpin mode.",
        look_hairpin,
    ),
)
