"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest
from apiserver_process import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A real API server process on loopback, one for each module that asks."""
    made = Server(tmp_path_factory.mktemp("apiserver")).start()
    yield made
    made.stop()


@pytest.fixture
def name(request) -> str:
    """A name for the test's own objects."""
    return f"t{abs(hash(request.node.name)) % 10**8}"
