"""doctor on a lab: a healthy node has no findings, each fault that is really made is found, and looking changes nothing."""

import json
import re
import subprocess
import time

import pytest
from labs import Lab

from podwire.testing.netns import require

pytestmark = pytest.mark.e2e

NODE = "node-1"


@pytest.fixture(scope="module")
def sick():
    """A lab that the tests of this module break and mend; a Service with NodePort, one with UDP, pods on both nodes."""
    require("root", "kubectl", "iptables", "vxlan", "bridge-device")
    lab = Lab("doctor")
    lab.podwire("down")
    lab.podwire("up", "--nodes", "2")
    lab.kubectl("create", "deployment", "web", "--image=web", "--port=80", "--replicas=4")
    lab.kubectl("expose", "deployment", "web", "--type=NodePort")
    lab.kubectl("expose", "deployment", "web", "--name=udp", "--port=8125", "--protocol=UDP")
    lab.kubectl("rollout", "status", "deployment", "web", "--timeout=30s")
    yield lab
    lab.podwire("down")


def doctor(lab, *arguments):
    done = lab.podwire("doctor", *(arguments or ("--node", NODE)), "--json", check=False)
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    found = {one["id"]: one for one in report["findings"]}
    assert done.returncode == (1 if found else 0)
    return found


def shell(lab, text, check=True):
    return lab.on(NODE, "sh", "-c", text, check=check)


def subnet(lab):
    return re.search(r"FLANNEL_SUBNET=(\S+)", shell(lab, "cat /run/flannel/subnet.env")).group(1)


def veth(lab):
    return json.loads(shell(lab, "ip -j link show master cni0"))[0]["ifname"]


def peer(lab):
    (route,) = [one for one in json.loads(shell(lab, "ip -j route show dev flannel.1")) if "/" in one["dst"]]
    return route


class Fault:
    """How to make a fault, how to mend it, what is found. `stopped` are components that would mend it themselves."""

    def __init__(self, check, make, mend, *, words=(), stopped=(), more=()):
        self.check = check
        self.make = make
        self.mend = mend
        self.words = words
        self.stopped = stopped
        self.more = set(more)


def setting(name, wrong, right):
    return (
        lambda lab: shell(lab, f"sysctl -qw {name}='{wrong}'"),
        lambda lab: shell(lab, f"sysctl -qw {name}='{right}'"),
    )


def command(make, mend):
    return (lambda lab: shell(lab, make), lambda lab: shell(lab, mend))


def wrong_address(lab):
    shell(lab, f"ip addr add 10.99.0.1/24 dev cni0 && ip addr del {subnet(lab)} dev cni0")


def right_address(lab):
    shell(lab, f"ip addr add {subnet(lab)} dev cni0; ip addr del 10.99.0.1/24 dev cni0")


def lose_entry(lab):
    mac = next(one["mac"] for one in json.loads(shell(lab, "bridge -j fdb show dev flannel.1")) if one.get("dst"))
    shell(lab, f"bridge fdb del {mac} dev flannel.1")


def stale_flow(lab):
    address = lab.kubectl("get", "service", "udp", "-o", "jsonpath={.spec.clusterIP}")
    flow = f"-p udp -s 10.244.0.99 -d {address} --sport 4000 --dport 8125 -r 10.244.9.9 -q 10.244.0.99 --reply-port-src 8125 --reply-port-dst 4000 -t 300"
    shell(lab, f"conntrack -I {flow}")


def leak(lab):
    network = subnet(lab).rpartition(".")[0]
    shell(lab, f"printf '%s\\neth0' {'ab' * 32} > /var/lib/cni/networks/cni0/{network}.200")


FAULTS = {
    "bridge netfilter off": Fault("bridge-nf-call", *setting("net.bridge.bridge-nf-call-iptables", 0, 1), words=["bridge-nf-call-iptables = 0"]),
    "bridge with another address": Fault("bridge-address", wrong_address, right_address, words=["10.99.0.1/24"]),
    "route lost": Fault("overlay-entries", lambda lab: shell(lab, f"ip route del {peer(lab)['dst']}"), lambda _: None, stopped=["flanneld"], words=["no route for its podCIDR"]),
    "forwarding entry lost": Fault("overlay-entries", lose_entry, lambda _: None, stopped=["flanneld"], words=["no forwarding entry"]),
    "FORWARD drops": Fault("forward-drop", *command("iptables -P FORWARD DROP; iptables -F FLANNEL-FWD", "iptables -P FORWARD ACCEPT"), stopped=["flanneld"], words=[":FORWARD DROP"]),
    "firewall on the overlay": Fault("overlay-port-blocked", *command("iptables -A INPUT -p udp -j REJECT", "iptables -D INPUT -p udp -j REJECT"), words=["udp/8472"]),
    "two uplinks, strict": Fault(
        "rp-filter",
        *command(
            "ip link add eth1 type veth peer name eth1-far && ip link set eth1 up && ip addr add 203.0.113.11/24 dev eth1 && sysctl -qw net.ipv4.conf.eth1.rp_filter=1", "ip link del eth1"
        ),
        words=["eth1"],
    ),
    "stale UDP flow": Fault("stale-udp-flows", stale_flow, lambda lab: shell(lab, "conntrack -D -p udp --orig-port-dst 8125"), words=["10.244.9.9"]),
    "leaked address": Fault("hostlocal-leak", leak, lambda lab: shell(lab, "rm /var/lib/cni/networks/cni0/*.200"), words=["abababababab"]),
    "plugin missing": Fault("plugin-missing", *command("mv /opt/cni/bin/bridge /opt/cni/bin/.bridge", "mv /opt/cni/bin/.bridge /opt/cni/bin/bridge"), words=["bridge is missing"]),
    "plugin empty": Fault("plugin-missing", *command("mv /opt/cni/bin/host-local /opt/cni/bin/.h; : > /opt/cni/bin/host-local", "mv /opt/cni/bin/.h /opt/cni/bin/host-local"), words=["host-local is empty"]),
    "broken conflist": Fault("conf-broken", *command("echo '{' > /etc/cni/net.d/05-x.conflist", "rm /etc/cni/net.d/05-x.conflist"), words=["05-x.conflist", "invalid JSON"]),
    "default bridge wins": Fault(
        "conf-wrong-wins",
        *command(
            'echo \'{"name": "x", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.88.0.0/16"}}\' > /etc/cni/net.d/05-x.conf', "rm /etc/cni/net.d/05-x.conf"
        ),
        words=["10.88.0.0/16"],
    ),
    "cached result empty": Fault("cni-cache-broken", *command(f": > /var/lib/cni/results/cni0-{'cd' * 32}-eth0", f"rm /var/lib/cni/results/cni0-{'cd' * 32}-eth0"), words=["it is empty"]),
    "subnet.env lost": Fault("subnet-env-missing", *command("rm /run/flannel/subnet.env", "true"), stopped=["flanneld"], words=["No such file"]),
    "hairpin off": Fault("hairpin", lambda lab: shell(lab, f"ip link set {veth(lab)} type bridge_slave hairpin off"), lambda lab: shell(lab, f"ip link set {veth(lab)} type bridge_slave hairpin on")),
    "ports of outgoing connections": Fault("ephemeral-nodeport-overlap", *setting("net.ipv4.ip_local_port_range", "1024 65535", "32768 60999")),
    "uplink shrank": Fault("mtu", *command("ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500"), stopped=["flanneld"], words=["at most 1350"]),
    # The kernel forgets all neighbours of a device whose address changes, so these are lost too.
    "another VTEP": Fault("vtep-mac", lambda lab: shell(lab, "ip link set flannel.1 address 02:00:00:00:00:77"), lambda _: None, more=["overlay-entries"], stopped=["flanneld"]),
    "jumps flushed": Fault("jumps-missing", *command("iptables -t nat -F PREROUTING", "true"), stopped=["kube-proxy"], words=["PREROUTING has no jump to KUBE-SERVICES"]),
    "rules flushed": Fault("kube-proxy-no-rules", *command("iptables -t nat -F KUBE-SERVICES; iptables -t nat -F KUBE-NODEPORTS", "true"), stopped=["kube-proxy"]),
}  # fmt: skip


def settled(lab, node, seconds=15):
    """Wait until a node's kube-proxy has written the last of what the tests' Services ask for (once a second at most)."""
    port = lab.kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
    deadline = time.monotonic() + seconds
    while f"--dport {port} -j KUBE-EXT-" not in lab.on(node, "iptables-save", "-t", "nat"):
        assert time.monotonic() < deadline, f"kube-proxy on {node} has no rule for {port}"
        time.sleep(0.1)


def test_healthy_nodes_have_no_findings_live_and_as_bundles(sick, tmp_path):
    for node in ("node-1", "node-2"):
        settled(sick, node)
    assert doctor(sick, "--node", "node-1", "--node", "node-2") == {}
    assert json.loads(sick.on(NODE, "podwire", "doctor", "--json"))["findings"] == []
    for node in ("node-1", "node-2"):
        (tmp_path / f"{node}.tar.gz").write_bytes(collected(sick, node))
    assert doctor(sick, str(tmp_path / "node-1.tar.gz"), "--bundle", str(tmp_path / "node-2.tar.gz")) == {}


def collected(lab, node, *arguments):
    argv = ["podwire", "node", "exec", node, "--", "podwire", "collect", "-o", "-", "--no-kernel-log", *arguments]
    done = subprocess.run(
        argv, capture_output=True, check=True, env={**__import__("os").environ, "PODWIRE_NAME": lab.name}
    )
    return done.stdout


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_is_really_made_is_found_and_gone_when_mended(sick, name):
    fault = FAULTS[name]
    for component in fault.stopped:
        sick.podwire("node", "stop", NODE, component)
    try:
        fault.make(sick)
        found = doctor(sick)
        assert found.keys() - fault.more == {fault.check}, found
        finding = found[fault.check]
        text = json.dumps(finding)
        assert all(word in text for word in fault.words), text
        assert finding["fix"]
    finally:
        fault.mend(sick)
        for component in fault.stopped:
            sick.podwire("node", "start", NODE, component)
    wait_for_health(sick)


def wait_for_health(lab):
    import time

    deadline = time.monotonic() + 20
    while found := doctor(lab):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def test_looking_changes_nothing(sick):
    def picture():
        rules = shell(sick, "iptables-save; ip6tables-save; nft list tables")
        state = shell(
            sick,
            "ip -o link; ip -o addr; ip route show table all; ip rule; find /etc/cni /var/lib/cni /run/flannel -type f -exec md5sum {} +",
        )
        settings = shell(
            sick,
            "cd /proc/sys/net && grep -r . ipv4 ipv6/conf bridge core 2>/dev/null | sort; cat /proc/modules 2>/dev/null; true",
        )
        text = re.sub(r"\[\d+:\d+\]|on .* 20\d\d|(?:valid|preferred)_lft \S+|expires \d+sec", "", rules + state)
        return [
            line for line in (text + settings).splitlines() if "netdev_rss_key" not in line and "flow_limit" not in line
        ]

    before = picture()
    doctor(sick)
    shell(sick, "podwire collect -o /run/x.tar.gz && rm /run/x.tar.gz")
    assert picture() == before


def test_the_shell_script_gives_the_same_picture(sick, tmp_path):
    script = sick.podwire("collect", "--print-script").stdout
    (tmp_path / "collect.sh").write_text(script)
    subprocess.run(["sh", "-n", str(tmp_path / "collect.sh")], check=True)
    shell(
        sick,
        f"cat > /run/collect.sh <<'END_OF_SCRIPT'\n{script}\nEND_OF_SCRIPT\nPATH=/usr/sbin:/usr/bin:/sbin:/bin sh /run/collect.sh /run/by-script.tar.gz /etc/kubernetes/kubeconfig",
    )
    argv = ["podwire", "node", "exec", NODE, "--", "cat", "/run/by-script.tar.gz"]
    data = subprocess.run(
        argv, capture_output=True, check=True, env={**__import__("os").environ, "PODWIRE_NAME": sick.name}
    ).stdout
    (tmp_path / "s.tar.gz").write_bytes(data)
    (tmp_path / "p.tar.gz").write_bytes(collected(sick, NODE, "--kubeconfig", "/etc/kubernetes/kubeconfig"))
    shell(sick, "rm /run/collect.sh /run/by-script.tar.gz")
    from podwire.explain.snapshot_load import load

    (by_script,), (by_podwire,) = load([str(tmp_path / "s.tar.gz")]), load([str(tmp_path / "p.tar.gz")])
    for part in (
        "links",
        "addresses",
        "routes",
        "policy_rules",
        "cni_files",
        "cni_programs",
        "reservations",
        "scratch",
        "results",
        "nodes",
        "services",
    ):
        mine, other = getattr(by_podwire, part), getattr(by_script, part)
        assert len(mine) == len(other) > 0, part
    assert [one.addresses for space in by_script.namespaces for one in space.links] == [
        one.addresses for space in by_podwire.namespaces for one in space.links
    ]
    assert {one.name: one.value for one in by_script.sysctls if "conntrack" not in one.name} == {
        one.name: one.value for one in by_podwire.sysctls if "conntrack" not in one.name
    }
    assert {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in by_script.pods} == {
        pod["metadata"]["name"]: pod["status"]["podIP"] for pod in by_podwire.pods
    }
    assert doctor(sick, str(tmp_path / "s.tar.gz")) == {}


def test_a_redacted_bundle_still_tells_what_is_wrong_and_not_who(sick, tmp_path):
    shell(sick, "sysctl -qw net.bridge.bridge-nf-call-iptables=0")
    try:
        (tmp_path / "r.tar.gz").write_bytes(
            collected(sick, NODE, "--kubeconfig", "/etc/kubernetes/kubeconfig", "--redact")
        )
    finally:
        shell(sick, "sysctl -qw net.bridge.bridge-nf-call-iptables=1")
    assert set(doctor(sick, str(tmp_path / "r.tar.gz"))) == {"bridge-nf-call"}
    import tarfile

    pods = re.findall(r"web-[0-9a-f]+-\w{5}", sick.kubectl("get", "pods", "-o", "name"))
    assert pods
    with tarfile.open(tmp_path / "r.tar.gz") as archive:
        for member in archive:
            text = archive.extractfile(member).read().decode(errors="replace")
            assert not any(pod in text or pod in member.name for pod in pods), member.name


def test_explain_pod_names_every_place(sick):
    pod = next(
        line.split() for line in sick.kubectl("get", "pods", "-o", "wide", "--no-headers").splitlines() if NODE in line
    )
    name, ip = pod[0], next(word for word in pod if word.startswith("10.244."))
    way = json.loads(
        sick.podwire("explain", "pod", f"default/{name}", "--node", "node-1", "--node", "node-2", "--json").stdout
    )
    assert way["answer"].startswith(f"default/{name} has {ip} on {NODE}: host-local took it")
    assert [step["problem"] for step in way["steps"]] == [""] * 10
    read = {step["title"]: " ".join(one["text"] + one["where"] for one in step["read"]) for step in way["steps"]}
    assert "10-flannel.conflist" in read["The network in force"]
    assert f"/var/lib/cni/networks/cni0/{ip}" in read["host-local's reservation"]
    assert veth(sick)[:4] in read["veth pair and bridge port"]
    assert "flannel.1" in read["From node-2"]
    unknown = sick.podwire("explain", "pod", "default/nobody", "--node", NODE, check=False)
    assert unknown.returncode == 2
    assert "nothing in the input knows it" in unknown.stderr


def test_what_cannot_be_looked_at_is_status_2(sick, tmp_path):
    (tmp_path / "x").write_text("lorem ipsum\n")
    for arguments in (
        [str(tmp_path / "none")],
        [str(tmp_path / "x")],
        ["--node", "node-9"],
        ["--node", NODE, str(tmp_path)],
    ):
        done = sick.podwire("doctor", *arguments, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
