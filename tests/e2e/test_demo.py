"""The steps of `make demo`, each a test of its own, on one lab."""

import pytest
import steps
from walk import Walk

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def walk(lab):
    made = Walk(lab.name, lab.kubeconfig, quiet=True)
    steps.deploy(made)
    yield made
    made.value(f"kubectl delete -f {steps.HERE}/vote.yaml --ignore-not-found", status=None)
    made.value("kubectl delete deployment web; kubectl delete service late", status=None)


def test_every_node_has_a_pod_cidr_of_its_own(walk):
    steps.pod_cidrs(walk)


def test_every_file_on_the_way_to_a_pods_ip_can_be_shown(walk):
    steps.how_a_pod_got_its_ip(walk)


def test_pods_reach_pods_over_the_bridge_and_through_vxlan(walk):
    steps.pod_to_pod(walk)


def test_the_node_port_answers_on_every_node_and_from_every_endpoint(walk):
    steps.node_port(walk)


def test_a_dead_kube_proxy_leaves_working_rules_and_a_restarted_one_catches_up(walk):
    steps.proxy_dead(walk)


def test_rules_win_over_a_process_that_has_the_port_and_the_proxy_says_what_it_cannot_hold(walk):
    steps.port_taken(walk)


def test_a_deleted_pod_leaves_neither_address_nor_veth(walk):
    steps.pod_deleted(walk)
