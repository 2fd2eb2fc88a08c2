"""The verbs on resources: from a parsed path to an answer.

Reading verbs take a snapshot in the event loop; writing ones decode the body here, then run in the writer (`writes`,
`deletion`, `subresources`). Each method of `Resources` is one verb.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from podwire.apiserver import bodies, deletion, patching, paths, reads, status, subresources, watch, writes
from podwire.apiserver import options as query_options
from podwire.apiserver.negotiation import negotiate
from podwire.apiserver.render import Renderer, dump
from podwire.apiserver.selectors import Selector
from podwire.apiserver.store import decode, encode
from podwire.apiserver.streaming import WatchResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from podwire.apiserver.backend import Backend
    from podwire.apiserver.negotiation import Rendering
    from podwire.apiserver.options import ListOptions
    from podwire.apiserver.paths import Target
    from podwire.apiserver.resource import Object, Resource
    from podwire.apiserver.schema import Type
    from podwire.apiserver.work import Work

_WATCH_SECONDS = 1800
"""A watch without timeoutSeconds lasts this long and up to as much again: the real server's --min-request-timeout."""


class Resources:
    """Answers requests below /api/v1 and /apis/GROUP/VERSION."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def __call__(self, request: Request) -> ASGIApp:
        """One request."""
        target = paths.parse(request.url.path, self._backend.registry)
        verb = _verb(request.method, target)
        if verb not in target.resource.verbs and not target.subresource:
            raise status.method_not_supported(target.resource, verb)
        answer: ASGIApp = await getattr(self, f"_{verb}")(request, target)
        return answer

    async def _get(self, request: Request, target: Target) -> Response:
        selector = Selector(target.resource)
        version = request.query_params.get("resourceVersion", "")
        raw = reads.get(self._backend.reader, selector, target.namespace, target.name, version)
        if target.subresource == "scale":
            return self._answer(request, subresources.SCALE, encode(subresources.scale_of(decode(raw))))
        if target.subresource == "binding":
            raise status.method_not_supported(target.resource, "get")
        return self._answer(request, target.resource, raw)

    async def _list(self, request: Request, target: Target) -> ASGIApp:
        options = query_options.list_options(request.query_params, target.watch)
        fields = f"metadata.name={target.name}" if target.name else options.fields
        selector = Selector(target.resource, options.labels, fields)
        rendering = _rendering(request)
        renderer = Renderer(target.resource, rendering, self._backend.now)
        if options.watch:
            return self._watch(selector, target.namespace, options, renderer)
        raws, metadata = reads.page(self._backend.reader, selector, target.namespace, options)
        return _response(dump(renderer.many(raws, metadata), rendering), rendering)

    def _watch(self, selector: Selector, namespace: str, options: ListOptions, renderer: Renderer) -> ASGIApp:
        backend = self._backend
        start: int | None = None
        if options.send_initial_events is False and options.resource_version in {"", "0"}:
            with backend.reader.snapshot() as snapshot:
                start = snapshot.revision
        elif options.send_initial_events is not True and options.resource_version not in {"", "0"}:
            start = query_options.revision(options.resource_version)
        elif options.resource_version:
            with backend.reader.snapshot() as snapshot:
                reads.not_newer(query_options.revision(options.resource_version), snapshot)
        # Spread out, so that not all clients of a restarted server come back at the same moment.
        seconds = options.timeout or _WATCH_SECONDS * (1 + random.random())  # noqa: S311 - no secret
        wanted = watch.Request(selector, namespace, start, options.bookmarks, float(seconds))
        return WatchResponse(wanted, backend.hub, backend.reader, renderer)

    async def _create(self, request: Request, target: Target) -> Response:
        resource = target.resource
        options = query_options.write_options(request.query_params, "CreateOptions")
        if target.subresource:
            return await self._bind(request, target, options)
        obj, warnings = await self._body(request, resource, self._type(resource), options.validation)

        def create(work: Work) -> bytes:
            raw = writes.create(work, resource, target.namespace, obj)
            return _without_version(raw) if options.dry_run else raw

        raw, more = await self._backend.write(create, dry_run=options.dry_run)
        return self._answer(request, resource, raw, 201, warnings + more)

    async def _bind(self, request: Request, target: Target, options: query_options.WriteOptions) -> Response:
        if target.subresource != "binding":
            raise status.method_not_supported(target.resource, "create")
        kind = subresources.BINDING
        binding, warnings = await self._body(request, kind, self._type(kind), options.validation)

        def bind(work: Work) -> Object:
            return subresources.bind(work, target.resource, target.namespace, target.name, binding)

        answer, more = await self._backend.write(bind, dry_run=options.dry_run)
        return self._answer(request, kind, encode(answer), 201, warnings + more, plain=True)

    async def _update(self, request: Request, target: Target) -> Response:
        options = query_options.write_options(request.query_params, "UpdateOptions")
        kind = subresources.SCALE if target.subresource == "scale" else target.resource
        body, warnings = await self._body(request, kind, self._type(kind), options.validation)
        return await self._change(request, target, lambda _obj, _work: body, options, warnings)

    async def _patch(self, request: Request, target: Target) -> Response:
        options = query_options.write_options(request.query_params, "PatchOptions")
        kind = subresources.SCALE if target.subresource == "scale" else target.resource
        content_type = request.headers.get("content-type", "")
        patch = patching.read(content_type, await _read(request))
        type_ = self._type(kind)

        def change(obj: Object, work: Work) -> Object:
            return patching.apply(patch, obj, kind, type_, options.validation, work)

        return await self._change(request, target, change, options, [])

    async def _change(
        self,
        request: Request,
        target: Target,
        change: Callable[[Object, Work], Object],
        options: query_options.WriteOptions,
        warnings: list[str],
    ) -> Response:
        """Update and patch, of an object or a subresource."""
        resource, namespace, name = target.resource, target.namespace, target.name
        if target.subresource == "binding":
            raise status.method_not_supported(resource, "update")

        def act(work: Work) -> bytes:
            if target.subresource == "scale":
                scale = subresources.set_scale(work, resource, namespace, name, lambda obj: change(obj, work))
                return encode(scale)
            old = work.transaction.get(resource.key, namespace, name)
            raw = writes.update(work, resource, namespace, name, lambda obj: change(obj, work), target.subresource)
            return _with_version_of(raw, old) if options.dry_run and old else raw

        raw, more = await self._backend.write(act, dry_run=options.dry_run)
        kind = subresources.SCALE if target.subresource == "scale" else resource
        return self._answer(request, kind, raw, 200, warnings + more)

    async def _delete(self, request: Request, target: Target) -> Response:
        if target.subresource:
            raise status.method_not_supported(target.resource, "delete")
        options, dry_run = await self._delete_options(request)

        def act(work: Work) -> Any:
            return deletion.delete(work, target.resource, target.namespace, target.name, options)

        answer, warnings = await self._backend.write(act, dry_run=dry_run)
        if isinstance(answer, bytes):
            return self._answer(request, target.resource, answer, 200, warnings)
        return self._answer(request, target.resource, encode(answer), 200, warnings, plain=True)

    async def _deletecollection(self, request: Request, target: Target) -> Response:
        listing = query_options.list_options(request.query_params, watch=False)
        selector = Selector(target.resource, listing.labels, listing.fields)
        options, dry_run = await self._delete_options(request)
        resource = target.resource

        def act(work: Work) -> list[bytes]:
            return deletion.delete_all(work, resource, target.namespace, selector.matches, options)

        raws, warnings = await self._backend.write(act, dry_run=dry_run)
        rendering = _rendering(request)
        renderer = Renderer(resource, rendering, self._backend.now)
        metadata = {"resourceVersion": str(self._backend.hub.revision)}
        return _response(dump(renderer.many(raws, metadata), rendering), rendering, 200, warnings)

    async def _delete_options(self, request: Request) -> tuple[deletion.Options, bool]:
        """From the body or, where it says nothing, the query."""
        body = bodies.delete_options(request.headers.get("content-type", ""), await _read(request))
        for name in ("propagationPolicy", "gracePeriodSeconds", "orphanDependents"):
            if name in request.query_params and name not in body:
                value: Any = request.query_params[name]
                if name == "gracePeriodSeconds":
                    value = query_options.integer(request.query_params, name)
                elif name == "orphanDependents":
                    value = query_options.boolean(request.query_params, name)
                body[name] = value
        words = body.get("dryRun") or [request.query_params.get("dryRun")]
        try:
            dry_run = any(query_options.is_dry_run(word) for word in words)
        except ValueError as error:
            raise status.bad_dry_run("DeleteOptions", str(error)) from None
        return deletion.Options.of(bodies.shaped(body, self._backend.schemas.delete_options)), dry_run

    async def _body(
        self, request: Request, resource: Resource, type_: Type, validation: str
    ) -> tuple[Object, list[str]]:
        return bodies.decode(request.headers.get("content-type", ""), await _read(request), resource, type_, validation)

    def _type(self, resource: Resource) -> Type:
        return self._backend.schemas.of(resource.group, resource.version, resource.kind)

    def _answer(
        self,
        request: Request,
        resource: Resource,
        raw: bytes,
        code: int = 200,
        warnings: list[str] | None = None,
        *,
        plain: bool = False,
    ) -> Response:
        """One object; `plain`: a Status, which is never made a table of."""
        rendering = _rendering(request)
        if not plain:
            raw = Renderer(resource, rendering, self._backend.now).one(raw)
        return _response(dump(raw, rendering), rendering, code, warnings)


def _verb(method: str, target: Target) -> str:
    """The verb of a method on a collection or an object. Raises StatusError 405."""
    if target.watch and method == "GET":
        return "list"
    on_object = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    on_collection = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
    if target.subresource:
        on_object["POST"] = "create"
    verb = (on_object if target.name else on_collection).get("GET" if method == "HEAD" else method)
    in_no_namespace = target.resource.namespaced and not target.namespace and verb in {"create", "deletecollection"}
    if verb is None or in_no_namespace:
        raise status.method_not_allowed()
    return verb


async def _read(request: Request) -> bytes:
    """The body, up to the limit. Raises StatusError 413."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > bodies.LIMIT:
            raise bodies.too_large()
    return b"".join(parts)


def _rendering(request: Request) -> Rendering:
    query = request.query_params
    pretty = query.get("pretty") not in {None, "false", "0"} or request.headers.get("user-agent", "").startswith(
        "curl/"
    )
    rendering = negotiate(request.headers.get("accept", ""))
    return rendering._replace(include=query.get("includeObject", "") or "Metadata", pretty=pretty)


def _response(body: bytes, rendering: Rendering, code: int = 200, warnings: list[str] | None = None) -> Response:
    response = Response(body, code, media_type=rendering.media_type)
    response.headers["cache-control"] = "no-cache, private"
    for text in warnings or ():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        printable = "".join(character for character in quoted if character.isprintable())
        response.headers.append("warning", f'299 - "{printable}"'.encode().decode("latin-1"))
    return response


def _without_version(raw: bytes) -> bytes:
    obj = decode(raw)
    del obj["metadata"]["resourceVersion"]
    return encode(obj)


def _with_version_of(raw: bytes, old: bytes) -> bytes:
    obj = decode(raw)
    obj["metadata"]["resourceVersion"] = decode(old)["metadata"]["resourceVersion"]
    return encode(obj)
