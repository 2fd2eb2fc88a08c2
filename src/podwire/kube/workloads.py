"""Deployments and ReplicaSets; Events and Leases.

A pod template is plain JSON here: it is copied into what is made from it unchanged, so nothing that a struct does not know
is lost on the way.
"""

from __future__ import annotations

from typing import Any

import msgspec

from podwire.kube.meta import Condition, LabelSelector, Lenient, Object, ObjectReference, OrNull, Part


class DeploymentStrategy(Part, frozen=True):
    """type is RollingUpdate or Recreate; rolling_update holds maxSurge and maxUnavailable, numbers or percentages."""

    type: str = "RollingUpdate"
    rolling_update: dict[str, int | str] | None = None


class DeploymentSpec(Part, frozen=True):
    """`template` is plain JSON: it is copied into ReplicaSets and pods unchanged."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: dict[str, Any] = msgspec.field(default_factory=dict)
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(Lenient, frozen=True):
    """As `kubectl rollout status` reads it."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    collision_count: int | None = None
    conditions: OrNull[tuple[Condition, ...]] = ()

    _or_null = ("conditions",)


class Deployment(Object, frozen=True):
    """apps/v1 Deployment."""

    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    api_version = "apps/v1"
    kind = "Deployment"


class ReplicaSetSpec(Part, frozen=True):
    """`template` is plain JSON, as in DeploymentSpec."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: dict[str, Any] = msgspec.field(default_factory=dict)
    min_ready_seconds: int = 0


class ReplicaSetStatus(Lenient, frozen=True):
    """Counts of pods that match the selector."""

    observed_generation: int = 0
    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: OrNull[tuple[Condition, ...]] = ()

    _or_null = ("conditions",)


class ReplicaSet(Object, frozen=True):
    """apps/v1 ReplicaSet."""

    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()

    api_version = "apps/v1"
    kind = "ReplicaSet"


class EventSource(Part, frozen=True):
    """Which component, on which host."""

    component: str = ""
    host: str = ""


class Event(Object, frozen=True):
    """v1 Event; type is Normal or Warning."""

    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    source: EventSource = EventSource()
    reporting_component: str = ""

    api_version = "v1"
    kind = "Event"


class LeaseSpec(Part, frozen=True):
    """Times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None


class Lease(Object, frozen=True):
    """coordination.k8s.io/v1 Lease; in kube-node-lease, one a node: its heartbeat."""

    spec: LeaseSpec = LeaseSpec()

    api_version = "coordination.k8s.io/v1"
    kind = "Lease"
