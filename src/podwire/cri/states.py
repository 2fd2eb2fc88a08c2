"""The life of a sandbox and of a container: which state follows which, as tables without effects.

    sandbox                                            container

    PREPARING ──WIRED──► READY ──LOST──┐               CREATED ──START──► STARTING ──RAN──► RUNNING
        │                  │           │                                     │                │
       STOP               STOP         │                                   DIED             DIED
        ▼                  ▼           ▼                                     └──► EXITED ◄────┘
    STOPPING ◄─────────────┴───────────┘
        │ RELEASED                                     A removed one is no state: its folder is gone.
        ▼
    STOPPED

A state is written down before the work that it announces begins, so that a record never claims less than may be
there: PREPARING before the network namespace is made, STARTING before the process, STOPPING before the network is given
back. What a restarted server has to do with a record it finds is therefore a function of the state alone (`RECOVERY`).

STOPPING is also the state of a sandbox whose namespace was taken away by somebody else (LOST): its addresses are still
reserved, so the network has to be given back like that of any other.
"""

from __future__ import annotations

from enum import Enum


class Sandbox(Enum):
    """States of a sandbox; only READY is SANDBOX_READY in CRI's words."""

    PREPARING = "preparing"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


class SandboxEvent(Enum):
    """What happens to a sandbox."""

    WIRED = "wired"
    STOP = "stop"
    LOST = "lost"
    RELEASED = "released"


class Container(Enum):
    """States of a container, STARTING being CONTAINER_CREATED in CRI's words."""

    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class ContainerEvent(Enum):
    """What happens to a container."""

    START = "start"
    RAN = "ran"
    DIED = "died"


class Recovery(Enum):
    """What a restarted server does with a record it finds."""

    UNDO = "undo"  # nobody was told that it exists: give everything back and forget it
    VERIFY = "verify"  # it should be there: look, and apply LOST or DIED if it is not
    FINISH = "finish"  # the work was begun and has no harm in being done twice
    KEEP = "keep"


class IllegalTransition(Exception):
    """The event cannot happen in this state; the server says so to its caller (FAILED_PRECONDITION)."""

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(f"{event.value} is not possible when {state.value}")
        self.state = state
        self.event = event


SANDBOX: dict[tuple[Sandbox, SandboxEvent], Sandbox] = {
    (Sandbox.PREPARING, SandboxEvent.WIRED): Sandbox.READY,
    (Sandbox.PREPARING, SandboxEvent.STOP): Sandbox.STOPPING,
    (Sandbox.READY, SandboxEvent.STOP): Sandbox.STOPPING,
    (Sandbox.READY, SandboxEvent.LOST): Sandbox.STOPPING,
    (Sandbox.STOPPING, SandboxEvent.STOP): Sandbox.STOPPING,  # the last attempt failed; StopPodSandbox is asked again
    (Sandbox.STOPPING, SandboxEvent.RELEASED): Sandbox.STOPPED,
    (Sandbox.STOPPED, SandboxEvent.STOP): Sandbox.STOPPED,
    (Sandbox.STOPPED, SandboxEvent.RELEASED): Sandbox.STOPPED,
}

CONTAINER: dict[tuple[Container, ContainerEvent], Container] = {
    (Container.CREATED, ContainerEvent.START): Container.STARTING,
    (Container.STARTING, ContainerEvent.RAN): Container.RUNNING,
    (Container.STARTING, ContainerEvent.DIED): Container.EXITED,
    (Container.RUNNING, ContainerEvent.DIED): Container.EXITED,
    (Container.CREATED, ContainerEvent.DIED): Container.EXITED,  # stopped before it was started
    (Container.EXITED, ContainerEvent.DIED): Container.EXITED,
}

RECOVERY: dict[Sandbox | Container, Recovery] = {
    Sandbox.PREPARING: Recovery.UNDO,
    Sandbox.READY: Recovery.VERIFY,
    Sandbox.STOPPING: Recovery.FINISH,
    Sandbox.STOPPED: Recovery.KEEP,
    Container.CREATED: Recovery.KEEP,
    Container.STARTING: Recovery.VERIFY,
    Container.RUNNING: Recovery.VERIFY,
    Container.EXITED: Recovery.KEEP,
}


def next_sandbox(state: Sandbox, event: SandboxEvent) -> Sandbox:
    """The state after `event`; IllegalTransition when the table has none."""
    try:
        return SANDBOX[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None


def next_container(state: Container, event: ContainerEvent) -> Container:
    """The state after `event`; IllegalTransition when the table has none."""
    try:
        return CONTAINER[state, event]
    except KeyError:
        raise IllegalTransition(state, event) from None
