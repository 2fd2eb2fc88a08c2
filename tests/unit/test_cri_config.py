"""CNI paths from flags and from containerd's configuration files of every age."""

import pytest

from podwire.cri import config
from podwire.errors import UsageError

pytestmark = pytest.mark.unit

VERSION_3 = """
version = 3
[plugins.'io.containerd.cri.v1.runtime']
  enable_selinux = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dir = ''
    bin_dirs = ['/usr/libexec/cni', '/opt/cni/bin']
    conf_dir = '/etc/my-net.d'
    max_conf_num = 2
    setup_serially = false
    conf_template = ''
    ip_pref = ''
    use_internal_loopback = false
"""
VERSION_2 = """
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.6"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/other"
"""
VERSION_1 = """
[plugins.cri.cni]
  bin_dir = "/old/bin"
  conf_dir = "/old/conf"
"""


def written(tmp_path, text, name="config.toml"):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("text", "conf_dir", "bin_dirs", "number"),
    [
        (VERSION_3, "/etc/my-net.d", ("/usr/libexec/cni", "/opt/cni/bin"), 2),
        (VERSION_2, "/etc/cni/other", ("/usr/lib/cni",), 1),
        (VERSION_1, "/old/conf", ("/old/bin",), 1),
        ("version = 2\n", "/etc/cni/net.d", ("/opt/cni/bin",), 1),
        (VERSION_3.replace("bin_dirs", "#").replace("bin_dir = ''", "bin_dir = '/b'"), "/etc/my-net.d", ("/b",), 2),
    ],
)
def test_each_version_of_the_file_is_read(tmp_path, text, conf_dir, bin_dirs, number):
    found = config.from_file(written(tmp_path, text))
    assert (found.conf_dir, found.bin_dirs, found.max_conf_num) == (conf_dir, bin_dirs, number)
    assert found.warnings == ()


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path):
    path = written(tmp_path, VERSION_2)
    assert config.settings(None, None, None) == config.CniSettings()
    assert config.settings(path, None, None).conf_dir == "/etc/cni/other"
    found = config.settings(path, "/flag/conf", "/a:/b")
    assert (found.conf_dir, found.bin_dirs) == ("/flag/conf", ("/a", "/b"))


def test_imports_override_what_came_before(tmp_path):
    main = written(tmp_path, 'imports = ["conf.d/*.toml", "config.toml"]\n' + VERSION_2)
    written(tmp_path, VERSION_2.replace("/etc/cni/other", "/etc/first"), "conf.d/10.toml")
    written(tmp_path, VERSION_2.replace("/etc/cni/other", "/etc/last"), "conf.d/20.toml")
    assert config.from_file(main).conf_dir == "/etc/last"


def test_a_setting_that_would_matter_and_is_not_honoured_is_named(tmp_path):
    path = written(tmp_path, VERSION_2 + '    conf_template = "/etc/cni/template"\n    ip_pref = ""\n')
    assert config.from_file(path).warnings == (f"{path}: cni.conf_template is not honoured",)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[plugins", "not TOML"),
        (VERSION_2.replace('"/usr/lib/cni"', "7"), "bin_dir"),
        (VERSION_2 + "    max_conf_num = -1\n", "max_conf_num"),
        (VERSION_3.replace("['/usr/libexec/cni', '/opt/cni/bin']", "'x'"), "bin_dirs"),
    ],
)
def test_nonsense_is_one_sentence_that_names_the_file(tmp_path, text, part):
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=part) as caught:
        config.from_file(path)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        config.from_file(str(tmp_path / "none.toml"))
