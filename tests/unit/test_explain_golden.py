"""Packets through the rules that the real kube-proxy wrote come out as the recordings say, in both modes.

Two kinds of recorded answers are not the rules': a packet that says `sticky` was only ever seen to go to one backend, so that
what is recorded of its other backends was not seen in nftables mode, where kube-proxy masquerades hairpins of local endpoints
only; and a dump taken after packets were sent remembers where a client went.
"""

from __future__ import annotations

import pytest

from kubeproxy_golden import cases, with_rules
from podwire.explain.explain import explain
from podwire.explain.picture import picture
from podwire.explain.question import Question
from podwire.explain.snapshot import Address, Route, RuleText, Snapshot, Sysctl

pytestmark = pytest.mark.unit


def snapshot(case, state, mode):
    made = Snapshot(label=case["node"], routes=[], addresses=[])
    if mode == "iptables":
        made.rules = [
            RuleText("iptables-nft", 4, "save", state["iptables"], "iptables-save"),
            RuleText("iptables-nft", 6, "save", state["ip6tables"], "ip6tables-save"),
        ]
    else:
        made.rules = [RuleText("nft", 0, "nft", state["nft"], "nft list ruleset")]
    for dev, addresses in case["interfaces"].items():
        for text in addresses:
            ip, _, length = text.partition("/")
            made.addresses.append(Address(dev, ip, int(length), "host" if dev == "lo" else "global"))
    for dst, dev in case["routes"].items():
        made.routes += [Route(one, dev=dev) for one in (("0.0.0.0/0", "::/0") if dst == "default" else (dst,))]
    localnet = case["route_localnet"][mode]
    for dev in ("all", *case["interfaces"]):
        made.sysctls.append(Sysctl(f"net/ipv4/conf/{dev}/route_localnet", localnet))
        made.sysctls.append(Sysctl(f"net/ipv4/conf/{dev}/rp_filter", "0"))
    return made


def asked(packet):
    dst = f"[{packet['dst']}]" if ":" in packet["dst"] else packet["dst"]
    flags = packet.get("tcp_flags") or ""
    return Question(
        packet["src"],
        f"{dst}:{packet['port']}/{packet['protocol']}",
        packet["via"],
        state=packet.get("ct", ""),
        flags=",".join(flags) if isinstance(flags, list) else flags,
    )


def disagreement(answer, packet, expected, mode):
    """How an answer differs from what was recorded; empty when it does not."""
    verdicts = {"accept" if one.verdict == "local" else one.verdict for one in answer.outcomes}
    if verdicts != {expected["verdict"]}:
        return f"expected {expected['verdict']}, found {verdicts}"
    if expected["verdict"] == "dnat":
        reached, wanted = {one.to for one in answer.outcomes}, set(expected["to"])
        remembered = mode == "nftables" and packet.get("sticky") and len(reached) == 1
        if reached != wanted and not (remembered and reached <= wanted):
            return f"expected {wanted}, found {reached}"
        if any(abs(one.probability - 1 / len(reached)) > 1e-6 for one in answer.outcomes):
            return "not all backends have the same probability"
    masquerade = expected.get("masquerade")
    for one in answer.outcomes if expected["verdict"] in ("dnat", "accept") else ():
        wanted = one.to in expected["masquerade_to"] if masquerade == "per-backend" else masquerade
        never_seen = (
            mode == "nftables"
            and "source is itself a remote endpoint" in packet["note"]
            and masquerade == "per-backend"
        )
        if wanted is not None and one.masquerade != wanted and not never_seen:
            return f"to {one.to}: masqueraded {one.masquerade}, expected {wanted}"
    return ""


@pytest.mark.parametrize("mode", ["iptables", "nftables"])
@pytest.mark.parametrize("name", with_rules())
def test_every_recorded_packet_is_answered_as_recorded(name, mode):
    case = cases()[name]
    wrong = []
    for number, state in enumerate(case["states"]):
        node = picture(snapshot(case, state, mode))
        for packet in state["packets"]:
            expected = packet["expect"] if mode == "iptables" else packet.get("expect_nftables", packet["expect"])
            why = disagreement(explain(asked(packet), node), packet, expected, mode)
            if why:
                wrong.append(f"step {number} {packet['id']} {packet['note']}: {why}")
    assert not wrong, "\n".join(wrong[:10])
