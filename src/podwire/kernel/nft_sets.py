"""Named sets of nftables as the kernel holds them, without starting a program: which there are, and what is in one.

A dump of a set of 10,000 elements takes milliseconds. Elements come as the bytes of their keys and the time they have left.

Source: linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

from podwire.kernel import wire
from podwire.kernel.channel import NETLINK_NETFILTER, Channel
from podwire.kernel.netfilter import NFNL_SUBSYS_NFTABLES, NFPROTO, nfgenmsg

NFT_MSG_GETSET = 10
NFT_MSG_GETSETELEM = 13
NFTA_SET_TABLE = 1
NFTA_SET_NAME = 2
NFTA_SET_ELEM_LIST_TABLE = 1
NFTA_SET_ELEM_LIST_SET = 2
NFTA_SET_ELEM_LIST_ELEMENTS = 3
NFTA_SET_ELEM_KEY = 1
NFTA_SET_ELEM_EXPIRATION = 5  # milliseconds
NFTA_DATA_VALUE = 1

_HEADER = 4  # nfgenmsg


def nft_sets(version: int, table: str) -> list[str]:
    """The names of the sets and maps of a table of IP version 4 or 6; none without the table. Raises KernelError."""
    with Channel(NETLINK_NETFILTER) as channel:
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSET
        bodies = channel.dump(kind, nfgenmsg(NFPROTO[version]), doing="listing nf_tables sets")
    found = [wire.attributes(body, _HEADER) for body in bodies]
    return [wire.get_string(one, NFTA_SET_NAME) for one in found if wire.get_string(one, NFTA_SET_TABLE) == table]


def nft_elements(version: int, table: str, name: str) -> list[tuple[bytes, int]]:
    """The elements of a set as (key, milliseconds left; 0: no end). Raises NotFound without the set, KernelError."""
    body = nfgenmsg(NFPROTO[version])
    body += wire.string(NFTA_SET_ELEM_LIST_TABLE, table) + wire.string(NFTA_SET_ELEM_LIST_SET, name)
    with Channel(NETLINK_NETFILTER) as channel:
        kind = NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETSETELEM
        bodies = channel.dump(kind, body, doing=f"listing the nf_tables set {table} {name}")
    found = []
    for answer in bodies:
        listed = wire.attributes(answer, _HEADER).get(NFTA_SET_ELEM_LIST_ELEMENTS, b"")
        for _, element in wire.attribute_list(listed):
            fields = wire.attributes(element)
            key = wire.attributes(fields.get(NFTA_SET_ELEM_KEY, b"")).get(NFTA_DATA_VALUE, b"")
            found.append((key, int.from_bytes(fields.get(NFTA_SET_ELEM_EXPIRATION, b""), "big")))
    return found
