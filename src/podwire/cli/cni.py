"""podwire cni: the plugins' installation, and a runtime for people (the counterpart of cnitool).

    podwire cni install --bin-dir /opt/cni/bin --conf-dir /etc/cni/net.d --conflist 10-flannel.conflist
    podwire cni add cni0 /run/netns/test

cnitool's environment is understood: NETCONFPATH, CNI_PATH, CNI_ARGS, CAP_ARGS, CNI_IFNAME. So is its container ID: the same
namespace gets the same ID from both, and each can delete what the other added.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from podwire.errors import CniError, PodwireError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from podwire.cni.runtime import Attachment, Runtime
    from podwire.cni.spec.conf import NetworkList

T = TypeVar("T")

_app = typer.Typer(help="CNI plugins and runtime.", no_args_is_help=True, rich_markup_mode=None)

_Network = Annotated[str, typer.Argument(help="Name of a network in --conf-dir.")]
_Netns = Annotated[str, typer.Argument(help="Network namespace: a path, or a name below /run/netns.")]
_ContainerId = Annotated[
    str, typer.Option("--container-id", help="Default: cnitool's, made from the namespace's path.")
]
_Ifname = Annotated[str, typer.Option("--ifname", envvar="CNI_IFNAME", help="The interface in the namespace.")]
_ConfDir = Annotated[str, typer.Option("--conf-dir", envvar="NETCONFPATH", help="Where networks are configured.")]
_BinDir = Annotated[str, typer.Option("--bin-dir", envvar="CNI_PATH", help="Where plugins are; several with colons.")]
_CacheDir = Annotated[str, typer.Option("--cache-dir", help="Where results are kept.")]
_Args = Annotated[str, typer.Option("--args", envvar="CNI_ARGS", help="CNI_ARGS for the plugins: K=V;K=V.")]
_CapArgs = Annotated[str, typer.Option("--capability-args", envvar="CAP_ARGS", help="Capability arguments, JSON.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_CONF_DIR = "/etc/cni/net.d"
_BIN_DIR = "/opt/cni/bin"
_CACHE_DIR = "/var/lib/cni"


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    app.add_typer(_app, name="cni")


@_app.command("install")
def install(
    bin_dir: Annotated[str, typer.Option("--bin-dir", help="Where to write the plugins.")],
    conf_dir: Annotated[str, typer.Option("--conf-dir", help="Where to put --conflist.")] = "",
    conflist: Annotated[str, typer.Option("--conflist", help="Copied to CONF_DIR/10-flannel.conflist.")] = "",
) -> None:
    """Write podwire's plugins into a folder (other files there stay), as flannel's init containers do."""
    from podwire.cni import install as installation

    for path in installation.install(bin_dir, conf_dir, conflist):
        typer.echo(f"wrote {path}")


@_app.command("uninstall")
def uninstall(
    bin_dir: Annotated[str, typer.Option("--bin-dir", help="Where the plugins are.")],
    conf_dir: Annotated[str, typer.Option("--conf-dir", help="Also remove 10-flannel.conflist here.")] = "",
) -> None:
    """Remove podwire's plugins from a folder; files of the same names that are not podwire's stay."""
    from podwire.cni import install as installation

    for path in installation.uninstall(bin_dir, conf_dir):
        typer.echo(f"removed {path}")


@_app.command("helper")
def helper() -> None:
    """Be the resident helper, which does the work of podwire's plugins in a process that is warm; SIGTERM ends it."""
    from podwire.cni.install import exec_helper

    exec_helper()


@_app.command("add")
def add(
    network: _Network,
    netns: _Netns,
    container_id: _ContainerId = "",
    ifname: _Ifname = "eth0",
    conf_dir: _ConfDir = _CONF_DIR,
    bin_dir: _BinDir = _BIN_DIR,
    cache_dir: _CacheDir = _CACHE_DIR,
    args: _Args = "",
    capability_args: _CapArgs = "",
    as_json: _Json = False,
) -> None:
    """Attach a namespace to a network and show the result."""
    attachment = _attachment(netns, container_id, ifname, args, capability_args)
    result = _try("add", lambda: _runtime(bin_dir, cache_dir).add(_load(conf_dir, network), attachment))
    typer.echo(json.dumps(result, indent=2) if as_json else show_result(result))


@_app.command("del")
def delete(
    network: _Network,
    netns: _Netns,
    container_id: _ContainerId = "",
    ifname: _Ifname = "eth0",
    conf_dir: _ConfDir = _CONF_DIR,
    bin_dir: _BinDir = _BIN_DIR,
    cache_dir: _CacheDir = _CACHE_DIR,
    args: _Args = "",
    capability_args: _CapArgs = "",
) -> None:
    """Detach a namespace from a network; nothing to detach is no error."""
    attachment = _attachment(netns, container_id, ifname, args, capability_args)
    _try("del", lambda: _runtime(bin_dir, cache_dir).delete(_load(conf_dir, network), attachment))


@_app.command("check")
def check(
    network: _Network,
    netns: _Netns,
    container_id: _ContainerId = "",
    ifname: _Ifname = "eth0",
    conf_dir: _ConfDir = _CONF_DIR,
    bin_dir: _BinDir = _BIN_DIR,
    cache_dir: _CacheDir = _CACHE_DIR,
    args: _Args = "",
    capability_args: _CapArgs = "",
) -> None:
    """Whether an attachment is as `add` left it (networks of version 0.4.0 and newer)."""
    attachment = _attachment(netns, container_id, ifname, args, capability_args)
    _try("check", lambda: _runtime(bin_dir, cache_dir).check(_load(conf_dir, network), attachment))


@_app.command("gc")
def collect(
    network: _Network,
    keep: Annotated[
        list[str] | None, typer.Option("--keep", help="CONTAINER/IFNAME to keep; all others are freed. Repeat it.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Keep none.")] = False,
    conf_dir: _ConfDir = _CONF_DIR,
    bin_dir: _BinDir = _BIN_DIR,
    cache_dir: _CacheDir = _CACHE_DIR,
) -> None:
    """Free addresses, interfaces and rules of every attachment that is not kept."""
    from podwire.cni.runtime import Attachment

    if bool(keep) == everything:
        raise UsageError("cni gc", answer="say which attachments stay (--keep CONTAINER/IFNAME), or --all for none")
    valid = []
    for text in keep or []:
        one, slash, ifname = text.partition("/")
        if not slash:
            raise UsageError("reading --keep", text, "expected CONTAINER/IFNAME")
        valid.append(Attachment(one, "", ifname))
    _try("gc", lambda: _runtime(bin_dir, cache_dir).gc(_load(conf_dir, network), valid))


@_app.command("status")
def status(network: _Network, conf_dir: _ConfDir = _CONF_DIR, bin_dir: _BinDir = _BIN_DIR) -> None:
    """Whether the network's plugins could serve (networks of version 1.1.0)."""
    _try("status", lambda: _runtime(bin_dir, _CACHE_DIR).status(_load(conf_dir, network)))


@_app.command("version")
def version(
    plugin: Annotated[str, typer.Argument(help="A plugin's name, e.g. bridge.")], bin_dir: _BinDir = _BIN_DIR
) -> None:
    """Which CNI versions a plugin supports."""
    typer.echo(" ".join(_try("version", lambda: _runtime(bin_dir, _CACHE_DIR).supported_versions(plugin))))


@_app.command("list")
def list_all(conf_dir: _ConfDir = _CONF_DIR, cache_dir: _CacheDir = _CACHE_DIR, as_json: _Json = False) -> None:
    """The networks, in the order that runtimes choose by, and what is attached to them."""
    from podwire.cni.spec import conf

    networks = [_describe(path) for path in _try("list", lambda: conf.files(conf_dir))]
    attached = [
        {
            "network": one.network,
            "container": one.attachment.container_id,
            "ifname": one.attachment.ifname,
            "ips": " ".join(_ips(one.result)),
        }
        for one in _runtime("", cache_dir).cached()
    ]
    if as_json:
        typer.echo(json.dumps({"networks": networks, "attachments": attached}, indent=2))
        return
    typer.echo(_table(networks, ("network", "version", "plugins", "file", "problem")))
    if attached:
        typer.echo("\n" + _table(attached, ("network", "container", "ifname", "ips")))


def _describe(path: str) -> dict[str, str]:
    from podwire.cni.spec import conf

    try:
        one = conf.read(path)
    except CniError as error:
        return {"network": "-", "version": "-", "plugins": "-", "file": path, "problem": error.msg}
    version = one.cni_version or "0.1.0"
    return {"network": one.name, "version": version, "plugins": "+".join(one.types), "file": path, "problem": ""}


def _table(found: list[dict[str, str]], keys: tuple[str, ...]) -> str:
    shown = [key for key in keys if key != "problem" or any(one["problem"] for one in found)]
    return columns([[key.upper() for key in shown], *([one[key] for key in shown] for one in found)])


def _load(conf_dir: str, network: str) -> NetworkList:
    from podwire.cni.spec import conf

    return conf.load(conf_dir, network)


def _runtime(bin_dir: str, cache_dir: str) -> Runtime:
    from podwire.cni.runtime import Runtime

    return Runtime(bin_dir.split(":"), cache_dir, note=lambda text: print(text, end="", file=sys.stderr))


def _attachment(netns: str, container_id: str, ifname: str, args: str, capability_args: str) -> Attachment:
    from podwire.cni.runtime import Attachment

    path = netns if "/" in netns else f"/run/netns/{netns}"
    pairs = [pair.partition("=") for pair in args.split(";") if pair]
    try:
        capabilities = json.loads(capability_args or "{}")
    except ValueError as error:
        raise UsageError("reading --capability-args", answer=str(error)) from error
    if not isinstance(capabilities, dict) or any(not equals for _, equals, _ in pairs):
        raise UsageError("reading --args and --capability-args", answer="expected K=V;K=V and a JSON object")
    return Attachment(
        container_id or _tool_id(path), path, ifname, {key: value for key, _, value in pairs}, capabilities
    )


def _tool_id(path: str) -> str:
    from podwire.naming import cni_hash

    return cni_hash(len("cnitool-") + 20, "cnitool-", os.path.abspath(path))


def _try(verb: str, work: Callable[[], T]) -> T:
    """Do it; a CNI error becomes one line with its code, which runtimes' logs and the specification speak of."""
    try:
        return work()
    except CniError as error:
        details = f": {error.details}" if error.details else ""
        raise PodwireError(f"cni {verb}", answer=f"{error.msg}{details} [CNI error {error.code}]") from error


def _ips(result: dict[str, Any]) -> list[str]:
    from podwire.cni.spec import result as results

    try:
        return [str(ip.address) for ip in results.parse_own(result).ips]
    except ValueError:
        return []


def show_result(raw: dict[str, Any]) -> str:
    """A result as a person reads it: what was made, which addresses, which way out."""
    from podwire.cni.spec import result as results

    parsed = results.parse_own(raw)
    blocks = []
    if parsed.interfaces:
        rows = [("INTERFACE", "MAC", "SANDBOX")]
        rows += [(i.name, i.mac or "-", i.sandbox or "(host)") for i in parsed.interfaces]
        blocks.append(columns(rows))
    if parsed.ips:
        rows = [("ADDRESS", "GATEWAY", "INTERFACE")]
        for ip in parsed.ips:
            known = ip.interface is not None and ip.interface < len(parsed.interfaces)
            name = parsed.interfaces[ip.interface or 0].name if known else "-"
            rows.append((str(ip.address), str(ip.gateway or "-"), name))
        blocks.append(columns(rows))
    if parsed.routes:
        rows = [("ROUTE", "VIA", "")]
        rows += [(str(route.dst), str(route.gw or "-"), "") for route in parsed.routes]
        blocks.append(columns(rows))
    for key, value in parsed.dns.items():
        blocks.append(f"DNS {key}: {value if isinstance(value, str) else ' '.join(value)}")
    return "\n\n".join(blocks) or f"attached (CNI {parsed.version}); the result names no address"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows with their columns under each other."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
