"""What is asked: SRC and DST as a person writes them, as a packet at the place where it starts.

SRC: `external`, an address, `node` or `node/NAME`, `pod/NS/NAME`, each with `:PORT` where the source port matters.
DST: the same with `:PORT/PROTOCOL`, and `svc/NS/NAME`. A source that is an address of this node is the node's own packet, unless an
interface is given that it came in by. What the question leaves open is filled from the snapshot, and said in `assumed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.addresses import Ip
from podwire.errors import UsageError
from podwire.explain.matches import protocol_name
from podwire.explain.packet import UNKNOWN, Packet
from podwire.explain.snapshot import name_of, namespace_of, node_addresses

if TYPE_CHECKING:
    from podwire.explain.picture import Picture

#: Who `external` is: an address of a documentation range, so that it is nobody's.
EXTERNAL = {4: "198.51.100.7", 6: "2001:db8:ffff::7"}
_DST = re.compile(r"^(?P<host>.+?)(?::(?P<port>[\w-]+))?(?:/(?P<protocol>[a-zA-Z]\w*|\d+))?$")
_V6 = re.compile(r"^\[([0-9a-fA-F:.]+)\](?::([\w-]+))?(?:/([a-zA-Z]\w*|\d+))?$")
_PORTLESS = ("icmp", "ipv6-icmp")


@dataclass(slots=True)
class Question:
    """`source` and `destination` as written; the rest where it matters. `state` is conntrack's."""

    source: str
    destination: str
    in_interface: str = ""
    mark: int = 0
    state: str = ""
    flags: str = ""
    uid: int | None = None
    gid: int | None = None
    source_port: int | None = None

    @classmethod
    def of(cls, row: dict[str, Any]) -> Question:
        """A line of a batch. Raises UsageError."""
        known = {
            "from",
            "to",
            "in_interface",
            "mark",
            "ctstate",
            "ct",
            "state",
            "tcp_flags",
            "uid",
            "gid",
            "source_port",
        }
        unknown = set(row) - known - {"expect", "name", "note", "id"}
        if unknown or not isinstance(row.get("from"), str) or not isinstance(row.get("to"), str):
            raise UsageError(
                "a question",
                str(row)[:200],
                f"not known: {', '.join(sorted(unknown))}" if unknown else '"from" and "to" are needed',
            )
        state = next((str(row[key]) for key in ("ctstate", "ct", "state") if row.get(key)), "")
        numbers: dict[str, int | None] = {}
        for key in ("mark", "uid", "gid", "source_port"):
            value = row.get(key)
            try:
                numbers[key] = None if value is None else int(str(value), 0)
            except ValueError:
                raise UsageError("a question", str(row)[:200], f"{key} is not a number") from None
        flags = row.get("tcp_flags") or ""
        return cls(
            row["from"], row["to"], str(row.get("in_interface") or ""), numbers["mark"] or 0, state,
            ",".join(flags) if isinstance(flags, list) else str(flags), numbers["uid"], numbers["gid"], numbers["source_port"],
        )  # fmt: skip


@dataclass(slots=True)
class Asked:
    """The packet, and what was supposed about it."""

    packet: Packet
    assumed: list[str]
    service: str = ""


def packet_of(question: Question, picture: Picture) -> Asked:
    """The packet that a question is about. Raises UsageError where it cannot be told."""
    assumed: list[str] = []
    host, port_text, protocol = _target(question.destination)
    dst, service_port = _destination(host, port_text, picture)
    port = _port(port_text, protocol, host, service_port)
    family = 4 if dst.bits == 32 else 6
    state = (question.state or "NEW").upper()
    packet = Packet(
        protocol,
        dst,
        dst,
        question.source_port,
        port,
        mark=question.mark,
        state=state,
        uid=question.uid,
        gid=question.gid,
    )
    packet = packet._replace(flags=_flags(question.flags, state), icmp=(8, 0) if family == 4 else (128, 0))
    if not question.state and protocol not in _PORTLESS:
        assumed.append("it is the first packet of a new flow")
    packet = _from(question, packet, family, picture, assumed)
    return Asked(packet, assumed, host if host.startswith("svc/") else "")


def _flags(text: str, state: str) -> frozenset[str]:
    if text:
        named = text.replace(" ", ",").upper().split(",")
        letters = {"S": "SYN", "A": "ACK", "F": "FIN", "R": "RST", "P": "PSH", "U": "URG"}
        return frozenset([letters.get(name, name) for name in named if name])
    return frozenset({"SYN"}) if state == "NEW" else frozenset({"ACK"})


def _target(text: str) -> tuple[str, str, str]:
    """Host, port and protocol of DST. Raises UsageError."""
    six = _V6.match(text)
    if six is not None:
        host, port, protocol = six[1], six[2] or "", six[3] or ""
    else:
        found = _DST.match(text)
        if found is None or not text:
            raise UsageError("--to", text, "this is no destination", "DST:PORT/PROTOCOL, as 10.96.0.1:443/tcp")
        host, port, protocol = found["host"], found["port"] or "", found["protocol"] or ""
        if (
            host.startswith(("pod/", "svc/", "node/"))
            and host.count("/") < (1 if host.startswith("node/") else 2)
            and protocol
        ):
            host, protocol = f"{host}/{protocol}", ""
        elif host.count(":") > 1 or (host.count(":") == 1 and port and not host.startswith(("svc/", "pod/", "node"))):
            host, port = f"{host}:{port}" if port else host, ""
    return host, port, protocol_name(protocol or "tcp")


def _port(text: str, protocol: str, host: str, service_port: int | None) -> int | None:
    if protocol in _PORTLESS:
        return None
    if text.isdigit() and int(text) < 65536:
        return int(text)
    if service_port is not None:
        return service_port
    raise UsageError(
        "--to", f"{host}:{text}" if text else host, "a port is needed", "DST:PORT/PROTOCOL, as 10.96.0.1:443/tcp"
    )


# -- names -----------------------------------------------------------------------------------------------------------


def _ip(text: str, what: str) -> Ip:
    try:
        return Ip.parse(text.strip("[]"))
    except ValueError:
        raise UsageError(
            what,
            text,
            "this is neither an address nor a name",
            "external, 10.0.0.1, node/NAME, pod/NS/NAME, svc/NS/NAME",
        ) from None


def _destination(host: str, port: str, picture: Picture) -> tuple[Ip, int | None]:
    if host.startswith("svc/"):
        return _service(host, port, picture)
    if host.startswith("pod/"):
        return _ip(_pod(host, picture), host), None
    if host == "node" or host.startswith("node/"):
        address = _node(host, picture)
        if address is None:
            raise UsageError("--to", host, "its address is not in this input", "--node-address tells it")
        return address, None
    if host == "external":
        return Ip.parse(EXTERNAL[4]), None
    return _ip(host, "--to"), None


def _split(text: str) -> tuple[str, str]:
    parts = text.split("/")
    if len(parts) != 3:
        raise UsageError("reading", text, "a namespace and a name are needed", f"{parts[0]}/NAMESPACE/NAME")
    return parts[1], parts[2]


def _object(items: list[dict[str, Any]] | None, text: str) -> dict[str, Any]:
    namespace, name = _split(text)
    for item in items or ():
        if (namespace_of(item) or "default", name_of(item)) == (namespace, name):
            return item
    raise UsageError(
        "looking for", text, "it is not in this input" if items is not None else "this input has no Kubernetes objects"
    )


def _service(host: str, port: str, picture: Picture) -> tuple[Ip, int | None]:
    spec = _object(picture.snapshot.services, host).get("spec") or {}
    ports = [one for one in spec.get("ports") or () if isinstance(one, dict)]
    address = str(spec.get("clusterIP") or "")
    if address in ("", "None"):
        raise UsageError("looking for", host, "it has no ClusterIP")
    named = next((one for one in ports if one.get("name") == port), ports[0] if ports and not port else None)
    number = named.get("port") if named is not None else None
    return _ip(address, host), number if isinstance(number, int) else None


def _pod(text: str, picture: Picture) -> str:
    status = _object(picture.snapshot.pods, text).get("status") or {}
    address = status.get("podIP")
    if not isinstance(address, str) or not address:
        raise UsageError("looking for", text, "the pod has no address")
    return address


def _node(text: str, picture: Picture) -> Ip | None:
    name = text.partition("/")[2]
    snapshot = picture.snapshot
    for node in snapshot.nodes or ():
        if name and name_of(node) == name:
            found = node_addresses(node)
            return _ip(found[0], text) if found else None
    own = name in ("", snapshot.hostname, snapshot.label) or snapshot.nodes is None
    node_object = snapshot.node
    if own and node_object is not None and node_addresses(node_object):
        return _ip(node_addresses(node_object)[0], text)
    return _own_address(picture, 4) if own else None


def node_address(picture: Picture, family: int = 4) -> Ip | None:
    """The address by which others reach this node: of its Node object, else as routes and addresses tell; None: not known."""
    found = _node("node", picture)
    return found if found is not None and found.bits == (32 if family == 4 else 128) else _own_address(picture, family)


def _own_address(picture: Picture, family: int) -> Ip | None:
    """The address on the device of the default route, else the first one that is not a bridge's or lo's."""
    default = picture.facts.routing.lookup(Ip.parse(EXTERNAL[family]))
    found = picture.facts.first_address(default.dev, family) if default.kind == "unicast" else None
    if found is not None:
        return found
    for prefix, dev in picture.facts.routing.subnets:
        if (
            prefix.ip.bits == (32 if family == 4 else 128)
            and dev != "lo"
            and not any(one.contains(prefix.ip) for one in picture.local_cidrs)
        ):
            return prefix.ip
    return None


# -- the source ------------------------------------------------------------------------------------------------------


def _from(question: Question, packet: Packet, family: int, picture: Picture, assumed: list[str]) -> Packet:
    text, sport = _source_port(question.source)
    packet = packet._replace(sport=sport if sport is not None else packet.sport)
    if text == "node" or (text.startswith("node/") and _is_this_node(text, picture)):
        return _own(packet, family, picture, assumed)
    if text == "external":
        packet = packet._replace(src=Ip.parse(EXTERNAL[family]))
        assumed.append(f"external is {packet.src}")
    else:
        address = (
            _ip(_pod(text, picture), text)
            if text.startswith("pod/")
            else _node(text, picture)
            if text.startswith("node/")
            else _ip(text, "--from")
        )
        if address is None:
            raise UsageError("--from", text, "its address is not in this input")
        packet = packet._replace(src=address)
    if packet.src.bits != packet.dst.bits:
        raise UsageError("--from", text, f"{packet.src} and {packet.dst} are of different families")
    loopback = packet.src.bits == 32 and packet.src.value >> 24 == 127
    if question.in_interface in ("", "local") and (picture.facts.routing.owner(packet.src) is not None or loopback):
        return packet._replace(own=True)
    if question.in_interface == "local":
        return packet._replace(own=True)
    return packet._replace(iif=question.in_interface or _arrives_by(packet, picture, assumed))


def _source_port(text: str) -> tuple[str, int | None]:
    found = re.match(r"^(?:\[([0-9a-fA-F:.]+)\]|([^:]+)):(\d+)$", text)
    if found is not None:
        return found[1] or found[2], int(found[3])
    return text.strip("[]"), None


def _is_this_node(text: str, picture: Picture) -> bool:
    name = text.partition("/")[2]
    snapshot = picture.snapshot
    if name in (snapshot.hostname, snapshot.label) or snapshot.nodes is None:
        return True
    node = snapshot.node
    return node is not None and name_of(node) == name


def _own(packet: Packet, family: int, picture: Picture, assumed: list[str]) -> Packet:
    """The node's own packet, with the source that routing chooses."""
    facts = picture.facts
    found = facts.routing.lookup(packet.dst, None, None, packet.mark)
    source = packet.dst if found.kind == "local" else None
    if found.kind != "local":
        try:
            source = Ip.parse(found.src) if found.src else facts.first_address(found.dev, family, packet.dst)
        except ValueError:
            source = None
        source = source or _own_address(picture, family)
    if source is None:
        assumed.append("the node's own address is not known")
        return packet._replace(own=True, src_known=False)
    return packet._replace(own=True, src=source)


def _arrives_by(packet: Packet, picture: Picture, assumed: list[str]) -> str:
    """The device towards the source: what strict reverse path filtering would ask for too."""
    back = picture.facts.routing.lookup(packet.src, packet.dst)
    if back.kind == "unicast" and back.dev != UNKNOWN:
        assumed.append(f"it comes in by {back.dev}, where the route to {packet.src} leads")
        return back.dev
    assumed.append("the interface it comes in by is not known (--in-interface)")
    return UNKNOWN
