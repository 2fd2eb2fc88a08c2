"""The situations of data/cases: their files, as a folder or as snapshots."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path


@functools.cache
def cases():
    """{case: {path: text}}."""
    return json.loads(gzip.decompress((Path(__file__).parent / "data/cases/cases.json.gz").read_bytes()))


def name_of(number):
    """The case whose name begins with a number."""
    return next(name for name in cases() if name.startswith(f"{number}-"))


def unpack(number, folder, *only):
    """The case's files in `folder` (those named, or all); their paths."""
    paths = []
    for path, text in cases()[name_of(number)].items():
        if only and not any(path == one or path.startswith(one) for one in only):
            continue
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        paths.append(str(target))
    return paths
