"""Every reported situation: what doctor must find, what it must say about it, and that it claims nothing else."""

import pytest

from case_inputs import cases, unpack
from podwire.doctor.table import CHECKS, examine
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit

#: Case → id of each finding → words that must be in its text. A case that is not here has nothing for doctor.
EXPECTED = {
    "02": {"local-policy": ["shop/api:http", "no endpoint here"]},
    "04": {"local-policy": ["shop/api:http", "traffic from outside is dropped"]},
    "05": {"forward-drop": [":FORWARD DROP", "10.244.0.0/16", "NodePorts work, pod to pod does not", "flannel >= 0.9.1"]},
    "06": {"forward-drop": [":FORWARD DROP", "neither FLANNEL-FWD"], "kube-proxy-no-rules": ["nothing jumps to KUBE-SERVICES"]},
    "07": {
        "overlay-port-blocked": ["udp/8472", "rule 9: -A INPUT -j REJECT"],
        "forward-drop": ["rule 5: -A FORWARD -j REJECT", "rule 6 comes too late", "FLANNEL-FWD"],
    },
    "09": {"hairpin": ["veth0a1b2c3d", 'no "hairpinMode": true', "type bridge_slave hairpin on"]},
    "10": {"bridge-nf-call": ["br_netfilter is not loaded", "lsmod.txt", "modprobe br_netfilter", "modules-load.d"]},
    "11": {"localhost-nodeport": ["route_localnet = 0", "30080"]},
    "12": {"no-endpoints": ["default/empty:http", "connections are refused", "32445"]},
    "14": {
        "hostport-stale": [
            "host port 8126/tcp: 2 rules", "unknown sandbox aa11aa11aa11", "10.244.1.77:8126", "rule 2, of the living sandbox bb22bb22bb22",
            "iptables -t nat -D CNI-HOSTPORT-DNAT 1", "-X CNI-DN-32f7e8df0f8f7a6ed05a2", 'is the hash of network "cbr0"',
        ]
    },
    "16": {"nodeport-taken": ["NodePort 30450 of default/web:http is taken by java (pid 3977)", "can't open port", "the rules have none for 30450"]},
    "18": {"two-back-ends": ["legacy sends to 10.244.2.99", "nf_tables to 10.244.2.8", "registered last", "iptables-legacy"]},
    "20": {"conntrack": ["insert_failed=21", "invalid=4053", "--ctstate INVALID -j DROP", "nf_conntrack_tcp_be_liberal=1"]},
    "23": {"dump-unreadable-targets": ["10.244.1.4:80", "proven", "newest iptables-save"]},
    "26": {"no-endpoints": ["shop/stats:otlp", "31317"]},
    "28": {
        "stale-udp-flows": [
            "10.244.1.7 is no endpoint any more", "pinned to", "10.244.1.9:8125",
            "conntrack -D -p udp --orig-dst 10.96.70.5 --reply-src 10.244.1.7", "--reply-src 10.96.70.5",
        ]
    },
    "30": {"bridge-address": ["10.244.3.1/24", "FLANNEL_SUBNET=10.244.1.1/24", "podCIDR is 10.244.1.0/24", "default/old-1", "ip link del cni0"]},
    "31": {
        "subnet-env-missing": ["the cause: Node node-c has no spec.podCIDR", "pod cidr not assigned", "do not copy"],
        "subnet-env-proposed": ["node-a", "FLANNEL_SUBNET=10.244.0.1/24"],
        "podcidr-missing": ["node-c"],
    },
    "32": {"conf-leftover-flannel": ["10-weave.conflist", "10-calico.conflist", "no DaemonSet of flannel", "rm /etc/cni/net.d/10-flannel.conflist", "flannel.1"]},
    "33": {
        "hostlocal-leak": ["9 addresses of cbr0", "the range is full", "4 by sandboxes that the runtime knows, 9 leaked", "a4a4a4a4a4a4", "8 of the leaked IDs", "10.244.1.9 was used not long ago (STALE)", "never rm -rf"],
        "hostlocal-leak-ahead": ["10.244.1.5", "default/old-docker-pod"],
    },
    "35": {
        "conf-wrong-wins": ["10-containerd-net.conflist", ".hidden.conflist", "10.88.0.0/16", "by the bytes of the names"],
        "pod-ip-foreign": ["default/p4", "100-crio-bridge.conf", "was not there yet", "default/p5", "10.99.0.3"],
        "pod-ip-duplicate": ["10.88.0.4", "default/p1 on node-a", "default/p2 on node-b"],
    },
    "36": {
        "conf-broken": [
            "missing 'type'; perhaps this is a .conflist?", "no 'plugins' key", "no plugins in list", "invalid character ']'", "no name",
            "failed to parse plugin config 0", "unexpected end of JSON input", "99-loopback.conf", "containerd stops here", "rename it to 10-flannel.conflist",
        ],
        "conf-loopback-only": ["99-loopback.conf"],
    },
    "38": {"plugin-missing": ["bridge is missing", "portmap is missing", "host-local is empty and not executable", "/usr/lib/cni/loopback", "leaks with each retry"]},
    "39": {"cni-cache-broken": ["it is empty", "broken after 200 bytes", "10.244.1.3 stays reserved", "10.244.1.5 stays reserved", "container dddddddddddd"]},
    "40": {
        "podcidr-missing": [
            "w-1", "--allocate-node-cidrs=false", "enough for 1 node", "-nodeipam", "10.244.128.0/17", "dual-stack",
            "a strict allocator has nothing left; without that one the next is 10.244.1.0/24", "never patch",
        ],
        "podcidr-conflict": ["cp-1 (10.244.0.0/24) and w-2 (10.244.0.0/16) overlap", "the whole cluster's network"],
    },
    "42": {
        "flannel-network": ["10.224.0.0/24 does not lie in 10.244.0.0/16", "podSubnet"],
        "range-overlap": ["docker0", "cni0 has the same address"],
        "forward-drop": ["what is accepted is another network"],
        "podcidr-conflict": [],
    },
    "43": {
        "podcidr-missing": ["n4", "enough for 4 nodes; there are 8", "CIDRNotAvailable", "n8 is being deleted and still holds 10.20.3.0/24"],
        "podcidr-conflict": [
            "n2 and n3 have the same podCIDR 10.20.1.0/24", "02:00:00:00:00:03", "n5 (10.20.2.128/25) and n6 (10.20.2.0/24) overlap",
            "go to n5", "kubectl delete node n5", "n7 (10.99.0.0/24) is outside", "another size",
        ],
    },
    "45": {"public-ip-duplicate": ["10.0.2.15 is announced by vm-1, vm-2", "eth0's own address", "vm-3 is not among them", "--node-ip", "--iface"]},
    "46": {
        "mtu": ["node-b: flannel.1 is larger than its uplink carries", "at most 1350", "2-node-a: pods' devices", "node-c: pods' devices", '"MTU": 1400'],
        "mtu-differs": ["8951: node-d"],
    },
    "48": {"rp-filter": ["eth1", "martian source 10.244.1.5 from 198.51.100.7", "does not help", "rp_filter=2"]},
    "49": {"ephemeral-nodeport-overlap": ["2768 ports in both", "containerd (pid 900)", "default/web:http", "ip_local_reserved_ports=30000-32767"]},
    "54": {"hostport-catches-all": ["udp dport 53 dnat to 10.244.1.6:1053", "nft-list-before.txt", "fib daddr type local"]},
    "55": {"kube-proxy-no-rules": ["KUBE-SERVICES, KUBE-NODEPORTS, KUBE-POSTROUTING", "nfacct", "CONFIG_NETFILTER_XT_MATCH_NFACCT is not set", "Failed to execute iptables-restore"]},
    "56": {"conf-dir-recreated": ["2026-02-10 09:30:12", "2026-02-09 18:00:00", "9112081", "9175043", "systemctl restart containerd"]},
    "58": {"masquerade-hidden": ["-A FLANNEL -d 10.244.0.0/16 -j ACCEPT", "10.244.1.5", "0x4d415351"]},
    "60": {"hints-incomplete": ["10.244.4.8 has no node hint", "prod/zonal"]},
}  # fmt: skip
#: A second view of another check's finding; it may be there or not.
ALSO = {"42": {"podcidr-conflict"}}
NOTES = {"02", "04"}


def said(findings, check):
    """All the text of a check's findings."""
    return "\n".join(
        "\n".join(
            [
                one.title,
                one.symptom,
                one.why,
                *one.fix,
                *(f"{evidence.text} ({evidence.where})" for evidence in one.evidence),
            ]
        )
        for one in findings
        if one.id == check
    )


def number(case):
    return case.split("-")[0]


@pytest.fixture(params=sorted(cases()))
def case(request):
    return request.param


def look(case, tmp_path):
    unpack(number(case), tmp_path)
    return examine(load([str(tmp_path)]))


def test_each_case_gives_its_findings_and_no_others(case, tmp_path):
    findings = look(case, tmp_path)
    wanted = EXPECTED.get(number(case), {})
    found = {finding.id for finding in findings}
    assert found - ALSO.get(number(case), set()) == wanted.keys() - ALSO.get(number(case), set())
    for check, words in wanted.items():
        text = said(findings, check)
        for word in words:
            assert word in text, (check, word, text)


def test_notes_are_only_where_things_work_as_designed(case, tmp_path):
    levels = {finding.level for finding in look(case, tmp_path)}
    assert ("note" in levels) == (number(case) in NOTES)


def test_every_finding_names_where_it_was_read_and_what_to_do(case, tmp_path):
    for finding in look(case, tmp_path):
        assert finding.symptom
        assert finding.why
        assert finding.fix
        assert any(evidence.where for evidence in finding.evidence)


def test_a_leaked_address_list_leaves_out_what_the_runtime_still_knows(tmp_path):
    unpack("33", tmp_path)
    leak = next(finding for finding in examine(load([str(tmp_path)])) if finding.id == "hostlocal-leak")
    removed = next(step for step in leak.fix if step.startswith("rm "))
    assert [word.rpartition("/")[2] for word in removed.split()[1:]] == [
        f"10.244.1.{last}" for last in (6, 7, 8, 10, 11, 12, 13, 14)
    ]


def test_the_leftover_that_wins_is_an_error_and_the_one_that_waits_a_warning(tmp_path):
    unpack("32", tmp_path)
    levels = {finding.nodes[0]: finding.level for finding in examine(load([str(tmp_path)]))}
    assert levels == {"A": "error", "B": "warning"}


def test_a_missing_subnet_env_is_reported_after_its_cause(tmp_path):
    unpack("31", tmp_path)
    findings = examine(load([str(tmp_path)]))
    assert [finding.id for finding in findings][-1] == "subnet-env-missing"
    assert findings[-1].title.endswith("because Node node-c has no podCIDR")


def test_the_repaired_hostport_table_is_clean(tmp_path):
    unpack("54", tmp_path, "nft-list-after.txt")
    assert examine(load([str(tmp_path)])) == []


def test_default_port_range_and_any_reservation_are_clean(tmp_path):
    (tmp_path / "sysctl.txt").write_text(
        "net.ipv4.ip_local_port_range = 1024\t65535\nnet.ipv4.ip_local_reserved_ports = 22,30000-32767\n"
    )
    assert examine(load([str(tmp_path)])) == []
    (tmp_path / "sysctl.txt").write_text(
        "net.ipv4.ip_local_port_range = 32767\t60999\nnet.ipv4.ip_local_reserved_ports = \n"
    )
    assert "1 ports in both" in said(examine(load([str(tmp_path)])), "ephemeral-nodeport-overlap")


def test_loose_rp_filter_on_all_softens_a_strict_device(tmp_path):
    unpack("48", tmp_path, "ip-route.txt")
    (tmp_path / "sysctl.txt").write_text(
        "net.ipv4.conf.all.rp_filter = 2\nnet.ipv4.conf.eth1.rp_filter = 1\nnet.ipv4.conf.eth0.rp_filter = 1\n"
    )
    assert examine(load([str(tmp_path)])) == []
    (tmp_path / "sysctl.txt").write_text(
        "net.ipv4.conf.all.rp_filter = 1\nnet.ipv4.conf.eth1.rp_filter = 0\nnet.ipv4.conf.eth0.rp_filter = 0\n"
    )
    assert [finding.id for finding in examine(load([str(tmp_path)]))] == ["rp-filter"]


@pytest.mark.parametrize(
    ("addresses", "finds"),
    [
        (["10.244.1.1/24"], False),
        (["10.244.1.1/24", "192.168.7.1/24"], False),
        (["192.168.7.1/24", "10.244.1.1/24"], True),
        (["10.244.1.1/16"], True),
        ([], False),
    ],
)
def test_the_bridge_address_is_judged_as_the_plugin_does(tmp_path, addresses, finds):
    unpack("30", tmp_path, "subnet.env", "node.json", "10-flannel.conflist")
    lines = ["2: cni0: <BROADCAST,UP,LOWER_UP> mtu 1450 state UP"] + [
        f"    inet {one} scope global cni0" for one in addresses
    ]
    (tmp_path / "ip-addr.txt").write_text("\n".join(lines) + "\n    inet6 fe80::1/64 scope link\n")
    assert ("bridge-address" in {finding.id for finding in examine(load([str(tmp_path)]))}) is finds


def test_a_stale_lease_is_mended_by_restarting_flanneld_not_by_deleting_the_bridge(tmp_path):
    unpack("30", tmp_path)
    node = (tmp_path / "node.json").read_text().replace("10.244.1.0/24", "10.244.7.0/24")
    (tmp_path / "node.json").write_text(node)
    findings = examine(load([str(tmp_path)]))
    assert {finding.id for finding in findings} == {"bridge-address", "subnet-env-stale"}
    assert "restart flanneld on this node first" in said(findings, "bridge-address")
    assert "ip link del" not in said(findings, "bridge-address")


def test_ids_are_unique_and_every_check_has_its_place_in_the_documentation():
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    for check in ids:
        assert f"\n### {check}\n" in page, check
