"""How a pod got its address: every place that had a part in it, in the order of events, each with what was read there and where.

Node and podCIDR → subnet.env → the network that the runtime uses → what flannel delegated → host-local's reservation → the result that the
runtime kept → the veth pair and the bridge's port → the routes that lead to it. Nothing is taken for granted from an earlier step: where two
places disagree, the step says so; where a place was not read, it says why.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.errors import UsageError
from podwire.explain import pod_steps as steps
from podwire.explain.pod_steps import Pod, Step
from podwire.explain.snapshot import name_of, namespace_of, pod_cidrs
from podwire.explain.snapshot_words import inner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.snapshot import Object, Snapshot, TextFile


@dataclass(slots=True)
class Way:
    """The answer: a sentence, and the steps."""

    answer: str
    steps: list[Step]
    node: str
    ip: str


def explain(snapshots: Sequence[Snapshot], namespace: str, name: str) -> Way:
    """Follow the pod. Raises UsageError where no input knows it."""
    pod = _find(snapshots, namespace, name)
    way = [
        steps.the_pod(pod),
        steps.node(pod),
        steps.subnet_env(pod),
        steps.network(pod),
        steps.delegated(pod),
        steps.reservation(pod),
        steps.result(pod),
    ]
    way += [steps.veth(pod), steps.routes(pod), *steps.peers(pod, snapshots)]
    problems = [step for step in way if step.problem]
    answer = f"{namespace}/{name} has {pod.ip or 'no address'} on {pod.home.title}"
    cidr = next((one for one in pod_cidrs(pod.home.node or {}) if pod.ip and steps.lies_in(pod.ip, one)), "")
    if cidr:
        answer += (
            f": host-local took it from the node's podCIDR {cidr}"
            if steps.owner_file(pod)
            else f", of the node's podCIDR {cidr}"
        )
    if problems:
        answer += f"; but {problems[0].problem}"
    return Way(answer, way, pod.home.title, pod.ip)


def _find(snapshots: Sequence[Snapshot], namespace: str, name: str) -> Pod:
    item: Object | None = None
    for snapshot in snapshots:
        item = item or next(
            (one for one in snapshot.pods or () if (namespace_of(one) or "default", name_of(one)) == (namespace, name)),
            None,
        )
    bound = str(inner(item or {}, "spec").get("nodeName") or "")
    homes = [one for one in snapshots if bound and bound in (one.title, one.hostname, name_of(one.node or {}))]
    for snapshot in homes or snapshots:
        sandboxes = [one for one in snapshot.sandboxes or () if (one.namespace, one.name) == (namespace, name)]
        sandboxes.sort(key=lambda one: not one.ready)
        cached, file = _cached(snapshot, namespace, name, sandboxes[0].id if sandboxes else "")
        if not (homes or sandboxes or cached):
            continue
        pod = Pod(namespace, name, snapshot, item, sandboxes[0] if sandboxes else None, cached=cached, cache_file=file)
        status = inner(item or {}, "status")
        ips = [one.partition("/")[0] for one in steps.result_ips(cached.get("result"))]
        pod.ip = str(status.get("podIP") or "") or (ips[0] if ips else "")
        return pod
    if item is not None:
        raise UsageError(
            f"pod {namespace}/{name}",
            answer=f"it runs on {bound or 'no node yet'}, which is not in the input",
            hint=f"--node {bound}, or that node's bundle" if bound else "",
        )
    raise UsageError(
        f"pod {namespace}/{name}", answer="nothing in the input knows it: no Pod, no sandbox, no cached CNI result"
    )


def _cached(snapshot: Snapshot, namespace: str, name: str, container: str) -> tuple[dict[str, Any], TextFile | None]:
    """Libcni's cached result of the pod, by container ID or by the pod's name in cniArgs."""
    for file in snapshot.results or ():
        try:
            value = json.loads(file.text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        if container and container in file.name:
            return value, file
        listed = value.get("cniArgs")
        pairs = listed if isinstance(listed, list) else []
        arguments = {str(pair[0]): pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2}
        if not container and (arguments.get("K8S_POD_NAMESPACE"), arguments.get("K8S_POD_NAME")) == (namespace, name):
            return value, file
    return {}, None


def as_json(way: Way) -> dict[str, Any]:
    """The answer as JSON; the schema is in docs/explain-pod.md."""
    return {
        "answer": way.answer,
        "node": way.node,
        "ip": way.ip,
        "steps": [
            {
                "title": step.title,
                "said": step.said,
                "problem": step.problem,
                "read": [{"text": text, "where": where} for text, where in step.read],
            }
            for step in way.steps
        ],
    }


def as_text(way: Way) -> str:
    """The answer for a terminal."""
    lines = [way.answer]
    for number, step in enumerate(way.steps, 1):
        lines += ["", f"{number}. {step.title}: {step.said}"]
        lines += [f"     ! {step.problem}"] if step.problem else []
        lines += [
            f"     {text if len(text) <= 300 else text[:300] + ' …'}\n       from {where}" for text, where in step.read
        ]
    return "\n".join(lines)
