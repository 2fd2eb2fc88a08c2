"""KubeProxyConfiguration files, flags over them, and what they mean for a node."""

from __future__ import annotations

import pytest

from kubeproxy_golden import cases, config, with_rules
from podwire.errors import UsageError
from podwire.kube.kinds import NODES
from podwire.kubeproxy.config import Config, Conntrack, duration, load, merge, read
from podwire.kubeproxy.family import IPV4, IPV6
from podwire.kubeproxy.prepare import wanted
from podwire.kubeproxy.settings import resolve
from podwire.rules import vocabulary as v

pytestmark = pytest.mark.unit

# As kubeadm 1.36 writes it into the ConfigMap kube-proxy: nearly every key is there, nearly all are empty.
KUBEADM = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  networkName: ""
"""


def write(tmp_path, text):
    path = tmp_path / "config.conf"
    path.write_text(text)
    return str(path)


def test_kubeadms_file_means_the_defaults(tmp_path):
    found = load(write(tmp_path, KUBEADM))
    assert found.warnings == ()
    expected = Config(kubeconfig="/var/lib/kube-proxy/kubeconfig.conf", cluster_cidrs=("10.244.0.0/16",))
    assert Config(**found.fields).check() == expected


@pytest.mark.parametrize("name", with_rules())
def test_the_files_of_the_recorded_cases_are_read_without_a_warning(name):
    case = cases()[name]
    assert read(case["config"]).warnings == ()
    assert config(case).mode == "iptables"


def test_unknown_and_unsupported_keys_are_named():
    warnings = read(
        {"iptables": {"syncPeriod": "5s", "sincPeriod": "6s"}, "clusterCidr": "x", "enableProfiling": True}
    ).warnings
    assert warnings == (
        "iptables.sincPeriod is not known",
        "clusterCidr is not known",
        "enableProfiling has no effect in podwire",
    )


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = write(tmp_path, KUBEADM.replace("masqueradeBit: null", "masqueradeBit: 15"))
    merged = merge(path, {"cluster_cidrs": ("10.0.0.0/8",), "mode": None})
    assert merged.cluster_cidrs == ("10.0.0.0/8",)
    assert merged.masquerade_bit == 15


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"iptables": {"syncPeriod": "soon"}}, "iptables.syncPeriod 'soon': is no duration"),
        ({"iptables": {"masqueradeAll": "yes"}}, "iptables.masqueradeAll 'yes': must be true or false"),
        ({"iptables": {"masqueradeBit": "14"}}, "must be a whole number"),
        ({"nodePortAddresses": "10.0.0.0/8"}, "must be a list of strings"),
    ],
)
def test_a_value_that_makes_no_sense_is_one_line_that_says_its_key(data, says):
    with pytest.raises(UsageError, match=says):
        read(data)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mode": "ipvs"}, "mode 'ipvs': must be one of iptables, nftables"),
        ({"cluster_cidrs": ("10.244.0.0",)}, "clusterCIDR '10.244.0.0': is no prefix"),
        ({"node_port_addresses": ("primary", "x/8")}, "nodePortAddresses 'x/8'"),
        ({"masquerade_bit": 32}, "must be 0 to 31"),
        ({"sync_period": 1.0, "min_sync_period": 2.0}, "syncPeriod 1s"),
        ({"detect_local_mode": "BridgeInterface"}, "needs detectLocal.bridgeInterface"),
        ({"node_port_reservation": "yes"}, "nodePortReservation 'yes'"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(fields, says):
    with pytest.raises(UsageError, match=says):
        Config(**fields).check()


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not of kind KubeProxyConfiguration"):
        load(write(tmp_path, "apiVersion: v1\nkind: ConfigMap\n"))
    with pytest.raises(UsageError, match="apiVersion must be"):
        load(write(tmp_path, KUBEADM.replace("v1alpha1", "v1")))
    with pytest.raises(UsageError, match="No such file"):
        load(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="reading the configuration"):
        load(write(tmp_path, "a: [1"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("1m30s", 90), ("500ms", 0.5), ("1h", 3600), ("0", 0), (0, 0)]
)
def test_durations_are_gos(text, seconds):
    assert duration("key", text) == pytest.approx(seconds)


NODE = NODES.convert(
    {
        "metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:1::/64"]},
        "status": {
            "addresses": [
                {"type": "ExternalIP", "address": "198.51.100.1"},
                {"type": "InternalIP", "address": "10.20.0.1"},
                {"type": "InternalIP", "address": "fd00:20::1"},
            ]
        },
    }
)
IPS = ("127.0.0.1", "10.20.0.1", "10.21.0.1", "::1", "fd00:20::1", "fe80::1")


def settings(family=IPV4, node=NODE, ips=IPS, on_node=True, **fields):
    return resolve(Config(**fields), family, "n", node, ips, on_node=on_node)


def test_the_node_object_gives_zone_and_address():
    assert (settings().zone, settings().node_ip) == ("z", "10.20.0.1")
    assert settings(IPV6).node_ip == "fd00:20::1"
    assert settings(bind_address="10.9.9.9").node_ip == "10.9.9.9"
    assert settings(node=None).node_ip is None


def test_local_traffic_is_known_by_prefix_or_interface():
    assert settings(cluster_cidrs=("10.244.0.0/16", "fd00::/48")).detector.local == v.Source("10.244.0.0/16")
    assert settings(IPV6, cluster_cidrs=("10.244.0.0/16", "fd00::/48")).detector.local == v.Source("fd00::/48")
    assert settings(IPV6, cluster_cidrs=("10.244.0.0/16",)).detector is None
    assert settings(detect_local_mode="NodeCIDR").detector.remote == v.Source("10.244.1.0/24", inverted=True)
    bridge = settings(detect_local_mode="BridgeInterface", bridge_interface="cni0")
    assert bridge.detector.local == v.InInterface("cni0")
    prefix = settings(detect_local_mode="InterfaceNamePrefix", interface_name_prefix="veth")
    assert prefix.detector.local == v.InInterface("veth+")


@pytest.mark.parametrize(
    ("addresses", "family", "ips", "localhost"),
    [
        ((), IPV4, None, True),
        ((), IPV6, None, False),
        (("0.0.0.0/0",), IPV4, None, True),
        (("10.20.0.0/16",), IPV4, ("10.20.0.1",), False),
        (("10.20.0.0/16",), IPV6, None, False),
        (("10.0.0.0/8", "127.0.0.0/8"), IPV4, ("10.20.0.1", "10.21.0.1", "127.0.0.1"), True),
        (("primary",), IPV4, ("10.20.0.1",), False),
        (("primary",), IPV6, ("fd00:20::1",), False),
        (("192.0.2.0/24",), IPV4, (), False),
    ],
)
def test_nodeport_addresses_are_those_of_the_node_that_lie_in_the_prefixes(addresses, family, ips, localhost):
    found = settings(family, node_port_addresses=addresses)
    assert (found.node_port_ips, found.localhost_node_ports, found.node_port_ranges) == (ips, localhost, ())


def test_loopback_is_left_out_where_nodeports_must_not_work_on_it():
    found = settings(node_port_addresses=("127.0.0.0/8",), localhost_node_ports=False)
    assert found.node_port_ips == ()


def test_away_from_the_node_prefixes_stand_for_addresses_that_nobody_knows():
    found = settings(node_port_addresses=("10.20.0.0/16", "10.99.0.0/16"), on_node=False)
    assert (found.node_port_ips, found.node_port_ranges) == (("10.20.0.1",), ("10.99.0.0/16",))


def test_the_trackers_size_goes_by_processors_and_zero_leaves_the_kernels():
    assert wanted(Conntrack(), 2)["net.netfilter.nf_conntrack_max"] == 131072
    assert wanted(Conntrack(), 8)["net.netfilter.nf_conntrack_max"] == 8 * 32768
    off = Conntrack(max_per_core=0, tcp_established_timeout=0, tcp_close_wait_timeout=0)
    assert wanted(off, 8) == {}
