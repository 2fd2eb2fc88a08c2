"""The small pure parts of the CRI server: images, what a shim is told, logs, HTTP, records."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.cri import config, http1, images, launch, logs, network, records, states
from podwire.criapi import api_pb2
from podwire.kernel import capabilities

pytestmark = pytest.mark.unit

PLACE = launch.Place("node-1", ("/etc/kubernetes",))


def sandbox(**fields):
    config = api_pb2.PodSandboxConfig(
        metadata=api_pb2.PodSandboxMetadata(name="web", namespace="shop", uid="u", attempt=1), hostname="web"
    )
    return records.Sandbox("s" * 64, config, 5, **{"netns": "/netns/s", "ips": ("10.1.0.2", "fd00::2"), **fields})


def container(image="podwire/host", **fields):
    config = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name="app"), image=api_pb2.ImageSpec(image=image), **fields
    )
    return records.Container("c" * 64, "s" * 64, config, 6)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("podwire/host", True),
        ("podwire/host:3.1", True),
        ("docker.io/podwire/host", True),
        ("podwire/host@sha256:0123", True),
        ("podwire/hosts", False),
        ("registry:5000/podwire/host", False),
        ("nginx", False),
        ("localhost:5000/nginx:1", False),
    ],
)
def test_the_name_alone_decides_what_runs(name, host):
    assert images.is_host(name) is host


def test_the_name_a_user_wrote_is_found_again_in_what_kubelets_send():
    pulled = images.identity("nginx:1")
    assert images.name_of(api_pb2.ImageSpec(image=pulled, user_specified_image="nginx:1")) == "nginx:1"
    assert images.name_of(api_pb2.ImageSpec(image=pulled)) == "nginx:1"
    assert images.name_of(api_pb2.ImageSpec(image=images.identity("podwire/host:2"))) == "podwire/host"


def test_declared_ports_come_from_the_kubelets_annotation_and_nonsense_declares_none():
    def of(text):
        return launch.ports({launch.PORTS_ANNOTATION: text})

    declared = [{"containerPort": 80}, {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 80, "name": "again"}]
    assert of(json.dumps(declared)) == [[53, "UDP"], [80, "TCP"]]
    assert of('[{"containerPort": 0}, {"containerPort": 70000}, {"containerPort": 1, "protocol": "ICMP"}]') == []
    for text in ("", "{}", "[1]", '[{"port": 1}]', "null", '[{"containerPort": "x"}]'):
        assert of(text) == []
    assert launch.ports({}) == []


def test_a_host_container_is_told_its_command_environment_and_user():
    context = api_pb2.LinuxContainerSecurityContext(
        run_as_user=api_pb2.Int64Value(value=7), capabilities=api_pb2.Capability(drop_capabilities=["ALL"])
    )
    made = container(
        command=["a"],
        args=["b"],
        envs=[api_pb2.KeyValue(key="K", value=b"v")],
        linux=api_pb2.LinuxContainerConfig(security_context=context),
    )
    spec = launch.describe(made, sandbox(), "/state/c", PLACE)
    assert spec["command"]["argv"] == ["a", "b"]
    assert spec["command"]["env"] == {"PATH": launch.DEFAULT_PATH, "HOSTNAME": "web", "HOME": "/", "K": "v"}
    assert (spec["command"]["uid"], spec["command"]["drop"]) == (7, ["ALL"])
    assert spec["hidden"] == ["/etc/kubernetes"]
    assert "10.1.0.2\tweb\nfd00::2\tweb\n" in spec["etc"]["/etc/hosts"]
    assert "/etc/resolv.conf" not in spec["etc"]
    json.dumps(spec)


def test_dns_settings_become_a_resolv_conf():
    made = sandbox()
    made.config.dns_config.servers.append("10.96.0.10")
    made.config.dns_config.searches.extend(["a.b", "b"])
    made.config.dns_config.options.append("ndots:5")
    text = launch.etc_files(made, PLACE)["/etc/resolv.conf"]
    assert text == "nameserver 10.96.0.10\nsearch a.b b\noptions ndots:5\n"


def test_on_the_hosts_network_the_names_are_the_nodes():
    made = sandbox(netns="", ips=())
    made.config.hostname = ""
    assert launch.hostname(made, PLACE) == "node-1"
    assert "/etc/hosts" not in launch.etc_files(made, PLACE)


def test_a_host_container_without_a_command_is_refused():
    with pytest.raises(launch.StartError, match="has no command of its own"):
        launch.describe(container(), sandbox(), "/state/c", PLACE)


def test_a_stand_in_is_told_who_it_is():
    spec = launch.describe(container("nginx:1"), sandbox(), "/state/c", PLACE)
    assert spec["kind"] == "stand-in"
    assert spec["standin"]["facts"] == {
        "pod": "web", "namespace": "shop", "podIP": "10.1.0.2", "node": "node-1",
        "container": "app", "image": "nginx:1", "standIn": True,
    }  # fmt: skip


def test_records_survive_the_way_to_disk_and_back(tmp_path):
    store = records.Store(str(tmp_path))
    box = sandbox(state=states.Sandbox.READY, networks=[{"name": "n", "source": "f", "list": "{}"}], result={"a": 1})
    one = container(command=["x"])
    one.exit_code, one.state = 3, states.Container.EXITED
    store.save(box)
    store.save(one)
    again = records.Store(str(tmp_path))
    again.load()
    assert again.sandboxes() == [box]
    assert again.containers() == [one]
    assert again.sandbox("s" * 5) is not None
    assert again.sandbox("") is None
    assert os.stat(f"{tmp_path}/sandboxes/{box.id}/record.json").st_mode & 0o777 == 0o600
    again.forget(box)
    assert again.sandboxes() == []
    assert os.listdir(f"{tmp_path}/sandboxes") == []


def test_the_beginning_of_an_id_must_be_unambiguous(tmp_path):
    store = records.Store(str(tmp_path))
    for key in ("aa1", "aa2"):
        box = sandbox()
        box.id = key
        store.save(box)
    assert store.sandbox("aa") is None
    assert store.sandbox("aa1").id == "aa1"


def test_the_default_capabilities_are_the_fourteen_every_runtime_gives():
    assert len(capabilities.NUMBERS) == 14
    assert sum(1 << number for number in capabilities.kept([])) == 0xA80425FB
    assert capabilities.kept(["all"]) == []
    assert capabilities.NUMBERS["NET_RAW"] not in capabilities.kept(["CAP_NET_RAW"])


@given(st.lists(st.binary(max_size=40000), max_size=4))
def test_whatever_a_container_prints_can_be_put_together_again_from_its_log(tmp_path_factory, chunks):
    path = tmp_path_factory.mktemp("log") / "0.log"
    writer = logs.Writer(str(path))
    for chunk in chunks:
        writer.feed("stdout", chunk)
    writer.end()
    said = bytearray()
    for entry in path.read_bytes().split(b"\n")[:-1]:
        _, stream, tag, text = entry.split(b" ", 3)
        assert stream == b"stdout"
        assert len(text) <= logs.MAX_LINE
        said += text + (b"\n" if tag == b"F" else b"")
    assert bytes(said) == b"".join(chunks)


def test_times_in_logs_have_nine_digits_in_utc():
    assert logs.timestamp(1_700_000_000_000_000_007) == "2023-11-14T22:13:20.000000007Z"


HALVES = st.sampled_from(
    [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nContent-Length: ", b"\r\n\r\n", b"\n\n", b"\xb2"]
)


@given(HALVES, st.binary(max_size=300), HALVES, HALVES)
def test_no_input_breaks_the_http_parser(before, middle, after, end):
    data = before + middle + after + end
    verdict = http1.looks_like(data)
    assert verdict in (True, False, None)
    request = http1.parse(data)
    if request is not None:
        assert 0 < request.length <= max(len(data), 1)


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (b"", None),
        (b"GE", None),
        (b"GET ", True),
        (b"GETX", False),
        (b"hello", False),
        (b"POST", None),
        (b"PRI * HTTP/2", False),
    ],
)
def test_the_first_bytes_decide_what_a_connection_speaks(data, verdict):
    assert http1.looks_like(data) is verdict


def test_a_request_is_complete_with_its_body():
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"
    assert http1.parse(head + b"1234") is None
    request = http1.parse(head + b"12345GET")
    assert (request.method, request.target, request.host, request.length) == ("POST", "/x", "a", len(head) + 5)
    assert request.keep_alive
    assert not http1.parse(b"GET / HTTP/1.0\r\n\r\n").keep_alive
    assert http1.parse(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n").status == 400
    assert http1.parse(b"GET / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n").status == 413
    assert not http1.parse(b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").keep_alive


def test_only_the_addresses_of_the_pods_own_interface_count():
    result = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/n"}, {"name": "net1", "sandbox": "/n"}],
        "ips": [
            {"interface": 2, "address": "10.0.0.2/24"},
            {"interface": 3, "address": "10.9.0.2/24"},
            {"interface": 2, "address": "fd00::2/64"},
            {"interface": 0, "address": "10.0.0.1/24"},
        ],
    }  # fmt: skip
    assert network.addresses(result, "eth0") == ("10.0.0.2", "fd00::2")
    old = {"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24"}, "dns": {}}
    assert network.addresses(old, "eth0") == ("10.0.0.2",)


def test_plugins_are_told_about_the_pod_as_containerd_tells_them():
    config = sandbox().config
    config.port_mappings.add(container_port=80, host_port=8080, protocol=api_pb2.UDP)
    config.port_mappings.add(container_port=81)
    config.dns_config.servers.append("10.96.0.10")
    told = network.attachment("id", "/n", "eth0", config)
    assert told.args == {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": "shop",
        "K8S_POD_NAME": "web",
        "K8S_POD_INFRA_CONTAINER_ID": "id",
        "K8S_POD_UID": "u",
    }
    assert told.capability_args["portMappings"] == [
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp", "hostIP": ""}
    ]
    assert told.capability_args["dns"]["servers"] == ["10.96.0.10"]


def test_no_more_files_are_used_than_max_conf_num_says(tmp_path):
    for name in ("20-b", "10-a", "30-c"):
        (tmp_path / f"{name}.conflist").write_text(json.dumps({"name": name, "plugins": [{"type": "x"}]}))
    for limit, names in ((1, ["10-a"]), (2, ["10-a", "20-b"]), (0, ["10-a", "20-b", "30-c"])):
        assert [one.name for one in network.ConfDir(str(tmp_path), limit).networks()] == names
    assert config.CniSettings().max_conf_num == 1


def test_a_plugin_folder_beside_a_list_is_remembered_with_it(tmp_path):
    (tmp_path / "10.conflist").write_text(json.dumps({"name": "net", "plugins": [{"type": "x"}]}))
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "extra.conf").write_text('{"type": "y"}')
    (found,) = network.ConfDir(str(tmp_path)).networks()
    assert found.types == ["x", "y"]
    kept = json.loads(network.remembered(found))
    assert [plugin["type"] for plugin in kept["plugins"]] == ["x", "y"]


HEAVY = (
    "logging",
    "subprocess",
    "asyncio",
    "dataclasses",
    "typing",
    "pathlib",
    "ipaddress",
    "email",
    "http",
    "ssl",
    "grpc",
    "google",
)


@pytest.mark.parametrize("module", ["podwire.cri.shim, podwire.cri.standin", "podwire.cri.shim, podwire.cri.rootfs"])
def test_what_runs_beside_every_container_imports_nothing_heavy(module):
    root = os.path.dirname(os.path.dirname(os.path.dirname(launch.STUB)))
    code = f"import sys; sys.path.insert(0, {root!r}); import {module}; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-IS", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in loaded if name.split(".")[0] in HEAVY] == []
