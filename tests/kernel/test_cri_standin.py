"""The stand-in on real sockets: HTTP to HTTP, an echo to everything else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import TYPE_CHECKING

import cri_rig
import pytest

from podwire.criapi import api_pb2
from podwire.testing.netns import require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

RSS_LIMIT_KIB = 14 * 1024


@pytest.fixture(scope="module")
def cri() -> Iterator[cri_rig.Cri]:
    require("root", "bridge-device", "veth", "nsenter", "unshare", "curl")
    with cri_rig.running() as made:
        yield made


@pytest.fixture(scope="module")
def sandbox(cri: cri_rig.Cri) -> str:
    key = cri.sandbox()
    cri.stand_in(key, (80, "TCP"), (53, "UDP"), (7, "TCP"))
    return key


@pytest.fixture
def address(cri: cri_rig.Cri, sandbox: str) -> str:
    return str(cri.call("PodSandboxStatus", pod_sandbox_id=sandbox).status.network.ip)


def connect(cri: cri_rig.Cri, address: str, port: int) -> socket.socket:
    return cri.node.netns.call(lambda: socket.create_connection((address, port), timeout=5))


def read_all(sock: socket.socket) -> bytes:
    chunks = []
    while chunk := sock.recv(65536):
        chunks.append(chunk)
    return b"".join(chunks)


def test_http_is_answered_with_who_answered_and_who_asked(cri: cri_rig.Cri, address: str) -> None:
    said = cri.node.run("curl", "-si", "-m", "5", f"http://{address}/a/b?c=d").stdout
    head, _, body = said.partition("\r\n\r\n") if "\r\n\r\n" in said else said.partition("\n\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert "X-Pod: web-0" in head
    answer = json.loads(body)
    assert answer["client"].rpartition(":")[0] == "10.244.1.1"  # the bridge, as the node's way to the pod
    del answer["client"]
    assert answer == {
        "pod": "web-0",
        "namespace": "default",
        "podIP": address,
        "node": "node-7",
        "container": "web",
        "image": "nginx:1.25",
        "standIn": True,
        "port": 80,
        "method": "GET",
        "path": "/a/b?c=d",
        "host": address,
    }


def test_a_connection_is_kept_for_several_requests_and_closed_when_asked(cri: cri_rig.Cri, address: str) -> None:
    with connect(cri, address, 80) as sock:
        sock.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nPOST /2 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
        sock.sendall(b"GET /3 HTTP/1.1\r\nConnection: close\r\n\r\n")
        said = read_all(sock)
    assert said.count(b"HTTP/1.1 200 OK") == 3
    for path in (b"/1", b"/2", b"/3"):
        assert b'"path": "' + path + b'"' in said


def test_other_tcp_is_echoed_also_when_it_begins_like_http(cri: cri_rig.Cri, address: str) -> None:
    for text in (b"hello\n", b"\x16\x03\x01\x00\xff", b"GE", b"G"):
        with connect(cri, address, 80) as sock:
            sock.sendall(text)
            assert sock.recv(100) == text
            sock.sendall(b"again")
            assert sock.recv(100) == b"again"


def test_a_client_that_closes_its_half_gets_everything_back(cri: cri_rig.Cri, address: str) -> None:
    data = os.urandom(3 << 20)
    with connect(cri, address, 7) as sock:
        received = bytearray()
        sock.setblocking(False)
        left = memoryview(data)
        deadline = time.monotonic() + 20
        while len(received) < len(data) and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                left = left[sock.send(left) :] if left else left
            if not left:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_WR)
            try:
                received += sock.recv(1 << 16)
            except BlockingIOError:
                time.sleep(0.001)
    assert bytes(received) == data


def test_udp_is_echoed_from_the_address_that_was_asked(cri: cri_rig.Cri, sandbox: str, address: str) -> None:
    cri.in_pod(sandbox, "ip", "address", "add", "10.244.1.200/24", "dev", "eth0")
    sock = cri.node.netns.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with sock:
        sock.settimeout(5)
        for asked in (address, "10.244.1.200"):
            sock.sendto(b"ping", (asked, 53))
            assert sock.recvfrom(100) == (b"ping", (asked, 53))


def test_malformed_http_gets_a_400_and_large_headers_a_431(cri: cri_rig.Cri, address: str) -> None:
    with connect(cri, address, 80) as sock:
        sock.sendall(b"GET nonsense\r\n\r\n")
        assert read_all(sock).startswith(b"HTTP/1.1 400 Bad Request")
    with connect(cri, address, 80) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000)
        assert sock.recv(100).startswith(b"HTTP/1.1 431 ")


def test_three_hundred_connections_at_once_are_served(cri: cri_rig.Cri, address: str) -> None:
    socks = [connect(cri, address, 80) for _ in range(300)]
    for sock in socks:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
    for sock in socks:
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK")
        sock.close()


def test_a_port_that_is_taken_ends_it_as_it_would_end_the_real_program(cri: cri_rig.Cri, sandbox: str) -> None:
    second = cri.stand_in(sandbox, (80, "TCP"), name="second")
    status = cri.ended(second)
    assert (status.exit_code, status.reason) == (1, "Error")
    assert cri.log("second")[-1] == "stderr F listen tcp :80: address already in use"


def test_it_ends_with_0_on_sigterm(cri: cri_rig.Cri, sandbox: str) -> None:
    key = cri.stand_in(sandbox, (8080, "TCP"), name="brief")
    started = time.monotonic()
    cri.call("StopContainer", container_id=key, timeout=20)
    assert time.monotonic() - started < 5
    assert cri.status(key).exit_code == 0
    assert cri.log("brief")[-1] == "stdout F SIGTERM: stopping"


def test_it_is_small_and_may_do_nothing(cri: cri_rig.Cri, sandbox: str) -> None:
    key = next(
        one.id
        for one in cri.call("ListContainers", filter=api_pb2.ContainerFilter(pod_sandbox_id=sandbox)).containers
        if one.metadata.name == "web"
    )
    with open(f"/proc/{cri.pid_of(key)}/status") as file:
        fields = dict(line.split(":", 1) for line in file.read().splitlines())
    assert int(fields["CapEff"], 16) == 0
    assert int(fields["CapBnd"], 16) == 0
    assert int(fields["NoNewPrivs"]) == 1
    assert int(fields["VmRSS"].split()[0]) < RSS_LIMIT_KIB
    assert os.readlink(f"/proc/{cri.pid_of(key)}/ns/uts") != os.readlink("/proc/self/ns/uts")


def test_on_the_hosts_network_it_listens_on_the_node(cri: cri_rig.Cri) -> None:
    box = cri.sandbox("on-host", host_network=True)
    cri.stand_in(box, (9080, "TCP"))
    answer = json.loads(cri.node.run("curl", "-s", "-m", "5", "http://127.0.0.1:9080/").stdout)
    assert answer["pod"] == "on-host"
    assert answer["podIP"] == ""
    cri.call("RemovePodSandbox", pod_sandbox_id=box)
