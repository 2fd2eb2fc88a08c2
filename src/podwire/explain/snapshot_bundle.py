"""Write a bundle: a .tar.gz of the files and a manifest, the same bytes for the same input but for the time in it."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from typing import IO, TYPE_CHECKING

from podwire.errors import UsageError
from podwire.explain.snapshot_archive import MANIFEST

if TYPE_CHECKING:
    from podwire.explain.snapshot_live import Collected


def write(found: Collected, stream: IO[bytes], when: float) -> None:
    """Write the bundle to a stream."""
    folder = "podwire-bundle"
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=int(when)) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        manifest = json.dumps(found.manifest(when), indent=1).encode()
        for name, data in [(MANIFEST, manifest), *sorted(found.files.items())]:
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            entry.mtime = int(when)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))


def write_file(found: Collected, path: str, when: float) -> None:
    """Write the bundle to a new file, readable by its owner only. Raises UsageError where it cannot be made."""
    half = f"{path}.part"
    try:
        fd = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            write(found, file, when)
        os.replace(half, path)
    except OSError as error:
        raise UsageError("writing", path, error.strerror or str(error)) from error
