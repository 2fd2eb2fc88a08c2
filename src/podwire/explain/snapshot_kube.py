"""Kubernetes objects from files: JSON and YAML of the API, lists, `kubectl get` tables.

YAML aliases are refused: no Kubernetes file needs them, and nested ones grow without bound.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from podwire.explain.snapshot import Sandbox, TextFile, name_of
from podwire.explain.snapshot_words import rows

if TYPE_CHECKING:
    from podwire.explain.snapshot import Object, Snapshot

#: Kind → the list of the snapshot that it goes to.
_LISTS = {"Node": "nodes", "Service": "services", "EndpointSlice": "slices", "Pod": "pods"}
_MAX_YAML = 16 << 20  # a reader of 1 MB/s must not be kept busy for minutes by one attachment


def add_object(into: Snapshot, value: Object, where: str) -> bool:
    """Put an API object, or each of a list, into the snapshot; whether it was one."""
    kind = value.get("kind")
    if isinstance(kind, str) and kind.endswith("List") and isinstance(value.get("items"), list):
        items = [{"kind": kind.removesuffix("List"), **item} for item in rows(value["items"])]
        if kind.removesuffix("List") in _LISTS:
            _items(into, _LISTS[kind.removesuffix("List")], where)
        for item in items:
            add_object(into, item, where)
        return True
    if kind == "Pod" and _is_static(value):
        into.objects.append((value, where))
    elif isinstance(kind, str) and kind in _LISTS:
        _items(into, _LISTS[kind], where).append(value)
    elif isinstance(kind, str) or isinstance(value.get("networking"), dict):
        into.objects.append((value, where))
        if kind == "ConfigMap":
            _net_conf(into, value, where)
    else:
        return False
    return True


def _is_static(pod: Object) -> bool:
    """Whether it is a manifest (of the controller manager, say) and not a pod that the API answered: it has no status."""
    spec = pod.get("spec")
    return "status" not in pod and isinstance(spec, dict) and "nodeName" not in spec


def _items(into: Snapshot, kind: str, where: str) -> list[Any]:
    found = getattr(into, kind)
    if found is None:
        found = []
        setattr(into, kind, found)
    places = into.where.setdefault(kind, where)
    if where not in places.split(", "):
        into.where[kind] = f"{places}, {where}"
    assert isinstance(found, list)
    return found


def _net_conf(into: Snapshot, value: Object, where: str) -> None:
    data = value.get("data")
    text = data.get("net-conf.json") if isinstance(data, dict) else None
    if isinstance(text, str):
        into.net_conf = TextFile("net-conf.json", text, f"{where}, ConfigMap {name_of(value)}")


def add_yaml(into: Snapshot, name: str, text: str, where: str) -> bool:
    """Read a YAML file of API objects; whether it was one."""
    if not (name.endswith((".yaml", ".yml")) or re.search(r"^(?:apiVersion|kind|networking):", text, re.MULTILINE)):
        return False
    if len(text) > _MAX_YAML:
        into.warnings.append(f"{where}: longer than {_MAX_YAML >> 20} MiB, YAML of that length is not read; use JSON")
        return True
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            into.warnings.append(f"{where}: YAML with aliases is not read")
            return True
        documents = [one for one in yaml.load_all(text, Loader=loader) if isinstance(one, dict)]
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = str(error).splitlines()
        into.warnings.append(f"{where}: broken YAML: {said[0] if said else type(error).__name__}")
        return True
    for one in documents:
        add_object(into, one, where)
    return bool(documents)


def add_table(into: Snapshot, name: str, text: str, where: str) -> bool:
    """Read the table that `kubectl get pods -o wide` or `kubectl get ds` printed; whether it was one."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and re.match(r"^(?:POD|CONTAINER) ID\s", lines[0]):
        return _sandbox_table(into, lines, where)
    if lines and all(re.fullmatch(r"[0-9a-f]{13}|[0-9a-f]{64}", line.strip()) for line in lines):
        _items(into, "sandboxes", where).extend(Sandbox(line.strip(), where=where) for line in lines)
        return True
    if not lines or not re.match(r"^(?:NAMESPACE\s+)?NAME\s", lines[0]):
        return False
    starts = [match.start() for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    titles = [lines[0][start:].split("  ")[0].strip() for start in starts]
    table = [_cells(line, starts, titles) for line in lines[1:]]
    if {"IP", "NODE"} <= set(titles):
        found = _items(into, "pods", where)
        found += [_pod(row) for row in table]
    elif {"DESIRED", "CURRENT"} <= set(titles):
        into.daemonsets = [
            *(into.daemonsets or []),
            *((row.get("NAMESPACE", ""), row.get("NAME", "")) for row in table),
        ]
        into.where["daemonsets"] = where
    else:
        into.outputs.setdefault("table", []).append(TextFile(name, text, where))
    return True


def _sandbox_table(into: Snapshot, lines: list[str], where: str) -> bool:
    """`crictl pods` and `docker ps` as tables: IDs are cut off, whoever compares them compares beginnings."""
    starts = [match.start() for match in re.finditer(r"\S+(?: \S+)*", lines[0])]
    titles = [lines[0][start:].split("  ")[0].strip() for start in starts]
    found = _items(into, "sandboxes", where)
    for line in lines[1:]:
        row = _cells(line, starts, titles)
        name = row.get("NAME") or row.get("NAMES", "")
        # dockershim: k8s_POD_<pod>_<namespace>_<uid>_<attempt>
        parts = name.split("_")
        if name.startswith("k8s_") and len(parts) > 3:
            if parts[1] != "POD":
                continue
            found.append(
                Sandbox(
                    line.split()[0], parts[3], parts[2], ready=row.get("STATUS", "Up").startswith("Up"), where=where
                )
            )
        elif "POD ID" in titles:
            state = row.get("STATE", "").upper()
            found.append(
                Sandbox(line.split()[0], row.get("NAMESPACE", ""), name, ready=state != "NOTREADY", where=where)
            )
    return True


def _cells(line: str, starts: list[int], titles: list[str]) -> dict[str, str]:
    ends = [*starts[1:], None]
    return {title: line[start:end].strip() for title, start, end in zip(titles, starts, ends, strict=True)}


def _pod(row: dict[str, str]) -> Object:
    ip = "" if row.get("IP") == "<none>" else row.get("IP", "")
    return {
        "kind": "Pod",
        "metadata": {"name": row.get("NAME", ""), "namespace": row.get("NAMESPACE", "default") or "default"},
        "spec": {"nodeName": row.get("NODE", "")},
        "status": {"podIP": ip, "podIPs": [{"ip": ip}] if ip else [], "phase": row.get("STATUS", "")},
    }
