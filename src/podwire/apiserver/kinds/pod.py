"""Pod (core/v1).

Beside defaults and checks a Pod gets on create what the admission plugins of a real cluster give it, because clients
show it: serviceAccountName `default`, priority 0, the two 300-second tolerations. The token volume is not among them:
there are no tokens. phase begins as Pending, qosClass is worked out once. Binding sets `spec.nodeName`, once.

A Pod that a node runs is only marked by a delete and removed by its kubelet; one that has no node, or has ended, goes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats, status
from podwire.apiserver.kinds import podchecks, podspec
from podwire.apiserver.kinds.podstatus import Summary
from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object

TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TOLERATION_SECONDS = 300

_COLUMNS = (
    NAME,
    Column("Ready", description="The aggregate readiness state of this pod for accepting traffic."),
    Column("Status", description="The aggregate status of the containers in this pod."),
    Column("Restarts", description="How often containers were restarted, and when the last time."),
    AGE,
    Column("IP", priority=1, description="The pod's address."),
    Column("Node", priority=1, description="The node the pod is bound to."),
    Column("Nominated Node", priority=1, description="Where the pod may go once room is made there."),
    Column("Readiness Gates", priority=1, description="How many of the extra conditions for readiness hold."),
)


class PodStrategy(Strategy):
    """The rules of Pods."""

    tracks_generation = True

    def defaults(self, obj: Object) -> None:
        """The pod spec's defaults, and status.podIP beside podIPs."""
        spec = obj.setdefault("spec", {})
        podspec.set_defaults(spec, "Pod")
        podspec.set_pod_defaults(spec)
        mirror(obj.get("status") or {}, "podIP", "podIPs")
        mirror(obj.get("status") or {}, "hostIP", "hostIPs")

    def prepare_create(self, obj: Object, ctx: Context) -> None:
        """A fresh status, and what admission adds."""
        spec = obj["spec"]
        obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
        _account(obj, ctx)
        spec.setdefault("priority", 0)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        tolerations = spec.get("tolerations") or []
        for key in TOLERATED:
            if not any(_tolerates(toleration, key) for toleration in tolerations):
                added = {"key": key, "operator": "Exists", "effect": "NoExecute"}
                tolerations.append({**added, "tolerationSeconds": TOLERATION_SECONDS})
        spec["tolerations"] = tolerations

    def prepare_update(self, new: Object, old: Object, subresource: str, ctx: Context) -> None:
        """Binding waits for scheduling gates. Status: qosClass stays where it is not sent."""
        if subresource == "binding" and old["spec"].get("schedulingGates"):
            name = old["metadata"]["name"]
            raise status.conflict(RESOURCE, name, f"pod {name} has non-empty .spec.schedulingGates")
        if subresource == "status" and "qosClass" in (old.get("status") or {}):
            new.setdefault("status", {}).setdefault("qosClass", old["status"]["qosClass"])

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """The spec; on update also what of it may change, and the status."""
        causes = podchecks.check_spec("spec", obj["spec"])
        for index, container in enumerate(obj["spec"].get("containers") or ()):
            image = container.get("image") or ""
            if image != image.strip():
                detail = "must not have leading or trailing whitespace"
                causes.append(Cause.invalid(f"spec.containers[{index}].image", image, detail))
        if old is None:
            if obj["spec"].get("ephemeralContainers"):
                causes.append(Cause.forbidden("spec.ephemeralContainers", "cannot be set on create"))
            return causes
        # A binding sets the node and says so in the status, which an ordinary update cannot touch.
        is_binding = bound(obj) and not bound(old) and obj.get("status") != old.get("status")
        if not is_binding:
            causes += podchecks.check_update(obj["spec"], old["spec"])
        return causes + _check_status(obj.get("status") or {}, old.get("status") or {})

    def grace_seconds(self, obj: Object, asked: int | None) -> int:
        """The pod's own grace period unless one is asked for; 0 when no kubelet has it or it has ended."""
        if not bound(obj) or (obj.get("status") or {}).get("phase") in {"Failed", "Succeeded"}:
            return 0
        seconds = obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked
        return 1 if seconds < 0 else int(seconds)

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """READY STATUS RESTARTS AGE; IP NODE NOMINATED-NODE READINESS-GATES."""
        metadata, spec, state = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
        summary = Summary(obj)
        addresses = state.get("podIPs") or [{"ip": state.get("podIP")}]
        return [
            metadata["name"],
            f"{summary.ready}/{summary.total}",
            summary.reason,
            summary.restarts_cell(now),
            age(metadata.get("creationTimestamp"), now),
            addresses[0].get("ip") or "<none>",
            spec.get("nodeName") or "<none>",
            state.get("nominatedNodeName") or "<none>",
            _gates(spec, state),
        ]

    def field(self, obj: Object, path: str) -> str:
        """spec.hostNetwork is a boolean that is false when absent."""
        return super().field(obj, path) or ("false" if path == "spec.hostNetwork" else "")


def bound(pod: Object) -> bool:
    """Whether a node has it."""
    return bool(pod["spec"].get("nodeName"))


def mirror(holder: dict[str, Any], single: str, many: str) -> None:
    """Keep `podIP` and `podIPs[0].ip` equal: whichever is sent fills the other, and podIP wins a disagreement."""
    if value := holder.get(single):
        if not holder.get(many) or holder[many][0].get("ip") != value:
            holder[many] = [{"ip": value}]
    elif holder.get(many):
        holder[single] = holder[many][0].get("ip", "")


def qos_class(spec: dict[str, Any]) -> str:
    """Guaranteed: limits for cpu and memory everywhere, equal to the requests. BestEffort: nothing anywhere."""
    resources = [container.get("resources") or {} for container in podspec.containers_of(spec)]
    pairs = [
        ((holder.get("requests") or {}).get(name), (holder.get("limits") or {}).get(name))
        for holder in resources
        for name in ("cpu", "memory")
    ]
    if not any(request or limit for request, limit in pairs):
        return "BestEffort"
    return "Guaranteed" if all(limit and request == limit for request, limit in pairs) else "Burstable"


def _account(pod: Object, ctx: Context) -> None:
    """`serviceAccountName` is `default`; another name must exist, as the ServiceAccount admission plugin demands."""
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    podspec.fill(spec, serviceAccountName="default", serviceAccount="default")
    name, accounts = spec["serviceAccountName"], ctx.lookup("", "v1", "serviceaccounts")
    if name == "default" or accounts is None or ctx.get(accounts, namespace, name) is not None:
        return
    why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
    raise status.forbidden(RESOURCE, pod["metadata"]["name"], why)


def _tolerates(toleration: dict[str, Any], key: str) -> bool:
    """Whether a toleration already speaks for a taint key with effect NoExecute."""
    return toleration.get("key") in (key, None, "") and toleration.get("effect") in ("NoExecute", None, "")


def _check_status(new: dict[str, Any], old: dict[str, Any]) -> list[Cause]:
    causes: list[Cause] = []
    for key in ("podIPs", "hostIPs"):
        entries = new.get(key) or []
        for index, entry in enumerate(entries):
            ip = entry.get("ip", "")
            causes += [Cause.invalid(f"status.{key}[{index}]", ip, text) for text in formats.address(ip)]
        families = [formats.family(entry.get("ip", "")) for entry in entries]
        if len(families) != len(set(families)):
            detail = "may specify no more than one IP for each IP family"
            causes.append(Cause.invalid(f"status.{key}", entries, detail))
    if old.get("qosClass") and new.get("qosClass") != old["qosClass"]:
        causes.append(Cause.invalid("status.qosClass", new.get("qosClass"), "field is immutable"))
    return causes


def _gates(spec: dict[str, Any], state: dict[str, Any]) -> str:
    """How many of the readiness gates hold."""
    gates = spec.get("readinessGates") or []
    if not gates:
        return "<none>"
    holding = {c.get("type") for c in state.get("conditions") or () if c.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in holding for gate in gates)}/{len(gates)}"


RESOURCE = Resource(
    group="",
    version="v1",
    kind="Pod",
    plural="pods",
    singular="pod",
    short_names=("po",),
    categories=("all",),
    subresources=("status", "binding"),
    columns=_COLUMNS,
    selectable=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    strategy=PodStrategy(),
)
