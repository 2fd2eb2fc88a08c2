"""A node in a namespace, and what becomes of packets that are sent to, through and from it.

eth0 leads to a namespace that stands for everything outside, cni0 to one that stands for the node's pods. Nobody lives there:
no device asks for neighbours (arp off), so packets to any address leave. Each packet has a number of its own that
no rule changes (IPv4's identification, IPv6's flow label), by which it is found again:

* packet sockets at the far ends of eth0 and cni0 see what the node sent out, with the addresses it had then,
* raw sockets on the node see what was delivered to the node itself, behind its input hook,
* a packet socket on the node sees ICMP "port unreachable".

So the outcome of a packet is what arrived (forwarded or delivered, with its addresses), a reject, or nothing at all.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import defaultdict
from dataclasses import dataclass

from podwire.kernel import sysctl
from podwire.testing.netns import Netns

_ETHERTYPE = {4: 0x0800, 6: 0x86DD}
_PROTOCOLS = (socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_SCTP)
_IPV6_FLOWINFO = 11  # linux/in6.h


@dataclass(frozen=True)
class Arrival:
    """Where a packet ended: the addresses it had there, and whether its source had been rewritten."""

    to: str
    masqueraded: bool


REJECTED = "rejected"
DROPPED = "dropped"


def host(ip):
    return f"[{ip}]" if ":" in ip else ip


class Probe:
    """Use as a context manager; `node` is the Netns to load rules into."""

    def __init__(self, interfaces, routes, *, localnet):
        with contextlib.ExitStack() as stack:
            self.node, self.outside, self.pods = (_netns(stack) for _ in range(3))
            self._macs = {}
            self._wires = {}
            for name, peer in (("eth0", self.outside), ("cni0", self.pods)):
                self.node.run("ip", "link", "add", name, "type", "veth", "peer", "name", "far0", "netns", peer.path)
                self.node.run("ip", "link", "set", name, "arp", "off")
                peer.call(lambda: sysctl.write("net.ipv6.conf.far0.disable_ipv6", 1))
                peer.run("ip", "link", "set", "far0", "arp", "off", "up")
            self.node.call(lambda: _sysctls(localnet=localnet))
            for name, addresses in interfaces.items():
                for address in addresses if name != "lo" else ():
                    self.node.run("ip", "addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
            for name in ("eth0", "cni0"):
                self.node.run("ip", "link", "set", name, "up")
                with self.node.rtnl() as rtnl:
                    self._macs[name] = bytes.fromhex(rtnl.link(name).mac.replace(":", ""))
            for prefix, device in routes.items():
                for family in ("-4", "-6") if prefix == "default" else ("-6" if ":" in prefix else "-4",):
                    self.node.run("ip", family, "route", "replace", prefix, "dev", device)
            self._wires["eth0"] = stack.enter_context(self.outside.call(lambda: _packet_socket("far0")))
            self._wires["cni0"] = stack.enter_context(self.pods.call(lambda: _packet_socket("far0")))
            self._sniffer = stack.enter_context(self.node.call(lambda: _packet_socket(None)))
            self._local = {
                4: stack.enter_context(self.node.call(lambda: _raw(socket.AF_INET))),
                6: stack.enter_context(self.node.call(lambda: _raw(socket.AF_INET6))),
            }
            self._delivered = {
                version: [
                    stack.enter_context(self.node.call(lambda p=p, v=version: _listening(v, p))) for p in _PROTOCOLS
                ]
                for version in (4, 6)
            }
            self._next_port = 20000
            self._rejected = set()
            self._arrived = {}
            self._close = stack.pop_all().close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._close()

    def send(self, packet):
        """Send one packet as packets.json describes it; the source port it was given."""
        self._next_port += 1
        assert self._next_port < 65000
        data, version = build(packet, self._next_port)
        if packet["via"] == "local":
            with contextlib.suppress(PermissionError):  # what the output hook drops or rejects
                self._local[version].sendto(data, (packet["dst"], 0))
        else:
            frame = self._macs[packet["via"]] + b"\2\0\0\0\0\1" + struct.pack("!H", _ETHERTYPE[version]) + data
            self._wires[packet["via"]].send(frame)
        if self._next_port % 200 == 0:
            self._sniff()
        return self._next_port

    def outcomes(self, sent):
        """What became of the packets: {source port: Arrival, REJECTED or DROPPED}; `sent` is {source port: packet}."""
        time.sleep(0.1)
        self._sniff()
        found = {
            # The node's own packets keep their address when they are masqueraded, but not their port (--random-fully).
            number: Arrival(f"{host(to)}:{to_port}", (source, port) != (sent[number]["src"], number))
            for number, (source, port, to, to_port) in self._arrived.items()
            if number in sent
        }
        return {port: found.get(port) or (REJECTED if port in self._rejected else DROPPED) for port in sent}

    def _sniff(self):
        for frame in _waiting(self._sniffer):
            self._rejected |= unreachable_port(frame)
        for wire in self._wires.values():
            for frame in _waiting(wire):
                self._arrived.update(identified(frame))
        for sock in self._delivered[4]:
            for data in _waiting(sock):
                self._arrived.update(identified(bytes(12) + struct.pack("!H", _ETHERTYPE[4]) + data))
        for sock in self._delivered[6]:
            self._arrived.update(delivered6(sock))


def _waiting(sock):
    with contextlib.suppress(BlockingIOError):
        while True:
            yield sock.recv(2048)


def _netns(stack):
    made = Netns.new()
    stack.callback(made.close)
    return made


def _sysctls(*, localnet):
    for name in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
        sysctl.write(name, 1)
    for device in ("all", "default", "eth0", "cni0"):
        sysctl.write(f"net.ipv4.conf.{device}.rp_filter", 0)
        sysctl.write(f"net.ipv6.conf.{device}.accept_dad", 0)
    sysctl.write("net.ipv4.icmp_ratemask", 0)
    sysctl.write("net.ipv6.icmp.ratelimit", 0)
    sysctl.write("net.ipv4.conf.all.route_localnet", int(localnet))


def _packet_socket(device):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
    if device:
        sock.bind((device, 0x0003))
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE: every packet is seen twice
    sock.setblocking(False)
    return sock


def _raw(family):
    return socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW)


def _listening(version, protocol):
    sock = socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_RAW, protocol)
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 22)
    sock.setblocking(False)
    if version == 6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FLOWINFO, 1)
    return sock


def delivered6(sock):
    """As `identified`, for the packets waiting in a raw IPv6 socket, which gives addresses only beside the data."""
    found = {}
    with contextlib.suppress(BlockingIOError):
        while True:
            data, extra, _, peer = sock.recvmsg(2048, 256)
            beside = {kind: value for _, kind, value in extra}
            number = struct.unpack_from("!I", beside.get(_IPV6_FLOWINFO, bytes(4)))[0] & 0xFFFFF
            destination = socket.inet_ntop(socket.AF_INET6, beside[socket.IPV6_PKTINFO][:16])
            port, to_port = struct.unpack_from("!HH", data)
            found[number] = (peer[0], port, destination, to_port)
    return found


def build(packet, source_port):
    """The bytes of a packet's IP layer and up, and its IP version."""
    from scapy.layers.inet import IP, TCP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.layers.sctp import SCTP, SCTPChunkInit

    version = 6 if ":" in packet["dst"] else 4
    if version == 6:
        head = IPv6(src=packet["src"], dst=packet["dst"], fl=source_port)
    else:
        head = IP(src=packet["src"], dst=packet["dst"], id=source_port)
    ports = {"sport": source_port, "dport": packet["port"]}
    if packet["protocol"] == "tcp":
        flags = "".join(flag[0] for flag in packet.get("tcp_flags", ("SYN",)))
        body = TCP(**ports, flags=flags)
    elif packet["protocol"] == "udp":
        body = UDP(**ports) / b"probe"
    else:
        body = SCTP(**ports, tag=0) / SCTPChunkInit(init_tag=1, a_rwnd=65535, n_out_streams=1, n_in_streams=1)
    return bytes(head / body), version


def identified(frame):
    """{number: (source, port, destination, port)} of a TCP, UDP or SCTP packet, else nothing."""
    kind, data = struct.unpack_from("!H", frame, 12)[0], frame[14:]
    if kind == _ETHERTYPE[4] and data[9] in (6, 17, 132):
        number, version, at = struct.unpack_from("!H", data, 4)[0], socket.AF_INET, 12
    elif kind == _ETHERTYPE[6] and data[6] in (6, 17, 132):
        number, version, at = struct.unpack_from("!I", data)[0] & 0xFFFFF, socket.AF_INET6, 8
    else:
        return {}
    size = 4 if version == socket.AF_INET else 16
    source, destination = (socket.inet_ntop(version, data[here : here + size]) for here in (at, at + size))
    port, to_port = struct.unpack_from("!HH", data, at + 2 * size)
    return {number: (source, port, destination, to_port)}


def unreachable_port(frame):
    """The source port inside an ICMP port unreachable, as a set of none or one."""
    kind, data = struct.unpack_from("!H", frame, 12)[0], frame[14:]
    if kind == _ETHERTYPE[4] and len(data) > 56 and data[9] == 1:
        start = (data[0] & 15) * 4
        if data[start : start + 2] == b"\3\3":
            inner = data[start + 8 :]
            return {struct.unpack_from("!H", inner, (inner[0] & 15) * 4)[0]}
    if kind == _ETHERTYPE[6] and len(data) > 96 and data[6] == 58 and data[40:42] == b"\1\4":
        return {struct.unpack_from("!H", data, 88)[0]}
    return set()


def tries(expect):
    """How often to send, so that each of a few equally likely ends is seen for certain enough."""
    backends = len(expect.get("to", ()))
    return 1 if backends <= 1 else min(100, 16 * backends)


def check(probe, packets):
    """Send all packets and compare what became of them with what they expect; what is wrong, as lines."""
    sent, rows = {}, defaultdict(list)
    for number, packet in enumerate(packets):
        for _ in range(tries(packet["expect"])):
            port = probe.send(packet)
            sent[port] = packet
            rows[number].append(port)
    outcomes = probe.outcomes(sent)
    wrong = []
    for number, packet in enumerate(packets):
        seen = [outcomes[port] for port in rows[number]]
        why = disagreement(packet, seen)
        if why:
            short = {key: packet[key] for key in ("id", "src", "via", "dst", "port", "protocol", "note")}
            wrong.append(f"{short}: {why}")
    return wrong


def disagreement(packet, seen):
    """How the outcomes of a packet differ from what it expects; empty if they do not."""
    expect = packet["expect"]
    verdict = expect["verdict"]
    if verdict in ("drop", "reject"):
        wanted = DROPPED if verdict == "drop" else REJECTED
        return "" if set(seen) == {wanted} else f"expected {wanted}, saw {set(seen)}"
    if not all(isinstance(outcome, Arrival) for outcome in seen):
        return f"expected {verdict}, saw {set(seen)}"
    reached = {outcome.to for outcome in seen}
    wanted = set(expect["to"]) if verdict == "dnat" else {f"{host(packet['dst'])}:{packet['port']}"}
    if not reached <= wanted:
        return f"expected {wanted}, reached {reached - wanted}"
    if packet.get("sticky") and len(reached) > 1:
        return f"expected one backend, reached {reached}"
    if not packet.get("sticky") and len(wanted) <= 5 and reached != wanted:
        return f"never reached {wanted - reached}"
    for outcome in seen:
        masqueraded = expect["masquerade"]
        if masqueraded == "per-backend":
            masqueraded = outcome.to in expect["masquerade_to"]
        if outcome.masqueraded != masqueraded:
            return f"to {outcome.to}: masqueraded {outcome.masqueraded}, expected {masqueraded}"
    return ""
