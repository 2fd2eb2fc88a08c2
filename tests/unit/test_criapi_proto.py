"""The committed CRI module is what the compiler makes of api.proto, and its numbers are the real ones."""

import os
import subprocess
import sys

import pytest

from podwire.criapi import api_pb2
from podwire.criapi.service import IMAGE, RUNTIME, methods

pytestmark = pytest.mark.unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def test_the_committed_module_equals_a_fresh_one(tmp_path):
    env = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([f"{ROOT}/scripts/proto-cri.sh", str(tmp_path)], check=True, env=env)
    for name in ("api_pb2.py", "api_pb2.pyi"):
        fresh = (tmp_path / "podwire" / "criapi" / name).read_text()
        with open(f"{ROOT}/src/podwire/criapi/{name}") as file:
            assert file.read() == fresh


# Field numbers that a mistake would break silently, from kubernetes/cri-api, pkg/apis/runtime/v1/api.proto.
NUMBERS = {
    "PodSandboxConfig": {
        "metadata": 1,
        "hostname": 2,
        "log_directory": 3,
        "dns_config": 4,
        "port_mappings": 5,
        "linux": 8,
    },
    "LinuxContainerSecurityContext": {"capabilities": 1, "run_as_user": 5, "no_new_privs": 11, "run_as_group": 12},
    "ContainerConfig": {"image": 2, "command": 3, "envs": 6, "labels": 9, "log_path": 11, "linux": 15},
    "ContainerStatus": {"exit_code": 7, "image_ref": 9, "log_path": 15, "image_id": 17, "user": 18},
    "ImageSpec": {"image": 1, "annotations": 2, "user_specified_image": 18},
    "ContainerEventResponse": {"container_event_type": 2, "pod_sandbox_status": 4, "containers_statuses": 5},
}


@pytest.mark.parametrize("message", NUMBERS)
def test_field_numbers_are_the_cris(message):
    fields = api_pb2.DESCRIPTOR.message_types_by_name[message].fields_by_name
    assert {name: fields[name].number for name in NUMBERS[message]} == NUMBERS[message]


def test_methods_have_the_cris_paths():
    paths = {method.path for service in (RUNTIME, IMAGE) for method in methods(service)}
    assert "/runtime.v1.RuntimeService/RunPodSandbox" in paths
    assert "/runtime.v1.ImageService/ImageStatus" in paths
    assert [method.name for method in methods(RUNTIME) if method.streams] == ["GetContainerEvents"]
