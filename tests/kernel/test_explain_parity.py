"""The walk and the kernel agree about every packet: the rules it met, in order, and where and how it arrived.

Hypothesis makes a ruleset and packets; both are given to the kernel in a namespace, which traces, and to `explain`. Nothing is random
in them (probabilities are 0 or 1), so that there is one right answer each time.
"""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from trace_reader import LegacyTrace, NftTrace

from explain_strategies import PACKETS, iptables_tables, nft_rulesets, restore_text
from packet_probe import Probe
from podwire.explain.explain import explain
from podwire.explain.ipsets import read_ipsets
from podwire.explain.picture import picture
from podwire.explain.question import Question
from podwire.explain.snapshot import Address, Link, Route, RuleText, Snapshot, Sysctl
from podwire.kernel import sysctl
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

#: Rulesets a back end; eight packets each.
RULESETS = int(os.environ.get("PODWIRE_PARITY_RULESETS", "12"))
INTERFACES = {"lo": ["127.0.0.1/8"], "eth0": ["10.20.0.1/24"], "cni0": ["10.244.1.1/24"]}
ROUTES = {"default": "eth0"}
IPSETS = "create net hash:net\nadd net 10.244.0.0/16\nadd net 203.0.113.0/25\ncreate pair hash:ip,port\nadd pair 10.96.0.10,tcp:80\nadd pair 10.20.0.1,udp:8080\n"
TRACE = {"PREROUTING": "-j TRACE", "OUTPUT": "-j TRACE"}


def node(texts):
    made = Snapshot(label="node", rules=texts, routes=[Route("0.0.0.0/0", dev="eth0")], addresses=[])
    made.links = [Link(name, kind="veth") for name in ("eth0", "cni0")] + [Link("lo")]
    for dev, addresses in INTERFACES.items():
        for text in addresses:
            ip, _, length = text.partition("/")
            made.addresses.append(Address(dev, ip, int(length), "host" if dev == "lo" else "global"))
            if dev != "lo":
                made.routes.append(Route(f"{ip.rpartition('.')[0]}.0/{length}", dev=dev, src=ip))
    for dev in ("all", *INTERFACES):
        for kind in ("route_localnet", "rp_filter"):
            made.sysctls.append(Sysctl(f"net/ipv4/conf/{dev}/{kind}", "0"))
    made.sysctls.append(Sysctl("net/bridge/bridge-nf-call-iptables", "0"))
    found = picture(made)
    found.facts.ipsets = read_ipsets(IPSETS)
    found.facts.recent = {}
    return found


def told(picture_, packet, number):
    """What the walk says: the end, and the rules met."""
    question = Question(
        packet["src"], f"{packet['dst']}:{packet['port']}/{packet['protocol']}", packet["via"], source_port=number
    )
    answer = explain(question, picture_)
    assert len(answer.outcomes) == 1, answer.sentence
    assert not answer.depends_on, answer.depends_on
    one = answer.outcomes[0]
    rules = [(step.table, step.chain, step.position) for step in one.path if step.position]
    if one.verdict in ("drop", "reject"):
        return one.verdict, rules
    return (one.to, one.source), rules


def arrived(probe, number):
    """What the kernel did with it."""
    if number in probe._arrived:
        source, _, to, port = probe._arrived[number]
        return f"{to}:{port}", source
    return "reject" if number in probe._rejected else "drop"


class Bench:
    """A namespace with a probe, for many rulesets one after the other."""

    def __init__(self, stack, kind):
        self.kind = kind  # nft, iptables-nft or iptables-legacy
        self.probe = stack.enter_context(Probe(INTERFACES, ROUTES, localnet=False))
        self.inside = self.probe.node
        self.inside.run("ipset", "restore", stdin=IPSETS)
        if kind == "iptables-legacy":
            self.inside.call(lambda: sysctl.write("net/netfilter/nf_log/2", "nfnetlink_log"))
        self.trace = self.inside.call(LegacyTrace if kind == "iptables-legacy" else NftTrace)
        stack.callback(self.trace.close)

    def load(self, ruleset):
        """Give it to the kernel; the texts that the kernel shows."""
        if self.kind == "nft":
            loaded = self.inside.run("nft", "-f", "-", stdin=f"flush ruleset\n{ruleset}", check=False)
            assume("conflicting protocols" not in loaded.stderr)  # nft refuses a rule that can never match
            assert loaded.returncode == 0, loaded.stderr
            shown = self.inside.run("nft", "list", "ruleset").stdout
            hooks = "".join(
                f"chain {hook} {{ type filter hook {hook} priority -400; meta nftrace set 1; }}\n"
                for hook in ("prerouting", "output")
            )
            self.inside.run("nft", "-f", "-", stdin=f"table ip trace {{\n{hooks}}}\n")
            return [RuleText("nft", 0, "nft", shown, "nft")]
        program = self.kind
        text = restore_text(ruleset)
        for table in ("raw", "mangle", "nat", "filter"):
            if f"*{table}\n" not in text:
                text += f"*{table}\nCOMMIT\n"
        self.inside.run(f"{program}-restore", stdin=text)
        shown = self.inside.run(f"{program}-save").stdout
        self.sizes = {
            (table, chain): len(rules) + (table == "raw" and chain in TRACE)
            for table, chains in ruleset.items()
            for chain, (_, rules) in chains.items()
        } | ({("raw", chain): 1 for chain in TRACE} if "raw" not in ruleset else {})
        for chain in TRACE:
            self.inside.run(program, "-t", "raw", "-I", chain, "1", "-j", "TRACE")
        return [RuleText(program, 4, "save", shown, "save")]

    def traced(self):
        """The rules that packets met, by their number, without the tracing ones."""
        listing = self.inside.run("nft", "-j", "-a", "list", "ruleset").stdout if self.kind != "iptables-legacy" else ""
        found = {}
        for number, rules in self.trace.rules(listing).items():
            found[number] = [self._place(rule) for rule in rules if self._place(rule) is not None]
        return found

    def _place(self, rule):
        table, chain, position = rule
        if self.kind == "iptables-legacy" and position > self.sizes.get((table, chain), 0):
            return None  # the chain's end
        if self.kind == "nft":
            return None if table == "trace" else rule
        if table == "raw" and chain in TRACE:
            return (table, chain, position - 1) if position > 1 else None
        return rule


@pytest.fixture(scope="module", params=["nft", "iptables-nft", "iptables-legacy"])
def bench(request):
    require("root", "nft", "ip", "iptables")
    with contextlib.ExitStack() as stack:
        yield Bench(stack, request.param)


def run(bench, ruleset, packets, counter):
    counter[0] += 1
    if isinstance(ruleset, dict):  # recent's lists outlive a packet: each run has its own
        ruleset = {
            table: {
                chain: (policy, [rule.replace("RUN-", f"{bench.kind[-3:]}{counter[0]}-") for rule in rules])
                for chain, (policy, rules) in chains.items()
            }
            for table, chains in ruleset.items()
        }
    texts = bench.load(ruleset)
    walked = node(texts)
    walked.facts.recent = {}
    sent = [(bench.probe.send(packet), packet) for packet in packets]
    bench.probe.outcomes({})
    traced = bench.traced()
    for number, packet in sent:
        (end, rules), kernel_end = told(walked, packet, number), arrived(bench.probe, number)
        context = f"{packet} port {number}\n{texts[0].text}"
        plain = [(table.split(" ")[-1], chain, position) for table, chain, position in rules]
        assert plain == traced.get(number, []), (
            f"rules: the walk {plain}, the kernel {traced.get(number, [])}\n{context}"
        )
        if end == "reject" and kernel_end == "drop":
            continue  # the answer is a packet too, and a rule may drop it; that REJECT was met is in the trace
        assert end == kernel_end, f"end: the walk {end}, the kernel {kernel_end}\n{context}"
        for name, ip in [(key.removeprefix("recent "), value) for key, value in _added(walked, packet, number)]:
            walked.facts.recent.setdefault(name, {})[ip] = (0.0,)


def _added(walked, packet, number):
    question = Question(
        packet["src"], f"{packet['dst']}:{packet['port']}/{packet['protocol']}", packet["via"], source_port=number
    )
    outcome = explain(question, walked).outcomes[0]
    return outcome.packet.added if outcome.packet is not None else ()


def test_the_walk_and_the_kernel_agree(bench):
    rulesets = nft_rulesets() if bench.kind == "nft" else iptables_tables()
    counter = [0]

    @settings(
        max_examples=RULESETS, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False,
        phases=[Phase.generate],  # a smaller example would cost a hundred loads more
    )  # fmt: skip
    @given(ruleset=rulesets, packets=st.lists(PACKETS, min_size=8, max_size=8))
    def check(ruleset, packets):
        assume(ruleset)
        run(bench, ruleset, packets, counter)

    check()
