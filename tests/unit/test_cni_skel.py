"""The plugin skeleton: variables, versions, error objects; and the delegation's words. No namespace is entered."""

import json
import os

import pytest

from podwire.cni import delegate, skel
from podwire.errors import CniError, KernelError

pytestmark = pytest.mark.unit

ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "abc",
    "CNI_NETNS": "/nowhere",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
}
CONF = {"name": "net", "cniVersion": "1.1.0"}


def plugin(add=lambda request: "{}"):
    nothing = lambda request: None  # noqa: E731 - four of one kind
    return skel.Plugin("test", add, nothing, nothing, nothing, nothing)


def run(conf=CONF, env=ENV, add=None):
    notes = []
    text = conf if isinstance(conf, bytes) else json.dumps(conf).encode()
    status, said = skel.run(plugin(add) if add else plugin(), env, lambda: text, notes.append)
    return status, said, "".join(notes)


def error(conf=CONF, env=ENV, add=None):
    status, said, _ = run(conf, env, add)
    assert status == 1
    return json.loads(said)


def test_without_a_command_the_plugin_introduces_itself_on_stderr():
    status, said, notes = run(env={})
    assert (status, said) == (0, "")
    assert notes.splitlines()[1] == "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"


def test_version_needs_nothing_and_reads_nothing():
    def read():
        raise AssertionError("standard input was read")

    status, said = skel.run(plugin(), {"CNI_COMMAND": "VERSION"}, read, print)
    assert status == 0
    assert json.loads(said)["supportedVersions"] == ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("ADD", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("CHECK", "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH"),
        ("DEL", "CNI_CONTAINERID,CNI_IFNAME,CNI_PATH"),
        ("GC", "CNI_PATH"),
        ("STATUS", "CNI_PATH"),
    ],
)
def test_all_missing_variables_are_named_at_once(command, missing):
    assert error(env={"CNI_COMMAND": command}) == {"code": 4, "msg": f"required env variables [{missing}] missing"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"CNI_CONTAINERID": "a/b"}, {"code": 4, "msg": "invalid characters in containerID", "details": "a/b"}),
        (
            {"CNI_IFNAME": "x" * 16},
            {
                "code": 4,
                "msg": "interface name is too long",
                "details": "interface name should be less than 16 characters",
            },
        ),
        ({"CNI_IFNAME": ".."}, {"code": 4, "msg": "interface name is . or .."}),
        ({"CNI_IFNAME": "a b"}, {"code": 4, "msg": "interface name contains / or : or whitespace characters"}),
        ({"CNI_COMMAND": "FIX"}, {"code": 4, "msg": "unknown CNI_COMMAND: FIX"}),
    ],
)
def test_a_bad_variable_is_an_invalid_environment(change, expected):
    assert error(env={**ENV, **change}) == expected


@pytest.mark.parametrize(
    ("conf", "code", "message"),
    [
        (b"{", 6, "error unmarshall network config: "),
        ({"cniVersion": "1.0.0"}, 7, "missing network name"),
        ({"name": "a/b"}, 7, "invalid characters found in network name"),
        ({"name": 7}, 6, "error unmarshall network config: json: cannot unmarshal number"),
        ({"name": "x", "cniVersion": 1}, 6, "decoding version from network config"),
        ({"name": "x", "cniVersion": "1.2.3"}, 1, "incompatible CNI versions"),
    ],
)
def test_a_bad_configuration_has_the_specifications_code(conf, code, message):
    found = error(conf)
    assert found["code"] == code
    assert found["msg"].startswith(message)


def test_an_unsupported_version_is_told_with_those_that_are():
    found = error({"name": "x", "cniVersion": "0.9.0"})
    assert found["details"] == (
        'config is "0.9.0", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]'
    )


@pytest.mark.parametrize(
    ("command", "version", "allowed"),
    [
        ("CHECK", "0.3.1", False),
        ("CHECK", "0.4.0", True),
        ("GC", "1.0.0", False),
        ("GC", "1.1.0", True),
        ("STATUS", "1.0.0", False),
        ("STATUS", "1.1.0", True),
    ],
)
def test_newer_commands_need_a_newer_configuration(command, version, allowed):
    status, said, _ = run({"name": "x", "cniVersion": version}, {**ENV, "CNI_COMMAND": command})
    assert status == (0 if allowed else 1)
    if not allowed:
        assert json.loads(said) == {"code": 1, "msg": f"config version does not allow {command}"}


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (CniError(7, "msg", "why"), {"code": 7, "msg": "msg", "details": "why"}),
        (ValueError("plain"), {"code": 999, "msg": "plain"}),
        (KernelError.of(1, "doing", "it"), {"code": 999, "msg": "doing it: Operation not permitted [EPERM]"}),
        (FileNotFoundError(2, "", "/a"), {"code": 999, "msg": "open /a: no such file or directory"}),
    ],
)
def test_every_failure_becomes_an_error_object(raised, expected):
    def add(_request):
        raise raised

    assert error(add=add) == expected


def test_a_bug_becomes_an_error_object_and_its_traceback_goes_to_stderr():
    def add(_request):
        return 1 // 0

    status, said, notes = run(add=add)
    assert status == 1
    assert "bug in podwire's test" in json.loads(said)["msg"]
    assert "ZeroDivisionError" in notes


def test_the_containers_namespace_must_not_be_the_plugins_own():
    own = {**ENV, "CNI_NETNS": f"/proc/{os.getpid()}/ns/net"}
    assert error(env=own)["code"] == 8
    for word in ("1", "true", "TRUE"):
        assert run(env={**own, "CNI_NETNS_OVERRIDE": word})[0] == 0


def test_known_arguments_are_read_and_unknown_ones_need_leave():
    assert skel.parse_args("MAC=aa;X=y;IgnoreUnknown=1", ("MAC",)) == {"MAC": "aa"}
    assert skel.parse_args("", ("MAC",)) == {}
    with pytest.raises(ValueError, match=r'ARGS: unknown args \["X=y" "Z=1"\]'):
        skel.parse_args("X=y;MAC=aa;Z=1", ("MAC",))
    with pytest.raises(ValueError, match='ARGS: invalid pair "X"'):
        skel.parse_args("X", ())
    with pytest.raises(ValueError, match="boolean unmarshal error: invalid input maybe"):
        skel.parse_args("IgnoreUnknown=maybe", ())


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def call(path, env=ENV, stdin=b"{}", notes=None):
    return delegate.call(path, os.path.basename(path), env, stdin, (notes if notes is not None else []).append)


def test_a_foreign_plugin_gets_environment_and_configuration_and_its_output_comes_back(tmp_path):
    path = script(tmp_path, "foreign", 'echo "note" >&2; printf "%s|" "$CNI_COMMAND"; cat')
    notes = []
    assert call(path, stdin=b'{"x":1}', notes=notes) == b'ADD|{"x":1}'
    assert notes == ["note\n"]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('echo "{\\"code\\": 11, \\"msg\\": \\"later\\", \\"details\\": \\"d\\"}"; exit 1', 11, "^later$"),
        ("exit 3", 999, "^netplugin failed with no error message: exit status 3$"),
        ("echo oops >&2; exit 1", 999, r'^netplugin failed: "oops\\n": exit status 1$'),
        ("echo oops; exit 1", 999, r'^netplugin failed but error parsing its diagnostic message "oops\\n": '),
        ("kill -9 $$", 999, "^netplugin failed with no error message: signal: killed$"),
    ],
)
def test_a_foreign_plugins_failure_is_passed_on_or_told_by_how_it_ended(tmp_path, text, code, message):
    with pytest.raises(CniError) as caught:
        call(script(tmp_path, "foreign", text))
    assert caught.value.code == code
    import re

    assert re.search(message, caught.value.msg)


def test_only_the_very_stub_of_this_podwire_is_called_in_process(tmp_path):
    path = script(tmp_path, "bridge", "true")
    assert not delegate.is_own(path, "bridge")
    (tmp_path / "bridge").write_text(delegate.stub("bridge"))
    assert delegate.is_own(path, "bridge")
    assert not delegate.is_own(path, "host-local")
    (tmp_path / "bridge").write_text(delegate.stub("bridge") + "# changed\n")
    assert not delegate.is_own(path, "bridge")


def test_a_plugin_is_found_in_the_first_folder_that_has_it(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "x").mkdir()  # a folder is no plugin
    wanted = script(tmp_path / "two", "x", "true")
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert delegate.find("x", paths) == wanted
    with pytest.raises(CniError, match=rf'failed to find plugin "y" in path \[{paths[0]} {paths[1]}\]'):
        delegate.find("y", paths)
    with pytest.raises(CniError, match=r"invalid plugin name: \.\./x"):
        delegate.find("../x", paths)
    with pytest.raises(CniError, match="no plugin name provided"):
        delegate.find("", paths)


def test_a_result_without_version_has_that_of_its_configuration():
    assert delegate.parse_result(b"{}", "1.0.0").version == "1.0.0"
    assert delegate.parse_result(b'{"cniVersion":"0.4.0"}', "1.0.0").version == "0.4.0"
    with pytest.raises(CniError, match="failed to unmarshal raw result"):
        delegate.parse_result(b"oops", "1.0.0")
