"""The configuration of the plugin tuning, and which kernel settings it may touch.

A setting may be given in the configuration or in args.cni, which wins; a MAC address also in CNI_ARGS and by the runtime: CNI_ARGS
loses to the runtime, the runtime to args.cni (bridge has another order; so have the reference plugins).
"""

from __future__ import annotations

import os

from podwire.cni.skel import parse_args
from podwire.cni.spec.text import Fields, TextError, decode, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from podwire.cni.skel import Request

DEFAULT_DATA_DIR = "/run/cni/tuning"
ALLOWLIST = "/etc/cni/tuning/allowlist.conf"


class Conf:
    """A configuration. Raises ValueError."""

    __slots__ = ("allmulti", "data_dir", "mac", "mtu", "promisc", "sysctl", "txqlen")

    def __init__(self, request: Request) -> None:
        if request.command != "DEL":
            _refuse_duplicates(request.stdin)
        try:
            self._read(Fields(request.conf, "TuningConf"), request.args)
        except TextError as error:
            raise ValueError(f"failed to load netconf: {error}") from None

    def _read(self, fields: Fields, args: str) -> None:
        self.data_dir = fields.text("dataDir") or DEFAULT_DATA_DIR
        environment = parse_args(args, ("MAC",)).get("MAC", "")
        self.mac = fields.inner("runtimeConfig").text("mac") or environment or fields.text("mac")
        self.sysctl: dict[str, str] = {}
        self.promisc = False
        self.mtu = 0
        self.allmulti: bool | None = None
        self.txqlen: int | None = None
        cni = fields.inner("args").inner("cni")
        if cni.raw("mac") is not None:
            self.mac = cni.text("mac")
        for source in (fields, cni):
            self._take(source)

    def _take(self, source: Fields) -> None:
        for key, value in (source.mapping("sysctl") or {}).items():
            if value is not None and not isinstance(value, str):
                raise TextError(
                    f"json: cannot unmarshal value of {quoted(key)} into Go struct field TuningConf.sysctl of type string"
                )
            self.sysctl[key] = value or ""
        if source.raw("promisc") is not None:
            self.promisc = source.flag("promisc")
        self.mtu = source.integer("mtu", self.mtu)
        if source.raw("allmulti") is not None:
            self.allmulti = source.flag("allmulti")
        if source.raw("txQLen") is not None:
            self.txqlen = source.integer("txQLen")

    @property
    def changes_link(self) -> bool:
        """Whether anything but sysctls is asked for."""
        return bool(self.mac or self.mtu or self.promisc or self.allmulti is not None or self.txqlen is not None)

    def check_allowed(self) -> None:
        """Raise ValueError for a sysctl that the node's administrator has not allowed; without the file all are."""
        if not self.sysctl:
            return
        try:
            with open(ALLOWLIST, "rb") as file:
                lines = [line.strip() for line in file.read().decode(errors="replace").split("\n")]
        except FileNotFoundError:
            return
        except OSError as error:
            raise ValueError(f"open {ALLOWLIST}: {os.strerror(error.errno or 0).lower()}") from error
        allowed = [line for line in lines if line]
        import re

        for key in self.sysctl:
            try:
                found = any(re.search(pattern, key) for pattern in allowed)
            except re.error as error:
                raise ValueError(f"error parsing regexp in {ALLOWLIST}: {error}") from None
            if not found:
                raise ValueError(
                    f"Sysctl {key} is not allowed. Only the following sysctls are allowed: [{' '.join(allowed)}]"
                )


def sysctl_name(key: str, ifname: str) -> str:
    """A setting in the spelling with slashes, IFNAME in it (once) replaced. Raises ValueError for one that is not the network's."""
    name = key.replace(".", "/").replace("IFNAME", ifname, 1)
    path = os.path.normpath(f"/proc/sys/{name}")
    if not path.startswith("/proc/sys/net/"):
        raise ValueError(f"invalid net sysctl key: {quoted(name)}")
    return path.removeprefix("/proc/sys/")


def _refuse_duplicates(stdin: bytes) -> None:
    """Raise ValueError for a sysctl that is written twice: JSON readers take the last, and nobody knows which was meant."""

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        return {**dict(pairs), _TWICE: next((name for name in names if names.count(name) > 1), "")}

    raw = Fields(decode(stdin, keep), "NetConf").raw("sysctl")
    if isinstance(raw, dict) and raw[_TWICE]:
        raise ValueError("duplicated sysctl keys are not allowed")


_TWICE = "\0"  # a key that no setting has
