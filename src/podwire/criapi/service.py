"""The CRI's methods, as the descriptor has them: one table from which server and client are made.

The generated file carries the services of api.proto as data (`DESCRIPTOR.services_by_name`), so no second generated
file is needed: a method's path, its message types and whether it streams are read from there.

A method of the CRI that api.proto does not have is answered with UNIMPLEMENTED and a sentence, by name; that is how a
kubelet and crictl find out what a runtime can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from podwire.criapi import api_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RUNTIME = "runtime.v1.RuntimeService"
IMAGE = "runtime.v1.ImageService"


class Method(NamedTuple):
    """One method: its path on the wire, its messages, whether the answer is a stream."""

    name: str
    path: str
    request: Any
    response: Any
    streams: bool


def methods(service: str) -> Iterator[Method]:
    """The methods of RUNTIME or IMAGE."""
    descriptor = api_pb2.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    for method in descriptor.methods:
        yield Method(
            method.name,
            f"/{service}/{method.name}",
            getattr(api_pb2, method.input_type.name),
            getattr(api_pb2, method.output_type.name),
            bool(method.server_streaming),
        )


class Handlers(grpc.GenericRpcHandler):
    """Serves both services from one object that has a Python method for each of theirs."""

    def __init__(self, implementation: object) -> None:
        self._handlers: dict[str, Any] = {}
        for service in (RUNTIME, IMAGE):
            for method in methods(service):
                make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
                self._handlers[method.path] = make(
                    getattr(implementation, method.name),
                    request_deserializer=method.request.FromString,
                    response_serializer=method.response.SerializeToString,
                )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call; the last resort for our services says what is missing."""
        path: str = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None and path.startswith((f"/{RUNTIME}/", f"/{IMAGE}/")):
            return grpc.unary_unary_rpc_method_handler(_refusal(path.rpartition("/")[2]))
        return handler


def _refusal(name: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"podwire cri does not implement {name}")
        raise AssertionError  # abort has raised

    return refuse


class Stub:
    """The client's side: a callable for each method, `stub.method(name)(request, timeout=…)`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._calls: dict[str, Any] = {}
        for service in (RUNTIME, IMAGE):
            for method in methods(service):
                make = channel.unary_stream if method.streams else channel.unary_unary
                self._calls[method.name] = make(
                    method.path,
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.response.FromString,
                )

    def method(self, name: str) -> Any:
        """The multi-callable of a method (grpc.UnaryUnaryMultiCallable, or unary-stream for GetContainerEvents)."""
        return self._calls[name]
