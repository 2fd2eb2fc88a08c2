"""What has to be said beside the walk: flows that rules do not see any more, sockets, bridges, pastes that begin in the middle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from podwire.addresses import Prefix
from podwire.explain import bridging
from podwire.explain.chains import End
from podwire.explain.packet import UNKNOWN, Way
from podwire.explain.snapshot import Flow
from podwire.explain.walk_iptables import IptablesWalk
from podwire.rules import vocabulary as v

if TYPE_CHECKING:
    from podwire.addresses import Ip
    from podwire.explain.answer import Outcome
    from podwire.explain.facts import Facts
    from podwire.explain.packet import Packet
    from podwire.explain.picture import Picture
    from podwire.explain.question import Asked, Question
    from podwire.explain.tables import RuleChain, RuleTable


def supposed(question: Question, asked: Asked, picture: Picture) -> Facts:
    """The facts, and what has to be supposed of a node none of whose addresses are known.

    Only the packet's own destination may then be one. It is taken to be when somebody outside sends to an address that no
    rule names: that is what is asked of a bare dump. Everything else stays open.
    """
    facts = picture.facts
    packet = asked.packet
    if facts.routing.address_type(packet.dst) is not None or packet.own:
        return facts
    outside = question.source == "external" or not _private(packet.src)
    reachable = not _private(packet.dst) or (packet.dport is not None and 30000 <= packet.dport <= 32767)
    local = outside and reachable and not _named(packet.dst, picture)
    if local:
        asked.assumed.append(
            f"{packet.dst} is an address of this node (nothing in the input tells its addresses: --node-address)"
        )
    return replace(facts, asked=packet.dst, asked_is_local=local, assumed=[])


_PRIVATE = tuple(
    [Prefix.parse(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")]
)


def _private(ip: Ip) -> bool:
    return any(prefix.contains(ip) for prefix in _PRIVATE)


def _named(ip: Ip, picture: Picture) -> bool:
    """Whether a rule or an nft set names the address as a destination."""
    text = f"-d {ip}/"
    for rules in picture.ruleset.iptables:
        for table in rules.tables.values():
            if any(text in line for chain in table.chains.values() for line in chain.lines):
                return True
    return False


def flow_of(packet: Packet, facts: Facts, warnings: list[str]) -> tuple[Flow, bool] | None:
    """The conntrack entry of the packet's flow, when its source port tells which; else the entries are warned about."""
    found = facts.flows_of(packet)
    if packet.state in ("INVALID", "UNTRACKED", "RELATED"):
        return None
    if facts.snapshot.flows is None:
        return _by_socket(packet, facts, warnings)
    if packet.sport is not None and found:
        flow, reply = found[0]
        warnings.append(f"the packet belongs to a known flow, so no nat rule is asked: {flow.text}")
        return flow, reply
    for flow, reply in found[:5]:
        if not reply:
            went = f"{flow.reply_src}:{flow.reply_sport}"
            kept = (
                "without translation" if (flow.reply_src, flow.reply_sport) == (flow.dst, flow.dport) else f"to {went}"
            )
            warnings.append(
                f"packets from source port {flow.sport} belong to a known flow and go on {kept}, whatever the rules say: {flow.text}"
            )
    if len(found) > 5:
        warnings.append(f"{len(found) - 5} more known flows between the two")
    return None


def _by_socket(packet: Packet, facts: Facts, warnings: list[str]) -> tuple[Flow, bool] | None:
    """Without conntrack's entries: an established socket of the node has one, and its peer's packets are replies in it."""
    for one in facts.snapshot.sockets or ():
        if one.state != "ESTAB" or (one.protocol, one.ip, one.peer_ip) != (
            packet.protocol,
            str(packet.dst),
            str(packet.src),
        ):
            continue
        if one.port != packet.dport or packet.sport not in (None, one.peer_port):
            continue
        text = f"{one.owner} has a connection from {one.ip}:{one.port} to {one.peer_ip}:{one.peer_port}"
        if packet.sport is None:
            warnings.append(f"{text}: packets from port {one.peer_port} are answers in it and no nat rule is asked")
            continue
        warnings.append(
            f"{text}: taken as an answer in it, so no nat rule is asked, as long as conntrack has its entry"
        )
        ends = (one.ip, one.peer_ip, one.port, one.peer_port)
        flow = Flow(
            one.protocol,
            *ends,
            one.peer_ip,
            one.ip,
            one.peer_port,
            one.port,
            "ESTABLISHED",
            frozenset({"ASSURED"}),
            text,
            one.where,
        )
        return flow, True
    return None


def name_process(outcome: Outcome, facts: Facts) -> None:
    """Say which process gets what is delivered here."""
    if (
        not outcome.delivered
        or outcome.packet is None
        or not outcome.packet.dst_known
        or facts.snapshot.sockets is None
    ):
        return
    listener = facts.listener(outcome.packet)
    if listener is not None:
        outcome.process = listener.owner
    elif outcome.packet.protocol in ("tcp", "udp"):
        refuses = (
            "a TCP client is refused (RST)" if outcome.packet.protocol == "tcp" else "the sender gets port unreachable"
        )
        outcome.detail = outcome.detail or f"nobody listens there: {refuses}"


def about(outcomes: list[Outcome], picture: Picture) -> list[str]:
    """Warnings that the outcomes call for."""
    found: list[str] = []
    facts = picture.facts
    for outcome in outcomes:
        packet = outcome.packet
        if packet is None or outcome.verdict != "dnat" or not packet.dst_known:
            continue
        source = packet.first_src or packet.src
        if bridging.is_bridge(packet.iif, facts) and packet.oif == packet.iif:
            found += _same_bridge(packet, source == packet.dst, facts)
        found += _double(outcome, packet, facts)
    if any(one.verdict == "accept" for one in outcomes):
        found += _empty_services(picture)
    return list(dict.fromkeys(found))


def _same_bridge(packet: Packet, hairpin: bool, facts: Facts) -> list[str]:
    found = []
    if hairpin and not packet.snat:
        found.append(
            f"{packet.dst} gets a packet from its own address and drops it (martian): the hairpin is not masqueraded"
        )
    if hairpin:
        port = facts.port_of(packet.dst, packet.iif or "")
        name = f" {port.name}" if port is not None else ""
        if facts.hairpin(packet.dst, packet.iif or "") is None:
            found.append(
                f"the packet is delivered back to the same veth{name}: that needs hairpin mode on the bridge port, which is not in this input"
            )
    elif not packet.snat:
        state = facts.bridge_netfilter(packet.family)
        if state is False:
            found.append(
                f"same-bridge reply: br_netfilter is off, so the answer of {packet.dst} is switched by {packet.iif} without being "
                "translated back, and the client does not know it (modprobe br_netfilter, bridge-nf-call-iptables=1)"
            )
        elif state is None:
            found.append(
                "same-bridge reply: needs br_netfilter (bridge-nf-call-iptables = 1), which is not in this input"
            )
    return found


def _double(outcome: Outcome, packet: Packet, facts: Facts) -> list[str]:
    """A mark that is still set behind MASQUERADE is on the VXLAN packet too, which meets the same rule (kube-proxy before 1.19)."""
    link = facts.link(packet.oif)
    overlay = link.overlay if link is not None else (packet.oif or "").startswith("flannel")
    last = next((step for step in reversed(outcome.path) if step.hook == "POSTROUTING"), None)
    if not overlay or not packet.snat or not packet.mark or last is None or "mark" not in last.text:
        return []
    text = (
        f"the mark {packet.mark:#x} is still set behind POSTROUTING: the {packet.oif} packet around it carries it too and is "
        "masqueraded a second time, which breaks its checksum on some kernels (a 63 s hang towards other nodes)"
    )
    return [text]


def _empty_services(picture: Picture) -> list[str]:
    for rules in picture.ruleset.iptables:
        table = rules.tables.get("nat")
        chain = table.chains.get("KUBE-SERVICES") if table is not None else None
        if chain is not None and not chain.lines and not table.partial:  # type: ignore[union-attr]  # chain is from it
            return [f"not translated: KUBE-SERVICES of {rules.source} is empty, kube-proxy has not written its rules"]
    return []


# -- a paste that begins in the middle ---------------------------------------------------------------------------------


def partial_start(packet: Packet, picture: Picture, warnings: list[str]) -> list[End] | None:
    """Where no built-in chain of any table was pasted: the walk from the chains that nothing in the paste leads to."""
    tables = [
        (rules, table)
        for rules in picture.ruleset.iptables
        if rules.family == packet.family
        for table in rules.tables.values()
    ]
    if picture.ruleset.nft or not tables or any(chain.policy for _, table in tables for chain in table.chains.values()):
        return None
    ends: list[End] = []
    for rules, table in tables:
        walk = IptablesWalk(rules, table, "", picture.facts)
        for chain in _roots(table):
            warnings.append(
                f"{rules.where or 'the input'} has no built-in chain: the walk begins at {chain.name}, as if the packet had come there"
            )
            iif = packet if packet.own else packet._replace(oif=UNKNOWN)
            walked = walk.run_from(chain, [Way(iif)])
            ends += walked.ended
            ends += [End("unknown", way, f"what follows {chain.name} is not in this input") for way in walked.through]
    reached = [end for end in ends if end.way.path is not None]
    return reached or ends


def _roots(table: RuleTable) -> list[RuleChain]:
    called = {
        row.verdict.chain
        for chain in table.chains.values()
        for row in chain.rows()
        if isinstance(row.verdict, v.Jump | v.Goto)
    }
    roots = [chain for name, chain in table.chains.items() if name not in called]
    return roots or list(table.chains.values())[:1]
