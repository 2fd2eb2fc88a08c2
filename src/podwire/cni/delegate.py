"""Calling another plugin: by executing it, or, when it is podwire's own, inside this process.

flannel calls bridge, bridge calls an IPAM plugin; the specification (section 4) says how: the executable of that name on
CNI_PATH, the same environment but for CNI_COMMAND, a configuration on standard input. Starting an interpreter costs more than the
kernel's whole work for a pod, so when the file found is byte for byte the stub that this very podwire would install,
the plugin's function is called here, across the same boundary: text in, text out. Any other file is executed.

This is the one door by which plugins reach each other; no plugin module imports another.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from podwire.cni import skel
from podwire.cni.spec import versions
from podwire.cni.spec.text import Fields, TextError, decode, quoted
from podwire.errors import CniError, KernelError, PodwireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from podwire.cni.spec.result import Result

# Executable → module below podwire.cni.plugins.
PLUGINS = {
    "bridge": "bridge",
    "flannel": "flannel",
    "host-local": "host_local",
    "loopback": "loopback",
    "portmap": "portmap",
    "static": "static",
    "tuning": "tuning",
}
IDENT_LENGTH = 32
FRONT_LENGTH = 1 << 14  # of the bundle (podwire.cni.bundle): what every executable reads of it
_INTERPRETER = os.path.realpath(sys.executable)
_BUSY_TRIES = 5
_ETXTBSY = 26


def package_root() -> str:
    """The folder that holds the package podwire: what a stub puts on its import path."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def bundle_path() -> str:
    """Where the compiled modules of all plugins are, for this version of Python."""
    return f"{package_root()}/podwire/cni/__pycache__/plugins.{sys.implementation.cache_tag}.bundle"


def stub(name: str) -> str:
    """The executable of a plugin: isolated, without site. It is short because it is compiled at every start."""
    return f"#!{_INTERPRETER} -IS\n# CNI plugin {name} of podwire, written by `podwire cni install`.\n" + boot(
        f"run({name!r},{PLUGINS[name]!r},f,c[0])", f"from podwire.cni.plugins.{PLUGINS[name]} import main\nmain()\n"
    )


def boot(bundled: str, plain: str) -> str:
    """The program that runs `bundled` in podwire.cni.stub, as the bundle has it, or `plain` where there is no bundle."""
    return (
        "import marshal,posix,_frozen_importlib_external as x\n"
        "try:\n"
        f" f=posix.open({bundle_path()!r},posix.O_CLOEXEC)\n"
        f" b=posix.read(f,{FRONT_LENGTH})\n"
        " c=b[:4]==x.MAGIC_NUMBER and marshal.loads(b[4:])\n"
        "except (OSError,EOFError,ValueError,TypeError):\n"
        " c=None\n"
        "if c:\n"
        f" exec(c[1])\n {bundled}\n"
        "import sys\n"
        f"sys.path.insert(0,{package_root()!r})\n"
        f"{plain}"
    )


class PluginNotFound(CniError):
    """No executable of a plugin's name on CNI_PATH."""


def find(name: str, paths: list[str]) -> str:
    """The plugin's executable in the first folder that has it. Raises PluginNotFound in libcni's words."""
    if not name:
        raise PluginNotFound(versions.INTERNAL, "no plugin name provided")
    if "/" in name:
        raise PluginNotFound(versions.INTERNAL, f"invalid plugin name: {name}")
    if not paths:
        raise PluginNotFound(versions.INTERNAL, "no paths provided")
    for folder in paths:
        path = os.path.join(folder, name)
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                return path
        except OSError:
            continue
    raise PluginNotFound(versions.INTERNAL, f'failed to find plugin "{name}" in path [{" ".join(paths)}]')


def is_own(path: str, name: str) -> bool:
    """Whether an executable is the stub that this podwire installs, so that calling in-process is calling it."""
    if name not in PLUGINS:
        return False
    wanted = stub(name).encode()
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, len(wanted) + 1) == wanted
    finally:
        os.close(fd)


def call(
    path: str,
    name: str,
    env: Mapping[str, str],
    stdin: bytes,
    note: Callable[[str], None],
    timeout: float | None = None,
    *,
    lasting: bool = False,
) -> bytes:
    """Run the plugin at `path` and return what it printed. Raises its CniError, unchanged. `lasting` see skel.Request."""
    if is_own(path, name):
        module = __import__(f"podwire.cni.plugins.{PLUGINS[name]}", fromlist=["PLUGIN"])
        status, text = skel.run(module.PLUGIN, env, lambda: stdin, note, lasting=lasting)
        if status:
            raise error_of(text.encode(), b"", "exit status 1")
        return text.encode()
    return _execute(path, env, stdin, note, timeout)


def _execute(
    path: str, env: Mapping[str, str], stdin: bytes, note: Callable[[str], None], timeout: float | None
) -> bytes:
    from podwire.kernel import spawn

    for left in range(_BUSY_TRIES, -1, -1):
        try:
            output = spawn.run([path], stdin, env, timeout)
            break
        except KernelError as error:
            if error.errno != _ETXTBSY or not left:
                raise CniError(versions.INTERNAL, str(error)) from error
            time.sleep(1)  # an installer is writing it this very moment
        except PodwireError as error:  # it did not end in time
            raise CniError(versions.INTERNAL, str(error)) from error
    if output.status:
        how = f"exit status {output.status}" if output.status > 0 else f"signal: {_signal_name(-output.status)}"
        raise error_of(output.stdout, output.stderr, how)
    if output.stderr:
        note(output.stderr.decode(errors="replace"))
    return output.stdout


def _signal_name(number: int) -> str:
    return {9: "killed", 11: "segmentation fault", 15: "terminated"}.get(number, f"signal {number}")


def error_of(stdout: bytes, stderr: bytes, how: str) -> CniError:
    """The error that a failed plugin printed; one that says nothing in particular is told by how it ended."""
    if not stdout:
        if not stderr:
            return CniError(versions.INTERNAL, f"netplugin failed with no error message: {how}")
        return CniError(versions.INTERNAL, f"netplugin failed: {quoted(stderr.decode(errors='replace'))}: {how}")
    try:
        fields = Fields(decode(stdout), "Error")
        return CniError(fields.integer("code"), fields.text("msg"), fields.text("details"))
    except TextError as error:
        said = quoted(stdout.decode(errors="replace"))
        return CniError(versions.INTERNAL, f"netplugin failed but error parsing its diagnostic message {said}: {error}")


def parse_result(stdout: bytes, conf_version: str) -> Result:
    """The result that a plugin printed; one without a version has that of its configuration. Raises CniError."""
    from podwire.cni.spec import result

    try:
        raw = decode(stdout)
        own = Fields(raw, "Result").text("cniVersion")
        return result.parse(raw if own else {**(raw or {}), "cniVersion": conf_version}, own or conf_version)
    except TextError as error:
        raise CniError(versions.INTERNAL, f"failed to unmarshal raw result: {error}") from None


class Delegate:
    """A plugin named in another's configuration, to be called with the same request."""

    __slots__ = ("_name", "_request")

    def __init__(self, name: str, request: skel.Request) -> None:
        self._name = name
        self._request = request

    def _call(self, command: str, conf: bytes) -> bytes:
        request = self._request
        env = dict(request.env)
        env["CNI_COMMAND"] = command
        path = find(self._name, request.path.split(":"))
        return call(path, self._name, env, conf, request.note, lasting=request.lasting)

    def add(self, conf: bytes) -> Result:
        """ADD, and its result."""
        printed = self._call("ADD", conf)
        version = Fields(decode(conf), "NetConf").text("cniVersion") or "0.1.0"
        return parse_result(printed, version)

    def relay(self, conf: bytes) -> str:
        """ADD, and its result as it is to be printed: what podwire's own plugins print needs no reading and writing again."""
        printed = self._call("ADD", conf)
        if is_own(find(self._name, self._request.path.split(":")), self._name):
            return printed.decode()
        version = Fields(decode(conf), "NetConf").text("cniVersion") or "0.1.0"
        result = parse_result(printed, version)
        return skel.show(result, result.version)

    def delete(self, conf: bytes) -> None:
        """DEL."""
        self._call("DEL", conf)

    def check(self, conf: bytes) -> None:
        """CHECK."""
        self._call("CHECK", conf)

    def gc(self, conf: bytes) -> None:
        """GC."""
        self._call("GC", conf)

    def status(self, conf: bytes) -> None:
        """STATUS."""
        self._call("STATUS", conf)
