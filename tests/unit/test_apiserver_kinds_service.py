"""Services: defaults, addresses, node ports, what is refused with which words, what an update keeps."""

from __future__ import annotations

import copy

import pytest
from kinds_world import Cluster, service

from podwire.apiserver.allocators import AddressRange
from podwire.apiserver.status import StatusError

pytestmark = pytest.mark.unit

DUAL = ("10.96.0.0/16", "fd00:96::/112")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_bare_service_gets_the_defaults_of_a_real_api_server(cluster: Cluster) -> None:
    made = cluster.create(service(selector={"app": "web"}))
    address = made["spec"]["clusterIP"]
    assert made["spec"] == {
        "clusterIP": address,
        "clusterIPs": [address],
        "internalTrafficPolicy": "Cluster",
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        "selector": {"app": "web"},
        "sessionAffinity": "None",
        "type": "ClusterIP",
    }
    assert made["status"] == {"loadBalancer": {}}
    assert "generation" not in made["metadata"]


def test_defaults_are_filled_in_once_and_for_all(cluster: Cluster) -> None:
    made = cluster.create(service(type="LoadBalancer", externalTrafficPolicy="Local", sessionAffinity="ClientIP"))
    assert cluster.update(made) == made
    assert made["spec"]["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    assert made["spec"]["allocateLoadBalancerNodePorts"] is True
    assert made["spec"]["healthCheckNodePort"] != made["spec"]["ports"][0]["nodePort"]


def test_an_address_that_nobody_names_comes_from_above_the_static_band(cluster: Cluster) -> None:
    for number in range(40):
        _, _, third, fourth = map(int, cluster.create(service(f"s{number}"))["spec"]["clusterIP"].split("."))
        assert third * 256 + fourth > 256


def test_the_band_is_used_when_the_rest_is_full_and_then_the_range_is_full() -> None:
    cluster = Cluster(ranges=("10.96.0.0/27",))
    addresses = [cluster.create(service(f"s{number}"))["spec"]["clusterIP"] for number in range(30)]
    assert len(set(addresses)) == 30
    assert all(int(address.rpartition(".")[2]) > 16 for address in addresses[:14])
    with pytest.raises(StatusError, match="failed to allocate a serviceIP: range is full") as refusal:
        cluster.create(service("one-too-many"))
    assert refusal.value.code == 500
    cluster.delete(service("s3"))
    assert cluster.create(service("another"))["spec"]["clusterIP"] == addresses[3]


def test_an_address_that_is_taken_or_foreign_is_refused(cluster: Cluster) -> None:
    cluster.create(service("dns", clusterIP="10.96.0.10"))
    taken = 'spec.clusterIPs: Invalid value: ["10.96.0.10"]: failed to allocate IP 10.96.0.10: '
    assert cluster.refused(service(clusterIP="10.96.0.10")) == [taken + "provided IP is already allocated"]
    for foreign in ("10.95.0.1", "10.96.0.0", "10.96.255.255"):
        said = f'spec.clusterIPs: Invalid value: ["{foreign}"]: failed to allocate IP {foreign}: '
        said += "provided IP is not in the valid range. The range of valid IPs is 10.96.0.0/16"
        assert cluster.refused(service(clusterIP=foreign)) == [said]
    said = 'spec.clusterIPs[0]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'
    assert cluster.refused(service(clusterIP="x")) == [said]


def test_a_node_port_that_is_taken_or_out_of_range_is_refused(cluster: Cluster) -> None:
    cluster.create(service("first", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    path = "spec.ports[0].nodePort: Invalid value: "
    udp = [{"port": 80, "nodePort": 30080, "protocol": "UDP"}]
    assert cluster.refused(service(type="NodePort", ports=udp)) == [f"{path}30080: provided port is already allocated"]
    assert cluster.refused(service(type="NodePort", ports=[{"port": 80, "nodePort": 80}])) == [
        f"{path}80: provided port is not in the valid range. The range of valid ports is 30000-32767"
    ]


def test_the_message_of_a_refusal_is_the_one_that_people_search_for(cluster: Cluster) -> None:
    with pytest.raises(StatusError) as refusal:
        cluster.create(service(type="NodePort", ports=[{"port": 80, "nodePort": 80}]))
    assert refusal.value.message == (
        'Service "web" is invalid: spec.ports[0].nodePort: Invalid value: 80: provided port is not in the valid range. '
        "The range of valid ports is 30000-32767"
    )


def test_node_ports_that_nobody_names_are_all_different_and_above_the_band(cluster: Cluster) -> None:
    ports = [{"name": f"p{number}", "port": number} for number in range(1, 30)]
    made = cluster.create(service(type="NodePort", ports=ports))
    numbers = [port["nodePort"] for port in made["spec"]["ports"]]
    assert len(set(numbers)) == len(numbers)
    assert all(30086 <= number <= 32767 for number in numbers)


def test_the_same_port_of_two_protocols_shares_a_node_port(cluster: Cluster) -> None:
    ports = [{"name": "tcp", "port": 53, "protocol": "TCP"}, {"name": "udp", "port": 53, "protocol": "UDP"}]
    made = cluster.create(service(type="NodePort", ports=ports))
    first, second = made["spec"]["ports"]
    assert first["nodePort"] == second["nodePort"]
    ports[1]["nodePort"] = 30053
    made = cluster.create(service("named", type="NodePort", ports=ports))
    assert [port["nodePort"] for port in made["spec"]["ports"]] == [30053, 30053]


def test_two_ports_may_not_name_the_same_node_port_on_create(cluster: Cluster) -> None:
    ports = [{"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 443, "nodePort": 30080}]
    said = "spec.ports[1].nodePort: Invalid value: 30080: provided port is already allocated"
    assert cluster.refused(service(type="NodePort", ports=ports)) == [said]


def test_what_a_deleted_service_held_is_free_again(cluster: Cluster) -> None:
    wanted = {"type": "NodePort", "clusterIP": "10.96.0.20", "ports": [{"port": 80, "nodePort": 30080}]}
    cluster.delete(cluster.create(service("old", **copy.deepcopy(wanted))))
    cluster.create(service("new", **wanted))


def test_a_refused_create_holds_nothing(cluster: Cluster) -> None:
    wanted = {"type": "NodePort", "clusterIP": "10.96.0.20", "ports": [{"port": 80, "nodePort": 30080}]}
    cluster.refused(service("bad_name", **copy.deepcopy(wanted)))
    cluster.create(service("good", **wanted))


def test_cluster_ip_becomes_node_port_and_back(cluster: Cluster) -> None:
    made = cluster.create(service())
    opened = cluster.change(made, type="NodePort")
    assert opened["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    assert opened["spec"]["ports"][0]["nodePort"] >= 30086
    assert opened["spec"]["externalTrafficPolicy"] == "Cluster"
    closed = cluster.change(opened, type="ClusterIP")
    assert closed["spec"] == made["spec"]
    number = opened["spec"]["ports"][0]["nodePort"]
    cluster.create(service("other", type="NodePort", ports=[{"port": 80, "nodePort": number}]))


def test_an_update_that_does_not_mention_what_was_allocated_keeps_it(cluster: Cluster) -> None:
    body = service(type="NodePort")
    made = cluster.create(body)
    body["metadata"]["labels"] = {"a": "b"}
    again = cluster.update(body)
    assert again["spec"] == made["spec"]
    assert again["metadata"]["labels"] == {"a": "b"}


def test_an_update_may_move_a_node_port_and_frees_the_old_one(cluster: Cluster) -> None:
    made = cluster.create(service(type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    moved = cluster.change(made, ports=[{"port": 80, "nodePort": 30081}])
    cluster.create(service("second", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    moved["spec"]["ports"][0]["nodePort"] = 30080
    assert cluster.refused_update(moved) == [
        "spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"
    ]


def test_an_address_does_not_change(cluster: Cluster) -> None:
    made = cluster.create(service(clusterIP="10.96.0.20"))
    body = service(clusterIP="10.96.0.21")
    said = 'spec.clusterIPs[0]: Invalid value: ["10.96.0.21"]: may not change once set'
    assert cluster.refused_update(body) == [said]
    body = service(clusterIP="None")
    assert cluster.refused_update(body) == ['spec.clusterIPs[0]: Invalid value: ["None"]: may not change once set']
    assert cluster.get(made) == made


def test_external_name_comes_and_goes(cluster: Cluster) -> None:
    made = cluster.create(service(type="ExternalName", externalName="db.example.com.", ports=[]))
    assert made["spec"] == {
        "type": "ExternalName",
        "externalName": "db.example.com.",
        "ports": [],
        "sessionAffinity": "None",
    }
    inside = cluster.change(made, type="ClusterIP", externalName=None, ports=[{"port": 5432}])
    assert inside["spec"]["clusterIP"]
    outside = cluster.change(inside, type="ExternalName", externalName="db.example.com")
    assert not {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"} & outside["spec"].keys()
    cluster.create(service("heir", clusterIP=inside["spec"]["clusterIP"]))


def test_headless_services_have_no_address(cluster: Cluster) -> None:
    made = cluster.create(service("a", clusterIP="None", selector={"app": "db"}, ports=[]))
    assert made["spec"]["clusterIPs"] == ["None"]
    assert (made["spec"]["ipFamilyPolicy"], made["spec"]["ipFamilies"]) == ("SingleStack", ["IPv4"])
    bare = cluster.create(service("b", clusterIP="None"))
    assert (bare["spec"]["ipFamilyPolicy"], bare["spec"]["ipFamilies"]) == ("RequireDualStack", ["IPv4", "IPv6"])


def test_dual_stack_gives_an_address_of_each_family() -> None:
    cluster = Cluster(ranges=DUAL)
    single = cluster.create(service("single"))
    assert single["spec"]["ipFamilies"] == ["IPv4"]
    made = cluster.create(service(ipFamilyPolicy="PreferDualStack"))
    assert made["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
    assert made["spec"]["clusterIPs"][1].startswith("fd00:96::")
    assert made["spec"]["clusterIP"] == made["spec"]["clusterIPs"][0]
    sixth = cluster.create(service("six", ipFamilies=["IPv6"]))
    assert sixth["spec"]["clusterIP"].startswith("fd00:96::")


def test_a_service_goes_from_one_family_to_two_and_back() -> None:
    cluster = Cluster(ranges=DUAL)
    made = cluster.create(service())
    both = cluster.change(made, ipFamilyPolicy="RequireDualStack")
    assert both["spec"]["clusterIPs"][0] == made["spec"]["clusterIP"]
    assert both["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
    back = cluster.change(both, ipFamilyPolicy="SingleStack")
    assert back["spec"] == made["spec"]
    cluster.create(service("heir", ipFamilies=["IPv6"], clusterIP=both["spec"]["clusterIPs"][1]))
    short = copy.deepcopy(cluster.change(back, ipFamilyPolicy="PreferDualStack"))
    short["spec"]["clusterIPs"] = short["spec"]["clusterIPs"][:1]
    said = "spec.ipFamilyPolicy: Invalid value: \"PreferDualStack\": must be 'SingleStack' to release the secondary "
    assert cluster.refused_update(short) == [said + "cluster IP"]


def test_a_family_that_the_cluster_lacks_is_refused(cluster: Cluster) -> None:
    assert cluster.refused(service(ipFamilies=["IPv6"])) == [
        'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster'
    ]
    assert cluster.refused(service(ipFamilyPolicy="RequireDualStack")) == [
        'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services'
    ]
    made = cluster.create(service(ipFamilyPolicy="PreferDualStack"))
    assert made["spec"]["ipFamilies"] == ["IPv4"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"ports": []}, "spec.ports: Required value"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        ({"ports": [{"port": 1}, {"port": 2, "name": "b"}]}, "spec.ports[0].name: Required value"),
        ({"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "a"}]}, 'spec.ports[1].name: Duplicate value: "a"'),
        (
            {"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b"}]},
            (
                'spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":1,"TargetPort":0,'
                '"NodePort":0}'
            ),
        ),
        (
            {"ports": [{"port": 1, "protocol": "ICMP"}]},
            'spec.ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"',
        ),
        (
            {"ports": [{"port": 1, "targetPort": "no_name"}]},
            (
                'spec.ports[0].targetPort: Invalid value: "no_name": must contain only alpha-numeric characters (a-z, 0-9), '
                "and hyphens (-)"
            ),
        ),
        (
            {"ports": [{"port": 1, "nodePort": 30080}]},
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            {"type": "Wrong"},
            'spec.type: Unsupported value: "Wrong": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"',
        ),
        (
            {"type": "NodePort", "clusterIP": "None"},
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        ({"type": "ExternalName"}, "spec.externalName: Required value"),
        (
            {"type": "ExternalName", "externalName": "x.y", "clusterIP": "10.96.0.9"},
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
        ),
        (
            {"sessionAffinity": "Cookie"},
            'spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None"',
        ),
        (
            {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 100000}}},
            (
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 100000: must be greater than 0 and less "
                "than 86400"
            ),
        ),
        (
            {"externalTrafficPolicy": "Local"},
            'spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services',
        ),
        (
            {"internalTrafficPolicy": "Here"},
            'spec.internalTrafficPolicy: Unsupported value: "Here": supported values: "Cluster", "Local"',
        ),
        (
            {"type": "NodePort", "healthCheckNodePort": 30100},
            (
                "spec.healthCheckNodePort: Invalid value: 30100: may only be set when `type` is 'LoadBalancer' and "
                "`externalTrafficPolicy` is 'Local'"
            ),
        ),
        (
            {"loadBalancerSourceRanges": ["10.0.0.0/8"]},
            "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            {"type": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0"]},
            (
                'spec.LoadBalancerSourceRanges[0]: Invalid value: "10.0.0.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or '
                "2001:db8::/64)"
            ),
        ),
        (
            {"externalIPs": ["127.0.0.1"]},
            'spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)',
        ),
        (
            {"allocateLoadBalancerNodePorts": False},
            "spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            {"trafficDistribution": "Anywhere"},
            (
                'spec.trafficDistribution: Unsupported value: "Anywhere": supported values: "PreferClose", "PreferSameNode", '
                '"PreferSameZone"'
            ),
        ),
        (
            {"selector": {"bad key": "x"}},
            (
                "spec.selector: Invalid value: \"bad key\": name part must consist of alphanumeric characters, '-', '_' or '.', "
                "and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used "
                "for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ),
        ),
    ],
)
def test_a_wrong_service_is_refused_with_field_and_reason(cluster: Cluster, spec: dict, said: str) -> None:
    assert said in cluster.refused(service(**spec))


def test_a_name_that_begins_with_a_digit_is_no_service_name(cluster: Cluster) -> None:
    (said,) = cluster.refused(service("1web"))
    assert said.startswith('metadata.name: Invalid value: "1web": a DNS-1035 label must consist of lower case')


def test_load_balancer_without_node_ports(cluster: Cluster) -> None:
    made = cluster.create(service(type="LoadBalancer", allocateLoadBalancerNodePorts=False))
    assert "nodePort" not in made["spec"]["ports"][0]


def test_a_health_check_port_is_a_node_port_like_others(cluster: Cluster) -> None:
    made = cluster.create(service(type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=30100))
    ports = [{"port": 80, "nodePort": 30100}]
    said = "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated"
    assert cluster.refused(service("b", type="NodePort", ports=ports)) == [said]
    made["spec"]["healthCheckNodePort"] = 30101
    assert cluster.refused_update(made) == ["spec.healthCheckNodePort: Forbidden: field is immutable"]
    made["spec"]["externalTrafficPolicy"] = "Cluster"
    made["spec"]["healthCheckNodePort"] = 30100
    assert "healthCheckNodePort" not in cluster.update(made)["spec"]
    cluster.create(service("b", type="NodePort", ports=ports))


def test_a_status_update_of_a_load_balancer_touches_only_the_status(cluster: Cluster) -> None:
    made = cluster.create(service(type="LoadBalancer"))
    body = copy.deepcopy(made)
    body["spec"]["ports"][0]["port"] = 81
    body["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    after = cluster.update(body, "status")
    assert after["spec"] == made["spec"]
    assert after["status"] == {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}
    body["status"]["loadBalancer"]["ingress"] = [{"ip": "192.0.2.1", "ipMode": "Magic"}, {"hostname": "192.0.2.2"}]
    body["metadata"].pop("resourceVersion")
    assert cluster.refused_update(body, "status") == [
        'status.loadBalancer.ingress[0].ipMode: Unsupported value: "Magic": supported values: "Proxy", "VIP"',
        'status.loadBalancer.ingress[1].hostname: Invalid value: "192.0.2.2": must be a DNS name, not an IP address',
    ]


@pytest.mark.parametrize(
    ("spec", "status", "cells"),
    [
        ({}, {}, ["ClusterIP", "10.96.0.9", "<none>", "80/TCP"]),
        (
            {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30450}]},
            {},
            ["NodePort", "10.96.0.9", "<none>", "80:30450/TCP"],
        ),
        ({"externalIPs": ["192.0.2.9"]}, {}, ["ClusterIP", "10.96.0.9", "192.0.2.9", "80/TCP"]),
        (
            {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False},
            {},
            ["LoadBalancer", "10.96.0.9", "<pending>", "80/TCP"],
        ),
        (
            {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False},
            {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}, {"hostname": "a.example"}]}},
            ["LoadBalancer", "10.96.0.9", "192.0.2.2,a.example", "80/TCP"],
        ),
        ({"clusterIP": "None", "ports": []}, {}, ["ClusterIP", "None", "<none>", "<none>"]),
        (
            {"type": "ExternalName", "externalName": "a.example", "ports": [], "clusterIP": None},
            {},
            ["ExternalName", "<none>", "a.example", "<none>"],
        ),
    ],
)
def test_the_row_of_a_service(cluster: Cluster, spec: dict, status: dict, cells: list) -> None:
    wanted = {"clusterIP": "10.96.0.9", "selector": {"b": "2", "a": "1"}, **spec}
    made = cluster.create(service(**{key: value for key, value in wanted.items() if value is not None}))
    made["status"] = status
    assert cluster.row(made) == ["web", *cells, "0s", "a=1,b=2"]


def test_finding_a_free_address_asks_the_index_a_few_times_however_many_are_taken() -> None:
    asked = 0

    class Claims:
        """One address in seven is taken, nine thousand in all."""

        def holder(self, claim):
            nonlocal asked
            asked += 1
            return "x/y" if int(claim[1].rpartition(".")[2]) % 7 == 0 else None

    pool = AddressRange("10.96.0.0/16")
    for seed in range(1000):
        pool.next(Claims(), seed * 65537)
    assert asked < 1500
