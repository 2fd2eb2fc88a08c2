"""The rules for objects from files, as text: no root, no cluster, nothing touched.

The text is what a first sync would hand to iptables-restore or nft on a node without any rules: all of them. It is what a test loads into an empty namespace, and what a person reads before a change.

Files hold API objects as `kubectl get … -o yaml` writes them: one document each, or Lists. Kinds that kube-proxy does
not read are skipped. A malformed object costs only itself and is named on standard error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from podwire.errors import UsageError
from podwire.kube.kinds import NODES
from podwire.kubeproxy import iptables_plan as plan
from podwire.kubeproxy.changes import Batch
from podwire.kubeproxy.iptables import translate
from podwire.kubeproxy.iptables_sync import LARGE_CLUSTER_ENDPOINTS
from podwire.kubeproxy.layout import EMPTY
from podwire.kubeproxy.nftables_sync import NftablesSync
from podwire.kubeproxy.objects import ENDPOINT_SLICES, SERVICE_CIDRS, SERVICES
from podwire.kubeproxy.settings import resolve
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from podwire.kube.objects import Node
    from podwire.kubeproxy.config import Config
    from podwire.kubeproxy.family import Family
    from podwire.kubeproxy.settings import Settings


class Objects:
    """Services, slices and Nodes of some files; `skipped` says what could not be read."""

    def __init__(self) -> None:
        self.batch = Batch()
        self.nodes: dict[str, Node] = {}
        self.service_cidrs: list[str] = []
        self.skipped: list[str] = []

    def add(self, value: dict[str, Any]) -> None:
        """Take over one decoded object, or the items of a List."""
        kind = value.get("kind")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(value.get("items"), list):
            for item in value["items"]:
                self.add({"kind": kind.removesuffix("List"), **item})
            return
        try:
            if kind == "Service":
                service = SERVICES.convert(value)
                self.batch.services[service.key] = service
            elif kind == "EndpointSlice":
                piece = ENDPOINT_SLICES.convert(value)
                self.batch.slices[piece.key] = piece
            elif kind == "Node":
                node = NODES.convert(value)
                self.nodes[node.key] = node
            elif kind == "ServiceCIDR":
                self.service_cidrs += SERVICE_CIDRS.convert(value).spec.cidrs
        except msgspec.ValidationError as error:
            name = (value.get("metadata") or {}).get("name", "without a name")
            self.skipped.append(f"{kind} {name}: {error}")


def load(paths: Iterable[str]) -> Objects:
    """Read the files. Raises UsageError."""
    import yaml

    objects = Objects()
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                for value in yaml.load_all(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
                    if isinstance(value, dict):
                        objects.add(value)
        except OSError as error:
            raise UsageError("reading the objects", path, error.strerror or str(error)) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UsageError("reading the objects", path, " ".join(str(error).split())) from None
    return objects


class _Paper:
    """An nftables without a kernel that keeps what it is told."""

    def __init__(self) -> None:
        self.text = ""

    def apply(self, text: str) -> None:
        self.text += text

    def chain_uses(self, _table: str) -> None:
        return None

    def element_count(self, _table: str, _name: str) -> int:
        return 0

    def timed_elements(self, _table: str, _prefix: str) -> dict[str, list[tuple[str, int]]]:
        return {}


def _nftables(state: State, settings: Settings) -> str:
    paper = _Paper()
    NftablesSync(state, paper, Trace(lambda: 0)).sync(settings, ())
    return paper.text


def _iptables(state: State, settings: Settings, batch: int | None) -> Iterator[str]:
    views = [view for name in state.services() for view in state.views(name, settings.zone)]
    comments = sum(view.total for view in views) <= LARGE_CLUSTER_ENDPOINTS
    ports = (plan.record(translate(view, settings, endpoint_comments=comments)) for view in views)
    return plan.full(ports, settings, EMPTY, batch)


def render(objects: Objects, config: Config, family: Family, node: str, interface_ips: frozenset[str]) -> str:
    """What iptables-restore, ip6tables-restore or nft would read on `node` for this family; see `texts`."""
    return "".join(texts(objects, config, family, node, interface_ips))


def texts(
    objects: Objects,
    config: Config,
    family: Family,
    node: str,
    interface_ips: frozenset[str],
    *,
    batch: int | None = None,
    forward_invalid: bool = False,
) -> Iterable[str]:
    """The same in pieces of about `batch` chains.

    `interface_ips` are the addresses of the machine this runs on. They count for --nodeport-addresses if the node's own is
    among them; else only the Node's addresses are known, and prefixes stand for the rest.
    """
    found = objects.nodes.get(node)
    own = frozenset(entry.address for entry in found.status.addresses) if found else frozenset()
    on_node = bool(own & interface_ips)
    ips = interface_ips if on_node else own
    cidrs = objects.service_cidrs
    settings = resolve(
        config, family, node, found, ips, service_cidrs=cidrs, on_node=on_node, forward_invalid=forward_invalid
    )
    state = State(family, node)
    state.apply(objects.batch)
    return [_nftables(state, settings)] if config.mode == "nftables" else _iptables(state, settings, batch)
