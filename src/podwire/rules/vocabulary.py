"""Packet-filter rules as data: a closed vocabulary of matches and verdicts, spelled by no program in particular.

A `Rule` is a row of matches, all of which must hold, and one verdict or none (such a rule only counts). What podwire does not
understand is not dropped and not guessed at: it is kept as `Opaque(text)` or `OpaqueTarget(text)`, so that a rule can be
written back unchanged and whoever evaluates it can say which part he cannot.

Values are equal when their kind and all their fields are. They are immutable by agreement: nothing assigns to a field
after `__init__` (slots instead of `dataclasses`, which cost 9 ms at import; this room is slim).

Names and meanings are those of iptables-extensions(8); a class says where it differs. Matches stand in the order in
which programs print them: address, interface, protocol, then the others as they are tested.

The file is long because the vocabulary is one closed list, and is best read as one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

CHANCE_UNIT = 1 << 31  # xt_statistic keeps a probability as a whole number of these parts
FULL_MASK = 0xFFFFFFFF


class Value:
    """Base: equality, hash and repr from the fields that `_names` lists."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()

    def _fields(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._names])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and type(self) is type(other) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((type(self), self._fields()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(field) for field in self._fields()])})"


class Match(Value):
    """A condition on the packet."""

    __slots__ = ()


class Verdict(Value):
    """What happens to a packet on which every match holds."""

    __slots__ = ()


class Rule(Value):
    """Matches, and a verdict or None."""

    __slots__ = ("matches", "verdict")
    _names = ("matches", "verdict")

    def __init__(self, matches: tuple[Match, ...] = (), verdict: Verdict | None = None) -> None:
        self.matches = matches
        self.verdict = verdict


# --- matches on the packet's header, in the order in which they are printed -------------------------------------------


class _Header(Match):
    __slots__ = ("inverted", "value")
    _names = ("value", "inverted")

    def __init__(self, value: str, inverted: bool = False) -> None:
        self.value = value
        self.inverted = inverted


class Source(_Header):
    """Source address in the prefix `value`, always with its length: 10.0.0.1/32."""

    __slots__ = ()


class Destination(_Header):
    """Destination address in the prefix `value`."""

    __slots__ = ()


class InInterface(_Header):
    """Came in by this interface; a final `+` stands for any rest of the name. The node's own packets have none."""

    __slots__ = ()


class OutInterface(_Header):
    """Will leave by this interface."""

    __slots__ = ()


class Protocol(_Header):
    """Layer 4 protocol by name, or by number where there is no name."""

    __slots__ = ()


# --- matches of extensions ------------------------------------------------------------------------------------------


class PortRange(Value):
    """Ports `first` to `last`, both included."""

    __slots__ = ("first", "inverted", "last")
    _names = ("first", "last", "inverted")

    def __init__(self, first: int, last: int | None = None, inverted: bool = False) -> None:
        self.first = first
        self.last = first if last is None else last
        self.inverted = inverted


class TcpFlags(Value):
    """Of the flags in `mask` exactly those in `comp` are set; both as iptables prints them ("SYN,ACK", "NONE", "ALL")."""

    __slots__ = ("comp", "inverted", "mask")
    _names = ("mask", "comp", "inverted")

    def __init__(self, mask: str, comp: str, inverted: bool = False) -> None:
        self.mask = mask
        self.comp = comp
        self.inverted = inverted


class Ports(Match):
    """The match named after its protocol (tcp, udp, sctp, dccp, udplite); with nothing set it only names the protocol."""

    __slots__ = ("destination", "flags", "protocol", "source")
    _names = ("protocol", "source", "destination", "flags")

    def __init__(
        self,
        protocol: str,
        source: PortRange | None = None,
        destination: PortRange | None = None,
        flags: TcpFlags | None = None,
    ) -> None:
        self.protocol = protocol
        self.source = source
        self.destination = destination
        self.flags = flags


class Multiport(Match):
    """`side` is sports, dports or ports (either end); one of `ranges` (first, last) holds the port."""

    __slots__ = ("inverted", "ranges", "side")
    _names = ("side", "ranges", "inverted")

    def __init__(self, side: str, ranges: tuple[tuple[int, int], ...], inverted: bool = False) -> None:
        self.side = side
        self.ranges = ranges
        self.inverted = inverted


class _Masked(Match):
    __slots__ = ("inverted", "mask", "value")
    _names = ("value", "mask", "inverted")

    def __init__(self, value: int, mask: int = FULL_MASK, inverted: bool = False) -> None:
        self.value = value
        self.mask = mask
        self.inverted = inverted


class Mark(_Masked):
    """Packet mark & `mask` == `value`."""

    __slots__ = ()


class ConnMark(_Masked):
    """The same of the connection's mark."""

    __slots__ = ()


class AddrType(Match):
    """Kind of the source and of the destination address (LOCAL, UNICAST, BROADCAST, …) by the routing table.

    An empty tuple asks nothing. `limit` is "", "in" or "out": only addresses of that interface count as LOCAL.
    """

    __slots__ = ("destination", "destination_inverted", "limit", "source", "source_inverted")
    _names = ("source", "destination", "source_inverted", "destination_inverted", "limit")

    def __init__(
        self,
        source: tuple[str, ...] = (),
        destination: tuple[str, ...] = (),
        source_inverted: bool = False,
        destination_inverted: bool = False,
        limit: str = "",
    ) -> None:
        self.source = source
        self.destination = destination
        self.source_inverted = source_inverted
        self.destination_inverted = destination_inverted
        self.limit = limit


class ConnState(Match):
    """conntrack's state is one of `states`; DNAT and SNAT are states here too. `module` is conntrack, or the old state."""

    __slots__ = ("inverted", "module", "states")
    _names = ("states", "inverted", "module")

    def __init__(self, states: tuple[str, ...], inverted: bool = False, module: str = "conntrack") -> None:
        self.states = states
        self.inverted = inverted
        self.module = module


class Random(Match):
    """Holds with probability `chance` / CHANCE_UNIT, each packet anew."""

    __slots__ = ("chance", "inverted")
    _names = ("chance", "inverted")

    def __init__(self, chance: int, inverted: bool = False) -> None:
        self.chance = chance
        self.inverted = inverted


class Nth(Match):
    """Holds for one packet of every `every`; `packet` (0 … every-1) says which."""

    __slots__ = ("every", "inverted", "packet")
    _names = ("every", "packet", "inverted")

    def __init__(self, every: int, packet: int = 0, inverted: bool = False) -> None:
        self.every = every
        self.packet = packet
        self.inverted = inverted


class Recent(Match):
    """The list `name` of addresses seen. `action` is set, rcheck, update or remove; `side` rsource or rdest.

    `seconds` and `hitcount` 0 ask nothing; `reap` drops what is older than `seconds`. `mask` is "" where an old iptables
    printed none.
    """

    __slots__ = ("action", "hitcount", "inverted", "mask", "name", "reap", "seconds", "side")
    _names = ("action", "name", "seconds", "hitcount", "reap", "mask", "side", "inverted")

    def __init__(
        self,
        action: str,
        name: str,
        seconds: int = 0,
        hitcount: int = 0,
        reap: bool = False,
        mask: str = "",
        side: str = "rsource",
        inverted: bool = False,
    ) -> None:
        self.action = action
        self.name = name
        self.seconds = seconds
        self.hitcount = hitcount
        self.reap = reap
        self.mask = mask
        self.side = side
        self.inverted = inverted


class SetMatch(Match):
    """The packet's `sides` ("src", "dst", in the set's order) are in the ipset `name`."""

    __slots__ = ("inverted", "name", "sides")
    _names = ("name", "sides", "inverted")

    def __init__(self, name: str, sides: tuple[str, ...], inverted: bool = False) -> None:
        self.name = name
        self.sides = sides
        self.inverted = inverted


class Comment(Match):
    """Always holds; up to 255 bytes of text."""

    __slots__ = ("text",)
    _names = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Accounting(Match):
    """Always holds; counts in the nfacct object `name`."""

    __slots__ = ("name",)
    _names = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Opaque(Match):
    """A match that podwire does not understand, as it was written."""

    __slots__ = ("text",)
    _names = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


# --- verdicts -------------------------------------------------------------------------------------------------------


class Accept(Verdict):
    """The packet passes this hook."""

    __slots__ = ()


class Drop(Verdict):
    """The packet vanishes."""

    __slots__ = ()


class Return(Verdict):
    """Back to the calling chain; in a built-in chain its policy decides."""

    __slots__ = ()


class _To(Verdict):
    __slots__ = ("chain",)
    _names = ("chain",)

    def __init__(self, chain: str) -> None:
        self.chain = chain


class Jump(_To):
    """Go through `chain`, and on here if it ends without a verdict."""

    __slots__ = ()


class Goto(_To):
    """Go through `chain`; its end is the end of this chain too."""

    __slots__ = ()


class Reject(Verdict):
    """Drop, and tell the sender by `answer` (icmp-port-unreachable, tcp-reset, …)."""

    __slots__ = ("answer",)
    _names = ("answer",)

    def __init__(self, answer: str) -> None:
        self.answer = answer


class _Rewrite(Verdict):
    __slots__ = ("flags", "to")
    _names = ("to", "flags")

    def __init__(self, to: str = "", flags: tuple[str, ...] = ()) -> None:
        self.to = to
        self.flags = flags


class Dnat(_Rewrite):
    """New destination `to`: address, address:port, ranges; flags are random, persistent."""

    __slots__ = ()


class Snat(_Rewrite):
    """New source `to`; flags are random, random-fully, persistent."""

    __slots__ = ()


class Redirect(_Rewrite):
    """New destination: this host (the incoming interface's address); `to` is a port or a range, or empty."""

    __slots__ = ()


class Masquerade(_Rewrite):
    """New source: the outgoing interface's address; `to` is a port range or empty; flags are random, random-fully."""

    __slots__ = ()


class SetMark(Verdict):
    """Packet mark becomes (mark & ~mask) ^ value, and the packet goes on: OR is (v, v), XOR (v, 0), AND (0, ~v)."""

    __slots__ = ("mask", "value")
    _names = ("value", "mask")

    def __init__(self, value: int, mask: int = FULL_MASK) -> None:
        self.value = value
        self.mask = mask


class OpaqueTarget(Verdict):
    """A target that podwire does not understand, with its options as they were written."""

    __slots__ = ("text",)
    _names = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text
