r"""Kubernetes protobuf bodies, read as the JSON a client would have sent instead.

client-go's typed clients (so `kubectl create deployment`, a real kubelet, a real scheduler) post
`application/vnd.kubernetes.protobuf` and do not fall back when it is refused. Such a body is the four bytes `k8s\0` and
a `runtime.Unknown`: apiVersion and kind, and the object's own message as bytes
(https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding). Answers are always JSON, which every
such client accepts beside protobuf.

The rules of the translation (each is how the Go types write themselves to JSON):

* a field's name is its JSON name; an absent scalar stays absent, a set message becomes an object, even an empty one;
* bytes are base64; Quantity and IntOrString are their one value; times are RFC 3339, MicroTime with six digits, and the
  zero time (an empty message) is left out, where JSON clients write null;
* a few messages are inlined in JSON (`INLINE`);
* a field number that the .proto files do not have is refused with 400 when it carries anything: dropping what a client
  sent without a word would be worse than saying no. An unknown field that holds its zero value carries nothing (Go
  writes every field that is not a pointer), so a newer client's empty fields are let through.

The protobuf runtime and the generated modules cost 7 MB and 30 ms: they are imported when the first such body comes.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from podwire.apiserver.status import bad_request

MAGIC = b"k8s\x00"
MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

MESSAGES = {
    ("v1", "Pod"): "pod.Pod",
    ("v1", "Node"): "core.Node",
    ("v1", "Namespace"): "core.Namespace",
    ("v1", "Service"): "core.Service",
    ("v1", "ConfigMap"): "core.ConfigMap",
    ("v1", "Event"): "core.Event",
    ("v1", "ServiceAccount"): "core.ServiceAccount",
    ("v1", "Binding"): "core.Binding",
    ("apps/v1", "Deployment"): "apps.Deployment",
    ("apps/v1", "ReplicaSet"): "apps.ReplicaSet",
    ("autoscaling/v1", "Scale"): "autoscaling.Scale",
    ("discovery.k8s.io/v1", "EndpointSlice"): "discovery.EndpointSlice",
    ("coordination.k8s.io/v1", "Lease"): "coordination.Lease",
}
"""(apiVersion, kind) → generated module and message. DeleteOptions comes under every apiVersion: see `_message`."""

INLINE = frozenset(
    {
        "podwire.core.Volume.volumeSource",
        "podwire.core.Probe.handler",
        "podwire.core.EphemeralContainer.ephemeralContainerCommon",
        "podwire.core.ConfigMapEnvSource.localObjectReference",
        "podwire.core.ConfigMapKeySelector.localObjectReference",
        "podwire.core.ConfigMapProjection.localObjectReference",
        "podwire.core.ConfigMapVolumeSource.localObjectReference",
        "podwire.core.SecretEnvSource.localObjectReference",
        "podwire.core.SecretKeySelector.localObjectReference",
        "podwire.core.SecretProjection.localObjectReference",
    }
)
"""Fields whose message's fields stand in the outer object in JSON (`json:",inline"`, or an embedded Go struct)."""


def decode(body: bytes) -> dict[str, Any]:
    """The object in a protobuf body, in JSON form with apiVersion and kind; StatusError 400 when it is none."""
    if not body.startswith(MAGIC):
        raise bad_request(f"the body of the request is not {MEDIA_TYPE}: it does not begin with k8s\\0")
    envelope = _parse("meta.Unknown", body[len(MAGIC) :], "the protobuf envelope")
    api_version, kind = envelope.typeMeta.apiVersion, envelope.typeMeta.kind
    if envelope.contentEncoding or envelope.contentType not in {"", MEDIA_TYPE}:
        raise bad_request(f"a protobuf body holding {envelope.contentType or envelope.contentEncoding} is not read")
    message = _parse(_message(api_version, kind), envelope.raw, f"{api_version} {kind}")
    return {"apiVersion": api_version, "kind": kind, **_object(message)}


def _message(api_version: str, kind: str) -> str:
    """Which message the envelope holds."""
    if kind == "DeleteOptions":
        return "meta.DeleteOptions"
    name = MESSAGES.get((api_version, kind))
    if name is None:
        raise bad_request(f'no kind "{kind}" is registered for version "{api_version}" in protobuf; send JSON')
    return name


def _parse(name: str, data: bytes, what: str) -> Any:
    """The parsed message `file.Message`."""
    from google.protobuf.message import DecodeError

    file, _, message = name.partition(".")
    parsed = getattr(import_module(f"podwire.apiserver.{file}_pb2"), message)()
    try:
        parsed.ParseFromString(data)
    except DecodeError as error:
        raise bad_request(f"{what} in the request could not be read as protobuf: {error}") from None
    return parsed


def _object(message: Any) -> dict[str, Any]:
    """A message as a JSON object."""
    _refuse_unknown(message)
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            result[field.name] = {key: _value(item, value[key]) for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_value(field, item) for item in value]
        elif field.full_name in INLINE:
            result.update(_value(field, value))
        elif (converted := _value(field, value)) is not None:
            result[field.name] = converted
    return result


def _value(field: Any, value: Any) -> Any:
    """One value of a field; None for the zero time."""
    if field.message_type is not None:
        special = _SPECIAL.get(field.message_type.full_name)
        return special(value) if special else _object(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return value


def _int_or_string(value: Any) -> int | str:
    text: str = value.strVal
    number: int = value.intVal
    return text if value.type == 1 else number


def _time(value: Any) -> str | None:
    """Whole seconds: nanos are not written by JSON clients either (apimachinery `time_proto.go`)."""
    if not value.seconds and not value.nanos:
        return None
    return _instant(value.seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def _micro_time(value: Any) -> str | None:
    if not value.seconds and not value.nanos:
        return None
    return (_instant(value.seconds) + timedelta(microseconds=value.nanos // 1000)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _instant(seconds: int) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise bad_request(f"a time in the request is out of range: {seconds} seconds since 1970") from None


def _raw_json(value: Any) -> Any:
    """FieldsV1 holds JSON text."""
    try:
        return json.loads(value.Raw or b"{}")
    except ValueError as error:
        raise bad_request(f"fieldsV1 in the request is not JSON: {error}") from None


_SPECIAL = {
    "podwire.meta.Quantity": lambda value: value.string,
    "podwire.meta.IntOrString": _int_or_string,
    "podwire.meta.Time": _time,
    "podwire.meta.MicroTime": _micro_time,
    "podwire.meta.FieldsV1": _raw_json,
}


def _refuse_unknown(message: Any) -> None:
    """400 for a field number that we do not know and that holds something."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):  # type: ignore[attr-defined]  # types-protobuf lacks __iter__
        if unknown.data:
            kind = message.DESCRIPTOR.name
            raise bad_request(
                f"{kind} in the request has a protobuf field number {unknown.field_number} that this server does not "
                "know; send JSON, where an unknown field is named and dropped"
            )
