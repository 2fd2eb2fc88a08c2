"""Checks of Services on a node: endpoints, NodePorts and who listens on them, flows that outlived their rules, hints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from podwire.doctor import services
from podwire.doctor.finding import Check, Evidence, Said
from podwire.explain.snapshot import name_of, namespace_of
from podwire.explain.snapshot_words import inner, rows, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.services import ServicePort
    from podwire.doctor.view import Node
    from podwire.explain.snapshot import Socket

#: Programs that hold a NodePort for kube-proxy's sake, or are kube-proxy inside something larger.
_HOLDERS = re.compile(
    r"^(?:kube-proxy|k3s|k3s-server|k3s-agent|rke2|microk8s|kubelite|k0s|podwire|kube-router|cilium-agent)"
)


def look_no_endpoints(node: Node) -> Iterator[Said]:
    """Services that kube-proxy rejects on purpose."""
    found: dict[str, list[Evidence]] = {}
    ports: dict[str, set[int]] = {}
    for rules in node.iptables:
        table = rules.tables.get("filter")
        for name, chain in table.chains.items() if table else ():
            for line in chain.lines if name.startswith("KUBE-") else ():
                match = re.search(r'--comment "([^"]+?):? has no endpoints"', line)
                if match:
                    found.setdefault(match.group(1), []).append(Evidence(f"-A {name} {line}", f"{rules.where}, filter"))
                    number = re.search(r"--dst-type LOCAL.*--dport (\d+)|--dport (\d+).*--dst-type LOCAL", line)
                    if number:
                        ports.setdefault(match.group(1), set()).add(int(number.group(1) or number.group(2)))
    for tables, where in node.nft:
        for (_, name), elements in tables.sets.items():
            if name in ("no-endpoint-services", "no-endpoint-nodeports"):
                for match in re.finditer(r'([\w. ]+?) comment "([^"]+)"\s*: goto reject-chain', elements):
                    found.setdefault(match.group(2), []).append(
                        Evidence(f"{match.group(1).strip()} : reject", f"{where}, map {name}")
                    )
    said = {one.name: one for one in services.of_api(node)}
    for name, evidence in sorted(found.items()):
        if name == "default/kubernetes:https":
            continue
        one = said.get(name)
        if one and one.known:
            evidence.append(Evidence(_why_none(one), node.snapshot.where.get("slices", "")))
        listening = [
            socket
            for socket in node.snapshot.sockets or ()
            if socket.listening and socket.port in ports.get(name, set()) and not _HOLDERS.match(socket.process)
        ]
        evidence += [
            Evidence(
                f"{socket.owner} listens on {socket.port} and is cut off from outside by the same rule", socket.where
            )
            for socket in listening
        ]
        yield Said(
            evidence[:8],
            [
                f"kubectl -n {name.split('/')[0]} get endpointslices -l kubernetes.io/service-name={name.split('/')[-1].split(':')[0]}   # readiness, selector, targetPort"
            ],
            title=f"{name} has no ready endpoints: connections are refused",
            level="warning",
        )


def _why_none(one: ServicePort) -> str:
    if not one.endpoints:
        return "its EndpointSlices have no endpoint with this port: selector or targetPort"
    waiting = ", ".join(sorted({endpoint.ip for endpoint in one.endpoints})[:5])
    return f"its endpoints are not ready: {waiting}"


def look_local_policy(node: Node) -> Iterator[Said]:
    """ExternalTrafficPolicy Local without an endpoint here: as designed, unless there is one here."""
    names: dict[str, Evidence] = {}
    for rules in node.iptables:
        for table in rules.tables.values():
            for name, chain in table.chains.items():
                for line in chain.lines if name.startswith("KUBE-") else ():
                    match = re.search(r'--comment "([^"]+?):? has no local endpoints"', line)
                    if match:
                        names.setdefault(match.group(1), Evidence(f"-A {name} {line}", f"{rules.where}, {table.name}"))
    api = {one.name: one for one in services.of_api(node)}
    own = node.snapshot.node
    title = name_of(own) if own else node.snapshot.hostname
    for name, evidence in sorted(names.items()):
        one = api.get(name)
        here = [end for end in one.usable if end.node] if one else []
        mine = [end for end in here if _is_here(node, end.ip)]
        mismatch = [end for end in mine if title and end.node != title]
        if mismatch:
            yield Said(
                [evidence, Evidence(f"{mismatch[0].ip} is in this node's range, but its nodeName is {mismatch[0].node}, not {title}", node.snapshot.where.get("slices", ""))],
                ["kube-proxy --hostname-override (hostnameOverride in its configuration) must be the Node's name"],
                title=f"{name}: an endpoint is on this node, and kube-proxy does not know it", level="error",
            )  # fmt: skip
        else:
            yield Said(
                [evidence],
                ["nothing to mend: send traffic to the nodes that pass the health check (healthCheckNodePort), or externalTrafficPolicy: Cluster"],
                title=f"{name} (externalTrafficPolicy: Local) has no endpoint here: traffic from outside is dropped",
                level="note",
            )  # fmt: skip


def _is_here(node: Node, ip: str) -> bool:
    from podwire.doctor.view import inside

    return inside(ip, [*node.own_cidrs, *([node.subnet] if node.subnet else [])])


def look_node_ports(node: Node) -> Iterator[Said]:
    """NodePorts that somebody else listens on, and those that have no rule."""
    api = [one for one in services.of_api(node) if one.node_port]
    written = {(one.protocol, one.node_port) for one in services.of_rules(node) if one.node_port}
    readable = any(chain.lines for chain, _ in node.chains("nat", "KUBE-SERVICES"))
    rejected = _rejected_ports(node)
    logs = {
        int(match.group(1)): Evidence(line.strip()[:200], log.where)
        for log in node.snapshot.output("log")
        for line in log.text.splitlines()
        if "can't open port" in line
        and (match := re.search(r"listen \w+ \S*:(\d+)|Port:(\d+)", line))
        and match.group(1)
    }
    for one in api:
        key = (one.protocol, one.node_port)
        holder = _listener(node, *key)
        no_rule = readable and not node.kube_nft and key not in written and key not in rejected and one.usable
        if holder and no_rule:
            evidence = [
                Evidence(f"{one.name} asks for NodePort {one.node_port}/{one.protocol}", one.where),
                Evidence(f"the rules have none for {one.node_port}", _nat_where(node)),
                Evidence(f"{holder.owner} listens on {holder.ip}:{holder.port}", holder.where),
                *([logs[one.node_port]] if one.node_port in logs else []),
            ]
            yield Said(
                evidence,
                [
                    f"stop {holder.process or 'that process'} or give the Service another nodePort; then restart kube-proxy",
                    "sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767",
                ],
                title=f"NodePort {one.node_port} of {one.name} is taken by {holder.owner}: clients talk to the wrong program",
                why="kube-proxy <= 1.23 opens each NodePort itself and writes no rule for one that it cannot open. Packets to the port reach the other process.",
            )
        elif no_rule and (node.snapshot.sockets is not None or one.node_port in logs):
            yield Said(
                [Evidence(f"{one.name} asks for NodePort {one.node_port}/{one.protocol}", one.where), Evidence(f"the rules have none for {one.node_port}", _nat_where(node)), *([logs[one.node_port]] if one.node_port in logs else [])],
                ["kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=100   # does it sync?"],
                title=f"NodePort {one.node_port} of {one.name} has no rule", level="warning",
                why="kube-proxy has not written what the API asks for: it does not sync, or it could not take the port.",
            )  # fmt: skip
    known = {(one.protocol, one.node_port) for one in api} if node.snapshot.services is not None else set()
    for protocol, port in sorted(written | {key for key in known if node.kube_nft}):
        holder = _listener(node, protocol, port)
        if holder:
            owner = next((one.name for one in [*api, *services.of_rules(node)] if one.node_port == port), "")
            yield Said(
                [Evidence(f"{holder.owner} listens on {holder.ip}:{port}", holder.where), Evidence(f"NodePort {port}/{protocol} of {owner} has a rule", _nat_where(node))],
                [f"move {holder.process or 'that process'} to a port outside of 30000-32767, and net.ipv4.ip_local_reserved_ports=30000-32767"],
                title=f"{holder.owner} listens on NodePort {port} and hears nothing from outside", level="warning",
                why="DNAT comes before the kernel looks for a listener: connections from outside go to the Service, only those to 127.0.0.1 reach the process.",
            )  # fmt: skip


def _rejected_ports(node: Node) -> set[tuple[str, int]]:
    found = set()
    for chain, _ in [*node.chains("filter", "KUBE-EXTERNAL-SERVICES"), *node.chains("filter", "KUBE-SERVICES")]:
        for line in chain.lines:
            port, protocol = re.search(r"--dport (\d+)", line), re.search(r"-p (\w+)", line)
            if port and protocol:
                found.add((protocol.group(1), int(port.group(1))))
    return found


def _nat_where(node: Node) -> str:
    return next(
        (f"{rules.where}, nat KUBE-NODEPORTS" for _, rules in node.chains("nat", "KUBE-NODEPORTS")),
        "nft, map service-nodeports",
    )


def _listener(node: Node, protocol: str, port: int) -> Socket | None:
    """A foreign process on the port; one that cannot be told is not blamed."""
    for socket in node.snapshot.sockets or ():
        local = socket.ip.startswith("127.") or socket.ip == "::1"
        if (socket.protocol, socket.port) != (protocol, port) or not socket.listening or local:
            continue
        # An interpreter's name says nothing: the command line of the process does.
        name = node.programs.get(socket.pid, socket.process)
        if socket.process and not _HOLDERS.match(name):
            return socket
    return None


def look_stale_rules(node: Node) -> Iterator[Said]:
    """DNAT targets in the rules that the API has no endpoint for."""
    api = {(one.name, one.protocol): one for one in services.of_api(node) if one.known and one.endpoints}
    for one in services.of_rules(node):
        said = api.get((one.name, one.protocol))
        if said is None or not one.endpoints:
            continue
        gone = [
            end
            for end in one.endpoints
            if (end.ip, end.port) not in {(other.ip, other.port) for other in said.endpoints}
            and (":" in end.ip) == (":" in said.endpoints[0].ip)
        ]
        if gone and any(not end.ready for end in said.endpoints) is False:
            yield Said(
                [Evidence(f"{one.name}: the rules send to {', '.join(f'{end.ip}:{end.port}' for end in gone)}", one.where),
                 Evidence(f"the EndpointSlices have {', '.join(f'{end.ip}:{end.port}' for end in said.endpoints)}", node.snapshot.where.get("slices", ""))],
                ["is kube-proxy alive on this node, and does it reach the API? restart it and look at its log"],
                title=f"The rules of {one.name} are older than its endpoints",
            )  # fmt: skip


def look_hints(node: Node) -> Iterator[Said]:
    """One endpoint without a hint switches the hints of the whole Service off."""
    for one in node.snapshot.slices or ():
        ready = [
            end
            for end in rows(one.get("endpoints"))
            if isinstance(end, dict) and inner(end, "conditions").get("ready") is not False
        ]
        for kind, what in (("forNodes", "node"), ("forZones", "zone")):
            having = [end for end in ready if _hint(end, kind)]
            lacking = [end for end in ready if not _hint(end, kind)]
            if having and lacking:
                addresses = ", ".join(str(ip) for end in lacking for ip in texts(end.get("addresses")))
                owner = inner(one, "metadata", "labels").get("kubernetes.io/service-name") or name_of(one)
                yield Said(
                    [Evidence(f"EndpointSlice {namespace_of(one)}/{name_of(one)}: {addresses} has no {what} hint, {len(having)} others have one", node.snapshot.where.get("slices", ""))],
                    [f"see why the endpoint has none (no zone label on its Node? too few endpoints?): kubectl -n {namespace_of(one)} get endpointslice {name_of(one)} -o yaml"],
                    title=f"{namespace_of(one)}/{owner}: {what} hints are ignored on every node", level="warning",
                )  # fmt: skip


def _hint(endpoint: dict[str, Any], kind: str) -> bool:
    hints = endpoint.get("hints")
    return bool(isinstance(hints, dict) and hints.get(kind))


CHECKS = (
    Check(
        "no-endpoints",
        "A Service without ready endpoints",
        "Connections are refused at once (or, with kube-proxy before 1.10 and from pods, hang).",
        "kube-proxy rejects what has nowhere to go. The rule also covers a listener of the host on the same NodePort.",
        look_no_endpoints,
    ),
    Check(
        "local-policy",
        "externalTrafficPolicy: Local without a local endpoint",
        "Clients outside time out on some nodes.",
        "With Local only endpoints of the same node are used, so that the client's address is kept. Nodes without one drop the packets.",
        look_local_policy,
    ),
    Check(
        "nodeport-taken",
        "A NodePort and a process of the node want the same port",
        "A NodePort is answered by another program, or a program on the node hears nothing.",
        "NodePorts are rules, not sockets: nothing keeps other processes off them.",
        look_node_ports,
    ),
    Check(
        "rules-stale",
        "The rules send to endpoints that are gone",
        "Some connections to the Service hang.",
        "kube-proxy keeps the rules up to date; when it is dead or cut off from the API they stay as they were.",
        look_stale_rules,
    ),
    Check(
        "hints-incomplete",
        "Topology hints are switched off by one endpoint",
        "Traffic is not kept in the zone or on the node; no error anywhere.",
        "Hints count only when every ready endpoint of the Service has one. One without switches them off for all.",
        look_hints,
    ),
)
