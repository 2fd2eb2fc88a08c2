"""The plugin loopback: brings `lo` up in the container; CNI_IFNAME is ignored.

Runtimes run it beside the pod's network. In a chain it passes the previous result on.
"""

from __future__ import annotations

import _socket
import os

from podwire.addresses import Prefix
from podwire.cni.plugins.sandbox import Vanished, open_sandbox
from podwire.cni.skel import Plugin, Request, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec import result as results
from podwire.cni.spec.result import Address, Interface, Result
from podwire.cni.spec.text import Fields, TextError
from podwire.errors import NotFound
from podwire.kernel.rtnl import Rtnl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_LO = "lo"


class _Door:
    """An rtnetlink door to the container while the block runs."""

    __slots__ = ("_fd", "_path", "_rtnl")

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> Rtnl:
        self._fd = open_sandbox(self._path)
        try:
            self._rtnl = Rtnl(self._fd)
        except BaseException:
            os.close(self._fd)
            raise
        return self._rtnl

    def __exit__(self, *_: object) -> None:
        self._rtnl.close()
        os.close(self._fd)


def _previous(request: Request) -> Result | None:
    raw = Fields(request.conf, "NetConf").mapping("prevResult")
    if raw is None:
        return None
    try:
        return results.parse(raw, request.version)
    except TextError as error:
        raise ValueError(f"failed to parse prevResult: could not parse prevResult: {error}") from None


def add(request: Request) -> str:
    """Bring it up and tell its addresses."""
    previous = _previous(request)
    with _Door(request.netns) as rtnl:
        link = rtnl.link(_LO)
        rtnl.set_link(link.index, up=True)
        first = []
        for family in (_socket.AF_INET, _socket.AF_INET6):
            addresses = rtnl.addresses(link.index, family)
            for address in addresses:
                if not (address.ip.startswith("127.") or address.ip == "::1"):
                    raise ValueError(f'loopback interface found with non-loopback address "{address.ip}"')
            first += addresses[:1]
    if previous is not None:
        return show(previous, request.version)
    result = Result()
    result.interfaces = [Interface(_LO, "00:00:00:00:00:00", request.netns)]
    result.ips = [Address(Prefix.parse(address.cidr), None, 0) for address in first]
    return show(result, request.version)


def delete(request: Request) -> None:
    """Take it down; a namespace that is gone needs nothing."""
    if not request.netns:
        return
    try:
        with _Door(request.netns) as rtnl:
            rtnl.set_link(rtnl.link(_LO).index, up=False)
    except Vanished:
        return


def check(request: Request) -> None:
    """Whether it is up."""
    with _Door(request.netns) as rtnl:
        try:
            link = rtnl.link(_LO)
        except NotFound:
            raise ValueError("Link not found") from None
        if not link.up:
            raise ValueError("loopback interface is down")


def nothing(_request: Request) -> None:
    """GC and STATUS: the plugin keeps nothing and needs nothing."""


PLUGIN = Plugin("loopback", add, delete, check, nothing, nothing)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
