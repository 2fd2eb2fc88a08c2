"""The versioned store and its writer."""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.apiserver.store import Store, StoreError, decode
from podwire.apiserver.writer import Writer

pytestmark = pytest.mark.unit


def obj(name: str, namespace: str = "n", **fields: object) -> dict:
    return {"metadata": {"name": name, "namespace": namespace}, **fields}


def write(store: Store, *pieces, at: float = 1.0) -> list:
    """Each piece of work in a transaction of its own; the changes."""
    changes = []
    for piece in pieces:
        store.begin()
        with store.transaction(at) as transaction:
            piece(transaction)
            changes += transaction.changes
        store.commit()
    return changes


def put(name: str, claims=(), **fields):
    def piece(transaction):
        transaction.put("things", obj(name, **fields), transaction.get("things", "n", name), claims)

    return piece


def remove(name: str):
    def piece(transaction):
        raw = transaction.get("things", "n", name)
        transaction.remove("things", decode(raw), raw)

    return piece


@pytest.fixture
def store(tmp_path):
    made = Store(str(tmp_path / "objects.db"))
    yield made
    made.close()


def shown(store: Store, at: int | None = None) -> dict[str, dict]:
    reader = store.reader()
    with reader.snapshot() as snapshot:
        rows = {name: decode(raw) for _, name, raw in snapshot.scan("things", at=at)}
    reader.close()
    return rows


def test_every_change_has_a_revision_of_its_own_and_the_object_carries_it(store) -> None:
    changes = write(store, put("a"), put("b"), put("a", x=1), remove("b"))
    first = changes[0].revision
    assert [change.revision for change in changes] == list(range(first, first + 4))
    assert [change.type for change in changes] == ["ADDED", "ADDED", "MODIFIED", "DELETED"]
    assert [decode(change.value)["metadata"]["resourceVersion"] for change in changes] == [
        str(change.revision) for change in changes
    ]
    assert changes[2].previous == changes[0].value
    assert shown(store)["a"]["x"] == 1


def test_the_revision_goes_on_after_a_restart_and_after_compaction(tmp_path) -> None:
    path = str(tmp_path / "objects.db")
    store = Store(path)
    last = write(store, put("a"), remove("a"))[-1].revision
    write(store, lambda _: store.compact(older_than=2.0, keep_rows=0))
    store.close()
    again = Store(path)
    assert (again.revision, again.compacted) == (last, last)
    assert write(again, put("a"))[0].revision == last + 1
    again.close()


def test_a_refused_piece_of_work_leaves_nothing_and_costs_no_revision(store) -> None:
    before = write(store, put("a"))[-1].revision

    def refused(transaction) -> None:
        transaction.put("things", obj("b"), None, [("ip", "1")])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(store, refused)
    store.commit()
    assert set(shown(store)) == {"a"}
    assert write(store, put("c", [("ip", "1")]))[0].revision == before + 1


def test_claims_follow_their_object(store) -> None:
    def holder(value):
        found = []
        write(store, lambda transaction: found.append(transaction.holder(("ip", value))))
        return found[0]

    write(store, put("a", [("ip", "1"), ("ip", "2")]))
    assert (holder("1"), holder("3")) == ("n/a", None)
    write(store, put("a", [("ip", "2"), ("ip", "3")]))
    assert (holder("1"), holder("2"), holder("3")) == (None, "n/a", "n/a")
    with pytest.raises(sqlite3.IntegrityError):
        write(store, put("b", [("ip", "2")]))
    store.rollback()
    write(store, remove("a"))
    assert (holder("2"), holder("3")) == (None, None)
    write(store, put("b", [("ip", "2")]), lambda t: setattr(store, "counted", t.claim_count("ip")))
    assert store.counted == 1


def test_a_list_is_in_order_and_can_begin_behind_a_key(store) -> None:
    for namespace, name in itertools.product(("m", "n"), ("a", "a-b", "b")):
        write(store, lambda t, name=name, ns=namespace: t.put("things", obj(name, ns), None, ()))
    reader = store.reader()
    with reader.snapshot() as snapshot:
        keys = [(namespace, name) for namespace, name, _ in snapshot.scan("things")]
        rest = [(namespace, name) for namespace, name, _ in snapshot.scan("things", after=("m", "a-b"))]
        inside = [name for _, name, _ in snapshot.scan("things", "m")]
    reader.close()
    assert keys == sorted(keys)
    assert rest == [("m", "b"), ("n", "a"), ("n", "a-b"), ("n", "b")]
    assert inside == ["a", "a-b", "b"]


def test_a_snapshot_does_not_see_what_is_committed_after_it_began(store) -> None:
    write(store, put("a"))
    reader = store.reader()
    with reader.snapshot() as snapshot:
        write(store, put("b"))
        assert [name for _, name, _ in snapshot.scan("things")] == ["a"]
        assert snapshot.get("things", "n", "b") is None
    with reader.snapshot() as snapshot:
        assert snapshot.get("things", "n", "b") is not None
    reader.close()


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "remove", "compact"])), max_size=25)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_any_revision_that_is_kept_can_be_shown_as_it_was(tmp_path_factory, steps) -> None:
    store = Store(str(tmp_path_factory.mktemp("store") / "objects.db"))
    history = {store.revision: {}}
    for number, (name, step) in enumerate(steps):
        now = shown(store)
        if step == "compact":
            write(store, lambda _, keep=number % 4: store.compact(older_than=0.0, keep_rows=keep))
        elif step == "put":
            write(store, put(name, step=number))
        elif name in now:
            write(store, remove(name))
        history[store.revision] = shown(store)
    for revision, state in history.items():
        if revision >= store.compacted:
            assert shown(store, revision) == state
    store.close()


def test_compaction_keeps_what_is_young_and_not_too_much_of_it(store) -> None:
    write(store, put("a"), put("b"), at=1.0)
    young = write(store, put("c"), put("d"), put("e"), at=10.0)
    write(store, lambda _: store.compact(older_than=5.0, keep_rows=100))
    assert store.compacted == young[0].revision - 1
    write(store, lambda _: store.compact(older_than=5.0, keep_rows=1))
    assert store.compacted == young[1].revision
    reader = store.reader()
    with reader.snapshot() as snapshot:
        assert [change.name for change in snapshot.changes("things", store.compacted, store.revision)] == ["e"]
        assert snapshot.compacted == store.compacted
    reader.close()


def test_a_damaged_or_foreign_file_is_refused_and_not_touched(tmp_path) -> None:
    path = str(tmp_path / "objects.db")
    Store(path).close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))
    with open(path, "rb") as file:
        damaged = file.read()
    with pytest.raises(StoreError, match="move it away"):
        Store(path)
    with open(path, "rb") as file:
        assert file.read() == damaged
    (tmp_path / "text").write_text("not a database, but long enough to be looked at as one " * 40)
    with pytest.raises(StoreError, match="file is not a database"):
        Store(str(tmp_path / "text"))
    with pytest.raises(StoreError, match="opening the database"):
        Store(str(tmp_path / "nowhere" / "objects.db"))


def test_a_file_of_another_format_is_refused(tmp_path) -> None:
    path = str(tmp_path / "objects.db")
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="its format is 99"):
        Store(path)


def test_the_database_is_readable_by_its_owner_only(tmp_path) -> None:
    store = Store(str(tmp_path / "objects.db"))
    write(store, put("a"))
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o600"}
    store.close()


class Recorder:
    """Delivered changes, and a gate that holds the writer inside `deliver`."""

    def __init__(self) -> None:
        self.commits: list[list] = []
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Event()

    def __call__(self, changes) -> None:
        self.inside.set()
        self.gate.wait(5)
        self.commits.append(changes)


@pytest.fixture
def running(store):
    recorder = Recorder()
    writer = Writer(store, recorder, lambda: 1.0)
    writer.start()
    yield writer, recorder
    recorder.gate.set()
    writer.stop()


def test_work_is_answered_after_its_changes_are_delivered(running) -> None:
    writer, recorder = running
    recorder.gate.clear()
    future = writer.submit(put("a"))
    assert not future.done()
    recorder.gate.set()
    future.result(5)
    assert [change.name for commit in recorder.commits for change in commit] == ["a"]


def test_work_that_waits_goes_into_one_commit_and_a_refused_piece_harms_only_itself(running) -> None:
    writer, recorder = running
    recorder.gate.clear()
    first = writer.submit(put("first"))
    assert recorder.inside.wait(5)

    def fail(transaction) -> None:
        put("bad")(transaction)
        raise ValueError("refused")

    waiting = [writer.submit(put("a")), writer.submit(fail), writer.submit(put("b"))]
    recorder.gate.set()
    first.result(5)
    waiting[0].result(5)
    waiting[2].result(5)
    with pytest.raises(ValueError, match="refused"):
        waiting[1].result(5)
    delivered = [[change.name for change in commit] for commit in recorder.commits]
    assert delivered == [["first"], ["a", "b"]]
    revisions = [change.revision for commit in recorder.commits for change in commit]
    assert revisions == list(range(revisions[0], revisions[0] + 3))


def test_an_undone_piece_of_work_answers_and_delivers_nothing(running, store) -> None:
    writer, recorder = running

    def dry(transaction) -> str:
        put("a")(transaction)
        transaction.undo()
        return "as if"

    assert writer.submit(dry).result(5) == "as if"
    assert recorder.commits == []
    assert shown(store) == {}


def test_many_writers_lose_no_update(running, store) -> None:
    writer, recorder = running

    def count(transaction) -> None:
        raw = transaction.get("things", "n", "counter")
        number = decode(raw)["number"] if raw else 0
        transaction.put("things", obj("counter", number=number + 1), raw, ())

    def many() -> None:
        for future in [writer.submit(count) for _ in range(50)]:
            future.result(10)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shown(store)["counter"]["number"] == 200
    revisions = [change.revision for commit in recorder.commits for change in commit]
    assert revisions == sorted(set(revisions))
    assert len(revisions) == 200


def test_a_full_disk_fails_the_whole_group_and_the_store_goes_on(running, store) -> None:
    writer, recorder = running
    writer.submit(put("a")).result(5)
    page_count = store._connection.execute("PRAGMA page_count").fetchone()[0]
    writer.submit(lambda _: store._connection.execute(f"PRAGMA max_page_count = {page_count + 1}")).result(5)
    revision = store.revision
    with pytest.raises(StoreError, match="full"):
        writer.submit(put("big", blob="x" * 100_000)).result(5)
    writer.submit(lambda _: store._connection.execute("PRAGMA max_page_count = 1000000")).result(5)
    writer.submit(put("b")).result(5)
    assert set(shown(store)) == {"a", "b"}
    assert recorder.commits[-1][0].revision == revision + 1
