"""The server is killed and started again: what runs goes on running, what was half done is finished or undone."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING

import cri_rig
import grpc
import pytest

from podwire.criapi import api_pb2
from podwire.testing.netns import require

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

# A plugin that notes what it is asked and, when told to, takes its time: it stands between ADD and its result.
SLOW = """#!/bin/sh
echo "$CNI_COMMAND $CNI_CONTAINERID" >> /run/asked
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ] && [ -e /run/slow ]; then sleep 60; fi
echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.9.9.9/24"}]}'
"""


@pytest.fixture
def cri() -> Iterator[cri_rig.Cri]:
    require("root", "bridge-device", "veth", "nsenter", "unshare")
    with cri_rig.running() as made:
        yield made


def test_kill_9_changes_nothing_for_what_runs(cri: cri_rig.Cri) -> None:
    box = cri.sandbox()
    host = cri.run(box, "sh", "-c", "while echo tick; do sleep 0.02; done", name="ticker")
    web = cri.stand_in(box, (80, "TCP"))
    ip = cri.call("PodSandboxStatus", pod_sandbox_id=box).status.network.ip
    pids = cri.pid_of(host), cri.pid_of(web)
    cri.kill()
    path = f"{cri.node.root}{cri_rig.LOGS}/web-0/ticker/0.log"
    size = os.path.getsize(path)
    cri_rig.wait_for(lambda: os.path.getsize(path) > size, "output while no server runs")
    assert json.loads(cri.node.run("curl", "-s", "-m", "5", ip).stdout)["pod"] == "web-0"
    cri.start()
    assert (cri.pid_of(host), cri.pid_of(web)) == pids
    for key in (host, web):
        assert cri.status(key).state == api_pb2.CONTAINER_RUNNING
    status = cri.call("PodSandboxStatus", pod_sandbox_id=box).status
    assert (status.state, status.network.ip) == (api_pb2.SANDBOX_READY, ip)
    # It watches them again, and can end them.
    cri.call("StopContainer", container_id=web, timeout=10)
    assert cri.status(web).exit_code == 0
    os.kill(pids[0], signal.SIGKILL)
    assert cri.ended(host).exit_code == 137
    cri.call("RemovePodSandbox", pod_sandbox_id=box)
    assert os.listdir(f"{cri.state}/netns") == []


def test_what_ended_while_no_server_ran_is_known_with_its_exit_code_and_time(cri: cri_rig.Cri) -> None:
    box = cri.sandbox()
    ends = cri.run(box, "sh", "-c", "sleep 0.4; exit 9", name="ends")
    shot = cri.run(box, "sleep", "1000", name="shot")
    pid = cri.pid_of(shot)
    cri.kill()
    os.kill(pid, signal.SIGKILL)
    cri_rig.wait_for(lambda: os.path.getsize(f"{cri.state}/containers/{ends}/exit") > 0, "the end")
    died = time.time_ns()
    time.sleep(0.3)
    cri.start()
    status = cri.status(ends)
    assert (status.state, status.exit_code, status.reason) == (api_pb2.CONTAINER_EXITED, 9, "Error")
    assert status.finished_at <= died
    assert cri.status(shot).exit_code == 137


def test_a_sandbox_that_was_being_made_is_undone(cri: cri_rig.Cri) -> None:
    cri.node.write("/opt/cni/bin/slow", SLOW, 0o755)
    cri.node.write(
        "/etc/cni/net.d/00-slow.conflist",
        json.dumps({"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "slow"}]}),
    )
    cri.node.write("/run/slow", "")

    def attempt() -> None:
        with pytest.raises(grpc.RpcError):
            cri.sandbox("half")

    thread = threading.Thread(target=attempt)
    thread.start()
    cri_rig.wait_for(lambda: os.path.exists(f"{cri.node.root}/run/asked"), "the plugin to be asked")
    key = os.listdir(f"{cri.state}/sandboxes")[0]
    assert os.listdir(f"{cri.state}/netns") == [key]
    cri.kill()
    thread.join(20)
    os.unlink(f"{cri.node.root}/run/slow")
    cri.start()
    assert list(cri.call("ListPodSandbox").items) == []
    assert os.listdir(f"{cri.state}/netns") == []
    assert os.listdir(f"{cri.state}/sandboxes") == []
    assert cri.node.read("/run/asked").splitlines() == [f"ADD {key}", f"DEL {key}"]
    # The pod can be run again, as a kubelet does that got no answer.
    box = cri.sandbox("half")
    assert cri.call("PodSandboxStatus", pod_sandbox_id=box).status.network.ip == "10.9.9.9"
    cri.call("RemovePodSandbox", pod_sandbox_id=box)


def test_leftovers_without_a_record_are_swept_away(cri: cri_rig.Cri) -> None:
    cri.kill()
    os.makedirs(f"{cri.state}/containers/.gone-1")
    os.makedirs(f"{cri.state}/sandboxes/halfmade")
    cri.node.run("sh", "-c", f"touch {cri_rig.STATE}/netns/x; unshare --net=/run/podwire/cri/netns/x true")
    cri.start()
    for folder in ("containers", "sandboxes", "netns"):
        assert os.listdir(f"{cri.state}/{folder}") == []


def test_a_damaged_record_costs_only_itself(cri: cri_rig.Cri) -> None:
    good, bad = cri.sandbox("good"), cri.sandbox("bad")
    cri.kill()
    cri.node.write(f"{cri_rig.STATE}/sandboxes/{bad}/record.json", '{"id": "cut')
    cri.start()
    assert [item.id for item in cri.call("ListPodSandbox").items] == [good]
    cri.call("RemovePodSandbox", pod_sandbox_id=good)


def test_sigterm_ends_it_at_once_with_0_and_leaves_the_pods(cri: cri_rig.Cri) -> None:
    box = cri.sandbox()
    key = cri.run(box, "sleep", "1000")
    stream = cri.stream("GetContainerEvents")
    threading.Thread(target=lambda: list(_until_cancelled(stream)), daemon=True).start()
    time.sleep(0.2)
    started = time.monotonic()
    status, said = cri.stop()
    assert status == 0, said
    assert time.monotonic() - started < 2
    assert not os.path.exists(f"{cri.node.root}{cri_rig.SOCKET}")
    assert os.path.exists(f"/proc/{cri.pid_of(key)}")
    cri.start()
    assert cri.status(key).state == api_pb2.CONTAINER_RUNNING


def _until_cancelled(stream: Iterator[object]) -> Iterator[object]:
    try:
        yield from stream
    except grpc.RpcError:
        return


def server(cri: cri_rig.Cri, *flags: str) -> subprocess.CompletedProcess[str]:
    return cri.node.run(sys.executable, "-m", "podwire", "cri", *flags, check=False, timeout=20)


def test_the_socket_is_for_root_and_a_stale_one_is_replaced(cri: cri_rig.Cri) -> None:
    path = cri.node.root + cri_rig.SOCKET
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(cri.state).st_mode) == 0o700
    cri.kill()
    assert os.path.exists(path)
    cri.start()


def test_who_wants_what_another_server_has_gets_one_line(cri: cri_rig.Cri) -> None:
    for flags, part in (
        (("--state-dir", "/run/other"), "another process is serving there"),
        (("--listen", "unix:///run/other.sock"), "another podwire cri is using it"),
        (("--state-dir", "/run/other", "--listen", "tcp://127.0.0.1:1"), "a unix socket is expected"),
        (("--state-dir", "/run/other", "--listen", "unix:///run/cri.log"), "a file is there that is no socket"),
        (("--state-dir", "/run/other", "--config", "/run/none.toml"), "No such file or directory"),
    ):
        done = server(cri, *flags)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert part in line
