"""Services, slices and random sequences of changes to them, with syncs in between."""

from __future__ import annotations

from hypothesis import strategies as st

from podwire.kubeproxy.changes import Batch
from podwire.kubeproxy.objects import ENDPOINT_SLICES, SERVICES


def service(name, port=80, node_port=0, protocol="TCP", status=None, **spec):
    ports = [{"name": "p", "port": port, "nodePort": node_port, "protocol": protocol}]
    number = sum(name.encode()) % 250
    return SERVICES.convert(
        {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"clusterIP": f"10.96.0.{number}", "clusterIPs": [f"10.96.0.{number}"], "ports": ports, **spec},
            "status": status or {},
        }
    )


def endpoint_slice(name, of, *ips, protocol="TCP", port=8080, **conditions):
    return ENDPOINT_SLICES.convert(
        {
            "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": of}},
            "addressType": "IPv4",
            "ports": [{"name": "p", "port": port, "protocol": protocol}],
            "endpoints": [{"addresses": [ip], "nodeName": "node-1", "conditions": conditions} for ip in ips],
        }
    )


def batch(*items):
    found = Batch()
    for item in items:
        (found.services if item.kind == "Service" else found.slices)[item.key] = item
    return found


NAMES = ("a", "b", "c")
SERVICES_OF_ANY_KIND = st.builds(
    service,
    st.sampled_from(NAMES),
    port=st.sampled_from((80, 81)),
    node_port=st.sampled_from((0, 30001)),
    protocol=st.sampled_from(("TCP", "UDP")),
    type=st.just("LoadBalancer"),
    externalIPs=st.sampled_from(([], ["192.0.2.1"])),
    externalTrafficPolicy=st.sampled_from(("Cluster", "Local")),
    internalTrafficPolicy=st.sampled_from(("Cluster", "Local")),
    sessionAffinity=st.sampled_from(("None", "ClientIP")),
    healthCheckNodePort=st.sampled_from((0, 32000)),
    status=st.sampled_from(({}, {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}})),
    loadBalancerSourceRanges=st.sampled_from(([], ["198.51.100.0/24"])),
    sessionAffinityConfig=st.sampled_from((None, {"clientIP": {"timeoutSeconds": 60}})),
)
SLICES_OF_ANY_KIND = st.builds(
    endpoint_slice,
    st.sampled_from(("x", "y")),
    st.sampled_from(NAMES),
    st.sampled_from(("10.244.1.1", "10.244.1.2")),
    st.sampled_from(("10.244.1.2", "10.244.1.3")),
    protocol=st.sampled_from(("TCP", "UDP")),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
)
STEPS = st.lists(
    st.one_of(
        SERVICES_OF_ANY_KIND,
        SLICES_OF_ANY_KIND,
        st.sampled_from(
            [("no service", f"ns/{name}") for name in NAMES] + [("no slice", "ns/x"), ("no slice", "ns/y")]
        ),
        st.tuples(st.just("sync"), st.sampled_from((0, 0, 1, 2, 3))),
    ),
    max_size=20,
)


def follow(steps, changes, known):
    """Put the changes among the steps into both; yield the others, after those that came before them."""
    for step in steps:
        if isinstance(step, tuple) and step[0] == "sync":
            yield step
        elif isinstance(step, tuple):
            kind = "services" if step[0] == "no service" else "slices"
            getattr(known, kind).pop(step[1], None)
            (changes.service if kind == "services" else changes.slice)(step[1], None, None)
        elif step.kind == "Service":
            known.services[step.key] = step
            changes.service(step.key, None, step)
        else:
            known.slices[step.key] = step
            changes.slice(step.key, None, step)
