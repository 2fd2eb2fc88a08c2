"""Where CNI configuration and plugins are: from flags, or from containerd's own configuration file.

A node that was set up for containerd says it in config.toml, in one of three places, by the file's age:

    version 3   [plugins.'io.containerd.cri.v1.runtime'.cni]     bin_dirs = [...], or bin_dir (until 2.1 the only one)
    version 2   [plugins."io.containerd.grpc.v1.cri".cni]        bin_dir
    version 1   [plugins.cri.cni]                                bin_dir

with conf_dir and max_conf_num beside it. `imports` of such a file are read as containerd reads them: patterns relative
to the file, each overriding what came before. A flag overrides the file; what neither says has containerd's default.
Everything else in the file belongs to containerd and is passed over, except keys of the cni table that would change
what podwire does: those are named in a warning.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Any

from podwire.errors import UsageError

CONF_DIR = "/etc/cni/net.d"
BIN_DIR = "/opt/cni/bin"

_PLACES = (
    ("plugins", "io.containerd.cri.v1.runtime", "cni"),
    ("plugins", "io.containerd.grpc.v1.cri", "cni"),
    ("plugins", "cri", "cni"),
)
_KNOWN = frozenset({"bin_dir", "bin_dirs", "conf_dir", "max_conf_num"})
_HARMLESS = {"conf_template": "", "ip_pref": "", "setup_serially": False, "use_internal_loopback": False}


@dataclass(frozen=True)
class CniSettings:
    """`max_conf_num` is how many configuration files are used, in order of their names (0: all)."""

    conf_dir: str = CONF_DIR
    bin_dirs: tuple[str, ...] = (BIN_DIR,)
    max_conf_num: int = 1
    warnings: tuple[str, ...] = ()


def settings(config: str | None, conf_dir: str | None, bin_dir: str | None) -> CniSettings:
    """The settings from the three flags; `bin_dir` may name several folders, separated by colons."""
    found = from_file(config) if config else CniSettings()
    return CniSettings(
        conf_dir or found.conf_dir,
        tuple(part for part in bin_dir.split(":") if part) if bin_dir else found.bin_dirs,
        found.max_conf_num,
        found.warnings,
    )


def from_file(path: str) -> CniSettings:
    """What a containerd config.toml says; UsageError if it cannot be read or says nonsense."""
    table: dict[str, Any] = {}
    for document in _documents(path, set()):
        for place in _PLACES:
            node: Any = document
            for key in place:
                node = node.get(key, {}) if isinstance(node, dict) else {}
            if isinstance(node, dict):
                table.update(node)
    conf_dir = _text(path, table, "conf_dir") or CONF_DIR
    bin_dirs = table.get("bin_dirs") or [_text(path, table, "bin_dir") or BIN_DIR]
    if not isinstance(bin_dirs, list) or not all(isinstance(folder, str) for folder in bin_dirs):
        raise UsageError("reading", path, "cni.bin_dirs is not a list of folders")
    number = table.get("max_conf_num", 1)
    if not isinstance(number, int) or number < 0:
        raise UsageError("reading", path, f"cni.max_conf_num is {number!r}, it should be a number ≥ 0")
    ignored = sorted(key for key in table if key not in _KNOWN and table[key] != _HARMLESS.get(key, object()))
    warnings = tuple(f"{path}: cni.{key} is not honoured" for key in ignored)
    return CniSettings(conf_dir, tuple(bin_dirs), number, warnings)


def _text(path: str, table: dict[str, Any], key: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise UsageError("reading", path, f"cni.{key} is {value!r}, it should be a folder")
    return value


def _documents(path: str, seen: set[str]) -> list[dict[str, Any]]:
    """The file and what it imports, in the order in which later ones override earlier ones."""
    real = os.path.realpath(path)
    if real in seen:
        return []
    seen.add(real)
    import tomllib  # only when there is such a file

    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        raise UsageError("reading", path, error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("reading", path, f"not TOML: {error}") from error
    found = [document]
    for pattern in document.get("imports", []):
        for name in sorted(glob.glob(os.path.join(os.path.dirname(real), str(pattern)))):
            found += _documents(name, seen)
    return found
