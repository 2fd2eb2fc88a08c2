"""Which endpoints a Service has, and how they are spread over EndpointSlices. Pure.

    pods the selector chooses ─► one endpoint a pod and IP family ─► grouped by the ports they serve ─► slices of ≤ 100

A pod takes part when it has an address of the family and has not ended; a terminating pod stays, serving but not ready, until it is
gone. Ports of type name are looked up in each pod, so pods of one Service may be in slices with different numbers.

`reconcile` compares with the slices that are there and changes as few as possible: endpoints stay in the slice they are in,
new ones go where there is room, a slice that is left empty goes, and a slice equal to what it should be is not written.
The wishes follow the EndpointSlice controller of Kubernetes (staging/src/k8s.io/endpointslice).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.controllers import ownership

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from podwire.kube.objects import Endpoint, EndpointSlice, Node, Pod, Service, ServicePort

MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
SERVICE_NAME = "kubernetes.io/service-name"
HEADLESS = "service.kubernetes.io/headless"
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
PER_SLICE = 100
_NOT_COPIED = ("endpointslice.kubernetes.io/managed-by", "kubernetes.io/service-name", "service.kubernetes.io/headless")

Ports = tuple[tuple[str, str, int | None, str | None], ...]  # name, protocol, number, appProtocol


class Wish(NamedTuple):
    """One endpoint that should be: its family, ports and JSON body. `body["addresses"][0]` is what it is known by."""

    family: str
    ports: Ports
    body: dict[str, Any]


class Change(NamedTuple):
    """One write: a slice to make (old None), to replace, or to delete (body None)."""

    old: EndpointSlice | None
    body: dict[str, Any] | None


def families(service: Service) -> tuple[str, ...]:
    """IPv4, IPv6 or both, as the Service says; a headless one from before dual stack is IPv4."""
    return service.spec.ip_families or ("IPv6" if ":" in service.spec.cluster_ip else "IPv4",)


def wishes(service: Service, pods: Iterable[Pod], node_of: Callable[[str], Node | None]) -> list[Wish]:
    """Every endpoint of the Service."""
    found: list[Wish] = []
    for pod in pods:
        if pod.finished:
            continue
        ports = pod_ports(service, pod)
        if service.spec.ports and not ports:
            continue  # a port given by name that this pod does not have
        for family in families(service):
            address = next((ip for ip in pod.addresses if (":" in ip) == (family == "IPv6")), None)
            if address:
                found.append(Wish(family, ports, endpoint_body(service, pod, address, node_of(pod.spec.node_name))))
    return found


def pod_ports(service: Service, pod: Pod) -> Ports:
    """The Service's ports as this pod serves them."""
    found = []
    for port in service.spec.ports:
        number = target_number(port, pod)
        if number is not None:
            found.append((port.name, port.protocol, number, port.app_protocol))
    return tuple(found)


def target_number(port: ServicePort, pod: Pod) -> int | None:
    """A target port as a number; None if it is a name that no container of the pod has for this protocol."""
    target = port.target_port
    if isinstance(target, int) and target:
        return target
    if not target:
        return port.port
    for container in (*pod.spec.containers, *(c for c in pod.spec.init_containers if c.restart_policy == "Always")):
        for declared in container.ports:
            if declared.name == target and declared.protocol == port.protocol:
                return declared.container_port
    return None


def endpoint_body(service: Service, pod: Pod, address: str, node: Node | None) -> dict[str, Any]:
    """discovery/v1 Endpoint."""
    serving = pod.ready
    ready = service.spec.publish_not_ready_addresses or (serving and not pod.terminating)
    body: dict[str, Any] = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": pod.terminating},
        "targetRef": {
            "kind": "Pod",
            "namespace": pod.metadata.namespace,
            "name": pod.metadata.name,
            "uid": pod.metadata.uid,
        },
    }
    if pod.spec.node_name:
        body["nodeName"] = pod.spec.node_name
    zone = node.metadata.labels.get("topology.kubernetes.io/zone") if node is not None else None
    if zone:
        body["zone"] = zone
    if pod.spec.hostname and pod.spec.subdomain == service.metadata.name:
        body["hostname"] = pod.spec.hostname
    return body


def is_managed(piece: EndpointSlice) -> bool:
    """Whether the slice is this controller's; others are left alone."""
    return piece.metadata.labels.get(MANAGED_BY) == MANAGER


def reconcile(
    service: Service, existing: Iterable[EndpointSlice], wanted: Iterable[Wish], trigger_time: str | None = None
) -> list[Change]:
    """The writes that make `existing` (this controller's slices of the Service) hold `wanted`."""
    groups: dict[tuple[str, Ports], dict[str, dict[str, Any]]] = {}
    for wish in wanted:
        groups.setdefault((wish.family, wish.ports), {})[wish.body["targetRef"]["uid"]] = wish.body
    for family in families(service):
        # A Service always has a slice a family, if an empty one: "nobody is there" is an answer too.
        if not any(key[0] == family for key in groups):
            groups[family, ()] = {}
    changes: list[Change] = []
    pieces: dict[tuple[str, Ports], list[EndpointSlice]] = {}
    for piece in sorted(existing, key=lambda piece: piece.key):
        key = (piece.address_type, _ports_of(piece))
        if piece.metadata.deletion_timestamp is not None:
            continue
        if key in groups:
            pieces.setdefault(key, []).append(piece)
        else:
            changes.append(Change(piece, None))
    for key, bodies in groups.items():
        changes += _fill(service, key, pieces.get(key, []), bodies, trigger_time)
    return _reuse(changes)


def _fill(
    service: Service,
    key: tuple[str, Ports],
    pieces: list[EndpointSlice],
    bodies: dict[str, dict[str, Any]],
    trigger_time: str | None,
) -> list[Change]:
    """Spread endpoints of one family and port set over slices, moving as little as possible."""
    rest = dict(bodies)
    kept: list[list[dict[str, Any]]] = []
    for piece in pieces:
        uids = [entry.target_ref.uid for entry in piece.endpoints if entry.target_ref is not None]
        kept.append([rest.pop(uid) for uid in dict.fromkeys(uids) if uid in rest])
    fresh = list(rest.values())
    for held in sorted(kept, key=len, reverse=True):
        room = max(0, PER_SLICE - len(held))
        held.extend(fresh[:room])
        fresh = fresh[room:]
    new = [fresh[start : start + PER_SLICE] for start in range(0, len(fresh), PER_SLICE)]
    if not any(kept) and not new:
        kept, new = ([[]], []) if kept else ([], [[]])
    changes: list[Change] = []
    for index, piece in enumerate(pieces):
        held = kept[index] if index < len(kept) else []
        if not held and (index > 0 or any(kept) or new):
            changes.append(Change(piece, None))
        elif _differs(service, piece, held):
            changes.append(Change(piece, slice_body(service, key, held, trigger_time, piece)))
    return changes + [Change(None, slice_body(service, key, held, trigger_time)) for held in new]


def _reuse(changes: list[Change]) -> list[Change]:
    """A slice to be deleted and one to be made, of one family, are one update: nobody sees the Service without either."""
    spare = [change.old for change in changes if change.body is None and change.old is not None]
    result: list[Change] = []
    for change in changes:
        if change.body is None:
            continue
        body = change.body
        old = next((piece for piece in spare if not change.old and piece.address_type == body["addressType"]), None)
        if old is None:
            result.append(change)
        else:
            spare.remove(old)
            result.append(Change(old, {**body, "metadata": {**body["metadata"], **_identity(old)}}))
    return result + [Change(piece, None) for piece in spare]


def _identity(piece: EndpointSlice) -> dict[str, str]:
    meta = piece.metadata
    return {
        "name": meta.name,
        "generateName": meta.generate_name,
        "resourceVersion": meta.resource_version,
        "uid": meta.uid,
    }


def slice_labels(service: Service) -> dict[str, str]:
    """The Service's labels, and whose slice it is."""
    labels = {name: text for name, text in service.metadata.labels.items() if name not in _NOT_COPIED}
    labels |= {SERVICE_NAME: service.metadata.name, MANAGED_BY: MANAGER}
    if service.spec.cluster_ip in ("None", ""):
        labels[HEADLESS] = ""
    return labels


def slice_body(
    service: Service,
    key: tuple[str, Ports],
    endpoints: list[dict[str, Any]],
    trigger_time: str | None,
    old: EndpointSlice | None = None,
) -> dict[str, Any]:
    """discovery/v1 EndpointSlice, new or in place of `old`."""
    meta: dict[str, Any] = {
        "namespace": service.metadata.namespace,
        "labels": slice_labels(service),
        "ownerReferences": [ownership.owner_reference(service)],
    }
    if trigger_time:
        meta["annotations"] = {TRIGGER_TIME: trigger_time}
    if old is None:
        meta["generateName"] = f"{service.metadata.name}-"
    else:
        meta |= _identity(old)
    ports = [
        {"name": name, "protocol": protocol, "port": number, **({"appProtocol": app} if app else {})}
        for name, protocol, number, app in key[1]
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": key[0],
        "endpoints": endpoints,
        "ports": ports,
    }


def _ports_of(piece: EndpointSlice) -> Ports:
    return tuple((port.name or "", port.protocol or "TCP", port.port, port.app_protocol) for port in piece.ports)


def _differs(service: Service, piece: EndpointSlice, bodies: list[dict[str, Any]]) -> bool:
    if piece.metadata.labels != slice_labels(service):
        return True
    owner = piece.metadata.controller
    if owner is None or owner.uid != service.metadata.uid:
        return True
    have = {entry.target_ref.uid: _as_body(entry) for entry in piece.endpoints if entry.target_ref is not None}
    return len(have) != len(piece.endpoints) or have != {body["targetRef"]["uid"]: body for body in bodies}


def _as_body(entry: Endpoint) -> dict[str, Any]:
    """What is there, in the form of `endpoint_body`."""
    assert entry.target_ref is not None
    ref, conditions = entry.target_ref, entry.conditions
    body: dict[str, Any] = {
        "addresses": list(entry.addresses),
        "conditions": {
            "ready": conditions.ready,
            "serving": conditions.serving,
            "terminating": conditions.terminating,
        },
        "targetRef": {"kind": ref.kind, "namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
    }
    optional = {"nodeName": entry.node_name, "zone": entry.zone, "hostname": entry.hostname}
    return body | {name: value for name, value in optional.items() if value}
