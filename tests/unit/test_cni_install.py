"""Putting the plugins in place, and taking them away."""

import json
import os

import pytest

from podwire.cni import install
from podwire.errors import PodwireError, UsageError

pytestmark = pytest.mark.unit

NAMES = ["bridge", "flannel", "host-local", "loopback", "portmap", "static", "tuning"]


def test_the_plugins_are_written_beside_what_is_there(tmp_path):
    (tmp_path / "macvlan").write_text("somebody else's")
    previous = os.umask(0o077)
    try:
        written = install.install(str(tmp_path))
    finally:
        os.umask(previous)
    assert sorted(os.path.basename(path) for path in written) == NAMES
    assert sorted(os.listdir(tmp_path)) == sorted([*NAMES, "macvlan"])
    assert all(os.stat(path).st_mode & 0o777 == 0o755 for path in written)


def test_a_conflist_is_copied_as_it_is_under_flannels_name(tmp_path):
    text = '{ "name": "cni0",\n "plugins": [{"type": "flannel"}] }'
    (tmp_path / "given.conflist").write_text(text)
    install.install(str(tmp_path / "bin"), str(tmp_path / "net.d"), str(tmp_path / "given.conflist"))
    assert (tmp_path / "net.d" / "10-flannel.conflist").read_text() == text
    assert os.listdir(tmp_path / "net.d") == ["10-flannel.conflist"]


def test_installing_twice_changes_nothing_and_replaces_what_was_changed(tmp_path):
    install.install(str(tmp_path))
    before = (tmp_path / "bridge").read_text()
    (tmp_path / "bridge").write_text("broken")
    install.install(str(tmp_path))
    assert (tmp_path / "bridge").read_text() == before


def test_a_conflist_that_no_runtime_would_take_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "bad.conflist").write_text(json.dumps({"name": "x", "plugins": [{}]}))
    with pytest.raises(UsageError, match="missing 'type'"):
        install.install(str(tmp_path / "bin"), str(tmp_path / "net.d"), str(tmp_path / "bad.conflist"))
    assert not (tmp_path / "bin").exists()
    with pytest.raises(UsageError, match="needs --conf-dir"):
        install.install(str(tmp_path / "bin"), "", str(tmp_path / "bad.conflist"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(PodwireError, match=r"writing .*/file/bridge: Not a directory"):
        install.install(str(tmp_path / "file"))


def test_uninstalling_removes_podwires_files_and_nobody_elses(tmp_path):
    install.install(str(tmp_path))
    (tmp_path / "bridge").write_text("#!/bin/sh\n# the reference one\n")
    (tmp_path / "macvlan").write_text("x")
    removed = install.uninstall(str(tmp_path))
    assert sorted(os.path.basename(path) for path in removed) == [name for name in NAMES if name != "bridge"]
    assert sorted(os.listdir(tmp_path)) == ["bridge", "macvlan"]
    assert install.uninstall(str(tmp_path)) == []


def test_plugins_of_another_podwire_are_podwires_too(tmp_path):
    install.install(str(tmp_path))
    text = (tmp_path / "bridge").read_text().replace(os.sep + "src", os.sep + "elsewhere")
    (tmp_path / "bridge").write_text(text)
    assert len(install.uninstall(str(tmp_path))) == len(NAMES)
