"""The places that had a part in a pod's address, one function each: from a `Pod` and the snapshot of its node to a `Step`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import TYPE_CHECKING, Any

from podwire.explain.confdir import ConfDir
from podwire.explain.snapshot import name_of, pod_cidrs
from podwire.explain.snapshot_words import inner, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.snapshot import Link, Object, Sandbox, Snapshot, TextFile


@dataclass(slots=True)
class Step:
    """A place on the way: `said` is the step in a sentence, `read` what was read there and where, `problem` what does not fit."""

    title: str
    said: str
    read: list[tuple[str, str]] = field(default_factory=list)
    problem: str = ""


@dataclass(slots=True)
class Pod:
    """What is known of the pod before the first step."""

    namespace: str
    name: str
    home: Snapshot
    item: Object | None
    sandbox: Sandbox | None
    ip: str = ""
    cached: dict[str, Any] = field(default_factory=dict)
    cache_file: TextFile | None = None

    @property
    def id(self) -> str:
        """The container ID, '' where it is not known."""
        return self.sandbox.id if self.sandbox else str(self.cached.get("containerId", ""))


def result_ips(result: Any) -> list[str]:
    """The addresses of a result of any version: `ips` since 0.3, `ip4` and `ip6` before."""
    if not isinstance(result, dict):
        return []
    found = [str(one.get("address")) for one in rows(result.get("ips")) if isinstance(one, dict)]
    return found + [
        str(result[key]["ip"]) for key in ("ip4", "ip6") if isinstance(result.get(key), dict) and result[key].get("ip")
    ]


def _unread(snapshot: Snapshot, part: str) -> str:
    found = next((one.reason for one in snapshot.unread if one.part.startswith(part)), "")
    return f"not read: {found}" if found else "not in the input"


def lies_in(ip: str, cidr: str) -> bool:
    """Whether an address is of a range."""
    try:
        return ip_address(ip) in ip_network(cidr, strict=False)
    except ValueError:
        return False


def the_pod(pod: Pod) -> Step:
    """The Pod and its sandbox."""
    step = Step("The pod", f"{pod.namespace}/{pod.name}")
    if pod.item:
        spec, status = inner(pod.item, "spec"), inner(pod.item, "status")
        step.read.append(
            (
                f"nodeName {spec.get('nodeName') or '-'}, podIP {status.get('podIP') or '-'}, phase {status.get('phase') or '-'}",
                pod.home.where.get("pods", "pods"),
            )
        )
        if spec.get("hostNetwork"):
            step.problem = "it uses the host's network: no CNI plugin is called for it"
    if pod.sandbox:
        step.read.append(
            (f"sandbox {pod.sandbox.id[:12]}, {'ready' if pod.sandbox.ready else 'not ready'}", pod.sandbox.where)
        )
    elif pod.home.sandboxes is not None:
        step.problem = step.problem or "the runtime has no sandbox for it"
    step.said = f"{pod.namespace}/{pod.name} is bound to {pod.home.title} and has {pod.ip or 'no address'}."
    return step


def node(pod: Pod) -> Step:
    """The Node and its podCIDR."""
    step = Step("Node and podCIDR", "")
    node = pod.home.node
    if node is None:
        step.said = f"The Node object is {_unread(pod.home, 'kube/nodes')}."
        return step
    cidrs = pod_cidrs(node)
    step.read.append(
        (f"Node {name_of(node)}: spec.podCIDRs {', '.join(cidrs) or 'none'}", pod.home.where.get("nodes", "nodes"))
    )
    step.said = (
        f"kube-controller-manager's node IPAM gave {name_of(node)} the range {', '.join(cidrs)}."
        if cidrs
        else f"{name_of(node)} has no podCIDR."
    )
    if not cidrs:
        step.problem = f"Node {name_of(node)} has no podCIDR"
    elif pod.ip and not any(lies_in(pod.ip, one) for one in cidrs):
        step.problem = f"{pod.ip} is not of the node's podCIDR {', '.join(cidrs)}"
    return step


def subnet_env(pod: Pod) -> Step:
    """What flanneld wrote for the plugin."""
    step = Step("subnet.env", "")
    text = pod.home.subnet_env
    if text is None:
        step.said = f"/run/flannel/subnet.env is {_unread(pod.home, 'flannel/subnet.env')}."
        return step
    env = pod.home.environment()
    step.read.append((", ".join(f"{key}={value}" for key, value in env.items()), text.where))
    step.said = f"flanneld wrote what the flannel plugin reads: subnet {env.get('FLANNEL_SUBNET', '-')}, MTU {env.get('FLANNEL_MTU', '-')}."
    cidrs = pod_cidrs(pod.home.node or {})
    try:
        subnet = str(ip_interface(env.get("FLANNEL_SUBNET", "")).network)
    except ValueError:
        subnet = ""
    if subnet and cidrs and subnet not in cidrs:
        step.problem = f"subnet.env says {subnet}, the Node says {', '.join(cidrs)}"
    return step


def network(pod: Pod) -> Step:
    """Which file of /etc/cni/net.d wins, and why."""
    step = Step("The network in force", "")
    if pod.home.cni_files is None:
        step.said = f"/etc/cni/net.d is {_unread(pod.home, 'cni/net.d')}."
        return step
    conf = ConfDir(pod.home.cni_files)
    names = [file.name for file in conf.candidates]
    winner = conf.winner
    if winner is None or winner.network is None:
        step.said, step.problem = (
            "There is no valid network configuration.",
            "no file in /etc/cni/net.d is a valid network",
        )
        return step
    first = (
        "it is the only candidate"
        if len(names) == 1
        else f"by the bytes of the names it is the first of {', '.join(names)}"
    )
    step.said = (
        f"The runtime uses {winner.name}: {first}. Network {winner.network.name}, chain {' → '.join(winner.types)}."
    )
    step.read.append((" ".join(winner.file.text.split()), winner.file.where))
    step.read += [(f"{file.name} is broken: {file.error}", file.file.where) for file in conf.candidates if file.error]
    if conf.others:
        step.read.append(
            (
                f"no candidates (another extension): {', '.join(conf.others)}",
                winner.file.where.rpartition("/")[0] or winner.file.where,
            )
        )
    if conf.first is not winner and conf.first is not None:
        step.problem = f"{conf.first.name} comes first and is broken: containerd stops there"
    return step


def delegated(pod: Pod) -> Step:
    """Flannel's delegated configuration."""
    step = Step("What flannel delegated", "")
    file = next((one for one in pod.home.scratch or () if pod.id and one.name == pod.id), None)
    if file is None:
        reason = "there is none for this container" if pod.home.scratch else _unread(pod.home, "cni/lib/flannel")
        step.said = f"flannel's file /var/lib/cni/flannel/{pod.id[:12] or 'ID'}…: {reason}."
        if pod.home.scratch is not None and pod.id and pod.home.subnet_env is not None:
            step.problem = "flannel kept no delegated configuration: DEL will find nothing to do"
        return step
    step.read.append((" ".join(file.text.split()), file.where))
    try:
        value = json.loads(file.text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        step.said, step.problem = "The file is broken.", "flannel's delegated configuration is broken"
        return step
    ipam = inner(value, "ipam")
    groups = ipam.get("ranges")
    ranges = [str(one.get("subnet")) for group in (groups if isinstance(groups, list) else ()) for one in rows(group)]
    step.said = f"flannel turned the list and subnet.env into a configuration for {value.get('type')}, ipam {ipam.get('type')} with {', '.join(ranges) or ipam.get('subnet')}, mtu {value.get('mtu')}."
    return step


def owner_file(pod: Pod) -> TextFile | None:
    """host-local's file of the pod's address."""
    return next(
        (
            file
            for file in pod.home.reservations or ()
            if pod.ip and file.name.rpartition("/")[2].replace("_", ":") == pod.ip
        ),
        None,
    )


def reservation(pod: Pod) -> Step:
    """Whom host-local keeps the address for."""
    step = Step("host-local's reservation", "")
    if pod.home.reservations is None:
        step.said = f"/var/lib/cni/networks is {_unread(pod.home, 'cni/lib/networks')}."
        return step
    file = owner_file(pod)
    if file is None:
        step.said = f"There is no reservation of {pod.ip or 'its address'}."
        step.problem = f"{pod.ip} is reserved for nobody: it can be handed out again" if pod.ip else ""
        return step
    lines = file.text.split()
    step.read.append((" ".join(lines), file.where))
    step.said = f"host-local holds {file.name} for container {lines[0][:12] if lines else '?'}" + (
        f", {lines[1]}." if len(lines) > 1 else "."
    )
    if pod.id and lines and lines[0] != pod.id:
        step.problem = f"{pod.ip} is reserved for another container ({lines[0][:12]})"
    return step


def result(pod: Pod) -> Step:
    """What the chain answered."""
    step = Step("The result", "")
    if pod.cache_file is None:
        step.said = f"The runtime's cached result (/var/lib/cni/results) is {_unread(pod.home, 'cni/lib/results') if pod.home.results is None else 'not there'}."
        return step
    result = inner(pod.cached, "result")
    step.read.append((json.dumps(result, separators=(",", ":"))[:1000], pod.cache_file.where))
    interfaces = [one for one in rows(result.get("interfaces")) if isinstance(one, dict)]
    ips = result_ips(result)
    names = ", ".join(f"{one.get('name')}{' in the pod' if one.get('sandbox') else ''}" for one in interfaces)
    step.said = f"The chain answered {', '.join(ips) or 'without an address'}" + (
        f" with {names}." if names else " (an old form that names no interfaces)."
    )
    if pod.ip and ips and not any(one.partition("/")[0] == pod.ip for one in ips):
        step.problem = f"the chain answered {', '.join(ips)}, the API says {pod.ip}"
    return step


def _host_veth(pod: Pod) -> Link | None:
    """The node's end: the peer of what has the address in another namespace, else what the result names, else the port of its MAC."""
    links = pod.home.links or []
    for space in pod.home.namespaces or ():
        for link in space.links:
            if pod.ip and pod.ip in link.addresses and link.peer:
                found = next((one for one in links if one.index == link.peer and one.peer in (link.index, 0)), None)
                if found:
                    return found
    for one in rows(inner(pod.cached, "result").get("interfaces")):
        if isinstance(one, dict) and not one.get("sandbox"):
            found = next(
                (link for link in links if link.name == one.get("name") and link.kind != "bridge" and link.veth), None
            )
            if found:
                return found
    mac = next((one.mac for one in pod.home.neighbours or () if one.ip == pod.ip and one.mac), "")
    port = next((one.dev for one in pod.home.fdb or () if mac and one.mac == mac and one.master), "")
    return next((link for link in links if link.name == port), None)


def veth(pod: Pod) -> Step:
    """The veth pair and the bridge's port."""
    step = Step("veth pair and bridge port", "")
    if pod.home.links is None:
        step.said = f"The devices are {_unread(pod.home, 'net/ip-link')}."
        return step
    link = _host_veth(pod)
    if link is None:
        step.said = "The node's end of the veth pair was not found among the devices."
        known = bool(pod.home.namespaces) or any(
            isinstance(one, dict) and not one.get("sandbox")
            for one in rows(inner(pod.cached, "result").get("interfaces"))
        )
        step.problem = "the veth pair is gone" if known and pod.cached else ""
        return step
    hairpin = {True: "on", False: "off", None: "not known"}[link.hairpin]
    step.read.append(
        (
            f"{link.index}: {link.name} mtu {link.mtu} master {link.master or '-'} state {link.state or '-'} hairpin {hairpin}",
            link.where,
        )
    )
    for space in pod.home.namespaces or ():
        for end in space.links:
            if pod.ip in end.addresses and end.peer == link.index:
                step.read.append(
                    (
                        f"in the pod: {end.index}: {end.name} {', '.join(end.addresses)} mtu {end.mtu}, its peer is {end.peer}",
                        f"{space.where}, namespace {space.id}",
                    )
                )
    step.said = f"The pod's eth0 is one end of a veth pair; the other is {link.name}, a port of {link.master or 'no bridge'} (hairpin {hairpin}, mtu {link.mtu})."
    bridge = pod.home.link(link.master) if link.master else None
    if bridge:
        addresses = ", ".join(one.text for one in pod.home.addresses_of(bridge.name) if ":" not in one.ip)
        step.read.append((f"{bridge.index}: {bridge.name} mtu {bridge.mtu} addresses {addresses or '-'}", bridge.where))
        if pod.ip and addresses and not any(lies_in(pod.ip, one.text) for one in pod.home.addresses_of(bridge.name)):
            step.problem = f"{bridge.name} has {addresses}, which is another network than the pod's"
    elif not link.master:
        step.problem = f"{link.name} is a port of no bridge"
    return step


def routes(pod: Pod) -> Step:
    """How the node itself reaches the pod."""
    step = Step("Routes on its node", "")
    if pod.home.routes is None:
        step.said = f"The routes are {_unread(pod.home, 'net/ip-route')}."
        return step
    if not pod.ip:
        step.said = "Without an address there is none to look for."
        return step
    matching = [route for route in pod.home.routes if route.table == "main" and lies_in(pod.ip, route.dst)]
    matching.sort(key=lambda route: route.network.prefixlen, reverse=True)
    if not matching:
        step.said, step.problem = f"No route leads to {pod.ip}.", f"{pod.home.title} has no route to {pod.ip}"
        return step
    best = matching[0]
    step.read.append((best.text or best.dst, best.where))
    step.said = f"{pod.home.title} delivers packets for {pod.ip} to {best.dev or best.kind}" + (
        f" via {best.via}." if best.via else "."
    )
    neighbour = next((one for one in pod.home.neighbours or () if one.ip == pod.ip), None)
    if neighbour:
        step.read.append(
            (f"{neighbour.ip} dev {neighbour.dev} lladdr {neighbour.mac or '-'} {neighbour.state}", neighbour.where)
        )
    link = _host_veth(pod)
    if link and link.master and best.dev not in (link.master, link.name):
        step.problem = f"{pod.home.title} sends packets for {pod.ip} to {best.dev}, the pod hangs on {link.master}"
    return step


def peers(pod: Pod, snapshots: Sequence[Snapshot]) -> list[Step]:
    """How the other nodes of the input reach it."""
    steps = []
    for other in snapshots:
        if other is pod.home or other.routes is None or not pod.ip:
            continue
        matching = [route for route in other.routes if route.table == "main" and lies_in(pod.ip, route.dst)]
        matching.sort(key=lambda route: route.network.prefixlen, reverse=True)
        step = Step(f"From {other.title}", "")
        if not matching or matching[0].default:
            step.said = f"{other.title} has no route to the pod's range."
            step.problem = f"{other.title} cannot reach {pod.ip}: it has no route to the pod's range"
        else:
            best = matching[0]
            step.read.append((best.text or best.dst, best.where))
            step.said = f"{other.title} sends packets for {pod.ip} to {best.via or best.dev} by {best.dev}."
            mac = next((one for one in other.neighbours or () if one.ip == best.via and one.mac), None)
            entry = next((one for one in other.fdb or () if mac and one.mac == mac.mac and one.dst), None)
            if mac and entry:
                step.read.append((f"{mac.ip} lladdr {mac.mac} {mac.state}", mac.where))
                step.read.append((f"{entry.mac} dev {entry.dev} dst {entry.dst}", entry.where))
                step.said += f" The VTEP {mac.mac} is at {entry.dst}."
        steps.append(step)
    return steps
