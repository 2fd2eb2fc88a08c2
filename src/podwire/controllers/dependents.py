"""What the garbage collector does about one object. Pure: the object, what became of its owners → a Verdict.

The rules of Kubernetes' garbage collector (attemptToDeleteItem), in a table:

    an owner lives                          → keep; strike out the owner references that lead nowhere
    all owners gone                         → delete, in the background
    all owners gone or being deleted in the
      foreground (some wait for dependents)  → delete; in the foreground if it has dependents of its own

An owner "lives" if the API has an object of that kind, name and uid. Of an object of another uid under that name it is not known
whether it ever was the owner: it was not, uids are never given twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from podwire.kube.meta import Object, OwnerReference

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Fate(NamedTuple):
    """What became of one owner: `lives`, `waits` (being deleted in the foreground), `gone`, or `unknown` (a kind we lack)."""

    owner: OwnerReference
    state: str


class Verdict(NamedTuple):
    """`action` is keep, strike (the uids in `strike`) or delete (with `propagation`)."""

    action: str
    strike: tuple[str, ...] = ()
    propagation: str = "Background"


def judge(obj: Object, fates: list[Fate], *, has_dependents: bool) -> Verdict:
    """What to do about `obj`."""
    if not fates or obj.metadata.deletion_timestamp is not None:
        return Verdict("keep")
    states = {fate.state for fate in fates}
    if states & {"lives", "unknown"}:
        dead = tuple(fate.owner.uid for fate in fates if fate.state in ("gone", "waits"))
        # While some owner's fate cannot be looked up nothing is certain enough to change the object.
        return Verdict("strike", dead) if dead and "unknown" not in states else Verdict("keep")
    if "waits" in states and has_dependents:
        return Verdict("delete", propagation="Foreground")
    finalizers = obj.metadata.finalizers
    if ORPHAN in finalizers:
        return Verdict("delete", propagation="Orphan")
    return Verdict("delete", propagation="Foreground" if FOREGROUND in finalizers else "Background")


def waits_for_dependents(obj: Object) -> bool:
    """Whether it is being deleted in the foreground."""
    return obj.metadata.deletion_timestamp is not None and FOREGROUND in obj.metadata.finalizers


def orphans_dependents(obj: Object) -> bool:
    """Whether it is being deleted and leaves its dependents behind."""
    return obj.metadata.deletion_timestamp is not None and ORPHAN in obj.metadata.finalizers
