"""Checks of what a CNI runtime needs besides the configuration: the programs, versions they agree on, a directory it still sees."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said
from podwire.explain.snapshot_words import texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Node


def look_versions(node: Node) -> Iterator[Said]:
    """The list's cniVersion and what each plugin said to CNI_COMMAND=VERSION; or what an event says about it."""
    winner = node.confdir.winner if node.confdir else None
    said = [
        (line.strip()[:300], text.where)
        for text in [*node.snapshot.output("events"), *node.snapshot.output("log")]
        for line in text.text.splitlines()
        if "incompatible CNI version" in line
    ]
    evidence = [Evidence(line, where) for line, where in dict(said).items()][:3]
    wanted = winner.network.cni_version or "0.1.0" if winner and winner.network else ""
    common: set[str] | None = None
    for text in node.snapshot.output("plugin-version"):
        try:
            value = json.loads(text.text)
        except (ValueError, RecursionError):
            continue
        supported = (
            {str(one) for one in texts(value.get("supportedVersions")) if isinstance(one, str)}
            if isinstance(value, dict)
            else set()
        )
        common = supported if common is None else common & supported
        if wanted and supported and wanted not in supported:
            evidence.append(Evidence(f"it supports {', '.join(sorted(supported))}, not {wanted}", text.where))
    if not evidence:
        return
    if winner:
        evidence.append(Evidence(f'{winner.name} says "cniVersion": "{wanted}"', winner.file.where))
    best = (
        max(common, key=lambda one: [int(part) if part.isdigit() else 0 for part in one.split(".")]) if common else ""
    )
    yield Said(
        evidence,
        [
            f'"cniVersion": "{best}" is the highest that all of them support'
            if best
            else 'the highest "cniVersion" that all plugins of the chain support (CNI_COMMAND=VERSION)',
            "or install newer plugins",
        ],
    )


def look_programs(node: Node) -> Iterator[Said]:
    """Every program of the chain in force, and loopback, at once."""
    conf, programs = node.confdir, node.snapshot.cni_programs
    if conf is None or conf.winner is None or programs is None:
        return
    found = {one.name: one for one in programs}
    where = programs[0].where if programs else "ls -l /opt/cni/bin"
    missing, broken = [], []
    for name in dict.fromkeys(["loopback", *conf.winner.programs]):
        one = found.get(name)
        if one is None:
            # containerd and CRI-O make lo themselves since 2023; the plugin's absence alone breaks nothing there.
            if name != "loopback":
                missing.append(name)
        elif one.target and one.dangling:
            broken.append(f"{name} is a link to {one.target}, which is not there")
        elif one.target and one.dangling is None:
            broken.append(f"{name} is a link to {one.target}: this input does not tell whether that exists")
        elif one.size == 0:
            broken.append(f"{name} is empty" + ("" if one.executable else " and not executable"))
        elif not one.executable or not one.regular:
            broken.append(f"{name} is {'not executable' if one.regular else 'no plain file'}")
    certain = [text for text in broken if "does not tell" not in text]
    if not missing and not certain:
        return
    evidence = [
        Evidence(
            f"the chain of {conf.winner.name} needs {', '.join(conf.winner.programs)}, and the runtime loopback",
            conf.winner.file.where,
        )
    ]
    evidence += [Evidence(f"{name} is missing", where) for name in missing]
    evidence += [Evidence(text, where) for text in broken]
    why = ""
    if "portmap" in missing and conf.winner.programs.index("portmap") > 0:
        why = (
            "The plugins before portmap succeed, then portmap is not found; DEL runs in reverse order and stops at portmap too, so the address"
            ' leaks with each retry, until the range is full ("no IP addresses available").'
        )
    packages = (
        ["containernetworking/plugins (bridge, host-local, loopback, portmap, …)"]
        if set(missing) - {"flannel"} or broken
        else []
    )
    packages += (
        ["flannel's CNI plugin: flannel-io/cni-plugin, or flannel's image, which copies it"]
        if "flannel" in missing
        else []
    )
    yield Said(evidence, [f"install into /opt/cni/bin: {' and '.join(packages)}"], why=why)


def look_stale_watch(node: Node) -> Iterator[Said]:
    """The runtime says that there is no network although a good file is there."""
    winner = node.confdir.winner if node.confdir else None
    if winner is None or winner.loopback_only:
        return
    for info, where in node.snapshot.runtime_info:
        status = str(info.get("lastCNILoadStatus") or info.get("lastCNILoadStatus.default") or "")
        if "no network config found" not in status and "cni plugin not initialized" not in status:
            continue
        evidence = [
            Evidence(f"lastCNILoadStatus: {status}", where),
            Evidence(f"{winner.name} is a valid network", winner.file.where),
        ]
        evidence += _recreated(node)
        yield Said(evidence, ["systemctl restart containerd"])


def _recreated(node: Node) -> list[Evidence]:
    found = []
    for text in node.snapshot.output("stat"):
        if "net.d" not in text.text:
            continue
        birth = re.search(r"Birth: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", text.text)
        inode = re.search(r"Inode: (\d+)", text.text)
        for unit in node.snapshot.output("unit-start"):
            start = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", unit.text)
            if birth and start and _time(birth.group(1)) > _time(start.group(1)):
                found.append(
                    Evidence(
                        f"the directory was made {birth.group(1)}, the runtime was started {start.group(1)}",
                        f"{text.where}, {unit.where}",
                    )
                )
        for watch in node.snapshot.output("fdinfo"):
            inodes = [int(number, 16) for number in re.findall(r"inotify wd:\S+ ino:([0-9a-f]+)", watch.text)]
            if inode and inodes and int(inode.group(1)) not in inodes:
                found.append(
                    Evidence(
                        f"the runtime watches inode {', '.join(map(str, inodes))}; the directory's is {inode.group(1)}",
                        f"{watch.where}, {text.where}",
                    )
                )
    return found


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)


CHECKS = (
    Check(
        "cni-versions",
        "The configuration's CNI version and the plugins' do not fit",
        'Pods stay ContainerCreating: incompatible CNI versions; config is "1.0.0", plugin supports ["0.1.0" …].',
        "One version holds for the whole chain: each plugin of it must know it.",
        look_versions,
    ),
    Check(
        "plugin-missing",
        "Programs of the CNI chain are missing or broken",
        "Pods stay ContainerCreating: failed to find plugin in path [/opt/cni/bin], exec format error, permission denied.",
        "A chain runs one program after the other, and plugins run further ones. Each retry shows only the first that fails, so here are all.",
        look_programs,
    ),
    Check(
        "conf-dir-recreated",
        "The runtime watches a /etc/cni/net.d that is gone",
        'The node is NotReady with "cni plugin not initialized" although a good file is there.',
        "The directory was removed and made again after the runtime had started. Its inotify watch follows the old inode and never fires again.",
        look_stale_watch,
    ),
)
