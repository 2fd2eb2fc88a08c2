"""The netlink codec beside pyroute2's: a second opinion on what we send, and on what the kernel answers."""

import pytest

from podwire.kernel import bridges, ifaddrs, links, neighbours, routes, wire
from podwire.testing.netns import netns, require

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]

pyroute2 = pytest.importorskip("pyroute2")


def read(message_class, kind, body):
    """A request of ours as pyroute2 reads it."""
    data = wire.message(kind, wire.NLM_F_REQUEST, 1, body)
    found = message_class(data)
    found.decode()
    return found


def test_a_veth_request_reads_the_same():
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    peer = links.veth_peer("eth0", links.settings(mtu=1450, mac="0a:58:0a:f4:01:05", netns_fd=7))
    body = links.create("veth1", "veth", peer, settings=links.settings(mtu=1450, master=3), up=True)
    found = read(ifinfmsg, links.RTM_NEWLINK, body)
    assert (found.get_attr("IFLA_IFNAME"), found.get_attr("IFLA_MTU"), found.get_attr("IFLA_MASTER")) == (
        "veth1",
        1450,
        3,
    )
    assert found["flags"] & 1
    info = found.get_attr("IFLA_LINKINFO")
    assert info.get_attr("IFLA_INFO_KIND") == "veth"
    far = info.get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert (far.get_attr("IFLA_IFNAME"), far.get_attr("IFLA_ADDRESS")) == ("eth0", "0a:58:0a:f4:01:05")
    assert far.get_attr("IFLA_NET_NS_FD") in (7, "7")


def test_a_vxlan_request_reads_the_same():
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    wanted = links.Vxlan(4096, "192.0.2.1", 3, 8472, learning=False, ttl=5, gbp=True)
    found = read(ifinfmsg, links.RTM_NEWLINK, links.create("flannel.1", "vxlan", links.vxlan_data(wanted)))
    data = found.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA")
    values = {name: data.get_attr(f"IFLA_VXLAN_{name}") for name in ("ID", "LOCAL", "LINK", "PORT", "LEARNING", "TTL")}
    assert values == {"ID": 4096, "LOCAL": "192.0.2.1", "LINK": 3, "PORT": 8472, "LEARNING": 0, "TTL": 5}


def test_a_route_request_reads_the_same():
    from pyroute2.netlink.rtnl.rtmsg import rtmsg

    route = routes.Route(
        "10.244.2.0/24",
        via="192.0.2.2",
        oif=3,
        onlink=True,
        src="10.244.1.0",
        table=1000,
        protocol=87,
        metric=5,
        mtu=1400,
    )
    found = read(rtmsg, routes.RTM_NEWROUTE, routes.encode(route))
    assert (found["dst_len"], found["proto"], found["scope"], found["flags"] & 4) == (24, 87, 0, 4)
    values = {name: found.get_attr(f"RTA_{name}") for name in ("DST", "GATEWAY", "OIF", "PREFSRC", "TABLE", "PRIORITY")}
    assert values == {
        "DST": "10.244.2.0", "GATEWAY": "192.0.2.2", "OIF": 3, "PREFSRC": "10.244.1.0", "TABLE": 1000, "PRIORITY": 5,
    }  # fmt: skip
    assert found.get_attr("RTA_METRICS").get_attr("RTAX_MTU") == 1400


def test_address_and_neighbour_requests_read_the_same():
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
    from pyroute2.netlink.rtnl.ndmsg import ndmsg

    address = ifaddrs.Address(3, "fd00::1", 64, flags=ifaddrs.IFA_F_NODAD | ifaddrs.IFA_F_NOPREFIXROUTE)
    found = read(ifaddrmsg, ifaddrs.RTM_NEWADDR, ifaddrs.encode(address))
    assert (found["prefixlen"], found["index"], found.get_attr("IFA_ADDRESS")) == (64, 3, "fd00::1")
    assert found.get_attr("IFA_FLAGS") == 0x202
    entry = neighbours.Neighbour(
        5, "192.0.2.2", "0a:00:00:00:00:02", family=links.AF_BRIDGE, flags=neighbours.NTF_SELF, port=8472, vni=7
    )
    found = read(ndmsg, neighbours.RTM_NEWNEIGH, neighbours.encode(entry))
    assert (found["ifindex"], found["state"], found["flags"]) == (5, 0x80, 2)
    values = {name: found.get_attr(f"NDA_{name}") for name in ("DST", "LLADDR", "PORT", "VNI")}
    assert values == {"DST": "192.0.2.2", "LLADDR": "0a:00:00:00:00:02", "PORT": 8472, "VNI": 7}


def test_a_vlan_request_reads_the_same():
    """The kernel of the machine this was written on filters no VLANs; so the layout is compared with pyroute2's own."""
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    theirs = ifinfmsg()
    theirs["family"], theirs["index"] = 7, 9
    theirs["attrs"] = [
        (
            "IFLA_AF_SPEC",
            {"attrs": [("IFLA_BRIDGE_FLAGS", 1), ("IFLA_BRIDGE_VLAN_INFO", {"vid": 100, "flags": 6})]},
            0x8000,
        )
    ]
    theirs.encode()
    ours = links.IFINFO.pack(7, 0, 9, 0, 0)
    body = bridges.vlan_change(9, 100, pvid=True, untagged=True)
    assert body.startswith(ours)
    mine = wire.attributes(wire.attributes(body, links.IFINFO.size)[links.IFLA_AF_SPEC])
    other = next(wire.messages(bytes(theirs.data))).body
    assert wire.attributes(wire.attributes(other, links.IFINFO.size)[links.IFLA_AF_SPEC]) == mine
    assert bridges.decode_vlans(body) == (9, [100])


def test_both_see_the_same_namespace():
    require("root", "veth", "bridge-device", "vxlan")
    with netns() as node, node.rtnl() as door:
        door.create_bridge("cni0", mtu=1450, mac="0a:58:0a:f4:01:01", up=True)
        door.create_veth("veth1", "eth0", master=door.link("cni0").index, alias="podwire:x", up=True)
        door.create_vxlan("flannel.1", 1, local="192.0.2.1", mtu=1450, up=True)
        index = door.link("cni0").index
        door.add_address(index, "10.244.1.1/24")
        door.add_route("10.244.2.0/24", via="10.244.1.9", oif=index, metric=7, protocol=87)
        door.add_neighbour(door.link("flannel.1").index, "10.244.2.0", "0a:00:00:00:00:02")
        ours = (
            [(x.index, x.name, x.mtu, x.mac, x.master, x.alias, x.operstate, x.flags, x.kind) for x in door.links()],
            sorted((a.index, a.ip, a.length, a.scope, a.flags) for a in door.addresses()),
            sorted((r.dst, r.via, r.oif, r.metric, r.protocol, r.table, r.scope) for r in door.routes(family=2)),
            sorted((n.index, n.ip, n.mac, n.state) for n in door.neighbours()),
        )
        theirs = node.call(_their_view)
    assert ours == theirs


def _their_view():
    with pyroute2.IPRoute() as ip:
        found = [
            (
                x["index"], x.get_attr("IFLA_IFNAME"), x.get_attr("IFLA_MTU"), x.get_attr("IFLA_ADDRESS") or "",
                x.get_attr("IFLA_MASTER") or 0, x.get_attr("IFLA_IFALIAS") or "", x.get_attr("IFLA_OPERSTATE").lower(),
                x["flags"], (x.get_attr("IFLA_LINKINFO") and x.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_KIND")) or "",
            )
            for x in ip.get_links()
        ]  # fmt: skip
        addresses = [
            (
                a["index"], a.get_attr("IFA_LOCAL") or a.get_attr("IFA_ADDRESS"), a["prefixlen"], a["scope"],
                a.get_attr("IFA_FLAGS"),
            )
            for a in ip.get_addr()
        ]  # fmt: skip
        table = [
            (
                f"{r.get_attr('RTA_DST') or '0.0.0.0'}/{r['dst_len']}", r.get_attr("RTA_GATEWAY") or "",
                r.get_attr("RTA_OIF") or 0, r.get_attr("RTA_PRIORITY") or 0, r["proto"], r.get_attr("RTA_TABLE"),
                r["scope"],
            )
            for r in ip.get_routes(family=2)
        ]  # fmt: skip
        entries = [
            (n["ifindex"], n.get_attr("NDA_DST"), n.get_attr("NDA_LLADDR") or "", n["state"])
            for n in ip.get_neighbours(family=2)
        ]
    return found, sorted(addresses), sorted(table), sorted(entries)
