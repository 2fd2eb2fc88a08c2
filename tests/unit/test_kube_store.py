"""The store works out what changed, whatever the order of lists and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.kube.kinds import PODS
from podwire.kube.store import Store

if TYPE_CHECKING:
    from podwire.kube.objects import Pod

pytestmark = pytest.mark.unit


def pod(name: str, uid: str, version: int) -> Pod:
    return PODS.convert({"metadata": {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}})


def test_an_object_made_again_under_its_name_is_a_deletion_and_an_addition() -> None:
    store: Store[Pod] = Store()
    first, second = pod("a", "u1", 1), pod("a", "u2", 5)
    store.put(first)
    assert store.put(second) == [("ns/a", first, None), ("ns/a", None, second)]


def test_the_same_version_again_is_no_change() -> None:
    store: Store[Pod] = Store()
    store.put(pod("a", "u", 1))
    assert store.put(pod("a", "u", 1)) == []


def test_a_list_takes_over_even_what_looks_older() -> None:
    """After a restore of the server's data, versions are lower and still the truth."""
    store: Store[Pod] = Store()
    store.put(pod("a", "u", 9))
    assert store.replace([pod("a", "u", 3)]) != []
    assert store["ns/a"].metadata.resource_version == "3"


def test_a_deletion_of_another_uid_is_not_ours() -> None:
    store: Store[Pod] = Store()
    store.put(pod("a", "u2", 2))
    assert store.remove("ns/a", "u1") == []
    assert "ns/a" in store


def test_an_object_that_cannot_be_read_keeps_its_last_state() -> None:
    store: Store[Pod] = Store()
    store.put(pod("a", "u", 1))
    store.put(pod("b", "u2", 1))
    assert [key for key, _, _ in store.replace([], keep=["ns/a"])] == ["ns/b"]
    assert list(store) == ["ns/a"]


def test_iterating_while_the_store_changes_is_safe() -> None:
    store: Store[Pod] = Store()
    for number in range(10):
        store.put(pod(f"p{number}", f"u{number}", 1))
    for key in store:
        store.remove(key)
    assert len(store) == 0


pods = st.builds(pod, st.sampled_from("abc"), st.sampled_from(["u1", "u2"]), st.integers(1, 5))
steps = st.one_of(
    st.tuples(st.just("put"), pods),
    st.tuples(st.just("remove"), st.sampled_from(["ns/a", "ns/b", "ns/c"])),
    st.tuples(st.just("replace"), st.lists(pods, unique_by=lambda obj: obj.key)),
)


@given(st.lists(steps, max_size=20))
def test_changes_replayed_give_the_store(history: list) -> None:
    store: Store[Pod] = Store()
    replayed: dict[str, Pod] = {}
    for name, argument in history:
        for key, old, new in getattr(store, name)(argument):
            assert replayed.get(key) is old, "a change begins where the last one ended"
            assert old is None or new is None or old.metadata.uid == new.metadata.uid
            if new is None:
                del replayed[key]
            else:
                replayed[key] = new
        assert replayed == dict(store)
        if name == "replace":
            assert {obj.key: obj for obj in argument} == dict(store)
