"""What kube-proxy is configured with: the defaults, a KubeProxyConfiguration file, and flags, in rising order of weight.

`Config` is the whole of it as one value. `load` reads a file of the API version kubeproxy.config.k8s.io/v1alpha1, as kubeadm
writes it into the ConfigMap kube-proxy. A key that does not exist and one that podwire does not act on are named in
`warnings`, the latter only when it holds something: generated files are full of empty keys. A value that makes no sense
is a UsageError that says its key.

One difference from the real kube-proxy, which ignores nearly all flags when there is a file: here a flag that was given
wins over the file.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.errors import UsageError
from podwire.kubeproxy.family import IPV4, IPV6

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("podwire.kubeproxy")

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
MODES = ("iptables", "nftables")
DETECT_LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
NODE_PORT_RESERVATIONS = ("bind", "sysctl", "both", "none")
PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class Conntrack:
    """Settings of the tracker; times in seconds. 0 and None leave the kernel's value."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: float = 86400.0
    tcp_close_wait_timeout: float = 3600.0
    tcp_be_liberal: bool = False
    udp_timeout: float = 0.0
    udp_stream_timeout: float = 0.0


@dataclass(frozen=True, slots=True)
class Config:
    """Everything. Field names are the file's, in Python's spelling; times are seconds."""

    kubeconfig: str = ""
    hostname_override: str = ""
    mode: str = "iptables"
    bind_address: str = "0.0.0.0"
    healthz_bind_address: str = "0.0.0.0:10256"
    metrics_bind_address: str = "127.0.0.1:10249"
    cluster_cidrs: tuple[str, ...] = ()
    detect_local_mode: str = "ClusterCIDR"
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    node_port_addresses: tuple[str, ...] = ()
    masquerade_bit: int = 14
    masquerade_all: bool = False
    localhost_node_ports: bool = True
    sync_period: float = 30.0
    min_sync_period: float = 1.0
    conntrack: Conntrack = Conntrack()
    oom_score_adj: int | None = None
    node_port_reservation: str = "both"
    state_dir: str = "/run/podwire/kube-proxy"  # what must be found again after a restart, but not after a reboot

    @property
    def node_port_prefixes(self) -> tuple[str, ...]:
        """Which addresses take NodePort traffic, with the mode's default filled in; none: all of them."""
        return self.node_port_addresses or ((PRIMARY,) if self.mode == "nftables" else ())

    def check(self) -> Config:
        """Itself if it makes sense; raises UsageError."""
        _one_of("mode", self.mode or "iptables", MODES)
        _one_of("detectLocalMode", self.detect_local_mode, DETECT_LOCAL_MODES)
        _one_of("nodePortReservation", self.node_port_reservation, NODE_PORT_RESERVATIONS)
        if not 0 <= self.masquerade_bit <= 31:
            raise UsageError("masqueradeBit", str(self.masquerade_bit), "must be 0 to 31")
        if self.oom_score_adj is not None and not -1000 <= self.oom_score_adj <= 1000:
            raise UsageError("oomScoreAdj", str(self.oom_score_adj), "must be -1000 to 1000")
        if self.sync_period <= 0 or not 0 <= self.min_sync_period <= self.sync_period:
            raise UsageError("syncPeriod", f"{self.sync_period:g}s", "must be above 0 and not below minSyncPeriod")
        for key, prefixes in (("clusterCIDR", self.cluster_cidrs), ("nodePortAddresses", self.node_port_addresses)):
            for prefix in prefixes:
                if not (key == "nodePortAddresses" and prefix == PRIMARY):
                    _prefix(key, prefix)
        for mode, key, value in (
            ("BridgeInterface", "bridgeInterface", self.bridge_interface),
            ("InterfaceNamePrefix", "interfaceNamePrefix", self.interface_name_prefix),
        ):
            if self.detect_local_mode == mode and not value:
                raise UsageError("detectLocalMode", mode, f"needs detectLocal.{key}")
        return self


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(key, repr(value), f"must be one of {', '.join(allowed)}")


def _prefix(key: str, text: str) -> None:
    if "/" not in text or (IPV4.prefix(text) is None and IPV6.prefix(text) is None):
        raise UsageError(key, repr(text), "is no prefix", "for example 10.244.0.0/16")


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(key: str, text: object) -> float:
    """Seconds of a Go duration: 30s, 1m30s, 500ms, 0. Raises UsageError."""
    if text in (0, "0"):
        return 0.0
    if isinstance(text, str) and _DURATION.sub("", text) == "" and text:
        return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(text))
    raise UsageError(key, repr(text), "is no duration", "for example 30s or 1m30s")


def split(text: str) -> tuple[str, ...]:
    """The parts of a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(key, repr(value), "must be a string")
    return value


def _list(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(key, repr(value), "must be a list of strings")
    return tuple(value)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError(key, repr(value), "must be true or false")
    return value


def _number(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(key, repr(value), "must be a whole number")
    return value


Reader = tuple[str, "Callable[[str, object], Any]"]
_KEYS: dict[str, Reader] = {
    "clientConnection.kubeconfig": ("kubeconfig", _text),
    "hostnameOverride": ("hostname_override", _text),
    "mode": ("mode", _text),
    "bindAddress": ("bind_address", _text),
    "healthzBindAddress": ("healthz_bind_address", _text),
    "metricsBindAddress": ("metrics_bind_address", _text),
    "clusterCIDR": ("cluster_cidrs", lambda key, value: split(_text(key, value))),
    "detectLocalMode": ("detect_local_mode", _text),
    "detectLocal.bridgeInterface": ("bridge_interface", _text),
    "detectLocal.interfaceNamePrefix": ("interface_name_prefix", _text),
    "nodePortAddresses": ("node_port_addresses", _list),
    "oomScoreAdj": ("oom_score_adj", _number),
    "nodePortReservation": ("node_port_reservation", _text),  # podwire's own
    "iptables.localhostNodePorts": ("localhost_node_ports", _flag),
}
_BY_MODE: dict[str, Reader] = {
    "masqueradeBit": ("masquerade_bit", _number),
    "masqueradeAll": ("masquerade_all", _flag),
    "syncPeriod": ("sync_period", duration),
    "minSyncPeriod": ("min_sync_period", duration),
}
_CONNTRACK: dict[str, Reader] = {
    "maxPerCore": ("max_per_core", _number),
    "min": ("min", _number),
    "tcpEstablishedTimeout": ("tcp_established_timeout", duration),
    "tcpCloseWaitTimeout": ("tcp_close_wait_timeout", duration),
    "tcpBeLiberal": ("tcp_be_liberal", _flag),
    "udpTimeout": ("udp_timeout", duration),
    "udpStreamTimeout": ("udp_stream_timeout", duration),
}
# Keys of the API that change nothing here.
_WITHOUT_EFFECT = frozenset(
    (
        *("featureGates", "logging", "bindAddressHardFail", "enableProfiling", "showHiddenMetricsForVersion", "ipvs"),
        *("winkernel", "configSyncPeriod", "portRange", "windowsRunAsService"),
        *("clientConnection.acceptContentTypes", "clientConnection.contentType"),
        *("clientConnection.qps", "clientConnection.burst"),
    )
)
# Sync periods of zero stand for the default, those of conntrack for "leave it alone".
_ZERO_IS_UNSET = frozenset(("syncPeriod", "minSyncPeriod"))
_ZERO = ("0s", "0", 0)
_SECTIONS = frozenset(("clientConnection", "detectLocal", "iptables", "nftables", "conntrack"))


@dataclass(frozen=True, slots=True)
class FileSettings:
    """What a file sets, as fields of Config, and what is to be said about it."""

    fields: dict[str, Any]
    warnings: tuple[str, ...]


def load(path: str, mode: str = "") -> FileSettings:
    """Read a KubeProxyConfiguration file; `mode`, if given, is the one to read it for. Raises UsageError."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            data = yaml.safe_load(file)
    except OSError as error:
        raise UsageError("reading the configuration", path, error.strerror or str(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError("reading the configuration", path, " ".join(str(error).split())) from None
    if not isinstance(data, dict) or data.get("kind") != "KubeProxyConfiguration":
        raise UsageError("reading the configuration", path, "is not of kind KubeProxyConfiguration")
    if data.get("apiVersion") != API_VERSION:
        raise UsageError("reading the configuration", path, f"apiVersion must be {API_VERSION}")
    return read(data, mode)


def read(data: Mapping[str, Any], mode: str = "") -> FileSettings:
    """What a decoded file sets; see `load`. Raises UsageError."""
    flat: dict[str, object] = {}
    for key, value in data.items():
        if key in _SECTIONS and isinstance(value, dict):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        elif key not in ("apiVersion", "kind"):
            flat[key] = value
    mode = mode or str(flat.get("mode") or "iptables")
    readers = _KEYS | {f"{mode}.{key}": reader for key, reader in _BY_MODE.items()}
    other_mode = {f"{section}.{key}" for section in ("iptables", "nftables") for key in _BY_MODE}
    fields: dict[str, Any] = {}
    conntrack: dict[str, Any] = {}
    warnings = []
    for key, value in flat.items():
        section, _, inner = key.partition(".")
        if value is None or (key in readers and value == "") or (inner in _ZERO_IS_UNSET and value in _ZERO):
            continue  # not set: the default holds
        if key in readers:
            name, reader = readers[key]
            fields[name] = reader(key, value)
        elif section == "conntrack" and inner in _CONNTRACK:
            name, reader = _CONNTRACK[inner]
            conntrack[name] = reader(key, value)
        elif key in _WITHOUT_EFFECT:
            if not _is_empty(value):
                warnings.append(f"{key} has no effect in podwire")
        elif key not in other_mode:
            warnings.append(f"{key} is not known")
    if conntrack:
        fields["conntrack"] = Conntrack(**conntrack)
    return FileSettings(fields, tuple(warnings))


def _is_empty(value: object) -> bool:
    """Whether a value says nothing: what a generator writes for a key that nobody set."""
    if isinstance(value, dict):
        return all(_is_empty(inner) for inner in value.values())
    return value in (None, "", "0", *_ZERO, False, [])


def merge(path: str | None, flags: Mapping[str, Any]) -> Config:
    """Defaults, then the file, then the flags that are not None. Logs the file's warnings. Raises UsageError."""
    fields: dict[str, Any] = {}
    if path:
        found = load(path, flags.get("mode") or "")
        fields.update(found.fields)
        if found.warnings:
            log.warning("%s", "; ".join(found.warnings), extra={"kv": {"file": path}})
    fields.update({name: value for name, value in flags.items() if value is not None})
    return Config(**fields).check()
