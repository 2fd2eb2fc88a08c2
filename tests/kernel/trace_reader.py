"""The kernel's own account of which rules a packet met, by the packet's IPv4 identification.

nf_tables (and iptables-nft's TRACE) tells it by netlink messages of the group NFTRACE (what `nft monitor trace` and xtables-monitor
print); legacy's TRACE logs it, and with nfnetlink_log set as the namespace's logger for IPv4 the lines come over NFLOG group 0.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct

_NETFILTER = 12  # NETLINK_NETFILTER
_NFTRACE = 9  # NFNLGRP_NFTRACE
_MSG_TRACE = 10 << 8 | 17  # NFNL_SUBSYS_NFTABLES, NFT_MSG_TRACE
_MSG_CONFIG = 4 << 8 | 1  # NFNL_SUBSYS_ULOG, NFULNL_MSG_CONFIG
_MSG_PACKET = 4 << 8 | 0
_PREFIX = re.compile(rb"TRACE: (\w+):([^:]+):(rule|return|policy):(\d+)")


def _attributes(data):
    at, found = 0, {}
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return found


def _attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _messages(sock):
    with contextlib.suppress(BlockingIOError):
        while True:
            data = sock.recv(1 << 17)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                yield kind, data[at + 20 : at + length]
                at += (length + 3) & ~3


def _socket():
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
    sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
    sock.bind((0, 0))
    sock.setblocking(False)
    return sock


class NftTrace:
    """Of nf_tables. Make it inside the namespace."""

    def __init__(self):
        self._sock = _socket()
        self._sock.setsockopt(270, 1, _NFTRACE)  # SOL_NETLINK, NETLINK_ADD_MEMBERSHIP
        self._rows = []

    def close(self):
        self._sock.close()

    def rules(self, listing):
        """{identification: [(table, chain, position), …]} of what was traced since; `listing` is `nft -j -a list ruleset`."""
        places, counts = {}, {}
        for row in json.loads(listing)["nftables"]:
            if "rule" in row:
                rule = row["rule"]
                key = rule["table"], rule["chain"]
                counts[key] = counts.get(key, 0) + 1
                places[rule["table"], rule["handle"]] = counts[key]
        numbers, found = {}, {}
        for kind, body in _messages(self._sock):
            if kind != _MSG_TRACE:
                continue
            about = _attributes(body)
            trace = about[6]  # NFTA_TRACE_ID
            header = about.get(8)  # NFTA_TRACE_NETWORK_HEADER
            if header and len(header) >= 6 and trace not in numbers:
                numbers[trace] = struct.unpack_from("!H", header, 4)[0]
            if struct.unpack("!I", about[4])[0] != 3 or trace not in numbers:  # NFTA_TRACE_TYPE, NFT_TRACETYPE_RULE
                continue
            if 3 not in about:  # the end of the chain in which tracing began
                continue
            table, chain = (about[one].rstrip(b"\0").decode() for one in (1, 2))
            handle = struct.unpack("!Q", about[3])[0]  # NFTA_TRACE_RULE_HANDLE
            found.setdefault(numbers[trace], []).append((table, chain, places.get((table, handle), 0)))
        return found


class LegacyTrace:
    """Of x_tables. Make it inside the namespace, with nfnetlink_log as its logger.

    x_tables calls every rule that has no match and a standard target "return" or "policy" (get_chainname_rulenum), so that what
    really is a chain's end can only be told by its number.
    """

    def __init__(self):
        self._sock = _socket()
        for family, group, attribute in (
            (socket.AF_INET, 0, _attribute(1, b"\4")),  # NFULA_CFG_CMD, PF_UNBIND
            (socket.AF_INET, 0, _attribute(1, b"\3")),  # PF_BIND
            (socket.AF_UNSPEC, 0, _attribute(1, b"\1")),  # BIND to group 0
            (socket.AF_UNSPEC, 0, _attribute(2, struct.pack("!IBx", 128, 2))),  # NFULA_CFG_MODE: COPY_PACKET, 128 bytes
            (socket.AF_UNSPEC, 0, _attribute(5, struct.pack("!I", 1))),  # NFULA_CFG_QTHRESH: at once
        ):
            body = struct.pack("!BBH", family, 0, group) + attribute
            self._sock.send(struct.pack("=IHHII", 16 + len(body), _MSG_CONFIG, 1, 0, 0) + body)

    def close(self):
        self._sock.close()

    def rules(self, _):
        """As NftTrace's."""
        found = {}
        for kind, body in _messages(self._sock):
            if kind != _MSG_PACKET:
                continue
            about = _attributes(body)
            line, payload = _PREFIX.match(about.get(10, b"")), about.get(9, b"")  # NFULA_PREFIX, NFULA_PAYLOAD
            if line is None or len(payload) < 20:
                continue
            number = struct.unpack_from("!H", payload, 4)[0]
            found.setdefault(number, []).append((line[1].decode(), line[2].decode(), int(line[4])))
        return found
