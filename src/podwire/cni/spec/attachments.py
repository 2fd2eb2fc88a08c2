"""The attachments that a GC keeps (spec, section "GC")."""

from __future__ import annotations

from podwire.cni.spec.text import Fields

# The specification's first text of 1.1.0 named the second, the libraries the first; runtimes send both.
_KEYS = ("cni.dev/valid-attachments", "cni.dev/attachments")


def valid_attachments(conf: object) -> set[tuple[str, str]]:
    """(container ID, interface) of every attachment that the runtime knows."""
    fields = Fields(conf, "NetConf")
    found = set()
    for key in _KEYS:
        for item in fields.array(key, "[]types.GCAttachment"):
            one = Fields(item, "GCAttachment")
            found.add((one.text("containerID"), one.text("ifname")))
    return found
