"""explain rules: hooks, chains, Services and endpoints as one tree; big nodes folded, nothing lost in JSON."""

from __future__ import annotations

import json

import pytest

from case_inputs import unpack
from podwire.explain.picture import picture
from podwire.explain.render_rules import lines
from podwire.explain.rules_report import HOOKS, report
from podwire.explain.snapshot import RuleText, Snapshot
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit


def of_case(tmp_path, number):
    return report(picture(load(unpack(number, tmp_path))[0]))


def of_text(text):
    return report(picture(Snapshot(rules=[RuleText("iptables-nft", 4, "save", text, "dump")])))


def test_hooks_are_in_the_kernels_order_with_chains_by_priority(tmp_path):
    made = of_case(tmp_path, "26")
    assert tuple(hook for hook, _ in made.hooks) == HOOKS
    prerouting = dict(made.hooks)["PREROUTING"]
    assert [(one.place.chain, one.priority) for one in prerouting] == [
        ("filter-prerouting", -110),
        ("nat-prerouting", -100),
    ]


def test_chains_of_services_are_folded_into_their_services(tmp_path):
    made = of_case(tmp_path, "26")
    names = {one.name: one.endpoints for one in made.services}
    assert names["shop/cart:http"] == ["10.244.1.5:8080", "10.244.2.9:8080"]
    text = "\n".join(lines(made))
    assert "8 rules lead to Services" in text
    assert "endpoint-" not in text
    assert made.unreached == []


def test_a_chain_that_no_hook_leads_to_is_told():
    made = of_text(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:OLD - [0:0]\n:KUBE-PROXY-CANARY - [0:0]\n-A OLD -j RETURN\nCOMMIT\n"
    )
    assert [one.chain for one in made.unreached] == ["OLD"]
    assert made.sentence.endswith("1 chain that no hook leads to.")


def test_chains_that_lead_to_each_other_end():
    made = of_text(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:A - [0:0]\n:B - [0:0]\n-A PREROUTING -j A\n-A A -j B\n-A B -j A\nCOMMIT\n"
    )
    assert "shown above" in "\n".join(lines(made))


def big(services):
    """kube-proxy's rules for many Services of two endpoints."""
    head, body = [], []
    for one in range(services):
        ip = f"10.{96 + one // 65536}.{one // 256 % 256}.{one % 256}"
        head += [f":KUBE-SVC-{one:016} - [0:0]", f":KUBE-SEP-{one:015}A - [0:0]", f":KUBE-SEP-{one:015}B - [0:0]"]
        comment = f'-m comment --comment "ns/s{one}'
        body.append(f'-A KUBE-SERVICES -d {ip}/32 -p tcp {comment} cluster IP" -m tcp --dport 80 -j KUBE-SVC-{one:016}')
        for end in "AB":
            body.append(f'-A KUBE-SVC-{one:016} {comment} -> 10.0.0.1:8080" -j KUBE-SEP-{one:015}{end}')
            body.append(
                f"-A KUBE-SEP-{one:015}{end} -p tcp -m tcp -j DNAT --to-destination 10.{ord(end)}.{one // 256}.{one % 256}:80"
            )
    chains = [":PREROUTING ACCEPT [0:0]", ":KUBE-SERVICES - [0:0]", *head]
    return "\n".join(["*nat", *chains, "-A PREROUTING -j KUBE-SERVICES", *body, "COMMIT", ""])


def test_a_big_node_is_a_short_text_and_a_whole_json():
    made = of_text(big(3000))
    text = list(lines(made))
    assert len(text) < 120
    assert "and 2,960 more (--all)" in "\n".join(text)
    assert made.sentence == "the node has 15,001 rules in 9,002 chains, for 3,000 Services with 6,000 endpoints."
    assert len(json.loads(json.dumps(made.as_json()))["services"]) == 3000
    assert len(list(lines(made, everything=True))) > 6000


def test_every_reported_ruleset_has_a_tree(tmp_path):
    for number in ("02", "05", "18", "24", "25", "51", "53", "54", "58"):
        made = of_case(tmp_path / number, number)
        assert next(iter(lines(made))) == made.sentence
