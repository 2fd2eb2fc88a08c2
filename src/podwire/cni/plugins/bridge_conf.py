"""The configuration of the plugin bridge: every option of the reference plugin, read and checked.

A MAC address may come from three places; the nearest to the runtime wins: runtimeConfig, then args.cni, then CNI_ARGS. Without an
`ipam.type` the attachment is layer 2 only.
"""

from __future__ import annotations

from podwire.cni.skel import parse_args
from podwire.cni.spec.result import parse_dns
from podwire.cni.spec.text import Fields, TextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_BRIDGE = "cni0"


class Conf:
    """A configuration, checked as far as the reference plugin checks it for every command. Raises ValueError."""

    __slots__ = (
        "bridge",
        "disable_container_interface",
        "dns",
        "enable_dad",
        "force_address",
        "hairpin",
        "ip_masq",
        "ip_masq_backend",
        "ipam_type",
        "is_default_gateway",
        "is_gateway",
        "mac",
        "mac_spoof_check",
        "mtu",
        "name",
        "port_isolation",
        "preserve_default_vlan",
        "promisc",
        "vlan",
        "vlan_trunk",
    )

    def __init__(self, raw: dict[str, Any], args: str) -> None:
        try:
            self._read(Fields(raw, "NetConf"))
        except TextError as error:
            raise ValueError(f"failed to load netconf: {error}") from None
        if not 0 <= self.vlan <= 4094:
            raise ValueError(f"invalid VLAN ID {self.vlan} (must be between 0 and 4094)")
        fields = Fields(raw, "NetConf")
        self.vlan_trunk = vlan_trunk(fields.array("vlanTrunk", "[]*main.VlanTrunk"))
        environment = parse_args(args, ("MAC",)).get("MAC", "")
        named = fields.inner("args").inner("cni").text("mac")
        self.mac = fields.inner("runtimeConfig").text("mac") or named or environment

    def _read(self, fields: Fields) -> None:
        self.name = fields.text("name")
        self.bridge = fields.text("bridge", DEFAULT_BRIDGE)
        self.is_default_gateway = fields.flag("isDefaultGateway")
        self.is_gateway = fields.flag("isGateway") or self.is_default_gateway
        self.force_address = fields.flag("forceAddress")
        self.ip_masq = fields.flag("ipMasq")
        self.ip_masq_backend = fields.text("ipMasqBackend")
        self.mtu = fields.integer("mtu")
        self.hairpin = fields.flag("hairpinMode")
        self.promisc = fields.flag("promiscMode")
        self.vlan = fields.integer("vlan")
        self.preserve_default_vlan = fields.flag("preserveDefaultVlan")
        self.mac_spoof_check = fields.flag("macspoofchk")
        self.enable_dad = fields.flag("enabledad")
        self.disable_container_interface = fields.flag("disableContainerInterface")
        self.port_isolation = fields.flag("portIsolation")
        self.ipam_type = fields.inner("ipam").text("type")
        self.dns = parse_dns(fields.inner("dns"))

    def check_add(self) -> None:
        """What only ADD refuses. Raises ValueError."""
        if self.ipam_type and self.disable_container_interface:
            raise ValueError("cannot use IPAM when DisableContainerInterface flag is set")
        if self.hairpin and self.promisc:
            raise ValueError("cannot set hairpin mode and promiscuous mode at the same time")


def vlan_trunk(items: list[Any]) -> list[int]:
    """The VLAN IDs that a port carries tagged, sorted. Raises ValueError."""
    found: set[int] = set()
    for item in items:
        fields = Fields(item, "VlanTrunk")
        low, high, single = (fields.maybe_integer(name) for name in ("minID", "maxID", "id"))
        if low is not None and high is not None:
            for name, value in (("minID", low), ("maxID", high)):
                if not 0 < value <= 4094:
                    raise ValueError(f"incorrect trunk {name} parameter")
            if high < low:
                raise ValueError("minID is greater than maxID in trunk parameter")
            found.update(range(low, high + 1))
        elif low is not None or high is not None:
            missing = "minID" if low is None else "maxID"
            raise ValueError(f"minID and maxID should be configured simultaneously, {missing} is missing")
        if single is not None:
            if not 0 < single <= 4094:
                raise ValueError("incorrect trunk id parameter")
            found.add(single)
    return sorted(found)
