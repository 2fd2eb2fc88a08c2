"""Defaults of a pod spec, for Pods and for the templates of Deployments and ReplicaSets alike.

What the real API server fills in when a client leaves it out (kubernetes `pkg/apis/core/v1/defaults.go`), so that
`kubectl get -o yaml` shows it and `kubectl apply` finds no difference. In Go an unset text is "", so "" is unset here
too; structs that Go always writes (`resources: {}`, `securityContext: {}`) are written here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver.kinds.quantity import canonicalise

if TYPE_CHECKING:
    from collections.abc import Iterator

Spec = dict[str, Any]

DEFAULT_MODE = 0o644
"""Mode of the files of configMap, secret, downwardAPI and projected volumes."""


def fill(target: dict[str, Any], **values: Any) -> None:
    """Set the keys that are absent, null or ""."""
    for key, value in values.items():
        if target.get(key) in (None, ""):
            target[key] = value


def containers_of(spec: Spec) -> Iterator[dict[str, Any]]:
    """All containers: init, ordinary and ephemeral ones."""
    for key in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(key) or ()


def set_defaults(spec: Spec, kind: str) -> None:
    """Fill a pod spec in place; `kind` names the object in a refusal of a quantity."""
    fill(
        spec,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        schedulerName="default-scheduler",
        securityContext={},
        terminationGracePeriodSeconds=30,
    )
    account = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if account:  # the older name is kept equal, as the conversion to v1 does
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in containers_of(spec):
        _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)
    canonicalise(resource_lists(spec), kind)


def resource_lists(spec: Spec) -> Iterator[dict[str, Any]]:
    """Every map of quantities in a pod spec."""
    holders = [spec.get("resources"), *(container.get("resources") for container in containers_of(spec))]
    for holder in holders:
        for key in ("limits", "requests"):
            yield (holder or {}).get(key) or {}
    yield spec.get("overhead") or {}


def _container(container: dict[str, Any]) -> None:
    fill(
        container,
        resources={},
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        imagePullPolicy="Always" if image_tag(container.get("image") or "") == "latest" else "IfNotPresent",
    )
    for port in container.get("ports") or ():
        fill(port, protocol="TCP")
    for variable in container.get("env") or ():
        if field := (variable.get("valueFrom") or {}).get("fieldRef"):
            fill(field, apiVersion="v1")
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := container.get(key):
            _probe(probe)
    for handler in (container.get("lifecycle") or {}).values():
        _handler(handler)


def image_tag(image: str) -> str:
    """The tag an image reference asks for: `latest` when there is neither tag nor digest."""
    if "@" in image:
        return ""
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return tag if colon else "latest"


def _probe(probe: dict[str, Any]) -> None:
    for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe[key] = probe.get(key) or value  # 0 is unset too
    _handler(probe)
    if (grpc := probe.get("grpc")) is not None and grpc.get("service") is None:
        grpc["service"] = ""


def _handler(handler: Any) -> None:
    if isinstance(handler, dict) and (get := handler.get("httpGet")) is not None:
        fill(get, path="/", scheme="HTTP")


def _volume(volume: dict[str, Any]) -> None:
    if not any(value is not None for key, value in volume.items() if key != "name"):
        volume["emptyDir"] = {}
    for key in ("configMap", "secret", "downwardAPI", "projected"):
        if (source := volume.get(key)) is not None and source.get("defaultMode") is None:
            source["defaultMode"] = DEFAULT_MODE
    if (host_path := volume.get("hostPath")) is not None and host_path.get("type") is None:
        host_path["type"] = ""
    if image := volume.get("image"):
        latest = image_tag(image.get("reference") or "") == "latest"
        fill(image, pullPolicy="Always" if latest else "IfNotPresent")
    projections = (volume.get("projected") or {}).get("sources") or []
    for projection in [volume, *projections]:
        for item in (projection.get("downwardAPI") or {}).get("items") or ():
            if field := item.get("fieldRef"):
                fill(field, apiVersion="v1")
        token = projection.get("serviceAccountToken")
        if token is not None and token.get("expirationSeconds") is None:
            token["expirationSeconds"] = 3600


def set_pod_defaults(spec: Spec) -> None:
    """What only a Pod gets, not a template: requests from limits, Service links, host ports under hostNetwork."""
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        resources = container["resources"]
        if limits := resources.get("limits"):
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port["hostPort"] = port.get("hostPort") or port.get("containerPort")
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True
