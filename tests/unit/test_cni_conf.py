"""Network configuration files, as libcni reads them."""

import json

import pytest

from podwire.cni.spec import conf
from podwire.errors import CniError

pytestmark = pytest.mark.unit

FLANNEL = {"name": "cni0", "plugins": [{"type": "flannel", "delegate": {"hairpinMode": True}}]}


def write(folder, name, value):
    text = value if isinstance(value, str) else json.dumps(value)
    (folder / name).write_text(text)


def test_the_articles_conflist_has_no_version_and_one_plugin():
    network = conf.parse_list(json.dumps(FLANNEL).encode())
    assert (network.name, network.cni_version, network.types) == ("cni0", "", ["flannel"])


def test_the_first_file_by_name_over_all_extensions_is_the_default(tmp_path):
    write(tmp_path, "20-b.conflist", FLANNEL)
    write(tmp_path, "10-a.conf", {"name": "single", "type": "bridge", "cniVersion": "1.0.0"})
    write(tmp_path, "05-c.json.bak", "not read")
    write(tmp_path, "30-d.json", {"name": "third", "type": "ptp"})
    assert [network.name for network in conf.load_networks(str(tmp_path))] == ["single", "cni0", "third"]
    network = conf.default_network(str(tmp_path))
    assert (network.name, network.cni_version, network.types) == ("single", "1.0.0", ["bridge"])


def test_a_single_configuration_becomes_a_list_that_the_cache_can_keep(tmp_path):
    write(tmp_path, "10-a.conf", {"name": "single", "type": "bridge", "cniVersion": "1.0.0", "mtu": 1400})
    again = conf.parse_list(conf.default_network(str(tmp_path)).text)
    assert (again.name, again.cni_version) == ("single", "1.0.0")
    assert again.plugins == [{"name": "single", "type": "bridge", "cniVersion": "1.0.0", "mtu": 1400}]


def test_by_name_lists_come_before_single_configurations(tmp_path):
    write(tmp_path, "10-a.conf", {"name": "x", "type": "bridge"})
    write(tmp_path, "20-b.conflist", {"name": "x", "plugins": [{"type": "ptp"}]})
    assert conf.load(str(tmp_path), "x").types == ["ptp"]
    with pytest.raises(CniError, match='no net configuration with name "y"'):
        conf.load(str(tmp_path), "y")


def test_an_empty_or_missing_folder_is_the_state_that_runtimes_report(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CniError, match=r"no network config found in .*: cni plugin not initialized"):
            conf.default_network(str(folder))


def test_plugins_may_lie_in_a_folder_of_the_networks_name(tmp_path):
    write(tmp_path, "10-a.conflist", {"name": "net", "plugins": [{"type": "bridge"}]})
    (tmp_path / "net").mkdir()
    write(tmp_path / "net", "10-more.conf", {"type": "tuning"})
    assert conf.default_network(str(tmp_path)).types == ["bridge", "tuning"]
    write(tmp_path, "10-a.conflist", {"name": "net", "loadOnlyInlinedPlugins": True, "plugins": [{"type": "bridge"}]})
    assert conf.default_network(str(tmp_path)).types == ["bridge"]


@pytest.mark.parametrize(
    ("several", "single", "chosen"),
    [
        (["0.4.0", "1.0.0"], None, "1.0.0"),
        (["1.0.0", "9.0.0"], "0.4.0", "1.0.0"),
        (["9.0.0"], "0.3.1", "0.3.1"),
        ([], "1.0.0", "1.0.0"),
    ],
)
def test_of_several_versions_the_newest_known_one_counts(several, single, chosen):
    raw = {**FLANNEL, "cniVersions": several, **({"cniVersion": single} if single else {})}
    assert conf.parse_list(json.dumps(raw).encode()).cni_version == chosen


@pytest.mark.parametrize("value", [True, "true", "TRUE"])
def test_flags_may_be_words(value):
    network = conf.parse_list(json.dumps({**FLANNEL, "disableCheck": value, "disableGC": value}).encode())
    assert network.disable_check
    assert network.disable_gc


@pytest.mark.parametrize(
    ("raw", "message", "code"),
    [
        ("{", "error parsing configuration list", 6),
        ([], "it is a", 7),
        ({"plugins": [{"type": "x"}]}, "no name", 7),
        ({"name": 1}, "invalid name type float64", 7),
        ({"name": "x", "cniVersion": 1, "plugins": []}, "invalid cniVersion type float64", 7),
        ({"name": "x", "plugins": {}}, "invalid 'plugins' type map", 7),
        ({"name": "x", "plugins": []}, "no plugins in list", 7),
        ({"name": "x", "plugins": [{}]}, "failed to parse plugin config 0: .*missing 'type'", 7),
        ({"name": "x", "plugins": ["y"]}, "failed to parse plugin config 0", 7),
        ({"name": "x", "disableGC": "maybe", "plugins": [{"type": "y"}]}, 'invalid value "maybe" for disableGC', 7),
        ({"name": "x", "loadOnlyInlinedPlugins": True}, "no 'plugins' key", 7),
        ({"name": "x", "cniVersions": ["a"], "plugins": [{"type": "y"}]}, "invalid cniVersions entry a at index 0", 7),
    ],
)
def test_what_is_no_network_is_said_with_its_reason_and_code(raw, message, code):
    text = raw if isinstance(raw, str) else json.dumps(raw)
    with pytest.raises(CniError, match=message) as caught:
        conf.parse_list(text.encode())
    assert caught.value.code == code


def test_a_bad_file_is_named(tmp_path):
    write(tmp_path, "10-bad.conflist", "{")
    with pytest.raises(CniError, match=r"10-bad\.conflist: error parsing configuration list"):
        conf.default_network(str(tmp_path))
    write(tmp_path, "10-bad.conflist", {"name": "x"})
    with pytest.raises(CniError, match="no plugin configs found"):
        conf.default_network(str(tmp_path))
