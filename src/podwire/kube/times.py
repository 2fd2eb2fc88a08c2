"""Times as the API writes them: RFC 3339, UTC; to the second in metadata and conditions, to the microsecond in Leases."""

from __future__ import annotations

import datetime as dt
import time


def rfc3339(when: float) -> str:
    """Seconds since 1970 as 2026-05-01T10:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when))


def rfc3339_micro(when: float) -> str:
    """Seconds since 1970 as 2026-05-01T10:00:00.000000Z (metav1.MicroTime)."""
    return dt.datetime.fromtimestamp(when, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def epoch(text: str | None) -> float | None:
    """Seconds since 1970; None for no time or for what is no time."""
    if not text:
        return None
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
