"""The runtime's side of CNI (what libcni is): a network's chain of plugins run for one attachment.

    ADD     first to last; each plugin but the first is given the result so far as `prevResult`
    CHECK   first to last, with the result that ADD ended with
    DEL     last to first, with the same
    GC      DEL for every cached attachment that is not valid, then GC of every plugin
    STATUS  every plugin; the first that cannot serve is the answer

What ADD ended with is kept in CACHE/results/NETWORK-CONTAINER-IFNAME in libcni's own form (kind `cniCacheV1`), so containerd,
CRI-O, cnitool and podwire can take over each other's attachments. A failed ADD is not undone here: whoever called it
follows with DEL, as the specification asks.

podwire's own plugins are called in this process, all others executed (cni.delegate). A `Runtime` has no state but its fields
and may be used from several threads.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from podwire.cni import delegate, skel
from podwire.cni.plugins.sandbox import open_sandbox
from podwire.cni.spec import conf, result, versions
from podwire.cni.spec.text import Fields, TextError
from podwire.errors import CniError
from podwire.kernel.rtnl import Rtnl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from podwire.cni.spec.conf import NetworkList

DEFAULT_CACHE_DIR = "/var/lib/cni"
DEFAULT_BIN_DIR = "/opt/cni/bin"
DEFAULT_CONF_DIR = "/etc/cni/net.d"
CACHE_KIND = "cniCacheV1"

load_networks = conf.load_networks
default_network = conf.default_network


@dataclass(frozen=True)
class Attachment:
    """A container's interface in a network. `args` become CNI_ARGS; of `capability_args` a plugin gets what it declares."""

    container_id: str
    netns: str
    ifname: str = "eth0"
    args: Mapping[str, str] = field(default_factory=dict)
    capability_args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cached:
    """An attachment as the cache knows it: its network's name, and what that network's configuration was."""

    network: str
    attachment: Attachment
    config: bytes
    result: dict[str, Any]


def _silent(_text: str) -> None:
    """Drop what a plugin writes to standard error when it succeeds."""


class Runtime:
    """Runs chains. `env` None is this process's environment; `timeout` (seconds) ends an executed plugin that hangs.

    `lasting`: this process is a daemon. A DEL then returns when the link is gone, while a thread waits for the kernel's last step.
    """

    def __init__(
        self,
        bin_dirs: Sequence[str] = (DEFAULT_BIN_DIR,),
        cache_dir: str = DEFAULT_CACHE_DIR,
        *,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        note: Callable[[str], None] = _silent,
        lasting: bool = False,
    ) -> None:
        self.bin_dirs = list(bin_dirs)
        self.cache_dir = cache_dir
        self._env = env
        self._timeout = timeout
        self._note = note
        self._lasting = lasting

    # The five verbs.

    def add(self, network: NetworkList, attachment: Attachment) -> dict[str, Any]:
        """Attach; returns the last plugin's result, in its version. Raises CniError, which names the plugin."""
        skel.check_container_id(attachment.container_id)
        skel.check_network_name(network.name)
        skel.check_ifname(attachment.ifname)
        current: result.Result | None = None
        for plugin in network.plugins:
            kind = _kind(plugin)
            try:
                text = self._conf(network, plugin, attachment, None if current is None else current.json())
                printed = self._call("ADD", kind, text, attachment)
                current = delegate.parse_result(printed, network.cni_version or "0.1.0")
            except (CniError, ValueError) as error:
                raise _named(error, plugin, "add") from error
        final = current.json() if current is not None else {}
        try:
            self._remember(network, attachment, final)
        except OSError as error:
            raise CniError(
                versions.IO_FAILURE,
                f'failed to set network "{network.name}" cached result: {skel.os_error(error)}',
                "the attachment was made; DEL takes it back",
            ) from error
        return final

    def delete(self, network: NetworkList, attachment: Attachment) -> None:
        """Detach; succeeds when there is nothing left. Raises CniError."""
        previous = None
        if versions.at_least(network.cni_version, "0.4.0"):
            try:
                previous = self.cached_result(network, attachment)
            except CniError:  # a broken cache must not keep a container from being deleted
                self._forget(network.name, attachment)
        for plugin in reversed(network.plugins):
            try:
                self._call("DEL", _kind(plugin), self._conf(network, plugin, attachment, previous), attachment)
            except (CniError, ValueError) as error:
                raise _named(error, plugin, "delete") from error
        self._forget(network.name, attachment)

    def check(self, network: NetworkList, attachment: Attachment) -> None:
        """Whether the attachment is as ADD left it. Raises CniError."""
        if not versions.at_least(network.cni_version, "0.4.0"):
            raise CniError(
                versions.INCOMPATIBLE_VERSION,
                f'configuration version "{network.cni_version}" does not support the CHECK command',
            )
        if network.disable_check:
            return
        previous = self.cached_result(network, attachment)
        for plugin in network.plugins:
            try:
                self._call("CHECK", _kind(plugin), self._conf(network, plugin, attachment, previous), attachment)
            except (CniError, ValueError) as error:
                raise _named(error, plugin, "check") from error

    def status(self, network: NetworkList) -> None:
        """Whether an ADD could be served. Raises CniError 50 or 51; networks older than 1.1.0 cannot say."""
        if not versions.at_least(network.cni_version, "1.1.0"):
            return
        for plugin in network.plugins:
            try:
                self._call("STATUS", _kind(plugin), self._conf(network, plugin, None, None), None)
            except (CniError, ValueError) as error:
                raise _named(error, plugin, "status") from error

    def gc(self, network: NetworkList, valid: Iterable[Attachment]) -> None:
        """Free what belongs to attachments that are not valid. Everything is tried; then CniError with all that failed."""
        if network.disable_gc:
            return
        kept = {(one.container_id, one.ifname) for one in valid}
        failed = []
        for cached in self.cached(network.name):
            one = cached.attachment
            if (one.container_id, one.ifname) in kept:
                continue
            try:
                self.delete(network, one)
            except CniError as error:
                failed.append(f"failed to delete stale attachment {one.container_id} {one.ifname}: {error}")
        if versions.at_least(network.cni_version, "1.1.0"):
            told = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in sorted(kept)]
            extra = {"cni.dev/valid-attachments": told, "cni.dev/attachments": told}
            for plugin in network.plugins:
                try:
                    self._call("GC", _kind(plugin), self._conf(network, plugin, None, None, extra), None)
                except (CniError, ValueError) as error:
                    failed.append(str(_named(error, plugin, "gc")))
        if failed:
            raise CniError(versions.INTERNAL, failed[0], "; ".join(failed[1:]))

    def supported_versions(self, kind: str) -> list[str]:
        """The versions that a plugin says it supports. Raises CniError."""
        env = {**self._environment(), "CNI_COMMAND": "VERSION", "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy"}
        text = json.dumps({"cniVersion": versions.CURRENT}).encode()
        path = delegate.find(kind, self.bin_dirs)
        try:
            printed = delegate.call(path, kind, env, text, self._note, self._timeout)
            fields = Fields(json.loads(printed), "pluginInfo")
            return fields.texts("supportedVersions") or ["0.1.0", "0.2.0"]
        except CniError as error:
            if error.msg == "unknown CNI_COMMAND: VERSION":  # the first plugins ever written
                return ["0.1.0"]
            raise
        except ValueError as error:
            raise CniError(versions.DECODING_FAILURE, f"decoding version info: {error}") from error

    # Calling.

    def _environment(self) -> dict[str, str]:
        return dict(os.environ if self._env is None else self._env)

    def _call(self, command: str, kind: str, text: bytes, attachment: Attachment | None) -> bytes:
        path = delegate.find(kind, self.bin_dirs)
        env = self._environment()
        env["CNI_COMMAND"] = command
        env["CNI_PATH"] = ":".join(self.bin_dirs)
        one = attachment or Attachment("", "", "")
        env["CNI_CONTAINERID"] = one.container_id
        env["CNI_NETNS"] = one.netns
        env["CNI_IFNAME"] = one.ifname
        env["CNI_ARGS"] = ";".join(f"{key}={value}" for key, value in one.args.items())
        return delegate.call(path, kind, env, text, self._note, self._timeout, lasting=self._lasting)

    @staticmethod
    def _conf(
        network: NetworkList,
        plugin: dict[str, Any],
        attachment: Attachment | None,
        previous: dict[str, Any] | None,
        extra: Mapping[str, Any] | None = None,
    ) -> bytes:
        """A plugin's configuration as it is given to it: with the network's name and version, and what belongs to the call."""
        whole = {**plugin, "name": network.name, "cniVersion": network.cni_version, **(extra or {})}
        if previous is not None:
            whole["prevResult"] = previous
        if attachment is not None:
            declared = Fields(plugin, "PluginConf").mapping("capabilities") or {}
            given = {
                name: attachment.capability_args[name]
                for name, supported in declared.items()
                if supported is True and name in attachment.capability_args
            }
            if given:
                whole["runtimeConfig"] = given
        return json.dumps(whole).encode()

    # The cache.

    def _cache_file(self, network: str, attachment: Attachment) -> str:
        name = f"{network}-{attachment.container_id}-{attachment.ifname}"
        return os.path.join(self.cache_dir, "results", name)

    def _remember(self, network: NetworkList, attachment: Attachment, final: dict[str, Any]) -> None:
        kept: dict[str, Any] = {
            "kind": CACHE_KIND,
            "containerId": attachment.container_id,
            "config": binascii.b2a_base64(network.text, newline=False).decode(),
            "ifName": attachment.ifname,
            "networkName": network.name,
        }
        if attachment.netns:
            kept["netns"] = attachment.netns
        if attachment.args:
            kept["cniArgs"] = [[key, value] for key, value in attachment.args.items()]
        if attachment.capability_args:
            kept["capabilityArgs"] = dict(attachment.capability_args)
        kept["result"] = final
        path = self._cache_file(network.name, attachment)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        # Not in `results`: whoever lists that folder takes every file in it for an attachment.
        draft = self._draft(path)
        try:
            with open(draft, "w", encoding="utf-8", opener=_private) as file:
                json.dump(kept, file)
            os.rename(draft, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def _draft(self, path: str) -> str:
        return os.path.join(self.cache_dir, f".result-{os.path.basename(path)}")

    def _forget(self, network: str, attachment: Attachment) -> None:
        path = self._cache_file(network, attachment)
        for one in (path, self._draft(path)):
            with contextlib.suppress(OSError):
                os.unlink(one)

    def cached_result(self, network: NetworkList, attachment: Attachment) -> dict[str, Any] | None:
        """What ADD ended with, in the network's version; None where the cache has nothing. Raises CniError."""
        try:
            with open(self._cache_file(network.name, attachment), "rb") as file:
                raw = json.load(file)
        except OSError:
            return None
        except ValueError as error:
            raise self._broken(network, error) from error
        if isinstance(raw, dict) and raw.get("kind") == CACHE_KIND:
            raw = raw.get("result")  # before libcni had kinds, the file was the result itself
        try:
            return result.parse_own(raw).json(network.cni_version or "0.1.0")
        except ValueError as error:
            raise self._broken(network, error) from error

    @staticmethod
    def _broken(network: NetworkList, error: ValueError) -> CniError:
        return CniError(versions.DECODING_FAILURE, f'failed to get network "{network.name}" cached result: {error}')

    def cached(self, network: str = "") -> list[Cached]:
        """Everything the cache knows, of one network or of all ('')."""
        folder = os.path.join(self.cache_dir, "results")
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return []
        found = []
        for name in names:
            one = _read_cached(os.path.join(folder, name))
            if one is not None and network in ("", one.network):
                found.append(one)
        return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read_cached(path: str) -> Cached | None:
    """A cache file; None for what is none, as libcni passes over it."""
    try:
        with open(path, "rb") as file:
            raw = json.load(file)
        fields = Fields(raw, "cachedInfo")
        if fields.text("kind") != CACHE_KIND or not fields.text("ifName") or not fields.text("networkName"):
            return None
        pairs = [pair for pair in fields.array("cniArgs", "[][2]string") if isinstance(pair, list) and len(pair) == 2]
        attachment = Attachment(
            fields.text("containerId"),
            fields.text("netns"),
            fields.text("ifName"),
            {str(key): str(value) for key, value in pairs},
            fields.mapping("capabilityArgs") or {},
        )
        config = binascii.a2b_base64(fields.text("config"))
        return Cached(fields.text("networkName"), attachment, config, fields.mapping("result") or {})
    except (OSError, TextError, ValueError):
        return None


def _kind(plugin: dict[str, Any]) -> str:
    return Fields(plugin, "PluginConf").text("type")


def _named(error: CniError | ValueError, plugin: dict[str, Any], verb: str) -> CniError:
    """The error with the plugin's name before it, and its own code."""
    code, msg, details = versions.INTERNAL, str(error), ""
    if isinstance(error, CniError):
        code, msg, details = error.code, error.msg, error.details
    fields = Fields(plugin, "PluginConf")
    own_name = f' name="{fields.text("name")}"' if fields.text("name") else ""
    return CniError(code, f'plugin type="{fields.text("type")}"{own_name} failed ({verb}): {msg}', details)


def bring_up_loopback(netns: str) -> None:
    """Set `lo` up in a network namespace, as runtimes do beside the network; the plugin loopback does no more. Raises CniError."""
    fd = open_sandbox(netns)
    try:
        with Rtnl(fd) as rtnl:
            rtnl.set_link(rtnl.link("lo").index, up=True)
    finally:
        os.close(fd)
