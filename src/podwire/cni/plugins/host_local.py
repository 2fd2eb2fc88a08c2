"""The IPAM plugin host-local: addresses out of ranges in its configuration, remembered in files of this machine.

    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "10.244.0.0/16"}]}

It makes no device and never opens the container's namespace. One address of every range set is reserved; all of them, or
none: the lock is held from the first look to the last reservation, and what was reserved is taken back if a later range set
fails. Requested addresses (CNI_ARGS `IP`, args.cni.ips, the capability `ips`) are taken from the range set they are in.
"""

from __future__ import annotations

from podwire.addresses import Ip, Prefix
from podwire.cni.plugins.ranges import RangeSet, parse_range, parse_range_set
from podwire.cni.plugins.store import Store
from podwire.cni.skel import Plugin, Request, os_error, parse_args, show
from podwire.cni.skel import main as skel_main
from podwire.cni.spec.attachments import valid_attachments
from podwire.cni.spec.result import Address, Result, Route
from podwire.cni.spec.text import Fields, TextError
from podwire.cni.spec.versions import INTERNAL, PLUGIN_NOT_AVAILABLE, at_least
from podwire.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


class Conf:
    """A configuration, checked."""

    __slots__ = ("data_dir", "name", "requested", "resolv_conf", "routes", "sets")

    def __init__(self, request: Request) -> None:
        fields = Fields(request.conf, "Net")
        if fields.raw("ipam") is None:
            raise ValueError("IPAM config missing 'ipam' key")
        ipam = fields.inner("ipam")
        self.name = fields.text("name")
        self.data_dir = ipam.text("dataDir")
        self.resolv_conf = ipam.text("resolvConf")
        self.routes = [Route.parse(item) for item in ipam.array("routes", "[]*types.Route")]
        self.requested = _requested(request, fields)
        self.sets = _range_sets(ipam, fields.inner("runtimeConfig"))
        families = [one.bits for one in self.sets]
        if len(families) > len(set(families)) and not at_least(request.version, "0.3.0"):
            version = fields.text("cniVersion")
            raise ValueError(f"CNI version {version} does not support more than 1 address per family")
        for index, one in enumerate(self.sets):
            for offset, other in enumerate(self.sets[index + 1 :]):
                if one.overlaps(other):
                    raise ValueError(f"range set {index} overlaps with {index + offset + 1}")


def _range_sets(ipam: Fields, runtime: Fields) -> list[RangeSet]:
    """The capability's ranges, then the single old-style range, then `ranges`."""
    sources: list[Any] = [*runtime.array("ipRanges", "[]allocator.RangeSet")]
    sources += [ipam] if ipam.text("subnet") else []
    sources += ipam.array("ranges", "[]allocator.RangeSet")
    if not sources:
        raise ValueError("no IP ranges specified")
    sets = []
    for index, source in enumerate(sources):
        try:
            single = isinstance(source, Fields)
            sets.append(RangeSet([parse_range(source)]) if single else parse_range_set(source))
        except TextError:
            raise
        except ValueError as error:
            raise ValueError(f"invalid range set {index}: {error}") from None
    return sets


def _requested(request: Request, fields: Fields) -> list[Ip]:
    # MAC is for the plugin that called this one; the reference plugin refuses it unless IgnoreUnknown is said.
    texts = [parse_args(request.args, ("IP", "MAC")).get("IP", "")]
    found = []
    try:
        found += [_ip(text) for text in texts if text]
    except ValueError as error:
        raise ValueError(f'ARGS: error parsing value of pair "IP={texts[0]}": {error}') from None
    cni = fields.inner("args").inner("cni")
    found += [_ip(text) for text in cni.texts("ips") if text]
    found += [_ip(text) for text in fields.inner("runtimeConfig").texts("ips") if text]
    return found


def _ip(text: str) -> Ip:
    """A requested address; a prefix length behind it is allowed and ignored."""
    try:
        return Ip.parse(text.partition("/")[0])
    except ValueError:
        raise ValueError(f"invalid IP address {text}") from None


def add(request: Request) -> str:
    """Reserve one address of every range set."""
    conf = Conf(request)
    result = Result()
    if conf.resolv_conf:
        result.dns = parse_resolv_conf(conf.resolv_conf)
    with Store(conf.name, conf.data_dir) as store:
        result.ips = _reserve_all(request, conf, store)
    result.routes = conf.routes
    return show(result, request.version)


def _reserve_all(request: Request, conf: Conf, store: Store) -> list[Address]:
    reserved: list[Ip] = []
    try:
        return _reserve_each(request, conf, store, reserved)
    except BaseException:
        store.release(reserved)
        raise


def _reserve_each(request: Request, conf: Conf, store: Store, reserved: list[Ip]) -> list[Address]:
    wanted = dict.fromkeys(conf.requested)  # as a set that keeps its order
    found = []
    for index, one in enumerate(conf.sets):
        chosen = next((ip for ip in wanted if one.range_of(ip)), None)
        if chosen is not None:
            del wanted[chosen]
        try:
            address, gateway = _pick(request, one, store, index, chosen)
        except ValueError as error:
            raise CniError(INTERNAL, f"failed to allocate for range {index}: {error}") from None
        store.reserve(address.ip, request.container_id, request.ifname, index)
        reserved.append(address.ip)
        found.append(Address(address, gateway))
    if wanted:
        names = " ".join(str(ip) for ip in wanted)
        raise CniError(INTERNAL, f"failed to allocate all requested IPs: {names}")
    return found


def _pick(request: Request, one: RangeSet, store: Store, index: int, chosen: Ip | None) -> tuple[Prefix, Ip]:
    """An address of a range set that is free, with its prefix length and gateway. Raises ValueError."""
    if chosen is not None:
        its_range = one.range_of(chosen)
        assert its_range is not None
        if chosen == its_range.gateway:
            raise ValueError(f"requested ip {chosen} is subnet's gateway")
        if not store.is_free(chosen):
            raise ValueError(f"requested IP address {chosen} is not available in range set {one}")
        return Prefix(chosen, its_range.subnet.length), its_range.gateway
    for held in store.addresses_of(request.container_id, request.ifname):
        if one.range_of(held):
            raise ValueError(
                f"{held} has been allocated to {request.container_id}, duplicate allocation is not allowed"
            )
    for ip, its_range in one.candidates(store.last_reserved(index)):
        if store.is_free(ip):
            return Prefix(ip, its_range.subnet.length), its_range.gateway
    raise ValueError(f"no IP addresses available in range set: {one}")


def delete(request: Request) -> None:
    """Free what the attachment holds; nothing held is no error."""
    conf = Conf(request)
    with Store(conf.name, conf.data_dir) as store:
        store.release_of(request.container_id, request.ifname)


def check(request: Request) -> None:
    """Whether the attachment holds an address, whichever."""
    conf = Conf(request)
    with Store(conf.name, conf.data_dir) as store:
        if not store.addresses_of(request.container_id, request.ifname):
            raise CniError(INTERNAL, f"host-local: Failed to find address added by container {request.container_id}")


def gc(request: Request) -> None:
    """Free the addresses of all attachments but the valid ones."""
    conf = Conf(request)
    valid = valid_attachments(request.conf)
    with Store(conf.name, conf.data_dir) as store:
        for name in store.sweep(valid):
            request.note(f"host-local: {name} of network {conf.name} was leaked and is free again\n")


def status(request: Request) -> None:
    """Whether an ADD could be served at all: configuration and folder are in order."""
    try:
        conf = Conf(request)
        with Store(conf.name, conf.data_dir):
            return
    except (CniError, ValueError) as error:
        raise CniError(PLUGIN_NOT_AVAILABLE, f"host-local cannot reserve addresses: {error}") from None


def parse_resolv_conf(path: str) -> dict[str, Any]:
    """The dns object of a resolv.conf(5)."""
    try:
        with open(path, "rb") as file:
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as error:
        raise CniError(INTERNAL, os_error(error)) from error
    found: dict[str, Any] = {}
    for line in lines:
        words = line.split()
        if len(words) < 2 or words[0][0] in "#;":
            continue
        if words[0] == "nameserver":
            found.setdefault("nameservers", []).append(words[1])
        elif words[0] == "domain":
            found["domain"] = words[1]
        elif words[0] in ("search", "options"):
            found.setdefault(words[0], []).extend(words[1:])
    return {name: found[name] for name in ("nameservers", "domain", "search", "options") if name in found}


PLUGIN = Plugin("host-local", add, delete, check, gc, status)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
