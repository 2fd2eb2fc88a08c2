"""The skeleton of a CNI plugin: environment and standard input in, result or error object out (spec, section 2).

A plugin is a `Plugin`: a name and one function per command, each given a `Request`. Everything a function may know of the
world is in the request: environment, configuration, where to write notes. So the same function runs as an executable's
main, inside another plugin's process (cni.delegate), or in a helper that serves many at once.

    command   required besides CNI_COMMAND, CNI_PATH        since
    ADD       CNI_CONTAINERID CNI_NETNS CNI_IFNAME          0.1.0
    DEL       CNI_CONTAINERID CNI_IFNAME                    0.1.0
    CHECK     CNI_CONTAINERID CNI_NETNS CNI_IFNAME          0.4.0
    GC        -                                             1.1.0
    STATUS    -                                             1.1.0
    VERSION   (nothing, and nothing is read)

The checks come in the reference skeleton's order and words: variables, then configuration, then version, then the plugin. Only
afterwards is it an error (8) that the container's namespace is the plugin's own, unless CNI_NETNS_OVERRIDE allows it.
"""

from __future__ import annotations

import os
import sys

from podwire.cni.spec import versions
from podwire.cni.spec.text import Fields, TextError, decode, encode
from podwire.errors import CniError, PodwireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

    from podwire.cni.spec.result import Result

_SINCE = {"ADD": "", "DEL": "", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
# name, for which commands it is required
_VARIABLES = (
    ("CNI_COMMAND", ("ADD", "CHECK", "DEL", "GC", "STATUS")),
    ("CNI_CONTAINERID", ("ADD", "CHECK", "DEL")),
    ("CNI_NETNS", ("ADD", "CHECK")),
    ("CNI_IFNAME", ("ADD", "CHECK", "DEL")),
    ("CNI_PATH", ("ADD", "CHECK", "DEL", "GC", "STATUS")),
)
_NAME_FIRST = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_NAME_REST = _NAME_FIRST | frozenset("_.-")


class Request:
    """One call of a plugin."""

    __slots__ = (
        "args",
        "command",
        "conf",
        "container_id",
        "env",
        "ifname",
        "lasting",
        "netns",
        "note",
        "path",
        "stdin",
        "version",
    )

    def __init__(self, env: Mapping[str, str], note: Callable[[str], None]) -> None:
        self.env = env
        self.note = note  # writes a line to standard error: for people, no program reads it
        self.command = env.get("CNI_COMMAND", "")
        self.container_id = env.get("CNI_CONTAINERID", "")
        self.netns = env.get("CNI_NETNS", "")
        self.ifname = env.get("CNI_IFNAME", "")
        self.args = env.get("CNI_ARGS", "")
        self.path = env.get("CNI_PATH", "")
        self.lasting = False  # whether this process goes on afterwards, so that threads may outlast the call
        self.stdin = b""
        self.conf: dict[str, Any] = {}
        self.version = "0.1.0"  # of the configuration; the result is given in it


class Plugin:
    """A plugin's name and its functions; `add` returns the text to print. What it does not implement succeeds."""

    __slots__ = ("add", "check", "delete", "gc", "name", "status")

    def __init__(
        self,
        name: str,
        add: Callable[[Request], str],
        delete: Callable[[Request], None],
        check: Callable[[Request], None],
        gc: Callable[[Request], None],
        status: Callable[[Request], None],
    ) -> None:
        self.name = name
        self.add = add
        self.delete = delete
        self.check = check
        self.gc = gc
        self.status = status


def valid_name(text: str) -> bool:
    """Whether a container ID or network name has only the characters allowed."""
    return text[:1] in _NAME_FIRST and _NAME_REST.issuperset(text) if text else False


def check_container_id(text: str) -> None:
    """Raise CniError 4 for a container ID with characters that are not allowed, 3 for none."""
    if not text:
        raise CniError(versions.UNKNOWN_CONTAINER, "missing containerID")
    if not valid_name(text):
        raise CniError(versions.INVALID_ENVIRONMENT, "invalid characters in containerID", text)


def check_network_name(text: str) -> None:
    """Raise CniError 7 for no network name or one with characters that are not allowed."""
    if not text:
        raise CniError(versions.INVALID_NETWORK_CONFIG, "missing network name")
    if not valid_name(text):
        raise CniError(versions.INVALID_NETWORK_CONFIG, "invalid characters found in network name", text)


def check_ifname(text: str) -> None:
    """Raise CniError 4 for what cannot be an interface's name."""
    if not text:
        raise CniError(versions.INVALID_ENVIRONMENT, "interface name is empty")
    if len(text.encode()) > 15:
        raise CniError(
            versions.INVALID_ENVIRONMENT,
            "interface name is too long",
            "interface name should be less than 16 characters",
        )
    if text in (".", ".."):
        raise CniError(versions.INVALID_ENVIRONMENT, "interface name is . or ..")
    if any(character in "/:" or character.isspace() for character in text):
        raise CniError(versions.INVALID_ENVIRONMENT, "interface name contains / or : or whitespace characters")


def show(result: Result, version: str) -> str:
    """A result as it is printed. Raises ValueError where the version cannot say it."""
    return encode(result.json(version), indent=4)


def run(
    plugin: Plugin,
    env: Mapping[str, str],
    read: Callable[[], bytes],
    note: Callable[[str], None],
    *,
    lasting: bool = False,
) -> tuple[int, str]:
    """Serve one call: (exit status, what goes to standard output). `lasting` see Request."""
    request = Request(env, note)
    request.lasting = lasting
    try:
        return 0, _dispatch(plugin, request, read)
    except CniError as error:
        return 1, error_text(error)
    except (PodwireError, TextError, ValueError) as error:
        return 1, error_text(CniError(versions.INTERNAL, str(error)))
    except OSError as error:
        return 1, error_text(CniError(versions.INTERNAL, os_error(error)))
    except Exception as error:  # noqa: BLE001 - the caller must get an error object whatever went wrong
        import traceback

        note(traceback.format_exc())
        return 1, error_text(CniError(versions.INTERNAL, f"bug in podwire's {plugin.name}: {error!r}"))


def error_text(error: CniError) -> str:
    """An error object as it is printed."""
    written: dict[str, object] = {"code": error.code, "msg": error.msg}
    if error.details:
        written["details"] = error.details
    return encode(written, indent=4)


def os_error(error: OSError, doing: str = "open") -> str:
    """An operating system's error in Go's words: open /a/b: no such file or directory."""
    said = os.strerror(error.errno) if error.errno else str(error)
    said = said[:1].lower() + said[1:]
    return f"{doing} {error.filename}: {said}" if error.filename else said


def _dispatch(plugin: Plugin, request: Request, read: Callable[[], bytes]) -> str:
    note = request.note
    command = request.command
    if not command:
        note(f"CNI {plugin.name} plugin of podwire {_podwire_version()}\n")
        note(f"CNI protocol versions supported: {', '.join(versions.SUPPORTED)}\n")
        return ""
    _check_variables(request)
    if command == "VERSION":
        return encode({"cniVersion": versions.CURRENT, "supportedVersions": versions.SUPPORTED}) + "\n"
    _load(request, read)
    if command not in _SINCE:
        raise CniError(versions.INVALID_ENVIRONMENT, f"unknown CNI_COMMAND: {command}")
    if _SINCE[command] and not versions.at_least(request.version, _SINCE[command]):
        raise CniError(versions.INCOMPATIBLE_VERSION, f"config version does not allow {command}")
    versions.check_supported(request.version)
    if command == "ADD":
        printed = plugin.add(request)
        _check_other_netns(request)
        return printed
    if command == "DEL":
        plugin.delete(request)
        _check_other_netns(request)
    else:
        {"CHECK": plugin.check, "GC": plugin.gc, "STATUS": plugin.status}[command](request)
    return ""


def _check_variables(request: Request) -> None:
    missing = []
    for name, needed in _VARIABLES:
        value = request.env.get(name, "")
        if not value:
            if request.command in needed:
                missing.append(name)
        elif request.command in needed:
            if name == "CNI_CONTAINERID":
                check_container_id(value)
            elif name == "CNI_IFNAME":
                check_ifname(value)
    if missing:
        raise CniError(versions.INVALID_ENVIRONMENT, f"required env variables [{','.join(missing)}] missing")


def _load(request: Request, read: Callable[[], bytes]) -> None:
    try:
        request.stdin = read()
    except OSError as error:
        raise CniError(versions.IO_FAILURE, f"error reading from stdin: {os_error(error, 'read')}") from error
    try:
        request.conf = decode(request.stdin)
        fields = Fields(request.conf, "")
        name = fields.text("name")
    except TextError as error:
        raise CniError(versions.DECODING_FAILURE, f"error unmarshall network config: {error}") from None
    check_network_name(name)
    try:
        request.version = fields.text("cniVersion") or "0.1.0"
    except TextError as error:
        raise CniError(versions.DECODING_FAILURE, f"decoding version from network config: {error}") from None


def _check_other_netns(request: Request) -> None:
    if request.env.get("CNI_NETNS_OVERRIDE", "").upper() in ("TRUE", "1") or not request.netns:
        return
    try:
        container, own = os.stat(request.netns), os.stat("/proc/thread-self/ns/net")
    except OSError:  # a DEL after the namespace is gone, or a plugin that never looks at it
        return
    if (container.st_dev, container.st_ino) == (own.st_dev, own.st_ino):  # the same namespace: namespaces(7)
        raise CniError(versions.INVALID_NETNS, "plugin's netns and netns from CNI_NETNS should not be the same")


def parse_args(text: str, known: tuple[str, ...]) -> dict[str, str]:
    """CNI_ARGS (`K=V;K=V`): the values of known keys. Raises ValueError unless IgnoreUnknown allows the others."""
    found: dict[str, str] = {}
    unknown = []
    ignore = False
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise ValueError(f'ARGS: invalid pair "{pair}"')
        if key == "IgnoreUnknown":
            if value.lower() not in ("1", "true", "0", "false"):
                raise ValueError(
                    f'ARGS: error parsing value of pair "{pair}": boolean unmarshal error: invalid input {value.lower()}'
                )
            ignore = value.lower() in ("1", "true")
        elif key in known:
            found[key] = value
        else:
            unknown.append(f'"{pair}"')
    if unknown and not ignore:
        raise ValueError(f"ARGS: unknown args [{' '.join(unknown)}]")
    return found


def _podwire_version() -> str:
    from podwire import __version__

    return __version__


def main(plugin: Plugin) -> NoReturn:
    """Be the executable: read this process's environment and standard input, print, and leave.

    It leaves by _exit: nothing is buffered, and tearing the interpreter down would take longer than most of the work.
    """
    status, text = run(plugin, os.environ, _read_stdin, _note)
    data = text.encode()
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        status = 1
    os._exit(status)


def _read_stdin() -> bytes:
    chunks = []
    while chunk := os.read(0, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def _note(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
