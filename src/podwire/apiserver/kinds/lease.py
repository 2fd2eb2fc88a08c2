"""Lease (coordination.k8s.io/v1): a node's heartbeat, a leader's claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver.resource import AGE, NAME, Cause, Column, Resource, Strategy, age

if TYPE_CHECKING:
    from datetime import datetime

    from podwire.apiserver.resource import Context, Object


class LeaseStrategy(Strategy):
    """The rules of Leases."""

    def validate(self, obj: Object, old: Object | None, ctx: Context) -> list[Cause]:
        """A duration is positive, a count is not negative, a holder has a name."""
        spec = obj.get("spec") or {}
        causes = []
        duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
        if duration is not None and duration <= 0:
            causes.append(Cause.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        if transitions is not None and transitions < 0:
            causes.append(Cause.invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
        if spec.get("preferredHolder") and not spec.get("strategy"):
            detail = "may only be specified if `strategy` is defined"
            causes.append(Cause.forbidden("spec.preferredHolder", detail))
        return causes

    def row(self, obj: Object, now: datetime) -> list[Any]:
        """HOLDER AGE."""
        metadata = obj["metadata"]
        holder = (obj.get("spec") or {}).get("holderIdentity") or ""
        return [metadata["name"], holder, age(metadata.get("creationTimestamp"), now)]


RESOURCE = Resource(
    group="coordination.k8s.io",
    version="v1",
    kind="Lease",
    plural="leases",
    singular="lease",
    columns=(NAME, Column("Holder", description="Who holds it."), AGE),
    strategy=LeaseStrategy(),
)
