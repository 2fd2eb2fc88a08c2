"""A service port's view as nftables: its own chains and sets, and its elements in the sets and maps that all Services share.

    services ─ ip . proto . port ─► service-ips ───────┬─► service-… or local-…   clusterIP
             └ proto . port ──────► service-nodeports ─┴─► external-… ─► service-… or local-…
    before DNAT         firewall-ips ─► firewall-… (drop)
    where packets end   no-endpoint-services, no-endpoint-nodeports ─► reject-chain, or drop
    cluster-ips         every clusterIP in use        hairpin-connections   endpoints of this node, to and from themselves

Names and layout are kube-proxy's own. One thing is written in another way where there are many Services: the choice of
an endpoint. The real one always writes

    dnat ip to numgen random mod 3 map { 0 : 10.244.1.1 . 80, 1 : … }

of which each is an anonymous set. The kernel goes through all sets of a table for each new one, and through the whole transaction
too: 10,000 such rules take it 10 s, and 1.5 s as a row of rules, each taken by one in as many as are left:

    numgen random mod 3 0 dnat to 10.244.1.1:80
    numgen random mod 2 0 dnat to …

So `Choices.RULES` is for those; a Service of more than `LONGEST_ROW` endpoints still gets its map, because the row is walked
for every new connection. The rules that belong to no Service are in `nftables_base`.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from podwire import naming
from podwire.kubeproxy.family import contains
from podwire.kubeproxy.view import Handling, PortView
from podwire.rules import vocabulary as v
from podwire.rules.nft import words as w

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.kubeproxy.endpoints import Endpoint
    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.settings import LocalDetector, Settings
    from podwire.kubeproxy.topology import Endpoints

CLUSTER_IPS = "cluster-ips"
NODE_PORT_IPS = "nodeport-ips"
HAIRPIN = "hairpin-connections"
NO_ENDPOINT_SERVICES = "no-endpoint-services"
NO_ENDPOINT_NODE_PORTS = "no-endpoint-nodeports"
FIREWALL_IPS = "firewall-ips"
SERVICE_IPS = "service-ips"
SERVICE_NODE_PORTS = "service-nodeports"
REJECT_CHAIN = "reject-chain"
AFFINITY_PREFIX = "affinity-"

LONGEST_ROW = 64


class Choices(Enum):
    """How one of several endpoints is chosen."""

    MAPS = "maps"
    RULES = "rules"


@dataclass(frozen=True, slots=True)
class Block:
    """Everything in the table that has one owner: a service port, or the base."""

    sets: tuple[w.Set, ...]
    chains: tuple[w.Chain, ...]
    elements: tuple[w.Element, ...]


def is_from(detector: LocalDetector, *, local: bool) -> w.Is:
    """The condition "comes from a local pod", or its opposite."""
    match = detector.local if local else detector.remote
    if isinstance(match, v.Source):
        return w.Is("ip6 saddr" if ":" in match.value else "ip saddr", (match.value,), match.inverted)
    assert isinstance(match, v.InInterface)
    value = match.value[:-1] + "*" if match.value.endswith("+") else match.value
    return w.Is("iifname", (value,), match.inverted)


def translate(view: PortView, settings: Settings, choices: Choices = Choices.MAPS) -> Block:
    """What the table holds of one port."""
    writer = _Writer(view, settings, choices)
    return Block(tuple(writer.sets()), tuple(writer.chains()), tuple(writer.elements()))


class _Writer:
    """The translation of one port; what its parts have in common is worked out once."""

    def __init__(self, view: PortView, settings: Settings, choices: Choices) -> None:
        port = view.port
        namespace, _, service = port.service.partition("/")
        self.view = view
        self.port = port
        self.settings = settings
        self.choices = choices
        self.header = "ip" if settings.family.version == 4 else "ip6"
        self.name = naming.nft_service_name(namespace, service, port.protocol, port.name)
        self.cluster_chain = "service-" + self.name
        self.local_chain = "local-" + self.name
        self.external_chain = "external-" + self.name
        self.firewall_chain = "firewall-" + self.name
        self.endpoint_names = {
            endpoint.address: naming.nft_endpoint_name(self.name, endpoint.ip, endpoint.port)
            for endpoint in (view.reachable if port.affinity_seconds else ())
        }

    # --- elements of shared sets and maps

    def elements(self) -> Iterator[w.Element]:
        """Every frontend, and the refusals of those that lead nowhere."""
        port, view = self.port, self.view
        yield w.Element(CLUSTER_IPS, port.cluster_ip)
        if view.internal is Handling.FORWARD:
            chain = self.local_chain if port.internal_local else self.cluster_chain
            yield w.Element(SERVICE_IPS, self._at(port.cluster_ip), f"goto {chain}")
        else:
            yield self._refusal(NO_ENDPOINT_SERVICES, self._at(port.cluster_ip), view.internal)
        for ip in (*port.external_ips, *port.load_balancer_ips):
            yield from self._external(SERVICE_IPS, NO_ENDPOINT_SERVICES, self._at(ip))
        if view.firewalled:
            for ip in port.load_balancer_ips:
                yield w.Element(FIREWALL_IPS, self._at(ip), f"goto {self.firewall_chain}")
        if port.node_port:
            yield from self._external(SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS, f"{port.protocol} . {port.node_port}")
        for endpoint in view.reachable:
            if endpoint.local:
                key = f"{endpoint.ip} . {endpoint.ip} . {port.protocol} . {endpoint.port}"
                yield w.Element(HAIRPIN, key)

    def _at(self, ip: str) -> str:
        return f"{ip} . {self.port.protocol} . {self.port.port}"

    def _external(self, found: str, refused: str, key: str) -> Iterator[w.Element]:
        view = self.view
        if view.any_usable:
            yield w.Element(found, key, f"goto {self.external_chain}")
        if view.external is not Handling.FORWARD:
            yield self._refusal(refused, key, view.external)

    def _refusal(self, where: str, key: str, handling: Handling) -> w.Element:
        verdict = f"goto {REJECT_CHAIN}" if handling is Handling.REJECT else "drop"
        return w.Element(where, key, verdict, self.port.title)

    # --- the port's own sets and chains

    def sets(self) -> Iterator[w.Set]:
        """With session affinity: for each endpoint the clients that were led to it."""
        kind = f"ipv{self.settings.family.version}_addr"
        for name in self.endpoint_names.values():
            yield w.Set(AFFINITY_PREFIX + name, kind, timeout=self.port.affinity_seconds)

    def chains(self) -> Iterator[w.Chain]:
        """Chains before those that lead to them."""
        view, port = self.view, self.port
        for endpoint in view.reachable if port.affinity_seconds else ():
            yield self._endpoint(endpoint)
        if view.cluster and port.uses_cluster:
            yield w.Chain(self.cluster_chain, tuple(self._policy(view.cluster)))
        if view.local and port.uses_local:
            yield w.Chain(self.local_chain, tuple(self._policy(view.local)))
        if view.exposed:
            yield w.Chain(self.external_chain, tuple(self._masquerading()))
        if view.firewalled:
            sources = w.Is(f"{self.header} saddr", self._allowed(), inverted=True)
            yield w.Chain(self.firewall_chain, (w.Rule((sources, v.Drop())),))

    def _endpoint(self, endpoint: Endpoint) -> w.Chain:
        name = self.endpoint_names[endpoint.address]
        remember = w.Rule((w.Remember(f"{self.header} saddr", AFFINITY_PREFIX + name),))
        return w.Chain("endpoint-" + name, (remember, w.Rule((self._protocol(), w.DnatTo(endpoint.address)))))

    def _protocol(self) -> w.Is:
        return w.Is("meta l4proto", (self.port.protocol,))

    def _policy(self, endpoints: Endpoints) -> Iterator[w.Rule]:
        """Keep a known client where it was, else choose by chance."""
        in_a_row = self.choices is Choices.RULES and len(endpoints) <= LONGEST_ROW
        if not self.port.affinity_seconds:
            if not in_a_row:
                targets = tuple((endpoint.ip, endpoint.port) for endpoint in endpoints)
                yield w.Rule((self._protocol(), w.DnatToOneOf(self.header, targets)))
                return
            yield from _row((self._protocol(),), [w.DnatTo(endpoint.address) for endpoint in endpoints])
            return
        names = [self.endpoint_names[endpoint.address] for endpoint in endpoints]
        for name in names:
            known = w.In((f"{self.header} saddr",), AFFINITY_PREFIX + name)
            yield w.Rule((known, v.Goto("endpoint-" + name)))
        if in_a_row:
            yield from _row((), [v.Goto("endpoint-" + name) for name in names])
        else:
            yield w.Rule((w.GotoOneOf(tuple("endpoint-" + name for name in names)),))

    def _masquerading(self) -> Iterator[w.Rule]:
        """What comes by an external frontend: hide its source, or keep it and use only this node's endpoints."""
        settings, port = self.settings, self.port
        mark = w.Mark("|", settings.masquerade_mark)
        to_cluster = v.Goto(self.cluster_chain)
        if not port.external_local:
            yield w.Rule((mark,), "masquerade")
            yield w.Rule((to_cluster,))
            return
        if settings.detector is not None:
            yield w.Rule((is_from(settings.detector, local=True), to_cluster), "short-circuit pod traffic")
        from_node = w.Is("fib saddr type", ("local",))
        yield w.Rule((from_node, mark), "masquerade local traffic")
        yield w.Rule((from_node, to_cluster), "short-circuit local traffic")
        if self.view.external is Handling.FORWARD:
            yield w.Rule((v.Goto(self.local_chain),))

    def _allowed(self) -> tuple[str, ...]:
        """The source ranges, without those inside of others, which nft would take for a mistake."""
        settings, ranges = self.settings, list(self.port.source_ranges)
        if settings.node_ip is not None and any(contains(prefix, settings.node_ip) for prefix in ranges):
            # Where the ingress address is bound to this node, the node's own requests have it as their source too.
            ranges += [settings.family.host(ip) for ip in self.port.load_balancer_ips]
        return merged(settings.family, ranges)


def _row(start: tuple[w.Word, ...], ends: Sequence[w.Word]) -> Iterator[w.Rule]:
    """Rules of which the first takes one packet in n, the next one in n - 1 of the rest, the last all that are left."""
    for left, end in zip(range(len(ends), 0, -1), ends, strict=True):
        yield w.Rule((*start, w.Chance(left), end) if left > 1 else (*start, end))


def merged(family: Family, prefixes: list[str]) -> tuple[str, ...]:
    """The same addresses in the fewest prefixes, single ones without their length."""
    if family.version == 4:
        found = [str(network) for network in ipaddress.collapse_addresses(map(ipaddress.IPv4Network, prefixes))]
    else:
        found = [str(network) for network in ipaddress.collapse_addresses(map(ipaddress.IPv6Network, prefixes))]
    return tuple(text.removesuffix(f"/{family.bits}") for text in found)
