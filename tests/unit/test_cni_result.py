"""Results in every version."""

import pytest

from podwire.cni.spec import result, versions
from podwire.cni.spec.text import TextError
from podwire.errors import CniError

pytestmark = pytest.mark.unit

NEWEST = {
    "cniVersion": "1.1.0",
    "dns": {"nameservers": ["10.96.0.10"], "search": ["svc.cluster.local"]},
    "interfaces": [
        {"mac": "0a:58:0a:f4:01:01", "name": "cni0"},
        {"mac": "0a:58:0a:f4:01:05", "mtu": 1450, "name": "eth0", "sandbox": "/run/netns/x"},
    ],
    "ips": [
        {"address": "10.244.1.5/24", "gateway": "10.244.1.1", "interface": 1},
        {"address": "fd00::5/64", "gateway": "fd00::1", "interface": 1},
        {"address": "10.9.0.5/24"},
    ],
    "routes": [{"dst": "10.244.0.0/16"}, {"dst": "0.0.0.0/0", "gw": "10.244.1.1", "mtu": 1400, "table": 100}],
}


def test_the_newest_version_survives_the_round_trip_with_its_keys_in_order():
    written = result.parse(NEWEST, "1.1.0").json()
    assert written == NEWEST
    assert list(written) == sorted(written)


def test_the_middle_versions_say_which_family_an_address_is_of_and_always_have_dns():
    written = result.parse(NEWEST, "1.1.0").json("0.4.0")
    assert list(written) == ["cniVersion", "interfaces", "ips", "routes", "dns"]
    assert written["ips"][1] == {"version": "6", "interface": 1, "address": "fd00::5/64", "gateway": "fd00::1"}
    assert written["interfaces"][1] == {"name": "eth0", "mac": "0a:58:0a:f4:01:05", "sandbox": "/run/netns/x"}
    assert written["routes"][1]["mtu"] == 1400
    assert result.parse({"cniVersion": "0.4.0"}, "0.4.0").json() == {"cniVersion": "0.4.0", "dns": {}}


def test_the_oldest_versions_keep_the_first_address_of_each_family_with_its_routes():
    written = result.parse(NEWEST, "1.1.0").json("0.2.0")
    assert written["ip4"] == {
        "ip": "10.244.1.5/24",
        "gateway": "10.244.1.1",
        "routes": [{"dst": "10.244.0.0/16"}, {"dst": "0.0.0.0/0", "gw": "10.244.1.1"}],
    }
    assert written["ip6"] == {"ip": "fd00::5/64", "gateway": "fd00::1"}
    assert "interfaces" not in written


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_result_without_address_cannot_be_told_in_the_oldest_versions(version):
    with pytest.raises(ValueError, match=r"^cannot convert: no valid IP addresses$"):
        result.parse({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}]}, "1.0.0").json(version)


def test_an_old_result_can_be_told_in_new_words():
    old = {
        "ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0"}]},
        "dns": {"domain": "x"},
    }
    parsed = result.parse_own(old)
    assert parsed.version == "0.1.0"
    assert parsed.json("1.0.0") == {
        "cniVersion": "1.0.0",
        "dns": {"domain": "x"},
        "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}],
        "routes": [{"dst": "0.0.0.0/0"}],
    }


def test_a_result_of_another_shape_than_its_configuration_is_refused():
    with pytest.raises(TextError, match=r"result type supports \[1.0.0 1.1.0\] but unmarshalled CNIVersion is .0.4.0."):
        result.parse({"cniVersion": "0.4.0"}, "1.0.0")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1"}]}, "invalid CIDR address: 10.0.0.1"),
        ({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/8", "gateway": "x"}]}, "invalid IP address: x"),
        ({"cniVersion": "1.0.0", "routes": [{"dst": "x"}]}, "invalid CIDR address: x"),
        ({"cniVersion": "9.9.9"}, "unsupported CNI result version"),
        ([], "cannot unmarshal array"),
    ],
)
def test_what_is_no_result_is_refused(raw, message):
    with pytest.raises(TextError, match=message):
        result.parse_own(raw)


def test_addresses_are_spelled_the_kernels_way_and_keys_match_without_case():
    raw = {"CNIVERSION": "1.0.0", "Ips": [{"ADDRESS": "FD00:0:0::A/64"}]}
    assert result.parse_own(raw).json()["ips"] == [{"address": "fd00::a/64"}]


@pytest.mark.parametrize(
    ("version", "other", "is_newer"),
    [
        ("", "0.1.0", True),
        ("0.4.0", "0.3.1", True),
        ("1.0.0", "1.1.0", False),
        ("1", "1.0.0", True),
        ("0.10.0", "0.9.0", True),
    ],
)
def test_versions_are_compared_by_number(version, other, is_newer):
    assert versions.at_least(version, other) is is_newer


@pytest.mark.parametrize("version", ["1.0.0.0", "a.b", "1..0", "1.x"])
def test_what_is_no_version_is_a_decoding_failure(version):
    with pytest.raises(CniError) as caught:
        versions.parse(version)
    assert caught.value.code == versions.DECODING_FAILURE
