"""The real kubectl is the judge of the API server: what a user types, what is printed, which exit status.

Needs no lab and no root: a server process on loopback. `KUBECTLS` may list several kubectl programs (separated as in
PATH); each walks the whole way. Without it the one on PATH does.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "unit"))

from apiserver_process import Server

PROGRAMS = [path for path in os.environ.get("KUBECTLS", "").split(os.pathsep) if path] or [shutil.which("kubectl")]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(PROGRAMS == [None], reason="kubectl is not installed"),
]


class Kubectl:
    """One kubectl program against one server, as a user with a home of their own."""

    def __init__(self, program, server):
        self.program = program
        self.server = server
        self.folder = server.folder
        self.env = {**os.environ, "KUBECONFIG": str(server.kubeconfig), "HOME": str(server.folder)}

    def run(self, *arguments, stdin="", timeout=60, **env):
        return subprocess.run(
            [self.program, *arguments], env={**self.env, **env}, input=stdin, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def __call__(self, *arguments, stdin="", **env):
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *arguments, stdin="", **env):
        done = self.run(*arguments, stdin=stdin, **env)
        assert done.returncode != 0, f"kubectl {' '.join(arguments)}: {done.stdout}"
        return done.stderr.strip()

    def get(self, target, path):
        return self("get", *target.split(), "-o", f"jsonpath={{{path}}}")

    def file(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def later(self, seconds, *arguments):
        """Run something while the test waits for it in another kubectl."""
        thread = threading.Timer(seconds, lambda: self(*arguments))
        thread.start()
        return thread


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda path: os.path.basename(str(path)))
def kubectl(tmp_path_factory, request):
    server = Server(tmp_path_factory.mktemp("apiserver")).start()
    yield Kubectl(request.param, server)
    server.stop()


@pytest.fixture(autouse=True)
def _fresh(kubectl):
    """Each test has namespace default for itself."""
    yield
    kubectl("delete", "deploy,rs,pod,cm", "--all", "--force", "--grace-period=0", "--wait=false")
    kubectl("delete", "svc", "--field-selector=metadata.name!=kubernetes")


NODE = """
apiVersion: v1
kind: Node
metadata: {name: %s}
status:
  addresses: [{type: InternalIP, address: 172.30.0.11}]
  conditions: [{type: Ready, status: "True", reason: KubeletReady, message: ok}]
"""

APP = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: app, labels: {tier: front}}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec:
      containers:
      - {name: a, image: "img:1", env: [{name: ONE, value: "1"}, {name: TWO, value: "2"}], ports: [{containerPort: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {type: NodePort, selector: {app: app}, ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30451}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {a: "1", b: "2"}
"""

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: %s
"""


def test_discovery_shows_what_is_served(kubectl):
    assert re.search(r"Server Version: v1\.34\.0\+podwire", kubectl("version"))
    names = kubectl("api-resources", "-o", "name").split()
    assert {"pods", "nodes", "services", "deployments.apps", "endpointslices.discovery.k8s.io"} <= set(names)
    assert re.search(r"^services +svc +v1 +true +Service$", kubectl("api-resources"), re.MULTILINE)
    assert kubectl("api-versions").split() == ["apps/v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1", "v1"]
    assert f"https://127.0.0.1:{kubectl.server.port}" in kubectl("cluster-info")


def test_explain_knows_fields_and_their_prose(kubectl):
    text = kubectl("explain", "deployment.spec.strategy.rollingUpdate.maxSurge")
    assert "FIELD: maxSurge <IntOrString>" in text
    text = kubectl("explain", "pod.spec.containers")
    assert "FIELD: containers <[]Container>" in text
    assert re.search(r"^  image\t<string>$", text, re.MULTILINE)
    assert re.search(r"^  name\t<string> -required-$", text, re.MULTILINE)


def test_create_commands_post_protobuf_and_are_answered(kubectl):
    assert kubectl("create", "deployment", "web", "--image=nginx", "--port=80") == "deployment.apps/web created\n"
    assert kubectl("create", "configmap", "c", "--from-literal=a=1") == "configmap/c created\n"
    assert (
        kubectl("create", "service", "nodeport", "web", "--tcp=80:80", "--node-port=30450") == "service/web created\n"
    )
    assert kubectl("create", "namespace", "made") == "namespace/made created\n"
    assert kubectl("run", "p", "--image=busybox", "--command", "--", "sleep", "1") == "pod/p created\n"
    assert kubectl("delete", "namespace", "made").startswith('namespace "made" deleted')


def test_get_has_the_real_columns(kubectl):
    kubectl("create", "-f", "-", stdin=NODE % "n1")
    kubectl("create", "deployment", "web", "--image=nginx")
    kubectl("expose", "deployment", "web", "--port=80", "--type=NodePort")
    overrides = '{"spec":{"nodeName":"n1"}}'
    kubectl("run", "p", "--image=busybox", f"--overrides={overrides}")
    heads = {
        "nodes": "NAME STATUS ROLES AGE VERSION",
        "ns": "NAME STATUS AGE",
        "deploy": "NAME READY UP-TO-DATE AVAILABLE AGE",
        "svc": "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE",
        "pods": "NAME READY STATUS RESTARTS AGE",
    }
    for kind, head in heads.items():
        assert kubectl("get", kind).splitlines()[0].split() == head.split()
    wide = kubectl("get", "pods", "-o", "wide").splitlines()
    assert re.split(r"  +", wide[0])[-4:] == ["IP", "NODE", "NOMINATED NODE", "READINESS GATES"]
    assert re.split(r"  +", wide[1])[-3] == "n1"
    assert kubectl("get", "svc,deploy", "-o", "name").split() == [
        "service/kubernetes",
        "service/web",
        "deployment.apps/web",
    ]
    assert kubectl.get("deploy web", ".spec.template.spec.containers[0].image") == "nginx"
    assert "\n  clusterIP: 10.96." in kubectl("get", "svc", "web", "-o", "yaml")
    assert '"kind": "Service"' in kubectl("get", "svc", "web", "-o", "json")
    assert kubectl("get", "pods", "--field-selector", "spec.nodeName=n1", "-o", "name") == "pod/p\n"
    assert kubectl("get", "pods", "--field-selector", "spec.nodeName!=n1", "-o", "name") == ""
    assert kubectl("get", "pods", "-l", "run in (p,q),!x", "-o", "name") == "pod/p\n"
    assert "run=p" in kubectl("get", "pods", "--show-labels")
    assert kubectl("get", "pods", "-o", "custom-columns=NODE:.spec.nodeName").split() == ["NODE", "n1"]
    assert "deployment.apps/web" in kubectl("get", "all", "-A")
    kubectl("delete", "node", "n1")


def test_get_follows_changes_with_watch(kubectl):
    kubectl("create", "configmap", "a")
    process = subprocess.Popen(
        [kubectl.program, "get", "cm", "-w", "--no-headers"], env=kubectl.env, stdout=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline()]
    for arguments in (["create", "cm", "b"], ["patch", "cm", "b", "-p", '{"data":{"x":"1"}}'], ["delete", "cm", "a"]):
        kubectl(*arguments)
        lines.append(process.stdout.readline())
    process.terminate()
    process.communicate()
    assert [line.split()[:2] for line in lines] == [["a", "0"], ["b", "0"], ["b", "1"], ["a", "0"]]


def test_describe_tells_the_story(kubectl):
    kubectl("apply", "-f", "-", stdin=APP)
    text = kubectl("describe", "deployment", "app")
    assert re.search(r"^RollingUpdateStrategy: +25% max unavailable, 25% max surge$", text, re.MULTILINE)
    text = kubectl("describe", "service", "app")
    assert re.search(r"^NodePort: +http  30451/TCP$", text, re.MULTILINE)
    kubectl("run", "p", "--image=busybox")
    assert re.search(r"^QoS Class: +BestEffort$", kubectl("describe", "pod", "p"), re.MULTILINE)
    assert re.search(r"^Status: +Active$", kubectl("describe", "ns", "default"), re.MULTILINE)


def test_apply_creates_changes_and_takes_fields_away(kubectl):
    path = kubectl.file("app.yaml", APP)
    assert kubectl("apply", "-f", path).split("\n")[:3] == [
        "deployment.apps/app created",
        "service/app created",
        "configmap/conf created",
    ]
    assert kubectl("apply", "-f", path).count("unchanged") == 3
    kubectl("scale", "deploy", "app", "--replicas=5")
    changed = APP.replace(', {name: TWO, value: "2"}', "").replace("img:1", "img:2").replace('b: "2"', 'c: "3"')
    changed = changed.replace("  replicas: 2\n", "").replace("labels: {tier: front}", "labels: {}")
    path = kubectl.file("app.yaml", changed)
    difference = kubectl.run("diff", "-f", path)
    assert (difference.returncode, '-  b: "2"\n+  c: "3"' in difference.stdout) == (1, True)
    assert kubectl("apply", "-f", path, "--dry-run=server").count("configured (server dry run)") == 2
    assert kubectl("apply", "-f", path).count("configured") == 2
    container = kubectl.get("deploy app", ".spec.template.spec.containers[0]")
    assert ('"image":"img:2"' in container, "TWO" in container, "ONE" in container) == (True, False, True)
    assert kubectl.get("cm conf", ".data") == '{"a":"1","c":"3"}'
    assert kubectl.get("deploy app", ".metadata.labels.tier") == ""
    assert kubectl.get("deploy app", ".spec.replicas") == "1"
    assert kubectl("replace", "-f", path).count("replaced") == 3
    assert kubectl("delete", "-f", path).count("deleted") == 3


def test_edit_with_an_editor(kubectl):
    kubectl("apply", "-f", "-", stdin=APP)
    editor = kubectl.file("editor", '#!/bin/sh\nsed -i "s/replicas: 2/replicas: 7/" "$1"\n')
    os.chmod(editor, 0o755)
    assert kubectl("edit", "deploy", "app", KUBE_EDITOR=editor) == "deployment.apps/app edited\n"
    assert kubectl.get("deploy app", ".spec.replicas") == "7"
    assert "no changes" in kubectl.run("edit", "deploy", "app", KUBE_EDITOR="true").stderr


def test_patch_label_annotate_set(kubectl):
    kubectl("create", "deployment", "web", "--image=nginx")
    patch = '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"s"}]}}}}'
    kubectl("patch", "deploy", "web", "-p", patch)
    assert kubectl.get("deploy web", ".spec.template.spec.containers[*].name") in {"side nginx", "nginx side"}
    kubectl("patch", "deploy", "web", "--type=merge", "-p", '{"metadata":{"annotations":{"a":"b"}}}')
    operations = '[{"op":"test","path":"/spec/replicas","value":1},{"op":"replace","path":"/spec/replicas","value":4}]'
    kubectl("patch", "deploy", "web", "--type=json", "-p", operations)
    assert kubectl.get("deploy web", ".spec.replicas") == "4"
    assert kubectl.refused("patch", "deploy", "web", "--type=json", "-p", operations) == (
        "The request is invalid: the server rejected our request due to an error in our request"
    )
    kubectl("label", "deploy", "web", "x=1")
    assert "already has a value" in kubectl.refused("label", "deploy", "web", "x=2")
    kubectl("label", "deploy", "web", "x-")
    kubectl("annotate", "deploy", "web", "note=hello world")
    kubectl("set", "image", "deploy/web", "nginx=nginx:2")
    kubectl("set", "env", "deploy/web", "Q=1")
    assert "nginx:2" in kubectl.get("deploy web", ".spec.template.spec.containers[*].image")


def test_scale_and_rollout(kubectl):
    kubectl("create", "deployment", "web", "--image=nginx", "--replicas=2")
    assert kubectl("scale", "deploy", "web", "--replicas=3") == "deployment.apps/web scaled\n"
    assert "Expected replicas to be 9, was 3" in kubectl.refused(
        "scale", "deploy/web", "--replicas=4", "--current-replicas=9"
    )
    status = (
        '{"status":{"observedGeneration":9,"replicas":3,"updatedReplicas":3,"readyReplicas":3,"availableReplicas":3,'
        '"conditions":[{"type":"Available","status":"True","reason":"MinimumReplicasAvailable","message":"ok"}]}}'
    )
    patch = ["patch", "deploy", "web", "--subresource=status", "--type=merge", "-p", status]
    later = kubectl.later(0.5, *patch)
    assert 'deployment "web" successfully rolled out' in kubectl("rollout", "status", "deploy/web", "--timeout=20s")
    later.join()
    assert kubectl("get", "deploy", "web", "--no-headers").split()[1] == "3/3"
    kubectl("rollout", "restart", "deploy/web")
    kubectl("wait", "--for=condition=Available", "deploy/web", "--timeout=5s")


def test_delete_waits_for_the_kubelets_part(kubectl):
    kubectl("run", "p", "--image=busybox", '--overrides={"spec":{"nodeName":"n1"}}')
    later = kubectl.later(1, "delete", "pod", "p", "--force", "--grace-period=0")
    begun = time.monotonic()
    assert kubectl("delete", "pod", "p").startswith('pod "p" deleted')
    assert time.monotonic() - begun > 0.8
    later.join()
    kubectl("run", "p", "--image=busybox", '--overrides={"spec":{"nodeName":"n1"}}')
    kubectl("delete", "pod", "p", "--wait=false")
    assert kubectl("get", "pod", "p", "--no-headers").split()[2] == "Terminating"
    later = kubectl.later(0.5, "delete", "pod", "p", "--force", "--grace-period=0")
    kubectl("wait", "--for=delete", "pod/p", "--timeout=10s")
    later.join()


def test_cascade_is_a_finalizer_for_the_collector(kubectl):
    for policy, finalizer in (("foreground", "foregroundDeletion"), ("orphan", "orphan")):
        kubectl("create", "deployment", "web", "--image=nginx")
        kubectl("delete", "deploy", "web", f"--cascade={policy}", "--wait=false")
        assert kubectl.get("deploy web", ".metadata.finalizers") == f'["{finalizer}"]'
        kubectl("patch", "deploy", "web", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_wait_for_a_field_and_a_condition(kubectl):
    kubectl("run", "p", "--image=busybox", '--overrides={"spec":{"nodeName":"n1"}}')
    status = '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'
    later = kubectl.later(0.5, "patch", "pod", "p", "--subresource=status", "--type=merge", "-p", status)
    assert kubectl("wait", "--for=condition=Ready", "pod/p", "--timeout=10s") == "pod/p condition met\n"
    later.join()
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/p", "--timeout=5s")


def test_nodes_are_cordoned_tainted_and_drained(kubectl):
    kubectl("create", "-f", "-", stdin=NODE % "n2")
    kubectl("cordon", "n2")
    assert kubectl("get", "node", "n2", "--no-headers").split()[1] == "Ready,SchedulingDisabled"
    kubectl("uncordon", "n2")
    kubectl("taint", "node", "n2", "a=b:NoSchedule")
    assert "a=b:NoSchedule" in kubectl("describe", "node", "n2")
    kubectl("drain", "n2")
    kubectl("delete", "node", "n2")


REFUSALS = [
    ("get pod nope", 'Error from server (NotFound): pods "nope" not found'),
    ("get deploy nope", 'Error from server (NotFound): deployments.apps "nope" not found'),
    ("delete svc nope", 'Error from server (NotFound): services "nope" not found'),
    ("get nothings", 'error: the server doesn\'t have a resource type "nothings"'),
    ("create cm a -n nowhere", 'error: failed to create configmap: namespaces "nowhere" not found'),
    (
        "delete ns default",
        'Error from server (Forbidden): namespaces "default" is forbidden: this namespace may not be deleted',
    ),
    (
        "create service clusterip c --tcp=80:80 --clusterip=10.97.0.1",
        (
            'Service "c" is invalid: spec.clusterIPs: Invalid value: ["10.97.0.1"]: failed to allocate IP 10.97.0.1: '
            "provided IP is not in the valid range. The range of valid IPs is 10.96.0.0/16"
        ),
    ),
    (
        "create service nodeport n --tcp=80:80 --node-port=80",
        (
            "spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. The range of valid ports is "
            "30000-32767"
        ),
    ),
    ("get pods --field-selector spec.foo=1", "field label not supported: spec.foo"),
    ("logs here", "Error from server (NotImplemented): podwire's API server does not serve pods/log"),
    ("exec here -- ls", "podwire's API server does not serve pods/exec"),
    ("attach here", "podwire's API server does not serve pods/attach"),
    ("top node", "error: Metrics API not available"),
    ("auth can-i get pods", "the server could not find the requested resource"),
]


@pytest.mark.parametrize(("command", "words"), REFUSALS, ids=[command for command, _ in REFUSALS])
def test_a_refusal_reads_as_from_a_real_server(kubectl, command, words):
    if "here" in command:
        kubectl("run", "here", "--image=x")
    assert words in kubectl.refused(*command.split())


def test_names_and_ports_that_are_taken(kubectl):
    kubectl("create", "service", "nodeport", "a", "--tcp=80:80", "--node-port=30460")
    assert kubectl.refused("create", "service", "nodeport", "b", "--tcp=80:80", "--node-port=30460").endswith(
        "spec.ports[0].nodePort: Invalid value: 30460: provided port is already allocated"
    )
    assert kubectl.refused("create", "-f", "-", stdin=SERVICE % ("a", "{ports: [{port: 1}]}")) == (
        'Error from server (AlreadyExists): error when creating "STDIN": services "a" already exists'
    )
    wrong = SERVICE % ("A", "{type: Foo, ports: [{port: 70000}]}")
    lines = kubectl.refused("create", "-f", "-", stdin=wrong).splitlines()
    assert lines[0].strip() == 'The Service "A" is invalid:'
    assert (
        '* spec.type: Unsupported value: "Foo": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'
        in lines
    )


def test_a_stale_manifest_is_a_conflict(kubectl):
    kubectl("create", "cm", "c", "--from-literal=a=1")
    old = kubectl("get", "cm", "c", "-o", "yaml")
    kubectl("patch", "cm", "c", "-p", '{"data":{"a":"2"}}')
    assert (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; please apply your changes to the latest version and try again'
        in kubectl.refused("replace", "-f", "-", stdin=old)
    )


def test_unknown_fields_are_found_by_the_server(kubectl):
    wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: u}\ndat: {a: b}\n"
    strict = kubectl.refused("create", "-f", "-", stdin=wrong)
    assert strict.startswith('Error from server (BadRequest): error when creating "STDIN": ConfigMap in version "v1"')
    assert strict.endswith('strict decoding error: unknown field "dat"')
    warned = kubectl.run("create", "-f", "-", "--validate=warn", stdin=wrong)
    assert (warned.returncode, 'Warning: unknown field "dat"' in warned.stderr) == (0, True)
    assert kubectl.run("apply", "-f", "-", "--validate=ignore", stdin=wrong).returncode == 0


def test_server_side_apply_is_refused_clearly(kubectl):
    body = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: s}\n"
    assert "podwire does not serve server-side apply" in kubectl.refused(
        "apply", "--server-side", "-f", "-", stdin=body
    )


def test_a_wrong_token_is_turned_away(kubectl):
    path = kubectl.file("wrong", kubectl.server.kubeconfig.read_text().replace("token: ", "token: x"))
    assert "You must be logged in to the server" in kubectl.refused("get", "pods", "--kubeconfig", path)
