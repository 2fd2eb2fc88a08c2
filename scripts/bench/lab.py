"""The table "lab": what a user waits for, on a real lab; each figure as minimum, median and maximum of several runs.

lab start to ready              `podwire up` of three nodes, until it says so
pod create to podIP             from the answer to the POST until status.podIP is seen in a watch
pod IP to first NodePort answer from a Service's only pod having its address until the NodePort of a node answers
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time

from rich.table import Table

from podwire.kube.client import Client
from podwire.kube.kinds import NODES, PODS, SERVICES

NAME = "bench"
STARTS, PODS_MADE = 3, 10


def podwire(*arguments: str) -> None:
    """Run podwire without its output."""
    subprocess.run([sys.executable, "-P", "-m", "podwire", *arguments], check=True, capture_output=True)


def lab_starts() -> list[float]:
    """Start the lab several times; the last one stays up."""
    seconds = []
    for run in range(STARTS):
        began = time.monotonic()
        podwire("up", "--name", NAME)
        seconds.append(time.monotonic() - began)
        if run < STARTS - 1:
            podwire("down", "--name", NAME)
    return seconds


def pod(name: str) -> dict[str, object]:
    """A pod with a stand-in web server."""
    container = {"name": "web", "image": "web", "ports": [{"containerPort": 80}]}
    return {"metadata": {"name": name, "labels": {"bench": name}}, "spec": {"containers": [container]}}


def service(name: str, port: int) -> dict[str, object]:
    """A NodePort Service in front of it."""
    ports = [{"port": 80, "targetPort": 80, "nodePort": port}]
    return {"metadata": {"name": name}, "spec": {"type": "NodePort", "selector": {"bench": name}, "ports": ports}}


def one_pod(client: Client, number: int, address: str) -> tuple[float, float]:
    """Seconds from create to podIP, and from there to the first answer of the NodePort."""
    name, port = f"bench-{number}", 31000 + number
    client.create(SERVICES, service(name, port), "default")
    seen = threading.Event()
    version = client.list(PODS, "default").resource_version

    def watch() -> None:
        for event in client.watch(PODS, namespace="default", resource_version=version):
            if event.object.metadata.name == name and event.object.status.pod_ip:
                seen.set()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    time.sleep(0.2)
    client.create(PODS, pod(name), "default")
    began = time.monotonic()
    if not seen.wait(30):
        raise SystemExit(f"bench: pod {name} got no IP within 30 s")
    has_ip = time.monotonic()
    while not answers(address, port):
        if time.monotonic() - has_ip > 30:
            raise SystemExit(f"bench: NodePort {port} did not answer within 30 s")
    return has_ip - began, time.monotonic() - has_ip


def answers(address: str, port: int) -> bool:
    """Whether the NodePort answers at once; a refusal costs well under a millisecond."""
    connection = http.client.HTTPConnection(address, port, timeout=0.5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except OSError:
        time.sleep(0.002)
        return False
    finally:
        connection.close()


def main() -> list[Table]:
    """Measure; the table."""
    podwire("down", "--name", NAME)
    try:
        starts = lab_starts()
        kubeconfig = json.loads(subprocess.run(
            [sys.executable, "-P", "-m", "podwire", "status", "--name", NAME, "--json"], check=True, capture_output=True,
        ).stdout)[0]["kubeconfig"]  # fmt: skip
        client = Client.from_kubeconfig(kubeconfig)
        address = next(
            entry.address for entry in client.list(NODES).items[0].status.addresses if entry.type == "InternalIP"
        )
        measured = [one_pod(client, number, address) for number in range(PODS_MADE)]
    finally:
        podwire("down", "--name", NAME)
    table = Table(title="lab")
    for column in ("seconds", "runs", "min", "median", "max"):
        table.add_column(column, justify="left" if column == "seconds" else "right")
    for title, seconds in (
        ("lab start to ready (3 nodes)", starts),
        ("pod create to podIP", [first for first, _ in measured]),
        ("pod IP to first NodePort answer", [second for _, second in measured]),
    ):
        figures = (min(seconds), statistics.median(seconds), max(seconds))
        table.add_row(title, str(len(seconds)), *(f"{figure:.3f}" for figure in figures))
    return [table]
