"""Event (core/v1).

Two generations of them exist and both are accepted: the old one counts repeats (firstTimestamp, lastTimestamp, count,
source), the new one says eventTime, series, action and reportingComponent. An event about a Node or another object
without namespace lives in `default`. events.k8s.io is not served: kubectl reads core/v1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats
from podwire.apiserver.kinds.containers import each
from podwire.apiserver.resource import NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

_COLUMNS = (
    Column("Last Seen", description="When it was last recorded."),
    Column("Type", description="Normal or Warning."),
    Column("Reason", description="Why, in one word."),
    Column("Object", description="What it is about."),
    Column("Subobject", priority=1, description="Which part of the object."),
    Column("Source", priority=1, description="Who says so."),
    Column("Message", description="What happened."),
    Column("First Seen", priority=1, description="When it was first recorded."),
    Column("Count", priority=1, description="How often."),
    Column(NAME.name, NAME.type, NAME.format, NAME.description, priority=1),
)
_LONGEST = {"action": 128, "reason": 128, "reportingInstance": 128, "message": 1024}
_UNSCOPED = {"", "default", "kube-system"}
"""Where events about objects without namespace may live."""


class EventStrategy(Strategy):
    """The rules of Events."""

    def defaults(self, obj: Object) -> None:
        """Fields that are always written."""
        for key in ("reportingComponent", "reportingInstance"):
            obj.setdefault(key, "")
        obj.setdefault("source", {})
        obj.setdefault("involvedObject", {})

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """The namespace is the involved object's; a new-style event is complete."""
        namespace, about = obj["metadata"].get("namespace", ""), obj["involvedObject"].get("namespace", "")
        wrong = about != namespace if about else namespace not in _UNSCOPED
        causes = [Cause.invalid("involvedObject.namespace", about, "does not match event.namespace")] if wrong else []
        if not obj.get("eventTime"):
            return causes
        controller = obj["reportingComponent"]
        if controller:
            causes += each("reportingComponent", controller, formats.qualified_name(controller))
        else:
            causes.append(Cause.required("reportingComponent"))
        for key, longest in _LONGEST.items():
            text = obj.get(key) or ""
            if not text and key != "message":
                causes.append(Cause.required(key))
            if len(text.encode()) > longest:
                causes.append(Cause.invalid(key, text, f"can have at most {longest} characters"))
        return causes

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """LAST SEEN TYPE REASON OBJECT MESSAGE; the rest with -o wide."""
        about, series = obj.get("involvedObject") or {}, obj.get("series")
        first = age(obj.get("firstTimestamp") or obj.get("eventTime"), now)
        last = age(obj["lastTimestamp"], now) if obj.get("lastTimestamp") else first
        count = obj.get("count") or 1
        if series is not None:
            last, count = age(series.get("lastObservedTime"), now), series.get("count", 0)
        kind = about.get("kind", "").lower()
        return [
            last,
            obj.get("type", ""),
            obj.get("reason", ""),
            f"{kind}/{about['name']}" if about.get("name") else kind,
            about.get("fieldPath", ""),
            _source(obj),
            obj.get("message", "").strip(),
            first,
            count,
            obj["metadata"]["name"],
        ]

    def field(self, obj: Object, path: str) -> str:
        """`source` and `reportingComponent` each fall back to the other generation's field."""
        old, new = (obj.get("source") or {}).get("component", ""), obj.get("reportingComponent", "")
        if path == "source":
            return str(old or new)
        if path == "reportingComponent":
            return str(new or old)
        return super().field(obj, path)


def _source(event: Object) -> str:
    source = event.get("source") or {}
    component = source.get("component") or event.get("reportingComponent", "")
    instance = source.get("host") or event.get("reportingInstance", "")
    return f"{component}, {instance}" if instance else str(component)


RESOURCE = Resource(
    group="",
    version="v1",
    kind="Event",
    plural="events",
    singular="event",
    short_names=("ev",),
    columns=_COLUMNS,
    expires=True,
    selectable=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    strategy=EventStrategy(),
)
