"""What a plugin's executable runs first: ask the resident helper, and without one do the work here.

A bare interpreter takes longer to start than the whole work for a pod takes, so this file is the shortest way to the helper
(podwire.cni.helper): it needs no module that the interpreter has not loaded anyway, but `_socket` when a helper's socket
is there. The executables get it from the front of the bundle (podwire.cni.bundle), compiled.

    stub                                           helper
    socket path and peer are root's?
    ── ident, plugin ─ descriptors ──────────────▶ same version? peer root, in the same namespaces?
                                                   ◀── "-" no: the stub does the work
                                                   ◀── "+" begun, always before anything is done
    result to stdout, status        ◀── "=" text … "." status, the last text

The descriptors are standard input and error, /proc/self (from which the helper reads what else it must know of this process:
namespaces, environment, folder, umask, limits), and the file that CNI_NETNS names.

Never twice: as long as no "+" has come, nothing has been done, because a message that was sent before a death is received
after it; then the work is done here. After a "+" without an end nobody can know what was done: that is CNI error 11, try again later.
A stub that waits too long for its "+" first forbids the helper to send one (shutdown), and only then looks whether one came.
"""

from __future__ import annotations

import marshal
import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from importlib.machinery import ExtensionFileLoader, ModuleSpec
    from types import ModuleType
    from typing import NoReturn
else:
    from _frozen_importlib import ModuleSpec
    from _frozen_importlib_external import ExtensionFileLoader

FOLDER = "/run/podwire"
SOCKET = "cni-helper.sock"
REFUSED, BEGUN, MORE, DONE = b"-", b"+", b"=", b"."
FRONT = 1 << 14  # of the bundle: this much is read at every start, and as much again is the index
LONGEST = 1 << 16  # of a message
_PATIENCE = 10  # seconds that a helper may take to begin

_AF_UNIX, _SOCK_SEQPACKET, _SOCK_CLOEXEC = 1, 5, 0o2000000
_SOL_SOCKET, _SO_PEERCRED, _SO_RCVTIMEO, _SO_SNDTIMEO, _SCM_RIGHTS = 1, 17, 20, 21, 1
_S_IFMT, _S_IFSOCK = 0o170000, 0o140000
_UNKNOWN = """{
    "code": 11,
    "msg": "try again later: podwire's resident CNI helper ended in the middle of this call",
    "details": "what it did is not known; a DEL or GC frees it"
}"""


class Modules:
    """The bundle's modules as an import finder and loader: name → (file, whether it is a package, offset and length of its code).

    Of an extension module of Python's the bundle has only the file (length 0), which saves the search for it.
    """

    __slots__ = ("_bundle", "_found")

    def __init__(self, bundle: int, found: dict[str, tuple[str, bool, int, int]]) -> None:
        self._bundle = bundle
        self._found = found

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """The module's specification; None leaves it to the next finder."""
        known = self._found.get(name)
        if known is None:
            return None
        loader = self if known[3] else ExtensionFileLoader(name, known[0])
        spec = ModuleSpec(name, loader, origin=known[0], is_package=known[1])  # type: ignore[arg-type] # no ABC: slow
        spec.has_location = True
        return spec

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        """As usual."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        _, _, offset, length = self._found[module.__name__]
        code = marshal.loads(posix.pread(self._bundle, length, offset))  # noqa: S302 - a file that is root's
        exec(code, module.__dict__)  # noqa: S102 - as every loader does


def load(bundle: int) -> None:
    """Import podwire from the bundle from now on; its index is behind what was read of it."""
    index = marshal.loads(posix.read(bundle, FRONT))  # noqa: S302 - a file that is root's
    sys.meta_path.insert(0, Modules(bundle, index))


def run(plugin: str, module: str, file: int, ident: bytes) -> NoReturn:
    """Be the executable of a plugin, whose module is podwire.cni.plugins.MODULE."""
    load(file)
    answer = ask(plugin, ident)
    if answer is None:
        import gc

        gc.disable()  # nothing here lives long enough to be worth looking through
        __import__(f"podwire.cni.plugins.{module}", fromlist=["main"]).main()
        raise SystemExit  # it never returns
    status, data = answer
    try:
        while data:
            data = data[posix.write(1, data) :]
    except OSError:
        status = 1
    posix._exit(status)  # noqa: SLF001 - it is os._exit


def ask(plugin: str, ident: bytes, folder: str = FOLDER) -> tuple[int, bytes] | None:
    """Exit status and output from the helper; None when it has done nothing: none there, refused, or gone before it began."""
    try:
        parent, path = posix.lstat(folder), posix.lstat(f"{folder}/{SOCKET}")
    except OSError:
        return None
    if parent.st_uid or parent.st_mode & 0o022 or path.st_uid or path.st_mode & (_S_IFMT | 0o077) != _S_IFSOCK:
        return None
    import _socket

    peer = _socket.socket(_AF_UNIX, _SOCK_SEQPACKET | _SOCK_CLOEXEC)
    try:
        timeout = _PATIENCE.to_bytes(8, sys.byteorder) + bytes(8)  # struct timeval
        peer.setsockopt(_SOL_SOCKET, _SO_RCVTIMEO, timeout)
        peer.setsockopt(_SOL_SOCKET, _SO_SNDTIMEO, timeout)
        peer.connect(f"{folder}/{SOCKET}")
        if peer.getsockopt(_SOL_SOCKET, _SO_PEERCRED, 12)[4:8] != bytes(4):  # struct ucred: pid, uid, gid
            return None
        _send(peer, ident + plugin.encode())
        return _answer(peer)
    except OSError:  # only before the request was sent: _answer raises none
        return None
    finally:
        peer.close()


def _send(peer: socket, request: bytes) -> None:
    handed = _descriptors()
    try:
        rights = b"".join([fd.to_bytes(4, sys.byteorder) for fd in handed])
        peer.sendmsg([request], [(_SOL_SOCKET, _SCM_RIGHTS, rights)])
    finally:
        for fd in handed[2:]:
            posix.close(fd)


def _descriptors() -> list[int]:
    look = posix.O_PATH | posix.O_CLOEXEC
    found = [0, 2, posix.open("/proc/self", look | posix.O_DIRECTORY)]
    try:
        return [*found, posix.open(posix.environ[b"CNI_NETNS"], look)]
    except (KeyError, OSError):
        return found  # the helper finds the same, or it refuses


def _answer(peer: socket) -> tuple[int, bytes] | None:
    begun = forbidden = False
    text = b""
    while True:
        try:
            message = peer.recv(LONGEST)
        except BlockingIOError:  # patience is over
            if not begun:
                forbidden = True
                try:
                    peer.shutdown(0)  # SHUT_RD: from here on the helper cannot say that it begins, and so does not
                except OSError:
                    continue  # it is gone: what it said before can be read, and then the end
            continue
        except OSError:
            message = b""
        kind = message[:1]
        if kind == BEGUN and not forbidden:
            begun = True
        elif kind == MORE:
            text += message[1:]
        elif kind == DONE:
            return message[1], text + message[2:]
        elif begun or kind == BEGUN:
            return 1, _UNKNOWN.encode()
        else:
            return None
