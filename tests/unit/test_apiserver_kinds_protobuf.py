"""Protobuf bodies: what the real kubectl posts, and that our descriptions agree with Kubernetes' own schemas."""

from __future__ import annotations

import functools
import json
import pathlib
import subprocess
import sys
from importlib import import_module

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from podwire.apiserver import apps_pb2, core_pb2, discovery_pb2, meta_pb2, pod_pb2, protobuf
from podwire.apiserver.status import StatusError

pytestmark = pytest.mark.unit

ROOT = pathlib.Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "data" / "kinds" / "protobuf"
FILES = ("meta", "volume", "pod", "core", "apps", "discovery", "coordination", "autoscaling")
SPECIAL = {"Time", "MicroTime", "Quantity", "IntOrString", "FieldsV1", "Unknown", "TypeMeta"}


def wrap(message, api_version: str, kind: str, extra: bytes = b"") -> bytes:
    envelope = meta_pb2.Unknown(raw=message.SerializeToString() + extra)
    envelope.typeMeta.apiVersion = api_version
    envelope.typeMeta.kind = kind
    return b"k8s\0" + envelope.SerializeToString()


def without_null(value):
    if isinstance(value, dict):
        return {key: without_null(item) for key, item in value.items() if item is not None}
    return [without_null(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.pb")))
def test_a_protobuf_body_of_kubectl_reads_as_the_json_body_of_an_older_kubectl(name: str) -> None:
    expected = without_null(json.loads((RECORDED / f"{name}.json").read_text()))
    assert protobuf.decode((RECORDED / f"{name}.pb").read_bytes()) == expected


def test_zero_is_kept_where_it_means_something_and_left_out_where_it_does_not() -> None:
    deployment = apps_pb2.Deployment()
    deployment.spec.replicas = 0
    deployment.spec.paused = False
    deployment.metadata.creationTimestamp.SetInParent()
    assert protobuf.decode(wrap(deployment, "apps/v1", "Deployment")) == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {},
        "spec": {"replicas": 0},
    }


def test_special_messages_become_their_one_value() -> None:
    event = core_pb2.Event()
    event.firstTimestamp.seconds = 1_700_000_000
    event.eventTime.seconds = 1_700_000_000
    event.eventTime.nanos = 123_456_789
    read = protobuf.decode(wrap(event, "v1", "Event"))
    assert read["firstTimestamp"] == "2023-11-14T22:13:20Z"
    assert read["eventTime"] == "2023-11-14T22:13:20.123456Z"

    pod = pod_pb2.Pod()
    container = pod.spec.containers.add(name="a")
    container.resources.limits["memory"].string = "64Mi"
    container.livenessProbe.handler.httpGet.port.type = 1
    container.livenessProbe.handler.httpGet.port.strVal = "web"
    container.readinessProbe.handler.tcpSocket.port.intVal = 80
    read = protobuf.decode(wrap(pod, "v1", "Pod"))["spec"]["containers"][0]
    assert read["resources"] == {"limits": {"memory": "64Mi"}}
    assert read["livenessProbe"] == {"httpGet": {"port": "web"}}
    assert read["readinessProbe"] == {"tcpSocket": {"port": 80}}


def test_inlined_messages_stand_in_the_outer_object() -> None:
    pod = pod_pb2.Pod()
    volume = pod.spec.volumes.add(name="v")
    volume.volumeSource.configMap.localObjectReference.name = "settings"
    variable = pod.spec.containers.add(name="a").env.add(name="X")
    variable.valueFrom.configMapKeyRef.localObjectReference.name = "settings"
    variable.valueFrom.configMapKeyRef.key = "x"
    spec = protobuf.decode(wrap(pod, "v1", "Pod"))["spec"]
    assert spec["volumes"] == [{"name": "v", "configMap": {"name": "settings"}}]
    assert spec["containers"][0]["env"][0]["valueFrom"] == {"configMapKeyRef": {"name": "settings", "key": "x"}}


def test_an_unknown_field_is_refused_and_named() -> None:
    body = wrap(discovery_pb2.EndpointSlice(), "discovery.k8s.io/v1", "EndpointSlice", b"\xa2\x06\x01a")
    with pytest.raises(StatusError, match="EndpointSlice in the request has a protobuf field number 100") as refusal:
        protobuf.decode(body)
    assert refusal.value.code == 400


def test_an_unknown_field_deep_inside_is_refused_too() -> None:
    service = core_pb2.Service()
    service.spec.ports.add(port=80)
    raw = service.SerializeToString()
    assert raw.endswith(b"\x18\x50")  # the port is the last thing in it
    longer = raw.replace(b"\x0a\x02\x18\x50", b"\x0a\x05\x18\x50\xa0\x06\x07").replace(b"\x12\x04", b"\x12\x07")
    envelope = meta_pb2.Unknown(raw=longer)
    envelope.typeMeta.apiVersion, envelope.typeMeta.kind = "v1", "Service"
    with pytest.raises(StatusError, match="ServicePort in the request has a protobuf field number 100"):
        protobuf.decode(b"k8s\0" + envelope.SerializeToString())


def test_an_unknown_field_that_holds_nothing_is_let_through() -> None:
    body = wrap(core_pb2.Namespace(), "v1", "Namespace", b"\xa2\x06\x00\xa8\x06\x00")
    assert protobuf.decode(body) == {"apiVersion": "v1", "kind": "Namespace"}


def test_delete_options_are_read_under_every_api_version() -> None:
    options = meta_pb2.DeleteOptions(gracePeriodSeconds=0, propagationPolicy="Background")
    options.preconditions.uid = "u"
    assert protobuf.decode(wrap(options, "apps/v1", "DeleteOptions")) == {
        "apiVersion": "apps/v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
    }


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{}", "does not begin with k8s"),
        (b"k8s\0\xff\xff", "envelope in the request could not be read"),
        (wrap(core_pb2.Namespace(), "v1", "PersistentVolume"), 'no kind "PersistentVolume" is registered'),
        (wrap(core_pb2.Namespace(), "v1", "Namespace", b"\x0a\x7f"), "v1 Namespace in the request could not be read"),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(body: bytes, said: str) -> None:
    with pytest.raises(StatusError, match=said) as refusal:
        protobuf.decode(body)
    assert refusal.value.code == 400


def clear_json_names(messages) -> None:
    """protoc writes json_name into a descriptor set; the generated modules leave it out."""
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        clear_json_names(message.nested_type)


def test_the_committed_modules_are_what_the_descriptions_say(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "set"
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=src", f"--descriptor_set_out={target}"]
    files = [f"podwire/apiserver/{name}.proto" for name in FILES]
    subprocess.run([*command, *files], cwd=ROOT, check=True)
    fresh = FileDescriptorSet.FromString(target.read_bytes())
    assert {file.name for file in fresh.file} == set(files)
    for file in fresh.file:
        name = pathlib.PurePosixPath(file.name).stem
        committed = FileDescriptorProto()
        import_module(f"podwire.apiserver.{name}_pb2").DESCRIPTOR.CopyToProto(committed)
        clear_json_names(file.message_type)
        assert committed.message_type == file.message_type, f"run scripts/proto.sh: {name}_pb2.py is older"


@functools.cache
def schemas() -> dict:
    import kubernetes_validate

    folder = pathlib.Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / "v1.37.0-local"
    return json.loads((folder / "_definitions.json").read_text())["$defs"]


def schema_properties(file: str, message: str) -> set[str]:
    for prefix in ("io.k8s.api.core.v1.", f"io.k8s.api.{file}.v1.", "io.k8s.apimachinery.pkg.apis.meta.v1."):
        if file in {"apps", "discovery", "coordination", "autoscaling"} and prefix == "io.k8s.api.core.v1.":
            continue
        if (definition := schemas().get(prefix + message)) is not None:
            return set(definition.get("properties", {})) - {"apiVersion", "kind"}
    return set()


def proto_properties(descriptor) -> set[str]:
    names: set[str] = set()
    for field in descriptor.fields:
        names |= proto_properties(field.message_type) if field.full_name in protobuf.INLINE else {field.name}
    return names - {"apiVersion", "kind"}


@pytest.mark.parametrize("file", FILES)
def test_every_message_has_the_fields_of_the_published_schema(file: str) -> None:
    """Field names come from generated.proto, the schema from OpenAPI: two ways to the same fact."""
    inlined = {"VolumeSource", "ProbeHandler", "EphemeralContainerCommon"}
    for name, descriptor in import_module(f"podwire.apiserver.{file}_pb2").DESCRIPTOR.message_types_by_name.items():
        if name in SPECIAL | inlined:
            continue
        assert proto_properties(descriptor) == schema_properties(file, name), name
