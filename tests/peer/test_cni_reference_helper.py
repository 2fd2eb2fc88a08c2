"""podwire's plugins with the resident helper beside the distribution's: the tests of test_cni_reference once more."""

import subprocess
import sys

import pytest
from test_cni_reference import (  # noqa: F401 - the same tests, with this module's fixture `sides`
    REFERENCE_CNI,
    Side,
    own,
    test_a_conflicting_bridge_address_is_refused_or_replaced,
    test_bridge_makes_and_removes_the_same,
    test_bridge_refuses_the_same_in_the_same_words,
    test_del_succeeds_without_namespace_link_or_address,
    test_host_local_gives_out_the_same_addresses_and_keeps_the_same_files,
    test_loopback_does_and_tells_the_same,
    test_the_same_add_twice_is_refused_in_the_same_words,
)

pytestmark = pytest.mark.peer


@pytest.fixture
def sides(own):  # noqa: F811 - the fixture
    made = [Side(own), Side(REFERENCE_CNI)]
    argv = made[0].node.command(sys.executable, "-P", "-m", "podwire", "cni", "helper")
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as helper:
        assert "ready" in helper.stderr.readline()
        yield made
        helper.terminate()
        said = helper.stderr.read()
    for side in made:
        side.close()
    assert "refused" not in said
    assert "worker" not in said
