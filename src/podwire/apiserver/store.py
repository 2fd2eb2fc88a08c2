"""The versioned store: every object as JSON in SQLite, one global revision, and a log of what changed.

Four tables. `objects` holds the newest version of each object; `log` one row for each revision with the value after and
the value before; `claims` the values that one object alone may hold (a ClusterIP, a node port); `state` the
revision and the compaction horizon. A revision numbers one change of one object; it never goes back and is never used
twice, also across restarts, because `state` changes in the transaction of the change itself.

Because a log row carries the value *before*, the state at an older revision R is worked out from the newest state and
the rows above R alone: an object not touched since R is as it is; for any other the first row above R says what it
was. So rows at or below R may be dropped (`compact`) without making R unreadable; R below the horizon is 410.

One connection writes (in the writer's thread, see `writer`), one reads (in the server's event loop): in WAL mode a reader has
a snapshot of its own and neither waits for the other. `synchronous=FULL`: each commit ends with an fsync of the
WAL; why that is affordable is told in docs/decisions. A folder is used by one server at a time (flock).

Weak: values are whole objects, so the log holds two copies of each change; the horizon (minutes, rows) bounds it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any, Self

import msgspec

from podwire.errors import PodwireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from podwire.apiserver.resource import Claim, Object

FORMAT = 1
"""Stands in the file's user_version; another one is not opened."""

TABLES = """
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), revision INTEGER NOT NULL, compacted INTEGER NOT NULL);
INSERT INTO state VALUES (0, 1, 1);
CREATE TABLE objects (
  resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  revision INTEGER NOT NULL, written REAL NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (resource, namespace, name));
CREATE INDEX objects_by_namespace ON objects (namespace, resource);
CREATE TABLE log (
  revision INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  type TEXT NOT NULL, written REAL NOT NULL, value BLOB NOT NULL, previous BLOB);
CREATE INDEX log_by_resource ON log (resource, revision);
CREATE TABLE claims (
  space TEXT NOT NULL, value TEXT NOT NULL, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
  PRIMARY KEY (space, value)) WITHOUT ROWID;
CREATE INDEX claims_by_holder ON claims (resource, namespace, name);
"""

encode = msgspec.json.encode
decode: Callable[[bytes], Any] = msgspec.json.decode


class StoreError(PodwireError):
    """The database can't be opened or written."""


class Change:
    """One committed revision; `type` is ADDED, MODIFIED or DELETED.

    `value` is the object after (for DELETED: as it was, with the revision of its end), `previous` the object before.
    Both are JSON; `after()` and `before()` decode once, for all watchers that look.
    """

    __slots__ = ("_after", "_before", "name", "namespace", "previous", "resource", "revision", "type", "value")

    def __init__(
        self, revision: int, resource: str, namespace: str, name: str, type_: str, value: bytes, previous: bytes | None
    ) -> None:
        self.revision = revision
        self.resource = resource
        self.namespace = namespace
        self.name = name
        self.type = type_
        self.value = value
        self.previous = previous
        self._after: Object | None = None
        self._before: Object | None = None

    def after(self) -> Object:
        """The object after the change; not to be altered."""
        if self._after is None:
            self._after = decode(self.value)
        return self._after

    def before(self) -> Object | None:
        """The object before the change; not to be altered."""
        if self._before is None and self.previous is not None:
            self._before = decode(self.previous)
        return self._before


class Store:
    """The open database: one writing connection; `reader()` makes reading ones."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection = _open(path)
        self.revision, self.compacted = self._connection.execute("SELECT revision, compacted FROM state").fetchone()

    def close(self) -> None:
        """Fold the WAL into the database and close; use after the writer has ended."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def reader(self) -> Reader:
        """A connection for reading, with snapshots of its own."""
        return Reader(_connect(self.path, "query_only=ON"))

    def begin(self) -> None:
        """Start the transaction that the next `Transaction`s belong to."""
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make it durable: when this returns, the changes survive kill -9 and a power cut."""
        self._connection.execute("UPDATE state SET revision = ?, compacted = ?", (self.revision, self.compacted))
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        """Forget the transaction; also right after SQLite has done so itself (disk full)."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.revision, self.compacted = self._connection.execute("SELECT revision, compacted FROM state").fetchone()

    def transaction(self, written: float) -> Transaction:
        """The door for one piece of work inside begin … commit; `written` is its time, seconds since the epoch."""
        return Transaction(self, self._connection, written)

    def compact(self, older_than: float, keep_rows: int) -> None:
        """Drop log rows written before `older_than`, and all but the newest `keep_rows`; the horizon rises with them."""
        run = self._connection.execute
        newest = run("SELECT max(revision) FROM log WHERE written < ?", (older_than,)).fetchone()[0] or 0
        beyond = run("SELECT revision FROM log ORDER BY revision DESC LIMIT 1 OFFSET ?", (keep_rows,)).fetchone()
        horizon = max(newest, beyond[0] if beyond else 0)
        if horizon > self.compacted:
            run("DELETE FROM log WHERE revision <= ?", (horizon,))
            self.compacted = horizon


class Transaction:
    """Reads and writes of one piece of work; `changes` are what it did, in order."""

    def __init__(self, store: Store, connection: sqlite3.Connection, written: float) -> None:
        self._store = store
        self._run = connection.execute
        self._written = written
        self._revision = store.revision
        self.changes: list[Change] = []

    def __enter__(self) -> Self:
        self._run("SAVEPOINT work")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self.undo()
        self._run("RELEASE work")

    def undo(self) -> None:
        """Take back everything this piece of work did (an error, or dryRun=All)."""
        self._run("ROLLBACK TO work")
        self._store.revision = self._revision
        self.changes.clear()

    def get(self, resource: str, namespace: str, name: str) -> bytes | None:
        """The JSON of one object."""
        row = self._run(
            "SELECT value FROM objects WHERE resource = ? AND namespace = ? AND name = ?", (resource, namespace, name)
        ).fetchone()
        return row[0] if row else None

    def all(self, resource: str, namespace: str = "") -> Iterator[bytes]:
        """The JSON of all objects of a kind, by namespace and name."""
        if namespace:
            sql = "SELECT value FROM objects WHERE resource = ? AND namespace = ? ORDER BY name"
            rows = self._run(sql, (resource, namespace))
        else:
            rows = self._run("SELECT value FROM objects WHERE resource = ? ORDER BY namespace, name", (resource,))
        return (row[0] for row in rows.fetchall())

    def held_in(self, namespace: str) -> list[tuple[str, str]]:
        """(resource, name) of everything that lives in a namespace."""
        return self._run("SELECT resource, name FROM objects WHERE namespace = ?", (namespace,)).fetchall()

    def written_before(self, resource: str, time: float) -> list[tuple[str, str]]:
        """(namespace, name) of the objects last written before `time`."""
        sql = "SELECT namespace, name FROM objects WHERE resource = ? AND written < ?"
        return self._run(sql, (resource, time)).fetchall()

    def put(self, resource: str, obj: Object, previous: bytes | None, claims: Sequence[Claim]) -> bytes:
        """Write an object under the next revision, which is put into its metadata; answers its JSON."""
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        value = self._stamp(obj)
        revision = self._store.revision
        self._run(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "revision = excluded.revision, written = excluded.written, value = excluded.value",
            (resource, namespace, name, revision, self._written, value),
        )
        self._claim(resource, namespace, name, claims)
        self._log(resource, namespace, name, "MODIFIED" if previous is not None else "ADDED", value, previous)
        return value

    def remove(self, resource: str, obj: Object, previous: bytes) -> bytes:
        """Remove an object; answers its last JSON, which carries the revision of the removal."""
        metadata = obj["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        value = self._stamp(obj)
        self._run("DELETE FROM objects WHERE resource = ? AND namespace = ? AND name = ?", (resource, namespace, name))
        self._claim(resource, namespace, name, ())
        self._log(resource, namespace, name, "DELETED", value, previous)
        return value

    def holder(self, claim: Claim) -> str | None:
        """`namespace/name` of the object that holds a claim."""
        row = self._run("SELECT namespace, name FROM claims WHERE space = ? AND value = ?", claim).fetchone()
        return f"{row[0]}/{row[1]}" if row else None

    def claim_count(self, space: str) -> int:
        """How many claims of a space are held."""
        count: int = self._run("SELECT count(*) FROM claims WHERE space = ?", (space,)).fetchone()[0]
        return count

    def _stamp(self, obj: Object) -> bytes:
        self._store.revision += 1
        obj["metadata"]["resourceVersion"] = str(self._store.revision)
        return encode(obj)

    def _log(self, resource: str, namespace: str, name: str, type_: str, value: bytes, previous: bytes | None) -> None:
        change = Change(self._store.revision, resource, namespace, name, type_, value, previous)
        self._run(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (change.revision, resource, namespace, name, type_, self._written, value, previous),
        )
        self.changes.append(change)

    def _claim(self, resource: str, namespace: str, name: str, claims: Sequence[Claim]) -> None:
        held = "SELECT space, value FROM claims WHERE resource = ? AND namespace = ? AND name = ?"
        have = set(self._run(held, (resource, namespace, name)).fetchall())
        for claim in have.difference(claims):
            self._run("DELETE FROM claims WHERE space = ? AND value = ?", claim)
        for claim in dict.fromkeys(claims):
            if claim not in have:
                # A value already taken is an IntegrityError: strategies ask `holder` first, this is the safety net.
                self._run("INSERT INTO claims VALUES (?, ?, ?, ?, ?)", (*claim, resource, namespace, name))


class Reader:
    """A reading connection; `snapshot()` holds still what it shows."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """One consistent view of the newest committed state."""
        self._connection.execute("BEGIN")
        try:
            revision, compacted = self._connection.execute("SELECT revision, compacted FROM state").fetchone()
            yield Snapshot(self._connection, revision, compacted)
        finally:
            self._connection.execute("ROLLBACK")


class Snapshot:
    """A view at `revision`; older ones down to `compacted` can be asked for."""

    def __init__(self, connection: sqlite3.Connection, revision: int, compacted: int) -> None:
        self._run = connection.execute
        self.revision = revision
        self.compacted = compacted

    def get(self, resource: str, namespace: str, name: str) -> bytes | None:
        """The JSON of one object."""
        row = self._run(
            "SELECT value FROM objects WHERE resource = ? AND namespace = ? AND name = ?", (resource, namespace, name)
        ).fetchone()
        return row[0] if row else None

    def scan(
        self, resource: str, namespace: str = "", at: int | None = None, after: tuple[str, str] = ("", "")
    ) -> Iterator[tuple[str, str, bytes]]:
        """(namespace, name, JSON) in order, of the state at revision `at`, beginning behind the key `after`."""
        newest = at is None or at >= self.revision
        where = "resource = :resource AND (namespace, name) > (:after_namespace, :after_name)"
        where += " AND namespace = :namespace" if namespace else ""
        sql = f"SELECT namespace, name, value FROM objects WHERE {where}"  # noqa: S608 - no value is spliced in
        if not newest:
            sql += (
                " AND revision <= :at UNION ALL SELECT namespace, name, previous FROM (SELECT namespace, name, previous, "  # noqa: S608 - likewise
                f"min(revision) FROM log WHERE {where} AND revision > :at GROUP BY namespace, name) WHERE previous NOT NULL"
            )
        values = {
            "resource": resource,
            "namespace": namespace,
            "at": at,
            "after_namespace": after[0],
            "after_name": after[1],
        }
        return iter(self._run(sql + " ORDER BY namespace, name", values))

    def changes(self, resource: str, after: int, upto: int) -> Iterator[Change]:
        """The changes of a kind with after < revision <= upto."""
        rows = self._run(
            "SELECT revision, resource, namespace, name, type, value, previous FROM log "
            "WHERE resource = ? AND revision > ? AND revision <= ? ORDER BY revision",
            (resource, after, upto),
        )
        return (Change(*row) for row in rows)


def _connect(path: str, *pragmas: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _open(path: str) -> sqlite3.Connection:
    """Open or create; a file that is damaged or not ours is refused, never overwritten."""
    try:
        if path != ":memory:":
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its side files the same mode
        connection = _connect(path, "journal_mode=WAL", "synchronous=FULL", "journal_size_limit=8388608")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {FORMAT}; COMMIT;")
            version = FORMAT
        trouble = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except (OSError, sqlite3.Error) as error:
        raise StoreError("opening the database", path, str(error), "move it away to start with an empty one") from error
    if trouble != "ok":
        raise StoreError(
            "opening the database", path, trouble, "it is damaged; move it away to start with an empty one"
        )
    if version != FORMAT:
        raise StoreError("opening the database", path, f"its format is {version}, this program knows {FORMAT}")
    return connection
