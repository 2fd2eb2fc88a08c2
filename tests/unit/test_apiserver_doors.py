"""Bodies, forms of answers, discovery, OpenAPI and what is not served, over HTTP."""

from __future__ import annotations

import json

import pytest
from apiserver_process import CONFIG_MAPS, DEPLOYMENTS, JSON, PODS, config_map, pod, refused

pytestmark = pytest.mark.unit


class TestBodies:
    def test_unknown_fields_are_a_warning_an_error_or_nothing_as_the_client_says(self, server, name) -> None:
        body = config_map(name) | {"dat": {}, "metadata": {"name": name, "lables": {}}}
        strict = refused(server, 400, "BadRequest", "POST", f"{CONFIG_MAPS}?fieldValidation=Strict", body)
        assert strict["message"] == (
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: '
            'unknown field "metadata.lables", unknown field "dat"'
        )
        warned = server("POST", f"{CONFIG_MAPS}?fieldValidation=Warn", body)
        assert warned.headers.get_all("Warning") == [
            '299 - "unknown field \\"metadata.lables\\""',
            '299 - "unknown field \\"dat\\""',
        ]
        assert "dat" not in warned.body
        assert server("PUT", f"{CONFIG_MAPS}/{name}", body).headers.get_all("Warning")
        assert server("PUT", f"{CONFIG_MAPS}/{name}?fieldValidation=Ignore", body).headers["Warning"] is None
        status = refused(server, 422, "Invalid", "POST", f"{CONFIG_MAPS}?fieldValidation=Maybe", body)
        assert status["message"] == (
            'CreateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Maybe": '
            'supported values: "", "Ignore", "Strict", "Warn"'
        )

    def test_duplicate_fields_are_found(self, server) -> None:
        body = b'{"metadata": {"name": "x", "labels": {"a": "1", "a": "2"}}, "data": {}, "data": {}}'
        status = refused(server, 400, "BadRequest", "POST", f"{CONFIG_MAPS}?fieldValidation=Strict", body, JSON)
        assert 'duplicate field "metadata.labels.a", duplicate field "data"' in status["message"]

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"{", "couldn't get version/kind; json parse error"),
            (b"[]", "the body is not an object"),
            (b'{"kind": "Pod", "apiVersion": "v1"}', "does not match the expected kind (ConfigMap)"),
            (b'{"apiVersion": "v2"}', "the API version in the data (v2) does not match the expected API version (v1)"),
            (
                b'{"data": {"a": 1}}',
                "json: cannot unmarshal number into Go struct field ConfigMap.data.a of type string",
            ),
            (
                b'{"metadata": {"labels": []}}',
                "json: cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map[string]string",
            ),
            (b'{"immutable": "yes"}', "cannot unmarshal string into Go struct field ConfigMap.immutable of type bool"),
        ],
    )
    def test_a_body_that_is_no_such_object(self, server, body: bytes, words: str) -> None:
        assert words in refused(server, 400, "BadRequest", "POST", CONFIG_MAPS, body, JSON)["message"]

    def test_yaml_is_read_and_written(self, server, name) -> None:
        body = f"metadata:\n  name: {name}\ndata:\n  x: '1'\n".encode()
        headers = {"Content-Type": "application/yaml", "Accept": "application/yaml"}
        answer = server("POST", CONFIG_MAPS, body, headers)
        assert answer.headers["Content-Type"] == "application/yaml"
        assert b"data:\n  x: '1'\n" in answer.raw

    def test_other_media_types_are_415_and_406(self, server) -> None:
        status = refused(server, 415, "UnsupportedMediaType", "POST", CONFIG_MAPS, b"x", {"Content-Type": "text/x"})
        assert status["message"].startswith("the body of the request was in an unknown format - accepted media types")
        for accept in (
            "application/vnd.kubernetes.protobuf",
            "text/html",
            "application/json;as=Chart;v=v1;g=meta.k8s.io",
        ):
            refused(server, 406, "NotAcceptable", "GET", CONFIG_MAPS, None, {"Accept": accept})

    def test_a_body_has_a_size(self, server) -> None:
        refused(server, 413, "RequestEntityTooLarge", "POST", CONFIG_MAPS, b"x" * (3 * 1024 * 1024 + 1), JSON)


class TestForms:
    def test_a_table_holds_metadata_the_object_or_nothing(self, server, name) -> None:
        server.ok("POST", CONFIG_MAPS, config_map(name, {name: ""}))
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
        path = f"{CONFIG_MAPS}?labelSelector={name}"
        kinds = {}
        for include in ("", "Metadata", "Object", "None"):
            table = server.ok("GET", f"{path}&includeObject={include}", None, accept)
            assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
            assert table["metadata"]["resourceVersion"]
            kinds[include] = table["rows"][0].get("object", {}).get("kind")
        meta = "PartialObjectMetadata"
        assert kinds == {"": meta, "Metadata": meta, "Object": "ConfigMap", "None": None}
        one = server.ok("GET", f"{CONFIG_MAPS}/{name}", None, accept)
        assert one["rows"][0]["cells"][0] == name

    def test_metadata_alone(self, server, name) -> None:
        server.ok("POST", CONFIG_MAPS, config_map(name, x="1"))
        clauses = (
            "application/vnd.kubernetes.protobuf;as={0};g=meta.k8s.io;v=v1,application/json;as={0};g=meta.k8s.io;v=v1"
        )
        one = server.ok("GET", f"{CONFIG_MAPS}/{name}", None, {"Accept": clauses.format("PartialObjectMetadata")})
        assert (one["kind"], set(one)) == ("PartialObjectMetadata", {"kind", "apiVersion", "metadata"})
        many = server.ok("GET", CONFIG_MAPS, None, {"Accept": clauses.format("PartialObjectMetadataList")})
        assert many["kind"] == "PartialObjectMetadataList"
        assert {item["kind"] for item in many["items"]} == {"PartialObjectMetadata"}

    def test_protobuf_first_and_json_second_is_json(self, server) -> None:
        accept = {"Accept": "application/vnd.kubernetes.protobuf,application/json"}
        assert server("GET", CONFIG_MAPS, None, accept).headers["Content-Type"] == "application/json"

    def test_people_get_it_indented(self, server) -> None:
        assert b'\n  "kind"' in server("GET", f"{CONFIG_MAPS}?pretty=1").raw
        assert b'\n  "kind"' in server("GET", CONFIG_MAPS, None, {"User-Agent": "curl/8"}).raw


class TestDoors:
    def test_without_the_token_nothing_is_shown_but_health_and_version(self, server) -> None:
        for header in (
            {"Authorization": ""},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {server.token}"},
        ):
            for path in (CONFIG_MAPS, "/api", "/openapi/v3", "/nowhere"):
                status = refused(server, 401, "Unauthorized", "GET", path, None, header)
                assert status["message"] == "Unauthorized"
            for path in ("/healthz", "/livez", "/readyz", "/version"):
                assert server("GET", path, None, header).code == 200
        assert server.token not in server.log.read_text()

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", f"{CONFIG_MAPS}/x"),
            ("PUT", CONFIG_MAPS),
            ("PATCH", CONFIG_MAPS),
            ("POST", "/api/v1/configmaps"),
            ("DELETE", "/api/v1/configmaps"),
            ("DELETE", f"{DEPLOYMENTS}/x/scale"),
            ("POST", f"{DEPLOYMENTS}/x/status"),
            ("GET", f"{PODS}/x/binding"),
        ],
    )
    def test_methods_that_a_path_does_not_have(self, server, method: str, path: str) -> None:
        if path.endswith("/binding"):
            server.ok("POST", PODS, pod("x"))
        refused(server, 405, "MethodNotAllowed", method, path, {} if method in {"POST", "PUT"} else None)

    @pytest.mark.parametrize(
        "path",
        [
            "/nowhere",
            "/api/v2",
            "/api/v1/nothings",
            "/apis/nowhere",
            "/apis/apps/v2/deployments",
            "/apis/apps/v1/configmaps",
            "/api/v1/configmaps/x",
            "/api/v1/namespaces/default/nodes",
            f"{CONFIG_MAPS}/x/status",
            f"{DEPLOYMENTS}/x/scale/y",
            "/openapi/v3/apis/nowhere/v1",
        ],
    )
    def test_paths_that_there_are_not(self, server, path: str) -> None:
        status = refused(server, 404, "NotFound", "GET", path)
        assert status["message"] == "the server could not find the requested resource"

    @pytest.mark.parametrize("subresource", ["log", "exec", "attach", "portforward", "eviction", "ephemeralcontainers"])
    def test_what_kubernetes_has_and_podwire_has_not_says_so(self, server, subresource: str) -> None:
        status = refused(server, 501, "NotImplemented", "GET", f"{PODS}/x/{subresource}")
        assert status["message"] == f"podwire's API server does not serve pods/{subresource}"

    def test_discovery_says_the_same_in_both_forms(self, server) -> None:
        aggregated = {"Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}
        found = {}
        for root in ("/api", "/apis"):
            answer = server("GET", root, None, aggregated)
            assert answer.headers["Content-Type"] == (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            )
            for group in answer.body["items"]:
                for version in group["versions"]:
                    name = group["metadata"].get("name", "")
                    where = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
                    found[where] = {resource["resource"] for resource in version["resources"]}
        assert set(found) == {"/api/v1", *(
            f"/apis/{version['groupVersion']}"
            for group in server.ok("GET", "/apis")["groups"]
            for version in group["versions"]
        )}  # fmt: skip
        for where, names in found.items():
            rows = server.ok("GET", where)["resources"]
            assert {row["name"] for row in rows if "/" not in row["name"]} == names
            group = where.removeprefix("/apis/").partition("/")[0]
            if where != "/api/v1":
                assert server.ok("GET", f"/apis/{group}")["name"] == group

    def test_openapi_knows_what_kubectl_looks_for(self, server) -> None:
        index = server.ok("GET", "/openapi/v3")["paths"]
        assert {"api/v1", "apis/apps/v1", "apis/discovery.k8s.io/v1"} <= set(index)
        answer = server("GET", index["apis/apps/v1"]["serverRelativeURL"])
        assert "immutable" in answer.headers["Cache-Control"]
        document = answer.body
        patch = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
        assert patch["x-kubernetes-group-version-kind"] == {"group": "apps", "kind": "Deployment", "version": "v1"}
        assert {"fieldValidation", "dryRun"} <= {parameter["name"] for parameter in patch["parameters"]}
        schemas = document["components"]["schemas"]
        containers = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
        assert (containers["x-kubernetes-patch-merge-key"], containers["type"]) == ("name", "array")
        text = json.dumps(document)
        assert '"null"' not in text
        assert "$defs" not in text
        references = set(_references(document))
        assert references <= {f"#/components/schemas/{name}" for name in schemas}


def _references(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref" and isinstance(inner, str):
                yield inner
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
