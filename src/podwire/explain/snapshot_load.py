"""Snapshots from what was named on a command line: bundles, archives, folders and bare files, of one node or of several.

A bundle is one node. Of bare files the folder tells the node (`node-a/ip-route.txt`), or the file's name does: `node-a-ip-link.txt`,
`routes-n1.txt` where a Node `n1` is in the input. Files that no node claims are shared by all: a list of Nodes, a `pods.txt`.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from podwire.errors import UsageError
from podwire.explain import snapshot_archive as archive
from podwire.explain.snapshot import Snapshot, TextFile, Unread, name_of
from podwire.explain.snapshot_files import File, add, mtu_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAX_FILE = 512 << 20

#: Folders that say what is in them, not of which node: copies of a node's tree, and a bundle's own.
_PLACES = re.compile(
    r"^(?:etc|var|run|opt|proc|sys|host|rules|net|cni|kube|runtime|logs|flannel|networks|results"
    r"|[\w.-]*net\.d|[\w.-]*(?:lib-cni|cni-bin)|lib-cni)$"
)
#: `node-a-ip-link.txt`: a node's name in front of what the file holds.
_LABELLED = re.compile(
    r"^(?P<label>(?:\d+[-_])?[A-Za-z][\w.-]*?)[-_.]"
    r"(?:ip-(?:link|addr|address|route|rule|neigh)s?|iptables(?:-save|-S|-L)?|nft(?:-list)?|bridge-fdb|sysctl|ss|conntrack"
    r"|subnet\.env|links?|addrs?|routes?|neigh|fdb)\b"
)


def load(paths: Sequence[str]) -> list[Snapshot]:
    """The nodes in what was named. Raises UsageError for what cannot be read at all."""
    if not paths:
        raise UsageError("nothing to read", hint="name a bundle, a folder or files")
    found: list[Snapshot] = []
    loose: list[File] = []
    folders = [path for path in paths if os.path.isdir(path)]
    for path in paths:
        files = _files(path, under=os.path.basename(os.path.normpath(path)) if len(folders) > 1 else "")
        manifest = archive.manifest_of(files)
        if manifest is not None:
            found.append(bundle(files, *manifest, origin=path))
        else:
            loose += files
    if loose or not found:
        found += from_files(loose, origin=", ".join(paths))
    return found


def bundle(files: Iterable[File], folder: str, manifest: dict[str, Any], origin: str, live: bool = False) -> Snapshot:
    """The node of a bundle; of a `live` one the evidence is named by what was read on the node alone."""
    into = Snapshot(label=str(manifest.get("node", "")), hostname=str(manifest.get("node", "")), origin=origin)
    parts = (
        [part for part in manifest.get("parts") or () if isinstance(part, dict)]
        if isinstance(manifest.get("parts"), list)
        else []
    )
    sources = {str(part.get("file")): str(part.get("read")) for part in parts if part.get("file") and part.get("read")}
    # What `bridge` says of ports completes what `ip` says of devices, not the other way round.
    for file in sorted(files, key=lambda file: file.name.startswith("bridge")):
        inner = file.path.removeprefix(folder)
        if inner == archive.MANIFEST:
            continue
        source = _source(sources, inner)
        where = source if live and source else f"{source} ({file.where})" if source else file.where
        add(into, replace(file, path=inner, where=where))
    for part in parts:
        if part.get("unread"):
            into.unread.append(Unread(str(part.get("file", "?")), str(part["unread"])))
    unread = {one.part for one in into.unread}
    into.live = live
    mark_empty(into, [str(part.get("file")) for part in parts if part.get("read") and part.get("file") not in unread])
    return into


def _source(sources: dict[str, str], inner: str) -> str:
    """What was read for a file of a bundle; a folder's entry ends in a slash and stands for all files in it."""
    if inner in sources:
        return sources[inner]
    for name, source in sources.items():
        if name.endswith("/") and inner.startswith(name):
            return f"{source.rstrip('/')}/{inner.removeprefix(name)}"
    return ""


#: A part of a bundle that was read and is empty leaves no file with anything in it: here is the list that is then empty, not unknown.
_EMPTY = {
    "cni/net.d/": "cni_files",
    "cni/lib/networks/": "reservations",
    "cni/lib/results/": "results",
    "cni/lib/flannel/": "scratch",
    "cni/bin.txt": "cni_programs",
    "net/conntrack.txt": "flows",
    "net/ss.txt": "sockets",
    "net/bridge-fdb.json": "fdb",
    "net/ip-neigh.json": "neighbours",
    "net/modules.txt": "modules",
    "runtime/crictl-pods.json": "sandboxes",
    "kube/pods.json": "pods",
}


def mark_empty(into: Snapshot, read: Iterable[str]) -> None:
    """Say of the parts that were read that they are empty where nothing came of them."""
    for file in read:
        kind = _EMPTY.get(file)
        if kind and getattr(into, kind) is None:
            setattr(into, kind, {} if kind == "modules" else [])


# -- bare files ---------------------------------------------------------------------------------------------------------


def _files(path: str, under: str = "") -> list[File]:
    try:
        if os.path.isdir(path):
            return _walk(path, under)
        if not os.path.exists(path):
            raise UsageError("reading", path, "there is no such file")
        if not os.path.isfile(path):
            raise UsageError("reading", path, "it is neither a file nor a folder")
        if archive.is_archive(path):
            return archive.read(path)
        return [_read(path, "/" + os.path.normpath(path).lstrip("./"))]  # absolute: its folder names no node
    except OSError as error:
        raise UsageError("reading", path, error.strerror or str(error)) from error


def _walk(root: str, under: str) -> list[File]:
    found = []
    for folder, inner, names in os.walk(root):
        inner.sort()
        for name in sorted(names):
            full = os.path.join(folder, name)
            if os.path.isfile(full) and not os.path.islink(full):
                relative = os.path.relpath(full, root).replace(os.sep, "/")
                found.append(_read(full, f"{under}/{relative}" if under else relative, relative))
        if len(found) > archive.MAX_FILES:
            raise UsageError("reading", root, f"there are more than {archive.MAX_FILES} files in it")
    return found


def _read(path: str, inner: str, shown: str = "") -> File:
    if os.path.getsize(path) > _MAX_FILE:
        raise UsageError("reading", path, f"it is longer than {_MAX_FILE >> 20} MiB")
    with open(path, "rb") as file:
        return File(inner, file.read(), shown or path)


def from_files(files: list[File], origin: str = "") -> list[Snapshot]:
    """The nodes of bare files."""
    shared = Snapshot()
    for file in files:
        if b"Node" in file.data and not _folder(file.path):
            add(shared, file)
    names = [name_of(node) for node in shared.nodes or ()]
    labels = {file.path: _label(file, names) for file in files}
    distinct = sorted({label for label in labels.values() if label})
    if not distinct:
        return _finished([_fill(files, "", "", origin)])
    if len(distinct) == 1:
        return _finished([_fill(files, distinct[0], distinct[0] if distinct[0] in names else "", origin)])
    groups = []
    for label in distinct:
        own = [file for file in files if labels[file.path] in (label, "")]
        groups.append(_fill(own, label, label if label in names else "", origin))
    return _finished(groups)


def _fill(files: list[File], label: str, hostname: str, origin: str) -> Snapshot:
    into = Snapshot(label=label, hostname=hostname, origin=origin)
    for file in sorted(files, key=lambda file: (file.path.count("/"), file.name.startswith("bridge"))):
        add(into, file)
    single = [file for file in files if file.name == "node.json"]
    if not into.hostname and single and into.nodes:
        # node.json beside other-nodes.json: the one named so is this node.
        into.hostname = next((name_of(node) for node in _nodes_of(single[0])), "")
    return into


def _nodes_of(file: File) -> list[dict[str, Any]]:
    alone = Snapshot()
    add(alone, file)
    return alone.nodes or []


def _folder(path: str) -> str:
    """The folders in front of the first one that says what is in it: 'node-a' of node-a/etc-cni-net.d/10-flannel.conflist."""
    parts = path.split("/")[:-1]
    for position, part in enumerate(parts):
        if _PLACES.match(part):
            return "/".join(parts[:position])
    return "/".join(parts)


def _label(file: File, names: list[str]) -> str:
    if not file.path.startswith("/"):
        folder = _folder(file.path)
        if folder or "/" in file.path:  # etc/cni/net.d/10-flannel.conflist is named after what is in it
            return folder
    labelled = _LABELLED.match(file.name)
    if labelled and (labelled["label"] in names or re.search(r"node|worker|master|host|vm|\bcp\b", labelled["label"])):
        return labelled["label"]
    stem = re.sub(r"\.\w+$", "", file.name)
    found = [name for name in names if name and re.search(rf"(?:^|[-_.]){re.escape(name)}(?:$|[-_.])", stem)]
    return max(found, key=len, default="")


def _finished(found: list[Snapshot]) -> list[Snapshot]:
    """Tables of several nodes' MTUs become nodes of their own, and words that were said of every node are said once."""
    more: list[Snapshot] = []
    tables: set[str] = set()
    for snapshot in found:
        for table in snapshot.output("mtu-table"):
            if table.where in tables:
                continue
            tables.add(table.where)
            for node, devices, mtu in mtu_tables(table.text, table.where):
                one = Snapshot(label=node, origin=table.where, links=devices)
                if mtu:
                    one.subnet_env = TextFile("subnet.env", f"FLANNEL_MTU={mtu}\n", table.where)
                more.append(one)
    said: set[str] = set()
    for snapshot in found:
        snapshot.warnings = [line for line in snapshot.warnings if line not in said]
        said.update(snapshot.warnings)
    return found + more
