"""Errors that name their cause: lines of events and logs, for inputs that have nothing else of it.

Each row gives way to the check that looks at the thing itself: a line is only reported when that check has found nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from podwire.doctor.finding import Check, Evidence, Said

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from podwire.doctor.view import Node


class Known(NamedTuple):
    """A line and what it means; `better` is the check that knows more about it.

    `moot` is the part of a snapshot that shows the thing itself: where that was read, an old line of a log says nothing any more.
    """

    pattern: str
    title: str
    why: str
    fix: str
    better: str = ""
    moot: str = ""


KNOWN = (
    Known(r"failed to find plugin \"([\w-]+)\"", "A CNI plugin is missing", "The runtime ran the chain and did not find this program; there may be more.", "install it into /opt/cni/bin; `podwire doctor` on the node lists all that are missing", "plugin-missing", "cni_programs"),
    Known(r"no IP addresses available in range set", "The node's address range is full", "host-local has a reservation for every address; many may belong to sandboxes that are gone.", "compare /var/lib/cni/networks with `crictl pods`: `podwire doctor` on the node does", "hostlocal-leak", "reservations"),
    Known(r"already has an IP address different from", "The pods' bridge has another address than its lease", "The bridge was made for an earlier range.", "compare `ip addr show cni0` with /run/flannel/subnet.env", "bridge-address", "addresses"),
    Known(r"subnet\.env: no such file", "/run/flannel/subnet.env is missing", "flanneld writes it once it has a lease; it has none.", "read flanneld's log on that node", "subnet-env-missing", "subnet_env"),
    Known(r"is missing FLANNEL_\w+", "/run/flannel/subnet.env is incomplete", "flanneld did not write it, or an old one did.", "restart flanneld", "subnet-env-incomplete", "subnet_env"),
    Known(r"cni plugin not initialized|no networks found in /etc/cni/net\.d|NetworkPluginNotReady", "The runtime has no network configuration", "No file in /etc/cni/net.d is a valid network, or the runtime does not see the directory any more.", "ls -la /etc/cni/net.d; crictl info | grep -A3 lastCNILoadStatus; then restart the runtime", "conf-dir-recreated", "runtime_info"),
    Known(r"nf_conntrack_max: permission denied", "kube-proxy may not set the size of the connection tracking table", "In a container or user namespace /proc/sys is read-only, and kube-proxy ends when it cannot write there.", "conntrack: {maxPerCore: 0, min: 0} in kube-proxy's configuration"),
    Known(r"(?:Another app is currently holding the xtables lock|xtables lock.*(?:held|timed out|Resource temporarily unavailable))", "Somebody holds the lock of iptables for long", "Large rulesets, or a program that calls iptables in a loop: every other writer waits or fails.", "find it: `fuser -v /run/xtables.lock`; the nftables back end has no such lock"),
    Known(r"table full, dropping packet", "The connection tracking table is full", "A full table drops every packet that would make a new entry.", "sysctl -w net.netfilter.nf_conntrack_max=…", "conntrack", "sysctls"),
    Known(r"decoding version from network config: unexpected end of JSON input|failed to get network \S+ cached result", "A cached CNI result is broken", "libcni reads the cached result before DEL and stops at a broken one.", 'find the file: for f in /var/lib/cni/results/*; do jq -e . "$f" >/dev/null || echo "$f"; done; remove it', "cni-cache-broken", "results"),
    Known(r"nft(?:ables)?.*(?:syntax error, unexpected|Operation not supported|Invalid argument)|nft .*too old", "kube-proxy's nft does not understand the kernel, or the kernel it", "The nftables mode needs nft >= 1.0.1 and a kernel >= 5.13.", "a newer nft in kube-proxy's image, a newer kernel, or mode: iptables"),
    Known(r"(?:Extension|Couldn't load (?:match|target)) [`']?(\w+)", "iptables does not have an extension that kube-proxy uses", "The whole transaction fails with it: no rule is written.", "load the module, or another kernel", "kube-proxy-no-rules", "rules"),
)  # fmt: skip


def look_lines(node: Node, found: AbstractSet[str]) -> Iterator[Said]:
    """The known lines in this node's events and logs; `found` are the checks that have already said more."""
    texts = [*node.snapshot.output("events"), *node.snapshot.output("log"), *node.snapshot.output("kernel-log")]
    for known in KNOWN:
        if known.better in found or (known.moot and getattr(node.snapshot, known.moot)):
            continue
        for text in texts:
            line = next((line.strip() for line in text.text.splitlines() if re.search(known.pattern, line)), "")
            if line:
                yield Said([Evidence(line[:300], text.where)], [known.fix], known.title, known.why, level="warning")
                break


CHECKS = (
    Check(
        "known-error",
        "A line that names its cause",
        "See the line.",
        "See the finding.",
        look_after=look_lines,
    ),
)
