"""The two articles, step by step, on a running lab: each step is a function that shows and checks.

`demo.py` walks through all of them; the end-to-end tests call each one by itself. Steps 2 to 7 need `deploy` first.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from walk import Walk

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 30450
TITLE = "<title>Azure Voting App</title>"
#: What of a page is worth showing: its title and who made it.
PAGE = r"<title>|azure-vote-front-"
FRONT = "-l app=azure-vote-front"


# -- looking around ------------------------------------------------------------------------------------------------


def nodes(walk: Walk) -> dict[str, str]:
    """Node name → InternalIP."""
    found = json.loads(walk.value("kubectl get nodes -o json"))["items"]
    return {node["metadata"]["name"]: node["status"]["addresses"][0]["address"] for node in found}


def pods(walk: Walk, selector: str) -> list[dict[str, str]]:
    """The running pods that a selector finds: name, ip, node."""
    found = json.loads(walk.value(f"kubectl get pods {selector} -o json"))["items"]
    return [
        {"name": pod["metadata"]["name"], "ip": pod["status"].get("podIP", ""), "node": pod["spec"].get("nodeName", "")}
        for pod in found
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def sandbox(walk: Walk, pod: dict[str, str]) -> str:
    """The ID of a pod's sandbox, out of host-local's file for the pod's address."""
    return walk.value(f"podwire node exec {pod['node']} -- head -n 1 /var/lib/cni/networks/cni0/{pod['ip']}").strip()


def in_pod(walk: Walk, pod: dict[str, str]) -> str:
    """The beginning of a command line that runs something in a pod's network namespace."""
    return f"podwire node exec {pod['node']} -- nsenter --net=/run/podwire/cri/netns/{sandbox(walk, pod)}"


def component_pid(walk: Walk, node: str, component: str) -> int:
    """The pid of a component, as the host sees it."""
    lab = json.loads(walk.value("podwire status --json", status=None))[0]  # type: ignore[arg-type]
    machine = next(machine for machine in lab["machines"] if machine["name"] == node)
    return int(next(c["pid"] for c in machine["components"] if c["name"] == component) or 0)


def answered_by(page: str) -> str:
    """Which front-end pod made a page."""
    found = re.search(r"azure-vote-front-[a-z0-9]+-[a-z0-9]+", page)
    return found[0] if found else ""


# -- the steps -----------------------------------------------------------------------------------------------------


def pod_cidrs(walk: Walk) -> None:
    """Step 1: every node has a podCIDR of its own out of the cluster CIDR."""
    cidrs = [walk.run(f"kubectl get no {node} -o json | jq -r .spec.podCIDR") for node in nodes(walk)]
    networks = [ipaddress.ip_network(cidr) for cidr in cidrs]
    cluster = ipaddress.ip_network("10.244.0.0/16")
    walk.check(all(network.prefixlen == 24 and network.subnet_of(cluster) for network in networks),
               f"each is a /24 of {cluster}")  # fmt: skip
    disjoint = all(not a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])
    walk.check(disjoint, "and no two of them overlap")


def new_cidr_after_reregistration(walk: Walk) -> None:
    """Step 1, second half, on a lab of one node: a podCIDR is for life; another range needs a new registration."""
    before = walk.run("kubectl get no node-1 -o json | jq -r .spec.podCIDR")
    walk.run("podwire node stop control-plane controller-manager")
    walk.run("kubectl delete node node-1")
    walk.run("podwire node start control-plane controller-manager -- --cluster-cidr=10.245.0.0/16")
    walk.run("podwire node stop node-1 kubelet && podwire node start node-1 kubelet")
    read = "kubectl get no node-1 -o json | jq -r .spec.podCIDR"
    walk.wait("the node is registered again and has a podCIDR",
              lambda: walk.value(read, status=None).startswith("10."))  # type: ignore[arg-type]  # fmt: skip
    after = walk.run(read)
    walk.check(before.startswith("10.244.") and after.startswith("10.245."), f"{before} became {after}")


def deploy(walk: Walk) -> None:
    """The two-tier voting app: front end and NodePort Service, back end (a real Redis) and ClusterIP Service."""
    manifest = os.path.join(HERE, "vote.yaml")
    walk.run(f"sed 's|@DIR@|{HERE}|; s|@PYTHON@|{sys.executable}|' {manifest} | kubectl apply -f -")
    walk.run("kubectl create deployment web --image=web --port=80 --replicas=4")
    for name in ("azure-vote-back", "azure-vote-front", "web"):
        walk.run(f"kubectl rollout status deployment {name} --timeout=30s", lines=1)
    walk.run("kubectl get pods,svc -o wide", lines=20)
    for node, address in nodes(walk).items():
        # The pods are Ready; that news goes on to the EndpointSlice and from there to every kube-proxy.
        walk.wait(f"{node} has the rules for port {PORT}", lambda a=address: TITLE in _page(walk, a))


def _page(walk: Walk, address: str) -> str:
    return walk.value(f"curl -sS --max-time 2 http://{address}:{PORT}/", status=None)


def how_a_pod_got_its_ip(walk: Walk) -> None:
    """Step 2: every file on the way from podCIDR to pod IP, on one node."""
    pod = pods(walk, FRONT)[0]
    node, identifier = pod["node"], sandbox(walk, pod)
    on = f"podwire node exec {node} --"
    walk.say(f"  {pod['name']} has {pod['ip']} on {node}. From where?")
    cidr = walk.run(f"kubectl get no {node} -o jsonpath='{{.spec.podCIDR}}'")
    conflist = json.loads(walk.run(f"{on} cat /etc/cni/net.d/10-flannel.conflist", lines=20))
    walk.check(
        "cniVersion" not in conflist and conflist["name"] == "cni0",
        "the article's conflist: network cni0, no cniVersion",
    )
    env = dict(line.split("=", 1) for line in walk.run(f"{on} cat /run/flannel/subnet.env").splitlines())
    walk.check(env == {"FLANNEL_NETWORK": "10.244.0.0/16", "FLANNEL_SUBNET": cidr.replace(".0/24", ".1/24"),
                       "FLANNEL_MTU": "1450", "FLANNEL_IPMASQ": "false"},
               "subnet.env holds the node's podCIDR, the VXLAN's MTU")  # fmt: skip
    bridge = json.loads(walk.run(f"{on} cat /var/lib/cni/flannel/{identifier} | jq .", lines=40))
    walk.check(bridge["type"] == "bridge" and bridge["name"] == "cni0" and bridge["mtu"] == 1450
               and cidr in json.dumps(bridge["ipam"]), "flannel made a bridge configuration of the two")  # fmt: skip
    walk.run(f"{on} ls /var/lib/cni/networks/cni0")
    held = walk.run(f"{on} cat /var/lib/cni/networks/cni0/{pod['ip']}").split()
    walk.check(held == [identifier, "eth0"], f"host-local's file {pod['ip']} holds the container ID and interface")
    gateway = walk.run(f"{on} ip -brief address show cni0")
    walk.check(env["FLANNEL_SUBNET"] in gateway, f"the bridge cni0 has the gateway's address {env['FLANNEL_SUBNET']}")
    ports = walk.run(f"{on} ip -brief link show master cni0").splitlines()
    on_node = [other for other in _all_pods(walk) if other["node"] == node]
    walk.check(len(ports) == len(on_node), f"one veth on the bridge for each of the {len(on_node)} pods of {node}")
    inside = walk.run(f"{in_pod(walk, pod)} ip -brief address show eth0")
    walk.check(f"{pod['ip']}/24" in inside, "and the pod's eth0 has the address")


def _all_pods(walk: Walk) -> list[dict[str, str]]:
    return pods(walk, "-A")


def pod_to_pod(walk: Walk) -> None:
    """Step 3: pods of one node meet on the bridge, pods of different nodes through VXLAN."""
    found = pods(walk, "-l app=web")
    per_node = Counter(pod["node"] for pod in found)
    first = next(pod for pod in found if per_node[pod["node"]] > 1)
    near = next(pod for pod in found if pod["node"] == first["node"] and pod is not first)
    far = next(pod for pod in found if pod["node"] != first["node"])
    here = in_pod(walk, first)
    for other, way in ((near, "on the same node, over the bridge"), (far, f"on {far['node']}, through VXLAN")):
        answer = walk.run(f"{here} curl -sS --max-time 5 http://{other['ip']}/")
        walk.check(other["name"] in answer and first["ip"] in answer,
                   f"{first['name']} reached {other['name']} {way}, and was seen as {first['ip']}")  # fmt: skip
    addresses = nodes(walk)
    capture = walk.background(
        ["podwire", "node", "exec", "underlay", "--", "tcpdump", "-nn", "-l", "-T", "vxlan", "-i", far["node"], "-c", "2",
         "udp port 8472 and host " + addresses[first["node"]]]
    )  # fmt: skip
    try:
        output = _until(capture, "listening on")
        walk.value(f"{here} curl -sS --max-time 5 http://{far['ip']}/")
        output += capture.communicate(timeout=10)[0].decode()
    finally:
        capture.kill()
        capture.wait()
    for line in output.splitlines():
        walk.say(f"    {line}")
    outer = re.search(
        rf"IP {re.escape(addresses[first['node']])}\.\d+ > {re.escape(addresses[far['node']])}\.8472: VXLAN, .*vni 1",
        output,
    )
    inner = re.search(rf"IP {re.escape(first['ip'])}\.\d+ > {re.escape(far['ip'])}\.80:", output)
    walk.check(outer is not None, "on the underlay it is a UDP packet from node to node, port 8472, VNI 1")
    walk.check(inner is not None, "and in it is the packet from pod to pod")


def _until(process: subprocess.Popen[bytes], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        line = process.stdout.readline()
        if not line:
            break
        seen += line.decode()
    return seen


def node_port(walk: Walk) -> None:
    """Step 4: the NodePort answers on every node, whoever runs the pods, and every endpoint gets its share."""
    front = pods(walk, FRONT)
    addresses = nodes(walk)
    without = [node for node in addresses if node not in {pod["node"] for pod in front}]
    walk.check(
        bool(without),
        f"the front end runs on {', '.join(sorted({pod['node'] for pod in front}))}, not on {', '.join(without)}",
    )
    for node, address in addresses.items():
        page = walk.run(f"curl -sS --max-time 5 http://{address}:{PORT}/", only=PAGE)
        walk.check(TITLE in page, f"{node} answered with the voting app, from {answered_by(page)}")
    page = walk.run(f"podwire node exec {without[0]} -- curl -sS --max-time 5 http://localhost:{PORT}/", only=PAGE)
    walk.check(TITLE in page, f"and so did localhost on {without[0]}")
    address = addresses[without[0]]
    names = walk.run(
        f"curl -sS --max-time 5 'http://{address}:{PORT}/?[1-200]' | grep -oE 'azure-vote-front-[a-z0-9]+-[a-z0-9]+' | sort | uniq -c"
    )
    walk.check(all(pod["name"] in names for pod in front), f"over 200 requests all {len(front)} endpoints answered")
    _vote(walk, address, len(front))
    chains(walk, without[0])
    holder = walk.run(f"podwire node exec {without[0]} -- lsof -nP -i:{PORT}")
    walk.check("LISTEN" in holder, "kube-proxy holds the port, as the article's lsof shows")


def _vote(walk: Walk, address: str, endpoints: int) -> None:
    """A vote cast through one front end is read through another: they share the Redis behind the ClusterIP."""
    walk.run(f"curl -sS --max-time 5 -d vote=reset http://{address}:{PORT}/", only=PAGE)
    page = walk.run(f"curl -sS --max-time 5 -d vote=Cats http://{address}:{PORT}/", only=PAGE)
    voter, counted = answered_by(page), _count(page)
    readers: dict[str, int] = {}
    for _ in range(100):
        page = walk.value(f"curl -sS --max-time 5 http://{address}:{PORT}/")
        readers[answered_by(page)] = _count(page)
        if len(readers) == endpoints:
            break
    others = {name: count for name, count in readers.items() if name != voter}
    walk.check(counted == 1 and bool(others) and set(others.values()) == {1},
               f"the vote through {voter} is read through {', '.join(others)}")  # fmt: skip


def _count(page: str) -> int:
    found = re.search(r"Cats\D{0,80}?(\d+)", re.sub(r"<[^>]*>", " ", page))
    return int(found[1]) if found else -1


def chains(walk: Walk, node: str) -> None:
    """The walk of the second article through the nat table, with one sentence a step."""
    show = f"podwire node exec {node} -- iptables -t nat -L"
    output = walk.run(f"{show} PREROUTING -n")
    walk.check("KUBE-SERVICES" in output, "every packet that comes in is shown to KUBE-SERVICES before it is routed")
    output = walk.run(f"{show} KUBE-SERVICES -n", lines=20)
    walk.check(
        output.splitlines()[-1].startswith("KUBE-NODEPORTS"),
        "its last rule: what is for an address of the node goes to KUBE-NODEPORTS",
    )
    output = walk.run(f"{show} KUBE-NODEPORTS -n | grep -E 'target|azure-vote-front'")
    external = _chain(output, "KUBE-EXT-")
    walk.check(bool(external), f"port {PORT} leads to {external}")
    output = walk.run(f"{show} {external} -n")
    service = _chain(output, "KUBE-SVC-")
    walk.check(
        "KUBE-MARK-MASQ" in output and bool(service),
        "it marks the packet for masquerade, so that the answer comes back this way",
    )
    output = walk.run(f"{show} {service} -n")
    endpoint = _chain(output, "KUBE-SEP-")
    walk.check("probability" in output, "the service's chain throws a die among the endpoints")
    output = walk.run(f"{show} {endpoint} -n")
    walk.check("DNAT" in output, "and the endpoint's chain changes the destination to the pod")
    output = walk.run(f"{show} KUBE-POSTROUTING -n")
    walk.check("MASQUERADE" in output, "on the way out, what was marked gets the node's address as source")


def _chain(text: str, prefix: str) -> str:
    found = re.search(rf"{prefix}[A-Z0-9]{{16}}", text)
    return found[0] if found else ""


def proxy_dead(walk: Walk) -> None:
    """Step 5: kube-proxy is killed; what it had written goes on, what is new waits for it."""
    addresses = nodes(walk)
    node = next(iter(addresses))
    address = addresses[node]
    kill_proxy(walk, node)
    page = walk.run(f"curl -sS --max-time 5 http://{address}:{PORT}/", only=PAGE)
    walk.check(TITLE in page, "the NodePort still answers, from outside")
    page = walk.run(f"podwire node exec {node} -- curl -sS --max-time 5 http://localhost:{PORT}/", only=PAGE)
    walk.check(TITLE in page, "and from the node itself")
    walk.run("kubectl expose deployment web --name=late --type=NodePort --port=80")
    port = walk.value("kubectl get svc late -o jsonpath='{.spec.ports[0].nodePort}'")
    other = next(a for n, a in addresses.items() if n != node)
    walk.wait(f"a new Service is reached through another node (:{port})", lambda: _answers(walk, other, port))
    walk.check(not _answers(walk, address, port), f"but not through {node}, whose kube-proxy is dead")
    walk.run(f"podwire node start {node} kube-proxy")
    walk.wait(f"started again, {node} serves it too", lambda: _answers(walk, address, port))


def _answers(walk: Walk, address: str, port: str | int) -> bool:
    return "web-" in walk.value(f"curl -sS --max-time 2 http://{address}:{port}/", status=None)  # type: ignore[arg-type]


def kill_proxy(walk: Walk, node: str) -> None:
    """End kube-proxy with SIGKILL, by pid."""
    pid = component_pid(walk, node, "kube-proxy")
    walk.say(f"$ kill -9 {pid}   # kube-proxy on {node}")
    os.kill(pid, signal.SIGKILL)
    walk.wait(f"kube-proxy on {node} is dead", lambda: not os.path.exists(f"/proc/{pid}"))


def port_taken(walk: Walk) -> None:
    """Step 6: with kube-proxy dead somebody takes the port; the rules win. Then kube-proxy says what it cannot hold."""
    addresses = nodes(walk)
    node = next(iter(addresses))
    address = addresses[node]
    kill_proxy(walk, node)
    walk.say("  First a process that listens on the port:")
    thief = walk.background(["podwire", "node", "exec", node, "--", sys.executable, "-m", "http.server", str(PORT)])
    try:
        walk.wait(
            "it listens", lambda: "LISTEN" in walk.value(f"podwire node exec {node} -- lsof -nP -i:{PORT}", status=None)
        )  # type: ignore[arg-type]
        pages = walk.run(f"curl -sS --max-time 5 'http://{address}:{PORT}/?[1-20]'", lines=2, only="<title>")
        walk.check(
            pages.count(TITLE) == 20 and "Directory listing" not in pages,
            "20 requests from outside: all reached the pods",
        )
    finally:
        _end_on(walk, node, thief)
    walk.say("  Then the article's incident: an outgoing connection whose source port is the NodePort:")
    api = walk.value(
        "kubectl get endpointslices kubernetes -o jsonpath='{.endpoints[0].addresses[0]}' 2>/dev/null || kubectl get endpointslices -l kubernetes.io/service-name=kubernetes -o jsonpath='{.items[0].endpoints[0].addresses[0]}'"
    )
    client = "; ".join(
        (
            "import socket, time",
            "s = socket.socket()",
            f"s.bind(('', {PORT}))",
            f"s.connect(('{api}', 6443))",
            "print('connected', flush=True)",
            "time.sleep(600)",
        )
    )
    thief = walk.background(["podwire", "node", "exec", node, "--", sys.executable, "-c", client])
    try:
        _until(thief, "connected")
        shown = walk.run(f"podwire node exec {node} -- lsof -nP -i:{PORT}")
        walk.check("ESTABLISHED" in shown, "it has the port")
        pages = walk.run(f"curl -sS --max-time 5 'http://{address}:{PORT}/?[1-20]'", lines=2, only="<title>")
        walk.check(pages.count(TITLE) == 20, "20 requests from outside: all reached the pods")
        walk.run(f"podwire node start {node} kube-proxy")
        said = f"""can't open "nodePort for default/azure-vote-front:" (:{PORT}/tcp), skipping this nodePort"""
        log = f"podwire node logs {node} kube-proxy"
        walk.wait("kube-proxy is back and says what it cannot have", lambda: said in walk.value(log))
        walk.run(f"{log} | grep 'skipping this nodePort' | tail -n 1")
        events = "kubectl get events --field-selector involvedObject.kind=Service,involvedObject.name=azure-vote-front"
        walk.wait("there is a Warning Event on the Service", lambda: "Warning" in walk.value(events))
        walk.run(events)
        pages = walk.run(f"curl -sS --max-time 5 'http://{address}:{PORT}/?[1-20]'", lines=2, only="<title>")
        walk.check(pages.count(TITLE) == 20, "and the requests still reach the pods")
    finally:
        _end_on(walk, node, thief)


def _end_on(walk: Walk, node: str, process: subprocess.Popen[bytes]) -> None:
    """End a program on a node: `podwire node exec` waits for it as its child, so the child is ended first."""
    for child in walk.value(f"ps -o pid= --ppid {process.pid}", status=None).split():  # type: ignore[arg-type]
        os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=10)
    walk.say(f"  (ended on {node})")


def pod_deleted(walk: Walk) -> None:
    """Step 7: a pod goes; its address is free and its veth gone."""
    walk.run("kubectl run lonely --image=web --port=80")
    walk.run("kubectl wait --for=condition=Ready pod/lonely --timeout=20s")
    pod = next(pod for pod in _all_pods(walk) if pod["name"] == "lonely")
    on = f"podwire node exec {pod['node']} --"
    path = f"/var/lib/cni/networks/cni0/{pod['ip']}"
    walk.run(f"{on} cat {path}")
    before = walk.value(f"{on} ip -brief link show master cni0").splitlines()
    walk.run("kubectl delete pod lonely")
    after = walk.run(f"{on} ip -brief link show master cni0").splitlines()
    walk.check(len(after) == len(before) - 1, "its veth is gone")
    walk.run(f"{on} ls {path}", status=2)
    walk.check(True, f"host-local has no file for {pod['ip']} any more: the address is free")


def nothing_left(walk: Walk, name: str) -> None:
    """Step 7, the end: `podwire down` leaves nothing."""
    walk.run("podwire down")
    links = json.loads(subprocess.run(["ip", "-json", "link"], stdout=subprocess.PIPE, check=True).stdout)
    marked = [link["ifname"] for link in links if str(link.get("ifalias", "")).startswith(f"podwire:lab:{name}:")]
    walk.check(not marked, "no interface")
    walk.check(not os.path.exists(f"/run/podwire/lab/{name}"), "no file")
    left = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"PODWIRE_LAB={name}".encode() in file.read().split(b"\0"):
                    left.append(pid)
        except OSError:
            continue
    walk.check(not left, "no process, hence no namespace, no mount and no rule")


STEPS = (
    ("1  Every node has a podCIDR", pod_cidrs),
    ("   The voting app, and a web server for later", deploy),
    ("2  How a pod got its IP address", how_a_pod_got_its_ip),
    ("3  A pod reaches a pod", pod_to_pod),
    ("4  The NodePort", node_port),
    ("5  kube-proxy dies", proxy_dead),
    ("6  Somebody takes the port", port_taken),
    ("7  A pod goes", pod_deleted),
)
