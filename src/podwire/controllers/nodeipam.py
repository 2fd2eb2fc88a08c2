"""Node IPAM: every Node gets a podCIDR of its own when it registers, keeps it for life, and gives it back by going.

    Node without podCIDR   → the next free CIDR of each cluster range, written in one PATCH
    Node with podCIDRs     → these are taken (also at the start, before anything is given)
    Node gone              → what it held is free again, and Nodes that wait are tried at once
    range full             → Event CIDRNotAvailable on the Node, a log line, tried again with growing delays

Dual stack gives one CIDR of each range in the order of --cluster-cidr; spec.podCIDR is the first. A Node is known by its
uid, not its name: one that is deleted and registered again is another Node and gets another CIDR.

What is given is remembered here before it is written. If the answer to the PATCH is lost, the CIDR stays with that Node and
the same PATCH is sent again, so an unclear outcome can never give one CIDR to two Nodes.

Better than kube-controller-manager, which is silent or worse about these: a Node whose podCIDR another Node has, and one whose
podCIDR lies outside the cluster range (where the real one refuses to start), get a Warning Event and a log line; they keep
what they have, and a shared CIDR is free only when the last of its Nodes is gone.
"""

from __future__ import annotations

import ipaddress
import logging

from podwire.controllers.cidrset import CidrSet, Exhausted, Network, OutOfRange
from podwire.controllers.controller import Again, Context, Controller
from podwire.errors import ApiNotFound, UsageError
from podwire.kube.kinds import NODES
from podwire.kube.objects import Node, ObjectReference

log = logging.getLogger("podwire.controllers")

OUT_OF_RANGE, DUPLICATE = "CIDROutOfRange", "CIDRDuplicate"
DEFAULT_MASKS = {4: 24, 6: 64}
MAX_IPV6_BITS = 16  # the real one keeps a bitmap and refuses more than 2^16 IPv6 CIDRs; 2^16 nodes are enough


def cidr_sets(
    cluster_cidrs: str, service_ranges: str = "", mask: int = 0, mask_ipv4: int = 0, mask_ipv6: int = 0
) -> list[CidrSet]:
    """The sets for the flags, one a cluster range, in their order; raises UsageError with the real one's messages."""
    networks = parse_cidrs("--cluster-cidr", cluster_cidrs)
    if not networks:
        raise UsageError(
            "reading", "--cluster-cidr", "nodeipam needs a range to give from", "for example 10.244.0.0/16"
        )
    dual = len(networks) > 1
    if dual and (len(networks) > 2 or networks[0].version == networks[1].version):
        raise UsageError("reading", f"--cluster-cidr={cluster_cidrs}", "expected one range, or one of each IP family")
    if dual and mask:
        raise UsageError("usage of --node-cidr-mask-size is not allowed with dual-stack clusters")
    if not dual and (mask_ipv4 or mask_ipv6):
        wrong = "--node-cidr-mask-size-ipv4" if networks[0].version == 6 else "--node-cidr-mask-size-ipv6"
        if (mask_ipv4 if networks[0].version == 6 else mask_ipv6) or mask:
            raise UsageError(
                f"usage of {wrong} is not allowed with a cluster of the other IP family or with --node-cidr-mask-size"
            )
    by_family = {4: mask_ipv4 or mask or DEFAULT_MASKS[4], 6: mask_ipv6 or mask or DEFAULT_MASKS[6]}
    sets = [_cidr_set(network, by_family[network.version]) for network in networks]
    for service in parse_cidrs("--service-cluster-ip-range", service_ranges):
        for cidrs in sets:
            cidrs.reserve(service)
    return sets


def _cidr_set(network: Network, mask: int) -> CidrSet:
    if not 0 < mask <= network.max_prefixlen:
        raise UsageError("reading", "--node-cidr-mask-size", f"{mask} is no prefix length of {network}")
    if network.prefixlen > mask:
        raise UsageError(
            "Invalid --cluster-cidr, mask size of cluster CIDR must be less than or equal to "
            "--node-cidr-mask-size configured for CIDR family"
        )
    if network.version == 6 and mask - network.prefixlen > MAX_IPV6_BITS:
        raise UsageError("New CIDR set failed; the node CIDR size is too big")
    return CidrSet(network, mask)


def parse_cidrs(flag: str, text: str) -> list[Network]:
    """Comma-separated CIDRs; raises UsageError naming the flag."""
    networks: list[Network] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            networks.append(ipaddress.ip_network(part if "/" in part else "", strict=False))
        except ValueError:
            raise UsageError("reading", f"{flag}={text}", f"{part!r} is no CIDR", "expected ADDRESS/LENGTH") from None
    return networks


class Allocator:
    """Who has what, in all ranges at once; the memory of the controller, without the API."""

    def __init__(self, sets: list[CidrSet]) -> None:
        self._sets = sets
        self._given: dict[str, tuple[str, ...]] = {}

    def take(self, uid: str, cidrs: tuple[str, ...]) -> list[tuple[str, str]]:
        """`uid` has these CIDRs; returns what is wrong with that: an Event's reason and a sentence each."""
        if self._given.get(uid, cidrs) != cidrs:  # somebody else was faster with other ones
            self.release(uid)
        wrong: list[tuple[str, str]] = []
        for index, cidr in enumerate(cidrs):
            if index >= len(self._sets):
                wrong.append((OUT_OF_RANGE, f"{cidr} at index {index} does not exist in cluster cidrs configuration"))
                continue
            try:
                others = self._sets[index].occupy(cidr, uid)
            except (OutOfRange, ValueError) as error:
                wrong.append((OUT_OF_RANGE, str(error)))
                continue
            if others:
                wrong.append((DUPLICATE, f"{cidr} is also the podCIDR of another node"))
        return wrong

    def give(self, uid: str) -> tuple[str, ...]:
        """The CIDRs of `uid`: what it was given before, or new ones. Raises Exhausted and then holds nothing."""
        if uid not in self._given:
            try:
                self._given[uid] = tuple(cidrs.allocate(uid) for cidrs in self._sets)
            except Exhausted:
                self.release(uid)
                raise
        return self._given[uid]

    def release(self, uid: str) -> bool:
        """`uid` is gone; True if a CIDR became free."""
        self._given.pop(uid, None)
        freed = [cidrs.release(uid) for cidrs in self._sets]
        return any(freed)


class NodeIpam(Controller):
    """The controller; keys are node names."""

    name = "nodeipam"
    longest_retry = 1000.0  # as the real one

    def __init__(self, context: Context, sets: list[CidrSet]) -> None:
        super().__init__(context)
        self._allocator = Allocator(sets)
        self._nodes = context.informer(NODES)
        self._events = context.recorder("cidrAllocator")
        self._uids: dict[str, str] = {}  # name → uid of the Node that is counted under it
        self._waiting: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._nodes.on_change(self._changed)

    def _changed(self, key: str, old: Node | None, new: Node | None) -> None:
        # A kubelet reports every few seconds; only what nodeipam looks at is a reason to look.
        if old is None or new is None or old.pod_cidrs != new.pod_cidrs or key in self._waiting:
            self.queue.add(key)

    def prepare(self) -> None:
        """Count what Nodes have before anything is given."""
        for node in self._nodes.objects():
            if node.pod_cidrs:
                self._take(node)

    def sync(self, key: str) -> None:
        """One Node, by name."""
        node = self._nodes.get(key)
        known = self._uids.get(key)
        if known is not None and (node is None or node.metadata.uid != known):
            self._release(key, known)
        if node is None:
            self._waiting.discard(key)
        elif node.pod_cidrs:
            self._waiting.discard(key)
            self._take(node)
        else:
            self._give(node)

    def _take(self, node: Node) -> None:
        uid = node.metadata.uid
        self._uids[node.key] = uid
        for reason, sentence in self._allocator.take(uid, node.pod_cidrs):
            if (uid, sentence) not in self._told:
                self._told.add((uid, sentence))
                log.warning("podCIDR is wrong", extra={"kv": {"node": node.key, "reason": sentence}})
                self._events.event(_reference(node), "Warning", reason, f"podCIDR of node {node.key}: {sentence}")

    def _give(self, node: Node) -> None:
        uid = node.metadata.uid
        try:
            cidrs = self._allocator.give(uid)
        except Exhausted as error:
            level = logging.DEBUG if node.key in self._waiting else logging.WARNING  # once a node, not once a try
            self._waiting.add(node.key)
            log.log(level, "failed to allocate cidr, requeuing", extra={"kv": {"node": node.key, "error": str(error)}})
            message = f"Node {node.key} status is now: CIDRNotAvailable"
            self._events.event(_reference(node), "Normal", "CIDRNotAvailable", message)
            raise Again("") from None
        self._uids[node.key] = uid
        # The uid makes it a conflict if the Node was replaced by one of the same name meanwhile.
        body = {"metadata": {"uid": uid}, "spec": {"podCIDR": cidrs[0], "podCIDRs": list(cidrs)}}
        try:
            self.client.patch(NODES, node.key, body, patch_type="strategic")
        except ApiNotFound:
            self._release(node.key, uid)
            return
        self._waiting.discard(node.key)
        log.info("set node podCIDRs", extra={"kv": {"node": node.key, "podCIDRs": ",".join(cidrs)}})

    def _release(self, key: str, uid: str) -> None:
        del self._uids[key]
        self._told = {told for told in self._told if told[0] != uid}
        if self._allocator.release(uid):
            for waiting in list(self._waiting):
                self.queue.add(waiting)


def _reference(node: Node) -> ObjectReference:
    return ObjectReference(kind="Node", name=node.key, uid=node.metadata.uid, api_version="v1")
