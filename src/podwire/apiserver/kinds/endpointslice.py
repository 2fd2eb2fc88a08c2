"""EndpointSlice (discovery.k8s.io/v1): up to 1000 endpoints of one address family behind one Service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats
from podwire.apiserver.kinds.containers import PROTOCOLS, each
from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
MOST_ENDPOINTS = 1000
MOST_ADDRESSES = 100
MOST_PORTS = 20000
MOST_HINTS = 8
_SHOWN = 3
"""So many ports and addresses stand in a cell of the table."""

_COLUMNS = (
    NAME,
    Column("AddressType", description="The kind of address that all its endpoints have."),
    Column("Ports", description="The ports of every endpoint."),
    Column("Endpoints", description="Addresses of the endpoints."),
    AGE,
)


class EndpointSliceStrategy(Strategy):
    """The rules of EndpointSlices."""

    tracks_generation = True

    def defaults(self, obj: Object) -> None:
        """A port has a name, "" too, and TCP."""
        obj.setdefault("endpoints", [])
        for port in obj.get("ports") or ():
            port.setdefault("name", "")
            port.setdefault("protocol", "TCP")

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """Address type, endpoints, ports."""
        kind = obj.get("addressType") or ""
        causes: list[Cause] = []
        if not kind:
            causes.append(Cause.required("addressType"))
        elif kind not in ADDRESS_TYPES:
            causes.append(Cause.not_supported("addressType", kind, ADDRESS_TYPES))
        causes += _endpoints(obj.get("endpoints") or [], kind)
        causes += _ports(obj.get("ports") or [])
        if old is not None and kind != old.get("addressType"):
            causes.append(Cause.invalid("addressType", kind, "field is immutable"))
        return causes

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """ADDRESSTYPE PORTS ENDPOINTS AGE."""
        metadata = obj["metadata"]
        addresses = [text for endpoint in obj.get("endpoints") or () for text in endpoint.get("addresses") or ()]
        return [
            metadata["name"],
            obj.get("addressType", ""),
            some([_port(port) for port in obj.get("ports") or ()]),
            some(addresses),
            age(metadata.get("creationTimestamp"), now),
        ]


def some(texts: list[str]) -> str:
    """`a,b,c + 2 more...`; `<unset>` for none."""
    shown = ",".join(texts[:_SHOWN])
    return f"{shown} + {len(texts) - _SHOWN} more..." if len(texts) > _SHOWN else shown or "<unset>"


def _port(port: dict[str, Any]) -> str:
    """The number; without one the port means all of them and shows its name."""
    if port.get("port") is not None:
        return str(port["port"])
    return "*" if port.get("name") is None else str(port["name"])


def _endpoints(endpoints: list[dict[str, Any]], kind: str) -> list[Cause]:
    if len(endpoints) > MOST_ENDPOINTS:
        return [Cause.too_many("endpoints", len(endpoints), MOST_ENDPOINTS)]
    causes: list[Cause] = []
    for index, endpoint in enumerate(endpoints):
        at, addresses = f"endpoints[{index}]", endpoint.get("addresses") or []
        if not addresses:
            causes.append(Cause.required(f"{at}.addresses", "must contain at least 1 address"))
        elif len(addresses) > MOST_ADDRESSES:
            causes.append(Cause.too_many(f"{at}.addresses", len(addresses), MOST_ADDRESSES))
        for place, address in enumerate(addresses):
            causes += each(f"{at}.addresses[{place}]", address, _address(address, kind))
        if (node := endpoint.get("nodeName")) is not None:
            causes += each(f"{at}.nodeName", node, formats.subdomain(node))
        if (host := endpoint.get("hostname")) is not None:
            causes += each(f"{at}.hostname", host, formats.label(host))
        causes += _hints(f"{at}.hints", endpoint.get("hints") or {})
    return causes


def _address(address: str, kind: str) -> list[str]:
    if kind == "FQDN":
        name = address.removesuffix(".")
        wrong = formats.subdomain(name)
        return wrong or ([] if "." in name else ["should be a domain with at least two segments separated by dots"])
    if kind not in ADDRESS_TYPES:
        return []
    if formats.address(address) or formats.family(address) != kind:
        return [f"must be a valid {kind} address"]
    return formats.ordinary_address(address)


def _hints(path: str, hints: dict[str, Any]) -> list[Cause]:
    causes: list[Cause] = []
    for key, rule in (("forZones", formats.label_value), ("forNodes", formats.subdomain)):
        entries = hints.get(key) or []
        if len(entries) > MOST_HINTS:
            causes.append(Cause.too_many(f"{path}.{key}", len(entries), MOST_HINTS))
            continue
        names = [entry.get("name", "") for entry in entries]
        for index, name in enumerate(names):
            at = f"{path}.{key}[{index}].name"
            if name in names[:index]:
                causes.append(Cause.duplicate(at, name))
            causes += each(at, name, rule(name))
    return causes


def _ports(ports: list[dict[str, Any]]) -> list[Cause]:
    if len(ports) > MOST_PORTS:
        return [Cause.too_many("ports", len(ports), MOST_PORTS)]
    causes: list[Cause] = []
    names: set[str] = set()
    for index, port in enumerate(ports):
        at, name = f"ports[{index}]", port["name"]
        if name:
            causes += each(f"{at}.name", name, formats.label(name))
        if name in names:
            causes.append(Cause.duplicate(f"{at}.name", name))
        names.add(name)
        if (number := port.get("port")) is not None:
            causes += each(f"{at}.port", number, formats.port_number(number))
        if port["protocol"] not in PROTOCOLS:
            causes.append(Cause.not_supported(f"{at}.protocol", port["protocol"], PROTOCOLS))
        if (application := port.get("appProtocol")) is not None:
            causes += each(f"{at}.appProtocol", application, formats.qualified_name(application))
    return causes


RESOURCE = Resource(
    group="discovery.k8s.io",
    version="v1",
    kind="EndpointSlice",
    plural="endpointslices",
    singular="endpointslice",
    columns=_COLUMNS,
    strategy=EndpointSliceStrategy(),
)
