"""flannel's generated configuration and its errors, without a delegate that does anything."""

import json
import os

import pytest

from podwire.cni import skel
from podwire.cni.plugins import flannel

pytestmark = pytest.mark.unit

FOUR_LINES = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
SIX_LINES = (
    "FLANNEL_NETWORK=10.244.0.0/16,10.244.0.0/16,10.245.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n"
    "FLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00:0:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
)


def generate(text, **conf):
    raw = {"name": "cni0", "type": "flannel", **conf}
    return flannel.generate(flannel.Conf(raw), flannel.parse_subnet_env(text, "subnet.env"))


def test_the_articles_conflist_becomes_the_articles_bridge_configuration():
    made = generate(FOUR_LINES, delegate={"ipMasq": False, "hairpinMode": True, "isDefaultGateway": True})
    assert made == {
        "name": "cni0",
        "type": "bridge",
        "ipMasq": False,
        "hairpinMode": True,
        "isDefaultGateway": True,
        "isGateway": True,
        "mtu": 1450,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": "10.244.1.0/24"}]],
            "routes": [{"dst": "10.244.0.0/16"}],
        },
    }


def test_the_delegate_masquerades_when_flanneld_does_not_and_the_conflist_says_nothing():
    assert generate(FOUR_LINES)["ipMasq"] is False
    assert generate(SIX_LINES)["ipMasq"] is True


def test_both_families_and_several_networks_become_range_sets_and_routes():
    made = generate(SIX_LINES, cniVersion="1.0.0", ipam={"type": "x", "routes": [{"dst": "192.0.2.0/24"}], "more": 1})
    assert made["ipam"] == {
        "type": "x",
        "more": 1,
        "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:0:0:1::/64"}]],
        "routes": [{"dst": dst} for dst in ("192.0.2.0/24", "10.244.0.0/16", "10.245.0.0/16", "fd00::/48")],
    }
    assert made["cniVersion"] == "1.0.0"


def test_other_delegates_get_no_gateway_setting_and_what_the_conflist_says_wins():
    made = generate(FOUR_LINES, delegate={"type": "ipvlan", "mtu": 1400}, runtimeConfig={"mac": "x"})
    assert "isGateway" not in made
    assert (made["type"], made["mtu"], made["runtimeConfig"]) == ("ipvlan", 1400, {"mac": "x"})


@pytest.mark.parametrize(
    ("delegate", "message"),
    [
        ({"type": 1}, "'delegate' dictionary, if present, must have (string) 'type' field"),
        ({"name": "x"}, "'delegate' dictionary must not have 'name' field, it'll be set by flannel"),
        ({"ipam": {}}, "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel"),
    ],
)
def test_what_only_flannel_may_set_is_refused(delegate, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
        generate(FOUR_LINES, delegate=delegate)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        ("FLANNEL_NETWORK", "FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK"),
        ("FLANNEL_SUBNET", "FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET"),
        ("FLANNEL_MTU", "FLANNEL_MTU"),
        ("FLANNEL_IPMASQ", "FLANNEL_IPMASQ"),
    ],
)
def test_an_incomplete_lease_names_what_is_missing(without, missing):
    text = "".join(line for line in FOUR_LINES.splitlines(keepends=True) if not line.startswith(without))
    with pytest.raises(ValueError, match=f"^subnet.env is missing {missing}$"):
        flannel.parse_subnet_env(text, "subnet.env")


@pytest.mark.parametrize("line", ["FLANNEL_NETWORK=x", "FLANNEL_SUBNET=10.1/8", "FLANNEL_MTU=-1", "FLANNEL_MTU=many"])
def test_a_lease_that_makes_no_sense_is_refused(line):
    with pytest.raises(ValueError, match="invalid"):
        flannel.parse_subnet_env(FOUR_LINES + line + "\n", "subnet.env")


def run(tmp_path, command, path="/nowhere", **conf):
    env = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "abc",
        "CNI_NETNS": "/some/where",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(path),
    }
    raw = {
        "name": "cni0", "type": "flannel", "subnetFile": str(tmp_path / "subnet.env"), "dataDir": str(tmp_path / "data"),
        "cniVersion": "1.1.0", **conf,
    }  # fmt: skip
    status, said = skel.run(flannel.PLUGIN, env, lambda: json.dumps(raw).encode(), lambda _: None)
    return status, json.loads(said) if said else None


def fake_delegate(folder, text):
    folder.mkdir(exist_ok=True)
    (folder / "bridge").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bridge").chmod(0o755)
    return folder


def test_without_a_lease_the_error_says_where_to_look_and_status_is_50(tmp_path):
    status, error = run(tmp_path, "ADD")
    assert (status, error["code"]) == (1, 999)
    assert error["msg"] == (
        f"failed to load flannel 'subnet.env' file: open {tmp_path}/subnet.env: no such file or directory. "
        "Check the flannel pod log for this node."
    )
    assert run(tmp_path, "STATUS")[1]["code"] == 50


def test_the_delegates_result_is_passed_on_and_its_configuration_kept_until_del(tmp_path):
    (tmp_path / "subnet.env").write_text(FOUR_LINES)
    answer = '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/8"}]}'
    path = fake_delegate(
        tmp_path / "bin", f"cat > {tmp_path}/got.$CNI_COMMAND; [ $CNI_COMMAND = DEL ] || echo '{answer}'"
    )
    status, result = run(tmp_path, "ADD", path)
    assert (status, result["cniVersion"]) == (0, "0.4.0")
    kept = (tmp_path / "data" / "abc").read_text()
    assert json.loads(kept)["ipam"]["ranges"] == [[{"subnet": "10.244.1.0/24"}]]
    assert (tmp_path / "got.ADD").read_text() == kept
    assert oct((tmp_path / "data" / "abc").stat().st_mode)[-3:] == "600"
    (tmp_path / "subnet.env").unlink()  # DEL needs no lease
    assert run(tmp_path, "DEL", path) == (0, None)
    assert (tmp_path / "got.DEL").read_text() == kept
    assert os.listdir(tmp_path / "data") == []
    assert run(tmp_path, "DEL", path) == (0, None)


def test_the_delegates_own_error_passes_unchanged_and_its_configuration_stays_for_the_next_del(tmp_path):
    (tmp_path / "subnet.env").write_text(FOUR_LINES)
    path = fake_delegate(tmp_path / "bin", """echo '{"code": 11, "msg": "later", "details": "d"}'; exit 1""")
    assert run(tmp_path, "ADD", path) == (1, {"code": 11, "msg": "later", "details": "d"})
    assert run(tmp_path, "DEL", path) == (1, {"code": 11, "msg": "later", "details": "d"})
    assert os.listdir(tmp_path / "data") == ["abc"]


def test_a_delegate_that_is_not_there_is_named_with_the_path_searched(tmp_path):
    (tmp_path / "subnet.env").write_text(FOUR_LINES)
    assert run(tmp_path, "ADD", "/nowhere")[1]["msg"] == (
        'failed to delegate add: failed to find plugin "bridge" in path [/nowhere]'
    )


def test_a_kept_configuration_that_is_broken_does_not_keep_a_container_from_being_deleted(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "abc").write_text('{"type": "bri')
    assert run(tmp_path, "DEL") == (0, None)


def test_gc_reaches_the_delegate_with_every_configuration_and_forgets_what_is_not_valid(tmp_path):
    (tmp_path / "subnet.env").write_text(FOUR_LINES)
    path = fake_delegate(tmp_path / "bin", f'cat >> {tmp_path}/got; echo >> {tmp_path}/got; echo "{{}}"')
    (tmp_path / "data").mkdir()
    old = {"name": "cni0", "type": "bridge", "ipam": {"ranges": [[{"subnet": "10.244.9.0/24"}]]}}
    for name in ("gone", "alive"):
        (tmp_path / "data" / name).write_text(json.dumps(old))
    (tmp_path / "data" / "foreign").write_text(json.dumps({**old, "name": "other"}))
    valid = [{"containerID": "alive", "ifname": "eth0"}]
    assert run(tmp_path, "GC", path, **{"cni.dev/valid-attachments": valid}) == (0, None)
    told = [json.loads(line) for line in (tmp_path / "got").read_text().splitlines()]
    assert {one["ipam"]["ranges"][0][0]["subnet"] for one in told} == {"10.244.9.0/24", "10.244.1.0/24"}
    assert all(one["cni.dev/valid-attachments"] == valid for one in told)
    assert sorted(os.listdir(tmp_path / "data")) == ["alive", "foreign"]


def test_a_configuration_that_is_no_configuration_is_refused(tmp_path):
    status, error = run(tmp_path, "ADD", delegate="x")
    assert status == 1
    assert error["msg"].startswith(
        "failed to load flannel netconf file: failed to load netconf: json: cannot unmarshal"
    )
