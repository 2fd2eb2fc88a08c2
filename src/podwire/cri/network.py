"""The pods' network: which configuration is in force, whether it is ready, and attaching a sandbox to it.

The configuration is what lies in conf_dir now. Two things keep it so: an inotify watch (`ConfDir.follow`), which says at
once when something changes, and a look at the folder whenever somebody asks, because a watch can miss changes (a
folder that was removed and made again, an overlay's lower layer). Looking costs a listing; files are read only when name,
inode, size or time differ from the last look.

What a sandbox was attached with is kept in its record, so that it is detached from the same network even if the
configuration has changed or gone since.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
from typing import TYPE_CHECKING, Any

from podwire.cni.runtime import Attachment, Runtime
from podwire.cni.spec import conf, result, versions
from podwire.errors import CniError, KernelError
from podwire.kernel import inotify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from podwire.cni.spec.conf import NetworkList
    from podwire.cri.config import CniSettings
    from podwire.criapi import api_pb2

log = logging.getLogger("podwire.cri")

PLUGIN_SECONDS = 100.0  # below the two minutes a kubelet waits for StopPodSandbox

# containerd's words, which kubelets and people know (go-cni's ErrCNINotInitialized; internal/cri/server/status.go).
NOT_READY_REASON = "NetworkPluginNotReady"
NOT_READY_MESSAGE = "Network plugin returns error: cni plugin not initialized"

_CHANGES = (
    inotify.IN_CLOSE_WRITE
    | inotify.IN_MOVED_TO
    | inotify.IN_MOVED_FROM
    | inotify.IN_CREATE
    | inotify.IN_DELETE
    | inotify.IN_DELETE_SELF
    | inotify.IN_MOVE_SELF
    | inotify.IN_ATTRIB
    | inotify.IN_ONLYDIR
)


class ConfDir:
    """The networks of conf_dir: the first `limit` files in order of their names (0: all), as containerd takes them."""

    def __init__(self, folder: str, limit: int = 1) -> None:
        self.folder = folder
        self._limit = limit
        self._guard = threading.Lock()
        self._seen: object = None
        self._networks: list[NetworkList] = []
        self._problem = ""

    def networks(self) -> list[NetworkList]:
        """What is there now; none means not ready, and `problem` says why."""
        with self._guard:
            signature = self._signature()
            if signature != self._seen:
                self._seen = signature
                self._load()
            return self._networks

    @property
    def problem(self) -> str:
        """Why there is no network, in the form of containerd's lastCNILoadStatus; "" if there is one."""
        self.networks()
        return self._problem

    def _signature(self) -> object:
        try:
            with os.scandir(self.folder) as entries:
                found = [(entry.name, entry.stat()) for entry in entries if not entry.name.startswith("..")]
        except OSError as error:
            return error.errno
        return sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in found)

    def _load(self) -> None:
        before, problem = [network.source for network in self._networks], self._problem
        try:
            files = conf.files(self.folder)
            self._networks = [conf.read(path) for path in files[: self._limit or None]]
            self._problem = (
                ""
                if self._networks
                else f"cni config load failed: no network config found in {self.folder}: "
                "cni plugin not initialized: failed to load cni config"
            )
        except CniError as error:
            self._networks, self._problem = [], f"cni config load failed: {error}: failed to load cni config"
        names = ",".join(f"{network.name}:{'+'.join(network.types)}" for network in self._networks)
        if self._problem:
            if self._problem != problem:
                log.warning(self._problem)
        elif before != [network.source for network in self._networks]:
            log.info("network ready", extra={"kv": {"file": self._networks[0].source, "networks": names}})

    def follow(self, stop_fd: int) -> None:
        """Look whenever the kernel reports a change, until `stop_fd` is readable."""
        with inotify.Inotify() as watch:
            poller = select.poll()
            poller.register(watch.fd, select.POLLIN)
            poller.register(stop_fd, select.POLLIN)
            while True:
                arm(watch, self.folder)
                self.networks()
                ready = [fd for fd, _ in poller.poll()]
                if stop_fd in ready:
                    return
                watch.read()


def arm(watch: inotify.Inotify, folder: str) -> None:
    """Watch a folder and its parent, or, as long as they do not exist, the nearest ancestor that does.

    A folder that appears between two steps is seen because the loop goes on until nothing is missing that exists.
    """
    while True:
        missing = []
        path = folder
        for _ in range(len(folder)):
            parent = os.path.dirname(path)
            there = _try_add(watch, path)
            if there and path != folder:
                break
            if not there:
                missing.append(path)
            if parent == path:
                break
            path = parent
        if not any(os.path.isdir(one) for one in missing):
            return


def _try_add(watch: inotify.Inotify, path: str) -> bool:
    try:
        watch.add(path, _CHANGES)
    except KernelError:
        return False
    return True


class Pods:
    """Attaches sandboxes to the networks, through CNI."""

    def __init__(self, settings: CniSettings, cache_dir: str = "/var/lib/cni") -> None:
        self.conf = ConfDir(settings.conf_dir, settings.max_conf_num)
        self._runtime = Runtime(list(settings.bin_dirs), cache_dir, timeout=PLUGIN_SECONDS, lasting=True)

    def used(self) -> list[dict[str, str]]:
        """The networks a sandbox is to be attached to now, in a form that can be kept."""
        return [
            {"name": network.name, "source": network.source, "list": remembered(network)}
            for network in self.conf.networks()
        ]

    def attach(
        self, used: list[dict[str, str]], sandbox: str, netns: str, config: api_pb2.PodSandboxConfig
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Run ADD of every network: the first network's result, and the addresses of eth0. CniError if one fails."""
        if not used:
            raise CniError(versions.PLUGIN_NOT_AVAILABLE, "cni plugin not initialized", self.conf.problem)
        results = [
            self._runtime.add(_network(one), attachment(sandbox, netns, f"eth{index}", config))
            for index, one in enumerate(used)
        ]
        return results[0], addresses(results[0], "eth0")

    def detach(self, used: list[dict[str, str]], sandbox: str, netns: str, config: api_pb2.PodSandboxConfig) -> None:
        """Run DEL of every network it was attached with, the last one first. CniError if one fails."""
        for index, one in reversed(list(enumerate(used))):
            self._runtime.delete(_network(one), attachment(sandbox, netns, f"eth{index}", config))


def remembered(network: NetworkList) -> str:
    """The text of a network list; plugins that were read from the folder beside it are written into it."""
    if len(conf.parse_list(network.text).plugins) == len(network.plugins):
        return network.text.decode()
    whole = json.loads(network.text)
    whole["plugins"] = network.plugins
    return json.dumps(whole)


def _network(one: dict[str, str]) -> NetworkList:
    return conf.parse_list(one["list"].encode(), one["source"])


def attachment(sandbox: str, netns: str, ifname: str, config: api_pb2.PodSandboxConfig) -> Attachment:
    """What plugins are told about a pod: CNI_ARGS and capability arguments as containerd gives them."""
    pod = config.metadata
    capabilities: dict[str, Any] = {}
    mappings = [
        {
            "hostPort": mapping.host_port,
            "containerPort": mapping.container_port,
            "protocol": ("tcp", "udp", "sctp")[mapping.protocol],
            "hostIP": mapping.host_ip,
        }
        for mapping in config.port_mappings
        if mapping.host_port > 0
    ]
    if mappings:
        capabilities["portMappings"] = mappings
    dns = config.dns_config
    if dns.servers or dns.searches or dns.options:
        capabilities["dns"] = {
            "servers": list(dns.servers),
            "searches": list(dns.searches),
            "options": list(dns.options),
        }
    return Attachment(
        container_id=sandbox,
        netns=netns,
        ifname=ifname,
        args={
            "IgnoreUnknown": "1",
            "K8S_POD_NAMESPACE": pod.namespace,
            "K8S_POD_NAME": pod.name,
            "K8S_POD_INFRA_CONTAINER_ID": sandbox,
            "K8S_POD_UID": pod.uid,
        },
        capability_args=capabilities,
    )


def addresses(raw: Mapping[str, Any], ifname: str) -> tuple[str, ...]:
    """The addresses that a result gives to an interface inside the pod; old results name no interfaces: all of them."""
    parsed = result.parse_own(dict(raw))
    found = []
    for ip in parsed.ips:
        if ip.interface is not None and 0 <= ip.interface < len(parsed.interfaces):
            interface = parsed.interfaces[ip.interface]
            if interface.name != ifname or not interface.sandbox:
                continue
        found.append(str(ip.address.ip))
    return tuple(found)
