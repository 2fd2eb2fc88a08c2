"""What every cluster has before anybody has done anything: four namespaces and the Service `kubernetes`.

Made at each start where missing, and put right where another start had other flags (advertise address, port, Service
range). The EndpointSlice `kubernetes` names the advertise address; a loopback one is no endpoint (nothing in the cluster
could reach it), then there is none.
"""

from __future__ import annotations

import copy
import ipaddress
from typing import TYPE_CHECKING, Any

from podwire.apiserver import deletion, writes
from podwire.apiserver.store import decode

if TYPE_CHECKING:
    from podwire.apiserver.resource import Object
    from podwire.apiserver.work import Work

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


def first_address(cidr: str) -> str:
    """The first usable address of a Service range, which is the Service kubernetes' own."""
    return str(ipaddress.ip_network(cidr)[1])


def ensure(work: Work, advertise_address: str, port: int) -> None:
    """Make or mend everything."""
    for name in NAMESPACES:
        _ensure(work, "", "namespaces", "", {"metadata": {"name": name}})
    _ensure(work, "", "services", "default", _service(work.flags.service_ranges[0], port))
    if not ipaddress.ip_address(advertise_address).is_loopback:
        _ensure(work, "discovery.k8s.io", "endpointslices", "default", _slice(advertise_address, port))


def _service(cidr: str, port: int) -> Object:
    address = first_address(cidr)
    return {
        "metadata": {"name": "kubernetes", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
            "sessionAffinity": "None",
        },
    }


def _slice(address: str, port: int) -> Object:
    return {
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv6" if ":" in address else "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }


def _ensure(work: Work, group: str, plural: str, namespace: str, body: Object) -> None:
    """Create, or update what differs; what may not be updated (a clusterIP) is made anew."""
    resource = work.lookup(group, "v1", plural)
    if resource is None:
        return
    name = body["metadata"]["name"]
    raw = work.transaction.get(resource.key, namespace, name)
    if raw is not None and _contains(decode(raw), body):
        return
    if raw is not None:
        deletion.remove(work, resource, decode(raw), raw)
    writes.create(work, resource, namespace, copy.deepcopy(body))


def _contains(have: Any, want: Any) -> bool:
    """Whether everything wanted is there; more may be."""
    if isinstance(want, dict):
        return isinstance(have, dict) and all(
            key in have and _contains(have[key], value) for key, value in want.items()
        )
    if isinstance(want, list):
        return isinstance(have, list) and len(have) == len(want) and all(map(_contains, have, want))
    return bool(have == want)
