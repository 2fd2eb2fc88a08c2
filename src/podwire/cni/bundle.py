"""The bundle: everything that podwire's plugins import, compiled, in one file beside the package.

    4 bytes      the interpreter's magic number: marshal's code is for one version of Python only
    to 16 KiB    marshal of (ident, code of podwire.cni.stub)
    to 32 KiB    marshal of {module: (file, whether it is a package, offset and length of its code)}
    the rest     marshal of each module's code

Importing the plugins one module at a time costs a look into several folders, five system calls and a search for each: 8 of the 21 ms
that an ADD took. From the bundle it is one read, and each module is decoded only when it is imported. Docstrings are left
out, and so is `from __future__ import annotations`, which is an import at run time; assertions stay, and tracebacks name the
files and lines of the source.

`ident` is a hash of the sources and the Python version. It tells whether the file must be written again, and a stub and the resident
helper talk only if theirs are equal. An executable that finds no bundle, or another Python's, imports the package itself.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import marshal
import os
import sys
from typing import TYPE_CHECKING

from podwire.cni import delegate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

_ROOMS = ("kernel", "rules", "cni/spec", "cni/plugins", "cni/resident")
_SINGLE = ("__init__", "addresses", "errors", "naming", "cni/__init__", "cni/delegate", "cni/skel", "cni/stub")
_STANDARD = (
    "struct",
    "_struct",
    "_socket",
    "_json",
    "_ctypes",
    "fcntl",
)  # what a plugin needs of Python's own; others are frozen
_FUTURE_ANNOTATIONS = 0x1000000  # CO_FUTURE_ANNOTATIONS


class _Strip(ast.NodeTransformer):
    """Takes out docstrings and future imports."""

    def _strip(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body: list[ast.stmt] = node.body  # type: ignore[attr-defined] # only called for nodes that have one
        if body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant):
            del body[0]
        kept = [part for part in body if not (isinstance(part, ast.ImportFrom) and part.module == "__future__")]
        node.body = kept or [ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)]  # type: ignore[attr-defined]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _strip  # noqa: N815 - ast's names


def ensure() -> str:
    """Write the bundle unless it is what today's sources give; its path. Raises OSError where the folder cannot be written."""
    path = delegate.bundle_path()
    sources = dict(_sources())
    ident = _ident(sources)
    if _ident_of(path) != ident:
        _write(path, _whole(ident, sources))
    return path


def _sources() -> Iterator[tuple[str, bytes]]:
    """(path below the package, source) of every module that goes in."""
    package = os.path.join(delegate.package_root(), "podwire")
    names = [f"{name}.py" for name in _SINGLE]
    for room in _ROOMS:
        for folder, inner, files in os.walk(os.path.join(package, room)):
            inner[:] = sorted(name for name in inner if name != "__pycache__")
            names += [
                os.path.relpath(os.path.join(folder, name), package) for name in sorted(files) if name.endswith(".py")
            ]
    for name in names:
        with open(os.path.join(package, name), "rb") as file:
            yield name, file.read()


def _ident(sources: dict[str, bytes]) -> bytes:
    digest = hashlib.sha256(f"{sys.version}\0{delegate.package_root()}".encode())
    for name, source in sources.items():
        digest.update(f"\0{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()[: delegate.IDENT_LENGTH].encode()


def _ident_of(path: str) -> bytes:
    """The ident of a bundle that is there; none for another Python's or what is no bundle."""
    try:
        with open(path, "rb") as file:
            front = file.read(delegate.FRONT_LENGTH)
    except OSError:
        return b""
    if len(front) < delegate.FRONT_LENGTH or front[:4] != importlib.util.MAGIC_NUMBER:
        return b""
    ident: bytes = marshal.loads(front[4:])[0]  # noqa: S302 - a file that only root can write
    return ident


def _whole(ident: bytes, sources: dict[str, bytes]) -> bytes:
    name = "cni/stub.py"
    front = importlib.util.MAGIC_NUMBER + marshal.dumps((ident, _compile(name, sources[name])))
    index: dict[str, tuple[str, bool, int, int]] = {}
    codes = []
    offset = 2 * delegate.FRONT_LENGTH
    for name, source in sources.items():
        module = "podwire/" + name.removesuffix(".py")
        code = marshal.dumps(_compile(name, source))
        dotted = module.removesuffix("/__init__").replace("/", ".")
        index[dotted] = (_file(name), module.endswith("/__init__"), offset, len(code))
        codes.append(code)
        offset += len(code)
    for name in _STANDARD:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or not spec.has_location:
            continue  # it is built in
        code = b"" if not spec.origin.endswith(".py") else _standard(spec.origin)
        index[name] = (spec.origin, False, offset, len(code))
        codes.append(code)
        offset += len(code)
    parts = (front, marshal.dumps(index))
    assert max(map(len, parts)) <= delegate.FRONT_LENGTH
    return b"".join([*(part.ljust(delegate.FRONT_LENGTH, b"\0") for part in parts), *codes])


def _standard(path: str) -> bytes:
    with open(path, "rb") as file:
        return marshal.dumps(compile(file.read(), path, "exec", dont_inherit=True))


def _file(name: str) -> str:
    return os.path.join(delegate.package_root(), "podwire", name)


def _compile(name: str, source: bytes) -> CodeType:
    tree = _Strip().visit(ast.parse(source))
    code: CodeType = compile(tree, _file(name), "exec", flags=_FUTURE_ANNOTATIONS, dont_inherit=True)
    return code


def _write(path: str, data: bytes) -> None:
    """Whole or not at all: executables of an earlier installation may be reading it."""
    draft = (
        f"{path}.{os.urandom(8).hex()}"  # not the process ID: nodes of a lab have the same ones, and one file system
    )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(draft, "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(data)
        os.rename(draft, path)
    except OSError:
        if os.path.exists(draft):
            os.unlink(draft)
        raise
