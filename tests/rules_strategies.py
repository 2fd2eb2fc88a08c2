"""Rules of the vocabulary, as hypothesis makes them: all that iptables-restore takes, in the form in which it prints them."""

from __future__ import annotations

from hypothesis import strategies as st

from podwire.rules import vocabulary as v

PREFIXES = st.sampled_from(["10.0.0.0/8", "10.1.2.3/32", "192.168.7.0/24", "128.0.0.0/1"])
INTERFACES = st.sampled_from(["eth0", "cni0", "veth+", "lo"])
NAMES = st.sampled_from(["DEFAULT", "list-1", "KUBE-SEP-AAAAAAAAAAAAAAAA"])
CHAINS = ("CHAIN-A", "CHAIN-B")  # what a test that loads the rules must make first
MARKS = st.integers(0, v.FULL_MASK)
TEXTS = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=60)
PORTS = st.integers(0, 65535)


@st.composite
def port_ranges(draw):
    # Ranges that reach an end of the numbers are printed as something shorter by nf_tables when they are inverted.
    first, last = sorted((draw(st.integers(1, 65534)), draw(st.integers(1, 65534))))
    return v.PortRange(first, last, draw(st.booleans()))


def maybe(strategy):
    return st.none() | strategy


HEADERS = st.tuples(
    maybe(st.builds(v.Source, PREFIXES, st.booleans())),
    maybe(st.builds(v.Destination, PREFIXES, st.booleans())),
)
FLAGS = st.builds(
    v.TcpFlags,
    st.sampled_from(["SYN,ACK", "FIN,SYN,RST,ACK", "FIN"]),
    st.sampled_from(["SYN", "NONE"]),
    st.booleans(),
)
MULTIPORT_RANGES = st.lists(
    st.tuples(st.integers(1, 30000), st.integers(30001, 65535)) | PORTS.map(lambda port: (port, port)),
    min_size=1,
    max_size=5,
).map(tuple)
OTHERS = st.one_of(
    st.builds(v.Mark, MARKS, MARKS, st.booleans()),
    st.builds(v.ConnMark, MARKS, MARKS, st.booleans()),
    st.builds(v.AddrType, st.sampled_from([(), ("LOCAL",)]), st.just(("LOCAL",)), st.just(value=False), st.booleans()),
    st.builds(v.ConnState, st.sampled_from([("NEW",), ("RELATED", "ESTABLISHED"), ("DNAT",)]), st.booleans()),
    st.builds(
        v.Random,
        st.integers(1, v.CHANCE_UNIT - 1).map(lambda part: round(round(part / v.CHANCE_UNIT, 9) * v.CHANCE_UNIT)),
        st.booleans(),
    ),
    st.integers(2, 9).flatmap(lambda every: st.builds(v.Nth, st.just(every), st.integers(0, every - 1), st.booleans())),
    st.builds(v.Recent, st.just("set"), NAMES, mask=st.just("255.255.255.255"), inverted=st.booleans()),
    st.builds(
        v.Recent,
        st.just("rcheck"),
        NAMES,
        seconds=st.integers(1, 86400),
        hitcount=st.integers(0, 10),
        reap=st.booleans(),
        mask=st.just("255.255.255.255"),
        side=st.sampled_from(["rsource", "rdest"]),
        inverted=st.booleans(),
    ),
    st.builds(v.Comment, TEXTS),
)
VERDICTS = st.one_of(
    st.sampled_from([None, v.Accept(), v.Return(), v.Jump("CHAIN-B")]),
    st.builds(v.SetMark, MARKS, MARKS),
)


@st.composite
def rules(draw):
    source, destination = draw(HEADERS)
    matches = [match for match in (source, destination) if match is not None]
    incoming = draw(maybe(st.builds(v.InInterface, INTERFACES, st.booleans())))
    matches += [incoming] if incoming else []
    protocol = draw(st.sampled_from(["", "tcp", "udp", "sctp"]))
    others = draw(st.lists(OTHERS, max_size=3, unique_by=type))  # iptables refuses some twice
    if protocol:
        matches.append(v.Protocol(protocol))
        flags = draw(maybe(FLAGS)) if protocol == "tcp" else None
        ports = v.Ports(protocol, draw(maybe(port_ranges())), draw(maybe(port_ranges())), flags)
        extra = draw(
            maybe(
                st.builds(v.Multiport, st.sampled_from(["sports", "dports", "ports"]), MULTIPORT_RANGES, st.booleans())
            )
        )
        others += [ports, *([extra] if extra else [])]
    return v.Rule((*matches, *others), draw(VERDICTS))


RULES = rules()
