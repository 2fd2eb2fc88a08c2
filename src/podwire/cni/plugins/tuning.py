"""The plugin tuning: changes settings of an interface that an earlier plugin of the chain made, and passes its result on.

    {"type": "tuning", "sysctl": {"net.core.somaxconn": "500", "net.ipv4.conf.IFNAME.arp_filter": "1"},
     "mac": "c2:b0:57:49:47:f1", "mtu": 1454, "promisc": true, "allmulti": true, "txQLen": 1000}

    ADD   sysctls, then (what the interface had is kept in a file) MAC, promisc, MTU, all-multicast, queue length
    DEL   what the file says, in the reference plugin's order; sysctls are not restored, they go with the namespace

Only settings below /proc/sys/net are written, and if there is /etc/cni/tuning/allowlist.conf (regular expressions, one a line) only
those that one of them is found in.
"""

from __future__ import annotations

import os

from podwire.cni.plugins.sandbox import open_sandbox
from podwire.cni.plugins.tuning_conf import Conf, sysctl_name
from podwire.cni.skel import Plugin, Request, os_error, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec import result as results
from podwire.cni.spec.text import Fields, TextError, decode, encode, quoted
from podwire.errors import KernelError, NotFound, PodwireError
from podwire.kernel import sysctl
from podwire.kernel.links import mac_bytes, mac_text
from podwire.kernel.namespaces import entered
from podwire.kernel.rtnl import Rtnl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from podwire.cni.spec.result import Result
    from podwire.kernel.links import Link


def add(request: Request) -> str:
    """Change the settings."""
    conf = Conf(request)
    conf.check_allowed()
    result = _previous(request)
    sandbox = open_sandbox(request.netns)
    try:
        with entered(sandbox):
            _write_sysctls(conf, request.ifname)
        if conf.changes_link:
            with Rtnl(sandbox) as container:
                link = _link(container, request.ifname)
                _keep(conf, request, link)
                _tune(container, link, conf.mac, promisc=conf.promisc or None, mtu=conf.mtu or None,
                      allmulti=conf.allmulti, txqlen=conf.txqlen)  # fmt: skip
    finally:
        os.close(sandbox)
    if conf.mac:
        for interface in result.interfaces:
            if interface.name == request.ifname:
                interface.mac = conf.mac
    return show(result, request.version)


def _previous(request: Request) -> Result:
    previous = results.previous(request.conf, request.version)
    if previous is None:
        raise ValueError("Required prevResult missing")
    return previous


def _write_sysctls(conf: Conf, ifname: str) -> None:
    for key, value in conf.sysctl.items():
        name = sysctl_name(key, ifname)
        try:
            sysctl.write(name, value)
        except KernelError as error:
            doing = "write" if error.errno == 22 else "open"  # EINVAL: the file is there, the value is wrong
            raise ValueError(os_error(OSError(error.errno, "", sysctl.path(name)), doing)) from error


def _link(container: Rtnl, ifname: str) -> Link:
    try:
        return container.link(ifname)
    except NotFound:
        raise ValueError(f"failed to get {quoted(ifname)}: Link not found") from None


def _tune(
    container: Rtnl,
    link: Link,
    mac: str,
    *,
    mtu: int | None,
    promisc: bool | None,
    allmulti: bool | None,
    txqlen: int | None,
) -> None:
    try:
        hardware = mac_text(mac_bytes(mac)) if mac else None
    except ValueError:
        raise ValueError(f"invalid args {mac} for MAC addr: address {mac}: invalid MAC address") from None
    container.set_link(link.index, mac=hardware, mtu=mtu, promisc=promisc, allmulti=allmulti, txqlen=txqlen)


def _path(conf: Conf, request: Request) -> str:
    return os.path.join(conf.data_dir, f"{request.container_id}_{request.ifname}.json")


def _draft(path: str) -> str:
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")


def _keep(conf: Conf, request: Request, link: Link) -> None:
    """Write down what is about to be changed: whole or not at all, in the reference plugin's form."""
    kept: dict[str, Any] = {}
    if conf.mac:
        kept["mac"] = link.mac
    if conf.promisc:
        kept["promisc"] = link.promiscuity != 0
    if conf.mtu:
        kept["mtu"] = link.mtu
    if conf.allmulti is not None:
        kept["allmulti"] = link.allmulti
    if conf.txqlen is not None:
        kept["txQLen"] = link.txqlen
    path = _path(conf, request)
    try:
        os.makedirs(conf.data_dir, 0o700, exist_ok=True)
        fd = os.open(_draft(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            left = encode(kept, indent=1).encode()
            while left:
                left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
        os.rename(_draft(path), path)
    except OSError as error:
        _forget(_draft(path))
        raise ValueError(f"failed to save file {path}: {os.strerror(error.errno or 0)}; nothing was changed") from error


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def delete(request: Request) -> None:
    """Restore what the interface had, as far as it is still there; what fails is told only."""
    conf = Conf(request)
    path = _path(conf, request)
    _forget(_draft(path))
    try:
        with open(path, "rb") as file:
            kept = Fields(decode(file.read()), "configToRestore")
    except FileNotFoundError:
        return
    except (OSError, TextError) as error:
        request.note(f"tuning: {path}: {error}\n")
        return
    try:
        _restore(request, kept)
    except PodwireError as error:
        request.note(f"tuning: {error}\n")
    _forget(path)


def _restore(request: Request, kept: Fields) -> None:
    try:
        sandbox = open_sandbox(request.netns)
    except PodwireError:
        return  # the namespace is gone, and the interface with it
    try:
        with Rtnl(sandbox) as container:
            link = container.find_link(request.ifname)
            if link is None:
                return
            # One after the other, so that what one refuses does not keep the others from being restored.
            steps: tuple[Callable[[], None], ...] = (
                lambda: container.set_link(link.index, mtu=kept.maybe_integer("mtu")),
                lambda: container.set_link(link.index, mac=kept.text("mac") or None),
                lambda: container.set_link(link.index, promisc=_maybe_flag(kept, "promisc")),
                lambda: container.set_link(link.index, allmulti=_maybe_flag(kept, "allmulti")),
                lambda: container.set_link(link.index, txqlen=kept.maybe_integer("txQLen")),
            )
            for step in steps:
                try:
                    step()
                except (KernelError, ValueError) as error:
                    request.note(f"tuning: restoring {request.ifname}: {error}\n")
    finally:
        os.close(sandbox)


def _maybe_flag(fields: Fields, name: str) -> bool | None:
    return None if fields.raw(name) is None else fields.flag(name)


def check(request: Request) -> None:
    """Whether everything is as it was set."""
    conf = Conf(request)
    _previous(request)
    sandbox = open_sandbox(request.netns)
    try:
        with entered(sandbox):
            _check_sysctls(conf, request.ifname)
        with Rtnl(sandbox) as container:
            link = container.find_link(request.ifname)
            if link is None:
                raise ValueError(f"Cannot find container link {request.ifname}")
            _check_link(conf, link)
    finally:
        os.close(sandbox)


def _check_sysctls(conf: Conf, ifname: str) -> None:
    for key, wanted in conf.sysctl.items():
        name = sysctl_name(key, ifname)
        try:
            found = sysctl.read(name)
        except KernelError as error:
            raise ValueError(os_error(OSError(error.errno, "", sysctl.path(name)))) from error
        if found != wanted:
            raise ValueError(
                f"Error: Tuning configured value of {sysctl.path(name)} is {wanted}, current value is {found}"
            )


def _check_link(conf: Conf, link: Link) -> None:
    start = "Error: Tuning configured"
    if conf.mac and conf.mac != link.mac:
        raise ValueError(f"{start} Ethernet of {link.name} is {conf.mac}, current value is {link.mac}")
    if conf.promisc != (link.promiscuity != 0):
        promisc = "true" if conf.promisc else "false"
        raise ValueError(
            f"Error: Tuning link {link.name} configured promisc is {promisc}, current value is {link.promiscuity}"
        )
    if conf.mtu and conf.mtu != link.mtu:
        raise ValueError(f"{start} MTU of {link.name} is {conf.mtu}, current value is {link.mtu}")
    if conf.allmulti is not None and conf.allmulti != link.allmulti:
        wanted, found = ("true" if flag else "false" for flag in (conf.allmulti, link.allmulti))
        raise ValueError(f"{start} all-multicast mode of {link.name} is {wanted}, current value is {found}")
    if conf.txqlen is not None and conf.txqlen != link.txqlen:
        raise ValueError(
            f"{start} Transmit Queue Length of {link.name} is {conf.txqlen}, current value is {link.txqlen}"
        )


def nothing(_request: Request) -> None:
    """GC and STATUS: what is kept says nothing of the network, and nothing is needed."""


PLUGIN = Plugin("tuning", add, delete, check, nothing, nothing)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
