"""The netlink codec without a kernel: what is encoded can be decoded, and what lies is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.addresses import Ip, Prefix
from podwire.kernel import ifaddrs, links, neighbours, routes, wire

pytestmark = pytest.mark.unit

KINDS = st.integers(0, wire.NLA_TYPE_MASK)
PAYLOADS = st.binary(max_size=300)
V4 = st.ip_addresses(v=4).map(str)
V6 = st.ip_addresses(v=6).map(lambda address: str(Ip.parse(str(address))))  # as the kernel spells it
MACS = st.binary(min_size=6, max_size=6).map(lambda raw: raw.hex(":"))


@given(st.lists(st.tuples(KINDS, PAYLOADS)))
def test_attributes_survive_the_round_trip_in_order(pairs):
    data = b"".join(wire.attribute(kind, payload) for kind, payload in pairs)
    assert len(data) % 4 == 0
    assert wire.attribute_list(data) == pairs


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), PAYLOADS)))
def test_messages_survive_the_round_trip_in_order(rows):
    data = b"".join(wire.message(*row) for row in rows)
    assert [(m.kind, m.flags, m.seq, m.body) for m in wire.messages(data)] == rows


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_do_more_than_raise_a_protocol_error(data):
    for decode in (lambda d: list(wire.messages(d)), wire.attribute_list):
        try:
            decode(data)
        except wire.ProtocolError:
            continue


@pytest.mark.parametrize("length", [0, 3, 9, 0xFFFF])
def test_an_attribute_that_reaches_beyond_its_message_is_refused(length):
    with pytest.raises(wire.ProtocolError):
        wire.attribute_list(struct.pack("=HH", length, 1) + b"1234")


def test_a_message_that_reaches_beyond_its_datagram_is_refused():
    whole = wire.message(16, 0, 1, b"12345678")
    with pytest.raises(wire.ProtocolError):
        list(wire.messages(whole[:-4]))


def test_an_attribute_too_long_for_its_length_field_is_refused():
    with pytest.raises(wire.ProtocolError, match="do not fit"):
        wire.attribute(1, bytes(70_000))


def _error(number, request, *, capped, tlvs):
    flags = (wire.NLM_F_CAPPED if capped else 0) | (wire.NLM_F_ACK_TLVS if tlvs else 0)
    body = struct.pack("=i", -number) + (request[:16] if capped else request) + tlvs
    return next(wire.messages(wire.message(wire.NLMSG_ERROR, flags, 7, body)))


@pytest.mark.parametrize("capped", [True, False])
def test_the_kernels_sentence_is_read_from_an_error_with_and_without_the_request_repeated(capped):
    request = wire.message(16, 5, 7, bytes(16))
    tlvs = wire.string(wire.NLMSGERR_ATTR_MSG, "Invalid handle") + wire.u32(wire.NLMSGERR_ATTR_OFFS, 36)
    ack = wire.ack_of(_error(22, request, capped=capped, tlvs=tlvs))
    assert (ack.number, ack.text, ack.offset, ack.missing) == (22, "Invalid handle", 36, None)


def test_an_ack_without_error_and_without_sentence_is_zero():
    request = wire.message(16, 5, 7, bytes(16))
    assert wire.ack_of(_error(0, request, capped=True, tlvs=b"")).number == 0


def test_a_dump_that_failed_tells_so_in_its_last_message():
    body = struct.pack("=i", -16) + wire.string(wire.NLMSGERR_ATTR_MSG, "too busy")
    done = next(wire.messages(wire.message(wire.NLMSG_DONE, wire.NLM_F_ACK_TLVS, 1, body)))
    ack = wire.ack_of(done)
    assert (ack.number, ack.text) == (16, "too busy")


@given(
    st.one_of(
        st.tuples(V4, st.integers(0, 32)),
        st.tuples(V6, st.integers(0, 128)),
    ),
    st.integers(1, 1 << 30),
    st.sampled_from([0, 253, 254]),
    st.sampled_from([0, ifaddrs.IFA_F_NODAD, ifaddrs.IFA_F_NODAD | ifaddrs.IFA_F_NOPREFIXROUTE]),
)
def test_an_address_survives_the_round_trip(address, index, scope, flags):
    ip, length = address
    again = ifaddrs.decode(ifaddrs.encode(ifaddrs.Address(index, ip, length, scope=scope, flags=flags)))
    assert (again.index, again.ip, again.length, again.scope, again.flags) == (index, ip, length, scope, flags)


@given(
    st.one_of(
        st.tuples(V4, st.integers(0, 32), st.one_of(st.just(""), V4, V6), st.one_of(st.just(""), V4)),
        st.tuples(V6, st.integers(0, 128), st.one_of(st.just(""), V6), st.one_of(st.just(""), V6)),
    ),
    st.integers(0, 1 << 30),
    st.booleans(),
    st.integers(1, 100_000),
    st.integers(0, 255),
    st.integers(0, 5000),
    st.integers(0, 9000),
)
def test_a_route_survives_the_round_trip(where, oif, onlink, table, protocol, metric, mtu):
    ip, length, via, src = where
    dst = str(Prefix.parse(f"{ip}/{length}").canonical)
    route = routes.Route(
        dst, via=via, oif=oif, onlink=onlink, src=src, table=table, protocol=protocol, metric=metric, mtu=mtu
    )
    again = routes.decode(routes.encode(route))
    for name in routes.Route.__slots__:
        if name != "flags":
            assert getattr(again, name) == getattr(route, name), name


def test_a_route_without_gateway_is_of_link_scope_and_one_with_a_gateway_universal():
    assert routes.Route("10.0.0.0/8", oif=2).scope == routes.SCOPE_LINK
    assert routes.Route("10.0.0.0/8", via="10.0.0.1").scope == routes.SCOPE_UNIVERSE
    assert routes.Route("fd00::/8", oif=2).scope == routes.SCOPE_UNIVERSE


@given(st.one_of(V4, V6), MACS, st.integers(1, 1 << 30), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFF))
def test_a_forwarding_entry_survives_the_round_trip(ip, mac, index, port, vni):
    entry = neighbours.Neighbour(
        index, ip, mac, family=links.AF_BRIDGE, flags=neighbours.NTF_SELF, port=port, vni=vni, via_index=3
    )
    again = neighbours.decode(neighbours.encode(entry))
    for name in neighbours.Neighbour.__slots__:
        assert getattr(again, name) == getattr(entry, name), name


def _as_answer(request):
    """A request for a new link is laid out as the answer about a link is."""
    return links.decode(request)


def test_a_vxlan_survives_the_round_trip():
    wanted = links.Vxlan(4096, "192.0.2.1", 3, 8472, learning=True, ttl=7, gbp=True)
    link = _as_answer(links.create("flannel.1", "vxlan", links.vxlan_data(wanted), settings=links.settings(mtu=1450)))
    assert (link.name, link.kind, link.mtu) == ("flannel.1", "vxlan", 1450)
    assert link.vxlan == wanted
    assert link.vxlan != links.Vxlan(4096, "192.0.2.2", 3, 8472, learning=True, ttl=7, gbp=True)


def test_a_vxlan_over_ipv6_keeps_its_local_address():
    wanted = links.Vxlan(1, "2001:db8::1", 0, 8472)
    assert _as_answer(links.create("x", "vxlan", links.vxlan_data(wanted))).vxlan == wanted


@given(MACS)
def test_a_mac_survives_the_round_trip(mac):
    assert links.mac_text(links.mac_bytes(mac)) == mac


@pytest.mark.parametrize("text", ["", "aa:bb:cc:dd:ee", "aa:bb:cc:dd:ee:gg", "a:b:c:d:e:f", "aabbccddeeff"])
def test_what_is_no_mac_is_refused(text):
    with pytest.raises(ValueError, match=r"MAC address|hexadecimal"):
        links.mac_bytes(text)
