"""A few nodes on one bridge, each with one pod, and a flanneld agent for each: what the flanneld kernel tests stand on."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import socket
import struct
import time
from typing import Self

from podwire.flanneld import flags, netconf, underlay
from podwire.flanneld.agent import Agent
from podwire.flanneld.door import KernelDoor
from podwire.flanneld.enforce import Enforcer
from podwire.flanneld.lease import Annotations
from podwire.kernel import sysctl
from podwire.testing.leases import Cluster
from podwire.testing.netns import Netns

PREFIX = "flannel.alpha.coreos.com"
VXLAN = {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}
DUAL = {**VXLAN, "EnableIPv6": True, "IPv6Network": "fd00:10:244::/56"}


class LabNode:
    """Node number `number` (1, 2, …): 192.168.50.1N, podCIDR 10.244.N-1.0/24, one pod at .5."""

    def __init__(self, lab: Lab, number: int) -> None:
        self.lab = lab
        self.number = number
        self.name = f"n{number}"
        self.address, self.address6 = f"192.168.50.1{number}", f"fd50::1{number}"
        self.subnet, self.subnet6 = f"10.244.{number - 1}.0/24", f"fd00:10:244:{number - 1:x}::/64"
        self.pod_ip, self.pod_ip6 = f"10.244.{number - 1}.5", f"fd00:10:244:{number - 1:x}::5"
        self.ns = lab.stack.enter_context(contextlib.closing(Netns.new()))
        self.pod = lab.stack.enter_context(contextlib.closing(Netns.new()))
        self.rtnl = lab.stack.enter_context(self.ns.rtnl())
        self.subnet_file = f"{lab.folder}/{self.name}.subnet.env"
        self._wire()

    def _wire(self) -> None:
        self.ns.call(_settings)
        self.pod.call(_settings)
        with self.lab.bridge_ns.rtnl() as bridge, self.pod.rtnl() as pod:
            bridge.create_veth(f"port{self.number}", "eth0", self.ns.fd, master=bridge.link("br0").index)
            bridge.set_link(bridge.link(f"port{self.number}").index, up=True)
            self.rtnl.create_veth("veth0", "eth0", self.pod.fd)
            for rtnl, device, addresses in (
                (self.rtnl, "eth0", (f"{self.address}/24", f"{self.address6}/64")),
                (self.rtnl, "veth0", (self.subnet.replace(".0/", ".1/"), self.subnet6.replace("::/", "::1/"))),
                (pod, "eth0", (f"{self.pod_ip}/24", f"{self.pod_ip6}/64")),
            ):
                index = rtnl.link(device).index
                rtnl.set_link(index, up=True)
                for address in addresses:
                    rtnl.add_address(index, address, flags=0x02 if ":" in address else 0)  # IFA_F_NODAD
            index = pod.link("eth0").index
            pod.add_route("0.0.0.0/0", via=self.subnet.replace(".0/24", ".1"), oif=index)
            pod.add_route("::/0", via=self.subnet6.replace("::/64", "::1"), oif=index)

    def agent(self, config: dict[str, object], *arguments: str) -> Agent:
        """A flanneld that starts now; `sync` gives it one pass."""
        options = flags.parse(
            [
                "--kube-subnet-mgr",
                "--iface=eth0",
                "--iptables-forward-rules=false",
                f"--subnet-file={self.subnet_file}",
                *arguments,
            ],
            {},
        )
        parsed = netconf.parse(json.dumps(config))
        return Agent(
            parsed,
            options,
            Annotations.under(PREFIX),
            self.lab.cluster.leases(self.name),
            KernelDoor(self.rtnl),
            Enforcer(parsed, options),
            functools.partial(underlay.look, self.rtnl, options.iface_can_reach),
        )

    def sync(self, agent: Agent) -> bool:
        """One pass of this node's agent, in this node's namespace."""
        return self.ns.call(agent.sync)

    def run(self, command: str) -> str:
        return self.ns.run(*command.split()).stdout

    def subnet_env(self) -> str:
        with open(self.subnet_file) as file:
            return file.read()

    def mac(self, version: int = 4) -> str:
        data = "backend-data" if version == 4 else "backend-v6-data"
        return json.loads(self.lab.cluster.nodes[self.name].annotations[f"{PREFIX}/{data}"])["VtepMAC"]


def _settings() -> None:
    """Forwarding, no reverse path filter, and addresses that can be used at once."""
    for name, value in (
        ("net.ipv4.ip_forward", 1),
        ("net.ipv6.conf.all.forwarding", 1),
        ("net.ipv6.conf.all.accept_dad", 0),
        ("net.ipv6.conf.default.accept_dad", 0),
        ("net.ipv4.conf.all.rp_filter", 0),
        ("net.ipv4.conf.default.rp_filter", 0),
    ):
        sysctl.write(name, value)


class Lab:
    """An underlay bridge in a namespace of its own, and nodes on it."""

    def __init__(self, folder: str, nodes: int, dual: bool = False) -> None:
        self.folder = folder
        self.stack = contextlib.ExitStack()
        self.cluster = Cluster()
        self.bridge_ns = self.stack.enter_context(contextlib.closing(Netns.new()))
        self.bridge_ns.call(_settings)
        with self.bridge_ns.rtnl() as bridge:
            bridge.create_bridge("br0", up=True)
        self.nodes = [LabNode(self, number) for number in range(1, nodes + 1)]
        for node in self.nodes:
            self.cluster.add(node.name, node.subnet, *([node.subnet6] if dual else []))

    def agents(self, config: dict[str, object], *arguments: str) -> list[Agent]:
        """An agent for each node, all brought to rest: every one has seen every other's lease."""
        agents = [node.agent(config, *arguments) for node in self.nodes]
        for _ in range(2):
            for node, agent in zip(self.nodes, agents, strict=True):
                assert node.sync(agent)
        return agents

    def close(self) -> None:
        self.stack.close()


def reaches(source: Netns, address: str) -> bool:
    """Whether an address answers an ICMP echo request from there."""
    return answers(source, address, 1) == 1


def answers(source: Netns, address: str, count: int, pause: float = 0.0) -> int:
    """How many of `count` echo requests are answered, each within two seconds."""
    six = ":" in address
    family, protocol = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if six else (socket.AF_INET, socket.IPPROTO_ICMP)
    kinds = (128, 129) if six else (8, 0)
    ident, answered = os.getpid() & 0xFFFF, 0
    with source.call(lambda: socket.socket(family, socket.SOCK_RAW, protocol)) as sock:
        for number in range(count):
            body = struct.pack("!BBHHH", kinds[0], 0, 0, ident, number)
            sock.sendto(body[:2] + struct.pack("!H", checksum(body)) + body[4:], (address, 0))
            deadline = time.monotonic() + 2
            while (left := deadline - time.monotonic()) > 0 and select.select([sock], [], [], left)[0]:
                data = sock.recv(2048)
                kind, _, _, *which = struct.unpack("!BBHHH", data[0 if six else (data[0] & 15) * 4 :][:8])
                if kind == kinds[1] and which == [ident, number]:
                    answered += 1
                    break
            time.sleep(pause)
    return answered


def checksum(data: bytes) -> int:
    """RFC 1071; for ICMPv6 the kernel writes its own over it."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


class Capture:
    """Everything that passes the underlay while the block runs."""

    def __init__(self, lab: Lab) -> None:
        # ETH_P_ALL on a port of the bridge.
        self._sock = lab.bridge_ns.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
        self._sock.bind(("port1", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def frames(self, seconds: float = 0.3) -> list[bytes]:
        """What came until nothing came for some time."""
        found = []
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and select.select([self._sock], [], [], seconds)[0]:
            found.append(self._sock.recv(65536))
        return found


def mac(raw: bytes) -> str:
    return raw.hex(":")


def ipv4(frame: bytes, offset: int = 14) -> tuple[str, str, int, bytes] | None:
    """Source, destination, protocol and payload of an IPv4 packet in a frame."""
    if frame[offset - 2 : offset] != b"\x08\x00":
        return None
    length = (frame[offset] & 15) * 4
    source, destination = frame[offset + 12 : offset + 16], frame[offset + 16 : offset + 20]
    return socket.inet_ntoa(source), socket.inet_ntoa(destination), frame[offset + 9], frame[offset + length :]


def vxlan(frame: bytes) -> tuple[str, str, int, int, bytes] | None:
    """Outer source, outer destination, UDP destination port, VNI and inner frame (RFC 7348, section 5); else None."""
    outer = ipv4(frame)
    if outer is None or outer[2] != socket.IPPROTO_UDP:
        return None
    _, port, _, _ = struct.unpack("!HHHH", outer[3][:8])
    flags, vni = outer[3][8], int.from_bytes(outer[3][12:15], "big")
    assert flags == 0x08, "the VNI is valid"
    return outer[0], outer[1], port, vni, outer[3][16:]


def listing(path: str) -> list[str]:
    return sorted(os.listdir(path))
