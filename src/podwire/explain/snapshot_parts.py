"""What makes a bundle: one table of parts, read by podwire itself (snapshot_live.py) and written out as a script (snapshot_script.py).

A part is a file of the bundle and how it is read: by a program, from a file, or from all files of a folder. Programs come first
where there is one, because everybody can run the same again and compare; where it is not installed, podwire asks the kernel itself
(`fallback` in snapshot_live.py). Everything here only reads, and nothing loads a kernel module: iptables-legacy-save would, so it
is asked only where legacy tables exist.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """The output of a program. `only_if` names a file that must exist and have something in it."""

    file: str
    argv: tuple[str, ...]
    only_if: str = ""
    stderr: bool = False  # complaints of the program are part of the evidence

    @property
    def read(self) -> str:
        """How to name it as evidence."""
        return " ".join(self.argv)


@dataclass(frozen=True, slots=True)
class Copy:
    """A file of the node."""

    file: str
    path: str

    @property
    def read(self) -> str:
        """How to name it as evidence."""
        return self.path


@dataclass(frozen=True, slots=True)
class Tree:
    """All plain files below a folder of the node, in a folder of the bundle (its name ends in a slash)."""

    file: str
    path: str

    @property
    def read(self) -> str:
        """How to name it as evidence."""
        return self.path


COMMANDS = (
    Command("host/hostname.txt", ("uname", "-n")),
    Command("host/kernel.txt", ("uname", "-sr")),
    Command("rules/iptables-nft-save.txt", ("iptables-nft-save",)),
    Command("rules/ip6tables-nft-save.txt", ("ip6tables-nft-save",)),
    Command("rules/iptables-legacy-save.txt", ("iptables-legacy-save",), only_if="/proc/net/ip_tables_names"),
    Command("rules/ip6tables-legacy-save.txt", ("ip6tables-legacy-save",), only_if="/proc/net/ip6_tables_names"),
    Command("rules/nft.json", ("nft", "-j", "list", "ruleset")),
    Command("net/ip-link.json", ("ip", "-d", "-j", "link", "show")),
    Command("net/ip-addr.json", ("ip", "-j", "addr", "show")),
    Command("net/ip-route.json", ("ip", "-j", "route", "show", "table", "all")),
    Command("net/ip-route6.json", ("ip", "-6", "-j", "route", "show", "table", "all")),
    Command("net/ip-rule.json", ("ip", "-j", "rule", "show")),
    Command("net/ip-rule6.json", ("ip", "-6", "-j", "rule", "show")),
    Command("net/ip-neigh.json", ("ip", "-j", "neigh", "show")),
    Command("net/bridge-fdb.json", ("bridge", "-j", "fdb", "show")),
    Command("net/bridge-link.json", ("bridge", "-d", "-j", "link", "show")),
    Command("net/ss.txt", ("ss", "-H", "-tuanp")),
    Command("net/conntrack.txt", ("conntrack", "-L")),
    Command("net/conntrack6.txt", ("conntrack", "-L", "-f", "ipv6")),
    Command("net/conntrack-S.txt", ("conntrack", "-S")),
    Command("cni/net.d-stat.txt", ("stat", "/etc/cni/net.d")),
    Command("runtime/crictl-pods.json", ("crictl", "pods", "-o", "json")),
    Command("runtime/crictl-info.json", ("crictl", "info")),
    Command("runtime/containerd-start.txt", ("systemctl", "show", "containerd", "-p", "ActiveEnterTimestamp")),
)
COPIES = (
    Copy("net/modules.txt", "/proc/modules"),
    Copy("flannel/subnet.env", "/run/flannel/subnet.env"),
    Copy("flannel/net-conf.json", "/etc/kube-flannel/net-conf.json"),
)
TREES = (
    Tree("cni/net.d/", "/etc/cni/net.d"),
    Tree("cni/lib/networks/", "/var/lib/cni/networks"),
    Tree("cni/lib/results/", "/var/lib/cni/results"),
    Tree("cni/lib/flannel/", "/var/lib/cni/flannel"),
    Tree("kube/manifests/", "/etc/kubernetes/manifests"),
)

SYSCTL_FILE = "net/sysctl.txt"
BINARIES_FILE = "cni/bin.txt"
BINARIES_PATH = "/opt/cni/bin"
PROCESSES_FILE = "host/processes.txt"
NAMESPACES_FILE = "net/namespaces.json"
INOTIFY_FILE = "runtime/inotify.txt"
KERNEL_LOG_FILE = "logs/kernel.txt"

#: Settings by path below /proc/sys; a `*` stands for every name there.
SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv4/conf/*/route_localnet",
    "net/ipv4/conf/*/forwarding",
    "net/ipv4/conf/*/accept_local",
    "net/ipv4/conf/*/src_valid_mark",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/all/disable_ipv6",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/netfilter/nf_conntrack_udp_timeout",
    "net/netfilter/nf_conntrack_udp_timeout_stream",
)

#: Programs whose arguments decide about the network.
PROCESSES = (
    "flanneld",
    "kube-proxy",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "k3s",
    "containerd",
    "crio",
    "dockerd",
    "apiserver",
    "controller-manager",
    "cri",
)

#: Which lines of the kernel's log are evidence.
KERNEL_LOG = r"martian|ll header|nf_conntrack: |IN=.* OUT=|br_netfilter|bridge: filtering|link is not ready"

#: File of the bundle → path of the API.
KUBE = (
    ("kube/nodes.json", "/api/v1/nodes", ("nodes",)),
    ("kube/services.json", "/api/v1/services", ("services", "-A")),
    ("kube/endpointslices.json", "/apis/discovery.k8s.io/v1/endpointslices", ("endpointslices", "-A")),
    ("kube/pods.json", "/api/v1/pods", ("pods", "-A")),
    ("kube/daemonsets.json", "/apis/apps/v1/daemonsets", ("daemonsets", "-A")),
)
