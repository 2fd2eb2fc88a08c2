"""Network configuration files: what is in /etc/cni/net.d, as libcni reads it.

A *list* (`.conflist`) names a network and the plugins of its chain; a single configuration (`.conf`, `.json`) is a list of
one. Which file counts: runtimes take the first by file name, over all three extensions together; `load(dir, name)`,
as cnitool does it, looks through the lists first and only then through single configurations. A list may also have plugins in a folder
of its network's name beside it, unless it says `loadOnlyInlinedPlugins`.

Names at the top of a list are looked up as written (unlike everywhere else in CNI, their case matters): libcni does so.
"""

from __future__ import annotations

import os

from podwire.cni.spec import versions
from podwire.cni.spec.text import Fields, TextError, decode, encode
from podwire.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXTENSIONS = (".conf", ".conflist", ".json")


class NetworkList:
    """A network: its name, the CNI version of the whole chain ('': none, that is 0.1.0) and the plugins' configurations."""

    __slots__ = ("cni_version", "disable_check", "disable_gc", "name", "only_inlined", "plugins", "source", "text")

    def __init__(
        self, name: str, cni_version: str, plugins: list[dict[str, Any]], text: bytes, source: str = ""
    ) -> None:
        self.name = name
        self.cni_version = cni_version
        self.plugins = plugins
        self.text = text  # as it was read: what the result cache keeps
        self.source = source  # the file it was read from
        self.disable_check = False
        self.disable_gc = False
        self.only_inlined = False

    @property
    def types(self) -> list[str]:
        """The plugins' types, in the order of the chain."""
        return [Fields(plugin, "PluginConf").text("type") for plugin in self.plugins]

    def __repr__(self) -> str:
        return f"NetworkList({self.name!r}, {self.cni_version!r}, {'+'.join(self.types)}, {self.source!r})"


def _invalid(message: str) -> CniError:
    return CniError(versions.INVALID_NETWORK_CONFIG, message)


def _go_type(value: object) -> str:
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, (int, float)):
        return "float64"
    if isinstance(value, str):
        return "string"
    return "[]interface {}" if isinstance(value, list) else "map[string]interface {}"


def parse_list(text: bytes, source: str = "") -> NetworkList:
    """Read a network configuration list. Raises CniError 6 for what is no JSON, 7 for what is no network."""
    try:
        raw = decode(text)
    except TextError as error:
        raise CniError(versions.DECODING_FAILURE, f"error parsing configuration list: {error}") from None
    if not isinstance(raw, dict):
        raise _invalid(f"error parsing configuration list: it is a {_go_type(raw)}")
    what = "error parsing configuration list"
    if "name" not in raw:
        raise _invalid(f"{what}: no name")
    if not isinstance(raw["name"], str):
        raise _invalid(f"{what}: invalid name type {_go_type(raw['name'])}")
    found = NetworkList(raw["name"], _version(raw), [], text, source)
    found.disable_check = _flag(raw, "disableCheck")
    found.disable_gc = _flag(raw, "disableGC")
    found.only_inlined = _flag(raw, "loadOnlyInlinedPlugins")
    if "plugins" not in raw:
        if found.only_inlined:
            raise _invalid(f"{what}: `loadOnlyInlinedPlugins` is true, and no 'plugins' key")
        return found
    plugins = raw["plugins"]
    if not isinstance(plugins, list):
        raise _invalid(f"{what}: invalid 'plugins' type {_go_type(plugins)}")
    if not plugins:
        raise _invalid(f"{what}: no plugins in list")
    for index, plugin in enumerate(plugins):
        try:
            found.plugins.append(_plugin(plugin))
        except (CniError, TextError) as error:
            raise _invalid(f"failed to parse plugin config {index}: {error}") from None
    return found


def _version(raw: dict[str, Any]) -> str:
    """`cniVersion`, or the newest that we know of it and `cniVersions`."""
    what = "error parsing configuration list"
    version = raw.get("cniVersion", "")
    if not isinstance(version, str):
        raise _invalid(f"{what}: invalid cniVersion type {_go_type(version)}")
    if "cniVersions" not in raw:
        return version
    several = raw["cniVersions"]
    if not isinstance(several, list):
        raise _invalid(f"{what}: invalid type for cniVersions: {_go_type(several)}")
    known = []
    for index, one in enumerate([*several, version] if version else several):
        if not isinstance(one, str):
            raise _invalid(f"{what}: invalid type for cniVersions index {index}: {_go_type(one)}")
        try:
            if versions.at_least(versions.CURRENT, one):
                known.append(one)
        except CniError as error:
            raise _invalid(f"{what}: invalid cniVersions entry {one} at index {index}: {error}") from None
    return max(known, key=versions.parse) if known else version


def _flag(raw: dict[str, Any], key: str) -> bool:
    value = raw.get(key, False)
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise _invalid(f"error parsing configuration list: invalid type {_go_type(value)} for {key}")
    if value.lower() not in ("true", "false"):
        raise _invalid(f'error parsing configuration list: invalid value "{value.lower()}" for {key}')
    return value.lower() == "true"


def _plugin(value: object) -> dict[str, Any]:
    if not Fields(value, "PluginConf").text("type"):
        raise _invalid("error parsing configuration: missing 'type'")
    assert isinstance(value, dict)
    return value


def parse_single(text: bytes, source: str = "") -> NetworkList:
    """Read one plugin's configuration as a list of one. Raises CniError."""
    try:
        plugin = _plugin(decode(text))
        fields = Fields(plugin, "PluginConf")
        version = fields.text("cniVersion")
        whole = {"cniVersion": version, "name": fields.text("name"), "plugins": [plugin]}
    except TextError as error:
        raise CniError(versions.DECODING_FAILURE, f"error parsing configuration: {error}") from None
    return NetworkList(fields.text("name"), version, [plugin], encode(whole, ordered=True).encode(), source)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise CniError(versions.IO_FAILURE, f"error reading {path}: {os.strerror(error.errno or 0).lower()}") from error


def read(path: str) -> NetworkList:
    """Read a configuration file of any of the three kinds. Raises CniError, its message naming the file."""
    text = _read(path)
    try:
        if not path.endswith(".conflist"):
            return parse_single(text, path)
        found = parse_list(text, path)
        if not found.only_inlined:
            folder = os.path.join(os.path.dirname(path), found.name)
            found.plugins += [_plugin(decode(_read(file))) for file in files(folder, (".conf",))]
        if not found.plugins:
            raise _invalid("no plugin configs found")
    except TextError as error:
        raise CniError(versions.DECODING_FAILURE, f"{path}: {error}") from None
    except CniError as error:
        raise CniError(error.code, f"{path}: {error.msg}", error.details) from None
    return found


def files(folder: str, extensions: tuple[str, ...] = EXTENSIONS) -> list[str]:
    """The configuration files in a folder, sorted by name; none where there is no such folder."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CniError(
            versions.IO_FAILURE, f"error reading {folder}: {os.strerror(error.errno or 0).lower()}"
        ) from error
    paths = [os.path.join(folder, name) for name in names if os.path.splitext(name)[1] in extensions]
    return [path for path in paths if not os.path.isdir(path)]


def load_networks(folder: str) -> list[NetworkList]:
    """All networks of a folder in the order that runtimes choose by. Raises CniError at the first file that is no network."""
    return [read(path) for path in files(folder)]


def default_network(folder: str) -> NetworkList:
    """The network that a runtime attaches pods to: the first file. Raises CniError, also where there is none."""
    found = files(folder)
    if not found:
        raise _invalid(f"no network config found in {folder}: cni plugin not initialized")
    return read(found[0])


def load(folder: str, name: str) -> NetworkList:
    """The network of this name: of the lists first, then of the single configurations. Raises CniError."""
    lists = files(folder, (".conflist",))
    singles = files(folder, (".conf", ".json"))
    for path in [*lists, *singles]:
        network = read(path)
        if network.name == name:
            return network
    if not lists and not singles:
        raise _invalid(f"no net configurations found in {folder}")
    raise _invalid(f'no net configuration with name "{name}" in {folder}')
