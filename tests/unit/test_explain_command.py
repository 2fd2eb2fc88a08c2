"""`podwire explain packet` and `check` from the command line: text, JSON, batches, what is said about wrong use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from case_inputs import unpack

pytestmark = pytest.mark.unit

NODE = ["--node-address", "192.0.2.11/24@eth0", "--in-interface", "eth0"]
ASK = ["--from", "external", "--to", "192.0.2.11:30450/tcp"]
KEYS = {"probability", "verdict", "to", "masquerade", "source", "path"}


def podwire(*arguments, stdin=""):
    return subprocess.run(
        [sys.executable, "-m", "podwire", "explain", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def dump(tmp_path):
    return unpack("01", tmp_path, "iptables-save.txt")[0]


def test_the_first_line_is_the_answer_and_rules_follow_with_their_text(dump):
    done = podwire("packet", dump, *NODE, *ASK)
    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first.startswith("198.51.100.7 to 192.0.2.11:30450/tcp is translated to 10.244.1.5:8080")
    assert "(1/3 each)" in first
    assert any("nat KUBE-NODEPORTS 1: -A KUBE-NODEPORTS -p tcp" in line for line in rest)
    assert any("192.0.2.11 is an address of this node (--node-address)" in line for line in rest)


def test_json_has_the_documented_keys(dump):
    answer = json.loads(podwire("packet", "--rules", dump, *NODE, *ASK, "--json").stdout)
    assert {"answer", "outcomes", "depends_on", "packet", "inputs", "warnings"} <= set(answer)
    assert all(set(outcome) >= KEYS for outcome in answer["outcomes"])
    assert sum(outcome["probability"] for outcome in answer["outcomes"]) == pytest.approx(1)
    assert answer["outcomes"][0]["path"][0]["chain"] == "PREROUTING"


def test_a_batch_answers_each_line_and_goes_on_behind_a_wrong_one(dump):
    questions = [
        {"from": "external", "to": "192.0.2.11:30450/tcp", "in_interface": "eth0"},
        {"from": "external"},
        {"from": "external", "to": "192.0.2.11:22/tcp"},
    ]
    done = podwire("packet", dump, *NODE, "--batch", "-", stdin="\n".join(map(json.dumps, questions)) + "\nnot json\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [("error" in answer) for answer in answers] == [False, True, False, True]
    assert answers[2]["outcomes"][0]["verdict"] == "local"
    assert done.returncode == 2


def test_an_interface_for_all_lines_is_not_for_the_nodes_own_packets(dump):
    row = {"from": "192.0.2.11", "to": "192.0.2.11:30450/tcp"}
    done = podwire("packet", dump, *NODE, "--batch", "-", stdin=json.dumps(row))
    answer = json.loads(done.stdout)
    assert answer["packet"]["made_here"] is True
    assert {outcome["verdict"] for outcome in answer["outcomes"]} == {"dnat"}


@pytest.mark.parametrize(
    ("expect", "status", "said"),
    [
        ({"verdict": "dnat", "masquerade": True, "to": ["10.244.1.5:8080", "10.244.2.8:8080", "10.244.3.4:8080"]}, 0, "ok  "),
        ({"verdict": "drop"}, 1, "FAIL"),
        ({"verdict": "dnat", "to": "10.244.1.5:8080"}, 1, "to: expected 10.244.1.5:8080, found 10.244.1.5:8080, 10.244.2.8:8080"),
        ({"verdict": "dropped"}, 2, "no verdict is called dropped"),
        ({"colour": "red"}, 2, '"expect" needs one or more of'),
    ],
)  # fmt: skip
def test_check_tells_what_is_not_as_expected_and_its_status_says_so(dump, tmp_path, expect, status, said):
    file = tmp_path / "expect.jsonl"
    row = {"name": "web from outside", "from": "external", "to": "192.0.2.11:30450/tcp", "expect": expect}
    file.write_text(f"# what we promise\n\n{json.dumps(row)}\n")
    done = podwire("check", str(file), dump, *NODE)
    assert said in done.stdout
    assert done.returncode == status


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--from and --to are needed"),
        (["--from", "external", "--to", "192.0.2.11/tcp"], "a port is needed"),
        (["--from", "nowhere", "--to", "192.0.2.11:1/tcp"], "this is neither an address nor a name"),
        (["--from", "pod/a/b", "--to", "192.0.2.11:1/tcp"], "this input has no Kubernetes objects"),
        (["--from", "fd00::1", "--to", "192.0.2.11:1/tcp"], "different families"),
        ([*ASK, "--node-address", "here"], "this is no address or network"),
        ([*ASK, "--route", "nonsense"], "this is no route"),
        ([*ASK, "--mark", "red"], "this is no number"),
    ],
)
def test_wrong_use_is_one_line_and_status_2(dump, arguments, said):
    done = podwire("packet", dump, *arguments)
    assert said in done.stderr
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")


def test_a_file_that_holds_no_rules_is_said_to(tmp_path):
    done = podwire("packet", str(tmp_path / "missing"), *ASK)
    assert done.returncode == 2
    assert "no such file" in done.stderr
