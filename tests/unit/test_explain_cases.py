"""What people reported is answered as the kernel did it: each question of each case in data/cases that is about packets."""

from __future__ import annotations

import pytest

from case_inputs import unpack
from podwire.explain.explain import explain
from podwire.explain.picture import Given, picture
from podwire.explain.question import Question
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit

CLIENT, NODE = "198.51.100.7", "192.0.2.11"
#: The node that every case was checked on.
LAB = Given(
    ["192.0.2.11/24@eth0", "10.244.1.1/24@cni0", "10.244.1.0/32@flannel.1"],
    [],
    [
        "default via 192.0.2.1 dev eth0",
        "10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink",
        "10.244.3.0/24 via 10.244.3.0 dev flannel.1 onlink",
    ],
)
POD = Given(["10.244.1.7/24@eth0"], [], ["default via 10.244.1.1 dev eth0"])


def ask(tmp_path, number, source, to, *files, given=LAB, **more):
    snapshots = load(unpack(number, tmp_path, *files))
    question = Question(source, to, more.pop("in_interface", ""), **more)
    return explain(question, picture(snapshots[0], given))


def ends(answer):
    """(verdict, to, masquerade, probability in per mille) of each outcome."""
    return sorted((one.verdict, one.to, one.masquerade, round(1000 * one.probability)) for one in answer.outcomes)


def dnat(*to, masquerade=False):
    return sorted(("dnat", one, masquerade, round(1000 / len(to))) for one in to)


def chains(answer, outcome=0):
    return [step.chain for step in answer.outcomes[outcome].path if step.table and step.source != "routing"]


SIMPLE = [
    ("01", CLIENT, f"{NODE}:30450/tcp", dnat("10.244.1.5:8080", "10.244.2.8:8080", "10.244.3.4:8080", masquerade=True)),
    ("02", CLIENT, f"{NODE}:30757/tcp", dnat("10.244.1.6:8080")),
    ("02", CLIENT, f"{NODE}:30758/tcp", [("drop", f"{NODE}:30758", False, 1000)]),
    ("02", "10.244.1.5", "203.0.113.81:80/tcp", dnat("10.244.2.10:9000")),
    ("02", NODE, f"{NODE}:30758/tcp", dnat("10.244.2.10:9000", masquerade=True)),
    ("04", CLIENT, f"{NODE}:30758/tcp", [("drop", f"{NODE}:30758", False, 1000)]),
    ("04", "10.244.1.5", "203.0.113.81:80/tcp", dnat("10.244.2.10:9000")),
    ("05", "10.244.2.9", "10.244.1.5:80/tcp", [("drop", "10.244.1.5:80", False, 1000)]),
    ("06", "10.244.1.5", "10.244.2.8:8080/tcp", [("drop", "10.244.2.8:8080", False, 1000)]),
    ("07", "192.0.2.12", f"{NODE}:8472/udp", [("reject", f"{NODE}:8472", False, 1000)]),
    ("07", "10.244.2.9", "10.244.1.5:80/tcp", [("reject", "10.244.1.5:80", False, 1000)]),
    ("09", "10.244.1.5", "10.96.44.31:80/tcp", [("drop", "10.244.1.5:80", False, 1000)]),
    ("10", "10.244.1.5", "10.96.44.31:80/tcp", dnat("10.244.1.6:80")),
    ("11", "127.0.0.1", "127.0.0.1:30080/tcp", [("drop", "10.244.2.8:80", False, 1000)]),
    ("12", "10.244.1.5", "10.96.60.1:80/tcp", [("reject", "10.96.60.1:80", False, 1000)]),
    ("12", "node", "10.96.60.1:80/tcp", [("reject", "10.96.60.1:80", False, 1000)]),
    ("12", "external", f"{NODE}:32445/tcp", [("reject", f"{NODE}:32445", False, 1000)]),
    ("14", CLIENT, f"{NODE}:8126/tcp", dnat("10.244.1.77:8126")),
    ("14", "10.244.1.9", f"{NODE}:8126/tcp", dnat("10.244.1.77:8126", masquerade=True)),
    ("16", CLIENT, f"{NODE}:30450/tcp", [("local", f"{NODE}:30450", False, 1000)]),
    ("24", CLIENT, f"{NODE}:30080/tcp", [("drop", "10.244.1.6:80", False, 1000)]),
    ("24", "192.0.2.1", f"{NODE}:30080/tcp", dnat("10.244.1.6:80", masquerade=True)),
    ("26", CLIENT, f"{NODE}:30450/tcp", dnat("10.244.1.5:8080", "10.244.2.9:8080", masquerade=True)),
    ("26", CLIENT, f"{NODE}:31317/tcp", [("reject", f"{NODE}:31317", False, 1000)]),
    ("26", CLIENT, "198.51.100.80:443/tcp", [("drop", "198.51.100.80:443", False, 1000)]),
    ("26", "203.0.113.9", "198.51.100.80:443/tcp", dnat("10.244.1.6:8443", masquerade=True)),
    ("26", CLIENT, f"{NODE}:30443/tcp", dnat("10.244.1.6:8443", masquerade=True)),
    ("26", "10.244.1.5", "10.96.88.14:9999/tcp", [("reject", "10.96.88.14:9999", False, 1000)]),
    ("26", "10.244.1.5", "10.96.200.200:80/tcp", [("drop", "10.96.200.200:80", False, 1000)]),
    ("26", "node", "127.0.0.1:30450/tcp", [("local", "127.0.0.1:30450", False, 1000)]),
    ("26", "node", f"{NODE}:30443/tcp", dnat("10.244.1.6:8443", masquerade=True)),
    ("29", CLIENT, f"{NODE}:30501/tcp", dnat("10.244.1.8:9898", "10.244.1.10:9898", masquerade=True)),
    ("29", "10.244.1.8", "10.96.120.25:80/tcp", dnat("10.244.1.8:9898", masquerade=True)),
    ("29", "10.244.1.10", "10.96.120.25:80/tcp", dnat("10.244.1.8:9898")),
    ("29", CLIENT, "10.96.120.25:80/tcp", dnat("10.244.1.8:9898", masquerade=True)),
    ("29", "10.244.1.9", "10.96.120.24:80/tcp", dnat("10.244.1.8:9898", "10.244.1.10:9898")),
    ("42", "10.224.0.5", "203.0.113.9:443/tcp", [("drop", "203.0.113.9:443", False, 1000)]),
    ("49", CLIENT, f"{NODE}:31080/tcp", dnat("10.244.1.5:80", masquerade=True)),
    ("51", CLIENT, f"{NODE}:8080/tcp", dnat("10.244.1.5:80")),
    ("51", "10.244.1.5", f"{NODE}:8080/tcp", dnat("10.244.1.5:80", masquerade=True)),
    ("51", "10.244.1.5", f"{CLIENT}:443/tcp", [("accept", f"{CLIENT}:443", True, 1000)]),
    ("52", CLIENT, f"{NODE}:30898/tcp", dnat("10.244.1.5:80", "10.244.2.2:80", "10.244.3.3:80", masquerade=True)),
    ("55", "10.244.1.5", "10.96.0.1:443/tcp", [("accept", "10.96.0.1:443", True, 1000)]),
    ("58", CLIENT, f"{NODE}:31404/tcp", dnat("10.244.1.5:80", masquerade=True)),
]  # fmt: skip


@pytest.mark.parametrize(("number", "source", "to", "expected"), SIMPLE)
def test_a_packet_comes_out_as_the_kernel_did_it(tmp_path, number, source, to, expected):
    answer = ask(tmp_path, number, source, to, in_interface="cni0" if number == "42" else "")
    assert ends(answer) == expected
    assert answer.sentence


def test_the_steps_of_a_node_port_are_told_in_order_and_what_follows_a_dnat_is_not_asked(tmp_path):
    answer = ask(tmp_path, "01", CLIENT, f"{NODE}:30450/tcp")
    assert chains(answer) == [
        "PREROUTING", "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-NODEPORTS", "KUBE-SVC-BIJGBSD4RZCCZX5R",
        "KUBE-SEP-YMXCUJ4FJ6QWOIRU", "FORWARD", "KUBE-FORWARD", "POSTROUTING", "KUBE-POSTROUTING",
    ]  # fmt: skip
    assert "DOCKER" not in chains(answer)


def test_a_marking_chain_is_no_verdict_the_drop_is_in_filter(tmp_path):
    answer = ask(tmp_path, "02", CLIENT, f"{NODE}:30758/tcp")
    assert (answer.outcomes[0].path[-1].table, answer.outcomes[0].path[-1].chain) == ("filter", "KUBE-FIREWALL")
    assert "KUBE-MARK-DROP" in chains(answer)


def test_hairpin_names_the_port_and_masqueraded_hairpin_works_with_it(tmp_path):
    answer = ask(tmp_path, "09", "10.244.1.5", "10.96.44.31:80/tcp")
    assert "veth0a1b2c3d" in answer.sentence
    assert "hairpin" in answer.sentence


def test_a_reply_on_the_same_bridge_without_br_netfilter_is_warned_about(tmp_path):
    answer = ask(tmp_path, "10", "10.244.1.5", "10.96.44.31:80/tcp")
    assert any("same-bridge reply: br_netfilter is off" in text for text in answer.warnings)


def test_without_the_setting_a_loopback_node_port_depends_on_it(tmp_path):
    answer = ask(tmp_path, "11", "127.0.0.1", "127.0.0.1:30080/tcp", "iptables-save.txt")
    assert {one.verdict for one in answer.outcomes} == {"dnat", "drop"}
    assert any("route_localnet" in text for text in answer.depends_on)


def test_the_process_that_gets_a_packet_is_named(tmp_path):
    assert ask(tmp_path, "16", CLIENT, f"{NODE}:30450/tcp").outcomes[0].process == "java (pid 3977)"


def test_with_both_back_ends_live_the_answer_depends_on_which_was_registered_last(tmp_path):
    answer = ask(
        tmp_path, "18", "10.244.1.5", "10.107.12.7:80/tcp", "iptables-legacy-save.txt", "iptables-nft-save.txt"
    )
    assert {one.to for one in answer.outcomes} == {"10.244.2.8:8080", "10.244.2.99:8080"}
    assert answer.depends_on == ["the legacy nat table was registered after the nft one"]


def test_a_warning_inside_a_rule_is_cut_out_and_told_and_the_other_dump_is_asked_for(tmp_path):
    answer = ask(tmp_path, "18", "10.244.1.5", "10.107.12.7:80/tcp", "iptables-nft-save-stderr-mixed.txt")
    assert ends(answer) == dnat("10.244.2.8:8080")
    assert any("line 69" in text for text in answer.warnings)
    assert any("iptables-legacy" in text for text in answer.depends_on)


@pytest.mark.parametrize(("state", "verdict"), [("INVALID", "drop"), ("ESTABLISHED", "accept"), ("NEW", "accept")])
def test_nat_is_not_asked_for_what_conntrack_does_not_call_new(tmp_path, state, verdict):
    answer = ask(tmp_path, "20", "10.244.1.5:40000", "10.244.2.8:80/tcp", state=state)
    assert [one.verdict for one in answer.outcomes] == [verdict]
    nat_asked = any(step.table == "nat" for step in answer.outcomes[0].path)
    assert nat_asked is (state == "NEW")


def test_affinity_lists_that_are_not_known_are_named_and_a_known_one_decides(tmp_path):
    answer = ask(tmp_path, "21", "10.244.1.9", "10.96.33.6:3306/tcp")
    endpoints = ["10.244.1.5:3306", "10.244.2.11:3306", "10.244.3.12:3306"]
    assert ends(answer) == dnat(*endpoints)
    assert len(answer.depends_on) == 3
    assert all(one.otherwise[0][1] == 1 for one in answer.outcomes)
    lists = [
        one.path[-1 - at].chain
        for one in answer.outcomes
        for at in range(len(one.path))
        if "SEP" in one.path[-1 - at].chain
    ]
    given = Given(LAB.addresses, [], LAB.routes, {lists[0]: {"10.244.1.9"}})
    answer = ask(tmp_path, "21", "10.244.1.9", "10.96.33.6:3306/tcp", given=given)
    assert [one.probability for one in answer.outcomes] == [1]


@pytest.mark.parametrize("file", ["iptables-save-garbled.txt", "iptables-save-unsupported-revision.txt"])
def test_an_unreadable_target_is_a_dnat_whose_address_comes_from_comment_and_chain_name(tmp_path, file):
    answer = ask(tmp_path, "23", CLIENT, f"{NODE}:30301/tcp", file)
    assert ends(answer) == dnat("10.244.1.4:80", "10.244.1.5:80", masquerade=True)
    assert all("not readable" in text for text in answer.depends_on)
    assert "0.0.0.0" not in str(answer.as_json()["outcomes"][0]["to"])


def test_goto_returns_to_the_callers_caller(tmp_path):
    path = chains(ask(tmp_path, "24", "192.0.2.1", f"{NODE}:30080/tcp"))
    assert path.index("KUBE-FORWARD") > path.index("cali-FORWARD")
    texts = [step.text for step in ask(tmp_path, "24", "192.0.2.1", f"{NODE}:30080/tcp").outcomes[0].path]
    assert not any("Unknown interface" in text for text in texts)


def test_a_sidecar_redirects_by_owner(tmp_path):
    inbound = ask(tmp_path, "25", "10.244.2.3", "10.244.1.7:8080/tcp", given=POD)
    assert ends(inbound) == dnat("10.244.1.7:15006")
    either = ask(tmp_path, "25", "node", "10.96.0.10:80/tcp", given=POD)
    assert {(one.verdict, one.to) for one in either.outcomes} == {
        ("dnat", "127.0.0.1:15001"),
        ("accept", "10.96.0.10:80"),
    }
    assert any("uid-owner 1337" in text for text in either.depends_on)
    assert ends(ask(tmp_path, "25", "node", "10.96.0.10:80/tcp", given=POD, uid=1337, gid=1337)) == [
        ("accept", "10.96.0.10:80", False, 1000)
    ]
    assert ends(ask(tmp_path, "25", "node", "10.96.0.10:80/tcp", given=POD, uid=0, gid=0)) == dnat("127.0.0.1:15001")
    assert ends(ask(tmp_path, "25", "10.244.2.3", "10.244.1.7:15021/tcp", given=POD)) == [
        ("local", "10.244.1.7:15021", False, 1000)
    ]


def test_a_known_flow_is_not_shown_to_the_rules(tmp_path):
    to = "10.96.70.5:8125/udp"
    assert ends(ask(tmp_path, "28", "10.244.1.5:41000", to)) == dnat("10.244.1.7:8125")
    assert ends(ask(tmp_path, "28", "10.244.1.5:40000", to)) == [("accept", "10.96.70.5:8125", False, 1000)]
    assert ends(ask(tmp_path, "28", "10.244.1.5:43000", to)) == dnat("10.244.1.9:8125")
    answer = ask(tmp_path, "28", "10.244.1.5", to)
    assert ends(answer) == dnat("10.244.1.9:8125")
    assert sum("source port 4" in text for text in answer.warnings) == 3


def test_a_sticky_client_that_the_dump_names_goes_where_it_went(tmp_path):
    assert ends(ask(tmp_path, "29", "10.244.1.8", "10.96.120.24:80/tcp")) == dnat("10.244.1.8:9898", masquerade=True)


def test_strict_reverse_path_filtering_drops_after_prerouting(tmp_path):
    answer = ask(tmp_path, "48", CLIENT, "10.244.1.5:80/tcp", in_interface="eth1", given=Given())
    assert ends(answer) == [("drop", "10.244.1.5:80", False, 1000)]
    assert "rp_filter on eth1 is strict" in answer.sentence


def test_an_answer_in_a_known_connection_is_not_taken_for_a_node_port(tmp_path):
    answer = ask(tmp_path, "49", "203.0.113.9:443", f"{NODE}:31080/tcp")
    assert ends(answer) == [("local", f"{NODE}:31080", False, 1000)]
    assert answer.outcomes[0].process.startswith("containerd")


LISTINGS = ["L-n-v-line-numbers-1.8.7.txt", "L-n-v-line-numbers-1.8.9.txt", "L-no-n.txt"]


@pytest.mark.parametrize("file", LISTINGS)
def test_listings_are_read_as_the_rules_they_show(tmp_path, file):
    answer = ask(tmp_path, "53", CLIENT, f"{NODE}:30450/tcp", file)
    assert ends(answer) == dnat("10.244.1.5:8080", "10.244.2.8:8080", "10.244.3.4:8080", masquerade=True)
    assert any("without -v" in text for text in answer.warnings) is (file == "L-no-n.txt")


def test_a_chain_that_was_not_pasted_ends_the_walk_and_is_named(tmp_path):
    answer = ask(tmp_path, "53", CLIENT, f"{NODE}:30450/tcp", "L-n-column-t.txt")
    assert [one.verdict for one in answer.outcomes] == ["unknown"] * 3
    assert {one.to for one in answer.outcomes} == {"10.244.1.5:8080", "10.244.2.8:8080", "10.244.3.4:8080"}
    assert all("is not in this input" in one.detail for one in answer.outcomes)


@pytest.mark.parametrize(
    ("file", "resolver"),
    [
        ("nft-list-before.txt", dnat("10.244.1.6:1053")),
        ("nft-list-after.txt", [("accept", "203.0.113.53:53", False, 1000)]),
    ],
)
def test_a_host_port_without_a_test_for_local_catches_what_passes_through(tmp_path, file, resolver):
    assert ends(ask(tmp_path, "54", "10.244.1.5", "203.0.113.53:53/udp", file)) == resolver
    assert ends(ask(tmp_path, "54", CLIENT, f"{NODE}:53/udp", file)) == dnat("10.244.1.6:1053")
    assert ends(ask(tmp_path, "54", CLIENT, f"{NODE}:9443/tcp", file)) == dnat("10.244.1.6:443")


def test_empty_service_chains_are_told(tmp_path):
    answer = ask(tmp_path, "55", "10.244.1.5", "10.96.0.1:443/tcp")
    assert any("KUBE-SERVICES" in text and "empty" in text for text in answer.warnings)


def test_an_accept_of_somebody_else_hides_the_masquerade(tmp_path):
    answer = ask(tmp_path, "58", "10.244.1.5", "10.96.33.8:80/tcp")
    assert ends(answer) == dnat("10.244.1.5:80")
    assert chains(answer)[-1] == "FLANNEL"
    assert any("its own address" in text for text in answer.warnings)


def test_a_mark_that_stays_set_is_told_where_the_vxlan_packet_carries_it_on(tmp_path):
    kept = ask(tmp_path / "old", "01", CLIENT, f"{NODE}:30450/tcp")
    cleared = ask(tmp_path / "new", "52", CLIENT, f"{NODE}:30898/tcp")
    assert any("masqueraded a second time" in text for text in kept.warnings)
    assert not any("masqueraded a second time" in text for text in cleared.warnings)


def test_a_bare_dump_says_what_it_takes_for_the_nodes_address(tmp_path):
    answer = ask(tmp_path, "01", "external", f"{NODE}:30450/tcp", given=Given())
    assert ends(answer) == dnat("10.244.1.5:8080", "10.244.2.8:8080", "10.244.3.4:8080", masquerade=True)
    assert any(text.startswith(f"{NODE} is an address of this node") for text in answer.assumed)
    inside = ask(tmp_path, "01", "10.244.1.9", "10.244.1.5:8080/tcp", given=Given())
    assert {one.verdict for one in inside.outcomes} >= {"local"}
    assert "10.244.1.5 is an address of this node" in inside.depends_on


def test_a_question_and_its_negation_are_one_question(tmp_path):
    answer = ask(
        tmp_path, "05", "10.244.1.9", "203.0.113.9:80/tcp", given=Given(["192.0.2.11/24@eth0"]), in_interface="cni0"
    )
    texts = [text for one in answer.outcomes for text in one.depends_on]
    assert not any("not: not:" in text for text in texts)
    assert all(f"not: {text}" not in one.depends_on for one in answer.outcomes for text in one.depends_on)
