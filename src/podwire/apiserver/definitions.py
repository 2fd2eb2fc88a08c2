"""The Kubernetes schemas on disk: where they are, and how to read one without paying for the other eight hundred.

The package kubernetes-validate ships, for each Kubernetes release, `_definitions.json`: the definitions of the
official OpenAPI document with their `x-kubernetes-…` extensions. Its newest release is used. The file is 1.8 MB; decoded
to Python objects it would be 15 MB that the process never gives back, so it is decoded one level deep (msgspec.Raw: a
slice of the file) and only the definitions asked for are turned into objects.
"""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Any

import msgspec

from podwire.errors import MissingCapability

PACKAGE = "kubernetes_validate"


class _File(msgspec.Struct, rename={"definitions": "$defs"}):
    definitions: dict[str, msgspec.Raw]


class Definitions:
    """All definitions of one release, undecoded; keep it only as long as needed."""

    def __init__(self, path: str | None = None) -> None:
        path = path or _newest()
        try:
            with open(path, "rb") as file:
                self._raw = msgspec.json.decode(file.read(), type=_File).definitions
        except (OSError, msgspec.DecodeError) as error:
            raise MissingCapability(
                "reading the Kubernetes schemas", path, str(error), f"reinstall {PACKAGE}"
            ) from error

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def get(self, name: str) -> dict[str, Any]:
        """One definition as JSON Schema; its references are `#/$defs/NAME`."""
        definition: dict[str, Any] = msgspec.json.decode(self._raw[name])
        return definition


def definition_name(group: str, version: str, kind: str) -> str:
    """`io.k8s.api.apps.v1.Deployment`: the package of a group is its first word, `core` for the core group."""
    return f"io.k8s.api.{group.partition('.')[0] or 'core'}.{version}.{kind}"


def reference(schema: dict[str, Any]) -> str:
    """The definition a schema points to, "" if it stands for itself."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _newest() -> str:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingCapability("reading the Kubernetes schemas", PACKAGE, "the package is not installed")
    folder = os.path.join(os.path.dirname(spec.origin), "kubernetes-json-schema")
    releases = [match for name in os.listdir(folder) if (match := re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)-local", name))]
    if not releases:
        raise MissingCapability("reading the Kubernetes schemas", folder, "there are none", f"reinstall {PACKAGE}")
    newest = max(releases, key=lambda match: tuple(map(int, match.groups())))
    return os.path.join(folder, newest[0], "_definitions.json")
