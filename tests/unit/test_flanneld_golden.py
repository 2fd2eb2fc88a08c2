"""What flanneld plans, publishes and writes equals what the real flanneld left on its nodes (tests/data/flannel)."""

from __future__ import annotations

import ipaddress
import json
import pathlib
import re

import pytest

from podwire.flanneld import flags, hostgw, netconf, subnetenv, traffic, vxlan
from podwire.flanneld.lease import Annotations, Lease, NodeRecord, own_subnets, peers
from podwire.flanneld.plan import Address, Fdb, Neighbour, Plan, Route, Underlay, Vxlan
from podwire.rules.iptables.spell import spell

pytestmark = pytest.mark.unit

DATA = pathlib.Path(__file__).parent.parent / "data" / "flannel"
CASES = sorted(path.stem for path in DATA.glob("*.json"))
ANNOTATIONS = Annotations.under("flannel.alpha.coreos.com")
FORWARD = "iptables_forward_rules"


class Golden:
    """One node of one case, as input for our code and as the truth to compare with."""

    def __init__(self, case: str, node: str) -> None:
        record = json.loads((DATA / f"{case}.json").read_text())
        self.truth = record["nodes"][node]
        self.config = netconf.parse(json.dumps(record["net_conf"]))
        self.options = flags.parse(["--kube-subnet-mgr", *record["flags"]], {})
        self.nodes = [
            NodeRecord(name, f"uid-{name}", facts["annotations"], tuple(facts["pod_cidrs"]))
            for name, facts in record["nodes"].items()
        ]
        self.node = next(one for one in self.nodes if one.name == node)
        addresses = [ipaddress.ip_interface(text).ip for text in self.truth["underlay"]]
        used = tuple(
            address for address in addresses if any(net.version == address.version for net in self.config.networks())
        )
        self.underlay = Underlay("eth0", 1500, used, used)
        self.subnets, self.why = own_subnets(self.node, self.config)
        self.on_link = {
            ipaddress.ip_address(text) for text in ("192.168.50.11", "192.168.50.12", "fd50::11", "fd50::12")
        }

    def leases(self) -> list[Lease]:
        backend, vni = self.config.backend, self.config.vxlan.vni
        return [
            Lease(
                self.node.name,
                subnet,
                self.underlay.public_address(subnet.version),
                backend,
                ANNOTATIONS.stored_mac(self.node, subnet.version),
                vni if backend == "vxlan" else 0,
            )
            for subnet in self.subnets
        ]

    def plan(self) -> Plan:
        plan = Plan()
        for own in self.leases():
            others, unusable = peers(self.nodes, own, ANNOTATIONS)
            assert unusable == []
            if self.config.backend == "vxlan":
                plan += vxlan.plan(self.config.vxlan, self.underlay, own, others, self.on_link)
            else:
                plan += hostgw.plan(self.underlay, others)
        return plan


@pytest.fixture(
    params=[(case, node) for case in CASES for node in ("n1", "n2")], ids=lambda pair: f"{pair[0]}-{pair[1]}"
)
def golden(request):
    return Golden(*request.param)


def link_of(line: str) -> Vxlan:
    found = re.fullmatch(
        r"(?P<name>\S+): <[^>]*\bUP\b[^>]*> mtu (?P<mtu>\d+) (?!.*qlen).* link/ether (?P<mac>\S+) .* vxlan id (?P<vni>\d+) "
        r"local (?P<local>\S+) dev (?P<dev>\S+) srcport 0 0 dstport (?P<port>\d+) (?P<no>nolearning )?ttl auto ageing 300 "
        r"udpcsum noudp6zerocsumtx noudp6zerocsumrx(?P<gbp> gbp)?",
        line,
    )
    assert found, line
    return Vxlan(
        name=found["name"],
        vni=int(found["vni"]),
        local=ipaddress.ip_address(found["local"]),
        device=found["dev"],
        port=int(found["port"]),
        mtu=int(found["mtu"]),
        mac=found["mac"],
        learning=not found["no"],
        gbp=bool(found["gbp"]),
    )


def route_of(line: str) -> Route:
    found = re.fullmatch(r"(\S+) via (\S+) dev (\S+)( metric 1024)?( onlink)?( pref medium)?\s*", line)
    assert found, line
    return Route(ipaddress.ip_network(found[1]), ipaddress.ip_address(found[2]), found[3], onlink=bool(found[5]))


def words(line: str) -> dict[str, str]:
    first, *rest = line.removesuffix(" self permanent").split()
    return {"": first, **dict(zip(rest[::2], rest[1::2], strict=True))}


def test_the_devices_are_those_of_the_real_one(golden):
    assert set(golden.plan().devices) == {link_of(line) for line in golden.truth["links"]}


def test_the_addresses_are_those_of_the_real_one(golden):
    found = [words(line) for line in golden.truth["addresses"]]
    assert set(golden.plan().addresses) == {Address(one["dev"], ipaddress.ip_interface(one[""])) for one in found}


def test_the_routes_are_those_of_the_real_one(golden):
    assert set(golden.plan().routes) == {route_of(line) for line in golden.truth["routes"]}
    assert golden.truth["routes"], "every case has at least one peer"


def test_the_neighbours_are_those_of_the_real_one(golden):
    found = [words(line) for line in golden.truth["neighbours"]]
    wanted = {Neighbour(one["dev"], ipaddress.ip_address(one[""]), one["lladdr"]) for one in found}
    assert set(golden.plan().neighbours) == wanted


def test_the_forwarding_entries_are_those_of_the_real_one(golden):
    found = [words(line) for line in golden.truth["fdb"]]
    assert set(golden.plan().fdb) == {Fdb(one["dev"], one[""], ipaddress.ip_address(one["dst"])) for one in found}


def test_the_annotations_are_those_of_the_real_one(golden):
    fresh = NodeRecord(golden.node.name, golden.node.uid, {}, golden.node.pod_cidrs)
    assert ANNOTATIONS.published(fresh, golden.leases()) == golden.truth["annotations"]


def test_subnet_env_is_that_of_the_real_one_to_the_byte(golden):
    written = subnetenv.text(golden.config, golden.subnets, golden.plan().mtu, ip_masq=golden.options.ip_masq)
    assert written == golden.truth["subnet_env"]


def chain_lines(chain: traffic.Chain) -> list[str]:
    return [
        f":{chain.name} - [0:0]",
        f"-A {chain.hook} {spell(chain.jump)}",
        *(f"-A {chain.name} {spell(rule)}" for rule in chain.rules),
    ]


def test_the_iptables_rules_are_those_of_the_real_one_in_their_order(golden):
    for version, program in ((4, "iptables"), (6, "ip6tables")):
        lines = []
        if not golden.config.nftables:
            for network, subnet in zip(golden.config.networks(), golden.subnets, strict=True):
                if network.version != version:
                    continue
                if getattr(golden.options, FORWARD):
                    lines += chain_lines(traffic.forward(network))
                if golden.options.ip_masq:
                    random_fully = not golden.options.ip_masq_fully_random_disable
                    lines += chain_lines(traffic.masquerade(network, subnet, random_fully=random_fully))
        assert lines == golden.truth[program]


def test_the_nft_tables_are_those_of_the_real_one(golden):
    text = ""
    if golden.config.nftables:
        masq = "masquerade fully-random" if golden.options.ip_masq else ""
        subnets = {subnet.version: subnet for subnet in golden.subnets}
        networks = {network.version: network for network in golden.config.networks()}
        for version in (4, 6):
            text += traffic.nft(version, networks.get(version), subnets.get(version), masq=masq, accept=True)
    assert text.splitlines() == golden.truth["nft"]
