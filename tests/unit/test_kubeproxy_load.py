"""While 100,000 endpoints change at once, health checks and metrics are answered without delay."""

from __future__ import annotations

import sys
import threading
import time
import urllib.request

import pytest

from kubeproxy_changes import endpoint_slice, service
from podwire.daemon import health
from podwire.kubeproxy.changes import Batch
from podwire.kubeproxy.config import Config
from podwire.kubeproxy.daemon import SWITCH_SECONDS
from podwire.kubeproxy.family import IPV4
from podwire.kubeproxy.health import Health
from podwire.kubeproxy.iptables_sync import IptablesSync
from podwire.kubeproxy.metrics import Metrics
from podwire.kubeproxy.settings import resolve
from podwire.kubeproxy.state import State
from podwire.kubeproxy.trace import Trace

pytestmark = pytest.mark.unit

SETTINGS = resolve(Config(cluster_cidrs=("10.128.0.0/10",)), IPV4, "node-1", None, ())
SERVICES, ENDPOINTS = 10_000, 10


class Swallowing:
    """iptables that takes everything at once: what is left is our own work."""

    backend = "legacy"

    def save(self, table=""):
        return f"*{table}\nCOMMIT\n"

    def restore(self, text):
        text.encode()


def everything(shift):
    found = Batch()
    for number in range(SERVICES):
        name = f"s{number}"
        ip = f"10.96.{number >> 8}.{number & 255}"
        made = service(name, clusterIP=ip, clusterIPs=[ip])
        first = number * ENDPOINTS + shift
        ips = [f"10.{128 + (at >> 16)}.{at >> 8 & 255}.{at & 255}" for at in range(first, first + ENDPOINTS)]
        found.services[made.key] = made
        found.slices[f"ns/{name}-1"] = endpoint_slice(f"{name}-1", name, *ips)
    return found


@pytest.fixture
def quick_threads():
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    yield
    sys.setswitchinterval(before)


def test_health_and_metrics_answer_while_a_hundred_thousand_endpoints_change(quick_threads):
    state = State(IPV4, "node-1")
    sync = IptablesSync(state, Swallowing(), Trace(lambda: 0))
    changes = [everything(0), everything(1)]
    page, metrics = Health(("IPv4",), 30.0), Metrics()
    page.synced("IPv4")
    done = threading.Event()

    def work():
        for batch in changes:
            sync.sync(SETTINGS, state.apply(batch))
        done.set()

    routes = {"/healthz": lambda: page.page(with_node=True), "/metrics": lambda: health.Answer(200, metrics.text())}
    server = health.serve("127.0.0.1:0", routes)
    host, port = server.address
    thread = threading.Thread(target=work)
    thread.start()
    waits = []
    while not done.is_set():
        for path in routes:
            began = time.monotonic()
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
                assert answer.status == 200
            waits.append(time.monotonic() - began)
        time.sleep(0.01)
    thread.join()
    server.close()
    assert len(waits) > 20
    assert max(waits) < 1, f"{max(waits):.2f} s"
    assert sorted(waits)[len(waits) // 2] < 0.1
