"""Whatever text somebody pastes, the readers and the walk come to an end, quickly and without an exception."""

from __future__ import annotations

import contextlib
import json
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from case_inputs import cases
from explain_strategies import PACKETS, iptables_tables, nft_rulesets, restore_text
from podwire.errors import PodwireError
from podwire.explain.explain import explain
from podwire.explain.ipsets import read_ipsets
from podwire.explain.packet import MOST_WAYS
from podwire.explain.picture import Given, picture
from podwire.explain.question import Question
from podwire.explain.report import lines
from podwire.explain.snapshot import Flow, RuleText, Snapshot

pytestmark = pytest.mark.unit

FORMS = [("iptables", "save"), ("iptables", "S"), ("iptables", "L"), ("nft", "nft"), ("nft-json", "json")]
TEXTS = [
    text for files in cases().values() for name, text in files.items() if name.startswith(("iptables", "L-n", "nft"))
]
QUESTION = Question("198.51.100.7", "192.0.2.11:30450/tcp", "eth0")
GIVEN = Given(["192.0.2.11/24@eth0"], [], ["default via 192.0.2.1 dev eth0"])


def walked(source, form, text, question=QUESTION):
    snapshot = Snapshot(rules=[RuleText(source, 4, form, text, "pasted")])
    answer = explain(question, picture(snapshot, GIVEN))
    assert next(iter(lines(answer)))
    json.dumps(answer.as_json())
    return answer


def damaged(text, number):
    """The text with pieces cut out, doubled, exchanged or replaced."""
    chance = random.Random(number)
    for _ in range(chance.randrange(1, 30)):
        at = chance.randrange(len(text) + 1)
        length = chance.choice([1, 1, 3, 40, 400])
        piece = chance.choice(
            ["", text[at : at + length] * 2, chance.choice('{}"\\\n\t:;!-@/\0é'), "-j", " ! ", "{ { {", "4294967296"]
        )
        text = text[:at] + piece + text[at + length :]
    return text


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(FORMS), st.sampled_from(TEXTS), st.integers(0, 1 << 32))
def test_damaged_dumps_are_read_as_far_as_they_can_be(form, text, number):
    walked(*form, damaged(text[:20000], number))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FORMS), st.text(max_size=400))
def test_any_text_at_all_is_read(form, text):
    walked(*form, text)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["match", "left", "right", "op", "payload", "vmap", "set", "key", "dnat", "meta", "jump", "concat"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=30,
    )
)
def test_json_of_any_shape_is_read(value):
    base = {"family": "ip", "table": "t", "name": "c", "chain": "c", "hook": "prerouting", "type": "nat", "prio": -100}
    rows = [
        {"chain": base},
        {"rule": {**base, "expr": value if isinstance(value, list) else [value]}},
        {"set": {**base, "elem": value}},
    ]
    walked("nft-json", "json", json.dumps({"nftables": rows}))


@settings(max_examples=60, deadline=None)
@given(iptables_tables(), nft_rulesets(), PACKETS)
def test_probabilities_of_what_does_not_depend_on_anything_add_up_to_one(tables, ruleset, packet):
    for source, form, text in (("iptables", "save", restore_text(tables)), ("nft", "nft", ruleset)):
        question = Question(
            packet["src"], f"{packet['dst']}:{packet['port']}/{packet['protocol']}", packet["via"].replace("local", "")
        )
        answer = walked(source, form, text, question)
        total = sum(
            one.probability for one in answer.outcomes if all(text.startswith("not: ") for text in one.depends_on)
        )
        assert total == pytest.approx(1) or answer.depends_on


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (("iptables", "save"), "*filter\n:FORWARD ACCEPT\n:INPUT ACCEPT\n" + "-A INPUT -m geoip --src-cc XX -j DROP\n" * 3000 + "COMMIT\n"),
        (("iptables", "save"), "*nat\n:PREROUTING ACCEPT\n" + "".join(f":C{n} -\n-A C{n} -m u32 --u32 {n} -j C{n + 1}\n-A C{n} -j C{n + 1}\n" for n in range(50)) + "-A PREROUTING -j C0\nCOMMIT\n"),
        (("iptables", "save"), "*filter\n:INPUT ACCEPT\n:A -\n:B -\n-A INPUT -j A\n-A A -j B\n-A B -j A\nCOMMIT\n"),
        (("iptables", "save"), "*mangle\n:PREROUTING ACCEPT\n" + "".join(f"-A PREROUTING -m statistic --mode random --probability 0.5 -j MARK --or-mark {1 << n:#x}\n" for n in range(31)) + "COMMIT\n"),
        (("nft", "nft"), "table ip t {\n" + "chain c {\ntype filter hook input priority 0\n" + "socket wildcard 1 drop\n" * 3000 + "}\n}\n"),
        (("nft", "nft"), "table ip t {\nchain c {\ntype nat hook prerouting priority -100;\ndnat to " + "( " * 3000 + "\n}\n}\n"),
        (("nft", "nft"), "table ip t { " * 2000 + "{" * 2000),
        (("iptables", "L"), "Chain INPUT (policy ACCEPT)\ntarget prot opt source destination\n" + "DROP all -- anywhere anywhere " + "tcp dpt:1 " * 20000),
    ],
)  # fmt: skip
def test_rules_made_to_branch_nest_or_circle_end_soon(form, text):
    started = time.process_time()
    answer = walked(*form, text)
    assert len(answer.outcomes) <= MOST_WAYS
    assert time.process_time() - started < 20


@pytest.mark.parametrize("factor", [1, 4])
def test_reading_takes_linear_time(factor):
    rows = "".join(
        f'-A KUBE-SERVICES -d 10.96.{n >> 8 & 255}.{n & 255}/32 -p tcp -m comment --comment "a/b:{n}" -j X{n}\n'
        for n in range(20000)
    )
    text = "*nat\n:PREROUTING ACCEPT\n-A PREROUTING -j KUBE-SERVICES\n" + rows * factor + "COMMIT\n"
    started = time.process_time()
    walked("iptables", "save", text)
    assert (time.process_time() - started) / factor < 3


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_a_question_is_answered_or_refused(source, to):
    with contextlib.suppress(PodwireError):
        explain(Question(source, to), picture(Snapshot(rules=[]), GIVEN))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_as_ipsets(text):
    read_ipsets(text + "\ncreate x hash:ip\nadd x 1.2.3.4\n")


def test_a_flow_with_odd_addresses_does_not_stop_the_answer():
    flow = Flow("tcp", "198.51.100.7", "192.0.2.11", 1, 30450, "", "", 0, 0)
    snapshot = Snapshot(rules=[], flows=[flow])
    answer = explain(Question("198.51.100.7:1", "192.0.2.11:30450/tcp", "eth0"), picture(snapshot, GIVEN))
    assert [one.verdict for one in answer.outcomes] == ["local"]
