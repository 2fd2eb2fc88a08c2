"""podwire's portmap, static and tuning beside the distribution's: same input, same rules, files, settings, results and errors.

CHECK of portmap is not compared: version 1.1.1 looks for the rules of each address in the tables of both families, and so never
finds them where there is ip6tables.
"""

import json
import re
import subprocess

import pytest

from podwire.cni.install import install
from podwire.testing.netns import REFERENCE_CNI, Netns, Node, require

pytestmark = pytest.mark.peer

PREVIOUS = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "br0"}, {"name": "veth0"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x"}],
    "ips": [
        {"interface": 0, "address": "10.1.2.99/24"},
        {"interface": 2, "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
        {"interface": 2, "address": "10.1.2.4/24"},
        {"interface": 2, "address": "fd00:1::5/64"},
    ],
    "routes": [{"dst": "0.0.0.0/0"}],
}
# Where version 1.1.1 says something else than today's reference plugins, podwire follows today's.
NEWER_WORDS = {'\\"1.0.0\\"]': '\\"1.0.0\\" \\"1.1.0\\"]', "kernel.hostname": "kernel/hostname"}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    require("root", "reference-cni", "veth", "iptables", "ip6tables", "nsenter", "unshare")
    folder = tmp_path_factory.mktemp("bin")
    install(str(folder))
    return str(folder)


class Side:
    """A node with one set of plugins, and a container."""

    def __init__(self, folder):
        self.folder = folder
        self.node = Node()
        self.container = Netns.new()
        with self.container.rtnl() as door:
            door.create_veth("eth0", "peer", mac="02:00:00:00:00:01")

    def close(self):
        self.container.close()
        self.node.close()

    def call(self, command, conf, name="pod", **env):
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": name,
            "CNI_NETNS": self.container.path,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": self.folder,
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            **env,
        }
        argv = self.node.command(f"{self.folder}/{conf['type']}")
        done = subprocess.run(
            argv, input=json.dumps(conf), env=variables, capture_output=True, text=True, check=False, timeout=60
        )
        said = re.sub(r"/proc/\d+/fd/\d+", "NETNS", done.stdout)
        for theirs, ours in NEWER_WORDS.items():
            said = said.replace(theirs, ours)
        value = json.loads(said) if said.strip() else None
        if isinstance(value, dict) and not value.get("dns"):
            value.pop("dns", None)
        return done.returncode, value

    def rules(self):
        found = []
        for program in ("iptables-save", "ip6tables-save"):
            found += [line for line in self.node.run(program, "-t", "nat").stdout.splitlines() if line[0] in "-:"]
        return found

    def settings(self):
        link = json.loads(self.container.run("ip", "-j", "-d", "link", "show", "eth0").stdout)[0]
        keys = ("address", "mtu", "txqlen", "promiscuity", "allmulti")
        flags = sorted(set(link["flags"]) & {"PROMISC", "ALLMULTI"})
        return {key: link.get(key) for key in keys}, flags

    def kept(self, folder="/run/cni/tuning"):
        return {name: self.node.read(f"{folder}/{name}") for name in self.node.listdir(folder)}


@pytest.fixture
def sides(own):
    made = [Side(own), Side(REFERENCE_CNI)]
    yield made
    for side in made:
        side.close()


def both(sides, work):
    """Do the same on both and expect the same."""
    ours, theirs = (work(side) for side in sides)
    assert ours == theirs
    return ours


def port(host, container, protocol="tcp", **more):
    return {"hostPort": host, "containerPort": container, "protocol": protocol, **more}


def portmap(*mappings, **options):
    conf = {"name": "net", "cniVersion": "1.0.0", "type": "portmap", "prevResult": PREVIOUS}
    return {**conf, "runtimeConfig": {"portMappings": list(mappings)}, **options}


PORTS = {
    "one": [port(8080, 80)],
    "three protocols": [port(8080, 80), port(53, 5353, "udp"), port(99, 98, "sctp")],
    "more than a rule holds": [port(1000 + number, number + 1) for number in range(33)],
    "the same twice": [port(8080, 80), port(8080, 80)],
    "of addresses": [port(8080, 80, hostIP="192.0.2.1"), port(81, 81, hostIP="fd00::1"), port(82, 82, hostIP="::")],
    "none": [],
    "no host port": [port(0, 80)],
    "no container port": [port(80, 0)],
}
OPTIONS = {
    "no snat": {"snat": False},
    "another bit": {"markMasqBit": 20},
    "a bit that is none": {"markMasqBit": 32},
    "a chain of somebody else": {"externalSetMarkChain": "FOREIGN"},
    "bit and chain": {"externalSetMarkChain": "FOREIGN", "markMasqBit": 3},
    "conditions": {"conditionsV4": ["-s", "1.2.3.4"], "conditionsV6": ["!", "-s", "12::34"]},
    "no previous result": {"prevResult": None},
    "old version": {"cniVersion": "0.3.1", "prevResult": {"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.2.3/24"}]}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("mappings", "options"),
    [*((ports, {}) for ports in PORTS.values()), *((PORTS["of addresses"], options) for options in OPTIONS.values())],
    ids=[*PORTS, *OPTIONS],
)
def test_portmap_writes_and_removes_the_same_rules(sides, mappings, options):
    if "externalSetMarkChain" in options:
        for side in sides:
            for program in ("iptables", "ip6tables"):
                side.node.run(program, "-t", "nat", "-N", "FOREIGN")
    conf = portmap(*mappings, **options)
    for name in ("pod", "other", "pod"):  # the third finds its chain there
        both(sides, lambda side, name=name: side.call("ADD", conf, name))
        both(sides, Side.rules)
    conf.pop("prevResult")
    for name in ("pod", "pod", "other"):
        both(sides, lambda side, name=name: side.call("DEL", conf, name))
        both(sides, Side.rules)


def test_either_portmap_undoes_what_the_other_did(sides):
    side = sides[0]
    conf = portmap(*PORTS["three protocols"])
    for adder, deleter in ((side.folder, REFERENCE_CNI), (REFERENCE_CNI, side.folder)):
        side.folder = adder
        assert side.call("ADD", conf)[0] == 0
        side.folder = deleter
        assert side.call("DEL", conf) == (0, None)
        assert not any("CNI-DN-" in rule for rule in side.rules())


STATIC = {
    "two families": {"addresses": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"address": "fd00::3/64"}]},
    "routes and dns": {"addresses": [{"address": "10.1.2.3/24"}], "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.9"}],
                       "dns": {"nameservers": ["10.1.2.53"], "domain": "x", "search": ["y"], "options": ["z"]}},
    "two of one family": {"addresses": [{"address": "10.1.2.3/24"}, {"address": "10.1.3.3/24"}]},
    "without length": {"addresses": [{"address": "10.1.2.3"}]},
    "bad gateway": {"addresses": [{"address": "10.1.2.3/24", "gateway": "x"}]},
    "nothing": {},
}  # fmt: skip


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.1", "0.4.0", "1.0.0"])
@pytest.mark.parametrize("case", STATIC)
def test_static_tells_the_same_addresses(sides, case, version):
    conf = {"name": "net", "cniVersion": version, "type": "static", "ipam": {"type": "static", **STATIC[case]}}
    both(sides, lambda side: side.call("ADD", conf))
    both(sides, lambda side: side.call("ADD", conf, CNI_ARGS="IP=10.9.0.2/24,fd09::2/64;GATEWAY=10.9.0.1,fd09::1"))
    both(sides, lambda side: side.call("ADD", conf, CNI_ARGS="IP=10.9.0.2"))
    both(sides, lambda side: side.call("ADD", conf, CNI_ARGS="GATEWAY=nonsense"))
    both(sides, lambda side: side.call("ADD", {**conf, "args": {"cni": {"ips": ["10.8.0.2/24"]}}}))
    both(sides, lambda side: side.call("ADD", {**conf, "args": {"cni": {"ips": ["10.8.0.2"]}}}))
    runtime = {"args": {"cni": {"ips": ["10.8.0.2/24"]}}, "runtimeConfig": {"ips": ["10.7.0.2/24"]}}
    both(sides, lambda side: side.call("ADD", {**conf, **runtime}))
    both(sides, lambda side: side.call("DEL", conf))


TUNING = {
    "mac": {"mac": "02:00:00:00:00:77"},
    "everything": {"mac": "02:00:00:00:00:77", "mtu": 1400, "promisc": True, "allmulti": True},
    "args win": {"mtu": 1300, "args": {"cni": {"mac": "02:00:00:00:00:78", "mtu": 1401, "promisc": True, "sysctl": {"net.core.somaxconn": "77"}}},
                 "runtimeConfig": {"mac": "02:00:00:00:00:79"}, "sysctl": {"net.core.somaxconn": "78"}},
    "runtime": {"mac": "02:00:00:00:00:77", "runtimeConfig": {"mac": "02:00:00:00:00:79"}},
    "not all multicast": {"allmulti": False},
    "sysctls": {"sysctl": {"net.core.somaxconn": "99", "net.ipv4.conf.eth0.arp_filter": "1"}},
    "not the network's": {"sysctl": {"kernel.hostname": "x"}},
    "out of the folder": {"sysctl": {"net/../kernel/hostname": "x"}},
    "unknown": {"sysctl": {"net.nothing": "1"}},
    "wrong value": {"sysctl": {"net.core.somaxconn": "x"}},
    "bad mac": {"mac": "nonsense"},
    "nothing": {},
    "no previous result": {"prevResult": None, "mtu": 1400},
    "keys in other case": {"MTU": 1400, "PromisC": True},
}  # fmt: skip


@pytest.mark.parametrize("case", TUNING)
def test_tuning_sets_and_restores_the_same(sides, case):
    conf = {"name": "net", "cniVersion": "1.0.0", "type": "tuning", "prevResult": PREVIOUS, **TUNING[case]}
    status, _ = both(sides, lambda side: side.call("ADD", conf))
    both(sides, Side.settings)
    both(sides, Side.kept)
    both(sides, lambda side: side.container.run("sysctl", "net.core.somaxconn", "net.ipv4.conf.eth0.arp_filter").stdout)
    if status == 0:
        both(sides, lambda side: side.call("CHECK", conf))
        for side in sides:
            side.container.run("ip", "link", "set", "eth0", "mtu", "1280")
        both(sides, lambda side: side.call("CHECK", conf))
    both(sides, lambda side: side.call("DEL", conf))
    both(sides, Side.settings)
    both(sides, Side.kept)
