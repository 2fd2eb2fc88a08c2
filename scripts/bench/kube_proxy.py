"""The table "kube_proxy": the real process against a stand-in API with S Services of 10 endpoints each, one port.

`scripts/bench/kube_proxy.py --services 5000 --backend nft` measures one row and prints it bare. A row has a network namespace:

    first     the first full sync of IPv4 as the log tells it: reading, translating, and the kernel's programs
    floor     the kernel's program alone, given the same texts one after the other
    one text  iptables-restore given the same rules as one sorted text; left out for 10,000 Services with nf_tables (minutes)
    change    one endpoint more or less: from the event in the watch to the rule in the kernel (median of 6)
    floor     the kernel's program alone, making one chain with one rule beside all of this
    healthz   the longest wait for an answer of /healthz while every slice changes at once (S x 10 endpoints)
    RSS       after the first sync, after the changes, and at its highest in that storm

The stand-in API speaks as much of the protocol as a reflector asks for. Every tenth Service has a NodePort. They are not held
with sockets (--node-port-reservation=none), because that is another cost than the rules'.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import http.server
import json
import os
import queue
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from rich.table import Table

from podwire.kernel import netfilter
from podwire.kubeproxy import dry_run, iptables_plan
from podwire.kubeproxy.config import Config
from podwire.kubeproxy.dry_run import Objects
from podwire.kubeproxy.family import IPV4
from podwire.testing.netns import Netns, netns

if TYPE_CHECKING:
    from collections.abc import Iterable

ENDPOINTS = 10
CHANGES = 6
# The real kube-proxy 1.36.2 on another machine of two cores: first sync, change (seconds), RSS before and after changes.
ROWS: dict[tuple[str, int], str] = {
    ("nft", 5000): "150, 0.48, 206 / 254",
    ("nft", 10000): "none in 1800 s",
    ("legacy", 10000): "5.7, 1.57, 326 / 422",
    ("nftables", 10000): "11.3, 3.91, 266 / 334",
}
MARKER = "*nat\n:BENCH - [0:0]\n-A BENCH -j RETURN\nCOMMIT\n"
FIRST_SYNC = re.compile(r"synced family=IPv4 kind=full .*?took=(\d+)ms")
HEALTH, METRICS = 10256, 10249


def service(number: int) -> dict[str, Any]:
    """Service s-<number>, as an API server answers it."""
    ip = f"10.{96 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"
    port: dict[str, Any] = {"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}
    if number % 10 == 0:
        port["nodePort"] = 30000 + number // 10
    return {
        "metadata": meta(f"s-{number}", {"app": f"s-{number}"}),
        "spec": {
            "type": "NodePort" if number % 10 == 0 else "ClusterIP",
            "clusterIP": ip,
            "clusterIPs": [ip],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "externalTrafficPolicy": "Cluster" if number % 10 == 0 else "",
            "selector": {"app": f"s-{number}"},
            "sessionAffinity": "None",
            "ports": [port],
        },
        "status": {"loadBalancer": {}},
    }


def endpoint_slice(number: int, version: int = 0) -> dict[str, Any]:
    """The slice of Service s-<number>; from version to version its last endpoint comes and goes."""
    first = number * ENDPOINTS
    addresses = [address(first + place) for place in range(ENDPOINTS)]
    if version % 2:
        addresses.append(f"10.255.{number >> 8 & 255}.{number & 255}")
    return {
        "metadata": meta(
            f"s-{number}-abcde",
            {"kubernetes.io/service-name": f"s-{number}", "app": f"s-{number}"},
            version,
            ownerReferences=[{"apiVersion": "v1", "kind": "Service", "name": f"s-{number}", "uid": uid(number)}],
        ),
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [
            {
                "addresses": [ip],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": f"node-{place % 50}",
                "zone": "a",
                "targetRef": {
                    "kind": "Pod", "namespace": "bench", "name": f"s-{number}-{place:05d}-xyzzy", "uid": uid(place),
                },
            }
            for place, ip in enumerate(addresses)
        ],
    }  # fmt: skip


def address(number: int) -> str:
    """A pod address: 10.128.0.0/10 has room for all of them."""
    return f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def uid(number: int) -> str:
    """Something as long as a uid."""
    return f"{number:08x}-0000-4000-8000-000000000000"


def meta(name: str, labels: dict[str, str], version: int = 0, **more: Any) -> dict[str, Any]:
    """Metadata with the usual ballast."""
    return {
        "name": name,
        "namespace": "bench",
        "uid": uid(hash(name) & 0xFFFFFFFF),
        "resourceVersion": str(1000 + version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": labels,
        "managedFields": [
            {
                "manager": "kube-controller-manager",
                "operation": "Update",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:endpoints": {}, "f:ports": {}},
            }
        ],
        **more,
    }


class StandIn:
    """Lists with pages and watches that say what `send` is given."""

    def __init__(self, services: int) -> None:
        node = {"metadata": {"name": "node-0", "resourceVersion": "1"}, "spec": {}, "status": {}}
        self._lists = {
            "services": [json.dumps(service(number)) for number in range(services)],
            "endpointslices": [json.dumps(endpoint_slice(number)) for number in range(services)],
            "nodes": [json.dumps(node)],
        }
        self._events: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        stand_in = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                """Answer a list or a watch."""
                stand_in.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def send(self, slices: list[dict[str, Any]]) -> None:
        """Slices that changed, to the watch."""
        lines = [json.dumps({"type": "MODIFIED", "object": body}) + "\n" for body in slices]
        self._events.put("".join(lines).encode())

    def answer(self, request: Any) -> None:
        """One request."""
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        items = self._lists.get(url.path.rpartition("/")[2])
        if items is None:
            body = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
        elif query.get("watch"):
            self._watch(request, url.path)
            return
        else:
            start, limit = int(query.get("continue", "0")), int(query.get("limit", "0")) or len(items)
            page = {"resourceVersion": "1000"}
            if start + limit < len(items):
                page["continue"] = str(start + limit)
            body = f'{{"metadata":{json.dumps(page)},"items":[{",".join(items[start : start + limit])}]}}'.encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _watch(self, request: Any, path: str) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        request.wfile.flush()
        while True:
            if not path.endswith("endpointslices"):
                time.sleep(3600)
            data = self._events.get()
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            request.wfile.flush()


class Row:
    """One backend, one number of Services, one process."""

    def __init__(self, backend: str, services: int, folder: str, node: Netns, mode: str = "iptables") -> None:
        self.backend, self.services, self.folder, self.node, self.mode = backend, services, folder, node, mode
        self.stand_in = node.call(lambda: StandIn(services))
        self.environ = {**os.environ, "PATH": f"{tools(folder, backend)}:{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.log = f"{folder}/log"
        self.figures: dict[str, Any] = {"backend": mode if mode == "nftables" else backend, "services": services}

    def start(self) -> None:
        """Start kube-proxy and wait for its first sync."""
        kubeconfig = f"{self.folder}/kubeconfig"
        with open(kubeconfig, "w", encoding="utf-8") as file:
            json.dump(kubeconfig_for(self.stand_in.url), file)
        argv = [
            *(sys.executable, "-P", "-m", "podwire", "kube-proxy", f"--kubeconfig={kubeconfig}"),
            *("--hostname-override=node-0", "--cluster-cidr=10.128.0.0/10", "--node-port-reservation=none"),
            f"--state-dir={self.folder}/run",
            *(f"--proxy-mode={self.mode}", "--iptables-min-sync-period=10ms"),
            *(f"--healthz-bind-address=127.0.0.1:{HEALTH}", f"--metrics-bind-address=127.0.0.1:{METRICS}"),
        ]
        began = time.monotonic()
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = self.node.popen(*argv, stdout=log, stderr=log, env=self.environ)
        while not (found := FIRST_SYNC.search(self.text())):
            if self.process.poll() is not None or time.monotonic() - began > 600:
                raise SystemExit(f"bench: no first sync:\n{self.text()[-2000:]}")
            time.sleep(0.02)
        self.figures["ready"] = time.monotonic() - began
        self.figures["first"] = int(found[1]) / 1000
        time.sleep(2)  # the other family's sync, and what comes after the first
        self.figures["rss"] = self.memory("VmRSS")

    def text(self) -> str:
        """The log so far."""
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def memory(self, field: str) -> float:
        """MB by /proc/PID/status."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024

    def trace(self) -> object:
        """A value that changes with every change of the rules."""
        if self.backend == "nft" or self.mode == "nftables":
            return netfilter.nft_generation(self.node.fd)
        return self.node.call(lambda: netfilter.legacy_entries(4, "nat"))

    def changes(self) -> None:
        """One endpoint more or less, several times."""
        seconds = []
        for version in range(1, CHANGES + 1):
            time.sleep(0.3)
            before = self.trace()
            began = time.monotonic()
            self.stand_in.send([endpoint_slice(self.services // 2, version)])
            while self.trace() == before:
                if time.monotonic() - began > 60:
                    raise SystemExit(f"bench: no change in the kernel:\n{self.text()[-2000:]}")
                time.sleep(0.002)
            seconds.append(time.monotonic() - began)
        self.figures["change"] = statistics.median(seconds)
        self.figures["rss_changed"] = self.memory("VmRSS")

    def storm(self) -> None:
        """Change every slice at once, and ask /healthz meanwhile."""
        waits: list[float] = []
        before = self.text().count("synced family=IPv4")
        events = [endpoint_slice(number, CHANGES + 1) for number in range(self.services)]
        threading.Thread(target=self.stand_in.send, args=(events,)).start()
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            waits.append(self.node.call(ask))
            if "storm" not in self.figures and self.text().count("synced family=IPv4") > before:
                self.figures["storm"] = 1
                deadline = time.monotonic() + 2
            time.sleep(0.01)
        self.figures["healthz"] = max(waits)
        self.figures["rss_peak"] = self.memory("VmHWM")

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(60)

    def floor(self) -> None:
        """The kernel's program alone, with the same texts; and with all of them in one."""
        objects = Objects()
        for number in range(self.services):
            objects.add({"kind": "Service", **service(number)})
            objects.add({"kind": "EndpointSlice", **endpoint_slice(number)})
        config = Config(cluster_cidrs=("10.128.0.0/10",))
        batch = iptables_plan.BATCH if self.backend == "nft" else None
        texts = list(dry_run.texts(objects, config, IPV4, "node-0", frozenset(), batch=batch))
        with netns() as fresh:
            self.figures["first_floor"] = self.restore(fresh, texts)
            self.figures["change_floor"] = self.restore(fresh, [MARKER])
        if self.backend == "legacy" or self.services <= 5000:
            with netns() as fresh:
                whole = dry_run.texts(objects, config, IPV4, "node-0", frozenset())
                self.figures["one_text"] = self.restore(fresh, whole)

    def restore(self, node: Netns, texts: Iterable[str]) -> float:
        """Seconds of iptables-restore."""
        seconds = 0.0
        for text in texts:
            began = time.monotonic()
            node.run(f"iptables-{self.backend}-restore", "--noflush", "--counters", stdin=text, timeout=600)
            seconds += time.monotonic() - began
        return seconds


def ask() -> float:
    """Seconds until /healthz has answered."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", HEALTH, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    return time.monotonic() - began


def tools(folder: str, backend: str) -> str:
    """A folder in which plain iptables is the one of this backend."""
    made = f"{folder}/bin"
    os.makedirs(made)
    for program in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            real = shutil.which(f"{program}-{backend}{suffix}", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
            os.symlink(real or "/nowhere", f"{made}/{program}{suffix}")
    return made


def kubeconfig_for(server: str) -> dict[str, Any]:
    """A kubeconfig as a dict."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "x", "cluster": {"server": server}}],
        "users": [{"name": "x", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }


def measure(backend: str, services: int, mode: str = "iptables", *, storm: bool = True) -> dict[str, Any]:
    """One row."""
    with tempfile.TemporaryDirectory() as folder, netns() as node:
        row = Row(backend, services, folder, node, mode)
        row.start()
        try:
            row.changes()
            if mode == "iptables":
                row.floor()
            if storm:
                row.storm()
        finally:
            row.stop()
        return row.figures


def main() -> list[Table]:
    """The table."""
    table = Table(title="kube-proxy, 10 endpoints a Service (seconds, MB)")
    table.add_column("backend")
    for name in ("Services", "first", "floor", "one text", "change", "floor", "healthz", "RSS"):
        table.add_column(name, justify="right")
    table.add_column("the real one: first, change, RSS")
    for (backend, services), real in ROWS.items():
        mode, tool = ("nftables", "nft") if backend == "nftables" else ("iptables", backend)
        figures = measure(tool, services, mode)
        names = ("first", "first_floor", "one_text", "change", "change_floor", "healthz")
        memory = " / ".join(f"{figures[name]:.0f}" for name in ("rss", "rss_changed", "rss_peak"))
        cells = [f"{figures[name]:.2f}" if name in figures else "" for name in names]
        table.add_row(backend if mode == "nftables" else f"iptables, {backend}", str(services), *cells, memory, real)
    return [table]


def alone() -> None:
    """One row by command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--backend", choices=("nft", "legacy"), default="nft")
    parser.add_argument("--mode", choices=("iptables", "nftables"), default="iptables")
    parser.add_argument("--no-storm", action="store_true")
    chosen = parser.parse_args()
    figures = measure(chosen.backend, chosen.services, chosen.mode, storm=not chosen.no_storm)
    figures["load"] = os.getloadavg()[0]
    print(
        *[f"{name}={value:.3f}" if isinstance(value, float) else f"{name}={value}" for name, value in figures.items()]
    )


if __name__ == "__main__":
    alone()
