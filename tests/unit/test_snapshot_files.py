"""Bare files of every form become the same values, and nothing that people attach makes the readers fall."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from case_inputs import cases
from podwire.doctor.table import examine
from podwire.explain.snapshot import Snapshot
from podwire.explain.snapshot_files import File, add
from podwire.explain.snapshot_load import from_files, load

pytestmark = pytest.mark.unit


def of(text, name="x.txt"):
    snapshot = Snapshot()
    add(snapshot, File(name, text.encode(), name))
    return snapshot


def test_links_in_text_and_json_are_the_same():
    text = of(
        "3: flannel.1: <BROADCAST,UP,LOWER_UP> mtu 1450 qdisc noqueue state UNKNOWN mode DEFAULT group default \n    link/ether 02:00:00:00:00:01 brd ff:ff:ff:ff:ff:ff promiscuity 0\n    vxlan id 1 local 192.0.2.11 dev eth0 srcport 0 0 dstport 8472 nolearning\n"
    ).links[0]
    row = {"ifindex": 3, "ifname": "flannel.1", "flags": ["BROADCAST", "UP", "LOWER_UP"], "mtu": 1450, "operstate": "UNKNOWN", "address": "02:00:00:00:00:01",
           "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 1, "local": "192.0.2.11", "link": "eth0", "port": 8472}}}  # fmt: skip
    assert text == of(json.dumps([row])).links[0]


def test_bridge_ports_complete_what_is_known_of_a_device():
    snapshot = of(
        "5: vetha@if2: <UP> mtu 1450 master cni0 state UP\n    link/ether 02:00:00:00:00:05\n", "a-ip-link.txt"
    )
    add(
        snapshot,
        File(
            "bridge.txt",
            b"5: vetha@if2: <UP> mtu 1450 master cni0 state forwarding priority 32 cost 2\n    hairpin off guard off\n",
            "bridge.txt",
        ),
    )
    (link,) = snapshot.links
    assert (link.state, link.hairpin, link.master, link.peer) == ("UP", False, "cni0", 2)
    add(
        snapshot,
        File(
            "again.json",
            json.dumps([{"ifname": "vetha", "ifindex": 5, "hairpin": True, "state": "forwarding"}]).encode(),
            "again.json",
        ),
    )
    assert snapshot.links[0].hairpin is False


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink \n",
            ("10.244.2.0/24", "10.244.2.0", "flannel.1", "main", True),
        ),
        ("default via 192.0.2.1 dev eth0 proto dhcp metric 100 \n", ("0.0.0.0/0", "192.0.2.1", "eth0", "main", False)),
        ("10.0.0.7 dev eth0 table 101 scope link\n", ("10.0.0.7/32", "", "eth0", "101", False)),
        ("default via fe80::1 dev eth0 proto ra metric 1024\n", ("::/0", "fe80::1", "eth0", "main", False)),
        ("blackhole 10.9.0.0/16 dev lo\n", ("10.9.0.0/16", "", "lo", "main", False)),
    ],
)
def test_routes_as_text(text, wanted):
    (route,) = of(text).routes
    assert (route.dst, route.via, route.dev, route.table, route.onlink) == wanted


def test_a_multipath_route_keeps_its_hops():
    (route,) = of(
        "default proto static dev x\n\tnexthop via 192.0.2.1 dev eth0 weight 1\n\tnexthop via 198.51.100.1 dev eth1 weight 1\n"
    ).routes
    assert route.hops == (("192.0.2.1", "eth0"), ("198.51.100.1", "eth1"))


def test_policy_rules_in_text_and_json_are_the_same():
    text = of(
        "0:\tfrom all lookup local\n100:\tfrom 10.244.0.0/16 to 10.0.0.0/8 fwmark 0x4000/0xff00 iif cni0 lookup 101\n32765:\tnot from 192.0.2.1 unreachable\n"
    ).policy_rules
    rows = [
        {"priority": 0, "src": "all", "table": "local"},
        {
            "priority": 100,
            "src": "10.244.0.0",
            "srclen": 16,
            "dst": "10.0.0.0",
            "dstlen": 8,
            "fwmark": "0x4000",
            "fwmask": "0xff00",
            "iif": "cni0",
            "table": "101",
        },
        {"priority": 32765, "not": None, "src": "192.0.2.1", "action": "unreachable"},
    ]
    assert text == of(json.dumps(rows)).policy_rules


def test_the_three_spellings_of_a_dotted_device_are_one_setting():
    text = "net/ipv4/conf/flannel.1/rp_filter = 1\nnet.ipv4.conf.flannel/1.rp_filter = 1\nnet.ipv4.conf.flannel.1.rp_filter = 1\nsysctl: cannot stat /proc/sys/net/bridge/bridge-nf-call-iptables: No such file or directory\n"
    found = of(text).sysctls
    assert [one.name for one in found] == ["net/ipv4/conf/flannel.1/rp_filter"] * 3 + [
        "net/bridge/bridge-nf-call-iptables"
    ]
    assert found[3].value is None


def test_sockets_with_and_without_netid_and_header():
    plain = of(
        'State  Recv-Q Send-Q Local Address:Port  Peer Address:PortProcess\nLISTEN 0      128          0.0.0.0:30450      0.0.0.0:*    users:(("java",pid=3977,fd=121))\n'
    ).sockets
    netid = of(
        'tcp   LISTEN 0      128    [::]:443       [::]:*    users:(("k3s",pid=1,fd=4))\nudp   UNCONN 0 0 *:8472 *:*\n'
    ).sockets
    assert [(one.protocol, one.ip, one.port, one.process, one.pid) for one in plain + netid] == [
        ("tcp", "0.0.0.0", 30450, "java", 3977),
        ("tcp", "::", 443, "k3s", 1),
        ("udp", "0.0.0.0", 8472, "", 0),
    ]


def test_flows_with_and_without_family_columns():
    line = "udp      17 29 src=10.244.1.5 dst=10.96.70.5 sport=41000 dport=8125 [UNREPLIED] src=10.244.1.7 dst=10.244.1.5 sport=8125 dport=41000 mark=0 use=2\n"
    (one,), (other,) = of(line).flows, of("ipv4     2 " + line).flows
    assert (
        (one.reply_src, one.reply_sport, one.marks)
        == (other.reply_src, other.reply_sport, other.marks)
        == ("10.244.1.7", 8125, frozenset({"UNREPLIED"}))
    )


def test_yaml_aliases_are_not_followed():
    bomb = "kind: X\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    snapshot = of(bomb, "bomb.yaml")
    assert not snapshot.objects
    assert "aliases" in snapshot.warnings[0]


def test_a_backup_beside_a_conflist_is_read_and_is_no_candidate():
    snapshot = Snapshot()
    for name in ("etc/cni/net.d/10-a.conflist.bak", "etc/cni/net.d/10-a.conflist", "x-net.d/README"):
        add(snapshot, File(name, b"{}", name))
    assert [file.name for file in snapshot.cni_files] == ["10-a.conflist.bak", "10-a.conflist", "README"]


def test_what_nobody_understands_is_said_and_prose_is_passed_over():
    assert "left out" in of("lorem ipsum dolor\n").warnings[0]
    assert not of("# Title\n\n-A FORWARD -j DROP\n", "expect.md").rules
    assert of("\n\n").warnings == []


PASTE = """Hi, pods cannot talk. This is what I have:

root@node-a:~# ip route
default via 192.0.2.1 dev eth0
10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink
root@node-a:~# sudo sysctl net.bridge.bridge-nf-call-iptables
net.bridge.bridge-nf-call-iptables = 0
[root@node-a net.d]# cat /etc/cni/net.d/10-flannel.conflist
{"name": "cbr0", "plugins": [{"type": "flannel"}]}
# iptables-save
# Generated by iptables-save v1.8.7 on Wed Jan 18 03:55:41 2023
*filter
:FORWARD DROP [0:0]
COMMIT
# Completed on Wed Jan 18 03:55:41 2023
$ cat /run/flannel/subnet.env
FLANNEL_NETWORK=10.244.0.0/16
FLANNEL_SUBNET=10.244.1.1/24
FLANNEL_MTU=1450
FLANNEL_IPMASQ=true
"""


def test_a_paste_of_several_commands_is_taken_apart():
    snapshot = of(PASTE, "issue.txt")
    assert [route.dst for route in snapshot.routes] == ["0.0.0.0/0", "10.244.2.0/24"]
    assert snapshot.cni_files[0].name == "10-flannel.conflist"
    assert snapshot.subnet_env.where == "issue.txt, run/flannel/subnet.env"
    assert [rules.form for rules in snapshot.rules] == ["save"]
    assert {finding.id for finding in examine([snapshot])} == {"bridge-nf-call", "forward-drop"}
    headings = of("==> /etc/cni/net.d/10-x.conf <==\n{}\n\n==> /run/flannel/subnet.env <==\nFLANNEL_MTU=1450\n")
    assert (headings.cni_files[0].name, headings.environment()) == ("10-x.conf", {"FLANNEL_MTU": "1450"})


def test_folders_and_file_names_tell_the_node():
    files = [
        File("node-a/etc/cni/net.d/10-x.conflist", b"{}", ""),
        File("node-b/ip-route.txt", b"default via 192.0.2.1 dev eth0\n", ""),
        File("pods.txt", b"NAMESPACE  NAME  IP  NODE\nd  p  10.0.0.1  node-a\n", ""),
    ]
    found = {one.label: one for one in from_files(files)}
    assert set(found) == {"node-a", "node-b"}
    assert all(len(one.pods) == 1 for one in found.values())
    assert found["node-a"].routes is None


def test_files_named_one_by_one_are_one_node(tmp_path):
    for folder, name, text in (
        ("a", "ip-route.txt", "default via 192.0.2.1 dev eth0\n"),
        ("b", "sysctl.txt", "net.ipv4.ip_forward = 1\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    (snapshot,) = load([str(tmp_path / "a/ip-route.txt"), str(tmp_path / "b/sysctl.txt")])
    assert snapshot.routes
    assert snapshot.sysctls


def _lines():
    return [(path, line) for case in cases().values() for path, text in case.items() for line in text.splitlines()[:60]]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_mutilated_files_never_raise_in_readers_or_checks(data):
    case = data.draw(st.sampled_from(sorted(cases())))
    files = []
    for path, text in cases()[case].items():
        lines = text.splitlines(keepends=True)
        if lines:
            start = data.draw(st.integers(0, len(lines) - 1))
            lines = lines[start : start + data.draw(st.integers(1, 60))]
        kept = "".join(lines)
        if kept and data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(kept) - 1))
            kept = (
                kept[:at]
                + data.draw(
                    st.sampled_from(['"', "{", "]", "null", "-1", "/", "::", "\0", "999999999999", "é", " -j "])
                )
                + kept[at + data.draw(st.integers(0, 3)) :]
            )
        files.append(File(path, kept.encode(), path))
    examine(from_files(files))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70000) | st.sampled_from(["", "10.0.0.0/8", "x", "10.244.0.1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "kind",
                    "items",
                    "metadata",
                    "spec",
                    "status",
                    "name",
                    "podCIDR",
                    "podCIDRs",
                    "addresses",
                    "annotations",
                    "ports",
                    "endpoints",
                    "conditions",
                    "labels",
                    "plugins",
                    "type",
                    "ipam",
                    "delegate",
                    "ifname",
                    "addr_info",
                    "dst",
                    "src",
                    "priority",
                    "mac",
                    "state",
                    "id",
                    "Network",
                    "Backend",
                    "MTU",
                    "containers",
                    "networking",
                    "nodeName",
                    "podIP",
                    "phase",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(json_values, min_size=1, max_size=3),
    st.sampled_from(["Node", "Service", "EndpointSlice", "Pod", "ConfigMap", "NodeList", None]),
)
def test_json_of_any_shape_never_raises_in_readers_or_checks(values, kind):
    files = []
    for number, value in enumerate(values):
        if kind and isinstance(value, dict):
            value = {**value, "kind": kind}  # noqa: PLW2901 - the same value with a kind
        files.append(File(f"f{number}.json", json.dumps(value).encode(), f"f{number}.json"))
        files.append(File(f"etc/cni/net.d/{number}.conflist", json.dumps(value).encode(), "c"))
    examine(from_files(files))
