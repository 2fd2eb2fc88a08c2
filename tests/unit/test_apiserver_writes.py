"""Create, update and patch over HTTP: what is stored, and which Status says no."""

from __future__ import annotations

import json

import pytest
from apiserver_process import CONFIG_MAPS, DEPLOYMENTS, JSON, MERGE, PODS, config_map, deployment, pod, refused

pytestmark = pytest.mark.unit


class TestCreate:
    def test_the_server_names_the_object_and_says_when_it_was_made(self, server, name) -> None:
        answer = server("POST", CONFIG_MAPS, config_map(name, x="1"))
        assert answer.code == 201
        metadata = answer.body["metadata"]
        assert set(metadata) == {"name", "namespace", "uid", "creationTimestamp", "resourceVersion"}
        assert (metadata["name"], metadata["namespace"]) == (name, "default")

    def test_what_a_client_may_not_say_is_dropped(self, server, name) -> None:
        body = config_map(name)
        body["metadata"] |= {"uid": "mine", "deletionTimestamp": "2020-01-01T00:00:00Z", "labels": {}}
        body["metadata"] |= {"managedFields": [{"manager": "x"}], "creationTimestamp": None, "generation": 7}
        metadata = server.ok("POST", CONFIG_MAPS, body)["metadata"]
        assert metadata["uid"] != "mine"
        assert not {"deletionTimestamp", "labels", "managedFields", "generation"} & set(metadata)

    def test_a_name_can_be_generated(self, server) -> None:
        body = {"metadata": {"generateName": "x" * 60 + "-"}}
        names = {server.ok("POST", CONFIG_MAPS, body)["metadata"]["name"] for _ in range(3)}
        assert len(names) == 3
        assert {len(name) for name in names} == {63}

    def test_a_name_that_is_taken(self, server, name) -> None:
        server.ok("POST", CONFIG_MAPS, config_map(name))
        status = refused(server, 409, "AlreadyExists", "POST", CONFIG_MAPS, config_map(name))
        assert status["message"] == f'configmaps "{name}" already exists'
        assert status["details"] == {"name": name, "kind": "configmaps"}

    def test_a_namespace_that_is_missing(self, server) -> None:
        path = "/api/v1/namespaces/nowhere/configmaps"
        status = refused(server, 404, "NotFound", "POST", path, config_map("x"))
        assert status["message"] == 'namespaces "nowhere" not found'
        assert status["details"] == {"name": "nowhere", "kind": "namespaces"}

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({"name": "x", "resourceVersion": "5"}, "resourceVersion should not be set on objects to be created"),
            (
                {"name": "x", "namespace": "other"},
                "the namespace of the provided object does not match the namespace sent on the request",
            ),
        ],
    )
    def test_metadata_that_contradicts_the_request(self, server, metadata, message) -> None:
        assert refused(server, 400, "BadRequest", "POST", CONFIG_MAPS, {"metadata": metadata})["message"] == message

    def test_metadata_that_is_not_valid(self, server) -> None:
        metadata = {"name": "Bad", "labels": {"k!": "v", "k": "v!"}, "finalizers": ["mine"], "ownerReferences": [{}]}
        status = refused(server, 422, "Invalid", "POST", CONFIG_MAPS, {"metadata": metadata})
        assert status["details"]["kind"] == "ConfigMap"
        fields = [cause["field"] for cause in status["details"]["causes"]]
        assert fields[:3] == ["metadata.name", "metadata.labels", "metadata.labels"]
        assert "metadata.finalizers" in fields
        assert "metadata.ownerReferences[0].uid" in fields
        assert status["message"].startswith('ConfigMap "Bad" is invalid: [metadata.name: Invalid value: "Bad": a lower')

    def test_no_name_at_all(self, server) -> None:
        status = refused(server, 422, "Invalid", "POST", CONFIG_MAPS, {"metadata": {}})
        assert status["message"] == (
            'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required'
        )

    def test_annotations_have_a_size(self, server, name) -> None:
        body = {"metadata": {"name": name, "annotations": {"a": "x" * 262_144}}}
        status = refused(server, 422, "Invalid", "POST", CONFIG_MAPS, body)
        assert "metadata.annotations: Too long: may not be more than 262144 bytes" in status["message"]


class TestUpdate:
    def test_a_stale_version_is_a_conflict_and_no_version_is_none(self, server, name) -> None:
        first = server.ok("POST", CONFIG_MAPS, config_map(name))
        server.ok("PUT", f"{CONFIG_MAPS}/{name}", config_map(name, x="1"))
        status = refused(server, 409, "Conflict", "PUT", f"{CONFIG_MAPS}/{name}", first | {"data": {"x": "2"}})
        assert status["message"] == (
            f'Operation cannot be fulfilled on configmaps "{name}": the object has been modified; please apply your '
            "changes to the latest version and try again"
        )
        patch = {"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"x": "2"}}
        refused(server, 409, "Conflict", "PATCH", f"{CONFIG_MAPS}/{name}", patch, MERGE)
        assert server.ok("GET", f"{CONFIG_MAPS}/{name}")["data"] == {"x": "1"}

    def test_an_update_that_changes_nothing_writes_nothing(self, server, name) -> None:
        first = server.ok("POST", CONFIG_MAPS, config_map(name, x="1"))
        assert server.ok("PUT", f"{CONFIG_MAPS}/{name}", config_map(name, x="1")) == first
        assert server.ok("PATCH", f"{CONFIG_MAPS}/{name}", {"data": {"x": "1"}}, MERGE) == first

    def test_identity_cannot_be_changed(self, server, name) -> None:
        made = server.ok("POST", CONFIG_MAPS, config_map(name))
        path = f"{CONFIG_MAPS}/{name}"
        status = refused(server, 400, "BadRequest", "PUT", path, config_map("other"))
        assert status["message"] == f"the name of the object (other) does not match the name on the URL ({name})"
        body = config_map(name)
        body["metadata"]["namespace"] = "other"
        assert (
            "does not match the namespace on the request (default)"
            in refused(server, 400, "BadRequest", "PUT", path, body)["message"]
        )
        body = config_map(name)
        body["metadata"]["uid"] = "another"
        assert (
            "Precondition failed: UID in precondition: another"
            in refused(server, 409, "Conflict", "PUT", path, body)["message"]
        )
        body = config_map(name, y="1")
        body["metadata"] |= {"creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z"}
        changed = server.ok("PUT", path, body)["metadata"]
        assert {key: value for key, value in changed.items() if key != "resourceVersion"} == {
            key: value for key, value in made["metadata"].items() if key != "resourceVersion"
        }

    def test_what_is_not_there_cannot_be_changed(self, server) -> None:
        for method, headers in (("PUT", JSON), ("PATCH", MERGE), ("DELETE", None), ("GET", None)):
            body = json.dumps(config_map("nope")).encode() if headers else None
            status = refused(server, 404, "NotFound", method, f"{CONFIG_MAPS}/nope", body, headers)
            assert status["message"] == 'configmaps "nope" not found'

    def test_status_and_spec_are_two_doors(self, server, name) -> None:
        path = f"{DEPLOYMENTS}/{name}"
        made = server.ok("POST", DEPLOYMENTS, deployment(name) | {"status": {"replicas": 9}})
        assert made["metadata"]["generation"] == 1
        assert "replicas" not in made.get("status", {})
        patch = {"spec": {"replicas": 3}, "status": {"replicas": 2}, "metadata": {"annotations": {"a": "b"}}}
        after = server.ok("PATCH", f"{path}/status", patch, MERGE)
        assert (after["spec"]["replicas"], after["status"]["replicas"]) == (1, 2)
        assert (after["metadata"]["generation"], after["metadata"]["annotations"]) == (1, {"a": "b"})
        after = server.ok("PATCH", path, patch | {"status": {"replicas": 7}}, MERGE)
        assert (after["spec"]["replicas"], after["status"]["replicas"]) == (3, 2)
        assert after["metadata"]["generation"] == 2

    def test_a_patch_that_does_not_fit_the_kind(self, server, name) -> None:
        server.ok("POST", DEPLOYMENTS, deployment(name))
        path = f"{DEPLOYMENTS}/{name}"
        status = refused(server, 422, "Invalid", "PATCH", path, {"spec": {"replicas": "x"}}, MERGE)
        assert status["details"]["causes"][0]["field"] == "patch"
        assert (
            "cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
            in status["message"]
        )
        strict = f"{path}?fieldValidation=Strict"
        status = refused(server, 422, "Invalid", "PATCH", strict, {"spec": {"x": 1}}, MERGE)
        assert 'strict decoding error: unknown field "spec.x"' in status["message"]
        assert (
            server("PATCH", path, {"spec": {"x": 1}}, MERGE).headers["Warning"] == '299 - "unknown field \\"spec.x\\""'
        )
        for patch in (b"[]", b"x"):
            refused(server, 400, "BadRequest", "PATCH", path, patch, MERGE)

    def test_server_side_apply_is_refused_with_the_reason(self, server) -> None:
        headers = {"Content-Type": "application/apply-patch+yaml"}
        path = f"{CONFIG_MAPS}/x?fieldManager=me"
        status = refused(server, 415, "UnsupportedMediaType", "PATCH", path, b"{}", headers)
        assert "server-side apply" in status["message"]

    def test_scale_reads_and_writes_replicas(self, server, name) -> None:
        server.ok("POST", DEPLOYMENTS, deployment(name, 2))
        path = f"{DEPLOYMENTS}/{name}/scale"
        scale = server.ok("GET", path)
        assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": f"app={name}"})
        assert server.ok("PATCH", path, {"spec": {"replicas": 4}}, MERGE)["spec"] == {"replicas": 4}
        refused(server, 409, "Conflict", "PUT", path, scale | {"spec": {"replicas": 5}})
        status = refused(server, 422, "Invalid", "PATCH", path, {"spec": {"replicas": -1}}, MERGE)
        assert "spec.replicas: Invalid value: -1: must be greater than or equal to 0" in status["message"]
        assert server.ok("GET", f"{DEPLOYMENTS}/{name}")["spec"]["replicas"] == 4

    def test_a_pod_is_bound_once(self, server, name) -> None:
        server.ok("POST", PODS, pod(name))
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}}
        answer = server("POST", f"{PODS}/{name}/binding", binding)
        assert (answer.code, answer.body["status"]) == (201, "Success")
        bound = server.ok("GET", f"{PODS}/{name}")
        assert bound["spec"]["nodeName"] == "node-1"
        assert [c["type"] for c in bound["status"]["conditions"]] == ["PodScheduled"]
        status = refused(server, 409, "Conflict", "POST", f"{PODS}/{name}/binding", binding)
        assert f'pod {name} is already assigned to node "node-1"' in status["message"]
        wrong = {"target": {"kind": "Moon"}}
        assert len(refused(server, 422, "Invalid", "POST", f"{PODS}/{name}/binding", wrong)["details"]["causes"]) == 2


class TestDryRun:
    def test_nothing_is_kept_of_it(self, server, name) -> None:
        before = server.ok("GET", CONFIG_MAPS)["metadata"]["resourceVersion"]
        made = server("POST", f"{CONFIG_MAPS}?dryRun=All", config_map(name))
        assert made.code == 201
        assert "resourceVersion" not in made.body["metadata"]
        assert server("GET", f"{CONFIG_MAPS}/{name}").code == 404
        assert server.ok("GET", CONFIG_MAPS)["metadata"]["resourceVersion"] == before

    def test_update_patch_and_delete_answer_as_if(self, server, name) -> None:
        made = server.ok("POST", CONFIG_MAPS, config_map(name))
        path = f"{CONFIG_MAPS}/{name}"
        for answer in (
            server.ok("PUT", f"{path}?dryRun=All", config_map(name, x="1")),
            server.ok("PATCH", f"{path}?dryRun=All", {"data": {"x": "1"}}, MERGE),
        ):
            assert answer == made | {"data": {"x": "1"}}
        assert server.ok("DELETE", f"{path}?dryRun=All")["status"] == "Success"
        assert server.ok("DELETE", path, {"dryRun": ["All"]})["status"] == "Success"
        assert server.ok("GET", path) == made

    def test_an_allocation_is_tried_and_given_back(self, server, name) -> None:
        path = "/api/v1/namespaces/default/services"
        service = {"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 31999}]}}
        for _ in range(2):
            assert server.ok("POST", f"{path}?dryRun=All", service)["spec"]["clusterIP"]
        server.ok("POST", path, service)
        status = refused(
            server, 422, "Invalid", "POST", f"{path}?dryRun=All", service | {"metadata": {"name": "other"}}
        )
        assert "provided port is already allocated" in status["message"]

    def test_another_word_is_refused(self, server) -> None:
        status = refused(server, 422, "Invalid", "POST", f"{CONFIG_MAPS}?dryRun=some", config_map("x"))
        assert 'dryRun: Unsupported value: "some": supported values: "All"' in status["message"]
        refused(server, 422, "Invalid", "DELETE", f"{CONFIG_MAPS}/x?dryRun=some")
