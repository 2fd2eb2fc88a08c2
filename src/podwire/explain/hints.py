"""Where a DNAT goes when the rule's target cannot be read, or its chain was not pasted: what kube-proxy left beside it.

Releases since 1.24 write `namespace/name:port -> 10.244.1.4:80` into the comment of the rule that leads to an endpoint, and the
chain's name is a hash of the same text: where both agree the target is proven.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from podwire.explain.packet import steps
from podwire.naming import endpoint_chain

if TYPE_CHECKING:
    from podwire.explain.packet import Path
    from podwire.explain.tables import RuleRow

_COMMENT = re.compile(r"([\w.-]+/[\w.-]+(?::[\w.-]*)?)\s+->\s+(\[[0-9a-fA-F:]+\]:\d+|[\d.]+:\d+)")
_JUMP = re.compile(r"\b(KUBE-SEP-[A-Z2-7]{16})\b")


class Hint(NamedTuple):
    """A target, and what it rests on."""

    target: str
    why: str


def dnat_hint(chain: str, row: RuleRow, path: Path | None = None) -> Hint | None:
    """The hint of the rule that leads to `chain` ('': to the chain that the newest steps of `path` are in)."""
    texts = [row.text] if path is None else [step.text for step in reversed(steps(path))][:4]
    for text in texts:
        found = _COMMENT.search(text)
        if found is None:
            continue
        named = _JUMP.search(text)
        name = chain or (named[1] if named else "")
        for protocol in ("tcp", "udp", "sctp"):
            if name == endpoint_chain(found[1], protocol, found[2]):
                return Hint(found[2], f"the comment and the name of chain {name} say {found[2]}")
        return Hint(found[2], f"the comment says {found[2]}")
    return None
