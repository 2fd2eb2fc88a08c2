"""The plugin flannel: turns this node's lease into another plugin's configuration, and calls that plugin.

    subnet.env (flanneld wrote it)   FLANNEL_NETWORK=10.244.0.0/16  FLANNEL_SUBNET=10.244.1.1/24  FLANNEL_MTU=1450  FLANNEL_IPMASQ=false
    + "delegate" of the conflist     {"isDefaultGateway": true, …}
    = configuration of bridge        {"type": "bridge", "mtu": 1450, "ipMasq": true, "isGateway": true,
                                      "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]],
                                               "routes": [{"dst": "10.244.0.0/16"}]}, …}

What ADD generated is kept in /var/lib/cni/flannel/CONTAINERID, because the lease may be another one at DEL. The file is
written whole or not at all; DEL without it has nothing to do, and removes it only when the delegate's DEL has succeeded.
"""

from __future__ import annotations

import fcntl
import os

from podwire.addresses import Prefix
from podwire.cni.delegate import Delegate, PluginNotFound
from podwire.cni.skel import Plugin, Request, os_error
from podwire.cni.skel import main as skel_main
from podwire.cni.spec.attachments import valid_attachments
from podwire.cni.spec.result import Route
from podwire.cni.spec.text import Fields, TextError, decode, encode
from podwire.cni.spec.versions import INTERNAL, PLUGIN_NOT_AVAILABLE
from podwire.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

DEFAULT_SUBNET_FILE = "/run/flannel/subnet.env"
DEFAULT_DATA_DIR = "/var/lib/cni/flannel"


class SubnetEnv:
    """What flanneld says of this node: the pod networks, this node's subnets, MTU, and whether it masquerades itself."""

    __slots__ = ("ipmasq", "mtu", "networks", "subnets")

    def __init__(self) -> None:
        self.networks: list[Prefix] = []  # IPv4 first
        self.subnets: list[Prefix] = []
        self.mtu: int | None = None
        self.ipmasq: bool | None = None


def parse_subnet_env(text: str, path: str) -> SubnetEnv:
    """Read subnet.env; lines that are not known are ignored. Raises ValueError, which names what is missing."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            values[key] = value
    found = SubnetEnv()
    for family in ("", "IPV6_"):
        for part in filter(None, values.get(f"FLANNEL_{family}NETWORK", "").split(",")):
            network = Prefix.parse(part).canonical
            if network not in found.networks:
                found.networks.append(network)
        subnet = values.get(f"FLANNEL_{family}SUBNET", "")
        if subnet:
            found.subnets.append(Prefix.parse(subnet).canonical)
    mtu = values.get("FLANNEL_MTU", "")
    if mtu:
        if not (mtu.isascii() and mtu.isdigit() and int(mtu) < 1 << 32):
            raise ValueError(f'strconv.ParseUint: parsing "{mtu}": invalid syntax')
        found.mtu = int(mtu)
    if "FLANNEL_IPMASQ" in values:
        found.ipmasq = values["FLANNEL_IPMASQ"] == "true"
    missing = [] if found.networks else ["FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"]
    missing += [] if found.subnets else ["FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"]
    missing += [] if found.mtu is not None else ["FLANNEL_MTU"]
    missing += [] if found.ipmasq is not None else ["FLANNEL_IPMASQ"]
    if missing:
        raise ValueError(f"{path} is missing {', '.join(missing)}")
    return found


class Conf:
    """The plugin's own configuration."""

    __slots__ = ("cni_version", "data_dir", "delegate", "ipam", "name", "runtime_config", "subnet_file")

    def __init__(self, raw: dict[str, Any]) -> None:
        try:
            fields = Fields(raw, "NetConf")
            self.name = fields.text("name")
            self.cni_version = fields.text("cniVersion")
            self.subnet_file = fields.text("subnetFile", DEFAULT_SUBNET_FILE)
            self.data_dir = fields.text("dataDir", DEFAULT_DATA_DIR)
            self.delegate = fields.mapping("delegate")
            self.ipam = fields.mapping("ipam")
            self.runtime_config = fields.mapping("runtimeConfig")
        except TextError as error:
            raise ValueError(f"failed to load netconf: {error}") from None

    def read_subnet_env(self) -> SubnetEnv:
        """The lease. Raises ValueError, also for a missing file."""
        try:
            with open(self.subnet_file, "rb") as file:
                text = file.read().decode(errors="replace")
            return parse_subnet_env(text, self.subnet_file)
        except OSError as error:
            said = os_error(error)
        except ValueError as error:
            said = str(error)
        raise ValueError(f"failed to load flannel 'subnet.env' file: {said}. Check the flannel pod log for this node.")


def generate(conf: Conf, lease: SubnetEnv) -> dict[str, Any]:
    """The delegate's configuration. What the conflist says wins, except for what only flannel can know. Raises ValueError."""
    made = dict(conf.delegate or {})
    if "type" in made and not isinstance(made["type"], str):
        raise ValueError("'delegate' dictionary, if present, must have (string) 'type' field")
    for key in ("name", "ipam"):
        if key in made:
            raise ValueError(f"'delegate' dictionary must not have '{key}' field, it'll be set by flannel")
    if conf.runtime_config is not None:
        made["runtimeConfig"] = conf.runtime_config
    made["name"] = conf.name
    made.setdefault("type", "bridge")
    made.setdefault("ipMasq", not lease.ipmasq)
    made.setdefault("mtu", lease.mtu)
    if made["type"] == "bridge":
        made.setdefault("isGateway", True)
    if conf.cni_version:
        made["cniVersion"] = conf.cni_version
    made["ipam"] = _ipam(conf, lease)
    return made


def _ipam(conf: Conf, lease: SubnetEnv) -> dict[str, Any]:
    ipam = dict(conf.ipam or {})
    ipam.setdefault("type", "host-local")
    ipam["ranges"] = [[{"subnet": str(subnet)}] for subnet in lease.subnets]
    try:
        given = Fields({"routes": ipam.get("routes")}, "ipam").array("routes", "[]types.Route")
        routes = [Route.parse(item) for item in given]
    except TextError as error:
        raise ValueError(
            f"failed to assemble Delegate IPAM: failed to read IPAM routes: failed to parse ipam.routes: {error}"
        ) from None
    ipam["routes"] = [route.json() for route in [*routes, *(Route(network) for network in lease.networks)]]
    return ipam


def add(request: Request) -> str:
    """Generate, keep, delegate."""
    conf = _conf(request)
    made = generate(conf, conf.read_subnet_env())
    text = encode(made, ordered=True).encode()
    _keep(os.path.join(conf.data_dir, request.container_id), text)
    try:
        return Delegate(made["type"], request).relay(text)
    except PluginNotFound as error:
        raise CniError(error.code, f"failed to delegate add: {error.msg}") from error


def _conf(request: Request) -> Conf:
    try:
        return Conf(request.conf)
    except ValueError as error:
        raise ValueError(f"failed to load flannel netconf file: {error}") from None


def _draft(path: str) -> str:
    """Where a file is written before it gets its name; one that a killed ADD left is removed by DEL or GC."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}")


def _keep(path: str, text: bytes) -> None:
    """Write a file whole or not at all, and have it on the disk before anything is made that only it describes."""
    draft = _draft(path)
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        fd = _open_locked(draft)
        try:
            os.truncate(fd, 0)
            left = text
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
            os.rename(draft, path)
        finally:
            os.close(fd)
    except OSError as error:
        _forget(draft)
        said = os_error(OSError(error.errno, "", path), "write")
        raise CniError(
            INTERNAL, said, "the delegate's configuration must be kept for DEL; nothing was set up"
        ) from error


def _open_locked(draft: str) -> int:
    """The draft, locked as long as it is open, so that GC knows it from one that a killed ADD left."""
    while True:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(fd), os.stat(draft)):
                return fd
        except FileNotFoundError:
            pass  # GC was quicker: it saw the file before it was locked
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _sweep_drafts(folder: str) -> None:
    """Remove the drafts that nobody is writing."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(".")]
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:
            continue
        finally:
            os.close(fd)


def delete(request: Request) -> None:
    """Delegate with what ADD kept."""
    conf = Conf(request.conf)
    path = os.path.join(conf.data_dir, request.container_id)
    _forget(_draft(path))
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return
    try:
        kind = Fields(decode(text), "NetConf").text("type")
    except TextError as error:
        request.note(f"failed to parse netconf: {error}\n")
        return
    Delegate(kind, request).delete(text)
    _forget(path)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def check(_request: Request) -> None:
    """Nothing, as the reference plugin does: the lease may rightly differ from what the container was given."""


def _kept(conf: Conf) -> Iterator[tuple[str, dict[str, Any]]]:
    """(container ID, configuration) of what is kept of this network."""
    try:
        names = sorted(os.listdir(conf.data_dir))
    except OSError:
        return
    for name in names:
        if name.startswith("."):
            continue
        try:
            with open(os.path.join(conf.data_dir, name), "rb") as file:
                made = decode(file.read())
        except (OSError, TextError):
            continue
        if isinstance(made, dict) and made.get("name") == conf.name:
            yield name, made


def gc(request: Request) -> None:
    """Have the delegate collect, for every configuration it was called with and for today's; forget what is not valid."""
    conf = Conf(request.conf)
    valid = valid_attachments(request.conf)
    ids = {container_id for container_id, _ in valid}
    kept = dict(_kept(conf))
    confs = {encode(made, ordered=True): made for made in kept.values()}
    try:
        today = generate(conf, conf.read_subnet_env())
        confs[encode(today, ordered=True)] = today
    except ValueError as error:
        request.note(f"flannel: {error}\n")
    told = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in sorted(valid)]
    for made in confs.values():
        text = {**made, "cni.dev/valid-attachments": told, "cni.dev/attachments": told}
        Delegate(made["type"], request).gc(encode(text, ordered=True).encode())
    for container_id in kept:
        if container_id not in ids:
            _forget(os.path.join(conf.data_dir, container_id))
    _sweep_drafts(conf.data_dir)


def status(request: Request) -> None:
    """Whether there is a lease, and the delegate can serve."""
    conf = Conf(request.conf)
    try:
        made = generate(conf, conf.read_subnet_env())
    except ValueError as error:
        raise CniError(PLUGIN_NOT_AVAILABLE, str(error)) from None
    Delegate(made["type"], request).status(encode(made, ordered=True).encode())


PLUGIN = Plugin("flannel", add, delete, check, gc, status)


def main() -> NoReturn:
    """Be the executable."""
    skel_main(PLUGIN)
