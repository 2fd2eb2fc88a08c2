"""The only writer: a thread that runs pieces of work one after the other and commits them in groups.

Work that arrives while a commit is on its way to the disk waits and goes into the next transaction together: one fsync
for all of them. Each piece has a savepoint of its own, so a refused one takes back only itself. The order of what
the outside sees is: commit → `deliver(changes)` → answers. Therefore watchers hear of nothing that could still be lost,
hear it in revision order, and a client that got its answer finds its change in every read that follows.

If SQLite itself fails (disk full, I/O error) the whole group is rolled back and every piece of it gets the error: after
such an error nobody can say what the transaction still holds.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from podwire.apiserver.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from podwire.apiserver.store import Change, Store, Transaction

    Work = Callable[[Transaction], Any]
    Deliver = Callable[[list[Change]], None]

GROUP = 64
"""At most so many pieces of work go into one commit, so that the first of them does not wait for ever."""


class Writer:
    """Runs work on a store. `deliver` is called in the writer's thread, after each commit that changed something."""

    def __init__(self, store: Store, deliver: Deliver, clock: Callable[[], float]) -> None:
        self._store = store
        self._deliver = deliver
        self._clock = clock
        self._queue: queue.SimpleQueue[tuple[Work, Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after what is queued."""
        self._queue.put(None)
        self._thread.join()

    def submit(self, work: Work) -> Future[Any]:
        """Queue a piece of work; its result (or what it raised) comes once it is committed."""
        future: Future[Any] = Future()
        self._queue.put((work, future))
        return future

    def compact(self, keep_seconds: float, keep_rows: int) -> Future[Any]:
        """Queue a compaction of the log."""
        return self.submit(lambda _: self._store.compact(self._clock() - keep_seconds, keep_rows))

    def _loop(self) -> None:
        ending = False
        while not ending:
            group, ending = self._take()
            if group:
                self._commit(group)

    def _take(self) -> tuple[list[tuple[Work, Future[Any]]], bool]:
        """Wait for work, then take what else is there."""
        group: list[tuple[Work, Future[Any]]] = []
        item = self._queue.get()
        while item is not None:
            group.append(item)
            if len(group) == GROUP:
                return group, False
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return group, False
        return group, True

    def _commit(self, group: list[tuple[Work, Future[Any]]]) -> None:
        answers: list[tuple[Future[Any], Any, BaseException | None]] = []
        changes: list[Change] = []
        try:
            self._store.begin()
            for work, future in group:
                result, error = self._one(work, changes)
                answers.append((future, result, error))
            self._store.commit()
        except sqlite3.Error as error:
            self._store.rollback()
            failure = StoreError("writing the database", self._store.path, str(error))
            answers, changes = [(future, None, failure) for _, future in group], []
        if changes:
            self._deliver(changes)
        for future, result, answer in answers:
            if answer is None:
                future.set_result(result)
            else:
                future.set_exception(answer)

    def _one(self, work: Work, changes: list[Change]) -> tuple[Any, BaseException | None]:
        transaction = self._store.transaction(self._clock())
        try:
            with transaction:
                result = work(transaction)
        except sqlite3.Error:
            raise
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the work
            return None, error
        changes += transaction.changes
        return result, None
