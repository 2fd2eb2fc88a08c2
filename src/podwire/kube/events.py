"""Events, as `kubectl describe` shows them: what a component did to an object, repeats counted instead of repeated.

The shape is client-go's: the name is `object.hexadecimal time`, an Event of an object without namespace lives in
`default`, and the same message about the same object again is a PATCH of `count` and `lastTimestamp`. An object that
makes a component talk without end is limited to 25 Events at once and one more every five minutes.

Recording must never hold up or break the work it tells of: `event` only puts a line into a queue of limited length, one
thread sends. While the API is away lines wait, each for at most a quarter of a minute; what cannot be sent is dropped and
logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, NamedTuple

from podwire.errors import ApiAlreadyExists, ApiNotFound, ApiUnavailable, PodwireError
from podwire.kube.kinds import EVENTS
from podwire.kube.meta import Object, ObjectReference, reference
from podwire.kube.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.kube.client import Client

log = logging.getLogger("podwire.kube")

QUEUE = 1000
REMEMBERED = 1024
BURST = 25
SECONDS_PER_EVENT = 300.0
IDLE_SECONDS = 10.0
RETRIES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between tries of one line


class _Line(NamedTuple):
    target: ObjectReference
    type: str
    reason: str
    message: str
    when: float


class _Sent(NamedTuple):
    name: str
    times: int


class EventRecorder:
    """Sends Events as `component` on `host`; `event` may be called from every thread and never raises."""

    def __init__(
        self,
        client: Client,
        component: str,
        host: str = "",
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._clock = clock
        self._sleep = sleep
        self._changed = threading.Condition()
        self._lines: deque[_Line] = deque()
        self._running = False
        self._busy = False
        self._sent: OrderedDict[tuple[str, ...], _Sent] = OrderedDict()
        self._tokens: OrderedDict[tuple[str, ...], tuple[float, float]] = OrderedDict()

    def event(self, target: Object | ObjectReference, event_type: str, reason: str, message: str) -> None:
        """Say something about `target`; `event_type` is Normal or Warning."""
        line = _Line(reference(target), event_type, reason, message[:1024], self._clock())
        log.debug("event", extra={"kv": {"object": line.target.name, "reason": reason, "message": message}})
        with self._changed:
            if len(self._lines) >= QUEUE:
                log.warning(
                    "event dropped: too many wait", extra={"kv": {"object": line.target.name, "reason": reason}}
                )
                return
            self._lines.append(line)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="events", daemon=True).start()
            self._changed.notify()

    def flush(self, timeout: float) -> bool:
        """Wait until everything was sent or dropped; False if `timeout` seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._busy, timeout)

    def _run(self) -> None:
        """Send until nothing came for a while: a component that says little keeps no thread."""
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._lines, IDLE_SECONDS):
                    self._running = False
                    return
                line = self._lines.popleft()
                self._busy = True
            try:
                if self._allowed(line):
                    self._insist(line)
            except PodwireError as error:
                log.warning("event dropped", extra={"kv": {"reason": line.reason, "error": str(error)}})
            except Exception:  # an Event is never worth a component
                log.exception("event dropped")

    def _insist(self, line: _Line) -> None:
        for delay in RETRIES:
            try:
                self._send(line)
            except ApiAlreadyExists:  # an earlier try got through after all
                return
            except ApiUnavailable:
                self._sleep(delay)
            else:
                return
        self._send(line)

    def _send(self, line: _Line) -> None:
        key = (line.target.kind, line.target.uid or line.target.name, line.type, line.reason, line.message)
        namespace = line.target.namespace or "default"
        sent = self._sent.get(key)
        if sent is not None:
            body = {"count": sent.times + 1, "lastTimestamp": rfc3339(line.when)}
            try:
                self._client.patch(EVENTS, sent.name, body, namespace, patch_type="strategic")
                self._remember(key, _Sent(sent.name, sent.times + 1))
                return
            except ApiNotFound:  # it outlived its hour; begin a new one
                pass
        made = self._client.create(EVENTS, event_body(line, self._component, self._host), namespace)
        self._remember(key, _Sent(made.metadata.name, 1))

    def _remember(self, key: tuple[str, ...], sent: _Sent) -> None:
        self._sent[key] = sent
        self._sent.move_to_end(key)
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)

    def _allowed(self, line: _Line) -> bool:
        key = (line.target.kind, line.target.namespace, line.target.name, line.target.uid)
        tokens, since = self._tokens.get(key, (float(BURST), line.when))
        tokens = min(float(BURST), tokens + max(0.0, line.when - since) / SECONDS_PER_EVENT)
        allowed = tokens >= 1.0
        self._tokens[key] = (tokens - 1.0 if allowed else tokens, line.when)
        self._tokens.move_to_end(key)
        if len(self._tokens) > REMEMBERED:
            self._tokens.popitem(last=False)
        return allowed


def event_body(line: _Line, component: str, host: str) -> dict[str, Any]:
    """The v1 Event for one line."""
    target, when = line.target, rfc3339(line.when)
    involved = {
        "kind": target.kind,
        "namespace": target.namespace,
        "name": target.name,
        "uid": target.uid,
        "apiVersion": target.api_version,
        "resourceVersion": target.resource_version,
        "fieldPath": target.field_path,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{target.name}.{int(line.when * 1e9):x}",
            "namespace": target.namespace or "default",
        },
        "involvedObject": {name: value for name, value in involved.items() if value},
        "type": line.type,
        "reason": line.reason,
        "message": line.message,
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
        "source": {"component": component, **({"host": host} if host else {})},
        "reportingComponent": component,
        "reportingInstance": host,
    }
