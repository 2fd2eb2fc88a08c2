"""static and tuning, as far as they need no interface."""

import json

import pytest

from podwire.cni import skel
from podwire.cni.plugins import static, tuning
from podwire.cni.plugins.tuning_conf import sysctl_name

pytestmark = pytest.mark.unit

CONF = {"name": "net", "cniVersion": "1.1.0", "ipam": {"type": "static"}}
ONE = {"address": "10.10.0.1/24", "gateway": "10.10.0.254"}


def call(plugin, command, conf, **env):
    variables = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": "pod",
        "CNI_NETNS": "/nowhere",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/x",
        **env,
    }
    text = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
    status, said = skel.run(plugin, variables, lambda: text, lambda _: None)
    return status, json.loads(said) if said else None


def conf(*addresses, **more):
    return {**CONF, "ipam": {"type": "static", "addresses": list(addresses)}, **more}


def addresses(given):
    return [(ip["address"], ip.get("gateway")) for ip in given.get("ips", ())]


def test_the_configured_addresses_are_told():
    status, told = call(static.PLUGIN, "ADD", conf(ONE, {"address": "FD00::1/64"}))
    assert status == 0
    assert addresses(told) == [("10.10.0.1/24", "10.10.0.254"), ("fd00::1/64", None)]


def test_variables_add_and_give_gateways_to_what_they_added():
    env = {"CNI_ARGS": "IP=10.20.0.1/24, fd00::2/64;GATEWAY=10.20.0.254,fd00::ff,10.10.0.9;MAC=02:00:00:00:00:01"}
    _, told = call(static.PLUGIN, "ADD", conf(ONE), **env)
    assert addresses(told) == [
        ("10.10.0.1/24", "10.10.0.254"), ("10.20.0.1/24", "10.20.0.254"), ("fd00::2/64", "fd00::ff"),
    ]  # fmt: skip


def test_the_runtime_wins_over_args_and_args_over_all_else():
    args = {"args": {"cni": {"ips": ["10.30.0.1/24"]}}}
    env = {"CNI_ARGS": "IP=10.20.0.1/24"}
    assert addresses(call(static.PLUGIN, "ADD", conf(ONE, **args), **env)[1]) == [("10.30.0.1/24", None)]
    both = {**args, "runtimeConfig": {"ips": ["10.40.0.1/24"]}}
    assert addresses(call(static.PLUGIN, "ADD", conf(ONE, **both), **env)[1]) == [("10.40.0.1/24", None)]


@pytest.mark.parametrize(
    ("given", "env", "words"),
    [
        ({"name": "net", "cniVersion": "1.1.0"}, {}, "IPAM config missing 'ipam' key"),
        (conf({"address": "10.0.0.1"}), {}, "the 'address' field is expected to be in CIDR notation, got: '10.0.0.1'"),
        (conf(), {"CNI_ARGS": "IP=10.0.0.1"}, "the 'ip' field is expected to be in CIDR notation, got: '10.0.0.1'"),
        (conf(), {"CNI_ARGS": "GATEWAY=x"}, "invalid gateway address: x"),
        (
            conf(runtimeConfig={"ips": ["10.0.0.1"]}),
            {},
            "an entry in the 'ips' field is NOT in CIDR notation, got: '10.0.0.1'",
        ),
        (
            {**conf(ONE, {"address": "10.11.0.1/24"}), "cniVersion": "0.2.0"},
            {},
            "CNI version 0.2.0 does not support more than 1 address per family",
        ),
    ],
)
def test_what_is_no_address_is_refused(given, env, words):
    status, error = call(static.PLUGIN, "ADD", given, **env)
    assert (status, error["msg"]) == (1, words)


def test_check_compares_gateways_with_the_previous_result():
    previous = {"cniVersion": "1.1.0", "ips": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}]}
    assert call(static.PLUGIN, "CHECK", conf(ONE, prevResult=previous)) == (0, None)
    previous["ips"][0]["gateway"] = "10.10.0.253"
    status, error = call(static.PLUGIN, "CHECK", conf(ONE, prevResult=previous))
    assert (status, error["msg"]) == (1, "static: Failed to match addr 10.10.0.1 on interface eth0")
    assert call(static.PLUGIN, "CHECK", conf(ONE))[1]["msg"] == "Required prevResult missing"


def test_del_and_gc_have_nothing_to_do():
    assert call(static.PLUGIN, "DEL", conf(ONE)) == (0, None)
    assert call(static.PLUGIN, "GC", conf(ONE)) == (0, None)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("net.core.somaxconn", "net/core/somaxconn"),
        ("net/core/somaxconn", "net/core/somaxconn"),
        ("net.ipv4.conf.IFNAME.arp_filter", "net/ipv4/conf/eth0.7/arp_filter"),
    ],
)
def test_a_sysctl_is_found_in_either_spelling_and_for_an_interface_with_a_dot(key, name):
    assert sysctl_name(key, "eth0.7") == name


@pytest.mark.parametrize("key", ["kernel.hostname", "net", "/etc/passwd", "netfoo.x"])
def test_only_settings_of_the_network_are_touched(key):
    with pytest.raises(ValueError, match="invalid net sysctl key: "):
        sysctl_name(key, "eth0")


def test_a_sysctl_that_is_written_twice_is_refused_and_its_del_succeeds():
    text = b'{"name": "net", "cniVersion": "1.1.0", "SysCtl": {"net.a": "1", "net.b": "1", "net.a": "2"}}'
    assert call(tuning.PLUGIN, "ADD", text)[1]["msg"] == "duplicated sysctl keys are not allowed"
    assert call(tuning.PLUGIN, "DEL", text) == (0, None)


def test_tuning_needs_a_previous_result():
    assert call(tuning.PLUGIN, "ADD", CONF)[1]["msg"] == "Required prevResult missing"
