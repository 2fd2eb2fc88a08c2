"""Checks of connection tracking: flows that outlived their rules, and what the kernel counts as lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.doctor import services
from podwire.doctor.finding import Check, Evidence, Said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.services import ServicePort
    from podwire.doctor.view import Node
    from podwire.explain.snapshot import Flow


def look_stale_flows(node: Node) -> Iterator[Said]:
    """UDP flows to a Service that go where no endpoint is."""
    if not node.snapshot.flows:
        return
    listed = services.of_api(node) if node.snapshot.services and node.snapshot.slices is not None else []
    names = {one.name for one in listed if one.known}
    listed = [one for one in listed if one.known] + [one for one in services.of_rules(node) if one.name not in names]
    own = {address.ip for address in node.snapshot.addresses or ()}
    groups: dict[tuple[str, str], list[tuple[Flow, ServicePort]]] = {}
    for flow in node.snapshot.flows:
        if flow.protocol != "udp" or flow.dst.startswith("127."):
            continue
        for one in listed:
            if one.protocol != "udp":
                continue
            cluster = flow.dst in one.ips and flow.dport == one.port
            node_port = (
                one.node_port
                and flow.dport == one.node_port
                and (flow.dst in own or not own)
                and flow.dst not in {end.ip for end in one.endpoints}
            )
            if not (cluster or node_port):
                continue
            targets = {(end.ip, end.port) for end in one.endpoints if end.ready or end.serving}
            if (flow.reply_src, flow.reply_sport) in targets:
                break
            untouched = flow.reply_src == flow.dst
            if untouched and not targets:
                break
            groups.setdefault((one.name, flow.reply_src), []).append((flow, one))
            break
    yield from _flow_findings(groups)


def _flow_findings(groups: dict[tuple[str, str], list[tuple[Flow, ServicePort]]]) -> Iterator[Said]:
    by_service: dict[str, list[tuple[Flow, ServicePort]]] = {}
    for (name, _), flows in sorted(groups.items()):
        by_service.setdefault(name, []).extend(flows)
    for name, flows in by_service.items():
        one = flows[0][1]
        evidence, fix = [], []
        for flow, _ in flows[:12]:
            untouched = flow.reply_src == flow.dst
            said = (
                'it began before there was a rule and is pinned to "no translation"'
                if untouched
                else f"{flow.reply_src} is no endpoint any more"
            )
            evidence.append(
                Evidence(f"{flow.src}:{flow.sport} → {flow.dst}:{flow.dport}: {said} [{flow.text}]", flow.where)
            )
        ends = ", ".join(sorted(f"{end.ip}:{end.port}" for end in one.endpoints)) or "none"
        evidence.append(Evidence(f"the endpoints of {name} are: {ends}", one.where))
        fix = list(
            dict.fromkeys(
                f"conntrack -D -p udp --orig-dst {flow.dst} --reply-src {flow.reply_src}" for flow, _ in flows
            )
        )
        yield Said(
            evidence,
            fix,
            title=f"{len(flows)} UDP flow{'s' if flows[1:] else ''} to {name} go{'' if flows[1:] else 'es'} where no endpoint is",
        )


def look_conntrack(node: Node) -> Iterator[Said]:
    """What conntrack counts: races, invalid packets, a full table."""
    totals: dict[str, int] = {}
    where = ""
    for text in node.snapshot.output("conntrack-stats"):
        where = text.where
        for key, value in re.findall(r"(\w+)=(\d+)", text.text):
            totals[key] = totals.get(key, 0) + int(value)
    if totals.get("insert_failed", 0) >= 10:
        yield Said(
            [Evidence(f"insert_failed={totals['insert_failed']} (all CPUs), drop={totals.get('drop', 0)}", where)],
            ["NodeLocal DNSCache, or options single-request-reopen in the pods' resolv.conf", "kube-proxy with --random-fully (1.16+)"],
            title="Packets were lost when two made the same connection tracking entry",
            symptom="DNS look-ups sometimes take 5 seconds.", level="warning",
            why="Two packets of one socket at the same moment (A and AAAA look-ups) both want to make the entry; one of them is dropped.",
        )  # fmt: skip
    yield from _invalid(node, totals, where)
    yield from _full(node)


def _invalid(node: Node, totals: dict[str, int], where: str) -> Iterator[Said]:
    rule = next(
        (
            (f"-A {chain.name} {line}", f"{rules.where}, filter")
            for chain, rules in node.chains("filter", "KUBE-FORWARD")
            for line in chain.lines
            if "INVALID" in line and "DROP" in line
        ),
        None,
    )
    liberal = node.snapshot.sysctl("net/netfilter/nf_conntrack_tcp_be_liberal")
    if totals.get("invalid", 0) < 1000 or rule is None or (liberal and liberal.value == "1"):
        return
    yield Said(
        [Evidence(f"invalid={totals['invalid']} (all CPUs)", where), Evidence(*rule)],
        ["sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1   # kube-proxy >= 1.29 then leaves the rule out", "look for asymmetric routes: replies that come by another node"],
        title="Packets that conntrack calls INVALID are dropped", level="warning",
        symptom="Long transfers are reset or hang.",
        why="A packet outside of the window that conntrack expects (asymmetric routing, offloads) has no connection. kube-proxy's rule drops it, since it would leave untranslated.",
    )  # fmt: skip


def _full(node: Node) -> Iterator[Said]:
    count, most = (
        node.snapshot.sysctl("net/netfilter/nf_conntrack_count"),
        node.snapshot.sysctl("net/netfilter/nf_conntrack_max"),
    )
    evidence = [
        Evidence(line.strip(), log.where)
        for log in node.snapshot.output("kernel-log")
        for line in log.text.splitlines()
        if "table full, dropping packet" in line
    ][:2]
    if (
        count
        and most
        and (count.value or "").isdigit()
        and (most.value or "").isdigit()
        and int(most.value or 0)
        and int(count.value or 0) * 10 >= int(most.value or 0) * 9
    ):
        evidence.append(Evidence(f"nf_conntrack_count = {count.value} of nf_conntrack_max = {most.value}", count.where))
    if evidence:
        yield Said(
            evidence,
            ["sysctl -w net.netfilter.nf_conntrack_max=…   # or conntrack.maxPerCore in kube-proxy's configuration"],
            title="The connection tracking table is full",
            symptom="New connections are lost at random.",
            why="A full table drops every packet that would make a new entry.",
        )


CHECKS = (
    Check(
        "stale-udp-flows",
        "UDP flows go on to a pod that is gone",
        "A sender of UDP (DNS, statsd) gets no answer; a new socket works at once.",
        "A packet of a known flow is not looked up in the nat table, and each packet renews the entry: a sender that never pauses keeps it for ever.",
        look_stale_flows,
    ),
    Check("conntrack", "Connection tracking loses packets", "Sporadic losses.", "See the finding.", look_conntrack),
)
