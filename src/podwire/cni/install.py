"""Putting the plugins' executables where runtimes look for them, and the network's configuration beside them.

What flannel's init containers do with `cp`. Each file is written under another name and renamed, so that a runtime that starts a
plugin at this very moment finds the old one or the new one, whole. Everything else in the folders is left alone; uninstalling
removes only files that are byte for byte (or, of another podwire, by their second line) ours.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING

from podwire.cni import delegate
from podwire.errors import NotPermitted, PodwireError, UsageError

if TYPE_CHECKING:
    from typing import NoReturn

CONFLIST = "10-flannel.conflist"
_SHEBANG_MAX = 255  # BINPRM_BUF_SIZE less one; Linux before 5.1 had half of it


def install(bin_dir: str, conf_dir: str = "", conflist: str = "") -> list[str]:
    """Write the plugins, and with `conflist` that file as conf_dir/10-flannel.conflist; returns what was written.

    Raises UsageError for a conflist that no runtime would take, PodwireError for folders that cannot be written.
    """
    _check_interpreter()
    if conflist and not conf_dir:
        raise UsageError("installing CNI plugins", answer="--conflist needs --conf-dir, the folder to put it in")
    text = _read_conflist(conflist) if conflist else b""
    _compile_modules()
    written = [_write(os.path.join(bin_dir, name), delegate.stub(name).encode(), 0o755) for name in delegate.PLUGINS]
    if conflist:
        written.append(_write(os.path.join(conf_dir, CONFLIST), text, 0o644))
    return written


def uninstall(bin_dir: str, conf_dir: str = "") -> list[str]:
    """Remove podwire's plugins from a folder, and its conflist where `conf_dir` is given; returns what was removed."""
    removed = [path for name in delegate.PLUGINS if is_ours(path := os.path.join(bin_dir, name), name)]
    if conf_dir and os.path.exists(conf := os.path.join(conf_dir, CONFLIST)):
        removed.append(conf)
    for path in removed:
        try:
            os.unlink(path)
        except OSError as error:
            raise PodwireError("removing", path, os.strerror(error.errno or 0)) from error
    return removed


def exec_helper() -> NoReturn:
    """Become the resident helper: an interpreter like the plugins' own, small, with nothing but the bundle."""
    from podwire.cni import bundle

    try:
        bundle.ensure()
    except OSError as error:
        raise PodwireError("writing", delegate.bundle_path(), os.strerror(error.errno or 0)) from error
    program = delegate.boot(
        "load(f);from podwire.cni.resident.helper import main;main(c[0])", "sys.exit('no bundle')\n"
    )
    interpreter = os.path.realpath(sys.executable)
    os.execv(interpreter, [interpreter, "-IS", "-c", program])  # noqa: S606 - a shell would be one more thing to go wrong


def is_ours(path: str, name: str) -> bool:
    """Whether a file is a stub of some podwire for this plugin."""
    try:
        with open(path, "rb") as file:
            lines = file.read(4096).split(b"\n")
    except OSError:
        return False
    return len(lines) > 1 and lines[1] == delegate.stub(name).split("\n")[1].encode()


def _check_interpreter() -> None:
    shebang = delegate.stub("bridge").split("\n", 1)[0]
    interpreter = os.path.realpath(sys.executable)
    if len(shebang) > _SHEBANG_MAX or " " in interpreter:
        raise UsageError(
            "installing CNI plugins",
            interpreter,
            "the kernel cannot start scripts of an interpreter with a long path or with spaces in it",
            "create the virtual environment elsewhere",
        )


def _read_conflist(path: str) -> bytes:
    """The file as it is, after a look whether it is a list of plugins; flannel's ConfigMap calls it cni-conf.json."""
    from podwire.cni.spec import conf
    from podwire.errors import CniError

    try:
        with open(path, "rb") as file:
            text = file.read()
        conf.parse_list(text, path)
    except OSError as error:
        raise UsageError("reading the conflist", path, error.strerror or "") from error
    except CniError as error:
        raise UsageError("reading the conflist", path, str(error)) from error
    return text


def _compile_modules() -> None:
    """Write the bundle; where its folder is read-only, executables import the package instead, which only takes longer."""
    from podwire.cni import bundle

    with contextlib.suppress(OSError):
        bundle.ensure()


def _write(path: str, text: bytes, mode: int) -> str:
    draft = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    try:
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            os.fchmod(fd, mode)  # whatever the umask
            with os.fdopen(fd, "wb", closefd=False) as file:
                file.write(text)
        finally:
            os.close(fd)
        os.rename(draft, path)
    except OSError as error:
        kind = NotPermitted if isinstance(error, PermissionError) else PodwireError
        number = errno.ENOTDIR if isinstance(error, FileExistsError) else error.errno or 0  # makedirs of a file
        raise kind("writing", path, os.strerror(number)) from error
    return path
