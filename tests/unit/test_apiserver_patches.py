"""JSON patch, merge patch and strategic merge patch."""

from __future__ import annotations

import copy
import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.apiserver import patches, strategic
from podwire.apiserver.resource import Resource
from podwire.apiserver.schema import Schemas, Type
from podwire.apiserver.status import StatusError

pytestmark = pytest.mark.unit

# From RFC 6902, appendix A, and from the behaviour of evanphx/json-patch, which the real server uses.
JSON_PATCHES = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
    ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": "b"}], {"foo": ["a", "b"]}),
    ({"foo": ["a", "b"]}, [{"op": "remove", "path": "/foo/-1"}], {"foo": ["a"]}),
    ({"baz": 1, "foo": 2}, [{"op": "remove", "path": "/baz"}], {"foo": 2}),
    ({"foo": ["a", "b", "c"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "c"]}),
    ({"baz": 1}, [{"op": "replace", "path": "/baz", "value": 2}], {"baz": 2}),
    (
        {"foo": {"bar": 1, "waldo": 2}, "qux": {"corge": 3}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": 1}, "qux": {"corge": 3, "thud": 2}},
    ),
    ({"foo": [1, 2, 3]}, [{"op": "move", "from": "/foo/0", "path": "/foo/2"}], {"foo": [2, 3, 1]}),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    (
        {"a~b": 1, "c/d": 2},
        [{"op": "test", "path": "/a~0b", "value": 1}, {"op": "remove", "path": "/c~1d"}],
        {"a~b": 1},
    ),
    ({"a": None}, [{"op": "test", "path": "/b", "value": None}], {"a": None}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
]


@pytest.mark.parametrize(("document", "patch", "result"), JSON_PATCHES)
def test_a_json_patch_does_what_the_rfc_says(document: dict, patch: list, result: dict) -> None:
    before = copy.deepcopy((document, patch))
    assert patches.apply(document, patch) == result
    assert (document, patch) == before


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/a", "value": True},
        {"op": "remove", "path": "/nope"},
        {"op": "replace", "path": "/nope", "value": 1},
        {"op": "add", "path": "/nope/deep", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/b"},
        {"op": "move", "from": "/nope", "path": "/b"},
        {"op": "move", "from": "/map", "path": "/map/in"},
        {"op": "move", "path": "/b"},
        {"op": "remove", "path": ""},
        {"op": "frobnicate", "path": "/a"},
        {"path": "/a"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_422_and_changes_nothing(operation: dict) -> None:
    document = {"a": 1, "list": [1], "map": {}}
    with pytest.raises(StatusError) as refusal:
        patches.apply(document, [{"op": "add", "path": "/early", "value": 1}, operation])
    assert refusal.value.code == 422
    assert refusal.value.message == "the server rejected our request due to an error in our request"
    assert document == {"a": 1, "list": [1], "map": {}}


def test_an_unreadable_or_endless_json_patch_has_a_code_of_its_own() -> None:
    for patch, code in (({"op": "add"}, 400), (["x"], 400), ([{"op": "test", "path": "/a"}] * 10_001, 413)):
        with pytest.raises(StatusError) as refusal:
            patches.apply({}, patch)
        assert refusal.value.code == code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text("ab/~", max_size=2), JSON, max_size=4)


def difference(old: object, new: object, path: str = "") -> list[dict]:
    """A JSON patch from old to new, the plain way."""
    if isinstance(old, dict) and isinstance(new, dict):
        escaped = {key: f"{path}/{key.replace('~', '~0').replace('/', '~1')}" for key in [*old, *new]}
        found = [{"op": "remove", "path": escaped[key]} for key in old if key not in new]
        for key, value in new.items():
            found += difference(old[key], value, escaped[key]) if key in old else []
            found += [] if key in old else [{"op": "add", "path": escaped[key], "value": value}]
        return found
    return [] if patches.equal(old, new) else [{"op": "replace", "path": path, "value": new}]


@given(OBJECTS, OBJECTS)
def test_a_json_patch_of_the_difference_leads_from_any_object_to_any_other(old: dict, new: dict) -> None:
    assert patches.equal(patches.apply(old, difference(old, new)), new)


# From RFC 7386, appendix A.
@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a"], {"a": 1}, {"a": 1}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_the_rfc_says(document: object, patch: object, result: object) -> None:
    assert patches.merge(document, patch) == result


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_twice_is_the_same_as_once(document: dict, patch: dict) -> None:
    once = patches.merge(document, patch)
    assert patches.merge(once, patch) == once


@functools.cache
def type_of(group: str, kind: str) -> Type:
    return Schemas([Resource(group, "v1", kind, kind.lower() + "s")]).of(group, "v1", kind)


def containers(*names: str) -> list[dict]:
    return [{"name": name, "image": f"{name}:1"} for name in names]


def patched(pod_spec: dict, patch: dict) -> dict:
    return strategic.merge({"spec": pod_spec}, {"spec": patch}, type_of("", "Pod"))["spec"]


def test_lists_with_a_merge_key_are_merged_item_by_item() -> None:
    spec = {"containers": [{"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}]}, *containers("b")]}
    patch = {"containers": [{"name": "a", "image": "a:2", "env": [{"name": "Y", "value": "2"}]}]}
    merged = patched(spec, patch)["containers"]
    assert [container["name"] for container in merged] == ["a", "b"]
    assert merged[0]["image"] == "a:2"
    assert sorted(variable["name"] for variable in merged[0]["env"]) == ["X", "Y"]
    assert merged[1] == {"name": "b", "image": "b:1"}


def test_lists_without_a_merge_key_are_replaced() -> None:
    assert patched(
        {"containers": [{"name": "a", "args": ["x", "y"]}]}, {"containers": [{"name": "a", "args": ["z"]}]}
    ) == {"containers": [{"name": "a", "args": ["z"]}]}


def test_service_ports_are_told_apart_by_port() -> None:
    service = {"spec": {"ports": [{"port": 80, "nodePort": 30080}, {"port": 443}]}}
    patch = {"spec": {"ports": [{"port": 80, "nodePort": 30081}]}}
    merged = strategic.merge(service, patch, type_of("", "Service"))
    assert merged["spec"]["ports"] == [{"port": 80, "nodePort": 30081}, {"port": 443}]


def test_directives_delete_and_replace() -> None:
    spec = {"containers": containers("a", "b"), "nodeSelector": {"x": "1"}}
    assert patched(spec, {"containers": [{"name": "a", "$patch": "delete"}]})["containers"] == containers("b")
    replaced = patched(spec, {"containers": [{"$patch": "replace"}, *containers("c")]})
    assert replaced["containers"] == containers("c")
    assert patched(spec, {"nodeSelector": {"$patch": "replace", "y": "2"}})["nodeSelector"] == {"y": "2"}
    assert patched(spec, {"nodeSelector": {"$patch": "delete"}})["nodeSelector"] == {}
    assert patched(spec, {"nodeSelector": {"x": None}})["nodeSelector"] == {}


def test_scalars_are_merged_and_deleted_by_value() -> None:
    pod = {"metadata": {"name": "x", "finalizers": ["a", "b"]}}
    type_ = type_of("", "Pod")
    added = strategic.merge(pod, {"metadata": {"finalizers": ["c", "a"]}}, type_)
    assert sorted(added["metadata"]["finalizers"]) == ["a", "b", "c"]
    removed = strategic.merge(pod, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, type_)
    assert removed["metadata"]["finalizers"] == ["b"]


def test_the_order_asked_for_is_kept_and_the_servers_own_items_stay_in_their_places() -> None:
    spec = {"containers": containers("a", "own", "b", "c")}
    patch = {"$setElementOrder/containers": [{"name": n} for n in ("c", "a", "new")], "containers": containers("new")}
    merged = [container["name"] for container in patched(spec, patch)["containers"]]
    assert [name for name in merged if name in {"c", "a", "new"}] == ["c", "a", "new"]
    assert [name for name in merged if name in {"own", "b"}] == ["own", "b"]


def test_retain_keys_drop_the_others() -> None:
    spec = {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}
    patch = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    merged = strategic.merge({"spec": spec}, patch, type_of("apps", "Deployment"))
    assert merged["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"containers": [{"image": "x"}]}, 400),
        ({"containers": ["x"]}, 400),
        ({"nodeSelector": {"$patch": "frobnicate"}}, 400),
        ({"nodeSelector": {"$retainKeys": "x"}}, 400),
        ({"nodeSelector": {"$retainKeys": ["x"], "y": "1"}}, 422),
        ({"$setElementOrder/containers": "x"}, 400),
    ],
)
def test_a_strategic_patch_that_breaks_the_rules_is_refused(patch: dict, code: int) -> None:
    with pytest.raises(StatusError) as refusal:
        patched({"containers": containers("a"), "nodeSelector": {"x": "1"}}, patch)
    assert refusal.value.code == code


NAMES = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(NAMES, NAMES)
def test_applying_a_manifest_makes_its_list_and_order_whatever_was_there(have: list[str], want: list[str]) -> None:
    """What kubectl apply sends when it owns the whole list: items, deletions, and the order."""
    patch = {
        "$setElementOrder/containers": [{"name": name} for name in want],
        "containers": [*containers(*want), *({"name": n, "$patch": "delete"} for n in have if n not in want)],
    }
    spec = {"containers": containers(*have)}
    result = patched(spec, patch).get("containers", [])
    assert [container["name"] for container in result] == want


@given(OBJECTS, OBJECTS)
def test_without_a_schema_strategic_merge_is_merge_patch(document: dict, patch: dict) -> None:
    def pruned(value: object) -> object:
        """Strategic merge drops nulls in new objects at any depth, also inside lists."""
        if isinstance(value, dict):
            return {key: pruned(inner) for key, inner in value.items() if inner is not None}
        return [pruned(inner) for inner in value] if isinstance(value, list) else value

    document = json.loads(json.dumps(pruned(document)))
    assert pruned(strategic.merge(document, patch, None)) == pruned(patches.merge(document, patch))
