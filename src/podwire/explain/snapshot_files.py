"""Files into a Snapshot: what a file is, is decided by where it lies, what it is called, and first of all what is in it.

People attach files under any name. So the place decides only where a name means something on the node itself (a file of
/etc/cni/net.d, of host-local's directory), and the text decides everything else. A bundle's files go the same way: a bundle is
nothing but such files and a manifest.

What is prose (Markdown, a text that begins with a second-level heading) is passed over; what is not recognised is said in `warnings`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from podwire.explain import snapshot_kube as kube
from podwire.explain import snapshot_links as links
from podwire.explain import snapshot_routes as routes
from podwire.explain import snapshot_sockets as sockets
from podwire.explain.snapshot import Link, Program, Sandbox, TextFile
from podwire.explain.snapshot_paste import sections
from podwire.explain.snapshot_rules import rule_texts
from podwire.explain.snapshot_words import inner, number_of, rows, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.explain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found: `path` with slashes, relative to what was given; `where` is how to name it as evidence."""

    path: str
    data: bytes
    where: str

    @property
    def name(self) -> str:
        """The last component."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def text(self) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD."""
        return self.data.decode(errors="replace")


#: A paste is read by a person; what is longer is the output of one program.
_MAX_PASTE = 4 << 20
_PLACES = (
    (re.compile(r"(?:^|/)(?:[\w.-]*[-_/])?net\.d/(?P<name>.+)$"), "cni_files"),
    (re.compile(r"(?:^|/)(?:var[-/]lib[-/]cni|cni/lib|cni)/networks/(?P<name>[^/]+/[^/]+)$"), "reservations"),
    (re.compile(r"(?:^|/)(?:var[-/]lib[-/]cni|cni/lib|cni)/results/(?P<name>[^/]+)$"), "results"),
    (re.compile(r"(?:^|/)(?:var[-/]lib[-/]cni|cni/lib|cni)/flannel/(?P<name>[^/]+)$"), "scratch"),
)


def add(into: Snapshot, file: File) -> None:
    """Put what is in a file into a snapshot; what nobody understands leaves a warning."""
    for pattern, kind in _PLACES:
        found = pattern.search(file.path)
        if found:
            _list(into, kind).append(TextFile(found["name"], file.text, file.where))
            return
    if file.name.endswith(".conflist") or (file.name.endswith(".conf") and file.data.lstrip()[:1] in (b"{", b"")):
        _list(into, "cni_files").append(TextFile(file.name, file.text, file.where))
        return
    if file.path == "host/hostname.txt":
        into.hostname = into.hostname or file.text.strip()
        return
    pasted = sections(file.text) if file.data[:1] not in (b"{", b"[") and len(file.data) < _MAX_PASTE else []
    if pasted:
        for name, text in pasted:
            add(into, File(name, text.encode(), f"{file.where}, {name}"))
        return
    prose = file.name.endswith(".md") or file.data.startswith(b"## ")
    if prose or not file.data.strip() or _add_json(into, file) or _add_text(into, file):
        return
    into.warnings.append(f"{file.where}: not recognised, left out")


def _list(into: Snapshot, kind: str) -> list[Any]:
    found = getattr(into, kind)
    if found is None:
        found = []
        setattr(into, kind, found)
    assert isinstance(found, list)
    return found


# -- JSON -----------------------------------------------------------------------------------------------------------


def _add_json(into: Snapshot, file: File) -> bool:
    if file.data.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        value = json.loads(file.text)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, dict):
        return _add_object(into, value, file)
    return _add_rows(into, rows(value), file) or value == []


def _add_object(into: Snapshot, value: dict[str, Any], file: File) -> bool:
    if "nftables" in value:
        into.rules += rule_texts(file.name, file.text, file.where)
    elif "supportedVersions" in value:
        into.outputs.setdefault("plugin-version", []).append(TextFile(file.name, file.text, file.where))
    elif "Network" in value or "IPv6Network" in value:
        into.net_conf = TextFile(file.name, file.text, file.where)
    elif "cniVersion" in value or "plugins" in value:
        _list(into, "cni_files").append(TextFile(file.name, file.text, file.where))
    elif "lastCNILoadStatus" in value or "cniconfig" in value or inner(value, "config", "cni"):
        into.runtime_info.append((value, file.where))
    elif _is_sandboxes(value):
        found = _list(into, "sandboxes")
        found += [_sandbox(row, file.where) for row in rows(value.get("items") or [])]
    elif _is_mtu_table(value):
        into.outputs.setdefault("mtu-table", []).append(TextFile(file.name, file.text, file.where))
    else:
        return kube.add_object(into, value, file.where)
    return True


def _is_sandboxes(value: dict[str, Any]) -> bool:
    items = rows(value.get("items") or []) if "items" in value else []
    return (bool(items) and all("id" in row and str(row.get("state", "")).startswith("SANDBOX") for row in items)) or (
        set(value) == {"items"} and value["items"] == []
    )


def _sandbox(row: dict[str, Any], where: str) -> Sandbox:
    metadata = inner(row, "metadata")
    ready = text_of(row, "state") == "SANDBOX_READY"
    return Sandbox(
        text_of(row, "id"),
        text_of(metadata, "namespace"),
        text_of(metadata, "name"),
        text_of(metadata, "uid"),
        ready,
        where,
    )


def _is_mtu_table(value: dict[str, Any]) -> bool:
    """{"node-a": {"eth0": 1500, "flannel.1": 1450, …}, …}."""
    inner_tables = [one for one in value.values() if isinstance(one, dict)]
    return len(inner_tables) == len(value) > 0 and all(
        table and all(isinstance(number, int) for number in table.values()) for table in inner_tables
    )


def _add_rows(into: Snapshot, found: list[dict[str, Any]], file: File) -> bool:
    keys = set().union(*(row.keys() for row in found[:50])) if found else set()
    six = re.search(r"(?:route|rule|neigh|addr)s?[-_]?6|ip-?6|v6", file.name) is not None
    if "netns" in keys and "links" in keys:
        _list(into, "namespaces").extend(links.namespaces_json(found, file.where))
    elif "addr_info" in keys:
        _list(into, "addresses").extend(links.addresses_json(found, file.where))
        into.links = links.merge_links(into.links, links.links_json(found, file.where))
    elif "ifname" in keys and "mac" in keys and "mtu" not in keys:
        _list(into, "fdb").extend(routes.fdb_json(found, file.where))
    elif "ifname" in keys:
        into.links = links.merge_links(into.links, links.links_json(found, file.where))
    elif "priority" in keys and ("src" in keys or "table" in keys) and "dst" not in keys - {"dst"} | {"dstlen"}:
        _list(into, "policy_rules").extend(routes.rules_json(found, file.where, six))
    elif "dst" in keys and ({"lladdr", "state"} & keys):
        _list(into, "neighbours").extend(routes.neighbours_json(found, file.where))
    elif "dst" in keys:
        _list(into, "routes").extend(routes.routes_json(found, file.where, six))
    elif "kind" in keys and "metadata" in keys:
        known = [kube.add_object(into, row, file.where) for row in found]
        return any(known)
    elif "id" in keys and "state" in keys:
        _list(into, "sandboxes").extend(_sandbox(row, file.where) for row in found)
    else:
        return False
    return True


# -- text -----------------------------------------------------------------------------------------------------------


def _add_text(into: Snapshot, file: File) -> bool:
    text = file.text
    rules = rule_texts(file.name, text, file.where)
    if rules:
        into.rules += rules
        return True
    for looks_like, put in _TEXTS:
        if looks_like.search(text):
            put(into, file, text)
            return True
    return kube.add_yaml(into, file.name, text, file.where) or kube.add_table(into, file.name, text, file.where)


def _subnet_env(into: Snapshot, file: File, text: str) -> None:
    # A file that only somebody proposes to write is not what is on the node.
    kept = TextFile(file.name, text, file.where)
    if file.name == "subnet.env" or (into.subnet_env is None and not re.search("propos|new|draft", file.name)):
        into.subnet_env = kept
    else:
        into.outputs.setdefault("subnet-env-proposed", []).append(kept)


def _links_and_addresses(into: Snapshot, file: File, text: str) -> None:
    into.links = links.merge_links(into.links, links.links_text(text, file.where))
    if "otherhost" in text:
        _keep("link-stats")(into, file, text)
    if re.search(r"^\s+inet6? ", text, re.MULTILINE):
        _list(into, "addresses").extend(links.addresses_text(text, file.where))


def _extend(kind: str, parse: Callable[[str, str], Any]) -> Callable[[Snapshot, File, str], None]:
    def put(into: Snapshot, file: File, text: str) -> None:
        _list(into, kind).extend(parse(text, file.where))

    return put


def _keep(kind: str) -> Callable[[Snapshot, File, str], None]:
    def put(into: Snapshot, file: File, text: str) -> None:
        into.outputs.setdefault(kind, []).append(TextFile(file.name, text, file.where))

    return put


def _modules(into: Snapshot, file: File, text: str) -> None:
    into.modules = (into.modules or {}) | {
        line.split()[0]: file.where for line in text.splitlines() if len(line.split()) > 1 and line.split()[1].isdigit()
    }


_LS = re.compile(r"^([-dlcbps])([-rwxsStT]{9})\S*\s+\d+\s+\S+\s+\S+\s+(\d+)\s+(.+)$")


def _listing(into: Snapshot, file: File, text: str) -> None:
    """`ls -l` of the plugin directory; of another directory it is only kept."""
    found = []
    for line in text.splitlines():
        row = _LS.match(line)
        if not row:
            continue
        kind, mode, size, rest = row.groups()
        words = rest.split(" -> ")[0].split()
        if words and words[-1] not in (".", ".."):
            target = rest.split(" -> ")[1].strip() if " -> " in rest else ""
            found.append(Program(words[-1], int(size), "x" in mode, kind in "-l", target, None, file.where))
    if re.search(r"cni|bin|plugin", file.path) and not re.search(r"net\.d|flannel-ls", file.path):
        dangling = set(re.findall(r"^(\S+): dangling$", text, re.MULTILINE))
        found = [replace(one, dangling=one.name in dangling) if "dangling:" in text else one for one in found]
        _list(into, "cni_programs").extend(found)
    else:
        _keep("listing")(into, file, text)


#: What a text looks like → what is done with it; the first that matches. Order matters: the telling ones come first.
_TEXTS: tuple[tuple[re.Pattern[str], Callable[[Snapshot, File, str], None]], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), put)
    for pattern, put in (
        (r"^\s*(export )?FLANNEL_[A-Z0-9_]+=", _subnet_env),
        (r"^cpu=\d+\s+found=", _keep("conntrack-stats")),
        (
            r"^(?:ipv[46]\s+\d+\s+)?(?:tcp|udp|icmp|sctp|unknown)\S*\s+\d+ .*src=.*src=",
            _extend("flows", sockets.flows_text),
        ),
        (r"^inotify wd:", _keep("fdinfo")),
        (r"^Features for |^tx-checksum(?:ming|-ip-generic):", _keep("ethtool")),
        (r"\A(?:pid \d+: \S+.*\n)+\Z", _keep("processes")),
        (r"\ALinux \d\S+\s*\Z", _keep("kernel")),
        (r"^\s*File: .*\n(?:.*\n)*?.*(?:Birth|Modify):", _keep("stat")),
        (r"^(?:ActiveEnterTimestamp|ExecMainStartTimestamp)=", _keep("unit-start")),
        (r"^(?:# )?CONFIG_[A-Z0-9_]+(?:=| is not set)", _keep("kernel-config")),
        (r"^[IWEF]\d{4} \d\d:\d\d:\d\d|^time=\S+ level=|^\{\"level\"", _keep("log")),
        (r"martian source|nf_conntrack: .*table full|^.*\bIN=\S* OUT=\S* .*SRC=|ll header:", _keep("kernel-log")),
        (r"^LAST SEEN\s|Failed to create pod sandbox|^\S+\s+Warning\s+\S+", _keep("events")),
        (r"cannot access ['\"‘]?/\S+?['\"’]?: No such file", _keep("missing")),
        (r"^(?:total \d+|[-dl][-rwxsStT]{9}\S*\s+\d+\s)", _listing),
        (r"^\d+: [^\s:]+: <[A-Z_,-]*>", _links_and_addresses),
        (r"^\d+:\s+(?:not )?from ", _extend("policy_rules", routes.rules_text)),
        (r"^(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2} .*(?:self|dst|dev|master)", _extend("fdb", routes.fdb_text)),
        (
            r"^\S*[.:]\S+ (?:dev \S+ +)?(?:lladdr |\s*FAILED|\s*INCOMPLETE)",
            _extend("neighbours", routes.neighbours_text),
        ),
        (
            r"^(?:default|(?:local |broadcast |unreachable |blackhole )?[0-9a-f.:]+(?:/\d+)?) .*dev \S",
            _extend("routes", routes.routes_text),
        ),
        (
            r"^(?:State|Netid)\s+.*Local Address|users:\(\(|^(?:tcp|udp)\s+(?:LISTEN|UNCONN|ESTAB)",
            _extend("sockets", sockets.sockets_text),
        ),
        (r"^\S+\s+(?:UP|DOWN|UNKNOWN)\s+\d\S*/\d+", _extend("addresses", links.addresses_text)),
        (
            r"^(?:sysctl: cannot stat|/?(?:proc/sys/)?(?:net|kernel|fs|vm)[./]\S+\s*=)",
            _extend("sysctls", sockets.sysctls_text),
        ),
        (r"^Module\s+Size\s+Used by|\A(?:\w+\s+\d+\s+\d+.*\n?)+\Z", _modules),
        (r"^\s*--[a-z][\w-]+", _keep("flags")),
    )
)


def mtu_tables(text: str, where: str) -> list[tuple[str, list[Link], int]]:
    """Per node of a table of MTUs: its name, its devices, and FLANNEL_MTU (0 where it is not in the table)."""
    found = []
    for node, table in json.loads(text).items():
        devices = [Link(name, number_of(table, name), where=where) for name in table if not name.isupper()]
        devices = [link for link in devices if "_" not in link.name or not link.name.split("_")[0].isupper()]
        found.append((str(node), devices, number_of(table, "FLANNEL_MTU")))
    return found
