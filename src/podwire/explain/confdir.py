"""/etc/cni/net.d as a runtime reads it: which files count, in which order, what each is, which one wins.

Files whose last extension is .conf, .conflist or .json count, sorted by the bytes of their names; the first one wins. What a broken file
does differs: containerd's loader stops at it, CRI-O and the old kubelet go on to the next.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from podwire.cni.spec import conf
from podwire.cni.spec.text import TextError
from podwire.errors import CniError

if TYPE_CHECKING:
    from podwire.cni.spec.conf import NetworkList
    from podwire.explain.snapshot import TextFile


class ConfFile:
    """A candidate: its network, or why it is none."""

    def __init__(self, file: TextFile) -> None:
        self.file = file
        self.name = file.name
        self.network: NetworkList | None = None
        self.error = ""
        self.hint = ""
        data = file.text.encode()
        try:
            if file.name.endswith(".conflist"):
                self.network = conf.parse_list(data, file.name)
                if not self.network.plugins:
                    self.network = None
                    self.error = "error parsing configuration list: no 'plugins' key"
            else:
                self.network = conf.parse_single(data, file.name)
        except CniError as error:
            self.error = error.msg
        except TextError as error:
            self.error = f"error parsing configuration: {error}"
        if self.error:
            self._explain()

    def _explain(self) -> None:
        try:
            raw = json.loads(self.file.text)
        except (ValueError, RecursionError):
            empty = not self.file.text.strip()
            self.hint = (
                "the file is empty: a disk that was full, or power that went, while it was written"
                if empty
                else "mend the JSON"
            )
            if empty:
                self.error = "unexpected end of JSON input"
            return
        if not isinstance(raw, dict):
            return
        stem = os.path.splitext(self.name)[0]
        if not self.name.endswith(".conflist") and "plugins" in raw:
            self.error += "; perhaps this is a .conflist?"
            self.hint = f"it holds a list of plugins: rename it to {stem}.conflist"
        elif self.name.endswith(".conflist") and "type" in raw and "plugins" not in raw:
            self.hint = f'it holds one plugin: rename it to {stem}.conf, or wrap it in "plugins": […]'
        elif "name" not in raw:
            self.hint = 'give it a "name"'

    @property
    def plugins(self) -> list[dict[str, Any]]:
        """The plugins of its chain; empty for a broken file."""
        return [one for one in self.network.plugins if isinstance(one, dict)] if self.network else []

    @property
    def types(self) -> list[str]:
        """The plugins' types."""
        return [str(one.get("type", "")) for one in self.plugins]

    @property
    def loopback_only(self) -> bool:
        """Whether pods of this network get nothing but lo."""
        return self.types == ["loopback"]

    @property
    def subnets(self) -> list[str]:
        """The ranges that its IPAM hands out, where the file itself says them."""
        found = []
        for plugin in self.plugins:
            ipam = plugin.get("ipam")
            if not isinstance(ipam, dict):
                continue
            if isinstance(ipam.get("subnet"), str):
                found.append(ipam["subnet"])
            groups = ipam.get("ranges")
            for group in groups if isinstance(groups, list) else ():
                found += (
                    [one["subnet"] for one in group if isinstance(one, dict) and isinstance(one.get("subnet"), str)]
                    if isinstance(group, list)
                    else []
                )
        return found

    @property
    def programs(self) -> list[str]:
        """Every program that the chain runs, with those that plugins run in turn: delegates and IPAM."""
        names: list[str] = []
        for plugin in self.plugins:
            names.append(str(plugin.get("type", "")))
            inner = plugin
            if plugin.get("type") == "flannel":
                delegate = plugin.get("delegate")
                inner = delegate if isinstance(delegate, dict) else {}
                names.append(str(inner.get("type") or "bridge"))
                # flannel's delegate gets host-local unless it says something else.
                ipam = inner.get("ipam") or plugin.get("ipam")
                names.append(str(ipam.get("type") or "host-local") if isinstance(ipam, dict) else "host-local")
                continue
            ipam = inner.get("ipam")
            if isinstance(ipam, dict) and ipam.get("type"):
                names.append(str(ipam["type"]))
        return list(dict.fromkeys(name for name in names if name))


class ConfDir:
    """The directory."""

    def __init__(self, files: list[TextFile]) -> None:
        #: Names with a slash are in a network's own folder (libcni reads `<dir>/<network>/*.conf`), not candidates.
        names = [file for file in files if "/" not in file.name]
        counted = [file for file in names if os.path.splitext("x" + file.name)[1] in conf.EXTENSIONS]
        self.candidates = [ConfFile(file) for file in sorted(counted, key=lambda file: file.name.encode())]
        self.others = [file.name for file in names if file not in counted]

    @property
    def first(self) -> ConfFile | None:
        """The first candidate, whatever is in it: what containerd reads."""
        return self.candidates[0] if self.candidates else None

    @property
    def winner(self) -> ConfFile | None:
        """The first candidate that is a network: what runtimes use that pass over broken files."""
        return next((one for one in self.candidates if one.network), None)
