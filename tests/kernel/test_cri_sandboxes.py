"""Sandboxes on the real kernel: namespaces wired by the real plugins, and nothing left of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import cri_rig
import grpc
import pytest

from podwire.criapi import api_pb2
from podwire.testing.netns import require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel


@pytest.fixture(scope="module")
def cri() -> Iterator[cri_rig.Cri]:
    require("root", "bridge-device", "veth", "nsenter", "unshare")
    with cri_rig.running() as made:
        yield made


def reservations(cri: cri_rig.Cri) -> list[str]:
    return [name for name in cri.node.listdir("/var/lib/cni/networks/cni0") if name[0].isdigit()]


def links(cri: cri_rig.Cri) -> set[str]:
    with cri.node.rtnl() as rtnl:
        return {link.name for link in rtnl.links()}


def test_a_sandbox_has_an_address_of_the_nodes_prefix_and_gives_it_back(cri: cri_rig.Cri) -> None:
    before = links(cri) | {"cni0"}
    key = cri.sandbox()
    status = cri.call("PodSandboxStatus", pod_sandbox_id=key, verbose=True)
    ip = status.status.network.ip
    assert ip.startswith("10.244.1.")
    assert status.status.state == api_pb2.SANDBOX_READY
    assert ip in reservations(cri)
    assert cri.node.read(f"/var/lib/cni/networks/cni0/{ip}").splitlines()[0] == key
    assert f"inet {ip}/24" in cri.in_pod(key, "ip", "address", "show", "eth0").stdout
    assert "127.0.0.1" in cri.in_pod(key, "ip", "address", "show", "lo", "up").stdout
    assert "10.244.1.1" in cri.in_pod(key, "ip", "route").stdout
    cri.call("StopPodSandbox", pod_sandbox_id=key)
    stopped = cri.call("PodSandboxStatus", pod_sandbox_id=key).status
    assert stopped.state == api_pb2.SANDBOX_NOTREADY
    assert stopped.network.ip == ""
    assert ip not in reservations(cri)
    assert links(cri) == before
    cri.call("RemovePodSandbox", pod_sandbox_id=key)
    assert os.listdir(f"{cri.state}/netns") == []
    assert os.listdir(f"{cri.state}/sandboxes") == []


def test_stopping_and_removing_may_be_asked_any_number_of_times(cri: cri_rig.Cri) -> None:
    key = cri.sandbox("twice")
    for _ in range(2):
        cri.call("StopPodSandbox", pod_sandbox_id=key)
    for _ in range(2):
        cri.call("RemovePodSandbox", pod_sandbox_id=key)
    cri.call("StopPodSandbox", pod_sandbox_id="0" * 64)
    cri.call("StopContainer", container_id="0" * 64, timeout=1)
    cri.call("RemoveContainer", container_id="0" * 64)


def test_a_failing_plugin_leaves_nothing_and_its_message_reaches_the_client(cri: cri_rig.Cri) -> None:
    before, held = links(cri), reservations(cri)
    cri.node.run("mv", "/run/flannel/subnet.env", "/run/flannel/away")
    try:
        with pytest.raises(grpc.RpcError) as caught:
            cri.sandbox("unlucky")
    finally:
        cri.node.run("mv", "/run/flannel/away", "/run/flannel/subnet.env")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    said = caught.value.details()
    assert 'failed to setup network for sandbox "' in said
    assert 'plugin type="flannel" failed (add): ' in said
    assert "/run/flannel/subnet.env" in said
    assert links(cri) == before
    assert reservations(cri) == held
    assert os.listdir(f"{cri.state}/netns") == []
    assert list(cri.call("ListPodSandbox").items) == []


def test_a_pod_on_the_hosts_network_has_no_namespace_and_no_address_of_its_own(cri: cri_rig.Cri) -> None:
    held = reservations(cri)
    key = cri.sandbox("on-host", host_network=True)
    status = cri.call("PodSandboxStatus", pod_sandbox_id=key).status
    assert status.network.ip == ""
    assert status.linux.namespaces.options.network == api_pb2.NODE
    assert reservations(cri) == held
    with open(f"/proc/{cri.node.pid}/ns/net") as node:
        assert os.fstat(node.fileno()).st_ino
        wanted = os.readlink(f"/proc/{cri.node.pid}/ns/net")
    config = {"linux": host_linux()}
    container = cri.run(key, "sleep", "100", **config)
    assert os.readlink(f"/proc/{cri.pid_of(container)}/ns/net") == wanted
    cri.call("RemovePodSandbox", pod_sandbox_id=key)


def host_linux() -> api_pb2.LinuxContainerConfig:
    config = api_pb2.LinuxContainerConfig()
    config.security_context.namespace_options.network = api_pb2.NODE
    return config


def test_one_pod_attempt_has_one_sandbox(cri: cri_rig.Cri) -> None:
    key = cri.sandbox("single")
    with pytest.raises(grpc.RpcError) as caught:
        cri.sandbox("single")
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    second = cri.sandbox("single", attempt=1)
    for one in (key, second):
        cri.call("RemovePodSandbox", pod_sandbox_id=one)


def test_sandboxes_are_listed_by_state_label_and_the_beginning_of_an_id(cri: cri_rig.Cri) -> None:
    one, other = cri.sandbox("list-a"), cri.sandbox("list-b")
    cri.call("StopPodSandbox", pod_sandbox_id=other)

    def listed(**fields: object) -> list[str]:
        return [item.id for item in cri.call("ListPodSandbox", filter=api_pb2.PodSandboxFilter(**fields)).items]

    ready = api_pb2.PodSandboxStateValue(state=api_pb2.SANDBOX_READY)
    assert listed(state=ready) == [one]
    assert listed(label_selector={"io.kubernetes.pod.name": "list-b"}) == [other]
    assert listed(id=one[:13]) == [one]
    assert cri.call("PodSandboxStatus", pod_sandbox_id=other[:13]).status.id == other
    for key in (one, other):
        cri.call("RemovePodSandbox", pod_sandbox_id=key)


def test_a_sandbox_whose_namespace_was_taken_away_is_not_ready_and_still_gives_its_address_back(
    cri: cri_rig.Cri,
) -> None:
    key = cri.sandbox("robbed")
    ip = cri.call("PodSandboxStatus", pod_sandbox_id=key).status.network.ip
    cri.node.run("umount", cri.pod_netns(key))
    assert cri.call("PodSandboxStatus", pod_sandbox_id=key).status.state == api_pb2.SANDBOX_NOTREADY
    assert ip in reservations(cri)
    cri.call("RemovePodSandbox", pod_sandbox_id=key)
    assert ip not in reservations(cri)


def test_a_sandbox_is_detached_from_the_network_it_was_attached_to_after_the_configuration_is_gone(
    cri: cri_rig.Cri,
) -> None:
    key = cri.sandbox("orphaned")
    ip = cri.call("PodSandboxStatus", pod_sandbox_id=key).status.network.ip
    conflist = "/etc/cni/net.d/10-flannel.conflist"
    text = cri.node.read(conflist)
    os.unlink(cri.node.root + conflist)
    try:
        cri.call("RemovePodSandbox", pod_sandbox_id=key)
    finally:
        cri.node.write(conflist, text)
    assert ip not in reservations(cri)


def test_two_pods_reach_each_other_through_the_bridge(cri: cri_rig.Cri) -> None:
    one, other = cri.sandbox("near"), cri.sandbox("far")
    cri.stand_in(other, (80, "TCP"))
    ip = cri.call("PodSandboxStatus", pod_sandbox_id=other).status.network.ip
    mine = cri.call("PodSandboxStatus", pod_sandbox_id=one).status.network.ip
    answer = json.loads(cri.in_pod(one, "curl", "-s", "-m", "5", f"http://{ip}/").stdout)
    assert answer["pod"] == "far"
    assert answer["podIP"] == ip
    assert answer["node"] == "node-7"
    assert answer["client"].rpartition(":")[0] == mine
    for key in (one, other):
        cri.call("RemovePodSandbox", pod_sandbox_id=key)


def test_what_is_not_implemented_says_so_by_name(cri: cri_rig.Cri) -> None:
    channel = grpc.insecure_channel(f"unix:{cri.node.root}{cri_rig.SOCKET}")
    for name in ("Exec", "Attach", "PortForward", "ExecSync", "CheckpointContainer"):
        call = channel.unary_unary(f"/runtime.v1.RuntimeService/{name}")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=5)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert caught.value.details() == f"podwire cri does not implement {name}"
    channel.close()


def test_a_bad_request_is_refused_with_what_is_wrong(cri: cri_rig.Cri) -> None:
    for fields, part in (
        ({"config": api_pb2.PodSandboxConfig()}, "metadata"),
        ({"config": cri_rig.sandbox_config("x"), "runtime_handler": "kata"}, "kata"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            cri.call("RunPodSandbox", **fields)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert part in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        cri.call("PodSandboxStatus", pod_sandbox_id="nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
