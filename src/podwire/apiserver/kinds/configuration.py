"""ConfigMap and ServiceAccount (core/v1): what pods are given. A ServiceAccount is a name here; there are no tokens."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats
from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

LARGEST = 1024 * 1024
"""Bytes of all values of a ConfigMap together."""


class ConfigMapStrategy(Strategy):
    """The rules of ConfigMaps."""

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """Keys are file names, in one of the two maps; immutable means it."""
        data, binary = obj.get("data") or {}, obj.get("binaryData") or {}
        causes, total = [], 0
        for key, text in data.items():
            causes += [Cause.invalid(f"data[{key}]", key, wrong) for wrong in formats.config_key(key)]
            if key in binary:
                detail = "duplicate of key present in binaryData"
                causes.append(Cause.invalid(f"data[{key}]", key, detail))
            total += len(text.encode())
        for key, text in binary.items():
            causes += [Cause.invalid(f"binaryData[{key}]", key, wrong) for wrong in formats.config_key(key)]
            try:
                total += len(base64.b64decode(text, validate=True))
            except binascii.Error:
                causes.append(Cause.invalid(f"binaryData[{key}]", text, "must be base64"))
        if total > LARGEST:
            causes.append(Cause.too_long("", LARGEST))
        return causes + (_immutable(obj, old) if old is not None and old.get("immutable") else [])

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """DATA AGE."""
        metadata = obj["metadata"]
        count = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
        return [metadata["name"], count, age(metadata.get("creationTimestamp"), now)]


def _immutable(new: Object, old: Object) -> list[Cause]:
    detail = "field is immutable when `immutable` is set"
    causes = [] if new.get("immutable") else [Cause.forbidden("immutable", detail)]
    keys = (key for key in ("data", "binaryData") if (new.get(key) or {}) != (old.get(key) or {}))
    return causes + [Cause.forbidden(key, detail) for key in keys]


class ServiceAccountStrategy(Strategy):
    """The rules of ServiceAccounts."""

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """SECRETS AGE."""
        metadata = obj["metadata"]
        return [metadata["name"], len(obj.get("secrets") or ()), age(metadata.get("creationTimestamp"), now)]


CONFIG_MAP = Resource(
    group="",
    version="v1",
    kind="ConfigMap",
    plural="configmaps",
    singular="configmap",
    short_names=("cm",),
    columns=(NAME, Column("Data", description="How many keys it has."), AGE),
    strategy=ConfigMapStrategy(),
)

SERVICE_ACCOUNT = Resource(
    group="",
    version="v1",
    kind="ServiceAccount",
    plural="serviceaccounts",
    singular="serviceaccount",
    short_names=("sa",),
    columns=(NAME, Column("Secrets", description="How many secrets it names."), AGE),
    strategy=ServiceAccountStrategy(),
)
