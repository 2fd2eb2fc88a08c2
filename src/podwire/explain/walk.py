"""The packet's whole way through one node: hooks and routing in the kernel's order, every branch followed.

Came in: PREROUTING, routing, then INPUT, or FORWARD and POSTROUTING. Made here: routing, OUTPUT (with routing again where NAT or a mark
changed what it depends on), POSTROUTING, and for the node's own addresses once more in through lo. conntrack looks at the
packet between raw and mangle; NAT chains are asked only by the first packet of a flow.

A `Journey` ends in `End`s whose verdict is local (delivered to the node), sent (left by `packet.oif`), drop, reject or unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from podwire.addresses import Ip
from podwire.explain import bridging
from podwire.explain.chains import End, Walked
from podwire.explain.hooks import Hooks
from podwire.explain.packet import UNKNOWN, Step, TooManyWays, Unknown, Way, merge
from podwire.explain.source_check import refused_input, refused_output

if TYPE_CHECKING:
    from podwire.explain.facts import Facts
    from podwire.explain.hooks import Entry, Ruleset
    from podwire.explain.packet import Packet
    from podwire.explain.routing import Found
    from podwire.explain.snapshot import Flow

_CONNTRACK = -200
_IPVS = "kube-ipvs0"  # where kube-proxy in ipvs mode puts the addresses of Services
_NAT = {"PREROUTING": -100, "OUTPUT": -100, "INPUT": 100, "POSTROUTING": 100}
ORDER = Unknown("nat order", "the legacy nat table was registered after the nft one")
UNLISTED = Unknown("nat order", "the nat table of iptables was registered after the other nat chains of nf_tables")


class Journey:
    """One packet on one node. `flow` is its conntrack entry, where there is one, and whether the packet is a reply in it."""

    def __init__(self, ruleset: Ruleset, facts: Facts, family: int, flow: tuple[Flow, bool] | None = None) -> None:
        self.facts = facts
        self.hooks = Hooks(ruleset, family, facts)
        self.flow = flow
        self.ends: list[End] = []

    def run(self, packet: Packet) -> list[End]:
        """All ends of the packet's ways."""
        try:
            if packet.own:
                self._outgoing([Way(packet)])
            else:
                self._incoming([Way(packet)])
        except TooManyWays:
            self.ends.append(End("unknown", Way(packet), "too many ways to follow"))
        return self.ends

    # -- coming in ---------------------------------------------------------------------------------------------------

    def _incoming(self, ways: list[Way]) -> None:
        bridged, ways = bridging.switched(ways, self.facts)
        for way, filtered in bridged:
            self._switched(way, filtered=filtered)
        for way in self._hook("PREROUTING", ways):
            self._route_input(way)

    def _switched(self, way: Way, *, filtered: bool) -> None:
        """A frame between two ports of one bridge: with br_netfilter it meets the hooks as if it were forwarded."""
        if not filtered:
            self.ends.append(
                End("sent", way.with_packet(way.packet._replace(oif=way.packet.iif)), "switched by the bridge")
            )
            return
        for one in self._hook("PREROUTING", [way]):
            if one.packet.dst != way.packet.dst or not one.packet.dst_known:
                self._route_input(one)
                continue
            packet = one.packet._replace(
                oif=one.packet.iif, physout=bridging.port_name(one.packet.dst, one.packet, self.facts)
            )
            self._leave(self._hook("FORWARD", [one.with_packet(packet)]), "")

    def _route_input(self, way: Way) -> None:
        packet = way.packet
        if not packet.dst_known and not packet.to_self:
            self.ends.append(
                End("unknown", way, "its new destination is not readable, so the way from here is not known")
            )
            return
        kind = "LOCAL" if packet.to_self else self.facts.address_type(packet.dst)
        if kind is None:
            here, elsewhere = way.split(Unknown(f"local {packet.dst}", f"{packet.dst} is an address of this node"))
            if here is not None:
                self._deliver(here)
            if elsewhere is not None:
                self._forward(elsewhere, self._elsewhere(elsewhere.packet))
            return
        refusal = refused_input(packet, kind, self.facts)
        if isinstance(refusal, str):
            self.ends.append(End("drop", way.met(_routing_step(refusal)), refusal))
            return
        if refusal is not None:
            lost, kept = way.split(refusal)
            if lost is not None:
                self.ends.append(End("drop", lost.met(_routing_step(refusal.text)), refusal.text))
            if kept is None:
                return
            way = kept
        if kind == "LOCAL":
            self._deliver(way)
        else:
            self._forward(way, self._elsewhere(packet))

    def _elsewhere(self, packet: Packet) -> Found:
        return self.facts.routing.lookup(packet.dst, packet.src, packet.iif, packet.mark)

    def _deliver(self, way: Way) -> None:
        if self.facts.routing.owner(way.packet.dst) == _IPVS:
            self.ends.append(
                End("unknown", way, f"IPVS takes what comes to {_IPVS}; its table (ipvsadm -Ln) is not walked")
            )
            return
        for one in self._hook("INPUT", [way]):
            self.ends.append(End("local", one))

    def _forward(self, way: Way, found: Found) -> None:
        if self._refused(way, found):
            return
        if found.kind in ("local", "broadcast"):
            self._deliver(way)
            return
        if self.facts.setting("net/ipv4/ip_forward") == "0" and way.packet.family == 4:
            self.ends.append(
                End(
                    "drop",
                    way.met(_routing_step("ip_forward is 0")),
                    "the node does not forward (net.ipv4.ip_forward = 0)",
                )
            )
            return
        packet = way.packet._replace(oif=found.dev or UNKNOWN)
        way = way.with_packet(packet)
        if found.text:
            way = way.met(Step("routing", "", found.table or "main", "", 0, found.text, f"out by {packet.oif}"))
        stopped = bridging.hairpin_off(packet, self.facts)
        if stopped:
            self.ends.append(
                End("drop", way.met(Step("bridge", "", "", packet.oif or "", 0, stopped, "DROP")), stopped)
            )
            return
        self._leave(self._hook("FORWARD", [way]), found.via)

    def _refused(self, way: Way, found: Found) -> bool:
        said = {
            "unreachable": ("reject", "icmp-host-unreachable"),
            "prohibit": ("reject", "icmp-admin-prohibited"),
            "blackhole": ("drop", "a blackhole route"),
            "none": ("reject", "no route to it (icmp-net-unreachable)"),
        }.get(found.kind)
        if said is None:
            return False
        text = found.text or f"no route to {way.packet.dst}"
        self.ends.append(End(said[0], way.met(Step("routing", "", found.table, "", 0, text, said[1])), said[1]))
        return True

    def _leave(self, ways: list[Way], via: str) -> None:
        for one in self._hook("POSTROUTING", ways, via):
            self.ends.append(End("sent", one, via))

    # -- going out ---------------------------------------------------------------------------------------------------

    def _outgoing(self, ways: list[Way]) -> None:
        for way in ways:
            routed = self._route_output(way)
            if routed is None:
                continue
            for one in self._hook("OUTPUT", [routed]):
                self._send(one)

    def _route_output(self, way: Way) -> Way | None:
        """With the output interface; None when the kernel has no way for it."""
        packet = way.packet
        if packet.to_self or not packet.dst_known:
            return way.with_packet(packet._replace(oif="lo" if packet.to_self else UNKNOWN))
        found = self.facts.routing.lookup(packet.dst, packet.src, None, packet.mark)
        if self._refused(way, found):
            return None
        dev = "lo" if found.kind == "local" else found.dev or UNKNOWN
        refusal = refused_output(packet, dev, self.facts)
        if isinstance(refusal, str):
            self.ends.append(End("drop", way.met(_routing_step(refusal)), refusal))
            return None
        if refusal is not None:
            lost, kept = way.split(refusal)
            if lost is not None:
                self.ends.append(End("drop", lost.met(_routing_step(refusal.text)), refusal.text))
            if kept is None:
                return None
            way = kept
        if found.text and dev != "lo":
            way = way.met(Step("routing", "", found.table or "main", "", 0, found.text, f"out by {dev}"))
        return way.with_packet(packet._replace(oif=dev))

    def _send(self, way: Way) -> None:
        packet = way.packet
        via = ""
        if packet.dst_known and not packet.to_self and packet.oif != "lo":
            via = self.facts.routing.lookup(packet.dst, packet.src, None, packet.mark).via
        for one in self._hook("POSTROUTING", [way], via):
            if one.packet.oif != "lo":
                self.ends.append(End("sent" if one.packet.dst_known else "unknown", one, via))
                continue
            again = one.with_packet(one.packet._replace(iif="lo", oif=None))
            for back in self._hook("PREROUTING", [again], again=True):
                self._deliver(back)

    # -- hooks -------------------------------------------------------------------------------------------------------

    def _hook(self, hook: str, ways: list[Way], via: str = "", *, again: bool = False) -> list[Way]:
        """The ways that pass all chains of a hook; the others are in `ends`. `again`: conntrack has seen the packet before."""
        entries = self.hooks.at(hook)
        tracks = hook in ("PREROUTING", "OUTPUT") and not again
        nat_done = hook not in _NAT
        state = ways[0].packet.state if ways else "NEW"
        if tracks and any(entry.priority <= _CONNTRACK for entry in entries):
            ways = [way.with_packet(way.packet._replace(state="INVALID")) for way in ways]
        else:
            tracks = False
        for entry in entries:
            if tracks and entry.priority > _CONNTRACK:
                ways, tracks = [_tracked(way, state) for way in ways], False
            if entry.nat:
                continue
            if not nat_done and entry.priority > _NAT[hook]:
                ways, nat_done = self._nat_hook(hook, ways, via), True
            ways = self._entry(entry, hook, ways, via)
        if tracks:
            ways = [_tracked(way, state) for way in ways]
        return ways if nat_done else self._nat_hook(hook, ways, via)

    def _entry(self, entry: Entry, hook: str, ways: list[Way], via: str) -> list[Way]:
        if not ways:
            return ways
        on = self._passed(entry.run(ways, via))
        if hook == "OUTPUT" and entry.reroutes:
            marks = {way.packet.mark for way in ways}
            on = [
                one for way in on if (one := way if way.packet.mark in marks else self._route_output(way)) is not None
            ]
        return on

    def _passed(self, walked: Walked) -> list[Way]:
        on = list(walked.through)
        for end in walked.ended:
            if end.verdict == "accept":
                on.append(end.way)
            else:
                self.ends.append(end)
        return merge(on)

    # -- NAT ---------------------------------------------------------------------------------------------------------

    def _nat_hook(self, hook: str, ways: list[Way], via: str) -> list[Way]:
        """The NAT core (nf_nat_inet_fn): chains only for a flow that has no mapping of this kind yet."""
        source = hook in ("INPUT", "POSTROUTING")
        entries = [entry for entry in self.hooks.at(hook) if entry.nat] if self.hooks.tracks else []
        done: list[Way] = []
        for way in ways:
            packet = way.packet
            if self.flow is not None and packet.state in ("ESTABLISHED", "NEW", "RELATED"):
                done.append(_by_flow(way, self.flow, source=source))
            elif packet.state not in ("NEW", "RELATED") or (packet.src_settled if source else packet.dst_settled):
                done.append(way)
            else:
                done += self._nat_chains(entries, way, via, source=source)
        if hook == "OUTPUT":
            before = {way.packet.dst for way in ways}
            done = [
                one
                for way in done
                if (
                    one := way
                    if way.packet.dst in before and way.packet.dst_known and not way.packet.to_self
                    else self._route_output(way)
                )
                is not None
            ]
        return merge(done)

    def _nat_chains(self, entries: list[Entry], way: Way, via: str, *, source: bool) -> list[Way]:
        legacy, question = [entry for entry in entries if entry.source == "iptables-legacy"], ORDER
        if not legacy:
            legacy, question = [entry for entry in entries if not entry.order], UNLISTED
        others = [entry for entry in entries if entry not in legacy]
        if not legacy or not others:
            return self._in_order(entries, way, via, source=source)
        legacy_last, nft_last = way.split(question)
        ways = []
        if legacy_last is not None:  # the later one runs first
            ways += self._in_order(
                sorted(legacy + others, key=lambda entry: entry.priority), legacy_last, via, source=source
            )
        if nft_last is not None:
            ways += self._in_order(
                sorted(others + legacy, key=lambda entry: entry.priority), nft_last, via, source=source
            )
        return merge(ways)

    def _in_order(self, entries: list[Entry], way: Way, via: str, *, source: bool) -> list[Way]:
        live = [way]
        done: list[Way] = []
        for entry in entries:
            if not live:
                break
            passed = self._passed(entry.run(live, via))
            live = []
            for one in passed:
                (done if (one.packet.src_settled if source else one.packet.dst_settled) else live).append(one)
        return done + [one.with_packet(_settled(one.packet, source=source)) for one in live]


def _settled(packet: Packet, *, source: bool) -> Packet:
    """With the mapping "none", which the NAT core makes where no rule made one."""
    return packet._replace(src_settled=True) if source else packet._replace(dst_settled=True)


def _tracked(way: Way, state: str) -> Way:
    packet = way.packet
    return way if packet.state == "UNTRACKED" else way.with_packet(packet._replace(state=state))


def _routing_step(text: str) -> Step:
    return Step("routing", "", "", "", 0, text, "DROP")


def _by_flow(way: Way, flow_and_side: tuple[Flow, bool], *, source: bool) -> Way:
    """What the flow's entry makes of the packet: no rule is asked."""
    flow, reply = flow_and_side
    packet = way.packet
    if source:
        address, port = (flow.dst, flow.dport) if reply else (flow.reply_dst, flow.reply_dport)
        new = packet._replace(src=Ip.parse(address), sport=port or None, src_settled=True)
        new = new._replace(snat=packet.snat or (not reply and new.src != packet.src))
    else:
        address, port = (flow.src, flow.sport) if reply else (flow.reply_src, flow.reply_sport)
        new = packet._replace(dst=Ip.parse(address), dport=port or None, dst_settled=True)
        new = new._replace(dnat=packet.dnat or (not reply and (new.dst, new.dport) != (packet.dst, packet.dport)))
    if new.src == packet.src and new.dst == packet.dst and new.dport == packet.dport:
        return way.with_packet(new)
    what = f"source becomes {new.src}" if source else f"destination becomes {new.dst}:{new.dport}"
    return way.with_packet(new).met(Step("conntrack", "", "", "", 0, flow.text, what))
