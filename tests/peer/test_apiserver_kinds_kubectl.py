"""What people see: every kind through the real kubectl, against a real server process on loopback."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed"),
]


class Kubectl:
    def __init__(self, folder: pathlib.Path) -> None:
        self.env = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig"), "HOME": str(folder)}

    def run(self, *args: str, stdin: str = "") -> subprocess.CompletedProcess:
        command = ["kubectl", *args]
        return subprocess.run(
            command, env=self.env, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    def __call__(self, *args: str, stdin: str = "") -> str:
        result = self.run(*args, stdin=stdin)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def refused(self, *args: str, stdin: str = "") -> str:
        result = self.run(*args, stdin=stdin)
        assert result.returncode != 0, result.stdout
        return result.stderr.strip()

    def table(self, *args: str) -> list[list[str]]:
        """The cells of `kubectl get`, split where a column begins; ages are written as AGE."""
        header, *lines = self("get", *args).splitlines()
        starts = [match.start() for match in re.finditer(r"(?<!\S)\S+(?: \S+)*", header)]
        ends = [*starts[1:], None]
        rows = [[line[a:b].strip() for a, b in zip(starts, ends, strict=True)] for line in [header, *lines]]
        places = [index for index, name in enumerate(rows[0]) if name in {"AGE", "LAST SEEN", "FIRST SEEN"}]
        for row in rows[1:]:
            for place in places:
                row[place] = "AGE" if re.fullmatch(r"\d+[smh](\d+[smh])?", row[place]) else row[place]
        return rows


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("apiserver")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    program = pathlib.Path(sys.executable).parent / "podwire"
    flags = ["--data-dir", str(folder / "data"), "--bind-address", "127.0.0.1", "--secure-port", port]
    log = (folder / "log").open("wb")
    command = [program, "apiserver", *flags, "--kubeconfig-out", str(folder / "kubeconfig")]
    server = subprocess.Popen(command, stderr=log, stdout=log)
    try:
        deadline = time.monotonic() + 20
        while not (folder / "kubeconfig").exists():
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.05)
        yield Kubectl(folder)
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
        log.close()


NODE = """
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDR: 10.244.1.0/24}
status:
  conditions: [{type: Ready, status: "True", reason: KubeletReady, message: ok}]
  addresses: [{type: InternalIP, address: 10.0.0.1}, {type: Hostname, address: node-1}]
  nodeInfo: {kubeletVersion: v1.34.0, osImage: Debian, kernelVersion: "6.1", containerRuntimeVersion: "podwire://1",
    machineID: "", systemUUID: "", bootID: "", kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}
"""

EVENT = """
apiVersion: v1
kind: Event
metadata: {name: seen.1, namespace: default}
involvedObject: {apiVersion: v1, kind: Pod, name: seen, namespace: default, uid: UID}
type: Warning
reason: FailedCreatePodSandBox
message: no network
count: 3
firstTimestamp: "2026-01-01T00:00:00Z"
lastTimestamp: "2026-01-01T00:00:00Z"
source: {component: kubelet, host: node-1}
"""

LEASE = """
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: l}
spec: {holderIdentity: me}
"""

SLICE = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: e}
addressType: IPv4
endpoints: [{addresses: [10.244.1.5]}]
ports: [{port: 80}, {name: b, port: 81}]
"""

APPLIED = """
apiVersion: v1
kind: Service
metadata: {name: again}
spec: {type: NodePort, selector: {app: again}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: again}
spec:
  selector: {matchLabels: {app: again}}
  template:
    metadata: {labels: {app: again}}
    spec: {containers: [{name: c, image: "nginx:1", ports: [{containerPort: 80}], env: [{name: A, value: b}]}]}
"""


def test_a_deployment_made_by_kubectl(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "front", "--image=nginx:1.27", "--replicas=2", "--port=80")
    assert kubectl.table("deployments", "-o", "wide") == [
        ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE", "CONTAINERS", "IMAGES", "SELECTOR"],
        ["front", "0/2", "0", "0", "AGE", "nginx", "nginx:1.27", "app=front"],
    ]
    kubectl("scale", "deployment", "front", "--replicas=5")
    assert kubectl("get", "deploy", "front", "-o", "jsonpath={.spec.replicas} {.metadata.generation}") == "5 2"
    assert "25% max unavailable, 25% max surge" in kubectl("describe", "deployment", "front")


def test_services_made_by_kubectl(kubectl: Kubectl) -> None:
    kubectl("create", "service", "nodeport", "vote", "--tcp=80:8080", "--node-port=30450")
    address = kubectl("get", "service", "vote", "-o", "jsonpath={.spec.clusterIP}")
    assert kubectl.table("service", "vote", "-o", "wide") == [
        ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"],
        ["vote", "NodePort", address, "<none>", "80:30450/TCP", "AGE", "app=vote"],
    ]
    kubectl("create", "service", "externalname", "away", "--external-name=example.com")
    assert kubectl.table("service", "away")[1] == ["away", "ExternalName", "<none>", "example.com", "<none>", "AGE"]
    assert "NodePort:                 80-8080  30450/TCP" in kubectl("describe", "service", "vote")


def test_a_refused_service_says_which_field_and_why(kubectl: Kubectl) -> None:
    kubectl("create", "service", "nodeport", "first", "--tcp=80", "--node-port=30080")
    path = "spec.ports[0].nodePort: Invalid value: "
    assert kubectl.refused("create", "service", "nodeport", "second", "--tcp=80", "--node-port=30080").endswith(
        f'Service "second" is invalid: {path}30080: provided port is already allocated'
    )
    assert kubectl.refused("create", "service", "nodeport", "second", "--tcp=80", "--node-port=80").endswith(
        f'Service "second" is invalid: {path}80: provided port is not in the valid range. The range of valid ports is '
        "30000-32767"
    )
    assert kubectl.refused("create", "service", "clusterip", "second", "--tcp=80", "--clusterip=10.96.0.1").endswith(
        'Service "second" is invalid: spec.clusterIPs: Invalid value: ["10.96.0.1"]: failed to allocate IP 10.96.0.1: '
        "provided IP is already allocated"
    )


def test_a_pod_and_a_node(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=NODE)
    assert kubectl.table("nodes", "-o", "wide") == [
        [
            *("NAME", "STATUS", "ROLES", "AGE", "VERSION", "INTERNAL-IP", "EXTERNAL-IP"),
            *("OS-IMAGE", "KERNEL-VERSION", "CONTAINER-RUNTIME"),
        ],
        ["node-1", "Ready", "<none>", "AGE", "v1.34.0", "10.0.0.1", "<none>", "Debian", "6.1", "podwire://1"],
    ]
    kubectl("cordon", "node-1")
    assert kubectl.table("nodes")[1][1] == "Ready,SchedulingDisabled"
    kubectl("run", "p", "--image=nginx")
    assert kubectl.table("pods", "-o", "wide") == [
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED NODE", "READINESS GATES"],
        ["p", "0/1", "Pending", "0", "AGE", "<none>", "<none>", "<none>", "<none>"],
    ]
    assert kubectl("get", "pods", "--field-selector", "status.phase=Pending", "-o", "name") == "pod/p\n"
    assert kubectl("get", "pods", "--field-selector", "spec.nodeName=node-1", "-o", "name") == ""
    assert "BestEffort" in kubectl("describe", "pod", "p")
    kubectl("delete", "pod", "p")


def test_events_are_shown_and_found_by_their_object(kubectl: Kubectl) -> None:
    kubectl("run", "seen", "--image=nginx")
    uid = kubectl("get", "pod", "seen", "-o", "jsonpath={.metadata.uid}")
    kubectl("create", "-f", "-", stdin=EVENT.replace("UID", uid))
    header, row = kubectl.table("events", "--field-selector", "involvedObject.name=seen")
    assert header == ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert row[1:] == ["Warning", "FailedCreatePodSandBox", "pod/seen", "no network"]
    assert "FailedCreatePodSandBox" in kubectl("describe", "pod", "seen")
    assert "FailedCreatePodSandBox" in kubectl("events", "--for", "pod/seen")


def test_the_other_kinds(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "settings", "--from-literal=a=b")
    assert kubectl.table("configmaps") == [["NAME", "DATA", "AGE"], ["settings", "1", "AGE"]]
    kubectl("create", "serviceaccount", "robot")
    assert kubectl.table("serviceaccounts") == [["NAME", "SECRETS", "AGE"], ["robot", "0", "AGE"]]
    kubectl("create", "namespace", "demo")
    assert ["demo", "Active", "AGE"] in kubectl.table("namespaces")
    kubectl("create", "-f", "-", stdin=LEASE)
    assert kubectl.table("leases") == [["NAME", "HOLDER", "AGE"], ["l", "me", "AGE"]]
    kubectl("create", "-f", "-", stdin=SLICE)
    assert kubectl.table("endpointslices", "e") == [
        ["NAME", "ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"],
        ["e", "IPv4", "80,81", "10.244.1.5", "AGE"],
    ]


def test_what_was_applied_can_be_applied_again_without_a_change(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=APPLIED)
    before = kubectl("get", "service,deployment", "again", "-o", "json")
    assert kubectl("apply", "-f", "-", stdin=APPLIED) == "service/again unchanged\ndeployment.apps/again unchanged\n"
    assert kubectl("get", "service,deployment", "again", "-o", "json") == before
    changed = APPLIED.replace("type: NodePort", "type: ClusterIP").replace("value: b", "value: c")
    assert kubectl("apply", "-f", "-", stdin=changed) == "service/again configured\ndeployment.apps/again configured\n"
    assert kubectl("get", "service", "again", "-o", "jsonpath={.spec.ports}") == (
        '[{"port":80,"protocol":"TCP","targetPort":80}]'
    )
