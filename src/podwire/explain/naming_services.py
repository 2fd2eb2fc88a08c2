"""Names for frontends whose rules do not tell them: nft's maps of Services without endpoints have no names, the API has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from podwire.explain.snapshot import name_of, namespace_of
from podwire.explain.snapshot_words import inner, number_of, rows, text_of, texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from podwire.explain.frontends import Frontend
    from podwire.explain.snapshot import Object, Snapshot

#: kind, address ('' for a NodePort), port, protocol
Spot = tuple[str, str, int, str]


def spots(service: Object) -> Iterator[tuple[Spot, str]]:
    """Every place where the API says a Service is offered, with the name of its port."""
    spec = inner(service, "spec")
    ips = [ip for ip in texts(spec.get("clusterIPs")) or [text_of(spec, "clusterIP")] if ip and ip != "None"]
    external = texts(spec.get("externalIPs"))
    ingress = [text_of(one, "ip") for one in rows(inner(service, "status", "loadBalancer").get("ingress")) if text_of(one, "ipMode") != "Proxy"]  # fmt: skip
    if text_of(spec, "type") == "ExternalName":
        return
    for port in rows(spec.get("ports")):
        number, protocol = number_of(port, "port"), (text_of(port, "protocol") or "TCP").lower()
        found: list[Spot] = [("clusterIP", ip, number, protocol) for ip in ips]
        found += [("externalIP", ip, number, protocol) for ip in external]
        found += [("loadBalancer", ip, number, protocol) for ip in ingress if ip]
        if number_of(port, "nodePort"):
            found.append(("nodePort", "", number_of(port, "nodePort"), protocol))
        for one in found:
            yield one, text_of(port, "name")


def title_of(service: Object) -> str:
    """namespace/name."""
    return f"{namespace_of(service) or 'default'}/{name_of(service)}"


def named(found: Sequence[Frontend], snapshot: Snapshot) -> list[Frontend]:
    """The frontends with what the API adds: the Service's name, and which kind of address it is."""
    known: dict[tuple[str, int, str], tuple[str, str, str]] = {}
    for service in snapshot.services or ():
        for (kind, address, port, protocol), port_name in spots(service):
            known.setdefault((address, port, protocol), (title_of(service), port_name, kind))
    return [_with(one, known.get((one.address, one.port, one.protocol))) for one in found]


def _with(one: Frontend, said: tuple[str, str, str] | None) -> Frontend:
    if said is None or one.service not in ("", said[0]):
        return one
    return replace(one, service=said[0], port_name=one.port_name or said[1], kind=one.kind or said[2])


def services_of(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """The API's Services by namespace/name."""
    return {title_of(one): one for one in snapshot.services or ()}
