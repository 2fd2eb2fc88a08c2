"""The lab that tests share, and the walk of examples/vote."""

import os
import sys

import pytest

from podwire.testing.netns import require

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.abspath(f"{os.path.dirname(__file__)}/../../examples/vote"))


@pytest.fixture(scope="session")
def lab():
    """One lab of three nodes that all tests share which do not break it."""
    from labs import Lab

    require("root", "kubectl", "iptables", "vxlan", "bridge-device")
    made = Lab("e2e")
    made.podwire("down")
    made.podwire("up")
    yield made
    made.podwire("down")
