"""The health server over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from typing import TYPE_CHECKING

import pytest

from podwire.daemon import health
from podwire.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.unit


@contextlib.contextmanager
def serving(routes: Mapping[str, health.Route], bind: str = "127.0.0.1:0") -> Iterator[health.HealthServer]:
    server = health.serve(bind, routes)
    try:
        yield server
    finally:
        server.close()


def ask(server: health.HealthServer, path: str, method: str = "GET") -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(*server.address, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_a_path_answers_what_its_function_says() -> None:
    routes: dict[str, health.Route] = {
        "/healthz": lambda: True,
        "/livez": lambda: False,
        "/text": lambda: "hello",
        "/pair": lambda: (202, "later"),
        "/full": lambda: health.Answer(503, b"{}", "application/json", (("X-Load", "1"),)),
    }
    with serving(routes) as server:
        assert ask(server, "/healthz")[:2] == (200, "ok")
        assert ask(server, "/healthz?verbose")[:2] == (200, "ok")
        assert ask(server, "/livez")[:2] == (503, "not ok")
        assert ask(server, "/text")[:2] == (200, "hello")
        assert ask(server, "/pair")[:2] == (202, "later")
        status, body, headers = ask(server, "/full")
        assert (status, body, headers["Content-Type"], headers["X-Load"]) == (503, "{}", "application/json", "1")
        assert ask(server, "/nothing")[0] == 404
        assert ask(server, "/text", "HEAD")[:2] == (200, "")


def test_a_check_that_breaks_is_a_failed_check() -> None:
    def broken() -> bool:
        raise RuntimeError("no idea")

    with serving({"/healthz": broken, "/livez": lambda: True}) as server:
        assert ask(server, "/healthz")[:2] == (500, "RuntimeError: no idea")
        assert ask(server, "/livez")[0] == 200


def test_readiness_names_the_checks_that_fail() -> None:
    with serving({"/readyz": health.checks({"informers": lambda: True, "sync": lambda: False})}) as server:
        status, body, _ = ask(server, "/readyz")
    assert status == 500
    assert "[+]informers ok" in body
    assert "[-]sync failed" in body


def test_metrics_are_in_the_format_of_prometheus() -> None:
    with serving({"/metrics": health.metrics}) as server:
        status, body, headers = ask(server, "/metrics")
    assert status == 200
    assert "process_resident_memory_bytes" in body
    assert headers["Content-Type"].startswith("text/plain")


def test_a_client_that_says_nothing_does_not_keep_others_out() -> None:
    with serving({"/healthz": lambda: True}) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(server.address))
        assert ask(server, "/healthz")[0] == 200


def test_closing_ends_the_thread_at_once_and_frees_the_port() -> None:
    server = health.serve("127.0.0.1:0", {})
    address = server.address
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 0.5
    assert not server._thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with serving({}) as server:
        bind = f"127.0.0.1:{server.address[1]}"
        with pytest.raises(UsageError, match=f"listening on {bind}: Address already in use"):
            health.serve(bind, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:10256", ("127.0.0.1", 10256)),
        ("[::1]:10256", ("::1", 10256)),
        (":0", ("", 0)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_a_bind_address_is_read(text: str, expected: tuple[str, int]) -> None:
    assert health.split_host_port(text) == expected


@pytest.mark.parametrize("text", ["", "10256", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", "::1:10256", "a:b"])
def test_a_bind_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        health.split_host_port(text)


def test_it_listens_on_ipv6_too() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        server = health.serve("[::1]:0", {"/healthz": lambda: True})
    except UsageError as error:
        pytest.skip(f"IPv6 loopback: {error}")
    try:
        assert ask(server, "/healthz")[0] == 200
    finally:
        server.close()
