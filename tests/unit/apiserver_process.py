"""A real API server process on loopback, and a plain HTTP client for it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import pathlib

MERGE = {"Content-Type": "application/merge-patch+json"}
JSON = {"Content-Type": "application/json"}


class Answer:
    """Status, headers and decoded body of a response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.code = response.status
        self.headers = response.headers
        self.raw = response.read()

    @property
    def body(self) -> dict:
        return json.loads(self.raw)


class Server:
    """`podwire apiserver` with a folder of its own; may be killed and started again on the same folder."""

    def __init__(self, folder: pathlib.Path, *flags: str) -> None:
        self.folder = folder
        self.flags = flags
        self.kubeconfig = folder / "kubeconfig"
        self.data = folder / "data"
        self.log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen | None = None

    def start(self) -> Server:
        self.kubeconfig.unlink(missing_ok=True)
        flags = ["--data-dir", self.data, "--bind-address", "127.0.0.1", "--secure-port", str(self.port)]
        command = [sys.executable, "-P", "-m", "podwire", "apiserver", *flags, "--kubeconfig-out", self.kubeconfig]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, *self.flags], stderr=log, stdout=log)
        deadline = time.monotonic() + 20
        while not self.kubeconfig.exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.02)
        return self

    def stop(self) -> float:
        """SIGTERM; how many seconds it took."""
        assert self.process is not None
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(10) == 0, self.log.read_text()
        return time.monotonic() - begun

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def token(self) -> str:
        return re.search(r"token: (\S+)", self.kubeconfig.read_text())[1]

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.data / "pki" / "ca.crt"))
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=context, timeout=20)

    def send(self, connection, method: str, path: str, body=None, headers=None) -> http.client.HTTPResponse:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.token}", **(JSON if body is not None else {}), **(headers or {})}
        connection.request(method, path, body, sent)
        return connection.getresponse()

    def __call__(self, method: str, path: str, body=None, headers=None) -> Answer:
        with contextlib.closing(self.connect()) as connection:
            return Answer(self.send(connection, method, path, body, headers))

    def ok(self, method: str, path: str, body=None, headers=None) -> dict:
        answer = self(method, path, body, headers)
        assert answer.code < 300, answer.raw
        return answer.body

    def watch(self, path: str, headers=None) -> Watch:
        return Watch(self, path, headers)


class Watch:
    """The events of a watch, one by one."""

    def __init__(self, server: Server, path: str, headers=None) -> None:
        self._connection = server.connect()
        self.response = server.send(self._connection, "GET", path, headers=headers)
        assert self.response.status == 200, self.response.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.response.close()
        self._connection.close()

    def __iter__(self):
        """Until the server ends the stream."""
        while line := self.response.readline():
            yield json.loads(line)

    def next(self) -> dict:
        return json.loads(self.response.readline())

    def names(self, count: int) -> list[tuple[str, str]]:
        events = [self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def config_map(name: str, labels: dict | None = None, **data: str) -> dict:
    metadata = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pod(name: str, **spec) -> dict:
    spec.setdefault("containers", [{"name": "c", "image": "i"}])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, replicas: int = 1) -> dict:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def refused(server, code: int, reason: str, method: str, path: str, body=None, headers=None) -> dict:
    answer = server(method, path, body, headers)
    status = answer.body
    assert (answer.code, status["code"], status["reason"]) == (code, code, reason), status
    assert (status["kind"], status["apiVersion"], status["status"]) == ("Status", "v1", "Failure")
    return status
