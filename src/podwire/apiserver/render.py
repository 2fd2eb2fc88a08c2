"""Answers: objects, their metadata, or rows of a table; one by one, as a list, or as watch events.

Objects leave the store as JSON and are passed on as they are; only tables and metadata need them decoded. The column
definitions of a watched table go out with the first event only, as the real server does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from podwire.apiserver.store import decode, encode

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

    from podwire.apiserver.negotiation import Rendering
    from podwire.apiserver.resource import Object, Resource


def dump(value: Any, rendering: Rendering) -> bytes:
    """A finished answer (JSON text or a value) in the media type asked for."""
    raw = value if isinstance(value, bytes) else encode(value)
    if rendering.yaml:
        import yaml

        return yaml.safe_dump(decode(raw), sort_keys=True).encode()
    return msgspec.json.format(raw, indent=2) + b"\n" if rendering.pretty else raw + b"\n"


class Renderer:
    """Renders objects of one resource in one form. `now` is asked once for each answer (ages)."""

    def __init__(self, resource: Resource, rendering: Rendering, now: Callable[[], dt.datetime]) -> None:
        self._resource = resource
        self._rendering = rendering
        self._now = now
        self._columns_sent = False

    def one(self, raw: bytes) -> bytes:
        """An object alone."""
        form = self._rendering.form
        if form == "table":
            version = decode(raw)["metadata"].get("resourceVersion", "")
            return encode(self._table([raw], {"resourceVersion": version}))
        return encode(self._partial(decode(raw))) if form == "partial" else raw

    def many(self, raws: Sequence[bytes], metadata: dict[str, Any]) -> bytes:
        """A list with its own metadata (resourceVersion, continue)."""
        form = self._rendering.form
        if form == "table":
            return encode(self._table(raws, metadata))
        if form == "partial":
            head: Object = {"kind": "PartialObjectMetadataList", "apiVersion": f"meta.k8s.io/{self._rendering.version}"}
            head |= {"metadata": metadata, "items": [self._partial(decode(raw)) for raw in raws]}
            return encode(head)
        head = {"kind": self._resource.list_kind, "apiVersion": self._resource.api_version, "metadata": metadata}
        return encode(head)[:-1] + b',"items":[' + b",".join(raws) + b"]}"

    def event(self, type_: str, raw: bytes) -> bytes:
        """One line of a watch."""
        if self._rendering.form != "object":
            raw = self.one(raw)
        return b'{"type":"' + type_.encode() + b'","object":' + raw + b"}\n"

    def bookmark(self, revision: int, annotations: dict[str, str] | None = None) -> bytes:
        """A BOOKMARK: an object with nothing but the revision up to which everything was sent."""
        metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        obj: Object = {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}
        if self._rendering.form == "partial":
            obj = self._partial(obj)
        elif self._rendering.form == "table":
            rows = [{"cells": [], "object": self._partial(obj)}]
            obj = {"kind": "Table", "apiVersion": f"meta.k8s.io/{self._rendering.version}", "metadata": metadata}
            obj |= {"columnDefinitions": None, "rows": rows}
        return b'{"type":"BOOKMARK","object":' + encode(obj) + b"}\n"

    def _partial(self, obj: Object) -> Object:
        version = self._rendering.version or "v1"
        return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}

    def _table(self, raws: Sequence[bytes], metadata: dict[str, Any]) -> Object:
        now = self._now()
        rows = []
        for raw in raws:
            obj = decode(raw)
            row: dict[str, Any] = {"cells": self._resource.strategy.row(obj, now)}
            if self._rendering.include == "Object":
                row["object"] = obj
            elif self._rendering.include == "Metadata":
                row["object"] = self._partial(obj)
            rows.append(row)
        columns = None if self._columns_sent else [_column(column) for column in self._resource.columns]
        self._columns_sent = True
        head = {"kind": "Table", "apiVersion": f"meta.k8s.io/{self._rendering.version}", "metadata": metadata}
        return {**head, "columnDefinitions": columns, "rows": rows}


def _column(column: Any) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }
