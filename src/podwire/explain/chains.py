"""What a walk through rules gives: ways that came out at the end, and ways that ended inside with a verdict.

Both dialects walk with the same values, so that hooks can run either without knowing which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from podwire.explain.packet import Way

#: The kernel allows 16 jumps in nft and has no limit in legacy; a real ruleset has six.
DEEPEST = 64


class End(NamedTuple):
    """A way that ended. `verdict`: accept, drop, reject, unknown; `detail` says more (the ICMP answer, why it is not known)."""

    verdict: str
    way: Way
    detail: str = ""


class Walked(NamedTuple):
    """`through` go on behind the chain; `ended` do not."""

    through: list[Way]
    ended: list[End]
