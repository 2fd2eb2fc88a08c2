"""host-local, called as its executable would call it, on folders of the test's own."""

import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.addresses import Ip
from podwire.cni import skel
from podwire.cni.plugins import host_local
from podwire.cni.plugins.ranges import parse_range_set
from podwire.cni.plugins.store import Store

pytestmark = pytest.mark.unit


class Network:
    """host-local with one configuration and one folder."""

    def __init__(self, folder, **ipam):
        self.folder = folder
        self.ipam = {"type": "host-local", "dataDir": str(folder), **ipam}
        self.conf = {"name": "net", "cniVersion": "1.1.0", "ipam": self.ipam}

    def call(self, command, container_id="dummy", ifname="eth0", args="", **conf):
        env = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id,
            "CNI_NETNS": "/some/where",
            "CNI_IFNAME": ifname,
            "CNI_PATH": "/nowhere",
            "CNI_ARGS": args,
        }
        text = json.dumps({**self.conf, **conf}).encode()
        status, said = skel.run(host_local.PLUGIN, env, lambda: text, lambda _: None)
        return json.loads(said) if said else {"code": 0} if status else {}

    def add(self, container_id="dummy", **options):
        result = self.call("ADD", container_id, **options)
        return [ip["address"] for ip in result["ips"]] if "ips" in result else result

    def files(self):
        return sorted(os.listdir(self.folder / "net"))

    def content(self, name):
        return (self.folder / "net" / name).read_bytes()


SMALL = {"ranges": [[{"subnet": "10.1.2.0/29"}]]}  # gateway .1, then .2 to .6


def test_the_files_are_the_reference_plugins(tmp_path):
    network = Network(tmp_path, **SMALL)
    assert network.add() == ["10.1.2.2/29"]
    assert network.files() == ["10.1.2.2", "last_reserved_ip.0", "lock"]
    assert network.content("10.1.2.2") == b"dummy\r\neth0"
    assert network.content("last_reserved_ip.0") == b"10.1.2.2"


def test_the_result_has_gateway_routes_and_dns(tmp_path):
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("# c\nnameserver 192.0.2.3\n\nsearch a b\ndomain x\noptions ndots:5\n; c\nbogus\n")
    network = Network(
        tmp_path, ranges=[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]], routes=[{"dst": "0.0.0.0/0"}],
        resolvConf=str(resolv),
    )  # fmt: skip
    assert network.call("ADD") == {
        "cniVersion": "1.1.0",
        "dns": {"domain": "x", "nameservers": ["192.0.2.3"], "options": ["ndots:5"], "search": ["a", "b"]},
        "ips": [
            {"address": "10.1.2.2/24", "gateway": "10.1.2.1"},
            {"address": "fd00::2/64", "gateway": "fd00::1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    assert network.content("last_reserved_ip.1") == b"fd00::2"


def test_addresses_go_round_robin_and_the_last_one_is_found(tmp_path):
    network = Network(tmp_path, **SMALL)
    assert [network.add(f"c{i}")[0] for i in range(5)] == [f"10.1.2.{i}/29" for i in range(2, 7)]
    assert network.add("c5") == {
        "code": 999,
        "msg": "failed to allocate for range 0: no IP addresses available in range set: 10.1.2.1-10.1.2.6",
    }
    assert network.call("DEL", "c3") == {}
    assert network.add("c6") == ["10.1.2.5/29"]
    assert network.call("DEL", "c0") == {}
    assert network.call("DEL", "c6") == {}
    # .5 was reserved last, so .2 comes before .5 again
    assert network.add("c7") == ["10.1.2.2/29"]


def test_the_same_add_twice_is_an_error_and_another_interface_is_none(tmp_path):
    network = Network(tmp_path, **SMALL)
    network.add()
    assert network.add() == {
        "code": 999,
        "msg": "failed to allocate for range 0: 10.1.2.2 has been allocated to dummy, duplicate allocation is not allowed",
    }
    assert network.add(ifname="eth1") == ["10.1.2.3/29"]
    assert network.call("DEL", ifname="eth0") == {}
    assert network.files() == ["10.1.2.3", "last_reserved_ip.0", "lock"]


def test_del_succeeds_twice_and_check_tells(tmp_path):
    network = Network(tmp_path, **SMALL)
    network.add()
    assert network.call("CHECK") == {}
    assert network.call("DEL") == {}
    assert network.call("DEL") == {}
    assert network.call("CHECK")["msg"] == "host-local: Failed to find address added by container dummy"


def test_a_file_of_an_old_plugin_with_the_id_alone_counts(tmp_path):
    network = Network(tmp_path, **SMALL)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "10.1.2.2").write_text("dummy")
    assert "duplicate allocation" in network.add()["msg"]
    assert network.call("CHECK") == {}
    assert network.add("other") == ["10.1.2.3/29"]
    assert network.call("DEL") == {}
    assert "10.1.2.2" not in network.files()


@pytest.mark.parametrize("content", [b"", b"\r\n", b"abc\r\n", b"abc\r"])
def test_what_was_cut_belongs_to_nobody_and_is_used_again(tmp_path, content):
    network = Network(tmp_path, **SMALL)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "10.1.2.2").write_bytes(content)
    assert network.add() == ["10.1.2.2/29"]
    assert network.content("10.1.2.2") == b"dummy\r\neth0"


def test_a_whole_file_is_never_taken_over(tmp_path):
    network = Network(tmp_path, ranges=[[{"subnet": "10.1.2.0/30"}]])
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "10.1.2.2").write_text("whoever")
    assert "no IP addresses available" in network.add()["msg"]


def test_a_draft_that_a_killed_process_left_does_no_harm(tmp_path):
    network = Network(tmp_path, **SMALL)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / ".reserving").write_bytes(b"dead\r\neth0")
    assert network.add() == ["10.1.2.2/29"]
    assert ".reserving" not in network.files()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"192.0.2.1", b"10.1.2.2\n"])
def test_a_broken_memory_of_the_last_address_only_loses_the_round_robin(tmp_path, content):
    network = Network(tmp_path, **SMALL)
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "last_reserved_ip.0").write_bytes(content)
    assert network.add() == ["10.1.2.2/29"]


def test_of_several_range_sets_all_are_reserved_or_none(tmp_path):
    network = Network(tmp_path, ranges=[[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/30"}]])
    assert network.add("c1") == ["10.1.2.2/24", "10.1.3.2/30"]
    assert network.add("c2") == {
        "code": 999,
        "msg": "failed to allocate for range 1: no IP addresses available in range set: 10.1.3.1-10.1.3.2",
    }
    assert [name for name in network.files() if name.startswith("10.")] == ["10.1.2.2", "10.1.3.2"]


def test_a_range_set_goes_on_in_its_next_range(tmp_path):
    network = Network(tmp_path, ranges=[[{"subnet": "10.1.2.0/30"}, {"subnet": "10.1.4.0/30", "gateway": "10.1.4.2"}]])
    assert network.add("c1") == ["10.1.2.2/30"]
    assert network.call("ADD", "c2")["ips"] == [{"address": "10.1.4.1/30", "gateway": "10.1.4.2"}]


def test_a_requested_address_comes_from_arguments_configuration_or_capability(tmp_path):
    network = Network(tmp_path, ranges=[[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]])
    assert network.add("a", args="IgnoreUnknown=1;IP=10.1.3.33;K8S_POD_NAME=x") == ["10.1.2.2/24", "10.1.3.33/24"]
    network.conf["args"] = {"cni": {"ips": ["10.1.2.77/24"]}}
    network.conf["runtimeConfig"] = {"ips": ["10.1.3.88"]}
    assert network.add("b") == ["10.1.2.77/24", "10.1.3.88/24"]
    assert network.add("c") == {
        "code": 999,
        "msg": "failed to allocate for range 0: requested IP address 10.1.2.77 is not available "
        "in range set 10.1.2.1-10.1.2.254",
    }


def test_what_was_requested_and_is_in_no_range_fails_the_whole(tmp_path):
    network = Network(tmp_path, **SMALL)
    assert network.add(args="IP=192.0.2.1") == {
        "code": 999,
        "msg": "failed to allocate all requested IPs: 192.0.2.1",
    }
    assert network.files() == ["last_reserved_ip.0", "lock"]
    assert network.add(args="IP=10.1.2.1")["msg"].endswith("requested ip 10.1.2.1 is subnet's gateway")
    assert network.add(args="IP=nonsense")["msg"] == (
        'ARGS: error parsing value of pair "IP=nonsense": invalid IP address nonsense'
    )


def test_ranges_of_the_runtime_come_first(tmp_path):
    network = Network(tmp_path, subnet="10.1.2.0/24", rangeStart="10.1.2.9")
    network.conf["runtimeConfig"] = {"ipRanges": [[{"subnet": "fd00::/64"}]]}
    assert network.add() == ["fd00::2/64", "10.1.2.9/24"]


@pytest.mark.parametrize(
    ("ipam", "message"),
    [
        ({}, "no IP ranges specified"),
        ({"ranges": [[]]}, "invalid range set 0: empty range set"),
        ({"ranges": [[{}]]}, "invalid range set 0: IP <nil> not v4 nor v6"),
        ({"subnet": "10.1.2.0"}, "invalid CIDR address: 10.1.2.0"),
        ({"subnet": "10.1.2.0/31"}, "invalid range set 0: Network 10.1.2.0/31 too small to allocate from"),
        ({"subnet": "10.1.2.3/24"}, "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.1.2.0"),
        ({"subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1"}, "invalid range set 0: RangeStart 10.1.3.1 not in network 10.1.2.0/24"),
        ({"subnet": "10.1.2.0/24", "rangeEnd": "10.1.3.1"}, "invalid range set 0: RangeEnd 10.1.3.1 not in network 10.1.2.0/24"),
        ({"subnet": "10.1.2.0/24", "rangeStart": "x"}, "invalid IP address: x"),
        ({"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "fd00::/64"}]]}, "invalid range set 0: mixed address families"),
        ({"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "10.1.0.0/16"}]]}, "invalid range set 0: subnets 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254 overlap"),
        ({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.2.0/25"}]]}, "range set 0 overlaps with 1"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK"])
def test_a_bad_configuration_is_said_as_the_reference_plugin_says_it(tmp_path, ipam, message, command):
    assert Network(tmp_path, **ipam).call(command) == {"code": 999, "msg": message}


def test_old_versions_allow_one_address_a_family(tmp_path):
    network = Network(tmp_path, ranges=[[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.3.0/24"}]])
    for command in ("ADD", "DEL"):
        assert network.call(command, cniVersion="0.2.0")["msg"] == (
            "CNI version 0.2.0 does not support more than 1 address per family"
        )
    network = Network(tmp_path, ranges=[[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]])
    result = network.call("ADD", cniVersion="0.2.0")
    assert (result["ip4"]["ip"], result["ip6"]["ip"]) == ("10.1.2.2/24", "fd00::2/64")


def test_a_configuration_without_ipam_is_refused(tmp_path):
    network = Network(tmp_path)
    del network.conf["ipam"]
    assert network.call("ADD") == {"code": 999, "msg": "IPAM config missing 'ipam' key"}


def test_gc_frees_what_is_not_valid_and_nothing_else(tmp_path):
    network = Network(tmp_path, subnet="10.1.2.0/24")
    for name in ("keep", "leak"):
        network.add(name)
    (tmp_path / "net" / "10.1.2.9").write_text("old-keep")
    (tmp_path / "net" / "10.1.2.10").write_text("old-leak")
    (tmp_path / "net" / "10.1.2.11").write_text("")
    (tmp_path / "net" / "notes.txt").write_text("not an address")
    valid = [{"containerID": "keep", "ifname": "eth0"}, {"containerID": "old-keep", "ifname": "eth0"}]
    assert network.call("GC", **{"cni.dev/valid-attachments": valid}) == {}
    assert network.files() == ["10.1.2.2", "10.1.2.9", "last_reserved_ip.0", "lock", "notes.txt"]


def test_status_says_whether_addresses_could_be_reserved(tmp_path):
    assert Network(tmp_path, **SMALL).call("STATUS") == {}
    assert Network(tmp_path, subnet="10.1.2.3/24").call("STATUS")["code"] == 50
    (tmp_path / "file").write_text("")
    assert Network(tmp_path / "file", **SMALL).call("STATUS")["code"] == 50


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    found = Network(tmp_path / "file", **SMALL).add()
    assert found["code"] == 999
    assert found["msg"] == f"mkdir {tmp_path}/file/net: not a directory"


def test_two_at_once_wait_for_each_other(tmp_path):
    """While one holds the folder the other must not even look at it."""
    network = Network(tmp_path, **SMALL)
    network.add("first")
    done = threading.Event()
    with Store("net", str(tmp_path)):
        thread = threading.Thread(target=lambda: (network.add("second"), done.set()))
        thread.start()
        assert not done.wait(0.2)
        assert "10.1.2.3" not in network.files()
    thread.join()
    assert network.content("10.1.2.3") == b"second\r\neth0"


@given(st.integers(0, 15))
def test_every_free_address_is_tried_once_starting_after_the_last(last):
    ranges = parse_range_set([{"subnet": "10.0.0.0/28", "gateway": "10.0.0.7"}])
    start = Ip.parse("10.0.0.0") + last
    tried = [ip for ip, _ in ranges.candidates(start)]
    numbers = [ip.value & 0xF for ip in tried]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) | {7} >= set(range(1, 15)) - {last}
    if 1 <= last < 14:
        assert numbers[0] == last + 1 + (last + 1 == 7)
    assert 7 not in numbers
