"""The targets of nft's NAT statements: an address with or without a port, a range, or what a map gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.addresses import Ip
from podwire.explain import nat
from podwire.explain.packet import Unknown

if TYPE_CHECKING:
    from podwire.explain.nft_conditions import Conditions
    from podwire.explain.packet import Way


def targets(inner: dict[str, Any], way: Way, conditions: Conditions) -> list[tuple[float, nat.Target | Unknown | None]]:
    """What a NAT statement maps to: (probability, target), None where its map has no such key."""
    text, port = inner.get("text", ""), _port_text(inner.get("port"))
    address = inner.get("addr")
    if isinstance(address, dict) and isinstance(address.get("map"), dict):
        gives = conditions.choices(address["map"].get("key"), address["map"].get("data"), way)
        if gives is None:
            return [(1.0, None)]
        if isinstance(gives, Unknown):
            return [(1.0, gives)]
        return [(chance, None if data is None else _target(data, port)) for chance, data in gives]
    return [(1.0, _target(address, port) if address is not None else nat.parse_target(text or port) or _unread(text))]


def _port_text(port: Any) -> str:
    if isinstance(port, dict) and isinstance(port.get("range"), list) and len(port["range"]) == 2:
        return f":{port['range'][0]}-{port['range'][1]}"
    return f":{port}" if isinstance(port, int) else ""


def _unread(text: Any) -> Unknown:
    return Unknown(f"nft target {text}", f"the target {text} cannot be read")


def _target(data: Any, port: str) -> nat.Target | Unknown:
    """`10.0.0.1`, `10.0.0.1 . 80` or a range, from a map or a statement."""
    if isinstance(data, dict) and isinstance(data.get("concat"), list) and len(data["concat"]) == 2:
        data, port = data["concat"][0], f":{data['concat'][1]}"
    if isinstance(data, dict) and isinstance(data.get("range"), list) and len(data["range"]) == 2:
        data = f"{data['range'][0]}-{data['range'][1]}"
    if not isinstance(data, str):
        return _unread(data)
    try:
        six = Ip.parse(data.partition("-")[0]).bits == 128
    except ValueError:
        return _unread(data)
    found = nat.parse_target(f"[{data}]{port}" if six else f"{data}{port}")
    return found if found is not None else _unread(data)
