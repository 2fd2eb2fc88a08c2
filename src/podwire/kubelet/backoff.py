"""How long a container that keeps ending has to wait: 10 s, 20 s, 40 s … five minutes, as the kubelet does it.

The first restart is immediate; after a run of more than ten minutes counting begins anew. Kept in memory only: a
restarted kubelet begins anew too, as the real one does.
"""

from __future__ import annotations

FIRST = 10.0
LONGEST = 300.0
FORGIVEN = 2 * LONGEST


class CrashLoop:
    """Delays by (uid, container name). Times are seconds since the epoch, so that they compare with CRI's."""

    def __init__(self, first: float = FIRST, longest: float = LONGEST) -> None:
        self._first = first
        self._longest = longest
        self._entries: dict[tuple[str, str], tuple[float, float]] = {}  # delay, when it was last restarted

    def left(self, uid: str, name: str, finished_at: float, now: float) -> float:
        """Seconds until a container that ended at `finished_at` may be started again; 0: now."""
        delay, restarted = self._entries.get((uid, name), (0.0, finished_at))
        if finished_at - restarted > FORGIVEN:
            return 0.0
        return max(0.0, finished_at + delay - now)

    def delay(self, uid: str, name: str) -> float:
        """The whole delay that is in force."""
        return self._entries.get((uid, name), (0.0, 0.0))[0]

    def restarted(self, uid: str, name: str, finished_at: float, now: float) -> None:
        """It is being started again, after an end at `finished_at`."""
        delay, last = self._entries.get((uid, name), (0.0, finished_at))
        fresh = delay == 0.0 or finished_at - last > FORGIVEN
        self._entries[uid, name] = (self._first if fresh else min(self._longest, delay * 2), now)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        for key in [key for key in self._entries if key[0] == uid]:
            del self._entries[key]
