"""flanneld's command line, spelled as flannel spells it, so that a DaemonSet's arguments work unchanged.

Go's `flag` package reads it: `-name` and `--name` are the same, `--name=value` and `--name value` too, a boolean flag takes
a value only after `=`, and `--` or the first bare word ends the flags. A flag that is not given is taken from the
environment, FLANNELD_ and its name in capitals (flannel does that too): FLANNELD_IFACE=eth0.

A flag of flannel's that podwire cannot honour is refused by name and with the reason if it is given, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})


@dataclass(slots=True)
class Options:
    """What flanneld is told; defaults are flannel's. A field is the flag of the same name with - for _."""

    kube_subnet_mgr: bool = False
    kubeconfig_file: str = ""
    kube_annotation_prefix: str = "flannel.alpha.coreos.com"
    net_config_path: str = "/etc/kube-flannel/net-conf.json"
    subnet_file: str = "/run/flannel/subnet.env"
    iface: tuple[str, ...] = ()
    iface_regex: tuple[str, ...] = ()
    iface_can_reach: str = ""
    public_ip: str = ""
    public_ipv6: str = ""
    ip_masq: bool = False
    ip_masq_fully_random_disable: bool = False
    iptables_forward_rules: bool = True
    iptables_resync: int = 5
    healthz_ip: str = "0.0.0.0"  # flannel's default: kube-flannel.yml probes it from the node
    healthz_port: int = 0
    set_node_network_unavailable: bool = True
    v: int = 0
    help: bool = False
    version: bool = False


_HELP = {
    "kube_subnet_mgr": "take leases from the Kubernetes API (required: etcd is not supported)",
    "kubeconfig_file": "how to reach the API; not needed in a pod",
    "kube_annotation_prefix": "what the Node annotations begin with",
    "net_config_path": "the cluster's network configuration",
    "subnet_file": "where to write the subnet and MTU for the flannel CNI plugin",
    "iface": "interface to the other nodes, by name or address; the first that fits of several",
    "iface_regex": "the same by a regular expression over addresses and names, after all --iface",
    "iface_can_reach": "the same by what the kernel would use to reach this address, after those",
    "public_ip": "the address the other nodes send to; default: that of the interface",
    "public_ipv6": "the same for IPv6",
    "ip_masq": "masquerade what leaves the pod network",
    "ip_masq_fully_random_disable": "masquerade without --random-fully",
    "iptables_forward_rules": "accept forwarded traffic from and to the pod network",
    "iptables_resync": "seconds between two checks of these rules",
    "healthz_ip": "address of /healthz and /readyz",
    "healthz_port": "their port; 0: none",
    "set_node_network_unavailable": "set the Node's condition NetworkUnavailable to False when ready",
    "v": "log level; from 1 on details",
    "help": "this text",
    "version": "print the version",
}

_ETCD = "leases come from the Kubernetes API (--kube-subnet-mgr)"
_UNSUPPORTED = {
    "etcd-endpoints": _ETCD,
    "etcd-prefix": _ETCD,
    "etcd-keyfile": _ETCD,
    "etcd-certfile": _ETCD,
    "etcd-cafile": _ETCD,
    "etcd-username": _ETCD,
    "etcd-password": _ETCD,
    "subnet-lease-renew-margin": _ETCD,
    "kube-api-url": "the API's address comes from --kubeconfig-file",
    "ip-blackhole-route": "the bridge plugin's route covers the podCIDR",
    "vmodule": "use -v",
    "log_backtrace_at": "use -v",
}


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Options out of a command line (without the command's name) and the environment. Raises UsageError."""
    options = Options()
    kinds = {field.name: type(getattr(options, field.name)) for field in fields(options)}
    for name in kinds:
        text = environ.get(f"FLANNELD_{name.upper()}")
        if text is not None:
            _set(options, name, text)
    # A list given by flags takes the place of the one from the environment; within the flags it grows.
    seen: set[str] = set()
    for flag, text in _pairs(arguments, kinds):
        name = flag.replace("-", "_")
        if kinds[name] is tuple and name not in seen:
            setattr(options, name, ())
        seen.add(name)
        _set(options, name, text)
    if options.iptables_resync < 1:
        raise _wrong("iptables-resync", "takes a number of seconds, at least 1")
    return options


def _pairs(arguments: Sequence[str], kinds: Mapping[str, type]) -> Iterator[tuple[str, str]]:
    """(flag, value) of each flag; a boolean without a value is true."""
    left = list(arguments)
    while left:
        word = left.pop(0)
        dashes = len(word) - len(word.lstrip("-"))
        if word == "--" or dashes not in (1, 2) or word == "-":
            extra = left if word == "--" else [word, *left]
            if extra:
                raise UsageError("reading", "the command line of flanneld", f"{extra[0]!r} is no flag")
            return
        flag, equals, text = word[dashes:].partition("=")
        flag = {"h": "help"}.get(flag, flag)
        if flag in _UNSUPPORTED:
            raise _wrong(flag, f"is not supported: {_UNSUPPORTED[flag]}")
        kind = kinds.get(flag.replace("-", "_")) if "_" not in flag else None
        if kind is None:
            raise _wrong(flag, "is no flag of flanneld", "podwire flanneld --help lists them")
        if not equals:
            if kind is bool:
                text = "true"
            elif left:
                text = left.pop(0)
            else:
                raise _wrong(flag, "needs a value")
        yield flag, text


def _set(options: Options, name: str, text: str) -> None:
    flag = name.replace("_", "-")
    old = getattr(options, name)
    if isinstance(old, bool):
        if text not in _TRUE and text not in _FALSE:
            raise _wrong(flag, f"is true or false, not {text!r}")
        setattr(options, name, text in _TRUE)
    elif isinstance(old, int):
        if not text.isdecimal():
            raise _wrong(flag, f"takes a number, not {text!r}")
        setattr(options, name, int(text))
    elif isinstance(old, tuple):
        setattr(options, name, (*old, text))
    else:
        setattr(options, name, text)


def _wrong(flag: str, what: str, hint: str = "") -> UsageError:
    return UsageError("flag", f"--{flag}", what, hint)


def usage() -> str:
    """The text of --help."""
    lines = ["Usage: podwire flanneld --kube-subnet-mgr [FLAG]…", "", "The node's name is taken from NODE_NAME.", ""]
    for field in fields(Options):
        default = getattr(Options(), field.name)
        value = "" if isinstance(default, bool) else (" N" if isinstance(default, int) else " TEXT")
        shown = (
            ""
            if default in ("", (), False)
            else f" (default {str(default).lower() if isinstance(default, bool) else default})"
        )
        lines.append(f"  --{field.name.replace('_', '-')}{value}\n        {_HELP[field.name]}{shown}")
    return "\n".join(lines)
