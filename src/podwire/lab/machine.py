"""What is inside a machine: its files, mounts, settings and daemons, as values (nothing here touches the system).

`furnishing` is what `podwire.lab.holder` reads; `components` are the daemons in the order in which they are started.
Every program finds its files under the paths it has on a real node.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from podwire.kernel import owner
from podwire.lab.state import LAYERS, Component
from podwire.lab.topology import POD_CIDR_LENGTH, UNDERLAY

if TYPE_CHECKING:
    from podwire.lab.topology import Machine, Topology

KUBECONFIG = "/etc/kubernetes/kubeconfig"
CONFLIST = "/etc/kube-flannel/cni-conf.json"
NET_CONF = "/etc/kube-flannel/net-conf.json"
CRI_SOCKET = "unix:///run/podwire/cri.sock"
API_PORT = 6443

#: The article's conflist: no cniVersion, so that results come back in the oldest format.
ARTICLE_CONFLIST = {
    "name": "cni0",
    "plugins": [
        {"type": "flannel", "delegate": {"ipMasq": False, "hairpinMode": True, "isDefaultGateway": True}},
    ],
}

# A new network namespace copies some of these from the host and not others, depending on the kernel's version and on
# net.core.devconf_inherit_init_net; so all that matter are written. ip_forward comes first: writing it resets others.
_ROUTER = (
    ("net/ipv4/ip_forward", 1),
    ("net/ipv4/conf/all/rp_filter", 0),
    ("net/ipv4/conf/default/rp_filter", 0),
    ("net/ipv4/conf/all/route_localnet", 0),
    ("net/ipv4/conf/default/route_localnet", 0),
    ("net/ipv4/conf/all/send_redirects", 0),
    ("net/ipv4/conf/default/send_redirects", 0),
    ("net/ipv4/conf/all/accept_redirects", 0),
    ("net/ipv4/conf/default/accept_redirects", 0),
    ("net/ipv6/conf/all/disable_ipv6", 0),
    ("net/ipv6/conf/default/disable_ipv6", 0),
    ("net/ipv6/conf/all/forwarding", 1),
    ("net/ipv6/conf/all/accept_ra", 0),
    ("net/ipv6/conf/default/accept_ra", 0),
)
NODE_SYSCTLS = (
    *_ROUTER,
    ("net/ipv4/ip_local_port_range", "32768\t60999"),
    ("net/ipv4/ip_local_reserved_ports", ""),
    ("net/bridge/bridge-nf-call-iptables", 1),
    ("net/bridge/bridge-nf-call-ip6tables", 1),
    ("net/bridge/bridge-nf-call-arptables", 0),
)
UNDERLAY_SYSCTLS = (
    *_ROUTER,
    # The underlay is a switch: what crosses it is nobody's rules' business.
    ("net/bridge/bridge-nf-call-iptables", 0),
    ("net/bridge/bridge-nf-call-ip6tables", 0),
    ("net/bridge/bridge-nf-call-arptables", 0),
)


def furnishing(topology: Topology, machine: Machine, folder: str) -> dict[str, Any]:
    """How a control plane or node is furnished; `folder` is the machine's folder on the host."""
    files = {
        "/etc/hostname": f"{machine.name}\n",
        "/etc/hosts": _hosts(topology),
        # There is no name server to reach; an empty file makes look-ups fail at once.
        "/etc/resolv.conf": "# This lab has no name server.\n",
        "/etc/machine-id": hashlib.sha256(f"{topology.name}/{machine.name}".encode()).hexdigest()[:32] + "\n",
    }
    if machine is not topology.control_plane:
        backend = {"Network": str(topology.cluster_cidr), "Backend": {"Type": "vxlan"}}
        files[NET_CONF] = json.dumps(backend, indent=2) + "\n"
        files[CONFLIST] = json.dumps(ARTICLE_CONFLIST, indent=2) + "\n"
    return {
        "overlays": {target: f"{folder}/{layer}" for target, layer in LAYERS.items()},
        # What the host itself may have as a node of some cluster is not this machine's.
        "emptied": ["/etc/cni", "/etc/kubernetes", "/var/lib/cni", "/var/lib/podwire"],
        "files": files,
        "run": True,
        "hostname": machine.name,
        "sysctls": [list(pair) for pair in NODE_SYSCTLS],
    }


def underlay_furnishing() -> dict[str, Any]:
    """How the underlay's holder is furnished: namespaces and settings, no file system of its own."""
    return {
        "overlays": {},
        "emptied": [],
        "files": {},
        "run": False,
        "hostname": UNDERLAY,
        "sysctls": [list(pair) for pair in UNDERLAY_SYSCTLS],
    }


def _hosts(topology: Topology) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{machine.address} {machine.name}" for machine in topology.machines]
    return "\n".join(lines) + "\n"


def podwire(*arguments: str) -> list[str]:
    """The command line of one of podwire's own programs (-P: the working directory is no source of modules)."""
    return [sys.executable, "-P", "-m", "podwire", *arguments]


def environment(topology: Topology, machine: str, component: str) -> dict[str, str]:
    """The marks, and what a program needs of an environment."""
    return {
        # The last one has `podwire` itself: what works on the host works on a node.
        "PATH": f"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{os.path.dirname(sys.executable)}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        # A daemon's threads would each get a malloc arena of their own otherwise; they do not contend.
        "MALLOC_ARENA_MAX": "1",
        owner.ENV_LAB: topology.name,
        owner.ENV_NODE: machine,
        owner.ENV_COMPONENT: component,
    }


def control_plane_components(topology: Topology) -> list[Component]:
    """API server and controller manager, with all they are told."""
    address = str(topology.control_plane.address)
    server = podwire(
        "apiserver",
        "--data-dir=/var/lib/podwire/apiserver",
        f"--bind-address={address}",
        f"--secure-port={API_PORT}",
        f"--advertise-address={address}",
        f"--service-cluster-ip-range={topology.service_cidr}",
        "--service-node-port-range=30000-32767",
        f"--kubeconfig-out={KUBECONFIG}",
    )
    manager = podwire(
        "controller-manager",
        f"--kubeconfig={KUBECONFIG}",
        "--controllers=nodeipam,scheduler,deployment,endpointslice,gc,route,nodelifecycle",
        f"--cluster-cidr={topology.cluster_cidr}",
        f"--node-cidr-mask-size={POD_CIDR_LENGTH}",
        f"--service-cluster-ip-range={topology.service_cidr}",
    )
    return [
        Component("apiserver", server, environment(topology, topology.control_plane.name, "apiserver")),
        Component(
            "controller-manager", manager, environment(topology, topology.control_plane.name, "controller-manager")
        ),
    ]


def node_components(topology: Topology, node: Machine) -> list[Component]:
    """The daemons of a node: CRI server, kubelet, flanneld, kube-proxy."""
    lines = {
        "cri": podwire("cri", f"--listen={CRI_SOCKET}", "--state-dir=/run/podwire/cri"),
        "kubelet": podwire(
            "kubelet",
            f"--kubeconfig={KUBECONFIG}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--container-runtime-endpoint={CRI_SOCKET}",
        ),
        "flanneld": podwire(
            "flanneld",
            "--kube-subnet-mgr",
            f"--kubeconfig-file={KUBECONFIG}",
            "--iface=eth0",
            f"--public-ip={node.address}",
            f"--net-config-path={NET_CONF}",
        ),
        "kube-proxy": podwire(
            "kube-proxy",
            f"--kubeconfig={KUBECONFIG}",
            f"--hostname-override={node.name}",
            f"--cluster-cidr={topology.cluster_cidr}",
            "--proxy-mode=iptables",
        ),
    }
    components = [Component(name, argv, environment(topology, node.name, name)) for name, argv in lines.items()]
    for component in components:
        component.env["NODE_NAME"] = node.name
    return components


def cni_install() -> list[str]:
    """What flannel's init containers do on a node before flanneld starts."""
    return podwire("cni", "install", "--bin-dir=/opt/cni/bin", "--conf-dir=/etc/cni/net.d", f"--conflist={CONFLIST}")
