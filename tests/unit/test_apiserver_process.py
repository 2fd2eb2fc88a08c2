"""The process: what survives, what is kept between starts, how it refuses to start, what it costs."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from http.client import HTTPException

import pytest
from apiserver_process import CONFIG_MAPS, MERGE, PODS, Server, config_map, pod

from podwire.apiserver.store import Store

pytestmark = pytest.mark.unit


@pytest.fixture
def process(tmp_path):
    """A server that the test starts, kills and starts again as it likes."""
    made = Server(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.stop()


class Client(threading.Thread):
    """Creates, changes and deletes config maps as fast as it can; remembers the last answer for each."""

    def __init__(self, server: Server, number: int) -> None:
        super().__init__()
        self.server = server
        self.number = number
        self.acknowledged: dict[str, str | None] = {}
        self.uncertain: set[str] = set()

    def run(self) -> None:
        with contextlib.closing(self.server.connect()) as connection, contextlib.suppress(OSError, HTTPException):
            for index in itertools.count():
                name = f"c{self.number}-{index}"
                self.step(connection, "POST", CONFIG_MAPS, name, config_map(name, v="1"), "1")
                self.step(connection, "PUT", f"{CONFIG_MAPS}/{name}", name, config_map(name, v="2"), "2")
                if index % 3 == 0:
                    self.step(connection, "DELETE", f"{CONFIG_MAPS}/{name}", name, None, None)

    def step(self, connection, method: str, path: str, name: str, body, value: str | None) -> None:
        self.uncertain.add(name)
        response = self.server.send(connection, method, path, body)
        response.read()
        if response.status >= 300:
            raise OSError
        self.acknowledged[name] = value
        self.uncertain.discard(name)


def test_what_was_acknowledged_survives_kill_9_and_the_revision_goes_on(process) -> None:
    known: dict[str, str | None] = {}
    revision = 0
    for round_ in range(4):
        process.start()
        clients = [Client(process, round_ * 10 + number) for number in range(4)]
        for client in clients:
            client.start()
        deadline = time.monotonic() + 20
        while sum(len(client.acknowledged) for client in clients) < 40 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.random() * 0.3)
        process.kill()
        for client in clients:
            client.join(10)
        process.start()
        listing = process.ok("GET", CONFIG_MAPS)
        there = {item["metadata"]["name"]: item["data"]["v"] for item in listing["items"]}
        uncertain = {name for client in clients for name in client.uncertain}
        for client in clients:
            known |= client.acknowledged
        assert len(known) > 20
        for name in known.keys() - uncertain:
            assert there.get(name) == known[name], name
        for name in uncertain:  # the one request under way: done or not, never half
            assert there.get(name) in {None, "1", "2"}
            known[name] = there.get(name)
        revisions = [int(item["metadata"]["resourceVersion"]) for item in listing["items"]]
        assert len(set(revisions)) == len(revisions)
        newest = int(listing["metadata"]["resourceVersion"])
        assert newest >= max(revisions)
        assert newest > revision
        revision = newest
        process.kill()


def test_a_watch_goes_on_over_a_restart_where_it_was(process) -> None:
    process.start()
    made = process.ok("POST", CONFIG_MAPS, config_map("before"))
    process.ok("POST", CONFIG_MAPS, config_map("between"))
    process.kill()
    process.start()
    process.ok("POST", CONFIG_MAPS, config_map("after"))
    with process.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={made['metadata']['resourceVersion']}") as watch:
        assert watch.names(2) == [("ADDED", "between"), ("ADDED", "after")]


def test_everything_but_the_process_is_the_same_after_a_restart(process) -> None:
    process.start()
    namespaces = process.ok("GET", "/api/v1/namespaces")
    service = process.ok("GET", "/api/v1/namespaces/default/services/kubernetes")
    kubeconfig = process.kubeconfig.read_text()
    process.stop()
    process.start()
    assert process.kubeconfig.read_text() == kubeconfig
    assert process.ok("GET", "/api/v1/namespaces") == namespaces
    assert process.ok("GET", "/api/v1/namespaces/default/services/kubernetes") == service


def test_below_the_horizon_a_watch_a_list_and_a_page_are_410(process) -> None:
    process.start()
    for name in "abc":
        process.ok("POST", CONFIG_MAPS, config_map(name))
    first = process.ok("GET", f"{CONFIG_MAPS}?limit=1")
    old = first["metadata"]["resourceVersion"]
    process.ok("POST", CONFIG_MAPS, config_map("d"))
    process.stop()
    store = Store(str(process.data / "objects.db"))
    store.begin()
    store.compact(older_than=0.0, keep_rows=0)
    store.commit()
    store.close()
    process.start()
    with process.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={old}") as watch:
        (event,) = list(watch)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    answer = process("GET", f"{CONFIG_MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")
    assert (answer.code, answer.body["reason"]) == (410, "Expired")
    answer = process("GET", f"{CONFIG_MAPS}?limit=1&continue={first['metadata']['continue']}")
    assert (answer.code, answer.body["reason"]) == (410, "Expired")
    rest = process.ok("GET", f"{CONFIG_MAPS}?continue={answer.body['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["b", "c", "d"]
    assert len(process.ok("GET", f"{CONFIG_MAPS}?resourceVersion={old}")["items"]) == 4


def test_a_namespace_that_was_ending_ends_after_a_restart(process) -> None:
    process.start()
    process.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "ending"}})
    process.ok("POST", PODS.replace("default", "ending"), pod("p", nodeName="n"))
    process.ok("DELETE", "/api/v1/namespaces/ending")
    process.kill()
    process.start()
    process.ok("DELETE", PODS.replace("default", "ending") + "/p?gracePeriodSeconds=0")
    deadline = time.monotonic() + 5
    while process("GET", "/api/v1/namespaces/ending").code != 404:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_flags_that_changed_change_the_service_kubernetes(process) -> None:
    process.flags = ("--advertise-address", "192.0.2.1")
    process.start()
    slice_path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
    made = process.ok("GET", slice_path)
    assert made["endpoints"][0]["addresses"] == ["192.0.2.1"]
    assert made["ports"] == [{"name": "https", "port": process.port, "protocol": "TCP"}]
    assert made["metadata"]["labels"] == {"kubernetes.io/service-name": "kubernetes"}
    process.stop()
    process.flags = ("--advertise-address", "192.0.2.2", "--service-cluster-ip-range", "10.50.0.0/24")
    process.start()
    assert process.ok("GET", slice_path)["endpoints"][0]["addresses"] == ["192.0.2.2"]
    service = process.ok("GET", "/api/v1/namespaces/default/services/kubernetes")["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("10.50.0.1", 443)
    assert service["ports"][0]["targetPort"] == process.port
    names = certificate_names(process)
    assert {"192.0.2.2", "10.50.0.1", "127.0.0.1", "localhost", "kubernetes.default.svc.cluster.local"} <= names
    process.ok("GET", "/api")


def certificate_names(server: Server) -> set[str]:
    context = ssl.create_default_context(cafile=str(server.data / "pki" / "ca.crt"))
    plain = socket.create_connection(("127.0.0.1", server.port))
    with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
        return {value for _, value in wrapped.getpeercert()["subjectAltName"]}


def test_secrets_are_readable_by_their_owner_only(process) -> None:
    process.start()
    private = [process.kubeconfig, process.data / "token", *(process.data / "pki").glob("*.key")]
    private += process.data.glob("objects.db*")
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE(process.data.stat().st_mode) == 0o700
    assert stat.S_IMODE((process.data / "pki").stat().st_mode) == 0o700


def refused(*flags: object) -> str:
    command = [sys.executable, "-P", "-m", "podwire", "apiserver", *map(str, flags)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("podwire: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--service-cluster-ip-range", "10.96.0.1/16"],
            "--service-cluster-ip-range 10.96.0.1/16: 10.96.0.1/16 has host bits set",
        ),
        (["--service-cluster-ip-range", "10.96.0.0/30"], "too small"),
        (["--service-cluster-ip-range", "10.96.0.0/16,10.97.0.0/16"], "more than one prefix of a family"),
        (["--service-node-port-range", "32767-30000"], "it is not a range of ports"),
        (["--bind-address", "localhost"], "--bind-address localhost: it is not an IP address"),
        (["--bind-address", "192.0.2.77"], "see `ip addr`"),
        (["--advertise-address", "0.0.0.0"], "clients cannot connect to it"),
        (["--secure-port", "70000"], "it is not a port"),
        (["--event-ttl", "-1"], "it is negative"),
    ],
)
def test_wrong_flags_are_one_line(tmp_path, flags: list[str], words: str) -> None:
    assert words in refused("--data-dir", tmp_path / "data", "--bind-address", "127.0.0.1", *flags)


def test_a_port_or_a_folder_that_is_taken_is_one_line(process, tmp_path) -> None:
    process.start()
    flags = ("--bind-address", "127.0.0.1", "--secure-port", process.port)
    assert "see `ss -ltnp`" in refused("--data-dir", tmp_path / "other", *flags)
    assert "another apiserver is using it" in refused("--data-dir", process.data, *flags)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    assert "expected a folder to write to" in refused("--data-dir", tmp_path / "file" / "data")


def test_a_kubeconfig_that_cannot_be_written_is_one_line(tmp_path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ("--data-dir", tmp_path / "data", "--bind-address", "127.0.0.1", "--secure-port", port)
    assert "--kubeconfig-out" in refused(*flags, "--kubeconfig-out", tmp_path / "nowhere" / "kubeconfig")


def test_a_damaged_database_is_one_line_and_stays(process) -> None:
    process.start()
    process.stop()
    database = process.data / "objects.db"
    database.write_bytes(b"rubbish" * 1000)
    command = [
        sys.executable,
        "-P",
        "-m",
        "podwire",
        "apiserver",
        "--data-dir",
        process.data,
        "--bind-address",
        "127.0.0.1",
    ]
    command += ["--secure-port", str(process.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert "move it away to start with an empty one" in done.stderr
    assert "Traceback" not in done.stderr
    assert database.read_bytes() == b"rubbish" * 1000


def test_a_client_that_does_not_read_is_cut_off_and_holds_nobody_up(process) -> None:
    process.start()
    with process.watch(f"{CONFIG_MAPS}?watch=true") as slow, process.watch(f"{CONFIG_MAPS}?watch=true") as quick:
        process.ok("POST", CONFIG_MAPS, config_map("a", v="x" * 200_000))
        quick.next()
        with contextlib.closing(process.connect()) as connection:
            for number in range(200):
                body = {"data": {"n": str(number)}}
                process.send(connection, "PATCH", f"{CONFIG_MAPS}/a", body, MERGE).read()
                assert quick.next()["object"]["data"]["n"] == str(number)
        assert resident(process) < 100
        events = list(slow)
    assert events[-1]["type"] == "ERROR"
    assert events[-1]["object"]["code"] == 410
    revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events[:-1]]
    assert revisions == sorted(revisions)
    assert len(revisions) < 200


def resident(process: Server) -> int:
    """MiB."""
    with open(f"/proc/{process.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


def test_a_thousand_services_take_seconds_and_little_memory(process) -> None:
    process.start()
    services = "/api/v1/namespaces/default/services"
    slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    begun = time.monotonic()
    with contextlib.closing(process.connect()) as connection:
        for number in range(1000):
            name = f"s{number}"
            service = {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}}
            endpoints = [{"addresses": [f"10.244.{number // 250}.{number % 250 + 1}"]}]
            labels = {"kubernetes.io/service-name": name}
            slice_ = {"metadata": {"name": name, "labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
            for path, body in ((services, service), (slices, slice_ | {"ports": [{"port": 80}]})):
                response = process.send(connection, "POST", path, body)
                assert response.status == 201, response.read()
                response.read()
    assert time.monotonic() - begun < 30  # about 3 s alone on two cores; others may be using them
    spec = [item["spec"] for item in process.ok("GET", services)["items"]]
    assert len({item["clusterIP"] for item in spec}) == 1001
    assert len({port["nodePort"] for item in spec for port in item["ports"] if "nodePort" in port}) == 1000
    assert resident(process) < 75


def test_many_idle_watchers_cost_little(process) -> None:
    process.start()
    before = resident(process)
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(process.watch(f"{CONFIG_MAPS}?watch=true")) for _ in range(200)]
        process.ok("POST", CONFIG_MAPS, config_map("a"))
        assert {watch.next()["object"]["metadata"]["name"] for watch in watches} == {"a"}
        assert resident(process) - before < 200 * 0.2
        with open(f"/proc/{process.process.pid}/stat") as file:
            ticks = sum(map(int, file.read().split()[13:15]))
        time.sleep(2)
        with open(f"/proc/{process.process.pid}/stat") as file:
            assert sum(map(int, file.read().split()[13:15])) - ticks <= 4
