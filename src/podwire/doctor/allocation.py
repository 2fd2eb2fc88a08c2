"""What kube-controller-manager's flags mean for the podCIDRs of Nodes: whether any will be assigned, and whether there is one left."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import TYPE_CHECKING

from podwire.doctor.view import contains, overlaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Network


def manager_problems(flags: dict[str, str], count: int, used: list[Network]) -> Iterator[tuple[str, str]]:
    """What is wrong with a controller manager's flags, and the cure of each."""
    if flags.get("allocate-node-cidrs", "false").lower() != "true":
        yield (
            f"--allocate-node-cidrs={flags.get('allocate-node-cidrs', 'false (the default)')}: nobody will ever assign one",
            "--allocate-node-cidrs=true for kube-controller-manager",
        )
    controllers = flags.get("controllers", "*").split(",")
    if any(re.fullmatch(r"-node-?ipam(?:-controller)?", one.strip()) for one in controllers):
        yield (
            f"--controllers={flags['controllers']}: the controller that assigns them is switched off",
            "take -nodeipam out of --controllers",
        )
    cidrs: list[Network] = []
    for text in flags.get("cluster-cidr", "").split(","):
        try:
            cidrs.append(ip_network(text.strip(), strict=False))
        except ValueError:
            continue
    dual = len({one.version for one in cidrs}) > 1
    if dual and "node-cidr-mask-size" in flags:
        yield (
            f"--cluster-cidr={flags['cluster-cidr']} is dual-stack, and --node-cidr-mask-size={flags['node-cidr-mask-size']} is refused with it",
            "--node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 instead of --node-cidr-mask-size",
        )
    for cidr in cidrs:
        default = 24 if cidr.version == 4 else 64
        text = flags.get(
            f"node-cidr-mask-size-ipv{cidr.version}",
            flags.get("node-cidr-mask-size", str(default)) if not dual else str(default),
        )
        mask = int(text) if text.isdigit() else default
        if mask < cidr.prefixlen:
            yield f"--cluster-cidr={cidr} is smaller than a node's /{mask}", "a larger --cluster-cidr"
            continue
        yield from _capacity_problems(cidr, mask, count, used)
    for text in flags.get("service-cluster-ip-range", "").split(","):
        try:
            services = ip_network(text.strip(), strict=False)
        except ValueError:
            continue
        for cidr in cidrs:
            if overlaps(cidr, services):
                yield (
                    f"--service-cluster-ip-range={services} lies in --cluster-cidr={cidr}: the allocator leaves that part out",
                    "a Service range outside of the pods' range; this alone does not stop the assignment: look at the manager's log and who is the leader",
                )


def _capacity_problems(cidr: Network, mask: int, count: int, used: list[Network]) -> Iterator[tuple[str, str]]:
    """Whether the range has a block left for another node."""
    capacity = 1 << min(mask - cidr.prefixlen, 62)
    cure = "a larger --cluster-cidr, or a longer node mask (for new clusters)"
    nodes = f"{capacity} node{'s' if capacity > 1 else ''}"
    if count > capacity or capacity == 1:
        yield f"--cluster-cidr={cidr} with /{mask} per node is enough for {nodes}; there are {count}", cure
        return
    inside = [one for one in used if contains(cidr, one) or overlaps(cidr, one)]
    proper = {block for one in inside if one.prefixlen >= mask for block in _blocks(one, mask)}
    large = [one for one in inside if one.prefixlen < mask]
    if len(proper) >= capacity:
        yield f"--cluster-cidr={cidr} with /{mask} per node is enough for {nodes}, and all are taken", cure
    elif large and any(one.prefixlen <= cidr.prefixlen for one in large):
        first = int(cidr.network_address) >> (cidr.max_prefixlen - mask)
        free = next(number for number in range(first, first + capacity) if number not in proper)
        block = ip_network((free << (cidr.max_prefixlen - mask), mask))
        said = f"a Node has {large[0]}, which is every block of {cidr}: a strict allocator has nothing left; without that one the next is {block}"
        yield said, f"delete the Node that has {large[0]} and let it register again"


def _blocks(network: Network, mask: int) -> Iterator[int]:
    """The numbers of the node-sized blocks that a podCIDR touches, 1024 at most."""
    bits = network.max_prefixlen - mask
    first = int(network.network_address) >> bits
    last = int(network.broadcast_address) >> bits
    yield from range(first, min(last, first + 1023) + 1)
