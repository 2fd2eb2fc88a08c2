"""What the packet filter holds, without starting a program: chains and generation of nf_tables, entry counts of x_tables.

iptables-nft-save on a node with 2,000 Services takes seconds; a kernel dump of the chains' names takes milliseconds. And
whether anybody changed anything since we last looked is one number:

* nf_tables counts every committed transaction of a network namespace in its *generation* (NFT_MSG_GETGEN).
* x_tables (the legacy backend) has no such number. getsockopt IPT_SO_GET_INFO tells how many entries and bytes a table has,
  which a flush of any chain changes; for certainty IPT_SO_GET_ENTRIES gives the whole table, to be hashed.

Sources: linux/netfilter/nf_tables.h, linux/netfilter/nfnetlink.h, linux/netfilter_ipv4/ip_tables.h.
"""

from __future__ import annotations

import _socket
import errno
import struct

from podwire.errors import KernelError, NotFound
from podwire.kernel import wire
from podwire.kernel.channel import NETLINK_NETFILTER, Channel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# linux/netfilter/nfnetlink.h, nf_tables.h
NFNL_SUBSYS_NFTABLES = 10
NFT_MSG_GETTABLE = 1
NFT_MSG_GETCHAIN = 4
NFT_MSG_GETGEN = 16
NFTA_TABLE_NAME = 1
NFTA_CHAIN_TABLE = 1
NFTA_CHAIN_NAME = 3
NFTA_CHAIN_USE = 6
NFTA_GEN_ID = 1

NFPROTO = {4: 2, 6: 10}  # IP version to NFPROTO_IPV4, NFPROTO_IPV6

# linux/netfilter_ipv4/ip_tables.h, linux/netfilter_ipv6/ip6_tables.h: the same number, on a raw socket of the family
_GET_INFO = 64
_GET_ENTRIES = 65
# struct ipt_entry, ip6t_entry: the packet's match, nfcache, target_offset, next_offset, comefrom, counters. Where
# next_offset stands, and how long it all is.
_ENTRY = {4: (90, 112), 6: (142, 168)}
_INFO = struct.Struct("=32sI5I5III")

_NFGENMSG = struct.Struct("!BBH")  # family, version, resource id


def nfgenmsg(family: int, resource: int = 0) -> bytes:
    """The header that every nfnetlink message has behind nlmsghdr."""
    return _NFGENMSG.pack(family, 0, resource)


def nft_generation(netns_fd: int | None = None) -> int:
    """How many transactions nf_tables has committed in this network namespace. Raises KernelError."""
    with Channel(NETLINK_NETFILTER, netns_fd) as channel:
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN
        replies = channel.request(kind, nfgenmsg(0), doing="reading the nf_tables generation")
    for reply in replies:
        found = wire.attributes(reply.body, _NFGENMSG.size)
        if NFTA_GEN_ID in found:
            return int.from_bytes(found[NFTA_GEN_ID], "big")
    raise KernelError.of(errno.ENOENT, "reading the nf_tables generation")


def nft_chains(version: int, netns_fd: int | None = None) -> dict[str, dict[str, int]]:
    """The chains of the ip (version 4) or ip6 (6) tables: {table: {chain: uses}}. Raises KernelError.

    `uses` counts the chain's rules and the rules and map elements that lead to it, so a flush shows in it.
    """
    with Channel(NETLINK_NETFILTER, netns_fd) as channel:
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN
        bodies = channel.dump(kind, nfgenmsg(NFPROTO[version]), doing="listing nf_tables chains")
    tables: dict[str, dict[str, int]] = {}
    for body in bodies:
        found = wire.attributes(body, _NFGENMSG.size)
        table = wire.get_string(found, NFTA_CHAIN_TABLE)
        uses = int.from_bytes(found.get(NFTA_CHAIN_USE, b""), "big")
        tables.setdefault(table, {})[wire.get_string(found, NFTA_CHAIN_NAME)] = uses
    return tables


_FAMILIES = {"inet": 1, "ip": 2, "ip6": 10, "bridge": 7}


def nft_has_table(family: str, name: str, netns_fd: int | None = None) -> bool:
    """Whether there is an nftables table of this family (inet, ip, ip6, bridge) and name; False without nf_tables."""
    body = nfgenmsg(_FAMILIES[family]) + wire.string(NFTA_TABLE_NAME, name)
    return _there(NFT_MSG_GETTABLE, body, "table", name, netns_fd)


def nft_has_chain(family: str, table: str, name: str, netns_fd: int | None = None) -> bool:
    """Whether a table (of iptables too, if nf_tables is its backend) has such a chain; False without nf_tables."""
    body = nfgenmsg(_FAMILIES[family]) + wire.string(NFTA_CHAIN_TABLE, table) + wire.string(NFTA_CHAIN_NAME, name)
    return _there(NFT_MSG_GETCHAIN, body, "chain", name, netns_fd)


def iptables_may_have(version: int, table: str, chain: str) -> bool:
    """Whether it is worth starting iptables (version 4) or ip6tables (6) to look for a chain: a program takes 5 ms, this 0.1.

    It is if nf_tables has the chain, or the legacy table is in use at all in this network namespace.
    """
    family = "ip" if version == 4 else "ip6"
    if nft_has_chain(family, table, chain):
        return True
    try:
        with open(f"/proc/thread-self/net/{family}_tables_names", "rb", buffering=0) as file:
            return table.encode() in file.read(4096).split()
    except OSError:
        return False  # the kernel has no legacy tables


def _there(message: int, body: bytes, noun: str, name: str, netns_fd: int | None) -> bool:
    with Channel(NETLINK_NETFILTER, netns_fd) as channel:
        try:
            channel.request(
                NFNL_SUBSYS_NFTABLES << 8 | message, body, doing=f"looking up the nftables {noun}", target=name
            )
        except NotFound:
            return False
        except KernelError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # the kernel has no nf_tables
                return False
            raise
    return True


def legacy_entries(version: int, table: str) -> tuple[int, int] | None:
    """(entries, bytes) of an x_tables table of the current network namespace; None when there is no such table.

    An entry is a rule, or one of the two or three that stand for a chain. Asking makes the kernel create the table if
    its module is there, as iptables-legacy does. Raises KernelError.
    """
    family, level = (_socket.AF_INET, _socket.IPPROTO_IP) if version == 4 else (_socket.AF_INET6, _socket.IPPROTO_IPV6)
    doing = "reading the size of the x_tables table"
    try:
        sock = _socket.socket(family, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _socket.IPPROTO_RAW)
    except OSError as error:
        raise KernelError.of(error.errno or 0, doing, table) from error
    try:
        # The kernel reads the table's name from the buffer that it fills, which Python's getsockopt cannot do.
        return _get_info(sock.fileno(), level, table)
    finally:
        sock.close()


def _get_info(fd: int, level: int, table: str) -> tuple[int, int] | None:
    import ctypes

    buffer = ctypes.create_string_buffer(table.encode(), _INFO.size)
    if not _getsockopt(fd, level, _GET_INFO, ctypes.addressof(buffer), _INFO.size, table):
        return None
    fields = _INFO.unpack(buffer.raw)
    return fields[-2], fields[-1]


def _getsockopt(fd: int, level: int, option: int, address: int, size: int, table: str) -> bool:
    """Have the kernel fill `size` bytes at `address`; False when there is no such table."""
    import ctypes

    length = ctypes.c_uint32(size)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getsockopt(fd, level, option, ctypes.c_void_p(address), ctypes.byref(length)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOENT, errno.ENOPROTOOPT):
        return False
    raise KernelError.of(number, "reading the x_tables table", table)


def legacy_digest(version: int, table: str) -> bytes | None:
    """A hash over everything in an x_tables table but its counters; None when there is no such table.

    It copies the table, some 400 bytes a rule. Raises KernelError, with EAGAIN when somebody changes the table meanwhile.
    """
    import ctypes
    import mmap
    from hashlib import blake2b

    size = legacy_entries(version, table)
    if size is None:
        return None
    family, level = (_socket.AF_INET, _socket.IPPROTO_IP) if version == 4 else (_socket.AF_INET6, _socket.IPPROTO_IPV6)
    name, length = struct.pack("=32sI4x", table.encode(), size[1]), size[1]
    sock = _socket.socket(family, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _socket.IPPROTO_RAW)
    # A mapping goes back to the system as soon as it is closed, whatever else was allocated meanwhile.
    buffer = mmap.mmap(-1, len(name) + length)
    try:
        buffer[: len(name)] = name
        view = ctypes.c_char.from_buffer(buffer)
        try:
            if not _getsockopt(sock.fileno(), level, _GET_ENTRIES, ctypes.addressof(view), len(name) + length, table):
                return None
        finally:
            del view
        digest = blake2b(digest_size=16)
        with memoryview(buffer) as whole, whole[len(name) :] as entries:
            _hash_entries(digest.update, entries, *_ENTRY[version])
        return digest.digest()
    finally:
        buffer.close()
        sock.close()


def _hash_entries(update: Callable[[memoryview], object], entries: memoryview, place: int, header: int) -> None:
    """Feed all entries without their counters, and without comefrom, which is the kernel's own note."""
    next_offset = struct.Struct("=H").unpack_from
    at, end = 0, len(entries)
    while at < end:
        (length,) = next_offset(entries, at + place)
        if length < header:
            raise KernelError.of(errno.EPROTO, "reading the x_tables table")
        update(entries[at : at + place + 2])
        update(entries[at + header : at + length])
        at += length
