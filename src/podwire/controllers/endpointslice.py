"""The EndpointSlice controller: every Service with a selector has EndpointSlices that show its pods.

A pod's change is in the slices as soon as the API can take it: there is no batching delay, and the work queue folds what
comes while a Service is being worked on. Slices of other makers (another managed-by label) are never touched, and neither
are Services without selector.

Slices have names the server makes up (`web-x7x2k`), so a slice that was made but is not shown by the informer yet would be
made twice; `expectations` lays it over the informer's view. Updates carry the resourceVersion and are refused when stale.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from podwire.controllers import endpoints
from podwire.controllers.controller import Context, Controller
from podwire.controllers.expectations import Expectations
from podwire.errors import ApiConflict, ApiError, ApiNotFound
from podwire.kube.answers import TERMINATING
from podwire.kube.kinds import ENDPOINT_SLICES, NODES, PODS, SERVICES
from podwire.kube.times import rfc3339_micro

if TYPE_CHECKING:
    from podwire.kube.objects import EndpointSlice, Node, Pod, Service

log = logging.getLogger("podwire.controllers")


class EndpointSlices(Controller):
    """The controller; keys are Services."""

    name = "endpointslice"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._services = context.informer(SERVICES)
        self._pods = context.informer(PODS)
        self._nodes = context.informer(NODES)
        self._slices = context.informer(ENDPOINT_SLICES)
        self._events = context.recorder("endpoint-slice-controller")
        self._written: Expectations[EndpointSlice] = Expectations(context.clock)
        self._services.on_change(lambda key, _old, _new: self.queue.add(key))
        self._pods.on_change(self._pod_changed)
        self._slices.on_change(self._slice_changed)
        self._nodes.on_change(self._node_changed)

    def _pod_changed(self, _key: str, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _seen_by_services(old) == _seen_by_services(new):
            return
        for pod in (old, new):
            if pod is None or (pod is old and new is not None and old.metadata.labels == new.metadata.labels):
                continue
            labels = pod.metadata.labels
            for service in self._services.objects(pod.metadata.namespace):
                selector = service.spec.selector
                if selector and selector.items() <= labels.items():
                    self.queue.add(service.key)

    def _slice_changed(self, _key: str, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._written.observed(old, new)
        piece = new or old
        if piece is not None and endpoints.is_managed(piece) and piece.service:
            self.queue.add(f"{piece.metadata.namespace}/{piece.service}")

    def _node_changed(self, key: str, old: Node | None, new: Node | None) -> None:
        """Only a node's zone is in the slices."""
        zone = "topology.kubernetes.io/zone"
        if (old.metadata.labels.get(zone) if old else None) == (new.metadata.labels.get(zone) if new else None):
            return
        for pod in self._pods.objects():
            if pod.spec.node_name == key:
                self._pod_changed(pod.key, None, pod)

    def sync(self, key: str) -> None:
        """One Service."""
        namespace, _, name = key.partition("/")
        service = self._services.get(key)
        self._ask_about_overdue()
        shown = self._written.view(self._slices.objects(namespace), namespace)
        mine = [piece for piece in shown if piece.service == name and endpoints.is_managed(piece)]
        if service is None:
            for piece in mine:  # the garbage collector does it too; this is sooner
                self._delete(piece)
            return
        if not service.spec.selector or service.spec.type == "ExternalName":
            return
        selector = service.spec.selector
        chosen = [pod for pod in self._pods.objects(namespace) if selector.items() <= pod.metadata.labels.items()]
        wanted = endpoints.wishes(service, sorted(chosen, key=lambda pod: pod.key), self._nodes.get)
        changes = endpoints.reconcile(service, mine, wanted, rfc3339_micro(self.context.clock()))
        for change in changes:
            self._apply(service, change)

    def _apply(self, service: Service, change: endpoints.Change) -> None:
        old, body = change
        if body is None:
            assert old is not None
            self._delete(old)
            return
        try:
            if old is None:
                self._written.created(self.client.create(ENDPOINT_SLICES, body))
            else:
                self.client.replace(ENDPOINT_SLICES, body)
        except ApiNotFound:  # the slice, or the namespace with it
            return
        except ApiConflict:
            raise
        except ApiError as error:
            if error.reason == TERMINATING:
                return
            text = f"Error updating Endpoint Slices for Service {service.key}: {error.message}"
            self._events.event(service, "Warning", "FailedToUpdateEndpointSlices", text)
            raise
        log.debug("wrote slice", extra={"kv": {"service": service.key, "endpoints": len(body["endpoints"])}})

    def _delete(self, piece: EndpointSlice) -> None:
        meta = piece.metadata
        try:
            self.client.delete(ENDPOINT_SLICES, meta.name, meta.namespace, uid=meta.uid)
        except (ApiNotFound, ApiConflict):
            self._written.forget(piece)
            return
        self._written.deleted(piece)

    def _ask_about_overdue(self) -> None:
        for piece in self._written.overdue():
            try:
                live = self.client.get(ENDPOINT_SLICES, piece.metadata.name, piece.metadata.namespace)
            except ApiNotFound:
                live = None
            if live is None or live.metadata.uid != piece.metadata.uid:
                self._written.forget(piece)
            else:
                self._written.created(live)


def _seen_by_services(pod: Pod) -> tuple[object, ...]:
    """All of a pod that shows in a slice or decides in which it shows."""
    spec = pod.spec
    return (
        pod.metadata.uid,
        pod.metadata.labels,
        pod.addresses,
        pod.ready,
        pod.terminating,
        pod.finished,
        spec.node_name,
        spec.hostname,
        spec.subdomain,
    )
