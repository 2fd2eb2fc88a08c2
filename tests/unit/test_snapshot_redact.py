"""Redaction: the same input always the same replacement, ranges still contain what they contained, and what must stay stays."""

import json
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.explain.snapshot_live import Collected
from podwire.explain.snapshot_redact import Redactor, apply

pytestmark = pytest.mark.unit

KEY = bytes(range(32))
public4 = st.ip_addresses(v=4).filter(lambda ip: ip.is_global)
public6 = st.ip_addresses(v=6, network="2a00::/12")


def common(one, other):
    bits = one.max_prefixlen
    return next((n for n in range(bits) if int(one) >> (bits - 1 - n) != int(other) >> (bits - 1 - n)), bits)


@given(public4, public4)
def test_ipv4_addresses_share_as_many_bits_as_before(one, other):
    worker = Redactor(KEY)
    mapped = [ip_address(worker.address(str(ip))) for ip in (one, other)]
    assert common(*mapped) == common(one, other)


@given(public6, public6)
def test_ipv6_addresses_share_as_many_bits_as_before(one, other):
    worker = Redactor(KEY)
    mapped = [ip_address(worker.address(str(ip))) for ip in (one, other)]
    assert common(*mapped) == common(one, other)


@given(public4, st.integers(8, 31))
def test_a_network_stays_a_network_that_contains_what_it_contained(ip, length):
    network = ip_network(f"{ip}/{length}", strict=False)
    worker = Redactor(KEY)
    rule = worker.text(f"-s {network} -d {ip}").split()
    assert ip_address(rule[3]) in ip_network(rule[1])


@given(st.one_of(public4, public6))
def test_no_public_address_is_mapped_into_a_range_that_stays(ip):
    worker = Redactor(KEY, ["8.8.0.0/16"])
    mapped = ip_address(worker.address(str(ip)))
    stays = ip.version == 4 and ip in ip_network("8.8.0.0/16")
    assert (
        (mapped == ip)
        if stays
        else not (mapped.is_private or mapped in ip_network("8.8.0.0/16" if ip.version == 4 else "fc00::/7"))
    )


@pytest.mark.parametrize(
    "kept",
    ["10.244.1.5", "192.168.7.9", "172.20.0.1", "100.64.3.4", "127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0", "203.0.113.9", "255.255.255.255", "fd00:10:244::5", "fe80::1", "::1", "ff02::1", "2001:db8::7"],
)  # fmt: skip
def test_private_and_special_addresses_stay(kept):
    assert Redactor(KEY).text(f"-A X -d {kept}/32 -j ACCEPT") == f"-A X -d {kept}/32 -j ACCEPT"


def test_most_public_addresses_change():
    worker = Redactor(KEY)
    addresses = [f"8.{n}.{n * 7 % 256}.4" for n in range(1, 200)] + [
        f"2a00:1450:4001:{n:x}::200e" for n in range(1, 200)
    ]
    assert sum(worker.address(one) == one for one in addresses) == 0


@pytest.mark.parametrize(
    "text",
    [
        "kube-proxy v1.30.2.4x",
        "nft 1.0.6",
        "1.2.3.4.5",
        "00:11:22:33:44:55",
        "12:30:45",
        "KUBE-SVC-2QRHZV4LAAAAAAAA",
        "999.1.1.1",
        "::",
    ],
)
def test_what_only_looks_like_an_address_stays(text):
    assert Redactor(KEY).text(text) == text


def test_another_key_gives_another_mapping():
    assert Redactor(KEY).address("8.8.8.8") != Redactor(bytes(32)).address("8.8.8.8")


def objects(kind, *metadata):
    return json.dumps({"kind": kind, "items": [{"metadata": one} for one in metadata]}).encode()


@pytest.fixture
def bundle():
    found = Collected("worker-berlin-3")
    found.put(
        "kube/nodes.json",
        objects("NodeList", {"name": "worker-berlin-3"}, {"name": "worker-berlin-30"}),
        "GET /api/v1/nodes",
    )
    found.put(
        "kube/pods.json",
        objects("PodList", {"name": "billing-0", "namespace": "acme-prod", "labels": {"app": "billing"}}),
        "GET /api/v1/pods",
    )
    found.put(
        "kube/services.json",
        objects(
            "ServiceList", {"name": "billing", "namespace": "acme-prod"}, {"name": "kubernetes", "namespace": "default"}
        ),
        "GET /api/v1/services",
    )
    rule = '-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment "acme-prod/billing:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-ZXMNUKOKXUTL2MK2\n'
    found.put(
        "rules/iptables-nft-save.txt",
        (rule + "-A INPUT -s 8.8.8.0/24 -j ACCEPT\n-A INPUT -s 8.8.8.8/32 -j DROP\n").encode(),
        "iptables-nft-save",
    )
    found.put(
        "logs/acme-prod_billing-0.log",
        b"worker-berlin-30 said hello to worker-berlin-3 at 8.8.8.8\n",
        "/var/log/pods/acme-prod_billing-0/x.log",
    )
    return found


def test_a_bundle_keeps_its_sense_and_loses_its_names(bundle):
    apply(bundle, KEY)
    whole = json.dumps(bundle.manifest(0)) + "".join(name + data.decode() for name, data in bundle.files.items())
    assert not any(word in whole for word in ("berlin", "acme", "billing", "8.8.8.8"))
    rules = bundle.files["rules/iptables-nft-save.txt"].decode()
    service = json.loads(bundle.files["kube/services.json"])["items"][0]["metadata"]
    assert f'"{service["namespace"]}/{service["name"]}:http cluster IP"' in rules
    assert "KUBE-SVC-ZXMNUKOKXUTL2MK2" in rules
    assert "10.96.0.9/32" in rules
    network, address = (
        word for word in rules.split() if "/" in word and word[0].isdigit() and not word.startswith("10.")
    )
    assert ip_network(address).subnet_of(ip_network(network))
    nodes = [one["metadata"]["name"] for one in json.loads(bundle.files["kube/nodes.json"])["items"]]
    log = next(data.decode() for name, data in bundle.files.items() if name.startswith("logs/"))
    assert log.startswith(f"{nodes[1]} said hello to {nodes[0]} at ")
    assert bundle.node == nodes[0]
    assert "kubernetes" in whole


def test_cluster_ranges_stay_although_they_are_public(bundle):
    bundle.put(
        "flannel/subnet.env", b"FLANNEL_NETWORK=25.0.0.0/8\nFLANNEL_SUBNET=25.1.2.1/24\n", "/run/flannel/subnet.env"
    )
    bundle.put(
        "net/ip-route.txt", b"25.1.3.0/24 via 25.1.3.0 dev flannel.1 onlink\ndefault via 8.8.8.1 dev eth0\n", "ip route"
    )
    apply(bundle, KEY)
    text = bundle.files["net/ip-route.txt"].decode()
    assert "25.1.3.0/24 via 25.1.3.0" in text
    assert "8.8.8.1" not in text
