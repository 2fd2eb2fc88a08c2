"""What portmap reads and what it is about to write, without a kernel."""

import re

import pytest

from podwire.addresses import Prefix
from podwire.cni.plugins import portmap_iptables as iptables
from podwire.cni.plugins import portmap_nft as nft
from podwire.cni.plugins.portmap_conf import Conf
from podwire.cni.skel import Request
from podwire.naming import cni_chain

pytestmark = pytest.mark.unit

V4, V6 = Prefix.parse("10.1.2.3/24"), Prefix.parse("fd00:1::5/64")
PREVIOUS = {
    "interfaces": [{"name": "br0"}, {"name": "eth0", "sandbox": "/x"}],
    "ips": [
        {"interface": 0, "address": "10.1.2.1/24"},
        {"interface": 1, "address": "fd00:1::5/64"},
        {"interface": 1, "address": "10.1.2.3/24"},
        {"interface": 1, "address": "10.1.2.4/24"},
    ],
}


def read(*mappings, **options):
    request = Request({"CNI_CONTAINERID": "pod", "CNI_IFNAME": "eth0"}, print)
    request.version = "1.0.0"
    request.conf = {"name": "net", "runtimeConfig": {"portMappings": list(mappings)}, **options}
    return Conf(request)


def port(host, container=80, protocol="tcp", **more):
    return {"hostPort": host, "containerPort": container, "protocol": protocol, **more}


def lines(rules):
    return [rule.line() for rule in rules]


def test_the_containers_addresses_are_the_first_of_each_family_on_its_interface():
    assert read(prevResult=PREVIOUS).nets == [V4, V6]


@pytest.mark.parametrize("index", [None, 7])
def test_an_address_on_no_known_interface_may_be_the_containers(index):
    previous = {"interfaces": PREVIOUS["interfaces"], "ips": [{"interface": index, "address": "10.1.2.3/24"}]}
    assert read(prevResult=previous).nets == [V4]


def test_keys_are_found_whatever_their_case():
    conf = read(SNAT=False, runtimeconfig={"PORTMAPPINGS": [{"HOSTPORT": 1, "containerport": 2, "Protocol": "udp"}]})
    assert conf.snat is False


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"markMasqBit": -1}, "MasqMarkBit must be between 0 and 31"),
        ({"markMasqBit": 5, "externalSetMarkChain": "X"}, "Cannot specify externalSetMarkChain and markMasqBit"),
        ({"backend": "ipfw"}, 'unrecognized backend "ipfw"'),
        (
            {"backend": "nftables", "externalSetMarkChain": "X", "conditionsV6": ["!", "-s", "::1"]},
            (
                "nftables backend was requested but configuration contains iptables-specific options "
                "[externalSetMarkChain conditionsV6]"
            ),
        ),
        (
            {"backend": "iptables", "conditionsV4": ["ip saddr 10.0.0.0/8"]},
            "iptables backend was requested but configuration contains nftables-specific options [conditionsV4]",
        ),
        ({"snat": "yes"}, "failed to parse network configuration: json: cannot unmarshal string"),
        ({"prevResult": {"ips": [{"address": "x"}]}}, "could not parse prevResult: "),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        read(port(1), **options)


def test_a_port_that_is_none_is_refused():
    with pytest.raises(ValueError, match="Invalid host port number: 0"):
        read(port(0))
    with pytest.raises(ValueError, match="Invalid container port number: -1"):
        read(port(1, -1))


def test_the_containers_rules_mark_what_must_come_back_and_translate_the_rest():
    chain = cni_chain("net", "pod", "DN-")
    assert lines(iptables.container_rules(read(port(8080)), V4)) == [
        f"-A {chain} -p tcp --dport 8080 -s 10.1.2.3/24 -j CNI-HOSTPORT-SETMARK",
        f"-A {chain} -p tcp --dport 8080 -s 127.0.0.1 -j CNI-HOSTPORT-SETMARK",
        f"-A {chain} -p tcp --dport 8080 -j DNAT --to-destination 10.1.2.3:80",
        (
            '-A CNI-HOSTPORT-DNAT -m comment --comment "dnat name: \\"net\\" id: \\"pod\\"" -m multiport -p tcp '
            f"--destination-ports 8080 -j {chain}"
        ),
    ]
    assert lines(iptables.container_rules(read(port(8080), snat=False), V6))[0] == (
        f"-A {chain} -p tcp --dport 8080 -j DNAT --to-destination [fd00:1::5]:80"
    )


def test_fifteen_ports_fit_a_rule_and_protocols_stand_in_their_own():
    rules = iptables.container_rules(read(*(port(1000 + n) for n in range(31)), port(53, 53, "udp")), V4)
    entries = [
        rule.args[rule.args.index("--destination-ports") + 1] for rule in rules if rule.chain == iptables.DNAT_CHAIN
    ]
    assert [len(entry.split(",")) for entry in entries] == [15, 15, 1, 1]
    assert entries[-1] == "53"


def test_a_long_comment_is_cut_to_what_iptables_takes():
    said = iptables.comment("n" * 200, "c" * 200)
    assert said == f'dnat name: "{"n" * 200}" id: "{"c" * 34}...'


def test_an_argument_cannot_break_out_of_its_line():
    rule = iptables.Rule("X", ['a "b" \\c', "d"])
    assert rule.line() == '-A X "a \\"b\\" \\\\c" d'
    with pytest.raises(ValueError, match="line break"):
        iptables.Rule("X", ["a\nCOMMIT"]).line()


def test_shared_rules_are_not_made_when_somebody_else_marks():
    assert [rule.chain for rule in iptables.shared_rules(read(externalSetMarkChain="X"))] == ["PREROUTING", "OUTPUT"]
    marking = iptables.shared_rules(read(markMasqBit=4))[0]
    assert marking.line().endswith("--set-xmark 0x10/0x10")


@pytest.mark.parametrize(("net", "family"), [(V4, "ip"), (V6, "ip6")])
def test_both_hooks_of_nftables_ask_whether_the_destination_is_local(net, family):
    text = nft.setup_text(read(port(8080), backend="nftables"), net)
    for hook in ("prerouting", "output"):
        assert f"add rule {family} cni_hostport {hook} fib daddr type local jump hostports_all" in text


def test_nftables_rules_are_of_the_family_and_say_whose_they_are():
    conf = read(port(8080, hostIP="192.0.2.1"), port(8081, hostIP="::"), port(8082, 82, "SCTP"), backend="nftables")
    mine = [line for line in nft.setup_text(conf, V4) if "pod" in line]
    assert mine == [
        'add rule ip cni_hostport hostports ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.1.2.3:80 comment "pod"',
        'add rule ip cni_hostport hostports sctp dport 8082 dnat to 10.1.2.3:82 comment "pod"',
        'add rule ip cni_hostport masquerading ip saddr 10.1.2.3 ip daddr 10.1.2.3 masquerade comment "pod"',
        'add rule ip cni_hostport masquerading ip saddr 127.0.0.1 ip daddr 10.1.2.3 masquerade comment "pod"',
    ]
    assert 'hostports tcp dport 8081 dnat to [fd00:1::5]:80 comment "pod"' in "\n".join(nft.setup_text(conf, V6))
