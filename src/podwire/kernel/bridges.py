"""Bridges, their ports and VLANs on the wire (rtnetlink(7); linux/if_link.h, linux/if_bridge.h): values ⇄ message bodies.

A port's settings (hairpin, isolation, …) are read from IFLA_LINKINFO's *slave* data of an ordinary link message, and set by
IFLA_PROTINFO of a message of family AF_BRIDGE. Its VLANs are in IFLA_AF_SPEC of such messages, one attribute each.
"""

from __future__ import annotations

import struct

from podwire.kernel.links import (
    AF_BRIDGE,
    IFINFO,
    IFLA_AF_SPEC,
    IFLA_EXT_MASK,
    IFLA_INFO_DATA,
    IFLA_INFO_KIND,
    IFLA_INFO_SLAVE_DATA,
    IFLA_INFO_SLAVE_KIND,
    IFLA_LINKINFO,
    IFLA_PROTINFO,
)
from podwire.kernel.wire import attribute, attribute_list, attributes, get_u32, nested, string, u8, u16, u32, unpack

IFLA_BR_VLAN_FILTERING = 7
IFLA_BR_VLAN_DEFAULT_PVID = 39

IFLA_BRPORT_STATE = 1
IFLA_BRPORT_MODE = 4  # hairpin
IFLA_BRPORT_LEARNING = 8
IFLA_BRPORT_UNICAST_FLOOD = 9
IFLA_BRPORT_ISOLATED = 33

IFLA_BRIDGE_FLAGS = 0  # inside IFLA_AF_SPEC of AF_BRIDGE messages
IFLA_BRIDGE_VLAN_INFO = 2
BRIDGE_FLAGS_MASTER = 1
BRIDGE_VLAN_INFO_PVID = 0x02
BRIDGE_VLAN_INFO_UNTAGGED = 0x04
RTEXT_FILTER_BRVLAN = 2


class Port:
    """How a device behaves as a port of a bridge."""

    __slots__ = ("flood", "hairpin", "isolated", "learning", "state")

    def __init__(self, hairpin: bool, learning: bool, isolated: bool, flood: bool, state: int) -> None:
        self.hairpin = hairpin
        self.learning = learning
        self.isolated = isolated
        self.flood = flood
        self.state = state  # BR_STATE_*: 0 disabled, 3 forwarding

    def __repr__(self) -> str:
        return f"Port(hairpin={self.hairpin}, learning={self.learning}, isolated={self.isolated}, state={self.state})"


def decode_port(raw: bytes) -> Port:
    """Read IFLA_INFO_SLAVE_DATA of a bridge port."""
    data = attributes(raw)
    return Port(
        hairpin=get_u32(data, IFLA_BRPORT_MODE) != 0,
        learning=get_u32(data, IFLA_BRPORT_LEARNING) != 0,
        isolated=get_u32(data, IFLA_BRPORT_ISOLATED) != 0,
        flood=get_u32(data, IFLA_BRPORT_UNICAST_FLOOD) != 0,
        state=get_u32(data, IFLA_BRPORT_STATE),
    )


def filters_vlans(data: dict[int, bytes]) -> bool:
    """Whether a bridge's IFLA_INFO_DATA says so."""
    return get_u32(data, IFLA_BR_VLAN_FILTERING) != 0


def bridge_data(*, vlan_filtering: bool) -> bytes:
    """IFLA_INFO_DATA of a bridge."""
    return u8(IFLA_BR_VLAN_FILTERING, int(vlan_filtering))


def bridge_change(index: int, *, vlan_filtering: bool) -> bytes:
    """RTM_NEWLINK with a bridge's own settings."""
    data = nested(IFLA_INFO_DATA, bridge_data(vlan_filtering=vlan_filtering))
    return IFINFO.pack(0, 0, index, 0, 0) + nested(IFLA_LINKINFO, string(IFLA_INFO_KIND, "bridge"), data)


def port_change(
    index: int,
    *,
    hairpin: bool | None = None,
    learning: bool | None = None,
    isolated: bool | None = None,
    flood: bool | None = None,
) -> bytes:
    """RTM_SETLINK of a bridge port."""
    choices = (
        (IFLA_BRPORT_MODE, hairpin),
        (IFLA_BRPORT_LEARNING, learning),
        (IFLA_BRPORT_ISOLATED, isolated),
        (IFLA_BRPORT_UNICAST_FLOOD, flood),
    )
    chosen = [u8(kind, int(value)) for kind, value in choices if value is not None]
    return IFINFO.pack(AF_BRIDGE, 0, index, 0, 0) + nested(IFLA_PROTINFO, *chosen)


def port_settings(*, hairpin: bool, isolated: bool) -> bytes:
    """The same as an attribute of an ordinary RTM_NEWLINK, beside the device's other settings."""
    data = u8(IFLA_BRPORT_MODE, int(hairpin)) + (u8(IFLA_BRPORT_ISOLATED, 1) if isolated else b"")
    return nested(IFLA_LINKINFO, string(IFLA_INFO_SLAVE_KIND, "bridge"), nested(IFLA_INFO_SLAVE_DATA, data))


def vlan_change(index: int, vid: int, *, pvid: bool = False, untagged: bool = False) -> bytes:
    """RTM_SETLINK (add) and RTM_DELLINK (delete) of a VLAN on a bridge port; `pvid`: untagged frames that come in are its."""
    flags = (BRIDGE_VLAN_INFO_PVID if pvid else 0) | (BRIDGE_VLAN_INFO_UNTAGGED if untagged else 0)
    info = attribute(IFLA_BRIDGE_VLAN_INFO, struct.pack("=HH", flags, vid))
    spec = nested(IFLA_AF_SPEC, u16(IFLA_BRIDGE_FLAGS, BRIDGE_FLAGS_MASTER), info)
    return IFINFO.pack(AF_BRIDGE, 0, index, 0, 0) + spec


def vlan_dump() -> bytes:
    """RTM_GETLINK for the VLANs of all bridge ports."""
    return IFINFO.pack(AF_BRIDGE, 0, 0, 0, 0) + u32(IFLA_EXT_MASK, RTEXT_FILTER_BRVLAN)


def decode_vlans(body: bytes) -> tuple[int, list[int]]:
    """Index and VLAN IDs of a port, of an answer to `vlan_dump`."""
    _, _, index, _, _ = unpack(IFINFO, body)
    spec = attributes(body, IFINFO.size).get(IFLA_AF_SPEC, b"")
    infos = [payload for kind, payload in attribute_list(spec) if kind == IFLA_BRIDGE_VLAN_INFO and len(payload) == 4]
    return index, [struct.unpack("=HH", payload)[1] for payload in infos]
