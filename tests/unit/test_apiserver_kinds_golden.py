"""Objects of a real API server: accepted as they are, and made again from what people write of them."""

from __future__ import annotations

import copy
import pathlib

import pytest
import yaml
from kinds_world import Cluster

pytestmark = pytest.mark.unit

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "kinds" / "golden"
SCENARIOS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
OURS = ("uid", "creationTimestamp", "resourceVersion", "generation")
FILLED_IN = ("sessionAffinity", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy", "clusterIPs")


def load(scenario: str) -> tuple[Cluster, list[dict]]:
    text = (FOLDER / f"{scenario}.yaml").read_text()
    ranges = text.splitlines()[0].removeprefix("# Service ranges: ").split()
    objects = list(yaml.safe_load_all(text))
    cluster = Cluster(ranges=tuple(ranges))
    for name in sorted({o["metadata"].get("namespace", "default") for o in objects} - {"default", "kube-system"}):
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return cluster, objects


def bare(obj: dict) -> dict:
    metadata = {key: value for key, value in obj["metadata"].items() if key not in OURS}
    return {**obj, "metadata": metadata}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_object_of_a_real_api_server_comes_back_as_it_was(scenario: str) -> None:
    cluster, objects = load(scenario)
    for obj in objects:
        made = cluster.create(copy.deepcopy(obj))
        if obj["kind"] == "Service" and obj["status"] != {"loadBalancer": {}}:
            assert made["status"] == {"loadBalancer": {}}  # a status is not taken from a create
            made = cluster.update({**made, "status": copy.deepcopy(obj["status"])}, "status")
        assert bare(made) == obj


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_defaults_of_a_service_are_those_of_a_real_api_server(scenario: str) -> None:
    cluster, objects = load(scenario)
    for obj in objects:
        if obj["kind"] != "Service":
            continue
        written = copy.deepcopy(obj)
        spec = written["spec"]
        written.pop("status")
        two = len(spec.get("ipFamilies", ())) > 1 and spec["clusterIP"] != "None"
        for key in FILLED_IN:
            if not (two and key in {"clusterIPs", "ipFamilyPolicy"}) and spec.get(key) not in ("Local", "ClientIP"):
                spec.pop(key, None)
        if "IPv6" in obj["spec"].get("ipFamilies", ())[:1]:
            spec["ipFamilies"] = obj["spec"]["ipFamilies"][:1]
        if obj["spec"].get("externalTrafficPolicy") == "Cluster":
            spec.pop("externalTrafficPolicy")
        for port in spec.get("ports", ()):
            if port["protocol"] == "TCP":
                port.pop("protocol")
            if port["targetPort"] == port["port"]:
                port.pop("targetPort")
        assert cluster.create(written)["spec"] == obj["spec"], obj["metadata"]["name"]
