"""Deletion over HTTP: marks, grace periods, finalizers, preconditions, namespaces."""

from __future__ import annotations

import time

import pytest
from apiserver_process import CONFIG_MAPS, DEPLOYMENTS, MERGE, PODS, config_map, deployment, pod, refused

pytestmark = pytest.mark.unit


class TestDelete:
    def test_an_object_that_nothing_holds_is_gone_at_once(self, server, name) -> None:
        made = server.ok("POST", CONFIG_MAPS, config_map(name))
        answer = server.ok("DELETE", f"{CONFIG_MAPS}/{name}")
        assert answer["status"] == "Success"
        assert answer["details"] == {"name": name, "kind": "configmaps", "uid": made["metadata"]["uid"]}

    def test_preconditions(self, server, name) -> None:
        made = server.ok("POST", CONFIG_MAPS, config_map(name))["metadata"]
        path = f"{CONFIG_MAPS}/{name}"
        for wrong in ({"uid": "another"}, {"resourceVersion": "1"}):
            assert (
                "Precondition failed"
                in refused(server, 409, "Conflict", "DELETE", path, {"preconditions": wrong})["message"]
            )
        right = {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}
        server.ok("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": right})

    def test_finalizers_hold_it_until_the_last_is_taken_off(self, server, name) -> None:
        body = config_map(name)
        body["metadata"]["finalizers"] = ["example.com/a", "example.com/b"]
        server.ok("POST", CONFIG_MAPS, body)
        path = f"{CONFIG_MAPS}/{name}"
        marked = server.ok("DELETE", path)
        assert marked["metadata"]["deletionTimestamp"]
        assert server.ok("DELETE", path) == marked
        finalizers = ["example.com/a", "example.com/new"]
        status = refused(server, 422, "Invalid", "PATCH", path, {"metadata": {"finalizers": finalizers}}, MERGE)
        assert "no new finalizers can be added if the object is being deleted" in status["message"]
        server.ok("PATCH", path, {"metadata": {"finalizers": ["example.com/a"]}}, MERGE)
        revision = server.ok("GET", CONFIG_MAPS)["metadata"]["resourceVersion"]
        server.ok("PATCH", path, {"metadata": {"finalizers": None}}, MERGE)
        assert server("GET", path).code == 404
        with server.watch(f"{CONFIG_MAPS}?watch=true&resourceVersion={revision}") as watch:
            assert watch.names(1) == [("DELETED", name)]

    @pytest.mark.parametrize(
        ("options", "finalizers"),
        [
            ({"propagationPolicy": "Foreground"}, ["foregroundDeletion"]),
            ({"propagationPolicy": "Orphan"}, ["orphan"]),
            ({"orphanDependents": True}, ["orphan"]),
        ],
    )
    def test_propagation_becomes_a_finalizer_for_the_collector(self, server, name, options, finalizers) -> None:
        server.ok("POST", CONFIG_MAPS, config_map(name))
        path = f"{CONFIG_MAPS}/{name}"
        assert server.ok("DELETE", path, options)["metadata"]["finalizers"] == finalizers
        assert server.ok("DELETE", f"{path}?propagationPolicy=Background")["status"] == "Success"

    def test_propagation_that_contradicts_itself(self, server, name) -> None:
        server.ok("POST", CONFIG_MAPS, config_map(name))
        path = f"{CONFIG_MAPS}/{name}"
        for options in ({"propagationPolicy": "Sideways"}, {"propagationPolicy": "Orphan", "orphanDependents": True}):
            status = refused(server, 422, "Invalid", "DELETE", path, options)
            assert status["message"].startswith('DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: ')

    def test_a_bound_pod_goes_in_two_steps_and_its_time_can_be_shortened_only(self, server, name) -> None:
        server.ok("POST", PODS, pod(name, nodeName="node-1"))
        path = f"{PODS}/{name}"
        marked = server.ok("DELETE", path)["metadata"]
        assert marked["deletionGracePeriodSeconds"] == 30
        assert marked["generation"] == 2
        shorter = server.ok("DELETE", f"{path}?gracePeriodSeconds=5")["metadata"]
        assert shorter["deletionGracePeriodSeconds"] == 5
        assert seconds(marked["deletionTimestamp"]) - seconds(shorter["deletionTimestamp"]) == 25
        assert server.ok("DELETE", path, {"gracePeriodSeconds": 60})["metadata"] == shorter
        server.ok("PATCH", f"{path}/status", {"status": {"phase": "Running"}}, MERGE)
        assert server.ok("DELETE", path, {"gracePeriodSeconds": 0})["status"] == "Success"
        assert server("GET", path).code == 404

    def test_an_unbound_pod_goes_at_once(self, server, name) -> None:
        server.ok("POST", PODS, pod(name))
        assert server.ok("DELETE", f"{PODS}/{name}")["status"] == "Success"

    def test_a_collection_is_deleted_by_selector(self, server, name) -> None:
        for number in range(4):
            server.ok("POST", CONFIG_MAPS, config_map(f"{name}-{number}", {name: str(number % 2)}))
        gone = server.ok("DELETE", f"{CONFIG_MAPS}?labelSelector={name}%3D1")
        assert [item["metadata"]["name"] for item in gone["items"]] == [f"{name}-1", f"{name}-3"]
        left = server.ok("GET", f"{CONFIG_MAPS}?labelSelector={name}")
        assert [item["metadata"]["name"] for item in left["items"]] == [f"{name}-0", f"{name}-2"]


def seconds(stamp: str) -> float:
    return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ"))


class TestNamespaces:
    def wait_until_gone(self, server, name: str) -> None:
        deadline = time.monotonic() + 5
        while server("GET", f"/api/v1/namespaces/{name}").code != 404:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def test_a_namespace_is_emptied_and_then_goes(self, server, name) -> None:
        server.ok("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        root = f"/api/v1/namespaces/{name}"
        server.ok("POST", f"{root}/configmaps", config_map("a"))
        server.ok("POST", f"{root}/pods", pod("p"))
        server.ok("POST", DEPLOYMENTS.replace("default", name), deployment("d"))
        marked = server.ok("DELETE", root)
        assert (marked["status"]["phase"], bool(marked["metadata"]["deletionTimestamp"])) == ("Terminating", True)
        self.wait_until_gone(server, name)
        assert server.ok("GET", f"{root}/configmaps")["items"] == []
        assert server.ok("GET", DEPLOYMENTS.replace("default", name))["items"] == []

    def test_it_waits_for_what_others_still_hold_and_takes_nothing_new(self, server, name) -> None:
        server.ok("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        root = f"/api/v1/namespaces/{name}"
        server.ok("POST", f"{root}/pods", pod("p", nodeName="node-1"))
        server.ok("DELETE", root)
        status = refused(server, 403, "Forbidden", "POST", f"{root}/configmaps", config_map("late"))
        assert status["message"] == (
            f'configmaps "late" is forbidden: unable to create new content in namespace {name} '
            "because it is being terminated"
        )
        assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        refused(server, 409, "Conflict", "DELETE", root)
        deadline = time.monotonic() + 5
        while not (conditions := server.ok("GET", root)["status"].get("conditions")):
            assert time.monotonic() < deadline
        assert conditions[0]["message"] == "Some resources are remaining: pods has 1 resource instances"
        assert server.ok("GET", f"{root}/pods/p")["metadata"]["deletionTimestamp"]
        server.ok("DELETE", f"{root}/pods/p?gracePeriodSeconds=0")
        self.wait_until_gone(server, name)

    def test_some_namespaces_stay(self, server) -> None:
        for name in ("default", "kube-system", "kube-public"):
            status = refused(server, 403, "Forbidden", "DELETE", f"/api/v1/namespaces/{name}")
            assert status["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'
