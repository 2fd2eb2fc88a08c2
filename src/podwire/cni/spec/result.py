"""The result of an ADD (spec, section "Success") in every version, read and written.

One `Result` holds what the newest version can say; older ones are spellings of it:

    0.1.0, 0.2.0   ip4 and ip6, one address each, routes inside; no interfaces
    0.3.0 – 0.4.0  interfaces, ips (each with "version": "4" or "6"), routes, dns
    1.0.0, 1.1.0   the same without "version"; interfaces may have mtu, socketPath, pciID; keys in alphabetical order

Going down loses what the older version cannot say (all but the first address of a family); a result without any address
has no 0.1.0 or 0.2.0 spelling: that conversion is an error. Addresses are written as the kernel spells them, whatever their
spelling was when read.
"""

from __future__ import annotations

from podwire.addresses import Ip, Prefix
from podwire.cni.spec.text import Fields, TextError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_02X = ("0.1.0", "0.2.0")
_04X = ("0.3.0", "0.3.1", "0.4.0")
_1XX = ("1.0.0", "1.1.0")
_ROUTE_NUMBERS = ("mtu", "advmss", "priority", "table", "scope")
_DNS_LISTS = ("nameservers", "search", "options")


class Interface:
    """A device that the attachment made; `sandbox` is the namespace's path for those inside the container."""

    __slots__ = ("mac", "mtu", "name", "pci_id", "sandbox", "socket_path")

    def __init__(
        self, name: str, mac: str = "", sandbox: str = "", mtu: int = 0, socket_path: str = "", pci_id: str = ""
    ) -> None:
        self.name = name
        self.mac = mac
        self.sandbox = sandbox
        self.mtu = mtu
        self.socket_path = socket_path
        self.pci_id = pci_id


class Address:
    """An address given to the attachment: on which interface (index into the list), and by which gateway it leaves."""

    __slots__ = ("address", "gateway", "interface")

    def __init__(self, address: Prefix, gateway: Ip | None = None, interface: int | None = None) -> None:
        self.address = address
        self.gateway = gateway
        self.interface = interface

    def __str__(self) -> str:
        # As the reference plugins print it in their messages: Go's %v of the IPConfig.
        where = "<nil>" if self.interface is None else str(self.interface)
        mask = ((1 << self.address.ip.bits) - 1) ^ self.address.host_mask
        network = f"{self.address.ip} Mask:{mask:0{self.address.ip.bits // 4}x}"
        return f"{{Interface:{where} Address:{{IP:{network}}} Gateway:{self.gateway or '<nil>'}}}"


class Route:
    """A route for the container; `table` and `scope` are None where the kernel's default is meant."""

    __slots__ = ("advmss", "dst", "gw", "mtu", "priority", "scope", "table")

    def __init__(
        self,
        dst: Prefix,
        gw: Ip | None = None,
        mtu: int = 0,
        advmss: int = 0,
        priority: int = 0,
        table: int | None = None,
        scope: int | None = None,
    ) -> None:
        self.dst = dst
        self.gw = gw
        self.mtu = mtu
        self.advmss = advmss
        self.priority = priority
        self.table = table
        self.scope = scope

    @classmethod
    def parse(cls, value: object) -> Route:
        """Read one. Raises TextError."""
        fields = Fields(value, "route")
        return cls(
            _prefix(fields.text("dst")),
            _ip(fields.text("gw")),
            fields.integer("mtu"),
            fields.integer("advmss"),
            fields.integer("priority"),
            fields.maybe_integer("table"),
            fields.maybe_integer("scope"),
        )

    def json(self) -> dict[str, Any]:
        """As it is written."""
        written: dict[str, Any] = {"dst": str(self.dst)}
        if self.gw is not None:
            written["gw"] = str(self.gw)
        for name in ("mtu", "advmss", "priority"):
            if getattr(self, name):
                written[name] = getattr(self, name)
        for name in ("table", "scope"):
            if getattr(self, name) is not None:
                written[name] = getattr(self, name)
        return written


class Result:
    """What an ADD brought about."""

    __slots__ = ("dns", "interfaces", "ips", "routes", "version")

    def __init__(self, version: str = "1.1.0") -> None:
        self.version = version  # in which it was read: it is written so unless another is asked for
        self.interfaces: list[Interface] = []
        self.ips: list[Address] = []
        self.routes: list[Route] = []
        self.dns: dict[str, Any] = {}

    def json(self, version: str = "") -> dict[str, Any]:
        """As it is written in a version ('': its own). Raises ValueError where that version cannot say it."""
        version = version or self.version or "0.1.0"
        if version in _02X:
            return self._json_02x(version)
        if version in _04X:
            return self._json_04x(version)
        if version in _1XX:
            return self._json_1xx(version)
        raise ValueError(f"no converter for CNI result version {self.version} to {version}")

    def _json_02x(self, version: str) -> dict[str, Any]:
        written: dict[str, Any] = {"cniVersion": version}
        for key, bits in (("ip4", 32), ("ip6", 128)):
            first = next((ip for ip in self.ips if ip.address.ip.bits == bits), None)
            if first is None:
                continue
            block: dict[str, Any] = {"ip": str(first.address)}
            if first.gateway is not None:
                block["gateway"] = str(first.gateway)
            routes = [Route(r.dst, r.gw).json() for r in self.routes if r.dst.ip.bits == bits]
            if routes:
                block["routes"] = routes
            written[key] = block
        if len(written) == 1 and self.version not in _02X:
            raise ValueError("cannot convert: no valid IP addresses")
        written["dns"] = self.dns
        return written

    def _json_04x(self, version: str) -> dict[str, Any]:
        written: dict[str, Any] = {"cniVersion": version}
        if self.interfaces:
            written["interfaces"] = [
                _only({"name": i.name, "mac": i.mac, "sandbox": i.sandbox}) for i in self.interfaces
            ]
        if self.ips:
            written["ips"] = [{"version": "4" if ip.address.ip.bits == 32 else "6", **_address(ip)} for ip in self.ips]
        if self.routes:
            written["routes"] = [route.json() for route in self.routes]
        written["dns"] = self.dns
        return written

    def _json_1xx(self, version: str) -> dict[str, Any]:
        written: dict[str, Any] = {"cniVersion": version}
        if self.dns:
            written["dns"] = _sorted(self.dns)
        if self.interfaces:
            written["interfaces"] = [
                _only(
                    {
                        "mac": i.mac,
                        "mtu": i.mtu,
                        "name": i.name,
                        "pciID": i.pci_id,
                        "sandbox": i.sandbox,
                        "socketPath": i.socket_path,
                    }
                )
                for i in self.interfaces
            ]
        if self.ips:
            written["ips"] = [_sorted(_address(ip)) for ip in self.ips]
        if self.routes:
            written["routes"] = [_sorted(route.json()) for route in self.routes]
        return written


def parse(value: object, version: str) -> Result:
    """Read a result that a plugin of configuration version `version` printed. Raises TextError.

    A result that names no version has that of its configuration; one that names a version of another shape is an error.
    """
    if version and version not in _02X + _04X + _1XX:
        raise TextError(f'unsupported CNI result version "{version}"')
    fields = Fields(value, "Result")
    own = fields.text("cniVersion") or version or "0.1.0"
    shape = next(shape for shape in (_02X, _04X, _1XX) if (version or "0.1.0") in shape)
    if own not in shape:
        names = " ".join(shape)
        raise TextError(f'result type supports [{names}] but unmarshalled CNIVersion is "{own}"')
    result = Result(own)
    if own in _02X:
        _parse_02x(result, fields)
    else:
        _parse_lists(result, fields)
    result.dns = parse_dns(fields.inner("dns"))
    return result


def parse_own(value: object) -> Result:
    """Read a result of whatever version it says it is (none: 0.1.0). Raises TextError."""
    return parse(value, Fields(value, "Result").text("cniVersion"))


def previous(conf: object, version: str) -> Result | None:
    """The result of the chain so far, in a configuration of this version; None if there is none. Raises TextError."""
    raw = Fields(conf, "NetConf").mapping("prevResult")
    if raw is None:
        return None
    try:
        return parse(raw, version)
    except TextError as error:
        raise TextError(f"could not parse prevResult: {error}") from None


def parse_dns(fields: Fields) -> dict[str, Any]:
    """The dns object: only what is set, in the order it is written."""
    found: dict[str, Any] = {}
    for name in ("nameservers", "domain", "search", "options"):
        value: object = fields.text(name) if name == "domain" else fields.texts(name)
        if value:
            found[name] = value
    return found


def _parse_02x(result: Result, fields: Fields) -> None:
    for key in ("ip4", "ip6"):
        if fields.raw(key) is None:
            continue
        block = fields.inner(key)
        result.ips.append(Address(_prefix(block.text("ip")), _ip(block.text("gateway"))))
        result.routes += [Route.parse(item) for item in block.array("routes", "[]types.Route")]


def _parse_lists(result: Result, fields: Fields) -> None:
    for item in fields.array("interfaces", "[]*types.Interface"):
        one = Fields(item, "Interface")
        result.interfaces.append(
            Interface(
                one.text("name"),
                one.text("mac"),
                one.text("sandbox"),
                one.integer("mtu"),
                one.text("socketPath"),
                one.text("pciID"),
            )
        )
    for item in fields.array("ips", "[]*types.IPConfig"):
        one = Fields(item, "ipConfig")
        result.ips.append(
            Address(_prefix(one.text("address")), _ip(one.text("gateway")), one.maybe_integer("interface"))
        )
    result.routes = [Route.parse(item) for item in fields.array("routes", "[]*types.Route")]


def _prefix(text: str) -> Prefix:
    try:
        return Prefix.parse(text)
    except ValueError as error:
        raise TextError(str(error)) from None


def _ip(text: str) -> Ip | None:
    if not text:
        return None
    try:
        return Ip.parse(text)
    except ValueError as error:
        raise TextError(str(error)) from None


def _only(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if item or key == "name"}


def _sorted(value: dict[str, Any]) -> dict[str, Any]:
    return {key: value[key] for key in sorted(value)}


def _address(ip: Address) -> dict[str, Any]:
    written: dict[str, Any] = {} if ip.interface is None else {"interface": ip.interface}
    written["address"] = str(ip.address)
    if ip.gateway is not None:
        written["gateway"] = str(ip.gateway)
    return written
