"""The table "explain": a dump of a large cluster read and one packet traced, against what iptables-restore takes to read it.

The dump has 10,000 Services of 10 endpoints with a NodePort each, as kube-proxy writes them: 470,000 lines. `iptables-restore --test`
parses and checks it without writing. explain runs in a process of its own: `read` is from the start of the process to rules that can be
walked, `trace` a packet to a ClusterIP and one to a NodePort behind that, `RSS` the process's highest. Medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from rich.table import Table

from podwire.errors import MissingCapability
from podwire.naming import endpoint_chain, service_chain
from podwire.testing.netns import netns

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES, ENDPOINTS, TURNS = 10_000, 10, 3
AIM_RATIO, AIM_TRACE, AIM_RSS = 3.0, 0.05, 1024

_MEASURED = """
import json, resource, sys, time
from podwire.explain.explain import explain
from podwire.explain.picture import Given, picture
from podwire.explain.question import Question
from podwire.explain.snapshot_load import load
node = picture(load([sys.argv[1]])[0], Given(["192.0.2.11/24@eth0"]))
ready = time.time()
traces = []
for to in ("10.96.10.10:80/tcp", "192.0.2.11:25000/tcp"):
    start = time.perf_counter()
    assert len(explain(Question("198.51.100.7", to, "eth0"), node).outcomes) == 10
    traces.append(time.perf_counter() - start)
print(json.dumps([ready, *traces, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def dump(services: int = SERVICES) -> Iterator[str]:
    """The lines of an iptables-save of that many Services."""
    head, calls, rules = ["*nat", ":PREROUTING ACCEPT", ":OUTPUT ACCEPT", ":POSTROUTING ACCEPT"], [], []
    head += [f":{name} -" for name in ("KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-POSTROUTING")]
    for number in range(services):
        name, ip = f"ns-{number % 50}/svc-{number}:http", f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
        cluster, external = (service_chain(prefix, name, "tcp") for prefix in ("KUBE-SVC-", "KUBE-EXT-"))
        head += [f":{cluster} -", f":{external} -"]
        to = f'-d {ip}/32 -p tcp -m comment --comment "{name} cluster IP" -m tcp --dport 80 -j'
        calls.append(f"-A KUBE-SERVICES {to} {cluster}")
        calls.append(
            f'-A KUBE-NODEPORTS -p tcp -m comment --comment "{name}" -m tcp --dport {20000 + number} -j {external}'
        )
        rules.append(f"-A {cluster} ! -s 10.244.0.0/16 {to} KUBE-MARK-MASQ")
        rules += [
            f'-A {external} -m comment --comment "masquerade {name}" -j KUBE-MARK-MASQ',
            f"-A {external} -j {cluster}",
        ]
        for index in range(ENDPOINTS):
            ip = f"10.244.{number * ENDPOINTS + index >> 8 & 255}.{number * ENDPOINTS + index & 255}"
            chain = endpoint_chain(name, "tcp", f"{ip}:8080")
            head.append(f":{chain} -")
            left = ENDPOINTS - index
            chance = f"-m statistic --mode random --probability {1 / left:.11f} " if left > 1 else ""
            rules.append(f'-A {cluster} -m comment --comment "{name} -> {ip}:8080" {chance}-j {chain}')
            rules.append(f'-A {chain} -s {ip}/32 -m comment --comment "{name}" -j KUBE-MARK-MASQ')
            rules.append(f'-A {chain} -p tcp -m comment --comment "{name}" -m tcp -j DNAT --to-destination {ip}:8080')
    yield from (*head, *calls, *rules)
    yield "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
    yield "-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000"
    yield "-A KUBE-POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully"
    yield from (f"-A {hook} -j KUBE-SERVICES" for hook in ("PREROUTING", "OUTPUT"))
    yield "-A POSTROUTING -j KUBE-POSTROUTING"
    yield "COMMIT"


def _restore(path: str) -> float:
    """Seconds that iptables-restore --test takes, in a namespace of its own."""
    with netns() as inside:
        start = time.perf_counter()
        inside.run("iptables-legacy-restore", "--test", path, timeout=600)
        return time.perf_counter() - start


def _explain(path: str) -> list[float]:
    """Seconds to ready rules, to each trace, and MiB."""
    start = time.time()
    done = subprocess.run([sys.executable, "-c", _MEASURED, path], capture_output=True, text=True, check=True)
    ready, *rest = json.loads(done.stdout)
    return [ready - start, *rest]


def main() -> list[Table]:
    """Measure. Raises MissingCapability."""
    if os.geteuid() != 0:
        raise MissingCapability("measuring iptables-restore", answer="root is needed")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        count = 0
        for line in dump():
            file.write(line + "\n")
            count += 1
        file.flush()
        # In turns, so that whatever else the machine does falls on both.
        turns = [(_restore(file.name), _explain(file.name)) for _ in range(TURNS)]
    restore = statistics.median([one for one, _ in turns])
    read, cluster, node_port, rss = (statistics.median([row[at] for _, row in turns]) for at in range(4))
    table = Table(
        title=f"explain: {SERVICES:,} Services x {ENDPOINTS} endpoints, {count:,} lines", title_justify="left"
    )
    for column in ("", "measured", "aim"):
        table.add_column(column)
    table.add_row("iptables-restore --test", f"{restore:.2f} s", "")
    table.add_row("explain: read", f"{read:.2f} s", "")
    table.add_row("explain: read and one trace", f"{(read + cluster) / restore:.2f} x", f"<= {AIM_RATIO:.0f} x")
    table.add_row(
        "trace to a ClusterIP, to a NodePort",
        f"{cluster * 1000:.1f} ms, {node_port * 1000:.1f} ms",
        f"< {AIM_TRACE * 1000:.0f} ms",
    )
    table.add_row("RSS", f"{rss:.0f} MiB", f"< {AIM_RSS} MiB")
    return [table]
