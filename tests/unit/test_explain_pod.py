"""explain pod from files: what each place says, what does not fit, and what was not read."""

import json

import pytest

from case_inputs import unpack
from podwire.errors import UsageError
from podwire.explain.pod import as_text, explain
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit

ID = "1" * 64


def pod(ip="10.244.1.7", node="node-a", **spec):
    return {
        "kind": "Pod",
        "metadata": {"name": "old-1", "namespace": "default"},
        "spec": {"nodeName": node, **spec},
        "status": {"podIP": ip, "phase": "Running"},
    }


def cached(address="10.244.1.7/24", **more):
    result = {
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "cni0"}, {"name": "veth9"}, {"name": "eth0", "sandbox": "/x"}],
        "ips": [{"address": address}],
        **more,
    }
    return json.dumps(
        {"kind": "cniCacheV1", "containerId": ID, "networkName": "cbr0", "ifName": "eth0", "result": result}
    )


@pytest.fixture
def node(tmp_path):
    """The node of case 30, mended, with the pod's traces; a function that writes more and explains."""
    unpack("30", tmp_path)
    links = [
        {
            "ifindex": 2,
            "ifname": "cni0",
            "mtu": 1450,
            "flags": ["UP"],
            "linkinfo": {"info_kind": "bridge"},
            "addr_info": [{"family": "inet", "local": "10.244.1.1", "prefixlen": 24, "scope": "global"}],
        },
        {
            "ifindex": 9,
            "ifname": "veth9",
            "mtu": 1450,
            "flags": ["UP"],
            "master": "cni0",
            "linkinfo": {"info_kind": "veth", "info_slave_data": {"hairpin": True}},
            "addr_info": [],
        },
    ]
    files = {
        "ip-addr.json": json.dumps(links),
        "pods.json": json.dumps({"kind": "PodList", "items": [pod()]}),
        "ip-route.txt": "10.244.1.0/24 dev cni0 proto kernel scope link src 10.244.1.1\n",
        "var-lib-cni/networks/cbr0/10.244.1.7": f"{ID}\r\neth0",
        f"var-lib-cni/results/cbr0-{ID}-eth0": cached(),
        f"var-lib-cni/flannel/{ID}": json.dumps(
            {"type": "bridge", "mtu": 1450, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]]}}
        ),
    }

    def ask(**changes):
        for path, text in {**files, **{key: value for key, value in changes.items() if value is not None}}.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        for path in (key for key, value in changes.items() if value is None):
            (tmp_path / path).unlink()
        return explain(load([str(tmp_path)]), "default", "old-1")

    return ask


def problems(way):
    return [step.problem for step in way.steps if step.problem]


def test_a_pod_whose_places_agree_has_no_problem(node):
    way = node()
    assert (
        way.answer == "default/old-1 has 10.244.1.7 on node-a: host-local took it from the node's podCIDR 10.244.1.0/24"
    )
    assert problems(way) == []
    said = {step.title: step.said for step in way.steps}
    assert "veth9, a port of cni0 (hairpin on, mtu 1450)" in said["veth pair and bridge port"]
    assert "node-a delivers packets for 10.244.1.7 to cni0" in said["Routes on its node"]
    assert all(where for step in way.steps for _, where in step.read)
    assert "from var-lib-cni/networks/cbr0/10.244.1.7" in as_text(way)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"var-lib-cni/networks/cbr0/10.244.1.7": "2" * 64}, "10.244.1.7 is reserved for another container (222222222222)"),
        ({"var-lib-cni/networks/cbr0/10.244.1.7": None}, "not in the input"),
        ({f"var-lib-cni/results/cbr0-{ID}-eth0": cached("10.244.1.8/24")}, "the chain answered 10.244.1.8/24, the API says 10.244.1.7"),
        ({f"var-lib-cni/flannel/{ID}": "{"}, "flannel's delegated configuration is broken"),
        ({"subnet.env": "FLANNEL_SUBNET=10.244.4.1/24\n"}, "subnet.env says 10.244.4.0/24, the Node says 10.244.1.0/24"),
        ({"ip-route.txt": "default via 192.0.2.1 dev eth0\n"}, "node-a sends packets for 10.244.1.7 to eth0, the pod hangs on cni0"),
        ({"05-x.conflist": "{"}, "05-x.conflist comes first and is broken: containerd stops there"),
        ({"pods.json": json.dumps({"kind": "PodList", "items": [pod("10.88.0.4")]})}, "10.88.0.4 is not of the node's podCIDR 10.244.1.0/24"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(node, changes, problem):
    way = node(**changes)
    assert problem in problems(way) or any(problem in step.said for step in way.steps)


def test_a_bridge_of_an_earlier_lease_is_said(tmp_path):
    unpack("30", tmp_path)
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "PodList", "items": [pod("10.244.3.7")]}))
    assert (
        "but 10.244.3.7 is not of the node's podCIDR 10.244.1.0/24"
        in explain(load([str(tmp_path)]), "default", "old-1").answer
    )


def test_a_pod_of_the_hosts_network_needs_no_plugin(node):
    way = node(**{"pods.json": json.dumps({"kind": "PodList", "items": [pod("192.0.2.11", hostNetwork=True)]})})
    assert "no CNI plugin is called for it" in way.answer


def test_what_nobody_knows_is_an_error_that_says_where_to_look(tmp_path):
    unpack("30", tmp_path)
    with pytest.raises(UsageError, match="nothing in the input knows it"):
        explain(load([str(tmp_path)]), "default", "nobody")
    (tmp_path / "pods.json").write_text(
        json.dumps(
            {"kind": "PodList", "items": [{**pod(node="node-z"), "metadata": {"name": "far", "namespace": "default"}}]}
        )
    )
    with pytest.raises(UsageError, match="it runs on node-z, which is not in the input"):
        explain(load([str(tmp_path)]), "default", "far")
