"""What all controllers share: informers, a work queue, and the loop around `sync`.

Every controller is level-driven. Changes only put keys into its queue; `sync(key)` then compares what should be with what
the informers show, whatever happened in between, and does the difference. What fails is tried again with growing delays
and costs only its key: an API that is away, a conflict, and also a bug on one odd object, which is logged with its
traceback.

The informers' view may lag behind what this process itself wrote. A controller for which that matters says in its own
file how it deals with it.
"""

from __future__ import annotations

import abc
import logging
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from podwire.errors import ApiConflict, ApiNotFound, PodwireError
from podwire.kube.events import EventRecorder
from podwire.kube.meta import Object
from podwire.kube.reflector import Reflector
from podwire.kube.workqueue import WorkQueue

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from podwire.kube.client import Client
    from podwire.kube.kinds import Kind

T = TypeVar("T", bound=Object)
log = logging.getLogger("podwire.controllers")


class Informer(Generic[T]):
    """One reflector for all controllers of the process; their handlers are called one after the other."""

    def __init__(self, client: Client, kind: Kind[T], stop: threading.Event) -> None:
        self.kind = kind
        self._handlers: list[Callable[[str, T | None, T | None], None]] = []
        self.reflector: Reflector[T] = Reflector(client, kind, stop=stop, on_change=self._changed)

    @property
    def store(self) -> Any:
        """Key to object."""
        return self.reflector.store

    def get(self, key: str) -> T | None:
        """The object as last seen."""
        return self.reflector.store.get(key)

    def objects(self, namespace: str | None = None) -> list[T]:
        """All objects as last seen (of one namespace)."""
        found = self.reflector.objects()
        return found if namespace is None else [obj for obj in found if obj.metadata.namespace == namespace]

    def on_change(self, handler: Callable[[str, T | None, T | None], None]) -> None:
        """Call `handler(key, old, new)` for every change; only before the start."""
        self._handlers.append(handler)

    def _changed(self, key: str, old: T | None, new: T | None) -> None:
        for handler in self._handlers:
            handler(key, old, new)


class Context:
    """What a controller is made from: the API, shared informers, Events, the clock."""

    def __init__(
        self, client: Client, stop: threading.Event, host: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        self.client = client
        self.stop = stop
        self.clock = clock
        self._host = host
        self._informers: dict[str, Informer[Any]] = {}

    def informer(self, kind: Kind[T]) -> Informer[T]:
        """The informer of a kind, the same for everybody."""
        if kind.resource not in self._informers:
            self._informers[kind.resource] = Informer(self.client, kind, self.stop)
        return self._informers[kind.resource]

    def recorder(self, component: str) -> EventRecorder:
        """An Event recorder that speaks as `component`."""
        return EventRecorder(self.client, component, self._host)

    def start(self) -> None:
        """Start all informers."""
        for informer in self._informers.values():
            informer.reflector.start()

    def synced(self) -> bool:
        """Whether every informer has its first list."""
        return all(informer.reflector.synced.is_set() for informer in self._informers.values())

    def wait_synced(self) -> bool:
        """Wait for that; False when stopped before."""
        for informer in self._informers.values():
            while not informer.reflector.synced.wait(1.0):
                if self.stop.is_set():
                    return False
        return not self.stop.is_set()


class Again(PodwireError):
    """Raised by a `sync` that has said what is wrong and wants the key back after its next delay."""


class Controller(abc.ABC):
    """Subclasses connect informers to `self.queue` when made, and say what `sync` does."""

    name = ""
    longest_retry = 30.0

    def __init__(self, context: Context) -> None:
        self.context = context
        self.client = context.client
        self.queue: WorkQueue[str] = WorkQueue(longest_retry=self.longest_retry)

    def prepare(self) -> None:  # noqa: B027  (most controllers have nothing to do here)
        """Called once, when all informers are synced and before the first `sync`."""

    @abc.abstractmethod
    def sync(self, key: str) -> None:
        """Bring what belongs to `key` to what it should be."""

    def run(self) -> None:
        """Work until the queue is shut down."""
        while (key := self.queue.get()) is not None:
            try:
                self.sync(key)
            except ApiConflict as error:  # somebody was faster; our view is about to be renewed
                self.queue.retry(key)
                log.debug("conflict", extra={"kv": {"controller": self.name, "key": key, "error": str(error)}})
            except Again:
                self.queue.retry(key)
            except PodwireError as error:
                self._failed(key, error)
            except Exception as error:  # one odd object must not cost the others
                log.exception("sync broke", extra={"kv": {"controller": self.name, "key": key}})
                self._failed(key, error)
            else:
                self.queue.forget(key)
            finally:
                self.queue.done(key)

    def _failed(self, key: str, error: Exception) -> None:
        delay = self.queue.retry(key)
        fields = {"controller": self.name, "key": key, "retry": f"{delay:.3f}s", "error": str(error)}
        log.warning("sync failed", extra={"kv": fields})


def gone(action: Callable[[], object]) -> bool:
    """Do `action` to an object that may have been deleted meanwhile; True if it had been."""
    try:
        action()
    except ApiNotFound:
        return True
    return False
