"""A node as the checks see it: the snapshot, and what is worked out from it once and used by many.

Ranges (pod network, the node's podCIDR, the Service network) are said with where they were read: half of all faults are that two of
these places disagree, so nothing here picks a winner silently.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

from podwire.doctor.nft import NftTables, read_nft
from podwire.explain.confdir import ConfDir
from podwire.explain.read_iptables import read_texts
from podwire.explain.read_listing import read_listing
from podwire.explain.snapshot import Snapshot, name_of, pod_cidrs
from podwire.explain.snapshot_words import inner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from ipaddress import IPv4Network, IPv6Network

    from podwire.doctor.services import ServicePort
    from podwire.explain.snapshot import Link, Object
    from podwire.explain.tables import IptablesRules, RuleChain

    Network = IPv4Network | IPv6Network

FLANNEL = "flannel.alpha.coreos.com/"
_FLAG = re.compile(r"--([a-z][\w-]*)(?:[= ]([^\s\"',\]]+))?")


@dataclass(frozen=True, slots=True)
class Range:
    """A range of addresses and where it was read."""

    network: Network
    where: str


class Node:
    """See the module's text."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.rule_services: list[ServicePort] | None = None

    @property
    def title(self) -> str:
        """How the node is called."""
        return self.snapshot.title

    @property
    def name(self) -> str:
        """The Node's name for a command line; NODE where the input does not tell it."""
        snapshot = self.snapshot
        return snapshot.hostname or (name_of(snapshot.node) if snapshot.node else "") or "NODE"

    # -- rules -------------------------------------------------------------------------------------------------------

    @cached_property
    def iptables(self) -> list[IptablesRules]:
        """All iptables rule texts, read; IPv4 only where nothing else is asked."""
        found: list[IptablesRules] = []
        for text in self.snapshot.rules:
            if text.form == "L":
                found.append(read_listing(text.text, text.family, text.source, text.where))
            elif text.iptables:
                found += read_texts(text.text, text.family, text.source, text.where)
        return found

    @cached_property
    def nft(self) -> list[tuple[NftTables, str]]:
        """All nft listings, read, and where."""
        return [(read_nft(text.text), text.where) for text in self.snapshot.rules if not text.iptables]

    def chains(self, table: str, name: str, family: int = 4) -> Iterator[tuple[RuleChain, IptablesRules]]:
        """A chain in every rule text that has it."""
        for rules in self.iptables:
            if rules.family == family and table in rules.tables and name in rules.tables[table].chains:
                yield rules.tables[table].chains[name], rules

    @cached_property
    def kube_rules(self) -> bool:
        """Whether kube-proxy has left anything in iptables or nft."""
        chains = [name for rules in self.iptables for table in rules.tables.values() for name in table.chains]
        return any(name.startswith(("KUBE-SERVICES", "KUBE-FORWARD", "KUBE-SVC-")) for name in chains) or self.kube_nft

    @cached_property
    def kube_nft(self) -> bool:
        """Whether kube-proxy's nftables table is there."""
        return any("kube-proxy" in {name for _, name in tables.names} for tables, _ in self.nft)

    def any_chain(self, prefix: str) -> bool:
        """Whether some iptables chain's name begins so."""
        return any(
            name.startswith(prefix)
            for rules in self.iptables
            for table in rules.tables.values()
            for name in table.chains
        )

    # -- what the node is part of -------------------------------------------------------------------------------------

    @cached_property
    def flannel(self) -> str:
        """Where it was seen that the node uses (or used) flannel; '' where nothing says so."""
        snapshot = self.snapshot
        for link in snapshot.links or ():
            if link.name.startswith("flannel"):
                return f"device {link.name} ({link.where})"
        if snapshot.subnet_env:
            return snapshot.subnet_env.where
        if self.any_chain("FLANNEL"):
            return "chain FLANNEL-* in the rules"
        for rules in snapshot.rules:
            if "flanneld " in rules.text:
                return f"flanneld's rules ({rules.where})"
        winner = self.confdir.winner if self.confdir else None
        if winner and winner.network and "flannel" in winner.types:
            return winner.file.where
        return ""

    @cached_property
    def backend(self) -> str:
        """Flannel's backend: of the Node's annotation, of net-conf, of the device; '' where it is not known."""
        node = self.snapshot.node
        said = annotation(node, "backend-type") if node else ""
        if said:
            return said
        kind = inner(self.net_conf, "Backend").get("Type") if isinstance(self.net_conf.get("Backend"), dict) else None
        if isinstance(kind, str):
            return kind.lower()
        return "vxlan" if any(link.name.startswith("flannel.") for link in self.snapshot.links or ()) else ""

    @cached_property
    def net_conf(self) -> dict[str, Any]:
        """Flannel's net-conf.json."""
        if self.snapshot.net_conf is None:
            return {}
        try:
            value = json.loads(self.snapshot.net_conf.text)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    @cached_property
    def confdir(self) -> ConfDir | None:
        """The CNI configuration directory, None where it was not read."""
        return None if self.snapshot.cni_files is None else ConfDir(self.snapshot.cni_files)

    @property
    def bridge(self) -> str:
        """The bridge of the pods: what the configuration in force says, else cni0."""
        winner = self.confdir.winner if self.confdir else None
        for plugin in winner.plugins if winner else ():
            inner = plugin.get("delegate") if plugin.get("type") == "flannel" else plugin
            name = inner.get("bridge") if isinstance(inner, dict) else None
            if isinstance(name, str):
                return name
        return "cni0"

    @cached_property
    def flags(self) -> list[tuple[dict[str, str], str, str]]:
        """The flags of programs: of static pod manifests, of running processes, of loose flag files; program, and where."""
        found = []
        for item, where in self.snapshot.objects:
            found += [(flags, program, where) for program, flags in _manifest_flags(item)]
        for text in self.snapshot.output("processes"):
            for line in text.text.splitlines():
                words = line.split()
                if len(words) > 2:
                    found.append((_flags(line), words[2], f"{text.where}, {words[0]} {words[1]}"))
        found += [(_flags(text.text), "", text.where) for text in self.snapshot.output("flags")]
        return found

    @cached_property
    def programs(self) -> dict[int, str]:
        """The program of each process whose command line was read."""
        found = {}
        for text in self.snapshot.output("processes"):
            for line in text.text.splitlines():
                match = re.match(r"^pid (\d+): (\S+)", line)
                if match:
                    found[int(match.group(1))] = match.group(2)
        return found

    def flag(self, name: str) -> list[tuple[str, str]]:
        """The values of a flag over all programs, with where."""
        return [(flags[name], where) for flags, _, where in self.flags if name in flags]

    # -- ranges -----------------------------------------------------------------------------------------------------------

    @cached_property
    def pod_networks(self) -> list[Range]:
        """What the whole cluster's pods live in, by everybody who says so."""
        said = [(value, where) for text, where in self.flag("cluster-cidr") for value in text.split(",")]
        env = self.snapshot.environment()
        if self.snapshot.subnet_env and env.get("FLANNEL_NETWORK"):
            said += [
                (one, f"FLANNEL_NETWORK in {self.snapshot.subnet_env.where}")
                for one in env["FLANNEL_NETWORK"].split(",")
            ]
        if self.snapshot.net_conf:
            for key in ("Network", "IPv6Network"):
                said.append((str(self.net_conf.get(key, "")), f"{key} in {self.snapshot.net_conf.where}"))
        for item, where in self.snapshot.objects:
            networking = item.get("networking")
            if isinstance(networking, dict) and networking.get("podSubnet"):
                said += [(one, f"podSubnet in {where}") for one in str(networking["podSubnet"]).split(",")]
        return _ranges(said)

    @cached_property
    def proxy_cidrs(self) -> list[Range]:
        """kube-proxy's idea of what is a pod, from its rules (`! -s 10.244.0.0/16 … -j KUBE-MARK-MASQ`)."""
        found: dict[str, str] = {}
        for rules in self.iptables:
            nat = rules.tables.get("nat")
            if rules.family != 4 or nat is None:
                continue
            for name, chain in nat.chains.items():
                if not name.startswith(("KUBE-SVC-", "KUBE-SERVICES")):
                    continue
                for line in chain.lines:
                    match = re.match(r"^! -s (\S+) .*-j KUBE-MARK-MASQ", line)
                    if match:
                        found.setdefault(match.group(1), f"{rules.where}, chain {name}")
        return _ranges(found.items())

    @cached_property
    def service_networks(self) -> list[Range]:
        """Where clusterIPs come from, by everybody who says so."""
        said = [(one, where) for text, where in self.flag("service-cluster-ip-range") for one in text.split(",")]
        for item, where in self.snapshot.objects:
            networking = item.get("networking")
            if isinstance(networking, dict) and networking.get("serviceSubnet"):
                said += [(one, f"serviceSubnet in {where}") for one in str(networking["serviceSubnet"]).split(",")]
        return _ranges(said)

    @cached_property
    def own_cidrs(self) -> list[Range]:
        """The node's podCIDRs."""
        node = self.snapshot.node
        where = self.snapshot.where.get("nodes", "")
        return _ranges((one, f"podCIDR of Node {name_of(node)} in {where}") for one in pod_cidrs(node)) if node else []

    @cached_property
    def subnet(self) -> Range | None:
        """FLANNEL_SUBNET as a network."""
        text = self.snapshot.environment().get("FLANNEL_SUBNET", "")
        found = (
            _ranges([(text, f"FLANNEL_SUBNET in {self.snapshot.subnet_env.where}")]) if self.snapshot.subnet_env else []
        )
        return found[0] if found else None

    def pods_of(self) -> list[Object]:
        """The pods that run here: those the API binds to this node, or all where it is not known which node this is."""
        names = {self.snapshot.hostname, self.snapshot.label, name_of(self.snapshot.node or {})} - {""}
        pods = self.snapshot.pods or []
        bound = [pod for pod in pods if inner(pod, "spec").get("nodeName") in names]
        return bound if names and any(inner(pod, "spec").get("nodeName") for pod in pods) else pods

    def ports(self, bridge: str) -> list[Link]:
        """The ports of a bridge."""
        return [link for link in self.snapshot.links or () if link.master == bridge]


def annotation(node: Object, name: str) -> str:
    """A flannel annotation of a Node; the prefix may be another by flannel's own flag, so the end of the key decides."""
    metadata = node.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        return ""
    value = found.get(FLANNEL + name)
    if value is None:
        value = next((value for key, value in found.items() if "flannel" in key and key.endswith("/" + name)), "")
    return str(value)


def _ranges(said: Any) -> list[Range]:
    found = []
    for text, where in said:
        try:
            found.append(Range(ip_network(str(text).strip(), strict=False), where))
        except ValueError:
            continue
    return found


def _flags(text: str) -> dict[str, str]:
    return {name: value or "true" for name, value in _FLAG.findall(text)}


def _manifest_flags(item: Object) -> Iterator[tuple[str, dict[str, str]]]:
    spec = item.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict):
            words = [*_words(container.get("command")), *_words(container.get("args"))]
            flags = {}
            for word in words:
                name, _, value = word.partition("=")
                if name.startswith("--"):
                    flags[name[2:]] = value or "true"
            yield str(container.get("name", "")), flags


def _words(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []


def inside(text: str, ranges: list[Range]) -> bool:
    """Whether an address is in one of the ranges."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return any(address.version == one.network.version and address in one.network for one in ranges)


def overlaps(one: Network, other: Network) -> bool:
    """Whether two networks of the same family share addresses."""
    return one.version == other.version and one.overlaps(other)


def contains(outer: Network, inner: Network) -> bool:
    """Whether `inner` lies in `outer`."""
    return outer.version == inner.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # same version
