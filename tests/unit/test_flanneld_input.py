"""What flanneld is told: flags as Go reads them, net-conf.json, Node annotations, and which interface to use."""

from __future__ import annotations

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.errors import UsageError
from podwire.flanneld import flags, netconf, subnetenv
from podwire.flanneld.hostgw import check
from podwire.flanneld.lease import Annotations, Lease, NodeRecord, Unusable, own_subnets, peers
from podwire.flanneld.plan import Underlay
from podwire.flanneld.underlay import Interface, View, choose

pytestmark = pytest.mark.unit

ip, net = ipaddress.ip_address, ipaddress.ip_network
NAMES = Annotations.under("flannel.alpha.coreos.com")


# Flags.


@pytest.mark.parametrize(
    "words",
    [
        ["--kube-subnet-mgr", "--iface=eth0", "--ip-masq=true", "-v=5"],
        ["-kube-subnet-mgr=1", "-iface", "eth0", "--ip-masq", "--v", "5"],
        ["--kube-subnet-mgr=T", "--iface", "eth0", "-ip-masq=TRUE", "-v", "5", "--"],
    ],
)
def test_flags_are_read_as_go_reads_them(words):
    options = flags.parse(words, {})
    assert (options.kube_subnet_mgr, options.iface, options.ip_masq, options.v) == (True, ("eth0",), True, 5)


def test_the_arguments_of_kube_flannel_yml_work_unchanged():
    options = flags.parse(["--ip-masq", "--kube-subnet-mgr"], {})
    assert options.ip_masq
    assert options.kube_subnet_mgr
    assert options.subnet_file == "/run/flannel/subnet.env"
    assert options.net_config_path == "/etc/kube-flannel/net-conf.json"
    assert options.iptables_forward_rules
    assert options.iptables_resync == 5
    assert (options.healthz_ip, options.healthz_port) == ("0.0.0.0", 0)


def test_a_flag_that_repeats_grows_a_list_or_counts_last():
    options = flags.parse(["--iface=a", "--iface=b", "--public-ip=1.1.1.1", "--public-ip=2.2.2.2"], {})
    assert (options.iface, options.public_ip) == (("a", "b"), "2.2.2.2")


def test_what_is_not_given_comes_from_the_environment():
    environ = {"FLANNELD_IFACE": "eth9", "FLANNELD_IP_MASQ": "true", "FLANNELD_HEALTHZ_PORT": "10", "FLANNELD_V": "1"}
    options = flags.parse(["--iface=eth0", "--v=2"], environ)
    assert (options.iface, options.ip_masq, options.healthz_port, options.v) == (("eth0",), True, 10, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ifaces=eth0"], "flag --ifaces: is no flag of flanneld (podwire flanneld --help lists them)"),
        (["--kube_subnet_mgr"], "flag --kube_subnet_mgr: is no flag of flanneld"),
        (["--etcd-endpoints=http://x"], "flag --etcd-endpoints: is not supported: leases come from the Kubernetes API"),
        (["--ip-blackhole-route"], "flag --ip-blackhole-route: is not supported"),
        (["--ip-masq", "false"], "reading the command line of flanneld: 'false' is no flag"),
        (["--ip-masq=maybe"], "flag --ip-masq: is true or false, not 'maybe'"),
        (["--v=much"], "flag --v: takes a number, not 'much'"),
        (["--iface"], "flag --iface: needs a value"),
        (["---iface=x"], "reading the command line of flanneld: '---iface=x' is no flag"),
        (["--", "x"], "reading the command line of flanneld: 'x' is no flag"),
        (["--iptables-resync=0"], "flag --iptables-resync: takes a number of seconds, at least 1"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_is_wrong(words, said):
    with pytest.raises(UsageError) as caught:
        flags.parse(words, {})
    assert str(caught.value).startswith(said)
    assert caught.value.exit_status == 2


def test_the_usage_has_every_flag_with_its_default():
    text = flags.usage()
    for name in ("--kube-subnet-mgr", "--iface TEXT", "--iptables-resync N", "(default /run/flannel/subnet.env)"):
        assert name in text


# net-conf.json.


def parse(**fields: object) -> netconf.NetworkConfig:
    return netconf.parse(json.dumps({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}, **fields}))


def test_keys_are_read_in_any_case_and_host_bits_are_cut_off():
    text = '{"network": "10.244.9.9/16", "BACKEND": {"type": "vxlan", "vni": 7, "Port": 4789, "DIRECTROUTING": true}}'
    config = netconf.parse(text)
    assert config.network == net("10.244.0.0/16")
    assert config.vxlan == netconf.VxlanOptions(vni=7, port=4789, direct_routing=True)


def test_port_0_is_the_kernels_default():
    assert parse(Backend={"Type": "vxlan", "Port": 0}).vxlan.port == 8472


def test_families_are_those_that_are_on_in_order():
    v6 = {"EnableIPv6": True, "IPv6Network": "fd00:10:244::/56"}
    assert parse().families() == [4]
    assert parse(**v6).families() == [4, 6]
    assert parse(**v6, EnableIPv4=False).families() == [6]
    assert parse(IPv6Network="fd00:10:244::/56").ipv6_network is None, "a network alone does not turn the family on"


def test_what_is_misspelled_is_named_and_what_etcd_mode_knows_is_not():
    config = parse(SubnetLen=24, Netwrok="x", Backend={"Type": "vxlan", "Prot": 1})
    assert config.ignored == ("netwrok", "backend.prot")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "JSON: "),
        ("[]", "the file: is no JSON object"),
        ("{}", "Network: is missing"),
        ('{"Network": "10.244.0.0/33"}', "Network: '33' is not a valid netmask"),
        ('{"Network": "fd00::/56"}', "Network: "),
        ('{"Network": 1}', "Network: is missing"),
        ('{"Network": "10.0.0.0/8", "EnableIPv6": "yes"}', "EnableIPv6: 'yes' is neither true nor false"),
        ('{"EnableIPv4": false}', "EnableIPv4 and EnableIPv6: both are false"),
        ('{"Network": "10.0.0.0/8", "EnableIPv6": true}', "IPv6Network: is missing"),
        ('{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "VNI": 0}}', "VNI: 0 is no number from 1 to 16777215"),
        ('{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "VNI": true}}', "VNI: True is no number"),
        ('{"Network": "10.0.0.0/8", "Backend": {"Type": "vxlan", "Port": "8472"}}', "Port: '8472' is no number"),
        ('{"Network": "10.0.0.0/8", "Backend": {}}', "Backend.Type: is missing"),
        ('{"Network": "10.0.0.0/8", "Backend": "vxlan"}', "Backend: is no JSON object"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_with_the_key(text, said):
    with pytest.raises(UsageError) as caught:
        netconf.parse(text, "net-conf.json")
    assert str(caught.value).startswith(f"reading net-conf.json: {said}")


def test_a_file_without_a_backend_means_udp_as_in_flannel():
    assert netconf.parse('{"Network": "10.0.0.0/8"}').backend == "udp"


# Leases.


def node(name: str, cidr: str, mac: str = "02:00:00:00:00:01", **more: str) -> NodeRecord:
    annotations = {
        NAMES.of("kube-subnet-manager"): "true",
        NAMES.of("backend-type"): "vxlan",
        NAMES.of("backend-data"): json.dumps({"VNI": 1, "VtepMAC": mac}),
        NAMES.of("public-ip"): "192.168.50.12",
        **{NAMES.of(key.replace("_", "-")): value for key, value in more.items()},
    }
    return NodeRecord(name, f"uid-{name}", annotations, (cidr,))


OWN = Lease("n1", net("10.244.0.0/24"), ip("192.168.50.11"), "vxlan", "02:00:00:00:00:aa", 1)


def test_a_peers_lease_is_read_from_its_annotations():
    found, unusable = peers([node("n2", "10.244.1.0/24", "D6:C4:31:12:7E:E9")], OWN, NAMES)
    assert found == [Lease("n2", net("10.244.1.0/24"), ip("192.168.50.12"), "vxlan", "d6:c4:31:12:7e:e9", 1)]
    assert unusable == []


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (node("n2", "10.244.1.0/24", mac="nonsense"), "VtepMAC 'nonsense' is no MAC address"),
        (node("n2", "10.244.1.0/24", backend_data="null"), "null is no JSON object"),
        (node("n2", "10.244.1.0/24", backend_data=""), "is missing"),
        (node("n2", "10.244.1.0/24", backend_data="{"), "backend-data: "),
        (node("n2", "10.244.1.0/24", backend_data="[" * 100_000), "is longer than 1024 characters"),
        (node("n2", "10.244.1.0/24", public_ip=""), "public-ip: is missing"),
        (node("n2", "10.244.1.0/24", public_ip="fd50::12"), "fd50::12 is no IPv4 address"),
        (node("n2", "10.244.1.0/24", public_ip="x"), "public-ip: 'x' does not appear"),
        (node("n2", "10.244.1.0/24", backend_type="host-gw"), "its backend is host-gw, here it is vxlan"),
        (node("n2", "10.244.1.0/24", backend_type=""), "its backend is not said, here it is vxlan"),
        (node("n2", "10.244.0.0/24"), "its podCIDR 10.244.0.0/24 takes in our own, 10.244.0.0/24"),
        (node("n2", "10.244.0.0/16"), "its podCIDR 10.244.0.0/16 takes in our own, 10.244.0.0/24"),
        (node("n2", "fd00::/64"), "it has no IPv4 podCIDR"),
        (node("n2", "nonsense"), "it has no IPv4 podCIDR"),
    ],
)
def test_a_lease_that_cannot_be_used_says_why_and_the_others_are_used(other, why):
    found, unusable = peers([other, node("n3", "10.244.3.0/24")], OWN, NAMES)
    assert [lease.node for lease in found] == ["n3"]
    (one,) = unusable
    assert one.node == "n2"
    assert why in one.why


def test_an_address_with_a_zone_is_not_one_that_others_can_use():
    six = Lease("n1", net("fd00:10:244::/64"), ip("fd50::11"), "vxlan", "02:00:00:00:00:aa", 1)
    data = '{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}'
    zoned = node("n2", "fd00:10:244:1::/64", public_ipv6="fe80::1%eth0", backend_v6_data=data)
    assert [one.why for one in peers([zoned], six, NAMES)[1]] == [
        "annotation flannel.alpha.coreos.com/public-ipv6: fe80::1%eth0 is no IPv6 address"
    ]
    assert peers([node("n2", "fd00:10:244:1::%1/64")], six, NAMES)[1] == [Unusable("n2", "it has no IPv6 podCIDR")]


def test_a_node_without_flannel_is_no_lease_and_no_complaint():
    plain = NodeRecord("n2", "uid", {}, ("10.244.1.0/24",))
    other = node("n3", "10.244.2.0/24", kube_subnet_manager="false")
    assert peers([plain, other, node("n1", "10.244.0.0/24")], OWN, NAMES) == ([], [])


def test_of_two_nodes_with_one_pod_cidr_every_node_chooses_the_same(caplog):
    twins = [node("nb", "10.244.5.0/24"), node("na", "10.244.5.0/24")]
    for order in (twins, twins[::-1]):
        found, unusable = peers(order, OWN, NAMES)
        assert [lease.node for lease in found] == ["na"]
        assert unusable == [Unusable("nb", "its podCIDR 10.244.5.0/24 is also that of na")]


JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["VNI", "VtepMAC", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.text(max_size=40) | JSONISH.map(json.dumps), st.text(max_size=40), st.lists(st.text(max_size=20), max_size=3))
def test_no_annotation_of_another_node_can_break_us(data, public_ip, cidrs):
    broken = NodeRecord("n2", "uid", node("n2", "", backend_data=data, public_ip=public_ip).annotations, tuple(cidrs))
    found, _ = peers([broken, node("n3", "10.244.3.0/24")], OWN, NAMES)
    assert "n3" in [lease.node for lease in found]


def test_an_overwrite_annotation_is_published_and_stays():
    record = node("n1", "10.244.0.0/24", public_ip_overwrite="203.0.113.9")
    assert NAMES.published(record, [OWN])[NAMES.of("public-ip")] == "203.0.113.9"
    assert (
        NAMES.published(node("n1", "10.244.0.0/24", public_ip_overwrite="x"), [OWN])[NAMES.of("public-ip")]
        == "192.168.50.11"
    )


@pytest.mark.parametrize(
    ("prefix", "name"),
    [("example.com", "example.com/public-ip"), ("example.com/", "example.com/public-ip"),
     ("example.com/net", "example.com/net-public-ip"), ("example.com/net-", "example.com/net-public-ip")],
)  # fmt: skip
def test_an_annotation_prefix_is_completed_as_flannel_completes_it(prefix, name):
    assert Annotations.under(prefix).of("public-ip") == name


@pytest.mark.parametrize("prefix", ["a/b/c", "plain", "Example.com", ""])
def test_an_annotation_prefix_of_another_form_is_refused(prefix):
    with pytest.raises(UsageError, match="--kube-annotation-prefix"):
        Annotations.under(prefix)


def test_the_own_subnets_are_one_for_each_family_that_is_on():
    dual = parse(EnableIPv6=True, IPv6Network="fd00:10:244::/56")
    both = NodeRecord("n1", "uid", {}, ("10.244.3.0/24", "fd00:10:244:3::/64"))
    assert own_subnets(both, dual) == ((net("10.244.3.0/24"), net("fd00:10:244:3::/64")), "")
    assert own_subnets(both, parse()) == ((net("10.244.3.0/24"),), "")
    one = NodeRecord("n1", "uid", {}, ("10.244.3.0/24",))
    assert own_subnets(one, dual) == ((), 'node "n1" pod cidr not assigned (IPv6)')
    assert own_subnets(NodeRecord("n1", "uid", {}, ()), parse()) == ((), 'node "n1" pod cidr not assigned')


# The interface.

ETH0 = Interface("eth0", 1500, (ip("192.168.50.11"), ip("fd50::11")))
ETH1 = Interface("eth1", 9000, (ip("10.1.0.11"), ip("10.1.0.12")))
LO = Interface("lo", 65536, ())
VIEW = View((LO, ETH0, ETH1), {4: "eth0", 6: "eth0"})


def chosen(*words: str, view: View = VIEW, families: tuple[int, ...] = (4,), public: dict | None = None) -> Underlay:
    return choose(view, flags.parse(words, {}), families, public or {})


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ([], "eth0"),
        (["--iface=eth1"], "eth1"),
        (["--iface=10.1.0.12"], "eth1"),
        (["--iface=eth7", "--iface=eth1"], "eth1"),
        (["--iface-regex=^10\\.1\\."], "eth1"),
        (["--iface-regex=eth[1-9]"], "eth1"),
        (["--iface-regex=^192", "--iface=eth1"], "eth1"),
        (["--iface=eth7", "--iface-regex=^192"], "eth0"),
    ],
)
def test_the_interface_is_chosen_in_flannels_order(words, device):
    assert chosen(*words).device == device


def test_the_interface_that_reaches_an_address_comes_last():
    view = View(VIEW.interfaces, VIEW.default, reach="eth1")
    assert chosen("--iface-can-reach=10.1.0.1", view=view).device == "eth1"
    assert chosen("--iface-can-reach=10.1.0.1", "--iface=eth0", view=view).device == "eth0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--iface=eth7"],
            "finding the interface eth7: none fits (there are: lo (), eth0 (192.168.50.11 fd50::11), eth1",
        ),
        (["--iface-regex=["], "flag --iface-regex: '[': "),
        (["--iface-regex=wlan"], "finding the interface wlan: none fits"),
        (["--iface=lo"], "using the interface lo: it has no IPv4 address"),
        (["--public-ip=fd50::1"], "flag --public-ip: fd50::1 is no IPv4 address"),
        (["--public-ip=x"], "flag --public-ip: 'x' does not appear"),
    ],
)
def test_an_interface_that_does_not_fit_is_an_error_not_another_interface(words, said):
    with pytest.raises(UsageError) as caught:
        chosen(*words)
    assert str(caught.value).startswith(said)


def test_without_a_default_route_the_interface_must_be_named():
    with pytest.raises(UsageError, match="name it with --iface"):
        chosen(view=View(VIEW.interfaces, {}))
    with pytest.raises(UsageError, match="name it with --iface"):
        chosen(view=View(VIEW.interfaces, {4: "eth0", 6: "eth1"}), families=(4, 6))


def test_a_public_ip_of_the_interface_is_the_tunnels_source_and_one_behind_nat_is_not():
    assert chosen("--iface=eth1", "--public-ip=10.1.0.12") == Underlay(
        "eth1", 9000, (ip("10.1.0.12"),), (ip("10.1.0.12"),)
    )
    assert chosen("--public-ip=203.0.113.9") == Underlay("eth0", 1500, (ip("192.168.50.11"),), (ip("203.0.113.9"),))


def test_the_nodes_own_annotation_goes_before_the_flag():
    assert chosen("--public-ip=203.0.113.9", public={4: ip("203.0.113.7")}).public == (ip("203.0.113.7"),)


def test_dual_stack_takes_one_address_of_each_family():
    assert chosen(families=(4, 6)).local == (ip("192.168.50.11"), ip("fd50::11"))
    with pytest.raises(UsageError, match="using the interface eth1: it has no IPv6 address"):
        chosen("--iface=eth1", families=(4, 6))


def test_host_gw_behind_nat_is_refused():
    check(chosen())
    with pytest.raises(UsageError, match="there is NAT in between"):
        check(chosen("--public-ip=203.0.113.9"))


# subnet.env.


def test_the_file_is_replaced_whole_and_only_when_it_differs(tmp_path):
    path = str(tmp_path / "flannel" / "subnet.env")
    assert subnetenv.ensure(path, "A=1\n")
    inode = (tmp_path / "flannel" / "subnet.env").stat().st_ino
    assert not subnetenv.ensure(path, "A=1\n")
    assert (tmp_path / "flannel" / "subnet.env").stat().st_ino == inode
    reader = open(path)  # noqa: SIM115 - it is held open across the replacement
    assert subnetenv.ensure(path, "A=2\n")
    assert reader.read() == "A=1\n", "whoever reads at that moment sees the old file, whole"
    reader.close()
    assert (tmp_path / "flannel" / "subnet.env").read_text() == "A=2\n"
    assert (tmp_path / "flannel" / "subnet.env").stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in (tmp_path / "flannel").iterdir()] == ["subnet.env"]
