"""What the runtime has of a pod, as values: the kubelet's decisions are functions of these and of the pod.

A pod is known to the runtime by the labels the real kubelet puts on sandboxes and containers, so pods are found again
after a restart, and by a real kubelet that takes over (and the reverse).
"""

from __future__ import annotations

from dataclasses import dataclass, field

LABEL_NAME = "io.kubernetes.pod.name"
LABEL_NAMESPACE = "io.kubernetes.pod.namespace"
LABEL_UID = "io.kubernetes.pod.uid"
LABEL_CONTAINER = "io.kubernetes.container.name"

# pkg/kubelet/kuberuntime/labels.go
HASH = "io.kubernetes.container.hash"
RESTART_COUNT = "io.kubernetes.container.restartCount"
PORTS = "io.kubernetes.container.ports"
GRACE_PERIOD = "io.kubernetes.pod.terminationGracePeriod"


@dataclass(frozen=True)
class Sandbox:
    """A sandbox of the pod; `ips` is empty on the host's network and when it is not ready."""

    id: str
    attempt: int
    ready: bool
    created_at: int = 0
    ips: tuple[str, ...] = ()


@dataclass(frozen=True)
class Container:
    """A container; `state` is created, running, exited or unknown; times are nanoseconds since the epoch."""

    id: str
    name: str
    attempt: int
    state: str
    sandbox: str = ""
    created_at: int = 0
    started_at: int = 0
    finished_at: int = 0
    exit_code: int = 0
    reason: str = ""
    message: str = ""
    image: str = ""
    image_id: str = ""
    hash: str = ""
    grace: int | None = None  # seconds, as it was started with: for pods the API no longer knows

    @property
    def running(self) -> bool:
        """Whether a process lives."""
        return self.state == "running"


@dataclass(frozen=True)
class PodView:
    """One pod (one uid) in the runtime; sandboxes and containers the newest first."""

    uid: str
    sandboxes: tuple[Sandbox, ...] = ()
    containers: tuple[Container, ...] = field(default=())

    @property
    def sandbox(self) -> Sandbox | None:
        """The newest sandbox."""
        return self.sandboxes[0] if self.sandboxes else None

    @property
    def ready_sandbox(self) -> Sandbox | None:
        """The newest sandbox, if it is ready."""
        return self.sandboxes[0] if self.sandboxes and self.sandboxes[0].ready else None

    def latest(self, name: str) -> Container | None:
        """The newest container of this name."""
        return next((one for one in self.containers if one.name == name), None)

    def previous(self, name: str) -> Container | None:
        """The one before it."""
        found = [one for one in self.containers if one.name == name]
        return found[1] if len(found) > 1 else None

    @property
    def running(self) -> tuple[Container, ...]:
        """All that live."""
        return tuple(one for one in self.containers if one.running)
