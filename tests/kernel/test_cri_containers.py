"""Containers of the image podwire/host on the real kernel: what they see, what they may, how they end."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING

import cri_rig
import grpc
import pytest

from podwire.criapi import api_pb2
from podwire.testing.netns import require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

# What a container gets by default: bits of the fourteen capabilities (linux/capability.h).
DEFAULT_CAPABILITIES = 0xA80425FB


@pytest.fixture(scope="module")
def cri() -> Iterator[cri_rig.Cri]:
    require("root", "bridge-device", "veth", "nsenter", "unshare")
    with cri_rig.running() as made:
        made.node.write("/etc/kubernetes/kubeconfig", "token: secret\n", 0o600)
        yield made


@pytest.fixture(scope="module")
def sandbox(cri: cri_rig.Cri) -> str:
    return cri.sandbox()


def security(**fields: object) -> dict[str, api_pb2.LinuxContainerConfig]:
    return {"linux": api_pb2.LinuxContainerConfig(security_context=api_pb2.LinuxContainerSecurityContext(**fields))}


def status_fields(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def test_the_capabilities_are_reduced_to_those_a_container_gets_by_default(cri: cri_rig.Cri, sandbox: str) -> None:
    fields = status_fields(cri.output(sandbox, "cat", "/proc/self/status"))
    for kind in ("CapPrm", "CapEff", "CapBnd"):
        assert int(fields[kind], 16) == DEFAULT_CAPABILITIES
    for kind in ("CapInh", "CapAmb"):
        assert int(fields[kind], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    # Python ignores SIGPIPE; its children here do not inherit that (32 and 33 belong to the C library)
    assert int(fields["SigIgn"], 16) & 0x7FFFFFFF == 0


def test_a_container_can_give_up_capabilities_but_get_none_beyond_the_default(cri: cri_rig.Cri, sandbox: str) -> None:
    given = api_pb2.Capability(drop_capabilities=["NET_RAW", "CAP_MKNOD"], add_capabilities=["SYS_ADMIN"])
    fields = status_fields(cri.output(sandbox, "cat", "/proc/self/status", **security(capabilities=given)))
    assert int(fields["CapEff"], 16) == DEFAULT_CAPABILITIES & ~(1 << 13) & ~(1 << 27)
    nothing = api_pb2.Capability(drop_capabilities=["ALL"])
    fields = status_fields(cri.output(sandbox, "cat", "/proc/self/status", **security(capabilities=nothing)))
    assert int(fields["CapBnd"], 16) == 0


def test_a_container_of_another_user_has_no_capabilities(cri: cri_rig.Cri, sandbox: str) -> None:
    config = security(
        run_as_user=api_pb2.Int64Value(value=1000),
        run_as_group=api_pb2.Int64Value(value=2000),
        supplemental_groups=[3000],
    )
    fields = status_fields(cri.output(sandbox, "cat", "/proc/self/status", **config))
    assert fields["Uid"].split() == ["1000"] * 4
    assert fields["Gid"].split() == ["2000"] * 4
    assert fields["Groups"] == "3000"
    assert int(fields["CapEff"], 16) == 0


def test_only_its_own_tmp_run_and_dev_can_be_written(cri: cri_rig.Cri, sandbox: str) -> None:
    script = (
        "for f in / /etc /usr /var/tmp /root /sys /proc/sys/net/ipv4 /tmp /run /dev/shm; do "
        "if touch $f/x 2>/dev/null; then echo yes $f; else echo no $f; fi; done; ls -A /run"
    )
    said = cri.output(sandbox, "sh", "-c", script).splitlines()
    assert {line.split()[1] for line in said if line.startswith("yes ")} == {"/tmp", "/run", "/dev/shm"}
    # What one container writes to /tmp neither the next one sees nor the node; what the node has there can be read.
    assert cri.output(sandbox, "sh", "-c", "ls /tmp/x 2>/dev/null || echo none") == "none"
    assert cri.output(sandbox, "sh", "-c", "ls /run | grep -v podwire-etc") == ""
    assert not os.path.exists(f"{cri.node.root}/tmp/x")


def test_every_writable_file_system_refuses_device_nodes(cri: cri_rig.Cri, sandbox: str) -> None:
    script = "for d in /tmp /run /dev /dev/shm; do mknod $d/disk b 1 0 && head -c1 $d/disk && echo opened $d; done; :"
    assert "opened" not in cri.output(sandbox, "sh", "-c", script)
    mounts = cri.output(sandbox, "cat", "/proc/self/mounts").splitlines()
    for line in mounts:
        _, place, kind, options = line.split()[:4]
        writable = "rw" in options.split(",")
        single_node = kind == "devtmpfs"  # one bind-mounted device, which is not a folder
        if writable and not single_node and kind != "devpts":
            assert "nodev" in options.split(","), place
    assert cri.output(sandbox, "sh", "-c", "echo gone >/dev/null; head -c4 /dev/zero | wc -c").strip() == "4"


def test_it_sees_only_its_own_processes_and_cannot_reach_its_init(cri: cri_rig.Cri, sandbox: str) -> None:
    said = cri.output(sandbox, "sh", "-c", "ls /proc | grep -c '^[0-9]'; readlink /proc/1/fd/5; ls /proc/1/root; :")
    assert int(said.splitlines()[0]) <= 5
    assert said.splitlines()[1:] == []


def test_it_has_namespaces_of_its_own_but_the_pods_network(cri: cri_rig.Cri, sandbox: str) -> None:
    first, second = cri.run(sandbox, "sleep", "100", name="one"), cri.run(sandbox, "sleep", "100", name="two")

    def namespace(kind: str, container: str) -> str:
        return os.readlink(f"/proc/{cri.pid_of(container)}/ns/{kind}")

    for kind in ("mnt", "pid", "ipc", "uts"):
        assert namespace(kind, first) != namespace(kind, second)
        assert namespace(kind, first) != os.readlink(f"/proc/{cri.node.pid}/ns/{kind}")
    assert namespace("net", first) == namespace("net", second)
    for key in (first, second):
        cri.call("RemoveContainer", container_id=key)


def test_its_host_name_and_etc_files_are_the_pods(cri: cri_rig.Cri, sandbox: str) -> None:
    ip = cri.call("PodSandboxStatus", pod_sandbox_id=sandbox).status.network.ip
    assert cri.output(sandbox, "hostname") == "web-0"
    assert cri.output(sandbox, "cat", "/etc/hostname") == "web-0"
    assert f"{ip}\tweb-0" in cri.output(sandbox, "cat", "/etc/hosts").splitlines()


def test_the_nodes_credentials_are_out_of_its_sight(cri: cri_rig.Cri, sandbox: str) -> None:
    said = cri.output(sandbox, "sh", "-c", "ls -A /etc/kubernetes; cat /etc/kubernetes/kubeconfig; :")
    assert said == ""
    assert cri.output(sandbox, "sh", "-c", "ls /run/podwire 2>/dev/null; :") == ""


def test_the_environment_holds_what_was_asked_for_and_nothing_of_the_servers(cri: cri_rig.Cri, sandbox: str) -> None:
    envs = [api_pb2.KeyValue(key="GREETING", value=b"hello"), api_pb2.KeyValue(key="HOME", value=b"/tmp")]
    found = dict(line.split("=", 1) for line in cri.output(sandbox, "env", envs=envs).splitlines())
    path = found.pop("PATH")
    assert path.startswith("/usr/local/sbin:")
    assert found == {"GREETING": "hello", "HOME": "/tmp", "HOSTNAME": "web-0"}


def test_it_starts_in_its_working_directory(cri: cri_rig.Cri, sandbox: str) -> None:
    assert cri.output(sandbox, "pwd", working_dir="/usr/share") == "/usr/share"
    assert cri.output(sandbox, "pwd") == "/"


def test_its_output_is_logged_in_cri_format(cri: cri_rig.Cri, sandbox: str) -> None:
    script = "echo out; echo err >&2; printf '%020000d\\n' 1; printf unfinished"
    cri.ended(cri.run(sandbox, "sh", "-c", script, name="logger"))
    text = cri.node.read(f"{cri_rig.LOGS}/web-0/logger/0.log")
    for line in text.splitlines():
        assert re.match(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) [FP] ", line)
    lines = cri.log("logger")
    assert "stdout F out" in lines
    assert "stderr F err" in lines
    long = [line for line in lines if "000" in line]
    assert [line[:9] for line in long] == ["stdout P ", "stdout F "]
    assert sum(len(line) - 9 for line in long) == 20000
    assert lines[-1] == "stdout P unfinished"


def test_a_reopened_log_goes_on_in_a_new_file(cri: cri_rig.Cri, sandbox: str) -> None:
    key = cri.run(sandbox, "sh", "-c", "while echo tick; do sleep 0.02; done", name="ticker")
    path = f"{cri.node.root}{cri_rig.LOGS}/web-0/ticker/0.log"
    cri_rig.wait_for(lambda: os.path.getsize(path) > 0, "the first line")
    os.rename(path, f"{path}.1")
    cri.call("ReopenContainerLog", container_id=key)
    cri_rig.wait_for(lambda: os.path.exists(path) and os.path.getsize(path) > 0, "a line in the new file")
    size = os.path.getsize(f"{path}.1")
    time.sleep(0.1)
    assert os.path.getsize(f"{path}.1") == size
    cri.call("RemoveContainer", container_id=key)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "Completed"),
        ("exit 3", 3, "Error"),
        ("kill -KILL $$", 137, "Error"),
        ("kill -ABRT $$", 134, "Error"),
    ],
)
def test_the_exit_code_is_what_a_shell_would_see(
    cri: cri_rig.Cri, sandbox: str, script: str, code: int, reason: str
) -> None:
    before = time.time_ns()
    status = cri.ended(cri.run(sandbox, "sh", "-c", script, name=f"exit-{code}"))
    assert (status.exit_code, status.reason) == (code, reason)
    assert before <= status.created_at <= status.started_at
    assert status.started_at <= status.finished_at + 50_000_000  # a quick one may end before its start is noted
    assert status.finished_at <= time.time_ns()


def test_a_command_that_cannot_be_started_says_why_and_is_ended(cri: cri_rig.Cri, sandbox: str) -> None:
    for command, part in (
        (("no-such-program",), 'exec: "no-such-program": executable file not found in $PATH'),
        (("/no/such/file",), 'exec: "/no/such/file": no such file or directory'),
        (("/etc/passwd",), 'exec: "/etc/passwd": permission denied'),
        ((), "has no command of its own"),
    ):
        key = cri.create(sandbox, *command, name=f"bad-{abs(hash(command))}")
        with pytest.raises(grpc.RpcError) as caught:
            cri.call("StartContainer", container_id=key)
        assert part in caught.value.details()
        status = cri.status(key)
        assert status.state == api_pb2.CONTAINER_EXITED
        assert (status.exit_code, status.reason) == (128, "StartError")
        assert part in status.message


def test_stopping_sends_sigterm_and_waits_as_long_as_it_takes_but_no_longer(cri: cri_rig.Cri, sandbox: str) -> None:
    polite = cri.run(sandbox, "sh", "-c", "trap 'echo bye; exit 7' TERM; while :; do sleep 0.02; done", name="polite")
    time.sleep(0.1)
    started = time.monotonic()
    cri.call("StopContainer", container_id=polite, timeout=20)
    assert time.monotonic() - started < 5
    assert cri.status(polite).exit_code == 7
    assert cri.log("polite")[-1] == "stdout F bye"
    stubborn = cri.run(sandbox, "sh", "-c", "trap '' TERM; while :; do sleep 0.02; done", name="stubborn")
    time.sleep(0.1)
    started = time.monotonic()
    cri.call("StopContainer", container_id=stubborn, timeout=1)
    assert 0.9 < time.monotonic() - started < 5
    status = cri.status(stubborn)
    assert (status.exit_code, status.state) == (137, api_pb2.CONTAINER_EXITED)


def test_a_shell_that_handles_no_signals_ends_on_sigterm(cri: cri_rig.Cri, sandbox: str) -> None:
    """As the first process of its PID namespace it would not: that is why there is an init."""
    key = cri.run(sandbox, "sh", "-c", "sleep 1000; :", name="plain")
    started = time.monotonic()
    cri.call("StopContainer", container_id=key, timeout=20)
    assert time.monotonic() - started < 5
    assert cri.status(key).exit_code == 143


def test_orphans_are_reaped_and_everything_dies_with_the_command(cri: cri_rig.Cri, sandbox: str) -> None:
    script = "(sleep 0.1 &) ; (setsid sleep 1000 &) ; sleep 0.5; ps -eo stat= | grep -c Z; exit 0"
    marker = "1000.125"
    key = cri.run(sandbox, "sh", "-c", script.replace("1000", marker), name="parent")
    pid = cri.pid_of(key)
    assert cri.ended(key).exit_code == 0
    assert cri.log("parent") == ["stdout F 0"]
    assert marker not in cri_rig.process_list()
    assert not os.path.exists(f"/proc/{pid}/root")


def test_killing_its_init_ends_the_container_with_137(cri: cri_rig.Cri, sandbox: str) -> None:
    key = cri.run(sandbox, "sleep", "1000.25", name="shot")
    os.kill(cri.pid_of(key), signal.SIGKILL)
    assert cri.ended(key).exit_code == 137
    assert "1000.25" not in cri_rig.process_list()


def test_stopping_the_sandbox_kills_its_containers(cri: cri_rig.Cri) -> None:
    box = cri.sandbox("doomed")
    key = cri.run(box, "sleep", "1000")
    cri.call("StopPodSandbox", pod_sandbox_id=box)
    assert cri.status(key).exit_code == 137
    with pytest.raises(grpc.RpcError) as caught:
        cri.create(box, "true", name="late")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    cri.call("RemovePodSandbox", pod_sandbox_id=box)
    assert list(cri.call("ListContainers", filter=api_pb2.ContainerFilter(pod_sandbox_id=box)).containers) == []


def test_a_container_runs_once(cri: cri_rig.Cri, sandbox: str) -> None:
    key = cri.run(sandbox, "sleep", "1000", name="once")
    with pytest.raises(grpc.RpcError) as caught:
        cri.call("StartContainer", container_id=key)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    with pytest.raises(grpc.RpcError) as caught:
        cri.create(sandbox, "true", name="once")
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    cri.call("RemoveContainer", container_id=key)


def test_events_tell_of_creation_start_end_and_removal(cri: cri_rig.Cri, sandbox: str) -> None:
    stream = cri.stream("GetContainerEvents")
    time.sleep(0.2)
    key = cri.run(sandbox, "sh", "-c", "exit 5", name="told")
    cri.ended(key)
    cri.call("RemoveContainer", container_id=key)
    seen = []
    for event in stream:
        if event.container_id == key:
            seen.append(event)
        if event.container_event_type == api_pb2.CONTAINER_DELETED_EVENT:
            break
    stream.cancel()
    assert [event.container_event_type for event in seen] == [
        api_pb2.CONTAINER_CREATED_EVENT,
        api_pb2.CONTAINER_STARTED_EVENT,
        api_pb2.CONTAINER_STOPPED_EVENT,
        api_pb2.CONTAINER_DELETED_EVENT,
    ]
    assert seen[2].pod_sandbox_status.metadata.name == "web-0"
    assert {status.id: status.exit_code for status in seen[2].containers_statuses}[key] == 5


def test_the_image_service_says_that_nothing_is_pulled(cri: cri_rig.Cri) -> None:
    answer = cri.call("ImageStatus", image=api_pb2.ImageSpec(image="nginx:1.25"), verbose=True)
    assert answer.image.id == "podwire/stand-in for nginx:1.25"
    assert answer.image.spec.annotations["io.podwire.runs"] == "stand-in"
    assert '"pulled": false' in answer.info["podwire"]
    host = cri.call("ImageStatus", image=api_pb2.ImageSpec(image="docker.io/podwire/host:3")).image
    assert host.spec.annotations["io.podwire.runs"] == "host"
    assert cri.call("PullImage", image=api_pb2.ImageSpec(image="redis")).image_ref == "podwire/stand-in for redis"
    assert "podwire/host" in [image.id for image in cri.call("ListImages").images]
    assert cri.call("ImageFsInfo").image_filesystems[0].fs_id.mountpoint == cri_rig.STATE
