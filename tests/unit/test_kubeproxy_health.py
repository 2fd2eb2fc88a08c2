"""Health pages and healthCheckNodePort answers are those of the real kube-proxy."""

from __future__ import annotations

import json

import pytest

from kubeproxy_golden import cases
from podwire.kube.kinds import NODES
from podwire.kubeproxy.health import Health
from podwire.kubeproxy.lb_health import Check, answer
from podwire.kubeproxy.metrics import Metrics

pytestmark = pytest.mark.unit

SECOND = 1_000_000_000


class Clock:
    def __init__(self):
        self.now = 1_796_046_774 * SECOND + 777_584_474

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += int(seconds * SECOND)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def health(clock):
    return Health(("IPv4", "IPv6"), 30.0, clock)


def test_it_is_unhealthy_until_every_family_has_synced(health):
    assert health.page(with_node=True).status == 503
    health.synced("IPv4")
    assert health.page(with_node=True).status == 503
    health.synced("IPv6")
    assert health.page(with_node=True).status == 200


def test_a_change_that_waits_for_more_than_two_sync_periods_is_unhealthy(health, clock):
    for family in ("IPv4", "IPv6"):
        health.synced(family)
    clock.pass_seconds(3600)
    assert health.healthy(), "nothing waits"
    health.queued()
    clock.pass_seconds(59)
    health.queued()
    assert health.healthy(), "the oldest change counts, and it may wait for 60 s"
    clock.pass_seconds(2)
    assert not health.healthy()
    health.synced("IPv4")
    assert not health.healthy()
    health.synced("IPv6")
    assert health.healthy()


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {
            "metadata": {"name": "n"},
            "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
        },
    ],
)
def test_a_node_that_is_going_is_alive_but_not_eligible(health, change):
    for family in ("IPv4", "IPv6"):
        health.synced(family)
    health.node_changed(NODES.convert(change))
    assert health.page(with_node=True).status == 503
    assert health.page(with_node=False).status == 200
    health.node_changed(NODES.convert({"metadata": {"name": "n"}}))
    assert health.page(with_node=True).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
def test_the_pages_have_the_keys_and_forms_of_the_real_ones(health, path):
    for family in ("IPv4", "IPv6"):
        health.synced(family)
    recorded = next(entry for entry in cases()["28-health-check-nodeport"]["healthcheck"] if entry["path"] == path)
    page = health.page(with_node=path == "/healthz")
    ours, theirs = json.loads(page.body), json.loads(recorded["body"])
    assert list(ours) == list(theirs)
    assert {key: type(value) for key, value in ours.items()} == {key: type(value) for key, value in theirs.items()}
    assert ours["status"].keys() == theirs["status"].keys()
    assert ours["currentTime"] == "2026-11-30T13:52:54.777584474Z"
    assert b" " not in page.body
    assert f"Content-Type: {page.content_type}" in recorded["headers"]
    assert "X-Content-Type-Options: nosniff" in recorded["headers"]
    assert page.headers == (("X-Content-Type-Options", "nosniff"),)


@pytest.mark.parametrize("number", range(3))
def test_a_healthchecknodeport_answers_byte_for_byte_as_the_real_one(number):
    recorded = cases()["28-health-check-nodeport"]["healthcheck"][number]
    body = json.loads(recorded["body"])
    check = Check(f"{body['service']['namespace']}/{body['service']['name']}", body["localEndpoints"])
    head, _, sent = answer(check, True, 0.0).decode().partition("\r\n\r\n")
    lines = head.split("\r\n")
    assert sent == recorded["body"]
    assert lines[0] == recorded["status"]
    assert [line for line in lines if line in recorded["headers"]] == recorded["headers"]


def test_a_healthchecknodeport_fails_while_the_proxy_is_unhealthy():
    text = answer(Check("ns/svc", 2), False, 0.0).decode()
    assert text.startswith("HTTP/1.1 503 ")
    assert '"serviceProxyHealthy": false' in text


def test_metrics_have_the_names_that_dashboards_know():
    metrics = Metrics()
    metrics.sync.labels("IPv4").observe(0.01)
    metrics.restore_failures.labels("IPv4").inc()
    metrics.rules.labels("IPv4", "nat").set(12)
    text = metrics.text().decode()
    assert 'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1.0' in text
    assert 'kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 1.0' in text
    assert 'kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"} 12.0' in text
    assert "process_resident_memory_bytes" in text
