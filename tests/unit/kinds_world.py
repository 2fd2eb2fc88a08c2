"""A server without HTTP for the tests of kinds: the real store, pipeline and schemas; clock and uids are predictable."""

from __future__ import annotations

import copy
import functools
import itertools
import uuid

import pytest
import yaml

from podwire.apiserver import deletion, kinds, writes
from podwire.apiserver.resource import Flags
from podwire.apiserver.schema import Schemas, check
from podwire.apiserver.status import StatusError
from podwire.apiserver.store import Store, decode
from podwire.apiserver.work import Work, World

NOW = 1_800_000_000.0
STAMP = "2027-01-15T08:00:00Z"


@functools.cache
def schemas() -> Schemas:
    return Schemas(kinds.registry().resources)


class Cluster:
    """create, update, delete and read as a client would, each in a transaction of its own."""

    def __init__(self, ranges: tuple[str, ...] = ("10.96.0.0/16",), ports: range = range(30000, 32768)) -> None:
        self.registry = kinds.registry()
        self.store = Store(":memory:")
        counter = itertools.count(1)
        flags = Flags(service_ranges=ranges, node_ports=ports)
        self.world = World(self.registry, flags, lambda: NOW, lambda: str(uuid.UUID(int=next(counter) * 7919)))
        self.warnings: list[str] = []
        for name in ("default", "kube-system"):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})

    def resource(self, obj: dict):
        group, _, version = obj["apiVersion"].rpartition("/")
        return self.registry.by_kind(group, version, obj["kind"])

    def shaped(self, obj: dict) -> dict:
        resource, obj = self.resource(obj), copy.deepcopy(obj)
        unknown = check(obj, schemas().of(resource.group, resource.version, resource.kind), resource)
        assert unknown == []
        return obj

    def run(self, work):
        self.store.begin()
        try:
            with self.store.transaction(NOW) as transaction:
                context = Work(self.world, transaction)
                answer = work(context)
                self.warnings = context.warnings
        except BaseException:
            self.store.rollback()
            raise
        self.store.commit()
        return decode(answer) if isinstance(answer, bytes) else answer

    def create(self, obj: dict | str) -> dict:
        obj = yaml.safe_load(obj) if isinstance(obj, str) else obj
        resource = self.resource(obj)
        namespace = obj["metadata"].get("namespace", "default") if resource.namespaced else ""
        return self.run(lambda work: writes.create(work, resource, namespace, self.shaped(obj)))

    def update(self, obj: dict, subresource: str = "") -> dict:
        resource, metadata = self.resource(obj), obj["metadata"]
        namespace = metadata.get("namespace", "default") if resource.namespaced else ""
        shaped = self.shaped(obj)
        change = functools.partial(writes.update, subresource=subresource)
        return self.run(lambda work: change(work, resource, namespace, metadata["name"], lambda _: shaped))

    def change(self, obj: dict, **spec) -> dict:
        """An update of some fields of the spec; None takes a field away."""
        new = copy.deepcopy(obj)
        for key, value in spec.items():
            new["spec"].pop(key, None) if value is None else new["spec"].__setitem__(key, value)
        return self.update(new)

    def delete(self, obj: dict, grace: int | None = None):
        resource, metadata = self.resource(obj), obj["metadata"]
        options = deletion.Options(grace)
        namespace = metadata.get("namespace", "")
        return self.run(lambda work: deletion.delete(work, resource, namespace, metadata["name"], options))

    def get(self, obj: dict) -> dict | None:
        resource, metadata = self.resource(obj), obj["metadata"]
        return self.run(lambda work: work.get(resource, metadata.get("namespace", ""), metadata["name"]))

    def row(self, obj: dict) -> list:
        resource = self.resource(obj)
        cells = self.run(lambda work: resource.strategy.row(obj, work.now))
        assert len(cells) == len(resource.columns)
        return cells

    def refused(self, obj: dict | str, code: int = 422) -> list[str]:
        """The causes of a refused create, `path: message`."""
        with pytest.raises(StatusError) as refusal:
            self.create(obj)
        return causes(refusal.value, code)

    def refused_update(self, obj: dict, subresource: str = "", code: int = 422) -> list[str]:
        with pytest.raises(StatusError) as refusal:
            self.update(obj, subresource)
        return causes(refusal.value, code)


def causes(refusal: StatusError, code: int) -> list[str]:
    assert refusal.code == code, refusal.message
    found = (refusal.details or {}).get("causes") or []
    return [f"{cause['field']}: {cause['message']}" for cause in found if "field" in cause] or [refusal.message]


def service(name: str = "web", **spec) -> dict:
    spec.setdefault("ports", [{"port": 80}])
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def pod(name: str = "p", **spec) -> dict:
    spec.setdefault("containers", [{"name": "c", "image": "nginx"}])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def deployment(name: str = "web", **spec) -> dict:
    spec.setdefault("selector", {"matchLabels": {"app": "web"}})
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1.27"}]}}
    spec.setdefault("template", template)
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
