"""Log lines: one a record, readable, without credentials."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.daemon import logs

pytestmark = pytest.mark.unit

log = logging.getLogger("podwire.test")


@pytest.fixture
def written():
    stream = io.StringIO()
    root, ours = logging.getLogger(), logging.getLogger("podwire")
    levels = root.level, ours.level
    handler = logs.configure("kube-proxy", stream=stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    logging.captureWarnings(capture=False)


def test_a_line_has_time_level_component_message_and_fields(written: io.StringIO) -> None:
    logs.kv(log, logging.INFO, "synced", rules=12, chain="KUBE-SVC", why="it was time")
    line = written.getvalue()
    moment, rest = line.split(" ", 1)
    assert moment.endswith("Z")
    assert len(moment) == len("2026-05-01T10:00:00.123Z")
    assert rest == 'INFO kube-proxy synced rules=12 chain=KUBE-SVC why="it was time"\n'


def test_what_debugs_is_left_out_unless_asked_for(written: io.StringIO) -> None:
    log.debug("detail")
    logging.getLogger("somebody.else").info("chatter")
    assert written.getvalue() == ""
    logging.getLogger("somebody.else").warning("trouble")
    assert "WARNING kube-proxy trouble" in written.getvalue()


def test_a_value_with_line_breaks_stays_on_its_line(written: io.StringIO) -> None:
    logs.kv(log, logging.INFO, "first\nsecond", error="a\nb")
    assert written.getvalue().count("\n") == 1


def test_an_exception_shows_its_traceback_without_secrets(written: io.StringIO) -> None:
    try:
        int("Authorization: Bearer abcdef0123456789")
    except ValueError:
        log.exception("broke")
    text = written.getvalue()
    assert "Traceback" in text
    assert "abcdef0123456789" not in text


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRETSECRET",
        "Authorization: Basic SECRETSECRET==",
        '{"token": "SECRETSECRET"}',
        "token=SECRETSECRET",
        "password: SECRETSECRET",
        "client-key-data: SECRETSECRET",
        "id-token='SECRETSECRET'",
        "eyJhbGciOiJSUzI1NiJ9.eyJSECRETSECRET.SECRETSECRET",
        "-----BEGIN EC PRIVATE KEY-----\nSECRETSECRET\n-----END EC PRIVATE KEY-----",
    ],
)
def test_credentials_are_never_written(text: str) -> None:
    assert "SECRET" not in logs.redact(f"before {text} after")
    assert logs.redact(f"before {text} after").startswith("before ")


@pytest.mark.parametrize(
    "text", ["token bucket is empty", "pod default/web-5d78c9869d-abcde is ready", "10.244.0.0/24"]
)
def test_what_is_no_credential_is_left_as_it_is(text: str) -> None:
    assert logs.redact(text) == text


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789", min_size=6, max_size=40))
def test_a_bearer_token_of_any_kind_is_removed(token: str) -> None:
    assert logs.redact(f"Bearer {token}") == "Bearer [redacted]"


def test_configuring_twice_does_not_write_twice(written: io.StringIO) -> None:
    again = io.StringIO()
    handler = logs.configure("kubelet", stream=again)
    log.info("once")
    logging.getLogger().removeHandler(handler)
    assert written.getvalue() == ""
    assert again.getvalue().count("kubelet once") == 1
