"""Host ports on the real kernel: who gets through, and what is left."""

import json
import os
import socket
import sys
import threading

import pytest
from cni_rig import Host

from podwire.cni.install import install
from podwire.kernel import netfilter
from podwire.naming import cni_chain
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

BACKENDS = ["iptables", "nftables"]
BRIDGE = {
    "name": "net",
    "cniVersion": "1.1.0",
    "type": "bridge",
    "bridge": "br0",
    "isDefaultGateway": True,
    "hairpinMode": True,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]]},
}
NETWORKS = {
    "net": {},
    "net2": {"name": "net2", "bridge": "br2", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.10.0.0/24"}]]}},
}
NODE, OUTSIDE = "192.0.2.1", "192.0.2.2"
NODE6, OUTSIDE6 = "2001:db8::1", "2001:db8::2"


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    require("root", "veth", "bridge-device", "iptables", "ip6tables", "nft", "nsenter", "unshare")
    folder = tmp_path_factory.mktemp("bin")
    install(str(folder))
    return str(folder)


class World(Host):
    """A node with an uplink to a machine outside."""

    def __init__(self, binaries):
        super().__init__(binaries)
        outside = self.pod("outside")
        with self.node.rtnl() as door, outside.rtnl() as far:
            door.create_veth("wan", "wan", outside.fd, up=True)
            door.add_address(door.link("wan").index, f"{NODE}/24")
            door.add_address(door.link("wan").index, f"{NODE6}/64", flags=2)
            far.set_link(far.link("wan").index, up=True)
            far.add_address(far.link("wan").index, f"{OUTSIDE}/24")
            far.add_address(far.link("wan").index, f"{OUTSIDE6}/64", flags=2)
            far.add_route("0.0.0.0/0", via=NODE)
            far.add_route("::/0", via=NODE6)

    def attach(self, backend, *mappings, name="pod", network="net", **options):
        """Bridge and portmap; returns portmap's configuration, as CHECK gets it."""
        result = self.add({**BRIDGE, **NETWORKS[network]}, name)
        conf = portmap(backend, *mappings, name=network, prevResult=result, **options)
        assert self.add(conf, name) == result
        return conf

    def rules(self):
        """Everything that names a container, in both backends and families."""
        saved = self.node.run("iptables-save", "-t", "nat").stdout + self.node.run("ip6tables-save", "-t", "nat").stdout
        return saved + self.node.run("nft", "list", "ruleset").stdout


@pytest.fixture
def world(binaries):
    made = World(binaries)
    yield made
    made.close()


def portmap(backend, *mappings, name="net", **options):
    return {
        "name": name,
        "cniVersion": "1.1.0",
        "type": "portmap",
        "backend": backend,
        "runtimeConfig": {"portMappings": list(mappings)},
        **options,
    }


def port(host, container, protocol="tcp", **more):
    return {"hostPort": host, "containerPort": container, "protocol": protocol, **more}


def reached(server, client, listen, target, kind=socket.SOCK_STREAM):
    """Whom a server in `server` on port `listen` sees when `client` sends to `target`; None if nothing arrives."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    seen = []

    def serve(sock):
        try:
            if kind == socket.SOCK_DGRAM:
                data, peer = sock.recvfrom(100)
                sock.sendto(data, peer)
            else:
                connection, peer = sock.accept()
                with connection:
                    connection.sendall(connection.recv(100))
        except TimeoutError:
            return
        seen.append(peer[0])

    sock = server.call(lambda: socket.socket(family, kind))
    with sock:
        sock.settimeout(1.5)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", listen))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        thread = threading.Thread(target=serve, args=(sock,))
        thread.start()
        answered = ask(client, family, kind, target)
        thread.join()
    return seen[0] if answered else None


def ask(client, family, kind, target):
    sock = client.call(lambda: socket.socket(family, kind))
    with sock:
        sock.settimeout(1)
        try:
            sock.connect(target)
            sock.sendall(b"hello")
            return sock.recv(100) == b"hello"
        except OSError:
            return False


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_port_leads_to_the_container_from_everywhere(world, backend):
    world.attach(backend, port(8080, 80), port(8053, 53, "udp"))
    pod, outside, node = world.pod("pod"), world.pod("outside"), world.node.netns
    world.add(BRIDGE, "neighbour")
    # Outside is seen as it is; what would else be answered past the host is masqueraded.
    assert reached(pod, outside, 80, (NODE, 8080)) == OUTSIDE
    assert reached(pod, outside, 53, (NODE, 8053), socket.SOCK_DGRAM) == OUTSIDE
    node.settle()  # the bridge's own IPv6 address, for which no ADD waits
    assert reached(pod, outside, 80, (NODE6, 8080)) == OUTSIDE6
    assert reached(pod, node, 80, ("127.0.0.1", 8080)) == "10.9.0.1"
    assert reached(pod, node, 80, (NODE, 8080)) is not None
    assert reached(pod, pod, 80, (NODE, 8080)) == "10.9.0.1"
    assert reached(pod, world.pod("neighbour"), 80, (NODE, 8080)) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_packets_to_the_host_itself_are_taken(world, backend):
    """A container that has the host's port 53 must not get everybody's questions to every name server."""
    world.attach(backend, port(53, 53, "udp"))
    world.add(BRIDGE, "neighbour")
    assert reached(world.pod("outside"), world.pod("neighbour"), 53, (OUTSIDE, 53), socket.SOCK_DGRAM) is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_host_ip_is_the_only_one_that_is_served(world, backend):
    with world.node.rtnl() as door:
        door.add_address(door.link("wan").index, "192.0.2.7/24")
    world.attach(backend, port(8080, 80, hostIP="192.0.2.7"), port(8081, 80, hostIP="0.0.0.0"))
    pod, outside = world.pod("pod"), world.pod("outside")
    assert reached(pod, outside, 80, ("192.0.2.7", 8080)) == OUTSIDE
    assert reached(pod, outside, 80, (NODE, 8080)) is None
    assert reached(pod, outside, 80, (NODE, 8081)) == OUTSIDE


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_snat_nothing_is_masqueraded_and_with_masq_all_everything_is(world, backend):
    world.attach(backend, port(8080, 80), name="plain", snat=False)
    world.attach(backend, port(8081, 80), name="all", masqAll=True)
    outside = world.pod("outside")
    assert reached(world.pod("plain"), outside, 80, (NODE, 8080)) == OUTSIDE
    assert reached(world.pod("plain"), world.node.netns, 80, ("127.0.0.1", 8080)) is None
    assert reached(world.pod("all"), outside, 80, (NODE, 8081)) == "10.9.0.1"


@pytest.mark.parametrize(
    ("backend", "conditions"), [("iptables", ["!", "-s", OUTSIDE]), ("nftables", ["ip", "saddr", "!=", OUTSIDE])]
)
def test_a_condition_keeps_the_others_out(world, backend, conditions):
    world.attach(backend, port(8080, 80), conditionsV4=conditions)
    pod = world.pod("pod")
    assert reached(pod, world.pod("outside"), 80, (NODE, 8080)) is None
    assert reached(pod, world.node.netns, 80, (NODE, 8080)) is not None
    world.node.netns.settle()
    assert reached(pod, world.pod("outside"), 80, (NODE6, 8080)) == OUTSIDE6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_client_that_keeps_sending_udp_reaches_the_new_container(world, backend):
    world.attach(backend, port(8080, 80), name="first")  # from here on connections are tracked
    outside = world.pod("outside")
    client = outside.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with client:
        client.settimeout(2)
        client.bind((OUTSIDE, 4444))
        client.sendto(b"nobody", (NODE, 5353))  # the flow is tracked now, without a translation
        world.attach(backend, port(5353, 5353, "udp"), name="second")
        server = world.pod("second").call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with server:
            server.settimeout(2)
            server.bind(("0.0.0.0", 5353))
            client.sendto(b"hello", (NODE, 5353))
            assert server.recvfrom(100) == (b"hello", (OUTSIDE, 4444))


@pytest.mark.parametrize("backend", BACKENDS)
def test_del_needs_no_previous_result_and_may_come_twice(world, backend):
    before = world.attach(backend, port(8080, 80), name="stays")
    conf = world.attach(backend, port(8081, 81), name="goes")
    assert world.call("CHECK", conf, "goes") == (0, None)
    del conf["prevResult"]
    for _ in range(2):
        world.delete(conf, "goes", netns="")
        assert "goes" not in world.rules()
    assert world.call("CHECK", before, "stays") == (0, None)
    world.delete(conf, "never-was")


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_says_what_is_missing(world, backend):
    conf = world.attach(backend, port(8080, 80))
    chain = cni_chain("net", "pod", "DN-")
    if backend == "iptables":
        world.node.run("iptables", "-t", "nat", "-D", chain, "-p", "tcp", "--dport", "8080", "-s", "127.0.0.1",
                       "-j", "CNI-HOSTPORT-SETMARK")  # fmt: skip
        words = "could not check ipv4 dnat: rule [[-p tcp --dport 8080 -s 10.9.0.2/24 -j CNI-HOSTPORT-SETMARK] "
    else:
        world.node.run("nft", "flush", "chain", "ip", "cni_hostport", "hostports")
        words = 'missing hostport rules in "hostports" chain'
    status, error = world.call("CHECK", conf)
    assert (status, error["code"]) == (1, 999)
    assert error["msg"].startswith(words)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gc_frees_the_rules_of_attachments_that_are_not_valid_and_of_no_other_network(world, backend):
    for name in ("keep", "leak"):
        world.attach(backend, port(8080, 80), name=name)
    world.attach(backend, port(8081, 80), name="other", network="net2")
    conf = portmap(backend, **{"cni.dev/valid-attachments": [{"containerID": "keep", "ifname": "eth0"}]})
    assert world.call("GC", conf) == (0, None)
    rules = world.rules()
    assert '"leak' not in rules.replace("\\", "")
    assert cni_chain("net", "leak", "DN-") not in rules
    for name in ("keep", "other"):
        assert f'"{name}"' in rules.replace("\\", "")
    assert reached(world.pod("keep"), world.pod("outside"), 80, (NODE, 8080)) == OUTSIDE
    assert reached(world.pod("other"), world.pod("outside"), 80, (NODE, 8081)) == OUTSIDE


def test_an_add_that_fails_takes_back_what_it_wrote(world):
    result = world.add(BRIDGE)
    conf = portmap("iptables", port(8080, 80), prevResult=result, conditionsV6=["--nonsense"])
    status, error = world.call("ADD", conf)
    assert status == 1
    assert "--nonsense" in error["msg"]
    assert cni_chain("net", "pod", "DN-") not in world.rules()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hostIP": "nonsense"}, 'failed to parse config: Invalid host IP "nonsense" of host port 8080'),
        (
            {"protocol": "tcp\n-j ACCEPT"},
            r'failed to parse config: Invalid protocol "tcp\n-j ACCEPT" of host port 8080',
        ),
    ],
)
def test_a_mapping_that_cannot_be_is_refused_and_its_del_succeeds(world, change, words):
    result = world.add(BRIDGE)
    conf = portmap("iptables", {**port(8080, 80), **change}, prevResult=result)
    status, error = world.call("ADD", conf)
    assert (status, error["msg"]) == (1, words)
    world.delete(conf)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_at_once_on_a_new_node_share_one_set_of_rules(world, backend):
    names = [f"pod{number}" for number in range(24)]
    result = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": "/x"}],
        "ips": [{"interface": 0, "address": "10.9.0.5/24"}, {"interface": 0, "address": "fd00:9::5/64"}],
    }
    netns = world.pod("shared").path

    def wave(command):
        running = [
            world.start(command, portmap(backend, port(9000 + n, 80), prevResult=result), name, netns=netns)
            for n, name in enumerate(names)
        ]
        for process in running:
            said = process.communicate(timeout=120)
            assert process.returncode == 0, said

    wave("ADD")
    rules = world.rules().replace("\\", "")
    for name in names:
        assert f'"{name}"' in rules
    if backend == "iptables":
        for shared in ("PREROUTING", "OUTPUT", "POSTROUTING"):
            for program in ("iptables", "ip6tables"):
                assert world.node.run(program, "-t", "nat", "-S", shared).stdout.count("CNI-HOSTPORT") == 1
    wave("DEL")
    rules = world.rules()
    assert "pod1" not in rules
    assert "CNI-DN-" not in rules


def test_the_article_chain_with_host_ports_through_the_runtime(world, binaries, tmp_path):
    """flannel, then portmap, with what a runtime gives as capabilities."""
    text = {
        "name": "cni0",
        "cniVersion": "1.0.0",
        "plugins": [
            {"type": "flannel", "delegate": {"hairpinMode": True, "isDefaultGateway": True},
             "capabilities": {"portMappings": True, "mac": True, "ips": True}},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }  # fmt: skip
    (tmp_path / "10-flannel.conflist").write_text(json.dumps(text))
    args = {
        "portMappings": [port(8080, 80)],
        "mac": "02:00:00:00:00:05",
        "ips": ["10.244.1.77"],
        "bandwidth": {"ingressRate": 1},
    }
    command = [
        os.path.join(os.path.dirname(sys.executable), "podwire"), "cni", "add", "cni0", world.pod("pod").path,
        "--conf-dir", str(tmp_path), "--bin-dir", binaries,
    ]  # fmt: skip
    world.node.run(*command, env={**os.environ, "CAP_ARGS": json.dumps(args)})
    with world.pod("pod").rtnl() as inside:
        eth0 = inside.link("eth0")
        assert eth0.mac == "02:00:00:00:00:05"
        assert [a.cidr for a in inside.addresses(eth0.index, 2)] == ["10.244.1.77/24"]
    assert reached(world.pod("pod"), world.pod("outside"), 80, (NODE, 8080)) == OUTSIDE
    command[2] = "del"
    world.node.run(*command, env={**os.environ, "CAP_ARGS": json.dumps(args)})
    assert "CNI-DN-" not in world.rules()
    assert [link.name for link in world.ports()] == ["wan"]


def test_a_chain_is_found_without_reading_all_of_them(world):
    world.attach("iptables", port(8080, 80))
    chain = cni_chain("net", "pod", "DN-")
    assert netfilter.nft_has_chain("ip", "nat", chain, world.node.fd)
    assert not netfilter.nft_has_chain("ip", "nat", chain + "X", world.node.fd)
    assert not netfilter.nft_has_chain("ip", "nowhere", chain, world.node.fd)
