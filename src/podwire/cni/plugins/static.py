"""The IPAM plugin static: the addresses that are written in the configuration, or asked for. It keeps nothing.

    "ipam": {"type": "static", "addresses": [{"address": "10.10.0.1/24", "gateway": "10.10.0.254"}], "routes": […], "dns": {…}}

CNI_ARGS (`IP=10.10.0.2/24,…;GATEWAY=10.10.0.254`) adds addresses, each with the gateway that is in its network;
args.cni.ips replaces all of these, and the capability `ips` replaces that. Nobody sees to it that two containers have different ones.
"""

from __future__ import annotations

from podwire.addresses import Ip, Prefix
from podwire.cni.skel import Plugin, Request, parse_args, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec import result as results
from podwire.cni.spec.result import Address, Result, Route, parse_dns
from podwire.cni.spec.text import Fields, TextError
from podwire.cni.spec.versions import at_least

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Conf:
    """A configuration, checked. Raises ValueError."""

    __slots__ = ("addresses", "dns", "routes")

    def __init__(self, request: Request) -> None:
        fields = Fields(request.conf, "Net")
        if fields.raw("ipam") is None:
            raise ValueError("IPAM config missing 'ipam' key")
        ipam = fields.inner("ipam")
        self.routes = [Route.parse(item) for item in ipam.array("routes", "[]*types.Route")]
        self.dns: dict[str, Any] = parse_dns(ipam.inner("dns"))
        written = [_written(Fields(item, "Address")) for item in ipam.array("addresses", "[]main.Address")]
        written += _from_variable(request.args)
        for texts in (fields.inner("args").inner("cni").texts("ips"), fields.inner("runtimeConfig").texts("ips")):
            if texts:
                written = [(_prefix(text, "an entry in the 'ips' field is NOT"), None) for text in texts]
        self.addresses = [Address(_configured(one), gateway) for one, gateway in written]
        families = [one.address.ip.bits for one in self.addresses]
        if len(families) > len(set(families)) and not at_least(request.version, "0.3.0"):
            version = fields.text("cniVersion")
            raise ValueError(f"CNI version {version} does not support more than 1 address per family")


def _written(fields: Fields) -> tuple[Prefix | str, Ip | None]:
    """An address of the configuration, as text: it is only read if nothing replaces it."""
    gateway = fields.text("gateway")
    try:
        return fields.text("address"), Ip.parse(gateway) if gateway else None
    except ValueError as error:
        raise TextError(str(error)) from None


def _configured(one: Prefix | str) -> Prefix:
    return one if isinstance(one, Prefix) else _prefix(one, "the 'address' field is expected to be")


def _prefix(text: str, expected: str) -> Prefix:
    try:
        return Prefix.parse(text)
    except ValueError:
        raise ValueError(f"{expected} in CIDR notation, got: '{text}'") from None


def _from_variable(args: str) -> list[tuple[Prefix | str, Ip | None]]:
    """What CNI_ARGS adds. Its gateways go to its own addresses only, each to those in whose network it is."""
    given = parse_args(args, ("IP", "GATEWAY", "MAC"))  # MAC is for the plugin that called this one
    texts = given["IP"].split(",") if given.get("IP") else []
    added = [_prefix(text.strip(), "the 'ip' field is expected to be") for text in texts]
    gateways = [_gateway(text) for text in given["GATEWAY"].split(",")] if given.get("GATEWAY") else []
    return [(one, next((ip for ip in reversed(gateways) if one.contains(ip)), None)) for one in added]


def _gateway(text: str) -> Ip:
    try:
        return Ip.parse(text.strip())
    except ValueError:
        raise ValueError(f"invalid gateway address: {text}") from None


def add(request: Request) -> str:
    """Tell the addresses."""
    conf = Conf(request)
    result = Result()
    result.ips, result.routes, result.dns = conf.addresses, conf.routes, conf.dns
    return show(result, request.version)


def check(request: Request) -> None:
    """Whether the addresses have the gateways in the previous result that the configuration gives them."""
    conf = Conf(request)
    previous = results.previous(request.conf, request.version)
    if previous is None:
        raise ValueError("Required prevResult missing")
    for wanted in conf.addresses:
        same = next((ip for ip in previous.ips if ip.address.ip == wanted.address.ip), None)
        if same is not None and wanted.gateway is not None and wanted.gateway != same.gateway:
            raise ValueError(f"static: Failed to match addr {same.address.ip} on interface {request.ifname}")


def delete(_request: Request) -> None:
    """Nothing: no address is kept."""


def gc(_request: Request) -> None:
    """Nothing: no address is kept."""


def status(request: Request) -> None:
    """Whether an ADD could be served: the configuration is in order."""
    Conf(request)


PLUGIN = Plugin("static", add, delete, check, gc, status)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
