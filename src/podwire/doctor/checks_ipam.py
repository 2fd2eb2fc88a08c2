"""Checks of what CNI plugins and libcni leave on disk: host-local's reservations, flannel's scratch files, the result cache."""

from __future__ import annotations

import json
import re
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Network, Node
    from podwire.explain.snapshot import Sandbox, TextFile

_ROOT = "/var/lib/cni"


def _reservations(node: Node) -> Iterator[tuple[str, str, str, TextFile]]:
    """Network, address, container ID and file of each reservation."""
    for file in node.snapshot.reservations or ():
        network, _, name = file.name.partition("/")
        try:
            # host-local writes an IPv6 address as it is; some versions put '_' for ':'.
            address = str(ip_address(name.replace("_", ":")))
        except ValueError:
            continue
        # One line (old) or two, with either line end.
        lines = file.text.replace("\r", "").split("\n")
        yield network, address, lines[0].strip(), file


def look_leak(node: Node) -> Iterator[Said]:
    """Reservations of sandboxes that the runtime does not know."""
    snapshot = node.snapshot
    if snapshot.sandboxes is None or snapshot.reservations is None:
        return
    known = {one.id: one for one in snapshot.sandboxes}
    runtime = snapshot.sandboxes[0].where if snapshot.sandboxes else "crictl pods"
    networks: dict[str, list[tuple[str, str, TextFile]]] = {}
    for network, address, container, file in _reservations(node):
        networks.setdefault(network, []).append((address, container, file))
    for network, taken in sorted(networks.items()):
        taken.sort(key=lambda one: (ip_address(one[0]).version, int(ip_address(one[0]))))
        leaked = [one for one in taken if one[1] and not _known(one[1], known)]
        empty = [one for one in taken if not one[1]]
        if not leaked and not empty:
            continue
        yield _leak_said(node, network, taken, leaked, empty, runtime)


def _known(container: str, known: dict[str, Sandbox]) -> bool:
    """Whether the runtime has it; a table of `crictl pods` shows the beginnings of the IDs only."""
    return container in known or any(len(one) < 64 and container.startswith(one) for one in known if one)


def _leak_said(
    node: Node,
    network: str,
    taken: list[tuple[str, str, TextFile]],
    leaked: list[tuple[str, str, TextFile]],
    empty: list[tuple[str, str, TextFile]],
    runtime: str,
) -> Said:
    snapshot = node.snapshot
    kept = len(taken) - len(leaked) - len(empty)
    said = f"{len(taken)} addresses of network {network} are taken: {kept} by sandboxes that the runtime knows, {len(leaked)} leaked"
    evidence = [
        Evidence(said + (f", {len(empty)} by empty files" if empty else ""), f"{_ROOT}/networks/{network}, {runtime}")
    ]
    full = _capacity(node)
    if full and len(taken) >= full[1]:
        evidence.append(Evidence(f"the range is full: {full[0]} has {full[1]} addresses for pods", full[2]))
    for address, container, file in [*leaked, *empty][:300]:
        evidence.append(Evidence(f"{address}: {container[:12] or 'empty file'}", file.where))
    waiting = [
        one
        for one in snapshot.sandboxes or ()
        if not one.ready and any(container.startswith(one.id) for _, container, _ in taken)
    ]
    evidence += [
        Evidence(
            f"not leaked: {one.id[:12]} ({one.namespace}/{one.name}) is NotReady, but the runtime knows it and will release it",
            one.where,
        )
        for one in waiting[:10]
    ]
    fix = [
        "for each leaked ID: CNI DEL with the network's configuration (CNI_CONTAINERID=ID CNI_IFNAME=eth0); it also frees host ports"
    ]
    if snapshot.scratch is not None:
        scratch = {file.name for file in snapshot.scratch}
        without = [(address, container) for address, container, _ in leaked if container not in scratch]
        if without and (scratch or node.flannel):
            evidence.append(
                Evidence(
                    f"{len(without)} of the leaked IDs have no file in {_ROOT}/flannel: DEL of type flannel answers success and frees nothing",
                    f"{_ROOT}/flannel",
                )
            )
            fix = [f"rm {' '.join(f'{_ROOT}/networks/{network}/{address}' for address, _ in without)}", *fix]
    gone = {address for address, _, _ in leaked}
    evidence += [
        Evidence(
            f"{one.ip} was used not long ago ({one.state}): look for a container outside the runtime's list before removing",
            one.where,
        )
        for one in snapshot.neighbours or ()
        if one.ip in gone and re.search("REACHABLE|STALE|DELAY|PROBE", one.state)
    ]
    fix.append("never rm -rf the whole directory while pods run: two pods would get the same address")
    title = f"{len(leaked) + len(empty)} addresses of {network} are reserved for nobody" + (
        ", and the range is full" if full and len(taken) >= full[1] else ""
    )
    return Said(evidence, fix, title, level="error" if full and len(taken) >= full[1] else "warning")


def _capacity(node: Node) -> tuple[Network, int, str] | None:
    """The node's range, and how many pods it has room for: all but network, broadcast and gateway."""
    found = node.subnet or (node.own_cidrs[0] if node.own_cidrs else None)
    if found is None or found.network.version != 4:
        return None
    return found.network, found.network.num_addresses - 3, found.where


def look_future_leak(node: Node) -> Iterator[Said]:
    """Living sandboxes whose scratch file is gone: their addresses will leak when they end."""
    snapshot = node.snapshot
    if not snapshot.scratch or snapshot.sandboxes is None:
        return
    scratch = {file.name for file in snapshot.scratch}
    known = {one.id: one for one in snapshot.sandboxes}
    lost = [
        (address, known[container], file)
        for _, address, container, file in _reservations(node)
        if container in known and container not in scratch
    ]
    if lost:
        yield Said(
            [
                Evidence(
                    f"{address}: {one.namespace}/{one.name} ({one.id[:12]}) has no {_ROOT}/flannel/{one.id[:12]}…",
                    file.where,
                )
                for address, one, file in lost
            ],
            [
                "after each of these pods has ended, remove its reservation by hand: "
                + " ".join(f"{_ROOT}/networks/{file.name}" for _, _, file in lost)
            ],
            level="warning",
        )


def look_cache(node: Node) -> Iterator[Said]:
    """Cached results that are no JSON."""
    reserved = {container: address for _, address, container, _ in _reservations(node)}
    bad = []
    for file in node.snapshot.results or ():
        try:
            if isinstance(json.loads(file.text), dict):
                continue
            problem = "it is no JSON object"
        except (ValueError, RecursionError):
            problem = (
                "it is empty" if not file.text.strip() else f"it is cut off or broken after {len(file.text)} bytes"
            )
        owner = re.match(r"^(.+)-([0-9a-f]{64})-([^-]+)$", file.name)
        bad.append((file, problem, owner))
    for file, problem, owner in bad:
        evidence = [Evidence(f"{file.name}: {problem}", file.where)]
        if owner:
            network, container, interface = owner.groups()
            names = {one.id: f"{one.namespace}/{one.name}" for one in node.snapshot.sandboxes or ()}
            said = f"it belongs to network {network}, container {container[:12]}, {interface}"
            evidence.append(Evidence(said + (f", pod {names[container]}" if container in names else ""), file.where))
            if container in reserved:
                evidence.append(
                    Evidence(
                        f"{reserved[container]} stays reserved for it",
                        f"{_ROOT}/networks/{network}/{reserved[container]}",
                    )
                )
        yield Said(
            evidence,
            [
                f"rm {_ROOT}/results/{file.name}   # DEL then goes to the plugins, which free address and ports by container ID"
            ],
            title=f"A cached CNI result is broken: {file.name[:28]}…",
        )


def look_range(node: Node) -> Iterator[Said]:
    """Reservations outside of the node's range: of an earlier lease."""
    subnet = node.subnet
    if subnet is None or node.snapshot.reservations is None:
        return
    winner = node.confdir.winner if node.confdir else None
    names = {winner.network.name} if winner and winner.network and "flannel" in winner.types else {"cbr0"}
    strangers = [
        (address, file)
        for network, address, _, file in _reservations(node)
        if network in names
        and ip_address(address).version == subnet.network.version
        and ip_address(address) not in ip_network(subnet.network)
    ]
    if strangers:
        yield Said(
            [
                Evidence(f"{address} is not of {subnet.network}", f"{file.where}; {subnet.where}")
                for address, file in strangers[:20]
            ],
            [
                "restart the pods that hold them, then remove what is left: "
                + " ".join(f"{_ROOT}/networks/{file.name}" for _, file in strangers[:20])
            ],
            level="warning",
        )


CHECKS = (
    Check(
        "hostlocal-leak",
        "Addresses are reserved for sandboxes that are gone",
        'New pods fail with "no IP addresses available in range set", after a reboot or a restart of the runtime.',
        "host-local keeps a file per address until DEL is called with the container's ID. Where the runtime forgot a sandbox without DEL, the file"
        " stays for ever, and the range fills up.",
        look_leak,
    ),
    Check(
        "hostlocal-leak-ahead",
        "Addresses that will leak when their pods end",
        "Nothing yet.",
        "The flannel plugin finds what to delegate DEL to in /var/lib/cni/flannel/ID. Without that file its DEL succeeds and frees nothing.",
        look_future_leak,
    ),
    Check(
        "hostlocal-old-range",
        "Reservations of an earlier range",
        "Pods with addresses of another node's range; they are cut off when the bridge gets its new address.",
        "The node was given another podCIDR while these addresses were in use. They now belong to whichever node holds that range.",
        look_range,
    ),
    Check(
        "cni-cache-broken",
        "A cached CNI result is broken",
        'A pod stays Terminating; kubelet repeats StopPodSandbox with "unexpected end of JSON input".',
        "libcni reads the cached result before DEL. A file that is no JSON stops it there: the plugins are never called, and address and host"
        " ports stay taken.",
        look_cache,
    ),
)
