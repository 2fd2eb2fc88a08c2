"""The ASGI application: routes, the token, and errors as Status objects.

Discovery, health and version are routes of their own; everything else below /api and /apis goes to `handlers.Resources`,
which reads the path itself (which resources there are is data, not routes).

Every request but health and version needs `Authorization: Bearer TOKEN`, compared in constant time; who has the token may do
everything (it stands in the admin kubeconfig). There are no other users and no roles.
"""

from __future__ import annotations

import hmac
import logging
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from podwire.apiserver import discovery, openapi, status
from podwire.apiserver.handlers import Resources
from podwire.apiserver.negotiation import Rendering, negotiate
from podwire.apiserver.render import dump
from podwire.apiserver.store import StoreError, encode

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from podwire.apiserver.backend import Backend

log = logging.getLogger("podwire.apiserver")

_OPEN = frozenset({"/healthz", "/livez", "/readyz", "/version"})
"""Paths without a token, as a real cluster has them by the role system:public-info-viewer."""


def build(backend: Backend, token: str) -> Starlette:
    """The application."""
    documents = Documents(backend)
    resources = Resources(backend)
    every = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]

    async def resource(request: Request) -> ASGIApp:
        return await resources(request)

    routes = [
        *(Route(f"/{name}", documents.health) for name in ("healthz", "livez", "readyz")),
        Route("/version", documents.version),
        Route("/", documents.root),
        Route("/api", documents.core),
        Route("/apis", documents.groups),
        Route("/apis/{group}", documents.group),
        Route("/api/{version}", documents.resources),
        Route("/apis/{group}/{version}", documents.resources),
        Route("/openapi/v3", documents.openapi_index),
        Route("/openapi/v3/api/{version}", documents.openapi),
        Route("/openapi/v3/apis/{group}/{version}", documents.openapi),
        Route("/{path:path}", resource, methods=every),
    ]
    handlers: Any = {status.StatusError: _refuse, StoreError: _broken_store, 405: _bad_method, 404: _bad_path}
    application = Starlette(
        routes=routes, exception_handlers=handlers | {Exception: _fault}, middleware=[Middleware(Token, token=token)]
    )
    application.router.redirect_slashes = False
    return application


class Token:
    """ASGI middleware: 401 without the bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        sent = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if scope["path"] in _OPEN or hmac.compare_digest(sent, self._expected):
            await self._app(scope, receive, send)
        else:
            await _status(status.unauthorized())(scope, receive, send)


class Documents:
    """Everything that is not a resource: discovery, OpenAPI, version, health."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._registry = backend.registry

    async def health(self, request: Request) -> Response:
        """200 `ok`; the server listens only after it has become ready, so all three paths say the same."""
        if "verbose" not in request.query_params:
            return PlainTextResponse("ok")
        with self._backend.reader.snapshot() as snapshot:
            line = f"[+]store ok: revision {snapshot.revision}"
        return PlainTextResponse(f"[+]ping ok\n{line}\n{request.url.path[1:]} check passed\n")

    async def version(self, request: Request) -> Response:
        """What kubectl version prints."""
        return _document(request, discovery.version())

    async def root(self, request: Request) -> Response:
        """The list of paths."""
        return _document(request, discovery.paths(self._registry))

    async def core(self, request: Request) -> Response:
        """The core group, in the form asked for."""
        rendering = negotiate(request.headers.get("accept", ""), ("discovery",))
        if rendering.form == "discovery":
            return _document(request, discovery.aggregated(self._registry, core=True), rendering)
        return _document(request, discovery.core_versions(self._backend.address), rendering)

    async def groups(self, request: Request) -> Response:
        """The other groups, in the form asked for."""
        rendering = negotiate(request.headers.get("accept", ""), ("discovery",))
        if rendering.form == "discovery":
            return _document(request, discovery.aggregated(self._registry, core=False), rendering)
        return _document(request, discovery.group_list(self._registry), rendering)

    async def group(self, request: Request) -> Response:
        """One group."""
        return _document(request, discovery.group(self._registry, request.path_params["group"]))

    async def resources(self, request: Request) -> Response:
        """The resources of one group and version."""
        names = request.path_params
        return _document(request, discovery.resource_list(self._registry, names.get("group", ""), names["version"]))

    async def openapi_index(self, request: Request) -> Response:
        """Which OpenAPI documents there are."""
        return _document(request, openapi.index(self._registry))

    async def openapi(self, request: Request) -> Response:
        """One OpenAPI document. Asked for by its hash it may be kept for ever."""
        group, version = request.path_params.get("group", ""), request.path_params["version"]
        response = _document(request, openapi.document(self._registry, group, version))
        if request.query_params.get("hash") == openapi.digest(self._registry, group, version):
            response.headers["cache-control"] = "public, immutable"
            response.headers["expires"] = "Tue, 19 Jan 2038 03:14:07 GMT"
        return response


def _document(request: Request, document: dict[str, Any] | None, rendering: Rendering | None = None) -> Response:
    if document is None:
        raise status.path_not_found()
    rendering = rendering or negotiate(request.headers.get("accept", ""), ())
    pretty = "pretty" in request.query_params or request.headers.get("user-agent", "").startswith("curl/")
    response = Response(dump(encode(document), rendering._replace(pretty=pretty)), media_type=rendering.media_type)
    response.headers["cache-control"] = "no-cache, private"
    return response


def _status(error: status.StatusError) -> Response:
    response = Response(encode(error.body()) + b"\n", error.code, media_type="application/json")
    response.headers["cache-control"] = "no-cache, private"
    if error.retry_after:
        response.headers["retry-after"] = str(error.retry_after)
    return response


async def _refuse(request: Request, error: status.StatusError) -> Response:
    log.debug("%s %s: %s", request.method, request.url.path, error.message)
    return _status(error)


async def _broken_store(request: Request, error: StoreError) -> Response:
    log.error("%s %s: %s", request.method, request.url.path, error)
    return _status(status.internal(str(error)))


async def _bad_method(_request: Request, _error: Exception) -> Response:
    return _status(status.method_not_allowed())


async def _bad_path(_request: Request, _error: Exception) -> Response:
    return _status(status.path_not_found())


async def _fault(request: Request, error: Exception) -> Response:
    """A fault of ours: the traceback goes to the log (uvicorn writes it), the client is told which error it was."""
    log.error("%s %s failed: %r", request.method, request.url.path, error)
    return _status(status.internal(f"{type(error).__name__}; see the server's log"))
