"""The READY, STATUS and RESTARTS cells of a Pod (kubernetes `pkg/printers/internalversion/printers.go`, printPod).

STATUS is no field of the API: it is the phase, or a better word for it found in reason, conditions, container states
and deletionTimestamp, in an order that decides what people see. So the order here is the original's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver.resource import age

if TYPE_CHECKING:
    from datetime import datetime

Status = dict[str, Any]


class Summary:
    """What the containers of a pod come to."""

    def __init__(self, pod: dict[str, Any]) -> None:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        self.inits = spec.get("initContainers") or []
        self.sidecars = {c.get("name") for c in self.inits if c.get("restartPolicy") == "Always"}
        self.total = len(spec.get("containers") or ()) + len(self.sidecars)
        self.ready = 0
        self.restarts = 0
        self.last_restart = ""
        self.reason = status.get("reason") or status.get("phase") or ""
        conditions = {c.get("type"): c for c in status.get("conditions") or ()}
        if (conditions.get("PodScheduled") or {}).get("reason") == "SchedulingGated":
            self.reason = "SchedulingGated"
        initialising = self._inits(status.get("initContainerStatuses") or [])
        if not initialising or _true(conditions.get("Initialized")):
            running = self._ordinary(status)
            if self.reason == "Completed" and running:
                self.reason = "Running" if _true(conditions.get("Ready")) else "NotReady"
        if pod["metadata"].get("deletionTimestamp"):
            if status.get("reason") == "NodeLost":
                self.reason = "Unknown"
            elif status.get("phase") not in {"Failed", "Succeeded"}:
                self.reason = "Terminating"

    def restarts_cell(self, now: datetime) -> str:
        """`0`, `3`, `3 (5m ago)`."""
        if self.restarts and self.last_restart:
            return f"{self.restarts} ({age(self.last_restart, now)} ago)"
        return str(self.restarts)

    def _count(self, container: Status) -> None:
        """Add a container's restarts and remember the latest end of one."""
        self.restarts += container.get("restartCount") or 0
        ended = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt") or ""
        self.last_restart = max(self.last_restart, ended)

    def _inits(self, statuses: list[Status]) -> bool:
        """Walk the init containers up to the one that is not through; whether there is one."""
        for index, container in enumerate(statuses):
            self._count(container)
            state = container.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting") or {}
            if ended is not None and not ended.get("exitCode"):
                continue
            if container.get("name") in self.sidecars and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if ended is not None:
                self.reason = f"Init:{_ending(ended)}"
            elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
                self.reason = f"Init:{waiting['reason']}"
            else:
                self.reason = f"Init:{index}/{len(self.inits)}"
            return True
        return False

    def _ordinary(self, status: Status) -> bool:
        """Walk the ordinary containers backwards, so that the first one has the last word; whether one runs."""
        self.restarts, self.last_restart = 0, ""
        for container in status.get("initContainerStatuses") or ():
            if container.get("name") in self.sidecars:
                self._count(container)
        running = False
        for container in reversed(status.get("containerStatuses") or []):
            self._count(container)
            state = container.get("state") or {}
            waiting, ended = (state.get("waiting") or {}).get("reason"), state.get("terminated")
            if waiting:
                self.reason = waiting
            elif ended is not None:
                self.reason = _ending(ended)
            elif container.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        return running


def _true(condition: Status | None) -> bool:
    return (condition or {}).get("status") == "True"


def _ending(ended: Status) -> str:
    """Why a container ended: its reason, signal or exit code."""
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
