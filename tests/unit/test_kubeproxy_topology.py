"""Which endpoints a service port uses on a node."""

from __future__ import annotations

import pytest

from podwire.kubeproxy.endpoints import Endpoint, merge
from podwire.kubeproxy.ports import ServicePort
from podwire.kubeproxy.topology import choose

pytestmark = pytest.mark.unit


def port(**fields):
    return ServicePort("ns/svc", "p", "ns/svc:p", "tcp", "10.96.0.1", 80, **fields)


def endpoint(name, local=False, state="ready", zones=(), nodes=()):
    conditions = {
        "ready": {"ready": True, "serving": True, "terminating": False},
        "not ready": {"ready": False, "serving": False, "terminating": False},
        "serving, not ready": {"ready": False, "serving": True, "terminating": False},
        "draining": {"ready": False, "serving": True, "terminating": True},
        "terminated": {"ready": False, "serving": False, "terminating": True},
    }[state]
    return Endpoint(name, name, 80, local=local, zones=frozenset(zones), nodes=frozenset(nodes), **conditions)


CLUSTER, LOCAL = port(), port(internal_local=True)
EXTERNAL_LOCAL = port(external_local=True, node_port=30000)
BOTH_LOCAL = port(internal_local=True, external_local=True, node_port=30000)


@pytest.mark.parametrize(
    ("what", "wanted", "endpoints", "cluster", "local", "reachable", "usable"),
    [
        ("nothing", CLUSTER, [], "", "", "", False),
        ("ready ones", CLUSTER, [endpoint("a"), endpoint("b", state="not ready")], "a", "", "a", True),
        ("no usable one", CLUSTER, [endpoint("a", state="serving, not ready")], "", "", "", False),
        ("draining only without ready", CLUSTER, [endpoint("a", state="draining"), endpoint("b")], "b", "", "b", True),
        (
            "draining as a fallback",
            CLUSTER,
            [endpoint("a", state="draining"), endpoint("b", state="terminated")],
            *("a", "", "a", True),
        ),
        ("local policy", LOCAL, [endpoint("a", local=True), endpoint("b")], "", "a", "a", True),
        ("local policy, only elsewhere", LOCAL, [endpoint("b")], "", "", "", True),
        ("external local", EXTERNAL_LOCAL, [endpoint("a", local=True), endpoint("b")], "ab", "a", "ab", True),
        (
            "the local set falls back by itself",
            EXTERNAL_LOCAL,
            [endpoint("a", local=True, state="draining"), endpoint("b")],
            *("b", "a", "ab", True),
        ),
        ("both local but exposed", BOTH_LOCAL, [endpoint("a", local=True), endpoint("b")], "ab", "a", "ab", True),
        ("zone hints", CLUSTER, [endpoint("a", zones=["z"]), endpoint("b", zones=["y"])], "a", "", "a", True),
        ("a hint is missing", CLUSTER, [endpoint("a", zones=["z"]), endpoint("b")], "ab", "", "ab", True),
        ("none for this zone", CLUSTER, [endpoint("a", zones=["y"]), endpoint("b", zones=["x"])], "ab", "", "ab", True),
        (
            "a missing hint of one that is not ready does not matter",
            CLUSTER,
            [endpoint("a", zones=["z"]), endpoint("b", state="not ready"), endpoint("c", zones=["y"])],
            *("a", "", "a", True),
        ),
        (
            "node hints come first",
            CLUSTER,
            [endpoint("a", zones=["z"], nodes=["m"]), endpoint("b", zones=["y"], nodes=["n"])],
            *("b", "", "b", True),
        ),
        (
            "node hints for others leave the zone's",
            CLUSTER,
            [endpoint("a", zones=["z"], nodes=["m"]), endpoint("b", zones=["y"], nodes=["k"])],
            *("a", "", "a", True),
        ),
        (
            "local policy ignores hints",
            EXTERNAL_LOCAL,
            [endpoint("a", local=True, zones=["y"]), endpoint("b", zones=["z"])],
            *("b", "a", "ab", True),
        ),
        ("draining ones ignore hints", CLUSTER, [endpoint("a", state="draining", zones=["y"])], "a", "", "a", True),
    ],
)
def test_endpoints_are_chosen(what, wanted, endpoints, cluster, local, reachable, usable):
    choice = choose(tuple(endpoints), wanted, "n", "z")
    names = ["".join(entry.address for entry in part) for part in (choice.cluster, choice.local, choice.reachable)]
    assert (*names, choice.any_usable) == (cluster, local, reachable, usable), what


def test_a_node_without_a_zone_follows_no_zone_hints():
    choice = choose((endpoint("a", zones=["z"]), endpoint("b", zones=["y"])), CLUSTER, "n", "")
    assert len(choice.cluster) == 2


def test_an_address_in_several_slices_counts_once_and_a_running_pod_wins():
    old, new = endpoint("10.0.0.1:80", state="draining"), endpoint("10.0.0.1:80")
    other = endpoint("10.0.0.10:80")
    assert merge([(old, other), (new,)]) == merge([(new,), (other, old)])
    assert [(entry.address, entry.ready) for entry in merge([(old,), (new,)])] == [("10.0.0.1:80", True)]
    # Sorted as text: '.' comes before ':'.
    assert [entry.address for entry in merge([(new, other)])] == ["10.0.0.10:80", "10.0.0.1:80"]
