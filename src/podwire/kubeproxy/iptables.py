"""A service port's view as iptables rules: its own chains, and its lines in the chains that all Services share.

    nat     KUBE-SERVICES ─┬─ clusterIP:port ────────────────────────► KUBE-SVC- or KUBE-SVL-
                           ├─ externalIP:port ──► KUBE-EXT- ─┐
                           ├─ ingress IP:port ─► (KUBE-FW-) ─┤
            KUBE-NODEPORTS ┴─ nodePort ────────► KUBE-EXT- ─┴───────► KUBE-SVC- or KUBE-SVL- ──► KUBE-SEP-… (DNAT)

    filter  KUBE-SERVICES            clusterIP without endpoints: REJECT or DROP
            KUBE-EXTERNAL-SERVICES   the same for external frontends
            KUBE-PROXY-FIREWALL      ingress IP traffic that KUBE-FW- did not take: DROP
            KUBE-NODEPORTS           healthCheckNodePorts: ACCEPT

Chains, comments and order are kube-proxy's own, so that `iptables-save | grep`, every troubleshooting guide and a rollback
to the real one work. The rules that belong to no Service are in `iptables_base`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from podwire import naming
from podwire.kubeproxy.family import contains
from podwire.kubeproxy.view import Handling, PortView
from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.kubeproxy.endpoints import Endpoint
    from podwire.kubeproxy.ports import ServicePort
    from podwire.kubeproxy.settings import Settings
    from podwire.kubeproxy.topology import Endpoints

MARK_MASQUERADE = v.Jump("KUBE-MARK-MASQ")

NAT_SERVICES = ("nat", "KUBE-SERVICES")
NAT_NODE_PORTS = ("nat", "KUBE-NODEPORTS")
FILTER_SERVICES = ("filter", "KUBE-SERVICES")
FILTER_EXTERNAL = ("filter", "KUBE-EXTERNAL-SERVICES")
FILTER_FIREWALL = ("filter", "KUBE-PROXY-FIREWALL")
FILTER_NODE_PORTS = ("filter", "KUBE-NODEPORTS")
SHARED_CHAINS = (NAT_SERVICES, NAT_NODE_PORTS, FILTER_SERVICES, FILTER_EXTERNAL, FILTER_FIREWALL, FILTER_NODE_PORTS)

SharedChain = tuple[str, str]
"""(table, chain)."""


@dataclass(frozen=True, slots=True)
class PortRules:
    """`shared`: lines for chains of all Services, in order. `own`: the port's chains of the nat table, in order."""

    shared: tuple[tuple[SharedChain, v.Rule], ...]
    own: tuple[tuple[str, tuple[v.Rule, ...]], ...]


def translate(view: PortView, settings: Settings, *, endpoint_comments: bool = True) -> PortRules:
    """The rules of one port. `endpoint_comments` False leaves out the comments of which there are most."""
    writer = _Writer(view, settings, endpoint_comments)
    return PortRules(tuple(writer.shared()), tuple(writer.own()))


@functools.cache
def _one_of(remaining: int) -> v.Random:
    """One endpoint of `remaining`: kube-proxy hands iptables ten decimals, and the kernel rounds those."""
    return v.Random(round(float(f"{1 / remaining:.10f}") * v.CHANCE_UNIT))


class _Writer:
    """The translation of one port; what its rules have in common is worked out once."""

    def __init__(self, view: PortView, settings: Settings, endpoint_comments: bool) -> None:
        port = view.port
        self.view = view
        self.port: ServicePort = port
        self.settings = settings
        self.endpoint_comments = endpoint_comments
        self._chains: dict[str, str] = {}  # by endpoint: a hash that takes a quarter of the whole translation
        self.protocol = v.Protocol(port.protocol)
        self.at_port = v.Ports(port.protocol, None, v.PortRange(port.port))
        digest = naming.chain_hash(port.title + port.protocol)
        self.cluster_chain = "KUBE-SVC-" + digest
        self.local_chain = "KUBE-SVL-" + digest
        self.external_chain = "KUBE-EXT-" + digest
        self.firewall_chain = "KUBE-FW-" + digest
        self.internal_chain = self.local_chain if port.internal_local else self.cluster_chain

    def _at(self, ip: str, comment: str, verdict: v.Verdict) -> v.Rule:
        """Traffic to the service port at one address."""
        destination = v.Destination(self.settings.family.host(ip))
        return v.Rule((destination, self.protocol, v.Comment(f"{self.port.title} {comment}"), self.at_port), verdict)

    # --- lines in shared chains

    def shared(self) -> Iterator[tuple[SharedChain, v.Rule]]:
        """Every frontend's line, and the refusals of those that lead nowhere."""
        port, view = self.port, self.view
        if view.internal is Handling.FORWARD:
            yield NAT_SERVICES, self._at(port.cluster_ip, "cluster IP", v.Jump(self.internal_chain))
        else:
            yield FILTER_SERVICES, self._at(port.cluster_ip, *self._refusal(view.internal))
        yield from self._external_ips()
        yield from self._load_balancer_ips()
        yield from self._node_port()
        if port.health_check_node_port:
            at = v.Ports("tcp", None, v.PortRange(port.health_check_node_port))
            comment = v.Comment(f"{port.title} health check node port")
            yield FILTER_NODE_PORTS, v.Rule((v.Protocol("tcp"), comment, at), v.Accept())

    def _refusal(self, handling: Handling) -> tuple[str, v.Verdict]:
        if handling is Handling.REJECT:
            return "has no endpoints", v.Reject(self.settings.family.reject_with)
        return "has no local endpoints", v.Drop()

    def _external_ips(self) -> Iterator[tuple[SharedChain, v.Rule]]:
        view = self.view
        for ip in self.port.external_ips:
            if view.any_usable:
                yield NAT_SERVICES, self._at(ip, "external IP", v.Jump(self.external_chain))
            if view.external is not Handling.FORWARD:
                yield FILTER_EXTERNAL, self._at(ip, *self._refusal(view.external))

    def _load_balancer_ips(self) -> Iterator[tuple[SharedChain, v.Rule]]:
        view, chain = self.view, self.firewall_chain if self.view.firewalled else self.external_chain
        for ip in self.port.load_balancer_ips:
            if view.any_usable:
                yield NAT_SERVICES, self._at(ip, "loadbalancer IP", v.Jump(chain))
                if view.firewalled:
                    yield FILTER_FIREWALL, self._at(ip, f"traffic not accepted by {chain}", v.Drop())
            if view.external is not Handling.FORWARD:
                yield FILTER_EXTERNAL, self._at(ip, *self._refusal(view.external))

    def _node_port(self) -> Iterator[tuple[SharedChain, v.Rule]]:
        port, view = self.port, self.view
        if not port.node_port:
            return
        at = v.Ports(port.protocol, None, v.PortRange(port.node_port))
        if view.any_usable:
            matches = (self.protocol, v.Comment(port.title), at)
            yield NAT_NODE_PORTS, v.Rule(matches, v.Jump(self.external_chain))
        if view.external is not Handling.FORWARD:
            why, verdict = self._refusal(view.external)
            local = v.AddrType(destination=("LOCAL",))
            yield FILTER_EXTERNAL, v.Rule((self.protocol, v.Comment(f"{port.title} {why}"), local, at), verdict)

    # --- the port's own chains

    def own(self) -> Iterator[tuple[str, tuple[v.Rule, ...]]]:
        """Chains before those that jump to them come last: endpoints, policies, external, firewall."""
        view, port = self.view, self.port
        for endpoint in view.reachable:
            yield self._endpoint_chain(endpoint), tuple(self._endpoint(endpoint))
        if view.cluster and port.uses_cluster:
            yield self.cluster_chain, tuple(self._policy(self.cluster_chain, view.cluster))
        if view.local and port.uses_local:
            yield self.local_chain, tuple(self._policy(self.local_chain, view.local))
        if view.exposed:
            yield self.external_chain, tuple(self._external())
            if view.firewalled:
                yield self.firewall_chain, tuple(self._firewall())

    def _policy(self, chain: str, endpoints: Endpoints) -> Iterator[v.Rule]:
        """Masquerade what comes to the clusterIP from outside, keep a known client where it was, choose by chance."""
        port, settings = self.port, self.settings
        if self.view.internal is Handling.FORWARD and chain == self.internal_chain:
            masquerade = self._at(port.cluster_ip, "cluster IP", MARK_MASQUERADE)
            if settings.masquerade_all:
                yield masquerade
            elif settings.detector is not None:
                yield _with(masquerade, settings.detector.remote)
        # Comment and target of each rule are needed twice with affinity.
        targets = [
            (self._endpoint_comment(f"{port.title} -> {endpoint.address}"), self._endpoint_chain(endpoint))
            for endpoint in endpoints
        ]
        if port.affinity_seconds:
            mask = settings.family.full_mask
            for comment, target in targets:
                recent = v.Recent("rcheck", target, seconds=port.affinity_seconds, reap=True, mask=mask)
                yield v.Rule((*comment, recent), v.Jump(target))
        remaining = len(targets)
        for comment, target in targets:
            yield v.Rule((*comment, _one_of(remaining)) if remaining > 1 else comment, v.Jump(target))
            remaining -= 1

    def _external(self) -> Iterator[v.Rule]:
        """What comes by an external frontend: hide its source, or keep it and use only this node's endpoints."""
        settings, port = self.settings, self.port
        what = f"for {port.title} external destinations"
        if not port.external_local:
            yield v.Rule((v.Comment(f"masquerade traffic {what}"),), MARK_MASQUERADE)
        else:
            to_cluster = v.Jump(self.cluster_chain)
            if settings.detector is not None:
                yield _with(v.Rule((v.Comment(f"pod traffic {what}"),), to_cluster), settings.detector.local)
            from_node = v.AddrType(source=("LOCAL",))
            yield v.Rule((v.Comment(f"masquerade LOCAL traffic {what}"), from_node), MARK_MASQUERADE)
            yield v.Rule((v.Comment(f"route LOCAL traffic {what}"), from_node), to_cluster)
        if self.view.external is Handling.FORWARD:
            yield v.Rule((), v.Jump(self.local_chain if port.external_local else self.cluster_chain))

    def _firewall(self) -> Iterator[v.Rule]:
        """Only allowed sources go on; the rest meets no DNAT and is dropped in KUBE-PROXY-FIREWALL."""
        port, settings = self.port, self.settings
        comment, to_external = v.Comment(f"{port.title} loadbalancer IP"), v.Jump(self.external_chain)
        for prefix in port.source_ranges:
            yield v.Rule((v.Source(prefix), comment), to_external)
        node_ip = settings.node_ip
        if node_ip is not None and any(contains(prefix, node_ip) for prefix in port.source_ranges):
            # Where the ingress address is bound to this node, the node's own requests have it as their source too.
            for ip in port.load_balancer_ips:
                yield v.Rule((v.Source(settings.family.host(ip)), comment), to_external)
        yield v.Rule((v.Comment(f"other traffic to {port.title} will be dropped by KUBE-PROXY-FIREWALL"),))

    def _endpoint_chain(self, endpoint: Endpoint) -> str:
        chain = self._chains.get(endpoint.address)
        if chain is None:
            chain = naming.endpoint_chain(self.port.title, self.port.protocol, endpoint.address)
            self._chains[endpoint.address] = chain
        return chain

    def _endpoint_comment(self, text: str) -> tuple[v.Match, ...]:
        return (v.Comment(text),) if self.endpoint_comments else ()

    def _endpoint(self, endpoint: Endpoint) -> Iterator[v.Rule]:
        """An endpoint that talks to itself is masqueraded, or its answer would never pass here; then DNAT."""
        comment = self._endpoint_comment(self.port.title)
        yield v.Rule((v.Source(self.settings.family.host(endpoint.ip)), *comment), MARK_MASQUERADE)
        remember: tuple[v.Match, ...] = ()
        if self.port.affinity_seconds:
            remember = (v.Recent("set", self._endpoint_chain(endpoint), mask=self.settings.family.full_mask),)
        matches = (self.protocol, *comment, *remember, v.Ports(self.port.protocol))
        yield v.Rule(matches, v.Dnat(endpoint.address))


def _with(rule: v.Rule, match: v.Match) -> v.Rule:
    """The rule with one more header match: a source address stands first, an interface behind the addresses."""
    if isinstance(match, v.InInterface) and rule.matches and isinstance(rule.matches[0], v.Destination):
        return v.Rule((rule.matches[0], match, *rule.matches[1:]), rule.verdict)
    return v.Rule((match, *rule.matches), rule.verdict)
