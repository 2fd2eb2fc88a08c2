"""Read a bundle, or any .tar or .tar.gz with such files, that somebody else sent. Nothing is ever unpacked to disk.

Refused with one line: names that are absolute or climb out with "..", links, devices and everything else that is neither a
file nor a folder, more than MAX_FILES members, more than MAX_BYTES unpacked, or an unpacked size out of proportion to the packed one.
The bytes are counted where they leave the decompressor, so that headers (which may announce any size) count too.
"""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import zlib
from typing import IO, TYPE_CHECKING, Any

from podwire.errors import UsageError
from podwire.explain.snapshot_files import File

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILES = 50_000
MAX_BYTES = 1 << 30
#: gzip reaches 1000:1 on zeros; rule dumps stay far below 100:1. Small archives may have any ratio.
MAX_RATIO = 300
FREE_BYTES = 32 << 20

MANIFEST = "manifest.json"


class _Counted:
    """A reader that refuses to give more than the limits allow."""

    def __init__(self, stream: IO[bytes], packed: int, name: str) -> None:
        self._stream = stream
        self._packed = max(packed, 1)
        self._name = name
        self._given = 0

    def read(self, size: int = -1) -> bytes:
        """Read like a file; raises UsageError past the limits."""
        # A header may ask for any amount: never more than a megabyte at once, so that the limit comes first.
        chunks, wanted = [], size if size >= 0 else MAX_BYTES + 1
        while wanted > 0:
            chunk = self._stream.read(min(wanted, 1 << 20))
            if not chunk:
                break
            self._given += len(chunk)
            if self._given > MAX_BYTES:
                raise refused(self._name, f"it unpacks to more than {MAX_BYTES >> 20} MiB")
            if self._given > FREE_BYTES and self._given > MAX_RATIO * self._packed:
                raise refused(self._name, f"it unpacks to more than {MAX_RATIO} times its size")
            wanted -= len(chunk)
            chunks.append(chunk)
        return b"".join(chunks)


def refused(name: str, reason: str) -> UsageError:
    """The one line for an archive that is not read."""
    return UsageError("reading the archive", name, reason)


def is_archive(path: str) -> bool:
    """Whether a file begins as gzip does, or is a tar."""
    with open(path, "rb") as file:
        head = file.read(512)
    return head[:2] == b"\x1f\x8b" or head[257:262] == b"ustar"


def read(path: str) -> list[File]:
    """The files of an archive. Raises UsageError for what is refused or broken."""
    try:
        with open(path, "rb") as packed:
            return read_stream(packed, os.fstat(packed.fileno()).st_size, path)
    except OSError as error:
        raise UsageError("reading", path, error.strerror or str(error)) from error


def read_stream(packed: IO[bytes], size: int, path: str) -> list[File]:
    """The files of an archive of `size` bytes that is open; `path` is only its name."""
    squeezed = packed.read(2) == b"\x1f\x8b"
    packed.seek(0)
    stream: Any = gzip.GzipFile(fileobj=packed) if squeezed else packed
    counted = _Counted(stream, size, path)
    try:
        with tarfile.open(fileobj=counted, mode="r|", errorlevel=2) as archive:  # type: ignore[call-overload]  # it only reads
            files = list(_members(archive, path))
        # gzip's checksum stands at the very end, behind what tar reads.
        while counted.read(1 << 20):
            pass
        return files
    except (gzip.BadGzipFile, tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError) as error:
        raise refused(path, f"it is broken: {error}") from None
    except (RecursionError, MemoryError) as error:
        raise refused(path, f"it is broken: {type(error).__name__}") from None


def _members(archive: tarfile.TarFile, path: str) -> Iterator[File]:
    for count, member in enumerate(archive):
        if count >= MAX_FILES:
            raise refused(path, f"it has more than {MAX_FILES} members")
        name = member.name
        shown = ascii(name)[:80]
        if name.startswith("/") or "\\" in name or "\0" in name:
            raise refused(path, f"member {shown} has an absolute or odd name")
        if ".." in name.split("/"):
            raise refused(path, f"member {shown} climbs out of the archive")
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            kind = "a link" if member.issym() or member.islnk() else "no plain file"
            raise refused(path, f"member {shown} is {kind}")
        content = archive.extractfile(member)
        assert content is not None
        yield File(
            "/".join(part for part in name.split("/") if part not in ("", ".")),
            content.read(),
            f"{os.path.basename(path)}: {name}",
        )


def manifest_of(files: list[File]) -> tuple[str, dict[str, Any]] | None:
    """The folder of the manifest in the archive ('' at its top) and the manifest, if there is one."""
    for file in files:
        if file.name == MANIFEST and file.path.count("/") <= 1:
            try:
                value = json.loads(file.text)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and str(value.get("format", "")).startswith("podwire bundle"):
                return file.path[: -len(MANIFEST)], value
    return None
